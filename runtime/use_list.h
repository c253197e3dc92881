#pragma once
// Which queued work still touches a piece of memory: at most one Point per timeline.

#include <atomic>
#include <chrono>
#include <vector>

#include "runtime/timeline.h"

namespace bm::runtime {

/// Thread: safe. Costs one uncontended atomic exchange per call while one device uses the memory.
class UseList {
 public:
  explicit UseList(Point first = {}) : latest_(first) {}

  void record(Point point) {
    if (point.timeline == nullptr) return;
    const Guard guard(*this);
    if (latest_.timeline != point.timeline) change_timeline(point.timeline);
    if (point.value > latest_.value) latest_.value = point.value;
  }
  Point latest() const {
    const Guard guard(*this);
    return latest_;
  }
  /// The Points that are not reached.
  std::vector<Point> outstanding() const {
    const Guard guard(*this);
    std::vector<Point> result;
    if (!reached(latest_)) result.push_back(latest_);
    for (const Point& other : others_)
      if (!reached(other)) result.push_back(other);
    return result;
  }
  Status wait() const {
    for (const Point& point : outstanding()) BM_TRY(runtime::wait(point));
    return {};
  }

 private:
  // A spin lock: held for a few instructions, and a mutex would double the size of every storage.
  class Guard {
   public:
    explicit Guard(const UseList& list) : busy_(list.busy_) {
      while (busy_.test_and_set(std::memory_order_acquire)) {}
    }
    ~Guard() { busy_.clear(std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic_flag& busy_;
  };

  void change_timeline(Timeline* timeline) {
    std::erase_if(others_, [](const Point& other) { return reached(other); });
    if (!reached(latest_)) others_.push_back(latest_);
    latest_ = {timeline, 0};
    for (size_t i = 0; i < others_.size(); ++i) {
      if (others_[i].timeline != timeline) continue;
      latest_ = others_[i];
      others_.erase(others_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  mutable std::atomic_flag busy_;
  Point latest_;
  std::vector<Point> others_;
};

}  // namespace bm::runtime
