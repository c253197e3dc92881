#pragma once
// What failures of the kernel interface mean to whoever has to repair them.

#include <string>
#include <string_view>

#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm::amd::kfd {

/// Why a device node cannot be opened: no driver, no permission (which group, which rule).
Error open_error(System& system, const std::string& path, int error);

/// "CREATE_QUEUE of a PM4 queue: Invalid argument (…)". `hint` may be empty.
Error call_error(std::string_view call, std::string_view what, int error, std::string_view hint);

}  // namespace bm::amd::kfd
