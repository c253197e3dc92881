#include "drivers/nv/rm_gsp/bounded_wait.h"

#include <chrono>
#include <thread>

namespace bm::nv::gsp {

Status wait_until(const Mmio& registers, uint64_t offset, uint32_t mask, uint32_t value,
                  uint64_t timeout_us, std::string_view what) {
  using Clock = std::chrono::steady_clock;
  constexpr uint32_t kSpins = 64;  // answers mostly come within a few reads
  const auto begun = Clock::now();
  for (uint32_t turn = 0;; ++turn) {
    // Before the read: whoever was off the processor until the end of the wait looks once more.
    const auto waited = Clock::now() - begun;
    const uint32_t seen = registers.read32(offset);
    BM_TRY(registers.status());
    if (seen == UINT32_MAX)
      return fail(Code::kDeviceLost, "{}: register {:#x} reads as all ones: the card is gone", what,
                  offset);
    if ((seen & mask) == value) return {};
    if (waited >= std::chrono::microseconds(timeout_us))
      return fail(Code::kTimeout,
                  "{}: register {:#x} is {:#x}, wanted {:#x} of mask {:#x}; waited {} ms", what,
                  offset, seen, value, mask,
                  std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
    if (turn < kSpins)
      relax();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace bm::nv::gsp
