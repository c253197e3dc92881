#include "drivers/transport/pci_replay.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace bm {
namespace {

using Kind = PciAccess::Kind;

bool is_read(Kind kind) { return kind == Kind::kRead || kind == Kind::kReadConfig; }

bool is_same_place(const PciAccess& a, const PciAccess& b) {
  return a.kind == b.kind && a.bar == b.bar && a.offset == b.offset && a.width == b.width;
}

bool is_same(const PciAccess& seen, const PciAccess& wanted) {
  switch (wanted.kind) {
    case Kind::kRead:
    case Kind::kReadConfig: return is_same_place(seen, wanted);
    case Kind::kWrite:
    case Kind::kWriteConfig: return is_same_place(seen, wanted) && seen.value == wanted.value;
    case Kind::kReadBlock: return is_same_place(seen, wanted) && seen.bytes == wanted.bytes;
    case Kind::kWriteBlock:
      return is_same_place(seen, wanted) && seen.bytes == wanted.bytes &&
             seen.value == wanted.value;
    case Kind::kCall: return seen.kind == Kind::kCall && seen.text == wanted.text;
    case Kind::kMark: return false;
  }
  __builtin_unreachable();
}

/// Without time and end of line.
std::string words(const PciAccess& access) {
  constexpr size_t kLongest = 120;
  std::string line = to_line(access);
  line = line.substr(line.find(' ') + 1);
  line.resize(std::min(line.find('\n'), kLongest));
  return line;
}

/// The error that "!code message" stands for.
Error error_of(std::string_view answer) {
  answer.remove_prefix(1);
  const size_t space = std::min(answer.find(' '), answer.size());
  for (uint8_t code = 0; code <= static_cast<uint8_t>(Code::kInternal); ++code)
    if (code_name(static_cast<Code>(code)) == answer.substr(0, space))
      return {static_cast<Code>(code),
              std::string(answer.substr(std::min(space + 1, answer.size())))};
  return {Code::kCorrupt, fmt::format("an error of the trace that is none: {}", answer)};
}

std::optional<uint64_t> number(std::string_view text, int base) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || problem != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// "0x1000+0x2000 …".
Result<std::vector<BusRange>> ranges_of(std::string_view text) {
  std::vector<BusRange> ranges;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t plus = word.find("+0x");
    const auto address = word.starts_with("0x") && plus != std::string_view::npos
                             ? number(word.substr(2, plus - 2), 16)
                             : std::nullopt;
    const auto bytes = address ? number(word.substr(plus + 3), 16) : std::nullopt;
    if (!bytes) return fail(Code::kCorrupt, "no range of bus addresses: {}", word);
    ranges.push_back({*address, *bytes});
  }
  return ranges;
}

std::string iova_text(const std::optional<uint64_t>& iova) {
  return iova ? fmt::format(" at {:#x}", *iova) : std::string();
}

}  // namespace

class PciReplay::Window final : public RemoteWindow {
 public:
  Window(PciReplay& replay, uint32_t bar) : replay_(replay), bar_(bar) {}
  uint64_t size() const override { return replay_.trace_.bars[bar_].size; }
  uint64_t read(uint64_t offset, uint32_t width) override {
    const PciAccess* seen =
        replay_.take({.kind = Kind::kRead, .bar = bar_, .width = width, .offset = offset});
    return seen == nullptr ? ~uint64_t{0} : seen->value;
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    (void)replay_.take(
        {.kind = Kind::kWrite, .bar = bar_, .width = width, .offset = offset, .value = value});
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    const PciAccess* seen =
        replay_.take({.kind = Kind::kReadBlock, .bar = bar_, .offset = offset, .bytes = to.size()});
    if (seen == nullptr)
      std::ranges::fill(to, std::byte{0xff});
    else
      std::ranges::copy(seen->data, to.begin());
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    (void)replay_.take({.kind = Kind::kWriteBlock,
                        .bar = bar_,
                        .offset = offset,
                        .value = trace_hash(from),
                        .bytes = from.size()});
  }
  void flush() override {}
  Status status() const override { return replay_.first_error_; }

 private:
  PciReplay& replay_;
  const uint32_t bar_;
};

/// Of this process: nothing but the driver ever writes to it.
class PciReplay::Memory final : public DmaMemory {
 public:
  Memory(uint64_t bytes, std::vector<BusRange> ranges)
      : storage_((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t)) {
    ranges_ = std::move(ranges);
    view_ = HostView::mapped(storage_.data(), bytes).value_or(HostView());
  }

 private:
  std::vector<uint64_t> storage_;
};

PciReplay::PciReplay(PciTrace trace) : trace_(std::move(trace)) {}
PciReplay::~PciReplay() = default;

void PciReplay::skip_marks() {
  while (at_ < trace_.accesses.size() && trace_.accesses[at_].kind == Kind::kMark) ++at_;
}

bool PciReplay::is_polled(const PciAccess& access) const {
  return has_read_ && is_read(access.kind) && is_same_place(access, last_read_);
}

const PciAccess* PciReplay::take(const PciAccess& wanted) {
  if (!first_error_) return nullptr;
  const auto& all = trace_.accesses;
  skip_marks();
  if (at_ < all.size() && !is_same(all[at_], wanted) && is_polled(wanted)) return &last_read_;
  // What was polled longer then than now.
  while (at_ < all.size() && !is_same(all[at_], wanted) && is_polled(all[at_])) {
    ++at_;
    used_ = 0;
    skip_marks();
  }
  if (at_ >= all.size()) {
    if (is_polled(wanted)) return &last_read_;
    first_error_ = fail(Code::kCorrupt, "the trace has ended, the driver does `{}`", words(wanted));
    return nullptr;
  }
  const PciAccess& seen = all[at_];
  if (!is_same(seen, wanted)) {
    first_error_ = fail(Code::kCorrupt, "access {} of the trace is `{}`, the driver does `{}`", at_,
                        words(seen), words(wanted));
    return nullptr;
  }
  if (is_read(seen.kind)) {
    last_read_ = seen;
    has_read_ = true;
  } else if (seen.kind != Kind::kReadBlock) {
    has_read_ = false;
  }
  if (++used_ >= seen.repeats) {
    ++at_;
    used_ = 0;
  }
  return &seen;
}

Status PciReplay::finish() {
  if (!first_error_) return first_error_;
  skip_marks();
  while (at_ < trace_.accesses.size() && is_polled(trace_.accesses[at_])) ++at_, skip_marks();
  if (at_ < trace_.accesses.size())
    return fail(Code::kCorrupt, "the driver has stopped before access {} of the trace, `{}`", at_,
                words(trace_.accesses[at_]));
  return {};
}

Result<std::string> PciReplay::call(const std::string& text) {
  const PciAccess* seen = take({.kind = Kind::kCall, .text = text});
  if (seen == nullptr) return tl::unexpected(first_error_.error());
  if (seen->answer.starts_with('!')) return tl::unexpected(error_of(seen->answer));
  return seen->answer;
}

Result<RemoteWindow*> PciReplay::window(uint32_t index) {
  if (index >= kPciBars || trace_.bars[index].size == 0)
    return fail(Code::kInvalidArgument, "the trace's function has no BAR {}", index);
  windows_.push_back(std::make_unique<Window>(*this, index));
  return windows_.back().get();
}

Result<Mmio> PciReplay::map_bar(uint32_t index) { return Mmio::remote(*BM_TRY(window(index))); }

Result<HostView> PciReplay::map_bar_memory(uint32_t index, bool /*is_write_combined*/) {
  return HostView::remote(*BM_TRY(window(index)));
}

Status PciReplay::resize_bar(uint32_t index, uint64_t bytes) {
  BM_TRY(call(fmt::format("resize {} {:#x}", index, bytes)));
  trace_.bars[index].size = bytes;
  return {};
}

Result<std::vector<BusRange>> PciReplay::dma_map(const DmaRequest& request) {
  return ranges_of(
      BM_TRY(call(fmt::format("map {:#x}{}", request.bytes, iova_text(request.iova)))));
}

Status PciReplay::dma_unmap(void* /*host*/) {
  BM_TRY(call("unmap"));
  return {};
}

Result<std::unique_ptr<DmaMemory>> PciReplay::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                           std::optional<uint64_t> iova) {
  const std::string answer = BM_TRY(call(fmt::format(
      "allocate {:#x}{}{}", bytes, is_contiguous ? " contiguous" : "", iova_text(iova))));
  auto ranges = BM_TRY(ranges_of(answer));
  uint64_t sum = 0;
  for (const BusRange& range : ranges) sum += range.bytes;
  constexpr uint64_t kMost = uint64_t{1} << 32;  // a file says it
  if (sum < bytes || sum > kMost)
    return fail(Code::kCorrupt, "the trace gives {:#x} bytes where {:#x} were wanted", sum, bytes);
  return std::make_unique<Memory>(sum, std::move(ranges));
}

Result<uint32_t> PciReplay::enable_interrupts(uint32_t wanted) {
  const std::string answer = BM_TRY(call(fmt::format("interrupts {}", wanted)));
  const auto count = number(answer, 10);
  if (!count || *count > UINT32_MAX)
    return fail(Code::kCorrupt, "no number of interrupts: {}", answer);
  return static_cast<uint32_t>(*count);
}

Result<int> PciReplay::interrupt_fd(uint32_t /*vector*/) {
  return fail(Code::kUnsupported, "a trace has no interrupts");
}
Result<bool> PciReplay::wait_interrupt(uint32_t /*vector*/, int /*timeout_ms*/) {
  return fail(Code::kUnsupported, "a trace has no interrupts");
}

Status PciReplay::reset(PciReset kind) {
  BM_TRY(call(kind == PciReset::kBus ? "reset bus" : "reset function"));
  return {};
}

Result<uint32_t> PciReplay::do_read_config(uint32_t offset, uint32_t width) {
  skip_marks();
  const std::string refused = fmt::format("config {:#x} {}", offset, width);
  if (first_error_ && at_ < trace_.accesses.size() && trace_.accesses[at_].text == refused)
    return tl::unexpected(error_of(trace_.accesses[at_++].answer));
  const PciAccess* seen = take({.kind = Kind::kReadConfig, .width = width, .offset = offset});
  if (seen == nullptr) return tl::unexpected(first_error_.error());
  return static_cast<uint32_t>(seen->value);
}

Status PciReplay::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  return take({.kind = Kind::kWriteConfig, .width = width, .offset = offset, .value = value}) ==
                 nullptr
             ? first_error_
             : Status{};
}

}  // namespace bm
