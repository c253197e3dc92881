#pragma once
// What a device may offer to those who wait for it; found by asking the device for this class.

#include <cstdint>
#include <string>

namespace bm::hal {

/// Implemented beside hal::Device by devices with interrupts. Thread: any, without locks held.
class Waiting {
 public:
  /// Blocks until the device reports an event, at most `longest_ns`; false: it has none, the caller
  /// sleeps by itself. For waits that have polled in vain; a wake-up promises nothing.
  virtual bool sleep_until_event(uint64_t longest_ns) = 0;
  /// What the hardware is doing, for messages about waits that ran out of time.
  virtual std::string activity() = 0;

 protected:
  ~Waiting() = default;
};

}  // namespace bm::hal
