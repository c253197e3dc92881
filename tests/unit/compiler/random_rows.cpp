// Patterns over rows and single elements: softmax, norms, reductions, scans, orders, gathers.
#include "tests/unit/compiler/random_pattern.h"

namespace bm::test {

/// Softmax of powers of two over one axis or two: everything but the division is exact.
void Pattern::softmax() {
  const Loop outer = output(9), side = chance(25) ? output(5) : Loop{}, row = output(130);
  const DType t = row_type();
  out_.tolerance = 2e-6;
  const Node* own = converted(load_dense(t, with({row}, {outer, side})), DType::kF32);
  const auto again = [&] {
    std::vector<const Node*> from{row.range}, to{same_extent(row)};
    if (side.range) {
      from.push_back(side.range);
      to.push_back(same_extent(side));
    }
    return std::pair(g().substitute(own, from, to), to);
  };
  const auto [inner_max, k1] = again();
  const Node* most = reduce(ReduceOp::kMax, inner_max, k1);
  const auto [inner_exp, k2] = again();
  const Node* total =
      reduce(ReduceOp::kSum, g().unary(Op::kExp2, g().binary(Op::kSub, inner_exp, most)), k2);
  const Node* power = g().unary(Op::kExp2, g().binary(Op::kSub, own, most));
  const Node* result = chance(30)   ? g().binary(Op::kAdd, g().unary(Op::kLog2, total), most)
                       : chance(50) ? g().binary(Op::kDiv, power, total)
                                    : g().binary(Op::kMul, power, g().unary(Op::kRecip, total));
  store(converted(result, t), t);
}

/// Norms over rows: sums and sums of squares of whole numbers.
void Pattern::norm() {
  const Loop outer = output(9), row = output(100);
  const DType t = row_type();
  const Node* own = converted(load_dense(t, with({row}, {outer})), DType::kF32);
  const auto [first, k1] = same_row(own, row);
  const Node* count = g().cast(row.range->src[0], DType::kF32);
  const Node* sum = reduce(ReduceOp::kSum, first, {k1});
  const bool is_centred = chance(50);
  const Node* shift = is_centred ? sum : g().constant(DType::kF32, 0);
  const auto centred = [&](const Node* x) {
    return is_centred ? g().binary(Op::kSub, g().binary(Op::kMul, x, count), shift) : x;
  };
  const auto [second, k2] = same_row(own, row);
  const Node* part = centred(second);
  const Node* squares = reduce(ReduceOp::kSum, g().binary(Op::kMul, part, part), {k2});
  const Node* scale =
      g().unary(Op::kRecip,
                g().unary(Op::kSqrt, g().binary(Op::kAdd, squares, g().constant(DType::kF32, 1))));
  const Node* result = g().binary(Op::kMul, centred(own), scale);
  if (chance(60))
    result = g().binary(Op::kMul, result, converted(load_dense(t, {row}), DType::kF32));
  out_.tolerance = is_centred ? 1e-5 : 0;  // squares of centred values may be beyond 2^24
  store(converted(result, t), t);
}

/// Any axes of up to four loops summed away, the others in any order.
void Pattern::reduction() {
  std::vector<Loop> kept, gone;
  const size_t loops = 1 + pick(4);
  for (size_t i = 0; i < loops; ++i) {
    const bool stays = chance(55);
    (stays ? kept : gone).push_back(stays ? output(100) : inner(130));
  }
  if (gone.empty()) gone.push_back(inner(200));
  const Types t = product_types();
  std::vector<Loop> all = with(gone, kept);
  const Node* x = operand(t.left, t.sum, all);
  if (chance(30)) x = g().binary(Op::kMul, x, operand(t.right, t.sum, chance(50) ? all : gone));
  static constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kMax,
                                      ReduceOp::kMin};
  store(epilogue(reduce(kOps[pick(4)], x, gone), t.out, kept), t.out);
}

void Pattern::elementwise() {
  std::vector<Loop> loops;
  const bool is_long = chance(25);  // whole blocks, stored past caches
  const size_t count = is_long ? 1 : 1 + pick(4);
  for (size_t i = 0; i < count; ++i)
    loops.push_back(is_long ? output_of(int64_t{1024} << pick(7)) : output(200));
  const DType t = any_of({DType::kF32, DType::kF32, DType::kF16, DType::kI8, DType::kF64});
  const Node* x = load_dense(t, shuffled(loops));
  const size_t steps = pick(6);
  for (size_t i = 0; i < steps; ++i) {
    const Node* y = load_dense(t, chance(50) ? shuffled(loops) : subset(loops));
    static constexpr std::array kOps = {Op::kAdd, Op::kSub, Op::kMul, Op::kMax};
    x = g().binary(kOps[pick(4)], x, y);
  }
  store(x, t);
}

/// Axes in another order, with or without something else on the way.
void Pattern::transposition() {
  budget_ = kMostWork;
  const bool is_large = chance(40);
  const auto loop = [&] { return is_large ? output_of(128 + range_of(90)) : output(130); };
  std::vector<Loop> loops{loop(), loop()};
  if (!is_large && chance(40)) loops.push_back(output(130));
  const DType t = any_of({DType::kF32, DType::kF32, DType::kF16, DType::kI8, DType::kI32});
  std::vector<Loop> other = loops;
  std::reverse(other.begin(), other.end());
  if (chance(30)) std::swap(other[0], other[1]);
  const Node* x = load_dense(t, other);
  if (chance(30)) x = g().binary(Op::kAdd, x, load_dense(t, chance(50) ? loops : subset(loops)));
  store(chance(70) ? x : epilogue(x, t, loops), t);
}

void Pattern::gather() {
  const Loop outer = output(20), row = output(40), column = output(33);
  const int64_t rows = 1 + static_cast<int64_t>(pick(50));
  const DType t = any_of({DType::kF32, DType::kF16, DType::kI8});
  const Node* wanted = g().cast(load_dense(DType::kI32, present({outer, row})), DType::kI64);
  const Node* inside = g().both(g().less(g().index(-1), wanted), g().less(wanted, g().index(rows)));
  const Node* index = g().add(g().mul(wanted, column.most), column.range);
  const Node* picked = load(t, index, rows * column.most, inside);
  store(chance(50) ? picked : epilogue(picked, t, {outer, row, column}), t);
}

/// Scans along any loop, with a prologue and an epilogue.
void Pattern::running() {
  using enum DType;
  std::vector<Loop> loops;
  const size_t count = 1 + pick(3);
  for (size_t i = 0; i < count; ++i) loops.push_back(output(300));
  const Loop along = loops[pick(count)];
  const DType t = any_of({kF32, kF32, kF16, kBF16, kF64, kI8, kU8, kI16, kI32, kI64, kU64});
  static constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin,
                                      ReduceOp::kProd};
  const ReduceOp op = kOps[pick(is_float(t) ? 3 : 4)];
  const Node* x = load_dense(t, shuffled(loops));
  if (chance(30)) x = g().binary(Op::kMax, x, load_dense(t, subset(loops)));
  if (chance(5)) x = g().constant(t, 1);
  if (is_half_like(t)) small_ = 1;
  const Node* scanned = g().scan(op, x, along.range);
  if (chance(10)) scanned = g().binary(Op::kAdd, scanned, g().scan(ReduceOp::kMax, x, along.range));
  store(chance(60) ? scanned : epilogue(scanned, t, loops), t);
}

/// The first few of a row in order.
void Pattern::least() {
  const Loop outer = chance(80) ? output(40) : Loop{};
  const Loop row = inner(300);
  const Loop number = output_of(1 + static_cast<int64_t>(pick(chance(20) ? 70 : 12)));
  const bool is_wide = chance(50);
  const DType t = any_of({DType::kI32, DType::kI64, DType::kI8});
  const Node* x = g().cast(load_dense(t, with({row}, {outer}), is_wide), DType::kI64);
  if (chance(50)) x = g().binary(Op::kOr, g().binary(Op::kShl, x, g().index(32)), row.range);
  const Node* found = g().top_k(x, row.range, number.range);
  store(chance(50) ? found : g().binary(Op::kAnd, found, g().index(0xffff)), DType::kI64);
}

/// Running sums and maxima: a reduction whose length is the place in the row.
void Pattern::scan() {
  const Loop outer = output(20), row = output(130);
  const Loop k = {same_extent(row), row.most};
  budget_ /= std::max<int64_t>(row.most, 1);
  const DType t = any_of({DType::kF32, DType::kI32, DType::kI8});
  const DType sum = t == DType::kI8 ? DType::kI32 : t;
  const Node* at = g().add(g().mul(outer.range, row.most), k.range);
  const bool is_max = chance(30);
  const Node* neutral = is_max ? g().constant(sum, -100) : g().constant(sum, 0);
  const Node* x = converted(load(t, at, outer.most * row.most, nullptr), sum);
  const Node* masked = g().select(g().less(row.range, k.range), neutral, x);
  store(reduce(is_max ? ReduceOp::kMax : ReduceOp::kSum, masked, {k}), sum);
}

}  // namespace bm::test
