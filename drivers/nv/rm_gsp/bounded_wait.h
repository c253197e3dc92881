#pragma once
// The one bounded wait of the upper half for a register.

#include <cstdint>
#include <string_view>

#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// Polls until (register & mask) == value. Errors: kTimeout with what was seen; kDeviceLost (all
/// ones); of the transport. `what`: what the wait is for.
Status wait_until(const Mmio& registers, uint64_t offset, uint32_t mask, uint32_t value,
                  uint64_t timeout_us, std::string_view what);

}  // namespace bm::nv::gsp
