#pragma once
// PCI Express configuration space of the modelled function.
// Sources: PCI Local Bus 3.0 chapter 6, PCI Express Base 5.0 chapter 7 (resizable BAR: 7.8.6).

#include <array>
#include <cstdint>

namespace bm::sim {

struct BarLayout {
  uint64_t bytes = 0;
  bool is_64_bit = false, is_prefetchable = false;
};

/// Where a vendor's functions have their capabilities, in that order of the list.
struct CapabilityOffsets {
  uint8_t power = 0x50, express = 0x64, msi = 0xa0;
};

/// A display controller. One BAR is resizable, from 256 MiB to `largest_bar`.
struct ConfigLayout {
  uint16_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem_device = 0;
  uint8_t revision = 0;
  std::array<BarLayout, 6> bars = {};
  uint32_t resizable_bar = 0;
  uint64_t largest_bar = 0;
  bool has_function_reset = true;
  CapabilityOffsets capabilities = {};
};

/// Thread: callers serialise.
class ConfigSpace {
 public:
  static constexpr uint32_t kSize = 4096;
  explicit ConfigSpace(const ConfigLayout& layout);

  uint32_t read(uint32_t offset, uint32_t width) const;
  enum class Effect : uint8_t { kNone, kFunctionReset, kBarResized };
  Effect write(uint32_t offset, uint32_t width, uint32_t value);
  void power_on();
  /// A vendor's own register: its value at power-on and the bits that writes change.
  void put(uint32_t offset, uint32_t width, uint32_t value, uint32_t writable = 0);
  /// The BAR's address and length as they are programmed.
  uint64_t bar_address(uint32_t index) const;
  uint64_t bar_bytes(uint32_t index) const { return bars_[index].bytes; }
  /// False: the size is not offered.
  bool resize_bar(uint64_t bytes);
  void set_bar_address(uint32_t index, uint64_t address);

  bool decodes_memory() const;
  bool is_bus_master() const;
  bool has_msi() const;
  void set_command(bool memory, bool master);
  void set_msi(bool on);

 private:
  void put_bar_masks();
  std::array<uint8_t, kSize> bytes_{}, writable_{}, initial_{};
  std::array<BarLayout, 6> bars_;
  uint32_t resizable_;
  uint64_t largest_bar_, power_on_bytes_;
  bool has_function_reset_;
  CapabilityOffsets at_;
};

}  // namespace bm::sim
