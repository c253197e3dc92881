#pragma once
// Devices that do something wrong on purpose, so that the cases which must notice can be tried.

#include <functional>
#include <memory>

#include "runtime/hal/device.h"

namespace bm::cts {

/// A queue that passes everything on but Wait.
std::unique_ptr<hal::Queue> queue_without_waits(hal::Queue& queue);
/// A device whose queues are of that kind.
std::unique_ptr<hal::Device> without_waits(std::unique_ptr<hal::Device> device);
/// A device that calls `before_replay` at every replay.
std::unique_ptr<hal::Device> with_hook(std::unique_ptr<hal::Device> device,
                                       std::function<void()> before_replay);

}  // namespace bm::cts
