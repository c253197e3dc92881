#pragma once
// What every part of one opened device shares.

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "drivers/cl/api.h"
#include "drivers/cl/info.h"
#include "runtime/base/result.h"

namespace bm::cl {

/// First fault of a device, for ever. Thread: safe.
class Health {
 public:
  bool is_bad() const { return is_bad_.load(std::memory_order_acquire); }
  Status status() const {
    if (!is_bad()) return {};
    const std::lock_guard lock(mutex_);
    return tl::unexpected<Error>(*error_);
  }
  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    is_bad_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> is_bad_{false};
  mutable std::mutex mutex_;
  std::optional<Error> error_;
};

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
