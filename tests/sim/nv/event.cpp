#include "tests/sim/nv/event.h"

#include <sys/socket.h>

#include <array>

namespace bm::sim::nv {

EventQueue::EventQueue() {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) return;
  client_.reset(ends[0]);
  kernel_.reset(ends[1]);
}

void EventQueue::post(const UnixEvent& event) {
  const std::lock_guard lock(mutex_);
  // One byte while the queue holds anything: readable or not is all a client may learn.
  if (events_.empty()) {
    const char byte = 0;
    (void)!send(kernel_.get(), &byte, 1, MSG_NOSIGNAL);
  }
  events_.push_back(event);
}

bool EventQueue::take(UnixEvent* out, bool* more) {
  const std::lock_guard lock(mutex_);
  *more = false;
  if (events_.empty()) return false;
  *out = events_.front();
  events_.pop_front();
  *more = !events_.empty();
  if (events_.empty()) {
    char byte = 0;
    (void)!recv(client_.get(), &byte, 1, MSG_DONTWAIT);
  }
  return true;
}

}  // namespace bm::sim::nv
