#pragma once
// Methods that the channel itself executes: semaphores, idle waits, interrupts.
//
// Source: open-gpu-doc, classes/host/clc56f.h, NVC56F_SEM_*, NVC56F_WFI,
// NVC56F_NON_STALL_INTERRUPT; offsets equal in clc46f.h … clca6f.h.

#include <cstdint>

#include "drivers/nv/methods/push.h"
#include "runtime/base/bits.h"

namespace bm::nv {

inline constexpr uint32_t kSetObject = 0x0;
inline constexpr uint32_t kNonStallInterrupt = 0x20;
inline constexpr uint32_t kSemAddrLo = 0x5c;
inline constexpr uint32_t kSemExecute = 0x6c;
inline constexpr uint32_t kHostWfi = 0x78;

// NVC56F_SEM_EXECUTE.
inline constexpr uint32_t kSemRelease = 1;
inline constexpr uint32_t kSemAcquireCircGeq = 3;  ///< signed difference: 64-bit values never wrap
inline constexpr uint32_t kSemSwitchTsg = 1u << 12;  ///< lets other time slices run while waiting
inline constexpr uint32_t kSemReleaseWfi = 1u << 20;
inline constexpr uint32_t kSemPayload64 = 1u << 24;
inline constexpr uint32_t kSemTimestamp = 1u << 25;

/// Binds engine class `number` to a subchannel.
inline void set_object(Push& push, Subchannel subchannel, uint32_t number) {
  push.incr(subchannel, kSetObject, number);
}

/// Holds the channel until the 64-bit word at `address` is >= `value`. Returns the index of the
/// address' low word; high word, payload low and payload high follow it.
inline uint32_t acquire(Push& push, uint64_t address, uint64_t value) {
  return push.incr(Subchannel::kHost, kSemAddrLo, lo32(address), hi32(address), lo32(value),
                   hi32(value), kSemAcquireCircGeq | kSemSwitchTsg | kSemPayload64);
}

/// When the engine is idle: 64-bit word at `address` = `value`. With timestamp also the 64-bit word
/// after it = nanoseconds of the GPU's clock. Returns as acquire().
inline uint32_t release(Push& push, uint64_t address, uint64_t value, bool with_timestamp = false) {
  return push.incr(
      Subchannel::kHost, kSemAddrLo, lo32(address), hi32(address), lo32(value), hi32(value),
      kSemRelease | kSemReleaseWfi | kSemPayload64 | (with_timestamp ? kSemTimestamp : 0));
}

/// When the channel has taken everything before: 64-bit word at `address` = `value`, whatever the
/// engine is still doing. Returns as acquire().
inline uint32_t release_when_taken(Push& push, uint64_t address, uint64_t value) {
  return push.incr(Subchannel::kHost, kSemAddrLo, lo32(address), hi32(address), lo32(value),
                   hi32(value), kSemRelease | kSemPayload64);
}

/// Wakes those who wait for the channel's event.
inline void interrupt(Push& push) { push.incr(Subchannel::kHost, kNonStallInterrupt, 0); }

}  // namespace bm::nv
