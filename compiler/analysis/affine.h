#pragma once
// How index expressions move along one loop.

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "compiler/ir/linear.h"
#include "compiler/ir/node.h"

namespace bm::compiler {

/// Strides of nodes along `range` while it runs over one aligned chunk: the index is a multiple of
/// `chunk`, plus 0 … chunk-1. With chunk 1 … 0 (exact) nothing is assumed about chunks and a stride
/// holds over the whole range.
class Strides {
 public:
  /// `chunk` 0: exact strides over the whole range.
  Strides(const ir::Node* range, int64_t chunk) : range_(range), chunk_(chunk) {}

  /// Constant difference between consecutive iterations, or nothing. int64 nodes only.
  std::optional<int64_t> stride(const ir::Node* n) { return look(n).stride; }
  /// What `n` is certainly a multiple of at the first index of every chunk; 0: it is zero there.
  int64_t align(const ir::Node* n) { return look(n).align; }
  /// Whether `n` (any dtype) has one value in the whole chunk.
  bool is_uniform(const ir::Node* n);

 private:
  struct Facts {
    std::optional<int64_t> stride;
    int64_t align = 1;  ///< value at the chunk's first index is a multiple of this; 0: it is zero
  };
  const Facts& look(const ir::Node* n);
  Facts compute(const ir::Node* n);
  Facts divide(const ir::Node* n);

  const ir::Node* range_;
  int64_t chunk_;
  std::unordered_map<const ir::Node*, Facts> facts_;
  std::unordered_map<const ir::Node*, bool> uniform_;
};

/// Whether `count` elements are contiguous along `direction`, from multiples of as many on.
bool is_row(const ir::Linear& index, const ir::Node* direction, uint32_t count);

}  // namespace bm::compiler
