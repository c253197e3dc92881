#pragma once
// What becomes of a device whose library reported a fault.

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/base/result.h"

namespace bm::vendor {

/// First fault of a device, for ever. Thread: safe.
class Health {
 public:
  bool is_bad() const { return is_bad_.load(std::memory_order_acquire); }
  Status status() const {
    if (!is_bad()) [[likely]]
      return {};
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

}  // namespace bm::vendor
