#pragma once
// Addresses the NULL device invents lie where no host pointer can be.

#include "runtime/hal/command.h"

namespace bm::cpu {

/// User space never has the top bit set on x86-64 or aarch64 (tagged pointers aside).
inline constexpr uint64_t kFirstInventedAddress = uint64_t{1} << 63;

constexpr bool is_host_address(hal::GpuVa va) { return hal::raw(va) < kFirstInventedAddress; }

}  // namespace bm::cpu
