#include "drivers/transport/pci_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <chrono>
#include <thread>

#include "runtime/base/bits.h"

namespace bm {
namespace {

// Header, type 0 (PCI Local Bus 3.0, figure 6-1).
constexpr uint32_t kVendor = 0x00, kDevice = 0x02, kCommand = 0x04, kStatus = 0x06;
constexpr uint32_t kRevision = 0x08, kHeaderType = 0x0e, kBar0 = 0x10;
constexpr uint32_t kSubsystemVendor = 0x2c, kSubsystemDevice = 0x2e, kCapabilities = 0x34;
constexpr uint32_t kCommandIo = 1u << 0, kCommandMemory = 1u << 1, kCommandMaster = 1u << 2;
constexpr uint32_t kStatusHasList = 1u << 4;
// A BAR's low bits (6.2.5.1).
constexpr uint32_t kBarIo = 1u << 0, kBar64 = 2u << 1, kBarTypeMask = 3u << 1;
constexpr uint32_t kBarPrefetchable = 1u << 3;
// Capabilities lie behind the header of 0x40 bytes and are 4-byte aligned (6.7), extended ones
// from 0x100 on (PCIe 7.6).
constexpr uint32_t kFirstCapability = 0x40, kLegacySize = 0x100, kExtendedSize = 0x1000;
// Power management control and status (PCIe 7.5.2.2).
constexpr uint32_t kPowerControl = 4, kPowerMask = 3;
// Resizable BAR (PCIe 7.8.6): pairs of capability and control words.
constexpr uint32_t kRebarPair = 8, kRebarFirst = 4;
constexpr uint32_t kRebarSizeShift = 8, kRebarSizeMask = 0x3f00;

struct Word {
  uint32_t value;
  uint32_t field(uint32_t high, uint32_t low) const {
    return value >> low & ((2u << (high - low)) - 1);
  }
};

Status change_command(PciConfig& config, uint32_t set, uint32_t clear) {
  const uint32_t command = BM_TRY(config.read_config(kCommand, 2));
  if (command == 0xffff) return fail(Code::kDeviceLost, "the PCI function does not answer");
  const uint32_t wanted = (command & ~clear) | set;
  if (wanted == command) return {};
  return config.write_config(kCommand, 2, wanted);
}

/// What a BAR register holds after ones were written to it.
Result<uint32_t> probe(PciConfig& config, uint32_t offset) {
  const uint32_t before = BM_TRY(config.read_config(offset, 4));
  BM_TRY(config.write_config(offset, 4, ~0u));
  const uint32_t mask = BM_TRY(config.read_config(offset, 4));
  BM_TRY(config.write_config(offset, 4, before));
  return mask;
}

/// One BAR and, where it is a 64-bit one, the word behind it.
Result<PciBar> size_bar(PciConfig& config, uint32_t index) {
  const uint32_t offset = kBar0 + index * 4;
  const uint32_t low = BM_TRY(config.read_config(offset, 4));
  const uint32_t mask = BM_TRY(probe(config, offset));
  if (mask == 0) return PciBar{};
  PciBar bar;
  bar.is_memory = (mask & kBarIo) == 0;
  const uint32_t flags = bar.is_memory ? 0xfu : 0x3u;
  bar.address = low & ~flags;
  uint64_t bits = mask & ~flags;
  if (bar.is_memory) {
    bar.is_prefetchable = (mask & kBarPrefetchable) != 0;
    bar.is_64_bit = (mask & kBarTypeMask) == kBar64;
    if (bar.is_64_bit && index + 1 == kPciBars)
      return fail(Code::kCorrupt, "BAR {} says it has 64 bits and is the last", index);
    if (bar.is_64_bit) {
      bar.address |= uint64_t{BM_TRY(config.read_config(offset + 4, 4))} << 32;
      bits |= uint64_t{BM_TRY(probe(config, offset + 4))} << 32;
    } else {
      bits |= 0xffffffffull << 32;
    }
  } else {
    // The upper half of an I/O BAR may be wired to 0.
    bits |= 0xffffffffffff0000ull;
  }
  bar.size = ~bits + 1;
  if (bar.size == 0 || !is_power_of_two(bar.size))
    return fail(Code::kCorrupt, "BAR {} answers {:#x} to ones, which is no size", index, bits);
  return bar;
}

/// Offset of the control word of `bar` minus 4, or nothing.
Result<std::optional<uint32_t>> find_rebar(PciConfig& config, uint32_t bar) {
  const std::optional<uint32_t> at =
      BM_TRY(find_extended_capability(config, PciExtendedCapability::kResizableBar));
  if (!at) return std::nullopt;
  uint32_t count = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t pair = *at + kRebarFirst + i * kRebarPair;
    const Word control{BM_TRY(config.read_config(pair + 4, 4))};
    if (i == 0) count = control.field(7, 5);
    if (control.field(2, 0) == bar && count != 0) return pair;
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<uint32_t>> find_capability(PciConfig& config, PciCapability id) {
  const uint32_t status = BM_TRY(config.read_config(kStatus, 2));
  if (status == 0xffff) return fail(Code::kDeviceLost, "the PCI function does not answer");
  if ((status & kStatusHasList) == 0) return std::nullopt;
  std::bitset<kLegacySize> seen;
  uint32_t at = BM_TRY(config.read_config(kCapabilities, 1)) & ~3u;
  while (at != 0) {
    if (at < kFirstCapability || seen.test(at))
      return fail(Code::kCorrupt, "the capability list leads to {:#x}", at);
    seen.set(at);
    const Word header{BM_TRY(config.read_config(at, 2))};
    if (header.field(7, 0) == static_cast<uint32_t>(id)) return at;
    at = header.field(15, 8) & ~3u;
  }
  return std::nullopt;
}

Result<std::optional<uint32_t>> find_extended_capability(PciConfig& config,
                                                         PciExtendedCapability id) {
  // A conventional function, or a kernel that hides the extended space.
  if (const Result<uint32_t> first = config.read_config(kLegacySize, 4);
      !first && first.error().code == Code::kInvalidArgument)
    return std::nullopt;
  std::bitset<kExtendedSize> seen;
  uint32_t at = kLegacySize;
  while (at != 0) {
    if (at < kLegacySize || seen.test(at))
      return fail(Code::kCorrupt, "the extended capability list leads to {:#x}", at);
    seen.set(at);
    const Word header{BM_TRY(config.read_config(at, 4))};
    if (header.value == ~0u)
      return fail(Code::kDeviceLost, "the PCI function does not answer at {:#x}", at);
    if (header.value == 0) return std::nullopt;
    if (header.field(15, 0) == static_cast<uint32_t>(id)) return at;
    at = header.field(31, 20) & ~3u;
  }
  return std::nullopt;
}

Result<PciIdentity> read_identity(PciConfig& config, const PciAddress& address) {
  PciIdentity identity{.address = address};
  const auto read = [&config](uint32_t offset, uint32_t width) {
    return config.read_config(offset, width);
  };
  identity.vendor = static_cast<uint16_t>(BM_TRY(read(kVendor, 2)));
  if (identity.vendor == 0xffff)
    return fail(Code::kDeviceLost, "no PCI function answers at {}", to_string(address));
  if ((BM_TRY(read(kHeaderType, 1)) & 0x7f) != 0)
    return fail(Code::kUnsupported, "{} is a bridge", to_string(address));
  identity.device = static_cast<uint16_t>(BM_TRY(read(kDevice, 2)));
  const uint32_t revision = BM_TRY(read(kRevision, 4));
  identity.revision = static_cast<uint8_t>(revision);
  identity.class_code = revision >> 8;
  identity.subsystem_vendor = static_cast<uint16_t>(BM_TRY(read(kSubsystemVendor, 2)));
  identity.subsystem_device = static_cast<uint16_t>(BM_TRY(read(kSubsystemDevice, 2)));
  return identity;
}

Result<std::array<PciBar, kPciBars>> size_bars(PciConfig& config) {
  const uint32_t command = BM_TRY(config.read_config(kCommand, 2));
  // A BAR that holds ones would decode accesses meant for others.
  BM_TRY(change_command(config, 0, kCommandIo | kCommandMemory));
  std::array<PciBar, kPciBars> bars;
  Status status;
  for (uint32_t i = 0; i < kPciBars && status; ++i) {
    Result<PciBar> bar = size_bar(config, i);
    if (!bar) {
      status = tl::unexpected<Error>(std::move(bar.error()));
      break;
    }
    bars[i] = *bar;
    if (bar->is_64_bit) ++i;
  }
  BM_TRY(config.write_config(kCommand, 2, command));
  BM_TRY(status);
  return bars;
}

Result<std::vector<uint64_t>> resizable_bar_sizes(PciConfig& config, uint32_t bar) {
  std::vector<uint64_t> sizes;
  const std::optional<uint32_t> pair = BM_TRY(find_rebar(config, bar));
  if (!pair) return sizes;
  const Word capability{BM_TRY(config.read_config(*pair, 4))};
  // Bit 4 of the capability word is 1 MiB, bit 31 is 128 TiB; the control word's upper half goes on
  // from 256 TiB, which no bridge has room for.
  for (uint32_t bit = 4; bit < 32; ++bit)
    if (capability.field(bit, bit) != 0) sizes.push_back(1_MiB << (bit - 4));
  return sizes;
}

Status set_resizable_bar(PciConfig& config, uint32_t bar, uint64_t bytes) {
  const std::vector<uint64_t> sizes = BM_TRY(resizable_bar_sizes(config, bar));
  if (sizes.empty()) return fail(Code::kUnsupported, "BAR{} has one size only", bar);
  if (std::ranges::find(sizes, bytes) == sizes.end())
    return fail(Code::kInvalidArgument, "BAR{} offers {:#x} to {:#x} bytes, not {:#x}", bar,
                sizes.front(), sizes.back(), bytes);
  const uint32_t control = *BM_TRY(find_rebar(config, bar)) + 4;
  const uint32_t before = BM_TRY(config.read_config(control, 4));
  const auto size = static_cast<uint32_t>(std::countr_zero(bytes / 1_MiB));
  return config.write_config(control, 4, (before & ~kRebarSizeMask) | (size << kRebarSizeShift));
}

Status set_memory_decoding(PciConfig& config, bool is_on) {
  return change_command(config, is_on ? kCommandMemory : 0, is_on ? 0 : kCommandMemory);
}

Status set_bus_master(PciConfig& config, bool is_on) {
  return change_command(config, is_on ? kCommandMaster : 0, is_on ? 0 : kCommandMaster);
}

Status set_power(PciConfig& config, PciPower state) {
  const std::optional<uint32_t> at =
      BM_TRY(find_capability(config, PciCapability::kPowerManagement));
  if (!at) return fail(Code::kUnsupported, "the PCI function has no power management capability");
  const uint32_t offset = *at + kPowerControl;
  const uint32_t control = BM_TRY(config.read_config(offset, 2));
  if ((control & kPowerMask) == static_cast<uint32_t>(state)) return {};
  BM_TRY(config.write_config(offset, 2, (control & ~kPowerMask) | static_cast<uint32_t>(state)));
  // TIMEOUT: a function needs up to 10 ms from D3hot to D0 and back (PCIe 5.9); ten rounds of that
  // cover slow bridges.
  for (int round = 0; round < 10; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const uint32_t now = BM_TRY(config.read_config(offset, 2));
    if (now != 0xffff && (now & kPowerMask) == static_cast<uint32_t>(state)) return {};
  }
  return fail(Code::kTimeout, "the PCI function did not reach power state D{} within 100 ms",
              static_cast<uint32_t>(state));
}

}  // namespace bm
