// Patterns of products: of matrices, convolutions, quantised matrices, attention.
#include <cmath>

#include "tests/unit/compiler/random_pattern.h"

namespace bm::test {

void Pattern::matmul() {
  // Deep ones have room for blocks of registers, others for many rows and columns, or many columns
  // of a few rows.
  const bool is_strip = is_flat_, is_deep = !is_strip && chance(50);
  if (is_deep || is_strip) budget_ = kMostWork;
  const Loop deep = is_deep ? inner(130) : is_strip ? inner_of(40 + range_of(30)) : Loop{};
  const Loop batch = chance(30) && !is_strip ? output(4) : Loop{};
  const Loop m = is_strip ? output_of(1 + range_of(3)) : output(130);
  const Loop n =
      is_strip ? output_of(33000 / (deep.most * m.most) + 1 + range_of(60)) : output(130);
  const Loop k = deep.range ? deep : inner(130);
  const Loop k2 = chance(15) ? inner(9) : Loop{};
  const Types t = product_types();
  const std::vector<Loop> depth = k2.range ? std::vector{k, k2} : std::vector{k};
  const Node* left = operand(t.left, t.sum, with(depth, {batch, m}));
  std::vector<Loop> right_loops = with(depth, chance(20) ? std::vector{n} : std::vector{batch, n});
  if (is_strip && chance(70)) std::reverse(right_loops.begin(), right_loops.end());
  const Node* right = operand(t.right, t.sum, right_loops);
  const Node* sum = sum_of(g().binary(Op::kMul, left, right), depth);
  store(epilogue(sum, t.out, {batch, m, n}), t.out);
}

void Pattern::few_rows() {
  is_flat_ = true;
  matmul();
}

/// Few results and as long a K as the reference bears: for GEMM that splits K.
void Pattern::long_k() {
  budget_ = kMostWork;
  const Loop batch = chance(20) ? output_of(2) : Loop{};
  const Loop m = output_of(2 + range_of(5)), n = output_of(2 + range_of(5));
  const int64_t longest = kMostWork / (m.most * n.most * std::max<int64_t>(batch.most, 1));
  const Loop k = inner_of(512 + range_of(static_cast<uint64_t>(longest - 511)));
  const Loop k2 = chance(10) ? inner_of(2) : Loop{};
  const std::vector<Loop> depth = k2.range ? std::vector{k, k2} : std::vector{k};
  const Types t = product_types();
  const Node* left = operand(t.left, t.sum, with(depth, {batch, m}));
  const Node* right = operand(t.right, t.sum, with(depth, {batch, n}));
  const Node* sum = sum_of(g().binary(Op::kMul, left, right), depth);
  store(epilogue(sum, t.out, {batch, m, n}), t.out);
}

void Pattern::convolution() {
  const int64_t groups = chance(30) ? 1 + static_cast<int64_t>(pick(5)) : 1;
  const Loop image = chance(30) ? output(3) : Loop{};
  const Loop group = groups > 1 ? output_of(groups) : Loop{};
  const Loop o = chance(25) ? Loop{} : output(33);  // none: depthwise
  const Loop y = output(17), x = output(33);
  const Loop c = chance(25) ? Loop{} : inner(17);
  const Loop ky = inner(4), kx = inner(4);
  convolve({image, group, o, y, x, c, ky, kx});
}

/// Convolutions of enough work for tiles, over fewer pixels than two vectors have lanes as well.
void Pattern::windows() {
  budget_ = kMostWork;
  const Loop o = output_of(16 + range_of(24));
  const Loop y = output_of(3 + range_of(6)), x = output_of(4 + range_of(10));
  const int64_t taps = 1 + range_of(3);
  const int64_t work = o.most * y.most * x.most * taps * taps;
  const Loop c = inner_of(33'000 / work + 1 + range_of(4));
  convolve({{}, {}, o, y, x, c, inner_of(taps), inner_of(taps)});
}

void Pattern::convolve(const Windows& loops) {
  const auto& [image, group, o, y, x, c, ky, kx] = loops;
  const int64_t step = chance(40) ? 2 : 1, spread = chance(20) ? 2 : 1,
                pad = static_cast<int64_t>(pick(3));
  const Types t = product_types();
  const auto place = [&](const Loop& out, const Loop& tap) {
    return g().add(g().add(g().mul(out.range, step), g().mul(tap.range, spread)), g().index(-pad));
  };
  const auto span = [&](const Loop& out, const Loop& tap) {
    return std::max<int64_t>((out.most - 1) * step + (tap.most - 1) * spread + 1 - pad, 1);
  };
  const Node *row = place(y, ky), *column = place(x, kx);
  const int64_t height = span(y, ky), width = span(x, kx);
  // Channels in front or last.
  std::vector<Loop> outer = present({image, group});
  const bool is_last = chance(40);
  int64_t stride = 1, channel_stride = 0;
  if (c.range && is_last) {
    channel_stride = stride;
    stride *= c.most;
  }
  const Node* index = g().add(g().mul(column, stride), g().mul(row, stride * width));
  stride *= width * height;
  if (c.range && !is_last) {
    channel_stride = stride;
    stride *= c.most;
  }
  if (c.range) index = g().add(index, g().mul(c.range, channel_stride));
  for (auto it = outer.rbegin(); it != outer.rend(); ++it) {
    index = g().add(index, g().mul(it->range, stride));
    stride *= it->most;
  }
  const Node* inside = g().both(inside_of(row, height), inside_of(column, width));
  const Node* image_value = converted(load(t.left, index, stride, inside), t.sum);
  const std::vector<Loop> depth = present({c, ky, kx});
  const Node* weight = operand(t.right, t.sum, with(depth, {group, o}));
  const Node* sum = sum_of(g().binary(Op::kMul, image_value, weight), depth);
  store(epilogue(sum, t.out, {image, group, o, y, x}), t.out);
}

/// Blocks of 8-bit or 4-bit weights with a scale each, times activations of either kind.
void Pattern::quantised() {
  const Loop row = output(70), tokens = chance(50) ? output(9) : Loop{};
  const int64_t length = chance(70) ? 32 : 8 << pick(3);
  const Loop block = inner(8);
  const Loop lane = inner_of(length);
  const bool is_nibble = chance(50);
  const Node* weight = nullptr;
  if (is_nibble) {
    // The lower halves of the bytes come first, then the upper ones.
    const Node* half = g().mod(lane.range, length / 2);
    const Node* byte = load(
        DType::kU8,
        g().add(g().mul(g().add(g().mul(row.range, block.most), block.range), length / 2), half),
        row.most * block.most * (length / 2), nullptr, true);
    const Node* low = g().binary(Op::kAnd, byte, g().constant(DType::kU8, 15));
    const Node* high = g().binary(Op::kShr, byte, g().constant(DType::kU8, 4));
    const Node* nibble = g().select(g().less(lane.range, g().index(length / 2)), low, high);
    weight = g().binary(Op::kSub, g().cast(nibble, DType::kI32), g().constant(DType::kI32, 8));
  } else {
    weight = g().cast(load_dense(DType::kI8, {row, block, lane}, true), DType::kI32);
  }
  const bool is_float = chance(30);
  const DType t = is_float ? DType::kF32 : DType::kI32;
  const Node* x = converted(
      load_dense(is_float ? DType::kF32 : DType::kI8, with({block, lane}, {tokens}), !is_float), t);
  const Node* dot = reduce(ReduceOp::kSum, g().binary(Op::kMul, g().cast(weight, t), x), {lane});
  const DType scale_type = chance(60) ? DType::kF16 : DType::kF32;
  const Node* scale = converted(load_dense(scale_type, {row, block}), DType::kF32);
  const Node* part = g().binary(Op::kMul, scale, g().cast(dot, DType::kF32));
  if (!is_float && chance(60))
    part = g().binary(Op::kMul, part, load_dense(DType::kF32, with({block}, {tokens})));
  out_.tolerance = 1e-5;  // the sum of the blocks is a float's
  store(epilogue(reduce(ReduceOp::kSum, part, {block}), DType::kF32, {row, tokens}), DType::kF32);
}

/// The same with the words of 16 rows side by side, as weights lie after they have been read:
/// inner sums are dot products of words.
void Pattern::repacked() {
  constexpr int64_t kSide = 16;
  const int64_t length = 8 << pick(3);
  const Loop tokens = chance(60) ? output_of(1 + static_cast<int64_t>(pick(18))) : Loop{};
  const Loop row = output_of(chance(85) ? kSide * (1 + static_cast<int64_t>(pick(7))) : 15);
  const Loop block = inner_of(1 + static_cast<int64_t>(pick(5)));
  const int groups = (static_cast<int>(row.most) + 15) / 16;
  const int weights = param(DType::kU8, groups * block.most * length * kSide, true);
  const int halves = chance(40) ? 2 : 1;  // sums that share their words
  const Node* sum = nullptr;
  for (int half = 0; half < halves; ++half) {
    const Loop word = inner_of(length / 4), byte = inner_of(4);
    const Node* column = g().add(g().mul(word.range, 4), byte.range);
    const Node* group = g().add(g().mul(g().div(row.range, kSide), block.most), block.range);
    const Node* line = g().add(g().mul(group, length / 4), word.range);
    const Node* lane = g().add(g().mul(g().mod(row.range, kSide), 4), byte.range);
    const Node* w = g().load(weights, DType::kU8, g().add(g().mul(line, kSide * 4), lane));
    const auto number = [&](int64_t v) { return g().constant(DType::kU8, v); };
    if (halves == 2)
      w = half ? g().binary(Op::kShr, w, number(4)) : g().binary(Op::kAnd, w, number(15));
    else if (chance(20))
      w = g().binary(Op::kXor, g().binary(Op::kShl, w, number(3)), number(0x81));
    const Node* place = g().add(g().mul(block.range, length), column);
    if (tokens.range) place = g().add(place, g().mul(tokens.range, block.most * length));
    const int64_t vectors = std::max<int64_t>(tokens.most, 1) * block.most * length;
    const Node* x = load(DType::kI8, place, vectors, nullptr, true);
    const Node* dot = reduce(
        ReduceOp::kSum, g().binary(Op::kMul, g().cast(w, DType::kI32), g().cast(x, DType::kI32)),
        {word, byte});
    sum = sum ? g().binary(Op::kAdd, sum, dot) : dot;
  }
  if (chance(40)) sum = g().binary(Op::kAdd, sum, load_dense(DType::kI32, with({block}, {tokens})));
  const Node* scale =
      converted(load_dense(chance(60) ? DType::kF16 : DType::kF32, {row, block}), DType::kF32);
  const Node* part = g().binary(Op::kMul, scale, g().cast(sum, DType::kF32));
  if (chance(40))
    part = g().binary(Op::kMul, part, load_dense(DType::kF32, with({block}, {tokens})));
  out_.tolerance = 1e-5;  // the sum of the blocks is a float's
  store(epilogue(reduce(ReduceOp::kSum, part, {block}), DType::kF32, {row, tokens}), DType::kF32);
}

/// out[h, q, d] = Σ_k softmax(q·k)·v, scores and powers exact.
void Pattern::attention() {
  const Loop head = chance(60) ? output(5) : Loop{};
  const Loop query = output(20), column = output(33);
  const DType t = chance(70) ? DType::kF32 : row_type();
  const int64_t shared = head.range && chance(40) ? 2 : 1;  // heads that share keys and values
  const Loop key = inner(67);
  const int64_t deep = 1 + static_cast<int64_t>(pick(5));
  const bool is_causal = chance(50);
  const auto head_index = [&]() -> const Node* {
    return head.range ? g().div(head.range, shared) : g().index(0);
  };
  const int64_t heads = head.range ? (head.most - 1) / shared + 1 : 1;
  const int queries = param(t, std::max<int64_t>(head.most, 1) * query.most * deep);
  const int keys = param(t, heads * key.most * deep),
            values = param(t, heads * key.most * column.most);
  const auto score = [&](const Node* k) {
    const Node* d = g().range(g().index(deep));
    const Node* h = head.range ? head.range : g().index(0);
    const Node* q = g().load(
        queries, t, g().add(g().mul(g().add(g().mul(h, query.most), query.range), deep), d));
    const Node* at = g().add(g().mul(g().add(g().mul(head_index(), key.most), k), deep), d);
    const Node* product = g().binary(Op::kMul, converted(q, DType::kF32),
                                     converted(g().load(keys, t, at), DType::kF32));
    const Node* s = g().reduce(ReduceOp::kSum, product, std::array{d});
    if (!is_causal) return s;
    return g().select(g().less(query.range, k), g().constant_f(DType::kF32, -HUGE_VAL), s);
  };
  const Node *k1 = same_extent(key), *k2 = same_extent(key), *k3 = key.range;
  const Node* most = g().reduce(ReduceOp::kMax, score(k1), std::array{k1});
  const auto power = [&](const Node* k) {
    return g().unary(Op::kExp2, g().binary(Op::kSub, score(k), most));
  };
  const Node* total = g().reduce(ReduceOp::kSum, power(k2), std::array{k2});
  const Node* at =
      g().add(g().mul(g().add(g().mul(head_index(), key.most), k3), column.most), column.range);
  const Node* v = converted(g().load(values, t, at), DType::kF32);
  const Node* share = g().binary(Op::kDiv, power(k3), total);
  const Node* sum = g().reduce(ReduceOp::kSum, g().binary(Op::kMul, share, v), std::array{k3});
  out_.tolerance = is_half_like(t) ? 0.01 : 1e-5;
  small_ = 1;
  store(converted(sum, t), t);
}

}  // namespace bm::test
