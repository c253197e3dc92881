#pragma once
// Where in video memory what the host sees of a GPU's addresses lies, for cards that reach no
// memory of the host.

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "runtime/base/result.h"

namespace bm::memory {

/// Thread: safe.
class VisiblePlaces {
 public:
  void add(uint64_t va, uint64_t physical, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    places_[va] = {physical, bytes};
  }
  void remove(uint64_t va) {
    const std::lock_guard lock(mutex_);
    places_.erase(va);
  }
  /// The physical address of `bytes` bytes at `va`. Errors: kInvalidArgument where one place does
  /// not hold them all.
  Result<uint64_t> find(uint64_t va, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto after = places_.upper_bound(va);
    if (after != places_.begin()) {
      const auto& [start, place] = *std::prev(after);
      if (bytes <= place.bytes && va - start <= place.bytes - bytes)
        return place.physical + (va - start);
    }
    return fail(Code::kInvalidArgument, "{} bytes at {:#x} are no memory that the host sees", bytes,
                va);
  }

 private:
  struct Place {
    uint64_t physical = 0, bytes = 0;
  };
  std::mutex mutex_;
  std::map<uint64_t, Place> places_;  ///< by address on the GPU
};

}  // namespace bm::memory
