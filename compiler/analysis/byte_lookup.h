#pragma once
// Bitwise expressions over bytes that depend on four bits at most: tables of sixteen bytes.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/node.h"

namespace bm::compiler {

/// Entry number i of `table` is what the expression gives where the fields hold the bits of i, the
/// first field the lowest.
struct ByteLookup {
  struct Field {
    const ir::Node* load;
    uint32_t from, bits;
  };
  std::vector<Field> fields;
  std::array<uint8_t, 16> table{};
};

/// Of an expression as dot products take it (find_inner_dot). Nothing where it depends on more, on
/// bits of a load that lie apart, or where it is no longer than a lookup.
std::optional<ByteLookup> find_byte_lookup(const ir::Node* n);

}  // namespace bm::compiler
