#pragma once
// Times of events on the host's steady clock.

#include <array>
#include <cstdint>

#include "drivers/cuda/context.h"
#include "runtime/base/result.h"

namespace bm::cuda {

int64_t steady_ns();

/// CUDA tells only how much later one event was than another, in float milliseconds: precise while
/// the two are close. Therefore a base event with a known time, replaced once a second.
/// Thread: under the submission lock, context current.
class Clock {
 public:
  explicit Clock(const Context& context) : context_(context) {}
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// Index of a base young enough for an event recorded now; release() it after time_of().
  Result<uint32_t> acquire();
  void release(uint32_t base) { --bases_[base].users; }
  /// Nanoseconds of a completed event.
  Result<int64_t> time_of(CuEvent event, uint32_t base) const;

 private:
  struct Base {
    CuEvent event = nullptr;
    int64_t ns = 0;
    uint32_t users = 0;
  };
  Status measure(Base& base);

  const Context& context_;
  CuStream stream_ = nullptr;
  static constexpr uint32_t kBases = 4;
  std::array<Base, kBases> bases_;
  uint32_t current_ = 0;
};

}  // namespace bm::cuda
