#pragma once
// The NULL device: accepts everything and does none of it. For measuring what the host costs and
// for compiling for machines that are not here.

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::null {

Result<uint32_t> count_devices(std::string_view interface);

/// Buffers have invented addresses and no host pointer unless `host_visible`, `uncached` or
/// `external` asks for one. Signals, timestamps and writes to real memory are performed, so
/// timelines advance. `arch`: "name[,cpu[,features…]]" to compile for, e.g. "gfx1100" or "sm_90";
/// empty: x86_64 at level 3, the same on every machine. Nothing is checked against this machine.
Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch);

/// What its queue has been given so far. `device` was opened here.
struct Counts {
  uint64_t submits = 0, replays = 0, kernels_and_copies = 0;
};
Counts counts_of(const hal::Device& device);

}  // namespace bm::null
