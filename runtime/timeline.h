#pragma once
// One ordering primitive: a Timeline counts completed work of one device, a Point is a place on it.

#include <chrono>
#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/hal/command.h"

namespace bm::runtime {

class Timeline;

/// A place on a timeline. Default: already reached.
struct Point {
  Timeline* timeline = nullptr;
  uint64_t value = 0;
};

}  // namespace bm::runtime
