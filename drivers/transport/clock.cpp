#include "drivers/transport/clock.h"

#include <chrono>
#include <thread>

namespace bm {
namespace {

class RealClock final : public Clock {
 public:
  uint64_t now_us() override {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
  }
  void sleep_us(uint64_t us) override {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
};

}  // namespace

Clock& real_clock() {
  static RealClock clock;  // has no state: one serves all
  return clock;
}

}  // namespace bm
