// Float values are small whole numbers and sums stay below what a float counts exactly, so that
// every order of additions, every tile and every dot product gives the same bits. Where a schedule
// may move a division out of a sum, a tolerance is allowed.
#include <array>
#include <cstring>

#include "runtime/base/half.h"
#include "tests/unit/codegen/random_kernel.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;
using ir::ReduceOp;

/// The reference interprets every iteration.
constexpr int64_t kMostWork = 60'000;

/// One loop of a pattern: its extent, drawn, perhaps a variable.
struct Loop {
  const Node* range = nullptr;
  int64_t most = 1;
};

class Pattern {
 public:
  explicit Pattern(uint64_t seed) : random_(seed) {
    out_.kernel.name = "p";
    out_.kernel.graph = std::make_unique<ir::Graph>();
  }

  RandomKernel run(void (Pattern::*make)()) {
    // One in eight is as large as the reference bears, so that blocked schedules have blocks.
    budget_ = chance(12) ? kMostWork : 200 + static_cast<int64_t>(pick(6000));
    (this->*make)();
    for (size_t p = 0; p < out_.kernel.params.size(); ++p) fill(p);
    return std::move(out_);
  }

  void matmul() {
    const Loop batch = chance(30) ? output(4) : Loop{};
    const Loop m = output(130), n = output(130), k = inner(130);
    const Loop k2 = chance(15) ? inner(9) : Loop{};
    const Types t = product_types();
    const std::vector<Loop> depth = k2.range ? std::vector{k, k2} : std::vector{k};
    const Node* left = operand(t.left, t.sum, with(depth, {batch, m}));
    const Node* right =
        operand(t.right, t.sum, with(depth, chance(20) ? std::vector{n} : std::vector{batch, n}));
    const Node* sum = sum_of(g().binary(Op::kMul, left, right), depth);
    store(epilogue(sum, t.out, {batch, m, n}), t.out);
  }

  void convolution() {
    const int64_t groups = chance(30) ? 1 + static_cast<int64_t>(pick(5)) : 1;
    const Loop image = chance(30) ? output(3) : Loop{};
    const Loop group = groups > 1 ? output_of(groups) : Loop{};
    const Loop o = chance(25) ? Loop{} : output(33);  // none: depthwise
    const Loop y = output(17), x = output(33);
    const Loop c = chance(25) ? Loop{} : inner(17);
    const Loop ky = inner(4), kx = inner(4);
    const int64_t step = chance(40) ? 2 : 1, spread = chance(20) ? 2 : 1,
                  pad = static_cast<int64_t>(pick(3));
    const Types t = product_types();
    const auto place = [&](const Loop& out, const Loop& tap) {
      return g().add(g().add(g().mul(out.range, step), g().mul(tap.range, spread)),
                     g().index(-pad));
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

  /// Softmax over powers of two: everything but the division is exact.
  void softmax() {
    const Loop outer = output(9), row = output(130);
    const DType t = row_type();
    const auto value = [&](const Loop& column) {
      return converted(load_dense(t, with({column}, {outer})), DType::kF32);
    };
    out_.tolerance = 2e-6;
    const Node* own = value(row);
    const auto again = [&] { return same_row(own, row); };
    const auto [inner_max, k1] = again();
    const Node* most = reduce(ReduceOp::kMax, inner_max, {k1});
    const auto [inner_exp, k2] = again();
    const Node* total =
        reduce(ReduceOp::kSum, g().unary(Op::kExp2, g().binary(Op::kSub, inner_exp, most)), {k2});
    const Node* power = g().unary(Op::kExp2, g().binary(Op::kSub, own, most));
    const Node* result = chance(30)   ? g().binary(Op::kAdd, g().unary(Op::kLog2, total), most)
                         : chance(50) ? g().binary(Op::kDiv, power, total)
                                      : g().binary(Op::kMul, power, g().unary(Op::kRecip, total));
    store(converted(result, t), t);
  }

  /// Norms over rows: sums and sums of squares of whole numbers.
  void norm() {
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
    const Node* scale = g().unary(
        Op::kRecip,
        g().unary(Op::kSqrt, g().binary(Op::kAdd, squares, g().constant(DType::kF32, 1))));
    const Node* result = g().binary(Op::kMul, centred(own), scale);
    if (chance(60))
      result = g().binary(Op::kMul, result, converted(load_dense(t, {row}), DType::kF32));
    out_.tolerance = is_centred ? 1e-5 : 0;  // squares of centred values may be beyond 2^24
    store(converted(result, t), t);
  }

  /// out[h, q, d] = Σ_k softmax(q·k)·v, scores and powers exact.
  void attention() {
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

  /// Any axes of up to four loops summed away, the others in any order.
  void reduction() {
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

  void elementwise() {
    std::vector<Loop> loops;
    const size_t count = 1 + pick(4);
    for (size_t i = 0; i < count; ++i) loops.push_back(output(200));
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

  void gather() {
    const Loop outer = output(20), row = output(40), column = output(33);
    const int64_t rows = 1 + static_cast<int64_t>(pick(50));
    const DType t = any_of({DType::kF32, DType::kF16, DType::kI8});
    const Node* wanted = g().cast(load_dense(DType::kI32, present({outer, row})), DType::kI64);
    const Node* inside =
        g().both(g().less(g().index(-1), wanted), g().less(wanted, g().index(rows)));
    const Node* index = g().add(g().mul(wanted, column.most), column.range);
    const Node* picked = load(t, index, rows * column.most, inside);
    store(chance(50) ? picked : epilogue(picked, t, {outer, row, column}), t);
  }

  /// Scans along any loop, with a prologue and an epilogue.
  void running() {
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
    if (chance(10))
      scanned = g().binary(Op::kAdd, scanned, g().scan(ReduceOp::kMax, x, along.range));
    store(chance(60) ? scanned : epilogue(scanned, t, loops), t);
  }

  /// The first few of a row in order.
  void least() {
    const Loop outer = chance(80) ? output(40) : Loop{};
    const Loop row = inner(300);
    const Loop number = output_of(1 + static_cast<int64_t>(pick(chance(20) ? 70 : 12)));
    const bool is_wide = chance(50);
    const DType t = any_of({DType::kI32, DType::kI64, DType::kI8});
    const Node* x = g().cast(load_dense(t, with({row}, {outer}), is_wide), DType::kI64);
    if (chance(50)) x = g().binary(Op::kOr, g().binary(Op::kShl, x, g().index(32)), row.range);
    const Node* found = g().least(x, row.range, number.range);
    store(chance(50) ? found : g().binary(Op::kAnd, found, g().index(0xffff)), DType::kI64);
  }

  /// Running sums and maxima: a reduction whose length is the place in the row.
  void scan() {
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

  /// Blocks of 8-bit or 4-bit weights with a scale each, times activations of either kind.
  void quantised() {
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
        load_dense(is_float ? DType::kF32 : DType::kI8, with({block, lane}, {tokens}), !is_float),
        t);
    const Node* dot = reduce(ReduceOp::kSum, g().binary(Op::kMul, g().cast(weight, t), x), {lane});
    const DType scale_type = chance(60) ? DType::kF16 : DType::kF32;
    const Node* scale = converted(load_dense(scale_type, {row, block}), DType::kF32);
    const Node* part = g().binary(Op::kMul, scale, g().cast(dot, DType::kF32));
    if (!is_float && chance(60))
      part = g().binary(Op::kMul, part, load_dense(DType::kF32, with({block}, {tokens})));
    out_.tolerance = 1e-5;  // the sum of the blocks is a float's
    store(epilogue(reduce(ReduceOp::kSum, part, {block}), DType::kF32, {row, tokens}), DType::kF32);
  }

 private:
  struct Types {
    DType left, right, sum, out;
  };

  uint64_t pick(uint64_t n) { return random_() % n; }
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
    const Node* index = g().index(chance(20) ? static_cast<int64_t>(pick(9)) : 0);
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
    return converted(x, out);
  }

  void store(const Node* value, DType t) {
    const Node* index = g().index(0);
    int64_t elements = 1;
    const std::vector<Loop> order = chance(15) ? shuffled(outputs_) : outputs_;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      index = g().add(index, g().mul(it->range, elements));
      elements *= std::max<int64_t>(it->most, 1);
    }
    value = converted(value, t);
    const Node* gate = nullptr;
    if (chance(5) && !order.empty())
      gate = g().less(order.front().range, g().index(std::max<int64_t>(order.front().most - 1, 1)));
    if (gate && gate->is_const()) gate = nullptr;
    const int into = static_cast<int>(out_.kernel.params.size());
    out_.kernel.params.push_back({.dtype = t, .elements = elements, .is_written = true});
    is_wide_.resize(out_.kernel.params.size(), false);
    out_.kernel.stores.push_back({.param = into, .index = index, .value = value, .gate = gate});
    if (out_.kernel.ranges.size() > 1 && chance(10))
      std::shuffle(out_.kernel.ranges.begin(), out_.kernel.ranges.end(), random_);
  }

  void fill(size_t p) {
    const ir::Param& param = out_.kernel.params[p];
    const auto size = static_cast<size_t>(item_size(param.dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(param.elements) * size);
    for (size_t i = 0; i < bytes.size(); i += size) {
      int64_t v = static_cast<int64_t>(pick(2 * static_cast<uint64_t>(small_) + 1)) - small_;
      if (is_wide_[p]) v = static_cast<int64_t>(random_());
      if (is_unsigned(param.dtype) && !is_wide_[p]) v = std::abs(v);
      const auto f = static_cast<float>(v);
      const uint64_t bits = param.dtype == DType::kF64    ? std::bit_cast<uint64_t>(double{f})
                            : param.dtype == DType::kF32  ? std::bit_cast<uint32_t>(f)
                            : param.dtype == DType::kF16  ? f32_to_f16(f)
                            : param.dtype == DType::kBF16 ? f32_to_bf16(f)
                                                          : static_cast<uint64_t>(v);
      std::memcpy(&bytes[i], &bits, size);
    }
    out_.buffers.push_back(std::move(bytes));
  }

  std::mt19937_64 random_;
  RandomKernel out_;
  std::vector<Loop> outputs_;
  std::vector<bool> is_wide_;
  int64_t budget_ = 1;
  int64_t small_ = 3;
};

struct Row {
  std::string_view name;
  void (Pattern::*make)();
};
constexpr std::array kPatterns = {Row{"matmul", &Pattern::matmul},
                                  Row{"convolution", &Pattern::convolution},
                                  Row{"softmax", &Pattern::softmax},
                                  Row{"matmul", &Pattern::matmul},
                                  Row{"norm", &Pattern::norm},
                                  Row{"attention", &Pattern::attention},
                                  Row{"reduction", &Pattern::reduction},
                                  Row{"quantised", &Pattern::quantised},
                                  Row{"elementwise", &Pattern::elementwise},
                                  Row{"gather", &Pattern::gather},
                                  Row{"scan", &Pattern::scan},
                                  Row{"running", &Pattern::running},
                                  Row{"least", &Pattern::least},
                                  Row{"matmul", &Pattern::matmul}};

}  // namespace

std::string_view pattern_name(uint64_t seed) { return kPatterns[seed % kPatterns.size()].name; }

RandomKernel random_pattern(uint64_t seed) {
  return Pattern(seed).run(kPatterns[seed % kPatterns.size()].make);
}

}  // namespace bm::test
