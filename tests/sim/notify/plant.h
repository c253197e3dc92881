#pragma once
// A fault that comes by itself while an unmodified program runs: at the n-th event of its kind.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace bm::sim {

/// What faults are counted in.
enum class PlantEvent : uint8_t { kNone, kLaunch, kCopy, kHandedOverCopy, kFence, kWait };

/// Thread: any.
template <class Effect>
class Plant {
 public:
  void set(PlantEvent event, Effect effect, uint64_t nth) {
    event_ = event;
    effect_ = effect;
    left_ = static_cast<int64_t>(nth);
    planted_ns_ = 0;
  }
  Effect effect() const { return effect_; }
  /// Counts the event; true for the n-th of the planted kind.
  bool is_due(PlantEvent event) {
    if (event != event_ || left_.fetch_sub(1) != 1) return false;
    planted_ns_ = now_ns();
    return true;
  }
  /// Whether an event of that kind is still to be counted.
  bool awaits(PlantEvent event) const { return event == event_ && left_.load() > 0; }
  bool is_planted() const { return planted_ns_ != 0; }
  /// Of the steady clock, which is one for all processes.
  int64_t planted_ns() const { return planted_ns_; }
  static int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

 private:
  std::atomic<PlantEvent> event_{PlantEvent::kNone};
  std::atomic<Effect> effect_{};
  std::atomic<int64_t> left_{0};
  std::atomic<int64_t> planted_ns_{0};
};

}  // namespace bm::sim
