#pragma once
// Choosing operands and numbers of a step.

#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/tensor/program.h"

namespace bm::test {

/// How large the values of a program are. Small programs are many; large ones reach what small ones
/// do not: tiles of a GEMM and their remainders, split-K, work shared by threads and work-groups,
/// rows longer than a block, streaming stores.
struct Scale {
  std::span<const int64_t> sizes;  ///< extents of axes
  int64_t most_elements;           ///< of a value
  int64_t most_products;           ///< multiply-adds of a GEMM, which REF interprets one by one
  int64_t most_convolved;          ///< of a convolution
  int64_t fewest_steps, more_steps;
};
/// Whether a program of Size::kLengths has a length of hundreds: one in three.
bool is_long(uint64_t seed, Size size);
const Scale& scale_of(uint64_t seed, Size size);

/// A program in the making: what exists so far, and dice.
struct Drawer {
  /// What the program is where its length has another value.
  struct AtLength {
    int64_t length;
    std::vector<Judged> given, results;
  };
  const Scale& scale;
  Program program;
  std::vector<Judged> results;  ///< of the steps
  std::vector<Judged> given;    ///< of the inputs
  std::vector<bool> is_dead;    ///< results overwritten since
  std::vector<bool> is_input_dead;
  std::mt19937_64 random;
  std::vector<int64_t> sizes;  ///< the few this program has
  bool prefers_newest = false;
  bool has_products = false;   ///< Size::kProducts
  bool has_attention = false;  ///< and of them one of attention above all
  /// Size::kLengths: the program is drawn at one value of its length, and every step has to be one
  /// that can be judged at all others, and over a variable.
  int64_t length = 0;
  std::optional<Var> variable = std::nullopt;
  std::vector<AtLength> others = {};
  std::vector<Tensor> given_shapes = {}, result_shapes = {};  ///< on REF, never computed
  DType real = DType::kF32, whole = DType::kI32;

  Drawer(uint64_t seed, Size size);
  int64_t pick(int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }
  bool chance(int percent) { return pick(100) < percent; }
  int64_t size() { return sizes[static_cast<size_t>(pick(static_cast<int64_t>(sizes.size())))]; }

  const Judged& of(int arg) const {
    return arg >= 0 ? results[static_cast<size_t>(arg)] : given[static_cast<size_t>(-1 - arg)];
  }
  const std::vector<int64_t>& shape(int arg) const { return of(arg).shape; }
  bool is_alive(int arg) const {
    return arg >= 0 ? !is_dead[static_cast<size_t>(arg)]
                    : !is_input_dead[static_cast<size_t>(-1 - arg)];
  }
  bool has_length() const { return length != 0; }
  /// Whether axis a is as long as the variable says.
  bool is_fixed(int arg, int64_t axis) const {
    return !has_length() || shape_of_variable(arg).size(axis).is_const();
  }
  const Tensor& shape_of_variable(int arg) const {
    return arg >= 0 ? result_shapes[static_cast<size_t>(arg)]
                    : given_shapes[static_cast<size_t>(-1 - arg)];
  }
  /// Judges the newest input, again where its values have changed.
  void judge_newest_input();
  void forget_inputs(size_t from);
  /// Adds what the step is at the other lengths; false where it cannot be judged at one of them.
  bool judge_at_others(const Step& s);
  int newest_where(const std::function<bool(const Judged&)>& fits);
  /// A fresh input of small values; -1 - its index.
  int input(std::vector<int64_t> shape, DType t);
  /// A fresh input of integers in [low, high).
  int indices(std::vector<int64_t> shape, int64_t low, int64_t high);
  /// The same of dtype t.
  int whole_numbers(std::vector<int64_t> shape, DType t, int64_t low, int64_t high);
  int mask(std::vector<int64_t> shape, const std::vector<bool>& hidden);
  /// An existing value of exactly this shape and dtype, now and then, else a fresh input.
  int any(const std::vector<int64_t>& shape, DType t);

 private:
  void cut(Input* made) const;
};

namespace draw {
#define BM_DRAW(name) bool name(Drawer& d, Step& s)
BM_DRAW(nothing);
BM_DRAW(cast);
BM_DRAW(partner);
BM_DRAW(choice);
BM_DRAW(ranked);
BM_DRAW(axis);
BM_DRAW(axes);
BM_DRAW(some);
BM_DRAW(affine);
BM_DRAW(image);
BM_DRAW(channels);
BM_DRAW(right);
BM_DRAW(linear);
BM_DRAW(transposed);
BM_DRAW(weighted);
BM_DRAW(kernel);
BM_DRAW(depthwise);
BM_DRAW(turned);
BM_DRAW(window);
BM_DRAW(keys);
BM_DRAW(divided);
BM_DRAW(two_axes);
BM_DRAW(order);
BM_DRAW(grown);
BM_DRAW(range);
BM_DRAW(padded);
BM_DRAW(growing);
BM_DRAW(twin);
BM_DRAW(matrix);
BM_DRAW(lookup);
BM_DRAW(rows_of);
BM_DRAW(scattered);
BM_DRAW(assigned);
BM_DRAW(assigned_part);
BM_DRAW(first_rows);
BM_DRAW(last_row);
BM_DRAW(assigned_first);
BM_DRAW(assigned_last);
// program_draw_models.cpp
BM_DRAW(grouped);
BM_DRAW(masked);
BM_DRAW(decoded);
BM_DRAW(angles);
BM_DRAW(gated);
BM_DRAW(nibbles);
BM_DRAW(words);
BM_DRAW(bytes);
BM_DRAW(blocks);
BM_DRAW(half_layer);
BM_DRAW(bfloat_layer);
BM_DRAW(experts);
BM_DRAW(dilated);
BM_DRAW(turned_back);
BM_DRAW(pooled);
BM_DRAW(batched);
BM_DRAW(column);
BM_DRAW(chained);
BM_DRAW(square);
BM_DRAW(same);
BM_DRAW(accumulated);
BM_DRAW(summed);
BM_DRAW(same_bits);
BM_DRAW(repeated);
BM_DRAW(cropped);
BM_DRAW(indexed);
#undef BM_DRAW
}  // namespace draw

}  // namespace bm::test
