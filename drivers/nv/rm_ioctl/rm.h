#pragma once
// A GPU owned by the nvidia kernel driver: the waist of drivers/nv over its ioctls.

#include <cstdint>
#include <memory>
#include <string>

#include "drivers/nv/driver_interface.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm::nv {

struct RmOptions {
  uint32_t index = 0;   ///< among the cards the driver lists
  uint64_t window = 0;  ///< base of the low GPU address window; 0: the driver's choice
  std::string version_override = {};  ///< "580.105.08"; empty: what the driver says
};

/// Opens a GPU. `system` must outlive it. GPUs opened on the same System share a client, so that
/// map_peer() works between them.
/// Errors: kNotFound (no driver, no nodes, no such card), kPermission, kUnsupported (release, chip
/// or state); each names stage, call, object and status, and the remedy where one is known.
Result<std::unique_ptr<DriverInterface>> open_rm(System& system, const RmOptions& options);

/// How many cards the driver lists; 0 where there is no driver. Disturbs nothing.
Result<uint32_t> count_rm(System& system);

}  // namespace bm::nv
