#pragma once
// What ld, st, atom and red have in common in their suffixes and operands.

#include "tests/sim/ptx/builder.h"

namespace bm::sim::ptx {

struct MemorySuffixes {
  Space space = Space::kGeneric;
  uint32_t vector = 1;
  bool is_ordered = false;  ///< acquire or release
};

/// Consumes space, vector size, cache hints, order and scope. One device runs one grid here, so
/// scopes make no difference.
MemorySuffixes take_memory_suffixes(Builder& b);

void set_address(Inst& in, const Builder::Address& a);

/// Place of the 32-bit source i, or of the constant where there is none; kNone if it is malformed.
uint32_t operand_or(Builder& b, size_t i, uint64_t otherwise);

}  // namespace bm::sim::ptx
