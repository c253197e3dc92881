#include "drivers/cpu/host_commands.h"

#include <sched.h>

#include <chrono>

#include "drivers/cpu/relax.h"

namespace bm::cpu {
namespace {
// A hand-over between two running threads takes 60-350 ns, a wake-up 3-12 us: spin for both,
// yield while a busy core may still be working on it, sleep for peers that take milliseconds.
constexpr int kSpins = 1000;
constexpr int kYields = 200;
constexpr long kSleepNs = 50'000;
}  // namespace

Status check_word(hal::GpuVa va, const char* command) {
  if (is_word(va)) return {};
  return fail(Code::kInvalidArgument, "{} at {:#x}: not the address of an aligned 64-bit word",
              command, hal::raw(va));
}

Status check_copy(const hal::Copy& copy) {
  if (copy.bytes == 0 || (hal::raw(copy.dst) != 0 && hal::raw(copy.src) != 0)) return {};
  return fail(Code::kInvalidArgument, "Copy of {} bytes with a null address", copy.bytes);
}

Status wait_slowly(hal::GpuVa signal, uint64_t value, uint32_t timeout_ms) {
  using Clock = std::chrono::steady_clock;
  const auto word = word_at(signal);
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) >= value) return {};
    relax();
  }
  uint64_t seen = word.load(std::memory_order_acquire);
  auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (int round = 0;; ++round) {
    const uint64_t now = word.load(std::memory_order_acquire);
    if (now >= value) return {};
    if (now != seen) {
      seen = now;
      deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
    } else if (Clock::now() >= deadline) {
      return fail(Code::kTimeout, "signal at {:#x}: waited {} ms for value {}, it is {}",
                  hal::raw(signal), timeout_ms, value, now);
    }
    if (round < kYields) {
      sched_yield();
    } else {
      const timespec pause{.tv_sec = 0, .tv_nsec = kSleepNs};
      nanosleep(&pause, nullptr);
    }
  }
}

}  // namespace bm::cpu
