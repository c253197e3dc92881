#pragma once
// The host's ways into a card's video memory: BAR1 shows it from its start on, and a window of
// 1 MiB among the registers (PRAMIN) shows the rest.

#include <cstdint>
#include <span>

#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// Where a generation has the registers of these ways.
enum class WindowRegisters : uint8_t {
  kBus,  ///< Turing to Ada: NV_PBUS_BAR0_WINDOW, NV_PBUS_BAR1_BLOCK
  kXal,  ///< Hopper on: NV_XAL_EP_BAR0_WINDOW, NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR1_BLOCK
};

/// Addresses are physical. Thread: callers serialise. A transport that fails is its own witness.
class VideoWindow {
 public:
  /// Makes BAR1 show video memory by physical address: as the GSP leaves it, it goes through page
  /// tables. Errors: kUnsupported (BAR0 too small, no BAR1); kTimeout; of the transport.
  /// Source: NV_PBUS_BAR1_BLOCK of ga100/dev_bus.h, kbusBindBar1… in kern_bus_gh100.c (570.144);
  /// tinygrad, runtime/support/nv/ip.py, NV_GSP.init_hw().
  static Result<VideoWindow> open(const Mmio& registers, const HostView& bar1, uint64_t video_bytes,
                                  WindowRegisters where);

  /// Bytes that view() shows.
  uint64_t visible_bytes() const { return bar1_.size(); }
  /// [address, address + bytes) must be visible.
  HostView view(uint64_t address, uint64_t bytes) const { return bar1_.slice(address, bytes); }

  // Address and size are multiples of 4.
  void write(uint64_t address, std::span<const std::byte> from);
  void read(uint64_t address, std::span<std::byte> to);
  void fill_zero(uint64_t address, uint64_t bytes);
  /// Writes before it reach the card before anything after it.
  void publish();

 private:
  VideoWindow(const Mmio& registers, const HostView& bar1, WindowRegisters where)
      : registers_(registers), bar1_(bar1), where_(where) {}
  Status block_bar1();
  bool is_visible(uint64_t address, uint64_t bytes) const {
    return address <= bar1_.size() && bytes <= bar1_.size() - address;
  }
  /// Moves PRAMIN to `address`; where it is among the registers, and how many bytes follow there.
  std::pair<uint64_t, uint64_t> aim(uint64_t address);

  Mmio registers_;
  HostView bar1_;
  WindowRegisters where_;
  uint64_t base_ = ~uint64_t{0};  ///< of PRAMIN
};

}  // namespace bm::nv::gsp
