#pragma once
// Time as waits of a boot see it; tests have one that only moves when somebody sleeps.

#include <cstdint>

namespace bm {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_us() = 0;
  virtual void sleep_us(uint64_t us) = 0;
};

/// The machine's monotonic clock.
Clock& real_clock();

}  // namespace bm
