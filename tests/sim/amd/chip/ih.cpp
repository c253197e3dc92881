#include "tests/sim/amd/chip/ih.h"

#include <chrono>
#include <cstring>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {
constexpr uint32_t kEntry = 32, kOverflow = 1, kBusSpace = 2, kGpuSpace = 4;
}

InterruptHandler::InterruptHandler(RegisterBus& bus, Fabric& fabric, Hub& hub)
    : bus_(bus), fabric_(fabric), hub_(hub) {
  const auto field = [&](std::string_view name) {
    return bus.field(Ip::kOsssys, "IH_RB_CNTL", name);
  };
  enable_ = field("RB_ENABLE");
  size_ = field("RB_SIZE");
  space_ = field("MC_SPACE");
  writeback_ = field("WPTR_WRITEBACK_ENABLE");
  overflow_enable_ = field("WPTR_OVERFLOW_ENABLE");
  overflow_clear_ = field("WPTR_OVERFLOW_CLEAR");
  interrupt_ = field("ENABLE_INTR");
  rearm_ = field("RPTR_REARM");
  base_ = &bus.declare(Ip::kOsssys, "IH_RB_BASE", {.guard = &mutex_});
  base_hi_ = &bus.declare(Ip::kOsssys, "IH_RB_BASE_HI", {.guard = &mutex_});
  wptr_lo_ = &bus.declare(Ip::kOsssys, "IH_RB_WPTR_ADDR_LO", {.guard = &mutex_});
  wptr_hi_ = &bus.declare(Ip::kOsssys, "IH_RB_WPTR_ADDR_HI", {.guard = &mutex_});
  cntl_ = &bus.declare(Ip::kOsssys, "IH_RB_CNTL",
                       {.write =
                            [this](uint32_t value) {
                              const std::lock_guard lock(mutex_);
                              const bool clears =
                                  overflow_clear_.of(value) != 0 && overflow_clear_.of(*cntl_) == 0;
                              *cntl_ = value;
                              if (clears) *wptr_ &= ~kOverflow;
                              if (enable_.of(value) == 0) return;
                              if (ring_bytes() < 4096 || (*base_ == 0 && *base_hi_ == 0))
                                bus_.violations().add(fmt::format(
                                    "IH_RB_CNTL {:#x}: the ring is enabled with {} bytes at {:#x}",
                                    value, ring_bytes(), *base_));
                            },
                        .guard = &mutex_});
  wptr_ = &bus.declare(Ip::kOsssys, "IH_RB_WPTR", {.guard = &mutex_});
  rptr_ = &bus.declare(
      Ip::kOsssys, "IH_RB_RPTR",
      {.write =
           [this](uint32_t value) {
             const std::lock_guard lock(mutex_);
             if (value % kEntry != 0 || (enable_.of(*cntl_) != 0 && value >= ring_bytes()))
               bus_.violations().add(fmt::format(
                   "IH_RB_RPTR {:#x}: it counts bytes, in entries of 32, below the ring's {:#x}",
                   value, ring_bytes()));
             *rptr_ = value;
             is_armed_ = true;
           },
       .guard = &mutex_});
  bus.declare_all(Ip::kOsssys, "IH_");
}

/// RB_SIZE is log2 of the dwords.
uint64_t InterruptHandler::ring_bytes() const { return uint64_t{4} << size_.of(*cntl_); }

bool InterruptHandler::store(uint64_t address, std::span<const std::byte> bytes, uint32_t space) {
  if (space == kGpuSpace) return hub_.write(address, bytes);
  if (space != kBusSpace || !fabric_.is_bus_master()) return false;
  std::byte* const to = fabric_.system->at(address, bytes.size(), true);
  if (to != nullptr) std::memcpy(to, bytes.data(), bytes.size());
  return to != nullptr;
}

void InterruptHandler::post(const InterruptVector& v) {
  bool sends = false;
  {
    const std::lock_guard lock(mutex_);
    if (enable_.of(*cntl_) == 0) {
      ++lost_;
      return;
    }
    const uint64_t base = (uint64_t{*base_hi_ & 0xff} << 40) | uint64_t{*base_} << 8;
    const uint64_t now =
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) / 10;
    const std::array<uint32_t, 8> entry = {uint32_t{v.client} | uint32_t{v.source} << 8 |
                                               uint32_t{v.ring} << 16 | uint32_t{v.vmid} << 24,
                                           static_cast<uint32_t>(now),
                                           static_cast<uint32_t>(now >> 32 & 0xffff),
                                           v.pasid,
                                           v.data[0],
                                           v.data[1],
                                           v.data[2],
                                           v.data[3]};
    const uint32_t size = static_cast<uint32_t>(ring_bytes());
    const uint32_t at = *wptr_ & ~kOverflow, next = (at + kEntry) % size;
    const uint32_t space = space_.of(*cntl_);
    if (!store(base + at, std::as_bytes(std::span(entry)), space)) {
      bus_.violations().add(
          fmt::format("the interrupt ring at {:#x} cannot be written", base + at));
      ++lost_;
      return;
    }
    const bool overflows = next == *rptr_ && overflow_enable_.of(*cntl_) != 0;
    *wptr_ = next | (overflows ? kOverflow : *wptr_ & kOverflow);
    ++posted_;
    const uint64_t shadow = uint64_t{*wptr_hi_ & 0xffff} << 32 | *wptr_lo_;
    if (writeback_.of(*cntl_) != 0 && shadow != 0)
      store(shadow, std::as_bytes(std::span<const uint32_t>(wptr_, 1)), space);
    sends = interrupt_.of(*cntl_) != 0 && (is_armed_ || rearm_.of(*cntl_) == 0);
    if (sends) is_armed_ = false;
  }
  if (sends && !is_silent && send) send();
}

void InterruptHandler::reset() {
  const std::lock_guard lock(mutex_);
  is_armed_ = true;
}

}  // namespace bm::sim::amd
