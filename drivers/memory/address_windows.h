#pragma once
// Windows of GPU addresses, one for each GPU of the process: what GPUs map of each other must not
// lie at the same place twice.

#include <cstdint>
#include <mutex>

#include "runtime/base/result.h"

namespace bm::memory {

/// A vendor has one object of it in the process. Thread: safe.
class AddressWindows {
 public:
  /// `count`: at most 32.
  explicit AddressWindows(uint32_t count) : count_(count) {}

  /// The lowest number that no other GPU has. Errors: kOutOfMemory.
  Result<uint32_t> take() {
    const std::lock_guard lock(mutex_);
    for (uint32_t window = 0; window < count_; ++window) {
      if ((taken_ >> window & 1) != 0) continue;
      taken_ |= 1u << window;
      return window;
    }
    return fail(Code::kOutOfMemory, "{} GPUs are open in this process already", count_);
  }
  void give_back(uint32_t window) {
    const std::lock_guard lock(mutex_);
    taken_ &= ~(1u << window);
  }

 private:
  const uint32_t count_;
  std::mutex mutex_;
  uint32_t taken_ = 0;
};

}  // namespace bm::memory
