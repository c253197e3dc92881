#pragma once
// What every part of one opened device shares.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "drivers/cuda/api.h"
#include "drivers/cuda/errors.h"
#include "drivers/cuda/info.h"
#include "drivers/vendor/health.h"
#include "runtime/base/result.h"

namespace bm::cuda {

using vendor::Health;

/// The primary context of one GPU, which other users of CUDA in the process share. Kept alive by
/// the device and by each of its buffers and programs.
class Context {
 public:
  Context(ApiPtr functions, DeviceInfo the_info, CuContext the_handle)
      : table(std::move(functions)), api(*table), info(std::move(the_info)), handle(the_handle) {}
  /// A context that is lost is given back too: the last user's release destroys it, so that the GPU
  /// can be opened again.
  ~Context() { api.cuDevicePrimaryCtxRelease(info.device); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Success, or the error with what it means. One after which the context is unusable becomes the
  /// device's first fault.
  Status done(CuResult error, std::string_view what) const {
    if (error == kSuccess) [[likely]]
      return {};
    return failed(error, what);
  }
  Status failed(CuResult error, std::string_view what) const;

  // The driver's calls that give something back wait for all work of the context, for ever when a
  // stream waits for a word that never comes. All below with the context current.

  void add_stream(CuStream stream) const;
  void remove_stream(CuStream stream) const;
  /// Whether nothing is in flight on our streams.
  bool is_idle() const;
  /// The same after a wait, bounded.
  bool wait_idle() const;
  /// Gives something back now, or with a later call when nothing is in flight any more.
  void give_back(std::function<void()> call) const;
  /// Makes the calls put off, if nothing is in flight.
  void settle() const;
  /// A stream is known to wait for ever: from now on nothing is given back.
  void give_up() const { is_stuck_ = true; }

  const ApiPtr table;
  const Api& api;
  const DeviceInfo info;
  const CuContext handle;
  mutable Health health;

 private:
  mutable std::atomic<bool> is_stuck_{false};
  mutable std::mutex mutex_;
  mutable std::vector<CuStream> streams_;
  mutable std::vector<std::function<void()>> put_off_;
};
using ContextPtr = std::shared_ptr<const Context>;

/// Makes the context this thread's current one for a scope. The caller's own comes back where the
/// driver can tell it.
class Current {
 public:
  explicit Current(const Context& context) : api_(context.api) {
    if (has_stack())
      api_.cuCtxPushCurrent(context.handle);
    else
      api_.cuCtxSetCurrent(context.handle);
  }
  ~Current() {
    CuContext mine = nullptr;
    if (has_stack()) api_.cuCtxPopCurrent(&mine);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool has_stack() const {
    return api_.cuCtxPushCurrent != nullptr && api_.cuCtxPopCurrent != nullptr;
  }
  const Api& api_;
};

}  // namespace bm::cuda
