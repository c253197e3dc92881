#include "drivers/transport/pci_trace.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace bm {
namespace {

constexpr std::string_view kTitle = "# bellmetal pci trace 1";
constexpr uint64_t kMostBurst = uint64_t{64} << 20;  // bytes that a line of a file may stand for
constexpr size_t kWord = 4;

struct Letter {
  PciAccess::Kind kind;
  std::string_view text;
};
constexpr Letter kLetters[] = {
    {PciAccess::Kind::kRead, "r"},       {PciAccess::Kind::kWrite, "w"},
    {PciAccess::Kind::kReadBlock, "R"},  {PciAccess::Kind::kWriteBlock, "W"},
    {PciAccess::Kind::kReadConfig, "c"}, {PciAccess::Kind::kWriteConfig, "C"},
    {PciAccess::Kind::kCall, "call"},    {PciAccess::Kind::kMark, "mark"},
};

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

/// Words as their bytes lie, equal ones in a row once.
std::string data_text(std::span<const std::byte> data) {
  std::string text;
  for (size_t at = 0; at < data.size();) {
    const auto word = data.subspan(at, std::min(kWord, data.size() - at));
    size_t count = 1;
    while (word.size() == kWord && at + (count + 1) * kWord <= data.size() &&
           std::ranges::equal(word, data.subspan(at + count * kWord, kWord)))
      ++count;
    if (!text.empty()) text += ',';
    text += hex_of(word);
    if (count > 1) text += fmt::format("*{}", count);
    at += word.size() * count;
  }
  return text;
}

/// One line of a file, taken apart from its left end.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  std::string_view next() {
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  std::string_view rest() const { return rest_; }
  bool is_empty() const { return rest_.empty(); }

  /// Decimal, or hexadecimal after 0x.
  static std::optional<uint64_t> number(std::string_view word, int base = 10) {
    if (word.starts_with("0x")) {
      word.remove_prefix(2);
      base = 16;
    }
    uint64_t value = 0;
    const char* const end = word.data() + word.size();
    const auto [stop, problem] = std::from_chars(word.data(), end, value, base);
    if (problem != std::errc() || stop != end || word.empty()) return std::nullopt;
    return value;
  }
  template <class T>
  bool take(T* out, uint64_t most) {
    const auto value = number(next());
    if (!value || *value > most) return false;
    *out = static_cast<T>(*value);
    return true;
  }

 private:
  std::string_view rest_;
};

bool parse_bytes(std::string_view hex, std::vector<std::byte>* out) {
  if (hex.empty() || hex.size() % 2 != 0 || hex.size() > 2 * kWord) return false;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const auto byte = Words::number(hex.substr(i, 2), 16);
    if (!byte) return false;
    out->push_back(static_cast<std::byte>(*byte));
  }
  return true;
}

bool parse_data(std::string_view text, uint64_t bytes, std::vector<std::byte>* out) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    std::string_view token = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    uint64_t count = 1;
    if (const size_t star = token.find('*'); star != std::string_view::npos) {
      const auto wanted = Words::number(token.substr(star + 1));
      if (!wanted || *wanted > bytes) return false;
      count = *wanted;
      token = token.substr(0, star);
    }
    std::vector<std::byte> word;
    if (!parse_bytes(token, &word) || out->size() + count * word.size() > bytes) return false;
    for (uint64_t i = 0; i < count; ++i) out->insert(out->end(), word.begin(), word.end());
  }
  return out->size() == bytes;
}

bool is_width(uint32_t width) { return width == 1 || width == 2 || width == 4 || width == 8; }

bool parse_repeats(Words& words, PciAccess* access) {
  if (words.is_empty()) return true;
  const std::string_view word = words.next();
  const auto count = word.starts_with('x') ? Words::number(word.substr(1)) : std::nullopt;
  if (!count || *count == 0) return false;
  access->repeats = *count;
  return words.is_empty();
}

bool parse_access(std::string_view line, PciAccess* access) {
  using enum PciAccess::Kind;
  Words words(line);
  if (!words.take(&access->us, UINT64_MAX)) return false;
  const std::string_view letter = words.next();
  const auto* const row = std::ranges::find(kLetters, letter, &Letter::text);
  if (row == std::end(kLetters)) return false;
  access->kind = row->kind;
  switch (access->kind) {
    case kRead:
    case kWrite:
      return words.take(&access->bar, kPciBars - 1) && words.take(&access->offset, UINT64_MAX) &&
             words.take(&access->width, 8) && is_width(access->width) &&
             words.take(&access->value, UINT64_MAX) && parse_repeats(words, access);
    case kReadConfig:
    case kWriteConfig:
      return words.take(&access->offset, 4095) && words.take(&access->width, 4) &&
             is_width(access->width) && words.take(&access->value, UINT32_MAX) &&
             parse_repeats(words, access);
    case kReadBlock:
      return words.take(&access->bar, kPciBars - 1) && words.take(&access->offset, UINT64_MAX) &&
             words.take(&access->bytes, kMostBurst) &&
             parse_data(words.next(), access->bytes, &access->data) && words.is_empty();
    case kWriteBlock: {
      if (!words.take(&access->bar, kPciBars - 1) || !words.take(&access->offset, UINT64_MAX) ||
          !words.take(&access->bytes, kMostBurst))
        return false;
      const std::string_view hash = words.next();
      const auto value = hash.starts_with('#') ? Words::number(hash.substr(1), 16) : std::nullopt;
      access->value = value.value_or(0);
      return value && words.is_empty();
    }
    case kCall: {
      const std::string_view rest = words.rest();
      const size_t equals = rest.find(" = ");
      if (equals == std::string_view::npos) return false;
      access->text = rest.substr(0, equals);
      access->answer = rest.substr(equals + 3);
      return true;
    }
    case kMark: access->text = words.rest(); return true;
  }
  __builtin_unreachable();
}

bool parse_function(Words words, PciIdentity* out) {
  const auto address = parse_pci_address(words.next());
  if (!address) return false;
  out->address = *address;
  return words.take(&out->vendor, UINT16_MAX) && words.take(&out->device, UINT16_MAX) &&
         words.take(&out->subsystem_vendor, UINT16_MAX) &&
         words.take(&out->subsystem_device, UINT16_MAX) && words.take(&out->class_code, 0xffffff) &&
         words.take(&out->revision, UINT8_MAX) && words.is_empty();
}

bool parse_bar(Words words, std::array<PciBar, kPciBars>* out) {
  uint32_t index = 0;
  if (!words.take(&index, kPciBars - 1)) return false;
  PciBar& bar = (*out)[index];
  return words.take(&bar.size, UINT64_MAX) && words.take(&bar.address, UINT64_MAX) &&
         words.take(&bar.is_memory, 1) && words.take(&bar.is_64_bit, 1) &&
         words.take(&bar.is_prefetchable, 1) && words.is_empty();
}

bool parse_dma(Words words, DmaLimits* out) {
  if (!words.take(&out->takes_iova, 1) || !words.take(&out->page_bytes, UINT64_MAX) ||
      !words.take(&out->address_bits, 64) || !words.take(&out->mappings, UINT32_MAX))
    return false;
  while (!words.is_empty()) {
    BusRange range;
    if (!words.take(&range.address, UINT64_MAX) || !words.take(&range.bytes, UINT64_MAX))
      return false;
    out->reserved.push_back(range);
  }
  return out->page_bytes != 0;
}

bool parse_line(std::string_view line, PciTrace* trace) {
  Words words(line);
  const std::string_view first = words.next();
  if (first == "function") return parse_function(words, &trace->identity);
  if (first == "bar") return parse_bar(words, &trace->bars);
  if (first == "dma") return parse_dma(words, &trace->limits);
  PciAccess access;
  if (!parse_access(line, &access)) return false;
  trace->accesses.push_back(std::move(access));
  return true;
}

}  // namespace

uint64_t trace_hash(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

std::string pci_trace_head(const PciFunction& function) {
  const PciIdentity& id = function.identity();
  std::string text =
      fmt::format("{}\nfunction {} {:#06x} {:#06x} {:#06x} {:#06x} {:#08x} {:#x}\n", kTitle,
                  to_string(id.address), id.vendor, id.device, id.subsystem_vendor,
                  id.subsystem_device, id.class_code, id.revision);
  for (uint32_t i = 0; i < kPciBars; ++i)
    if (const PciBar& bar = function.bars()[i]; bar.size != 0)
      text += fmt::format("bar {} {:#x} {:#x} {:d} {:d} {:d}\n", i, bar.size, bar.address,
                          bar.is_memory, bar.is_64_bit, bar.is_prefetchable);
  const DmaLimits& limits = function.dma_limits();
  text += fmt::format("dma {:d} {:#x} {} {}", limits.takes_iova, limits.page_bytes,
                      limits.address_bits, limits.mappings);
  for (const BusRange& range : limits.reserved)
    text += fmt::format(" {:#x} {:#x}", range.address, range.bytes);
  return text + "\n";
}

std::string to_line(const PciAccess& access) {
  using enum PciAccess::Kind;
  const std::string_view letter = std::ranges::find(kLetters, access.kind, &Letter::kind)->text;
  const std::string repeats = access.repeats == 1 ? "" : fmt::format(" x{}", access.repeats);
  const std::string begin = fmt::format("{} {} ", access.us, letter);
  switch (access.kind) {
    case kRead:
    case kWrite:
      return fmt::format("{}{} {:#x} {} {:#x}{}\n", begin, access.bar, access.offset, access.width,
                         access.value, repeats);
    case kReadConfig:
    case kWriteConfig:
      return fmt::format("{}{:#x} {} {:#x}{}\n", begin, access.offset, access.width, access.value,
                         repeats);
    case kReadBlock:
      return fmt::format("{}{} {:#x} {:#x} {}\n", begin, access.bar, access.offset, access.bytes,
                         data_text(access.data));
    case kWriteBlock:
      return fmt::format("{}{} {:#x} {:#x} #{:016x}\n", begin, access.bar, access.offset,
                         access.bytes, access.value);
    case kCall: return fmt::format("{}{} = {}\n", begin, access.text, access.answer);
    case kMark: return fmt::format("{}{}\n", begin, access.text);
  }
  __builtin_unreachable();
}

std::string_view whole_lines(std::string_view text, bool* is_cut) {
  const size_t end = text.find_last_not_of('\0');
  const std::string_view written = text.substr(0, end == std::string_view::npos ? 0 : end + 1);
  const size_t last = written.rfind('\n');
  const std::string_view whole = written.substr(0, last == std::string_view::npos ? 0 : last + 1);
  *is_cut = whole.size() != text.size();
  return whole;
}

Result<PciTrace> parse_pci_trace(std::string_view text) {
  PciTrace trace;
  if (text.substr(0, text.find('\n')) != kTitle)
    return fail(Code::kCorrupt, "no trace of a PCI function: its first line is not \"{}\"", kTitle);
  text = whole_lines(text, &trace.is_cut);
  for (uint64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    if (!parse_line(line, &trace))
      return fail(Code::kCorrupt, "line {} of the trace is not one: {}", number,
                  line.substr(0, 80));
  }
  if (trace.identity.vendor == 0)
    return fail(Code::kCorrupt, "the trace does not say which function it is of");
  return trace;
}

}  // namespace bm
