#include "tests/sim/nv/descriptor.h"

#include <fmt/format.h>

#include <algorithm>

namespace bm::sim::nv {
namespace {

/// Bits high:low of the descriptor, counted from bit 0 of word 0; `step` for arrays, `shift` for
/// values that are stored without their low bits.
struct Field {
  uint16_t high = 0, low = 0, step = 0;
  uint8_t shift = 0;
  bool exists() const { return high != 0; }
};

struct ReleaseFields {
  Field enable, words, wide, address_low, address_high, payload_low, payload_high;
};

struct Layout {
  Field major, minor, type, group, grid[3], block[3], registers, barriers, shared, min_config,
      max_config, target_config, program_low, program_high, local_low, local_high, bank_valid,
      bank_low, bank_high, bank_size;
  ReleaseFields releases[3];
  Field dependent_enable[2], dependent_action[2], dependent_pointer[2];
};

/// First bit of the address, how many bits it has above 32, first bit of the 64-bit payload.
struct ReleasePlace {
  uint16_t address, upper_bits, payload;
};
constexpr Field bits_from(int low, int count) {
  return {static_cast<uint16_t>(low + count - 1), static_cast<uint16_t>(low)};
}
constexpr ReleaseFields release_at(int enable, int words, int wide, ReleasePlace at) {
  return {.enable = bits_from(enable, 1),
          .words = bits_from(words, 2),
          .wide = bits_from(wide, 1),
          .address_low = bits_from(at.address, 32),
          .address_high = bits_from(at.address + 32, at.upper_bits),
          .payload_low = bits_from(at.payload, 32),
          .payload_high = bits_from(at.payload + 32, 32)};
}
/// Of Turing: no enable bit, 32-bit payloads, and one bit says four words or one.
constexpr ReleaseFields old_release(int address) {
  return {.enable = {},
          .words = bits_from(address + 63, 1),
          .wide = {},
          .address_low = bits_from(address, 32),
          .address_high = bits_from(address + 32, 8),
          .payload_low = bits_from(address + 64, 32),
          .payload_high = {}};
}

// Source: open-gpu-doc c8607fe, classes/compute/clc5c0qmd.h, NVC5C0_QMDV02_03_*. Releases have no
// enable bit: an address of zero is none.
constexpr Layout kTuring = {
    .major = {583, 580},
    .minor = {579, 576},
    .type = {},
    .group = {133, 128},
    .grid = {{415, 384}, {431, 416}, {463, 448}},
    .block = {{607, 592}, {623, 608}, {639, 624}},
    .registers = {656, 648},
    .barriers = {959, 955},
    .shared = {561, 544},
    .min_config = {568, 562},
    .max_config = {575, 569},
    .target_config = {663, 657},
    .program_low = {1567, 1536},
    .program_high = {1584, 1568},
    .local_low = {951, 928},
    .local_high = {983, 960},
    .bank_valid = {640, 640, 1},
    .bank_low = {1055, 1024, 64},
    .bank_high = {1072, 1056, 64},
    .bank_size = {1087, 1075, 64, 4},
    .releases = {old_release(736), old_release(832), {}},
    // DEPENDENT_QMD_SCHEDULE_ENABLE; there is one, and its action is to schedule.
    .dependent_enable = {{141, 141}, {}},
    .dependent_action = {},
    .dependent_pointer = {{511, 480}, {}},
};

// Source: clc6c0qmd.h and clc9c0qmd.h, NVC6C0_QMDV03_00_*, NVC9C0_QMDV03_00_*: alike in these
// fields, and like Turing's but for these.
constexpr Layout ampere() {
  Layout l = kTuring;
  l.barriers = {767, 763};
  l.min_config = {567, 562};
  l.max_config = {574, 569};
  l.target_config = {662, 657};
  l.local_low = {759, 736};
  l.local_high = {1623, 1600};
  l.releases[0] = release_at(823, 830, 829, {768, 8, 832});
  l.releases[1] = release_at(951, 958, 957, {896, 8, 960});
  l.releases[2] = release_at(1719, 1726, 1725, {1664, 8, 1728});
  l.dependent_enable[0] = {512, 512};
  l.dependent_enable[1] = {517, 517};
  l.dependent_action[0] = {515, 513};
  l.dependent_action[1] = {520, 518};
  return l;
}
constexpr Layout kAmpere = ampere();

// Source: clcbc0qmd.h, NVCBC0_QMDV04_00_*.
constexpr Layout kHopper = {
    .major = {583, 580},
    .minor = {579, 576},
    .type = {25, 23},
    .group = {21, 16},
    .grid = {{1055, 1024}, {1071, 1056}, {1103, 1088}},
    .block = {{1167, 1152}, {1183, 1168}, {1199, 1184}},
    .registers = {1208, 1200},
    .barriers = {1215, 1211},
    .shared = {601, 584},
    .min_config = {613, 608},
    .max_config = {619, 614},
    .target_config = {625, 620},
    .program_low = {1247, 1216},
    .program_high = {1272, 1248},
    .local_low = {535, 512},
    .local_high = {567, 544},
    .bank_valid = {416, 416, 4},
    .bank_low = {1567, 1536, 64, 6},
    .bank_high = {1586, 1568, 64, 6},
    .bank_size = {1599, 1587, 64, 4},
    .releases = {release_at(320, 321, 332, {640, 25, 704}),
                 release_at(336, 337, 348, {768, 25, 832}),
                 release_at(352, 353, 364, {896, 25, 960})},
    .dependent_enable = {{368, 368}, {373, 373}},
    .dependent_action = {{371, 369}, {376, 374}},
    .dependent_pointer = {{479, 448}, {511, 480}},
};

// Source: clcec0qmd.h, NVCEC0_QMDV05_00_* (and clcdc0qmd.h, where V05_00 is the same).
constexpr Layout kBlackwell = {
    .major = {471, 468},
    .minor = {467, 464},
    .type = {153, 151},
    .group = {149, 144},
    .grid = {{1279, 1248}, {1295, 1280}, {1327, 1312}},
    .block = {{1103, 1088}, {1119, 1104}, {1127, 1120}},
    .registers = {1136, 1128},
    .barriers = {1141, 1137},
    .shared = {1162, 1152, 0, 7},
    .min_config = {1168, 1163},
    .max_config = {1174, 1169},
    .target_config = {1180, 1175},
    .program_low = {1055, 1024, 0, 4},
    .program_high = {1076, 1056, 0, 4},
    .local_low = {1199, 1184, 0, 4},
    .local_high = {1215, 1200, 0, 4},
    .bank_valid = {1856, 1856, 4},
    .bank_low = {1375, 1344, 64, 6},
    .bank_high = {1394, 1376, 64, 6},
    .bank_size = {1407, 1395, 64, 4},
    .releases = {release_at(288, 289, 300, {480, 25, 544}),
                 release_at(304, 305, 316, {768, 25, 832}),
                 release_at(320, 321, 332, {896, 25, 960})},
    .dependent_enable = {{336, 336}, {344, 344}},
    .dependent_action = {{339, 337}, {347, 345}},
    .dependent_pointer = {{415, 384}, {447, 416}},
};

const Layout& layout_of(uint32_t major) {
  switch (major) {
    case 2: return kTuring;
    case 3: return kAmpere;
    case 4: return kHopper;
    default: return kBlackwell;
  }
}

uint64_t read_field(std::span<const uint32_t> words, const Field& field, uint32_t index = 0) {
  if (!field.exists()) return 0;
  const uint32_t low = field.low + index * field.step, high = field.high + index * field.step;
  uint64_t value = words[low / 32];
  if (low / 32 != high / 32) value |= uint64_t{words[high / 32]} << 32;
  value >>= low % 32;
  value &= (uint64_t{1} << (high - low + 1)) - 1;
  return value << field.shift;
}

uint32_t word_count(uint32_t code) { return code == 0 ? 4 : code; }

}  // namespace

std::optional<uint32_t> descriptor_version(uint32_t object_class, std::span<const uint32_t> words,
                                           std::string* why) {
  const bool is_blackwell = object_class == 0xcdc0 || object_class == 0xcec0;
  const Layout& layout = is_blackwell ? kBlackwell : kAmpere;
  const auto major = static_cast<uint32_t>(read_field(words, layout.major));
  const auto minor = static_cast<uint32_t>(read_field(words, layout.minor));
  const uint32_t native = is_blackwell             ? 5
                          : object_class == 0xcbc0 ? 4
                          : object_class == 0xc5c0 ? 2
                                                   : 3;
  const bool is_compatible = object_class == 0xcbc0 && major == 3;
  const uint32_t wanted_minor = major == 2 ? 3 : 0;
  if ((major == native || is_compatible) && minor == wanted_minor) return major;
  *why = fmt::format("class {:x} takes no descriptor of version {}.{}", object_class, major, minor);
  return std::nullopt;
}

Descriptor decode_descriptor(uint32_t major, std::span<const uint32_t> words) {
  const Layout& layout = layout_of(major);
  const auto get = [&](const Field& field, uint32_t index = 0) {
    return static_cast<uint32_t>(read_field(words, field, index));
  };
  const auto wide = [&](const Field& low, const Field& high, uint32_t index = 0) {
    const uint64_t upper = read_field(words, high, index) >> high.shift;
    return (read_field(words, low, index) >> low.shift | upper << 32) << low.shift;
  };
  Descriptor out;
  out.major = major;
  out.minor = get(layout.minor);
  out.type = get(layout.type);
  out.group = get(layout.group);
  for (size_t i = 0; i < 3; ++i) {
    out.grid[i] = get(layout.grid[i]);
    out.block[i] = get(layout.block[i]);
  }
  out.registers = get(layout.registers);
  out.barriers = get(layout.barriers);
  out.shared = get(layout.shared);
  out.min_config = get(layout.min_config);
  out.max_config = get(layout.max_config);
  out.target_config = get(layout.target_config);
  out.program = wide(layout.program_low, layout.program_high);
  out.local_bytes = get(layout.local_low) + get(layout.local_high);
  for (uint32_t i = 0; i < out.banks.size(); ++i)
    out.banks[i] = {get(layout.bank_valid, i) != 0, wide(layout.bank_low, layout.bank_high, i),
                    get(layout.bank_size, i)};
  for (size_t i = 0; i < out.releases.size(); ++i) {
    const ReleaseFields& fields = layout.releases[i];
    auto& release = out.releases[i];
    release.address = wide(fields.address_low, fields.address_high);
    release.payload = wide(fields.payload_low, fields.payload_high);
    release.is_enabled = fields.enable.exists() ? get(fields.enable) != 0 : release.address != 0;
    release.words = word_count(get(fields.words));
    if (get(fields.wide) == 0) release.payload &= 0xffffffff;
  }
  for (size_t i = 0; i < out.dependents.size(); ++i) {
    auto& dependent = out.dependents[i];
    dependent.is_enabled = get(layout.dependent_enable[i]) != 0;
    dependent.action = layout.dependent_action[i].exists() ? get(layout.dependent_action[i]) : 1;
    dependent.address = read_field(words, layout.dependent_pointer[i]) << 8;
  }
  return out;
}

void set_field(uint32_t major, std::span<uint32_t> words, DescriptorField field, uint64_t value) {
  const Layout& layout = layout_of(major);
  const Field at = [&] {
    switch (field) {
      case DescriptorField::kMajor: return layout.major;
      case DescriptorField::kGridY: return layout.grid[1];
      case DescriptorField::kBlockX: return layout.block[0];
      case DescriptorField::kBlockZ: return layout.block[2];
      case DescriptorField::kShared: return layout.shared;
      case DescriptorField::kProgramHigh: return layout.program_high;
    }
    __builtin_unreachable();
  }();
  // The high half of an address is stored with the low half's shift, but read without.
  const uint32_t shift = field == DescriptorField::kProgramHigh ? 0 : at.shift;
  for (uint32_t bit = at.low; bit <= at.high; ++bit) {
    const uint32_t mask = 1u << bit % 32;
    const bool is_set = (value >> shift >> (bit - at.low) & 1) != 0;
    words[bit / 32] = is_set ? words[bit / 32] | mask : words[bit / 32] & ~mask;
  }
}

// Limits: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability".
std::string descriptor_problem(const Descriptor& d, const Chip& chip) {
  const uint64_t threads = uint64_t{d.block[0]} * d.block[1] * d.block[2];
  if (d.major >= 4 && d.type != 2) return fmt::format("descriptor type {}", d.type);
  if (d.group != 0x3f) return fmt::format("group id {:#x}", d.group);
  if (d.grid[0] == 0 || d.grid[1] == 0 || d.grid[2] == 0 || d.grid[0] > 0x7fffffff)
    return fmt::format("grid of {}x{}x{}", d.grid[0], d.grid[1], d.grid[2]);
  if (threads == 0 || threads > 1024 || d.block[2] > 64)
    return fmt::format("block of {}x{}x{}", d.block[0], d.block[1], d.block[2]);
  if (d.registers == 0 || d.registers > 255) return fmt::format("{} registers", d.registers);
  // Registers are given to warps in units of 256, warps to schedulers in fours.
  const uint64_t warps = (threads + 127) / 128 * 4;
  if (warps * 32 * ((d.registers + 7) / 8 * 8) > 65536)
    return fmt::format("{} threads of {} registers", threads, d.registers);
  if (d.barriers > 16) return fmt::format("{} barriers", d.barriers);
  for (const uint32_t code : {d.min_config, d.max_config, d.target_config}) {
    const auto& sizes = chip.shared_sizes;
    if (code == 0 || std::find(sizes.begin(), sizes.end(), (code - 1) * 4) == sizes.end())
      return fmt::format("shared memory configuration {}", code);
  }
  if (d.min_config > d.target_config || d.target_config > d.max_config)
    return "shared memory configurations out of order";
  // The target must hold a block with what the system keeps of each.
  if (d.shared + chip.shared_reserve > (d.target_config - 1) * 4096)
    return fmt::format("{} bytes of shared memory in a configuration of {} KiB", d.shared,
                       (d.target_config - 1) * 4);
  if (d.program == 0 || d.program % 16 != 0) return fmt::format("program at {:#x}", d.program);
  if (!d.banks[0].is_valid) return "constant bank 0 is not valid";
  for (const auto& bank : d.banks)
    if (bank.is_valid && (bank.address % 64 != 0 || bank.size == 0 || bank.size > 65536))
      return fmt::format("constant bank of {} bytes at {:#x}", bank.size, bank.address);
  return {};
}

}  // namespace bm::sim::nv
