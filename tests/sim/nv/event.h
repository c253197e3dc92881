#pragma once
// Operating system events: what poll() on an nvidia file sees.

#include <cstdint>
#include <deque>
#include <mutex>

#include "runtime/base/scoped_fd.h"

namespace bm::sim::nv {

/// Source: open-gpu-kernel-modules 580.142, nvos.h, NvUnixEvent.
struct UnixEvent {
  uint32_t object = 0, index = 0, info32 = 0;
  uint16_t info16 = 0, padding = 0;
};

/// Queue of one file. Thread: any. Readiness is that of a socket, so that real poll(2) works.
class EventQueue {
 public:
  EventQueue();
  void post(const UnixEvent& event);
  /// Oldest event; false when there is none. `more`: others wait.
  bool take(UnixEvent* out, bool* more);
  /// The end the client polls.
  int client_fd() const { return client_.get(); }

 private:
  std::mutex mutex_;
  std::deque<UnixEvent> events_;
  ScopedFd client_, kernel_;
};

}  // namespace bm::sim::nv
