#pragma once
// Ordered submission of commands to one device.

#include <span>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/timeline.h"

namespace bm::runtime {

class Stream {
 public:
  virtual ~Stream() = default;
  /// Queues commands after all earlier work of this stream and signals the returned Point.
  virtual Result<Point> submit(hal::QueueKind kind, std::span<const hal::Command> commands) = 0;
  virtual Status wait(Point point) = 0;
  virtual Timeline& timeline() = 0;
  /// Waits for everything submitted so far.
  virtual Status synchronize() = 0;
};

}  // namespace bm::runtime
