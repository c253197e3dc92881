#include "drivers/transport/pci_recorder.h"

#include <chrono>
#include <utility>

namespace bm {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHeldUs = 100'000;  // longest that reads with one answer are kept back

uint64_t now_us() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

std::string answer_of(const Error& error) {
  std::string text = fmt::format("!{} {}", code_name(error.code), error.message);
  for (char& letter : text)
    if (letter == '\n') letter = ' ';
  return text;
}
std::string answer_of(const Status& status) { return status ? "ok" : answer_of(status.error()); }

std::string text_of(const std::vector<BusRange>& ranges) {
  std::string text;
  for (const BusRange& range : ranges)
    text += fmt::format("{}{:#x}+{:#x}", text.empty() ? "" : " ", range.address, range.bytes);
  return text;
}

std::string iova_text(const std::optional<uint64_t>& iova) {
  return iova ? fmt::format(" at {:#x}", *iova) : std::string();
}

bool is_same_read(const PciAccess& a, const PciAccess& b) {
  return a.kind == b.kind &&
         (a.kind == PciAccess::Kind::kRead || a.kind == PciAccess::Kind::kReadConfig) &&
         a.bar == b.bar && a.offset == b.offset && a.width == b.width && a.value == b.value;
}

}  // namespace

PciRecord::PciRecord(Sink sink) : sink_(std::move(sink)), begun_us_(now_us()) {}

void PciRecord::begin(const PciFunction& function) {
  const std::lock_guard lock(mutex_);
  if (sink_) sink_(pci_trace_head(function));
}

void PciRecord::mark(std::string_view text) {
  add({.kind = PciAccess::Kind::kMark, .text = std::string(text)});
}

PciCounts PciRecord::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

PciRecord::Uses PciRecord::uses(uint32_t bar, std::span<const BusRange> ranges) const {
  const std::lock_guard lock(mutex_);
  Uses sum;
  for (const BusRange& range : ranges) {
    const uint64_t end = (range.address + range.bytes + kPage - 1) / kPage;
    for (auto page = pages_[bar].lower_bound(range.address / kPage);
         page != pages_[bar].end() && page->first < end; ++page) {
      sum.reads += page->second.reads;
      sum.writes += page->second.writes;
    }
  }
  return sum;
}

void PciRecord::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

void PciRecord::flush_locked() {
  if (std::exchange(has_pending_, false) && sink_) sink_(to_line(pending_));
}

void PciRecord::add(PciAccess access) {
  using enum PciAccess::Kind;
  const std::lock_guard lock(mutex_);
  BarCounts& bar = counts_.bars[access.bar];
  Uses& page = pages_[access.bar][access.offset / kPage];
  switch (access.kind) {
    case kRead: ++bar.reads, ++page.reads; break;
    case kWrite: ++bar.writes, ++page.writes; break;
    case kReadBlock: ++bar.read_bursts, ++page.reads, bar.burst_bytes_read += access.bytes; break;
    case kWriteBlock:
      ++bar.write_bursts, ++page.writes, bar.burst_bytes_written += access.bytes;
      break;
    case kReadConfig: ++counts_.config_reads; break;
    case kWriteConfig: ++counts_.config_writes; break;
    case kCall: ++counts_.calls; break;
    case kMark: break;
  }
  if (!sink_) return;
  access.us = now_us() - begun_us_;
  if (has_pending_ && is_same_read(pending_, access)) {
    ++pending_.repeats;
    // Whoever is killed while it waits leaves what it waited for.
    if (access.us - pending_.us >= kHeldUs) flush_locked();
    return;
  }
  flush_locked();
  pending_ = std::move(access);
  has_pending_ = true;
  // Only reads can be joined by others. What has not happened yet must not be kept back.
  if (pending_.kind != kRead && pending_.kind != kReadConfig) flush_locked();
}

/// A BAR, as the other function shows it.
class PciRecorder::Window final : public RemoteWindow {
 public:
  Window(PciRecord& record, uint32_t bar, const Mmio& registers)
      : record_(record), bar_(bar), registers_(registers) {}
  Window(PciRecord& record, uint32_t bar, const HostView& memory)
      : record_(record), bar_(bar), memory_(memory) {}

  uint64_t size() const override { return memory_ ? memory_.size() : registers_.size(); }

  uint64_t read(uint64_t offset, uint32_t width) override {
    const Mmio view = memory_ ? memory_.registers() : registers_;
    uint64_t value = 0;
    switch (width) {
      case 1: value = view.read8(offset); break;
      case 2: value = view.read16(offset); break;
      case 4: value = view.read32(offset); break;
      default: value = view.read64(offset); break;
    }
    record_.add({.kind = PciAccess::Kind::kRead,
                 .bar = bar_,
                 .width = width,
                 .offset = offset,
                 .value = value});
    return value;
  }

  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    record_.add({.kind = PciAccess::Kind::kWrite,
                 .bar = bar_,
                 .width = width,
                 .offset = offset,
                 .value = value});
    const Mmio view = memory_ ? memory_.registers() : registers_;
    switch (width) {
      case 1: view.write8(offset, static_cast<uint8_t>(value)); break;
      case 2: view.write16(offset, static_cast<uint16_t>(value)); break;
      case 4: view.write32(offset, static_cast<uint32_t>(value)); break;
      default: view.write64(offset, value); break;
    }
  }

  void read_block(uint64_t offset, std::span<std::byte> to) override {
    if (memory_) {
      memory_.copy_out(offset, to);
    } else if (offset % 4 == 0 && to.size() % 4 == 0) {
      std::vector<uint32_t> words(to.size() / 4);
      registers_.read_block(offset, words);
      std::memcpy(to.data(), words.data(), to.size());
    } else {
      for (size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<std::byte>(registers_.read8(offset + i));
    }
    record_.add({.kind = PciAccess::Kind::kReadBlock,
                 .bar = bar_,
                 .offset = offset,
                 .bytes = to.size(),
                 .data = {to.begin(), to.end()}});
  }

  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    record_.add({.kind = PciAccess::Kind::kWriteBlock,
                 .bar = bar_,
                 .offset = offset,
                 .value = trace_hash(from),
                 .bytes = from.size()});
    if (memory_) {
      memory_.copy_in(offset, from);
    } else if (offset % 4 == 0 && from.size() % 4 == 0) {
      std::vector<uint32_t> words(from.size() / 4);
      std::memcpy(words.data(), from.data(), from.size());
      registers_.write_block(offset, words);
    } else {
      for (size_t i = 0; i < from.size(); ++i)
        registers_.write8(offset + i, static_cast<uint8_t>(from[i]));
    }
  }

  /// Everything is in the order of the calls at once, as writes to registers are.
  void flush() override {
    if (memory_) memory_.publish();
  }
  Status status() const override { return memory_ ? memory_.status() : registers_.status(); }

 private:
  PciRecord& record_;
  const uint32_t bar_;
  const Mmio registers_;
  const HostView memory_;
};

PciRecorder::PciRecorder(std::unique_ptr<PciFunction> function, std::shared_ptr<PciRecord> record)
    : function_(std::move(function)), record_(std::move(record)) {
  record_->begin(*function_);
}

PciRecorder::~PciRecorder() { record_->flush(); }

void PciRecorder::record_call(std::string text, std::string answer) {
  record_->add(
      {.kind = PciAccess::Kind::kCall, .text = std::move(text), .answer = std::move(answer)});
}

Result<Mmio> PciRecorder::map_bar(uint32_t index) {
  windows_.push_back(std::make_unique<Window>(*record_, index, BM_TRY(function_->map_bar(index))));
  return Mmio::remote(*windows_.back());
}

Result<HostView> PciRecorder::map_bar_memory(uint32_t index, bool is_write_combined) {
  windows_.push_back(std::make_unique<Window>(
      *record_, index, BM_TRY(function_->map_bar_memory(index, is_write_combined))));
  return HostView::remote(*windows_.back());
}

Status PciRecorder::resize_bar(uint32_t index, uint64_t bytes) {
  const Status done = function_->resize_bar(index, bytes);
  record_call(fmt::format("resize {} {:#x}", index, bytes), answer_of(done));
  return done;
}

Result<std::vector<BusRange>> PciRecorder::dma_map(const DmaRequest& request) {
  auto ranges = function_->dma_map(request);
  record_call(fmt::format("map {:#x}{}", request.bytes, iova_text(request.iova)),
              ranges ? text_of(*ranges) : answer_of(ranges.error()));
  return ranges;
}

Status PciRecorder::dma_unmap(void* host) {
  const Status done = function_->dma_unmap(host);
  record_call("unmap", answer_of(done));
  return done;
}

Result<std::unique_ptr<DmaMemory>> PciRecorder::dma_allocate(uint64_t bytes, bool is_contiguous,
                                                             std::optional<uint64_t> iova) {
  auto memory = function_->dma_allocate(bytes, is_contiguous, iova);
  record_call(
      fmt::format("allocate {:#x}{}{}", bytes, is_contiguous ? " contiguous" : "", iova_text(iova)),
      memory ? text_of((*memory)->ranges()) : answer_of(memory.error()));
  return memory;
}

Result<uint32_t> PciRecorder::enable_interrupts(uint32_t wanted) {
  const auto vectors = function_->enable_interrupts(wanted);
  record_call(fmt::format("interrupts {}", wanted),
              vectors ? fmt::format("{}", *vectors) : answer_of(vectors.error()));
  return vectors;
}

Status PciRecorder::reset(PciReset kind) {
  record_->mark(kind == PciReset::kBus ? "the bus is being reset" : "the function is being reset");
  const Status done = function_->reset(kind);
  record_call(kind == PciReset::kBus ? "reset bus" : "reset function", answer_of(done));
  return done;
}

Result<uint32_t> PciRecorder::do_read_config(uint32_t offset, uint32_t width) {
  const auto value = function_->read_config(offset, width);
  if (value)
    record_->add(
        {.kind = PciAccess::Kind::kReadConfig, .width = width, .offset = offset, .value = *value});
  else
    record_call(fmt::format("config {:#x} {}", offset, width), answer_of(value.error()));
  return value;
}

Status PciRecorder::do_write_config(uint32_t offset, uint32_t width, uint32_t value) {
  record_->add(
      {.kind = PciAccess::Kind::kWriteConfig, .width = width, .offset = offset, .value = value});
  return function_->write_config(offset, width, value);
}

}  // namespace bm
