#pragma once
// The commands of hal/command.h that need no kernel, performed by the calling thread on host
// addresses.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "runtime/base/result.h"
#include "runtime/hal/command.h"

namespace bm::cpu {

/// Bound of a Wait without progress unless BM_WAIT_TIMEOUT_MS says otherwise.
/// TIMEOUT: a peer device may compile or load firmware meanwhile; 30 s covers both.
inline constexpr uint32_t kDefaultWaitTimeoutMs = 30'000;

inline bool is_word(hal::GpuVa va) {
  return hal::raw(va) != 0 && hal::raw(va) % sizeof(uint64_t) == 0;
}

/// kInvalidArgument unless `va` is a non-null multiple of 8.
Status check_word(hal::GpuVa va, const char* command);

/// kInvalidArgument for bytes from or to address 0.
Status check_copy(const hal::Copy& copy);

/// `va` must be a word (is_word).
inline std::atomic_ref<uint64_t> word_at(hal::GpuVa va) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(hal::raw(va)));
}

/// Polls until the word is >= value: spins, then yields, then sleeps.
/// `timeout_ms` restarts whenever the word changes. Errors: kTimeout naming wanted and actual
/// value.
Status wait_slowly(hal::GpuVa signal, uint64_t value, uint32_t timeout_ms);

inline Status perform(const hal::Wait& wait, uint32_t timeout_ms) {
  if (!is_word(wait.signal)) [[unlikely]]
    return check_word(wait.signal, "Wait");
  if (word_at(wait.signal).load(std::memory_order_acquire) >= wait.value) return {};
  return wait_slowly(wait.signal, wait.value, timeout_ms);
}

inline Status perform(const hal::Signal& signal) {
  if (!is_word(signal.signal)) [[unlikely]]
    return check_word(signal.signal, "Signal");
  word_at(signal.signal).store(signal.value, std::memory_order_release);
  return {};
}

inline Status perform(const hal::Write& write) {
  if (!is_word(write.dst)) [[unlikely]]
    return check_word(write.dst, "Write");
  word_at(write.dst).store(write.value, std::memory_order_release);
  return {};
}

/// Nanoseconds of the monotonic clock (Arch::clock_hz is 10^9); answered by the vDSO, no system
/// call.
inline Status perform(const hal::Timestamp& timestamp) {
  if (!is_word(timestamp.dst)) [[unlikely]]
    return check_word(timestamp.dst, "Timestamp");
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t ticks =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  word_at(timestamp.dst).store(ticks, std::memory_order_release);
  return {};
}

inline void perform(const hal::Barrier&) { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// Ranges may overlap.
inline Status perform(const hal::Copy& copy) {
  if (copy.bytes == 0) return {};
  if (hal::raw(copy.dst) == 0 || hal::raw(copy.src) == 0) [[unlikely]]
    return check_copy(copy);
  std::memmove(reinterpret_cast<void*>(hal::raw(copy.dst)),
               reinterpret_cast<const void*>(hal::raw(copy.src)), copy.bytes);
  return {};
}

}  // namespace bm::cpu
