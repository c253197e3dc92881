#pragma once
// The REF device: host memory for reference results. Its operations are plain host functions of the
// tensor layer; it runs no kernels.

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::ref {

Result<uint32_t> count_devices(std::string_view interface);
/// Copies, signals, waits and timestamps work as on the CPU; load is kUnsupported.
Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch);

}  // namespace bm::ref
