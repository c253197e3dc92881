#pragma once
// Ordered submission of commands to one device.

#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/timeline.h"

namespace bm::runtime {

/// Eager work of one device is totally ordered across its compute and copy queues:
/// every submission is Wait(everything before), Barrier, commands, Signal(its Point).
///
/// Inline devices (hal::Device::is_inline) run the commands on the calling thread and return Points
/// that are reached; streams take no lock for them, so independent threads do not wait for each
/// other and the driver's queue must accept concurrent submit calls.
///
/// Thread: safe. After fork, every call in the child fails with kUnsupported.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Queues commands after all earlier work of this stream and signals the returned Point.
  /// Errors: the device's first fault; a failed submission leaves the stream usable otherwise.
  virtual Result<Point> submit(hal::QueueKind kind, std::span<const hal::Command> commands) = 0;
  /// As submit, and after the given Points of other devices' timelines too. The device waits for
  /// them itself where it can reach their signals, otherwise the calling thread does.
  virtual Result<Point> submit_after(hal::QueueKind kind, std::span<const hal::Command> commands,
                                     std::span<const Point> points);
  virtual Status wait(Point point) = 0;
  virtual Timeline& timeline() = 0;
  /// Waits for everything submitted so far.
  virtual Status synchronize() = 0;
  /// Makes a failed device usable again (hal::Device::recover). Work in flight is dropped: who
  /// waits for its Points gets the first cause, also later; everybody else may go on, graphs
  /// included. Errors: as there.
  virtual Status recover() { return fail(Code::kUnsupported, "this stream cannot recover"); }

  /// For submissions of several queues at once (graphs): while held, Timeline::next() and queue
  /// calls of this device belong to the holder. Several streams: lock in address order. Empty for
  /// inline devices.
  virtual std::unique_lock<std::mutex> lock() { return {}; }
  /// What the work that signals `value` is and the queues it runs on, for messages; for those who
  /// submit under lock(). Keeps the beginning of a copy. Costs no allocation.
  virtual void note_work(uint64_t /*value*/, std::string_view /*name*/, const char* /*queue*/) {}
  /// Gives the device up, unless it was lost before. Returns the error that everyone gets who has
  /// to do with it from now on: the first cause, with device, queue and work before it. Thread:
  /// any, also under lock(). An inline device is never lost: returns `cause`.
  virtual Error lose(Error cause) { return cause; }
  /// Address of this stream's timeline signal on another device. Errors: the driver's, when that
  /// device cannot reach it.
  virtual Result<hal::GpuVa> signal_on(hal::Device& waiter);
};

/// Stream of an opened device, inline or not. `device` must outlive it. `name` is for messages.
Result<std::unique_ptr<Stream>> make_stream(hal::Device& device, std::string name);

/// Whether any stream of a device with a queue was made in this process: while not, no Point can be
/// outstanding and looking for one is a waste.
bool any_queue_device();

/// kUnsupported "forked …" in a child of a process that had opened devices before fork; cheap.
Status check_not_forked();

}  // namespace bm::runtime
