#pragma once
// The interrupt handler: two rings in memory, a write pointer written back, MSI.
//
// Sources: Linux 6.12, amdgpu/ih_v6_0.c, ih_v7_0.c; entries: amdgpu_ih.c,
// amdgpu_ih_decode_iv_helper(); clients: soc15_ih_clientid.h; sources: irqsrcs_gfx_11_0_0.h.
//
// Pointers count bytes (ih_v6_0_get_wptr(), ih_v6_0_set_rptr()). What it refuses:
//   H1  a read pointer that is no multiple of an entry or outside the ring.
//   H2  a ring that is no power of two, or enabled without a base. ih_v6_0_rb_cntl().
// An entry that finds ring 0 full is written over the oldest one and sets RB_OVERFLOW where
// WPTR_OVERFLOW_ENABLE is set, as the kernel's comment in ih_v6_0_get_wptr() has it.

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>

#include "tests/sim/amd/chip/bus.h"
#include "tests/sim/amd/chip/gmc.h"

namespace bm::sim::amd {

/// soc15_ih_clientid.h, SOC21_IH_CLIENTID_*.
namespace ih_client {
inline constexpr uint8_t kGfx = 0x0a, kVmc = 0x12, kGrbmCp = 0x14;
/// SOC15_IH_CLIENTID_UTCL2; there kGfx is SE0SH, the first shader engine.
inline constexpr uint8_t kUtcl2 = 0x1b;
}  // namespace ih_client
/// irqsrcs_gfx_11_0_0.h, GFX_11_0_0__SRCID__*.
namespace ih_source {
inline constexpr uint8_t kUtcl2Fault = 0, kSdmaTrap = 49, kCpEop = 181, kCpBadOpcode = 183,
                         kCpPrivileged = 184, kSq = 239;
}

struct InterruptVector {
  uint8_t client = 0, source = 0, ring = 0, vmid = 0;
  uint16_t pasid = 0;
  std::array<uint32_t, 4> data{};
};

/// Thread: any.
class InterruptHandler {
 public:
  InterruptHandler(RegisterBus& bus, Fabric& fabric, Hub& hub);
  void post(const InterruptVector& vector);
  void reset();
  uint64_t posted() const { return posted_; }
  uint64_t lost() const { return lost_; }
  /// Sends MSI 0.
  std::function<void()> send;
  std::atomic<bool> is_silent{false};  ///< planted: MSIs get lost

 private:
  uint64_t ring_bytes() const;
  bool store(uint64_t address, std::span<const std::byte> bytes, uint32_t space);

  RegisterBus& bus_;
  Fabric& fabric_;
  Hub& hub_;
  std::mutex mutex_;
  uint32_t *base_ = nullptr, *base_hi_ = nullptr, *cntl_ = nullptr, *wptr_ = nullptr,
           *rptr_ = nullptr, *wptr_lo_ = nullptr, *wptr_hi_ = nullptr;
  Field enable_, size_, space_, writeback_, overflow_enable_, overflow_clear_, interrupt_, rearm_;
  bool is_armed_ = true;
  std::atomic<uint64_t> posted_{0}, lost_{0};
};

}  // namespace bm::sim::amd
