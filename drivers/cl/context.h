#pragma once
// What every part of one opened device shares.

#include <memory>

#include "drivers/cl/api.h"
#include "drivers/cl/info.h"
#include "drivers/vendor/health.h"
#include "runtime/base/result.h"

namespace bm::cl {

using vendor::Health;

/// An OpenCL context on one device. Kept alive by the device and by each of its buffers and
/// programs.
struct Context {
  Context(ApiPtr functions, const Unit& the_unit, DeviceInfo the_info, cl_context the_handle)
      : table(std::move(functions)),
        api(*table),
        unit(the_unit),
        info(std::move(the_info)),
        handle(the_handle) {}
  ~Context() { api.clReleaseContext(handle); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const ApiPtr table;
  const Api& api;
  const Unit unit;
  const DeviceInfo info;
  const cl_context handle;
  mutable Health health;  ///< the one thing that changes
};
using ContextPtr = std::shared_ptr<const Context>;

}  // namespace bm::cl
