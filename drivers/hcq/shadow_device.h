#pragma once
// A device over one that reaches no memory of the host: buffers for the host have shadows, commands
// and recordings are handed on as they are.

#include <memory>
#include <string>

#include "drivers/hcq/host_shadow.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::hcq {

/// `device`: what it allocates for the host lies where `path` reaches it. `path` lives as long as
/// the device's buffers. Memory of the process that is wrapped, and of other devices, is stood for
/// by memory of the device; kUnsupported where address or size is no multiple of 8.
/// Kernels reach a shadowed buffer through an address among their arguments, not through one in
/// memory.
std::unique_ptr<hal::Device> make_shadowed(std::unique_ptr<hal::Device> device, HostPath& path);

}  // namespace bm::hcq
