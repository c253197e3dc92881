#include "drivers/transport/mmiotrace.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace bm {
namespace {

constexpr std::string_view kVersion = "VERSION 20070824";

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

std::optional<uint64_t> number(std::string_view text, int base) {
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || problem != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// "12.345678" in microseconds.
std::optional<uint64_t> microseconds(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || text.size() - dot != 7) return std::nullopt;
  const auto whole = number(text.substr(0, dot), 10), part = number(text.substr(dot + 1), 10);
  if (!whole || !part || *whole > UINT32_MAX) return std::nullopt;
  return *whole * 1'000'000 + *part;
}

/// mmio_print_pcidev(): bus and devfn, vendor and device, interrupt, seven starts with flags in
/// their low bits, seven lengths; hexadecimal without a prefix. The seventh is the ROM.
constexpr size_t kDeviceWords = 4 + 7 + 7;
bool parse_device(const std::vector<std::string_view>& words, PciTrace* out) {
  constexpr uint64_t kFlags = 0xf;  // PCI_REGION_FLAG_MASK
  if (words.size() < kDeviceWords) return false;
  const auto place = number(words[1], 16), ids = number(words[2], 16);
  if (!place || *place > UINT16_MAX || !ids || *ids > UINT32_MAX) return false;
  out->identity.address = {.bus = static_cast<uint8_t>(*place >> 8),
                           .device = static_cast<uint8_t>(*place >> 3 & 0x1f),
                           .function = static_cast<uint8_t>(*place & 7)};
  out->identity.vendor = static_cast<uint16_t>(*ids >> 16);
  out->identity.device = static_cast<uint16_t>(*ids);
  for (uint32_t i = 0; i < kPciBars; ++i) {
    const auto start = number(words[4 + i], 16), bytes = number(words[4 + 7 + i], 16);
    if (!start || !bytes || *start + *bytes < *bytes) return false;
    out->bars[i] = {.size = *bytes,
                    .address = *start & ~kFlags,
                    .is_memory = (*start & 1) == 0,
                    .is_64_bit = (*start & 4) != 0,
                    .is_prefetchable = (*start & 8) != 0};
  }
  return true;
}

/// "R width timestamp map physical value PC PID".
bool parse_access(const std::vector<std::string_view>& words, std::vector<PciTrace>* devices,
                  uint64_t* first_us) {
  if (words.size() < 6) return false;
  const auto width = number(words[1], 10), us = microseconds(words[2]), at = number(words[4], 16),
             value = number(words[5], 16);
  if (!width || !us || !at || !value || (*width != 1 && *width != 2 && *width != 4 && *width != 8))
    return false;
  *first_us = std::min(*first_us, *us);
  for (PciTrace& device : *devices)
    for (uint32_t bar = 0; bar < kPciBars; ++bar) {
      const PciBar& range = device.bars[bar];
      if (range.size == 0 || *at < range.address || *at - range.address >= range.size) continue;
      PciAccess access{.kind = words[0] == "R" ? PciAccess::Kind::kRead : PciAccess::Kind::kWrite,
                       .bar = bar,
                       .width = static_cast<uint32_t>(*width),
                       .offset = *at - range.address,
                       .value = *value,
                       .us = *us};
      auto& all = device.accesses;
      if (!all.empty() && access.kind == PciAccess::Kind::kRead && all.back().kind == access.kind &&
          all.back().bar == bar && all.back().offset == access.offset &&
          all.back().width == access.width && all.back().value == access.value)
        ++all.back().repeats;
      else
        all.push_back(std::move(access));
      return true;
    }
  return true;  // of a device that stands in no PCIDEV line
}

}  // namespace

Result<PciTrace> import_mmiotrace(std::string_view text, uint16_t vendor, uint16_t device) {
  std::vector<PciTrace> devices;
  uint64_t first_us = UINT64_MAX;
  bool has_version = false, is_cut = false;
  text = whole_lines(text, &is_cut);
  for (uint64_t line_number = 1; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line == kVersion) has_version = true;
    const std::vector<std::string_view> words = split(line);
    if (words.empty() || line.starts_with('#')) continue;
    bool is_fine = true;
    if (words[0] == "PCIDEV") {
      PciTrace one;
      is_fine = parse_device(words, &one);
      if (is_fine && (vendor == 0 || one.identity.vendor == vendor) &&
          (device == 0 || one.identity.device == device))
        devices.push_back(std::move(one));
    } else if (words[0] == "R" || words[0] == "W") {
      is_fine = parse_access(words, &devices, &first_us);
    } else if (words[0] == "MARK" && words.size() > 1) {
      const auto us = microseconds(words[1]);
      for (PciTrace& one : devices)
        one.accesses.push_back({.kind = PciAccess::Kind::kMark,
                                .us = us.value_or(0),
                                .text = std::string(line.substr(line.find(' ', 5) + 1))});
    }
    if (!is_fine)
      return fail(Code::kCorrupt, "line {} of the mmiotrace log is not one: {}", line_number,
                  line.substr(0, 80));
  }
  if (!has_version)
    return fail(Code::kCorrupt, "no mmiotrace log: it has no line \"{}\"", kVersion);
  const auto busy = [](const PciTrace& one) {
    return std::ranges::count_if(one.accesses, [](const PciAccess& access) {
      return access.kind != PciAccess::Kind::kMark;
    });
  };
  const auto best = std::ranges::max_element(devices, {}, busy);
  if (best == devices.end() || busy(*best) == 0)
    return fail(Code::kNotFound,
                "the mmiotrace log has no accesses to a function {:04x}:{:04x} (0: any)", vendor,
                device);
  for (PciAccess& access : best->accesses)
    access.us = access.us > first_us ? access.us - first_us : 0;
  best->is_cut = is_cut;
  return std::move(*best);
}

}  // namespace bm
