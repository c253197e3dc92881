#pragma once
// Memory planner: packs buffers with known lifetimes into as little memory as it can; those that
// are never live together share addresses.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.h"

namespace bm::runtime {

/// One intermediate buffer. Uses are call indices of the captured list, both ends included.
struct PlanBuffer {
  uint64_t size = 0;  ///< bytes; placed at multiples of 256
  uint32_t first_use = 0;
  uint32_t last_use = 0;
  uint32_t pool = 0;  ///< buffers share memory only within a pool (device, kind)
  /// Touched by copies: its place stays taken for twice its lifetime, so that a copy engine running
  /// behind does not make the next user of the bytes wait.
  bool is_copied = false;
};

struct Plan {
  std::vector<uint64_t> offsets;      ///< per buffer: bytes from the start of its pool's arena
  std::vector<uint64_t> arena_sizes;  ///< per pool: bytes
};

/// Buffers of one pool whose lifetimes meet never overlap; an arena is at least as large as the
/// largest sum of sizes live at once. Pure.
/// Errors: kInvalidArgument (first_use after last_use, more than 65,536 pools); kOutOfMemory (an
/// arena would pass 2^64 bytes).
Result<Plan> plan_memory(std::span<const PlanBuffer> buffers);

}  // namespace bm::runtime
