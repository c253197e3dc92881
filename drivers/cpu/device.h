#pragma once
// The CPU device: kernels are host code, memory is host memory, every command runs when submitted.

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cpu {

/// Always 1: the processors of this machine are one unit.
Result<uint32_t> count_devices(std::string_view interface);

/// `index` above 0 opens another device on the same processor, for programs written for several.
/// `arch` as in make_arch. BM_THREADS, BM_PIN and BM_WAIT_TIMEOUT_MS are read now.
/// Thread: the device may be used by any number of threads at once. A crash inside a kernel is a
/// crash of the process.
Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch);

}  // namespace bm::cpu
