#pragma once
// What is known of the values of an integer node from its operation and the bounds of its sources.

#include <cstdint>

#include "compiler/ir/node.h"

namespace bm::ir {

/// Inclusive.
struct Bounds {
  int64_t lo = INT64_MIN, hi = INT64_MAX;
};

/// Of an integer or bool node whose sources have theirs. A result that may wrap, and an unsigned
/// 64-bit one, has no useful ones.
Bounds bounds_of(const Node& n);

}  // namespace bm::ir
