#pragma once
// Pattern: draws the loops, operands and results that random_pattern() is made of. Private to
// random_*.cpp.

#include <algorithm>
#include <array>
#include <utility>

#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {

using ir::Node;
using ir::Op;
using ir::ReduceOp;

/// One loop of a pattern: its extent, drawn, perhaps a variable.
struct Loop {
  const Node* range = nullptr;
  int64_t most = 1;
};

/// Float values are small whole numbers and sums stay below what a float counts exactly, so that
/// every order of additions, every tile and every dot product gives the same bits. Where a schedule
/// may move a division out of a sum, a tolerance is allowed.
class Pattern {
 public:
  /// The reference interprets every iteration.
  static constexpr int64_t kMostWork = 60'000;

  explicit Pattern(uint64_t seed) : random_(seed) {
    out_.kernel.name = "p";
    out_.kernel.graph = std::make_unique<ir::Graph>();
  }

  RandomKernel run(void (Pattern::*make)());

  // random_products.cpp.
  void matmul();
  void few_rows();
  void long_k();
  void convolution();
  void windows();
  void quantised();
  void repacked();
  void attention();
  // random_rows.cpp.
  void softmax();
  void norm();
  void reduction();
  void elementwise();
  void transposition();
  void gather();
  void running();
  void least();
  void scan();

 private:
  struct Types {
    DType left, right, sum, out;
  };

  uint64_t pick(uint64_t n) { return random_() % n; }
  int64_t range_of(uint64_t n) { return static_cast<int64_t>(pick(n)); }
  bool chance(unsigned percent) { return pick(100) < percent; }
  ir::Graph& g() { return *out_.kernel.graph; }
  DType any_of(std::initializer_list<DType> list) { return list.begin()[pick(list.size())]; }
  DType row_type() { return any_of({DType::kF32, DType::kF32, DType::kF16, DType::kBF16}); }

  Types product_types() {
    using enum DType;
    static constexpr std::array kRows = {
        Types{kF32, kF32, kF32, kF32},   Types{kF32, kF32, kF32, kF32},
        Types{kF32, kF32, kF32, kF32},   Types{kF16, kF16, kF32, kF16},
        Types{kBF16, kBF16, kF32, kF32}, Types{kBF16, kBF16, kF32, kBF16},
        Types{kF64, kF64, kF64, kF64},   Types{kU8, kI8, kI32, kI32},
        Types{kI8, kI8, kI32, kI32},     Types{kU8, kI8, kI32, kF32},
        Types{kI16, kI16, kI32, kI32},   Types{kI32, kI32, kI32, kI32},
        Types{kF32, kI8, kF32, kF32},    Types{kF32, kBF16, kF32, kF32},
        Types{kI64, kI64, kI64, kI64},   Types{kF16, kF16, kF16, kF16},
        Types{kU8, kU8, kI32, kI32},     Types{kI8, kU8, kI32, kI32}};
    return kRows[pick(kRows.size())];
  }

  int64_t draw_extent(int64_t most) {
    static constexpr std::array<int64_t, 24> kExtents = {
        1, 2, 3, 4, 5, 7, 8, 11, 13, 14, 15, 16, 17, 23, 31, 32, 33, 48, 63, 64, 67, 97, 100, 128};
    int64_t extent = kExtents[pick(kExtents.size())];
    while (extent > most || (extent > 1 && extent > budget_)) extent = extent / 2;
    return std::max<int64_t>(extent, 1);
  }

  Loop loop_of(int64_t extent) {
    budget_ = std::max<int64_t>(budget_ / std::max<int64_t>(extent, 1), 1);
    return {g().range(g().index(extent)), extent};
  }

  Loop draw(int64_t most) {
    const int64_t extent = draw_extent(most);
    if (!out_.kernel.vars.empty() || !chance(12)) return loop_of(extent);
    const int64_t least = chance(50) ? 0 : 1;
    out_.kernel.vars.push_back({.name = "n", .min = least, .max = extent});
    out_.vars.push_back(
        chance(40) ? extent
                   : least + static_cast<int64_t>(pick(static_cast<uint64_t>(extent - least) + 1)));
    budget_ = std::max<int64_t>(budget_ / extent, 1);
    return {g().range(g().var(0, least, extent)), extent};
  }
  /// Loops of a convolution; those without a range are not there.
  struct Windows {
    Loop image, group, o, y, x, c, ky, kx;
  };
  void convolve(const Windows& loops);

  Loop output(int64_t most) {
    const Loop l = draw(most);
    out_.kernel.ranges.push_back(l.range);
    outputs_.push_back(l);
    return l;
  }
  Loop output_of(int64_t extent) {
    const Loop l = loop_of(extent);
    out_.kernel.ranges.push_back(l.range);
    outputs_.push_back(l);
    return l;
  }
  Loop inner(int64_t most) { return draw(most); }
  Loop inner_of(int64_t extent) { return loop_of(extent); }
  const Node* same_extent(const Loop& l) { return g().range(l.range->src[0]); }

  static std::vector<Loop> present(std::vector<Loop> loops) {
    std::erase_if(loops, [](const Loop& l) { return !l.range; });
    return loops;
  }
  static std::vector<Loop> with(std::vector<Loop> a, const std::vector<Loop>& b) {
    a.insert(a.begin(), b.begin(), b.end());
    return present(std::move(a));
  }
  std::vector<Loop> shuffled(std::vector<Loop> loops) {
    if (chance(40)) std::shuffle(loops.begin(), loops.end(), random_);
    return loops;
  }
  std::vector<Loop> subset(const std::vector<Loop>& loops) {
    std::vector<Loop> some;
    for (const Loop& l : loops)
      if (chance(50)) some.push_back(l);
    return some;
  }

  int param(DType t, int64_t elements, bool is_whole_range = false) {
    out_.kernel.params.push_back({.dtype = t, .elements = elements, .is_read = true});
    is_wide_.resize(out_.kernel.params.size(), false);
    is_wide_.back() = is_whole_range;
    return static_cast<int>(out_.kernel.params.size() - 1);
  }

  const Node* load(DType t, const Node* index, int64_t elements, const Node* gate,
                   bool is_whole_range = false) {
    if (gate && gate->is_const()) gate = gate->imm ? nullptr : gate;
    return g().load(param(t, elements, is_whole_range), t, index, gate);
  }

  /// Load from a dense array over `loops`, sometimes from the middle of a larger one, reversed or
  /// every other element.
  const Node* load_dense(DType t, const std::vector<Loop>& loops, bool is_whole_range = false) {
    const uint64_t before = chance(20) ? pick(9) : chance(10) ? pick(600) : 0;
    const Node* index = g().index(static_cast<int64_t>(before));
    int64_t top = index->imm, stride = chance(10) ? 2 : 1;
    for (auto it = loops.rbegin(); it != loops.rend(); ++it) {
      if (!it->range) continue;
      const bool is_backwards = chance(6) && it->range->src[0]->is_const();
      const Node* at = is_backwards ? g().sub(g().index(it->most - 1), it->range) : it->range;
      index = g().add(index, g().mul(at, stride));
      top += (it->most - 1) * stride;
      stride *= it->most + (chance(10) ? static_cast<int64_t>(pick(4)) : 0);
    }
    return load(t, index, top + 1, nullptr, is_whole_range);
  }

  const Node* inside_of(const Node* place, int64_t extent) {
    return g().both(g().less(g().index(-1), place), g().less(place, g().index(extent)));
  }

  const Node* converted(const Node* n, DType t) { return n->dtype == t ? n : g().cast(n, t); }

  /// Factor of a product in any layout, with a prologue at times.
  const Node* operand(DType t, DType sum, const std::vector<Loop>& loops) {
    const Node* x = converted(load_dense(t, shuffled(loops)), sum);
    if (chance(8)) x = g().binary(Op::kMax, x, g().constant(sum, 0));
    if (chance(8)) x = g().binary(Op::kMul, x, load_dense(sum, subset(loops)));
    if (chance(5)) {
      const Loop& l = loops[pick(loops.size())];
      x = g().select(g().less(l.range, g().index(l.most / 2)), x, g().constant(sum, 1));
    }
    return x;
  }

  const Node* reduce(ReduceOp op, const Node* value, const std::vector<Loop>& loops) {
    std::vector<const Node*> ranges;
    for (const Loop& l : loops) ranges.push_back(l.range);
    return g().reduce(op, value, ranges);
  }
  const Node* reduce(ReduceOp op, const Node* value, const std::vector<const Node*>& ranges) {
    return g().reduce(op, value, ranges);
  }
  const Node* sum_of(const Node* value, const std::vector<Loop>& loops) {
    return reduce(ReduceOp::kSum, value, chance(20) ? shuffled(loops) : loops);
  }

  /// `own` with the row's loop replaced by a fresh one of the same extent.
  std::pair<const Node*, const Node*> same_row(const Node* own, const Loop& row) {
    const Node* k = same_extent(row);
    return {g().substitute(own, std::array{row.range}, std::array{k}), k};
  }

  const Node* epilogue(const Node* x, DType out, const std::vector<Loop>& loops) {
    const DType t = x->dtype;
    const std::vector<Loop> all = present(loops);
    if (chance(30)) x = g().binary(Op::kAdd, x, converted(load_dense(t, subset(all)), t));
    if (chance(20)) x = g().binary(Op::kAdd, x, converted(load_dense(t, all), t));
    if (chance(25)) x = g().binary(Op::kMax, x, g().constant(t, 0));
    if (chance(10)) x = g().binary(Op::kMul, x, g().constant(t, 2));
    // Numbers that may be handed over at launch.
    if (t == DType::kF32 && chance(20)) x = g().binary(Op::kMul, x, g().constant_f(t, 0.75));
    if (t == DType::kF32 && chance(20)) x = g().binary(Op::kSub, x, g().constant_f(t, 12.5));
    return converted(x, out);
  }

  void store(const Node* value, DType t);
  void fill(size_t p);

  std::mt19937_64 random_;
  RandomKernel out_;
  std::vector<Loop> outputs_;
  std::vector<bool> is_wide_;
  int64_t budget_ = 1;  // iterations left
  int64_t small_ = 3;
  bool is_flat_ = false;  // products of a few rows and many columns
};

}  // namespace bm::test
