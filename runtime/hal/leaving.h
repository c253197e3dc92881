#pragma once
// What a device may have to do at the end of its process; found by asking the device for this
// class.

namespace bm::hal {

/// Implemented beside hal::Device by devices that no kernel driver puts in order when their process
/// ends. The process keeps its devices to the end, so destructors are no place for it.
class Leaving {
 public:
  /// The process ends and its work is done. Whoever opens the device next finds it as a close would
  /// have left it; every later call but those that free returns kDeviceLost. Thread: one, once;
  /// bounded, and a failure is logged: the next open copes with it.
  virtual void leave() = 0;

 protected:
  ~Leaving() = default;
};

}  // namespace bm::hal
