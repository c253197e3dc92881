#pragma once
// What blocks share that keep states or several vectors of a token.

#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace bm::models {

/// What a cache holds at position 0 is of another text, which may have ended in no numbers at all.
inline Tensor from_start(const Tensor& state, const SymInt& position, const std::string& device) {
  const Tensor is_going_on = Tensor::value_of(position, device) > 0;
  return is_going_on.reshape(Shape(state.shape().size(), SymInt(1))).where(state, 0.0);
}

/// A sequence's own of [sequences, …].
inline Tensor of_sequence(const Tensor& all, const SymInt& number) {
  if (!all.is_valid()) return {};
  std::vector<std::pair<SymInt, SymInt>> ranges{{number, number + 1}};
  Shape shape;
  for (int64_t axis = 1; axis < all.rank(); ++axis) {
    ranges.emplace_back(0, all.size(axis));
    shape.push_back(all.size(axis));
  }
  return all.shrink(ranges).reshape(shape);
}

/// Divided by its length. Source: ggml, ggml_l2_norm().
inline Tensor unit(const Tensor& x, double least) {
  return x / (x * x).sum({-1}, true).sqrt().maximum(least);
}

/// Vectors `number` of rows [rows, n · width].
inline Tensor part_of(const Tensor& x, int64_t number, int64_t width) {
  return x.slice(1, {number * width, (number + 1) * width});
}

/// Of the first `count` vectors of rows, shares_i · vector_i: [rows, width].
inline Tensor read_vectors(const Tensor& x, const Tensor& shares, int64_t count, int64_t width) {
  Tensor sum = part_of(x, 0, width) * part_of(shares, 0, 1);
  for (int64_t i = 1; i < count; ++i) sum = sum + part_of(x, i, width) * part_of(shares, i, 1);
  return sum;
}

}  // namespace bm::models
