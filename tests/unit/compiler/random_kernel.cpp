#include "tests/unit/compiler/random_kernel.h"

#include <array>
#include <cstring>

#include "runtime/base/half.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

constexpr std::array kAllTypes = {DType::kBool, DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                                  DType::kI32,  DType::kU32, DType::kI64, DType::kU64, DType::kF16,
                                  DType::kBF16, DType::kF32, DType::kF64};

/// The reference interprets every iteration.
constexpr int64_t kMaxIterations = 20'000;

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {
    out_.kernel.name = "k";
    out_.kernel.graph = std::make_unique<ir::Graph>();
  }

  RandomKernel run() {
    if (chance(30)) add_variable();
    const int num_ranges = static_cast<int>(pick(4));
    for (int i = 0; i < num_ranges; ++i) out_.kernel.ranges.push_back(new_range());
    visible_ = out_.kernel.ranges;
    const int num_stores = 1 + static_cast<int>(chance(25));
    for (int i = 0; i < num_stores; ++i) add_store();
    for (size_t p = 0; p < out_.kernel.params.size(); ++p) fill(p);
    return std::move(out_);
  }

 private:
  uint64_t pick(uint64_t n) { return random_() % n; }
  bool chance(unsigned percent) { return pick(100) < percent; }
  ir::Graph& g() { return *out_.kernel.graph; }
  DType any_type() { return kAllTypes[pick(kAllTypes.size())]; }

  void add_variable() {
    const int64_t max = 1 + static_cast<int64_t>(pick(70));
    out_.kernel.vars.push_back({.name = "n", .min = 0, .max = max});
    out_.vars.push_back(static_cast<int64_t>(pick(static_cast<uint64_t>(max) + 1)));
  }

  const Node* new_range() {
    static constexpr std::array<int64_t, 16> kExtents = {1,  2,  3,  4,  5,  7,  8,  13,
                                                         16, 17, 24, 31, 33, 64, 67, 100};
    if (!out_.vars.empty() && chance(40) && budget_ * out_.kernel.vars[0].max <= kMaxIterations) {
      const ir::VarDecl& v = out_.kernel.vars[0];
      budget_ *= v.max;
      const Node* n = g().var(0, v.min, v.max);
      return g().range(chance(50) ? n : g().add(n, static_cast<int64_t>(pick(5))));
    }
    // The product of all extents stays small enough for the reference.
    int64_t extent = kExtents[pick(kExtents.size())];
    while (extent > 1 && budget_ * extent > kMaxIterations) extent /= 2;
    budget_ *= extent;
    return g().range(g().index(extent));
  }

  int64_t largest(const Node* range) const {
    return range->src[0]->is_const() ? range->src[0]->imm : range->src[0]->hi;
  }

  /// Index that gives every iteration of `ranges` an element of its own, and the number of
  /// elements.
  const Node* dense_index(const std::vector<const Node*>& ranges, int64_t* elements) {
    std::vector<const Node*> order(ranges);
    if (chance(20)) std::shuffle(order.begin(), order.end(), random_);
    const Node* index = g().index(0);
    *elements = 1;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      index = g().add(index, g().mul(*it, *elements));
      *elements *= std::max<int64_t>(largest(*it), 1);
    }
    return index;
  }

  void add_store() {
    const DType t = any_type();
    int64_t elements = 0;
    const Node* index = dense_index(out_.kernel.ranges, &elements);
    const Node* value = expression(t, 3 + static_cast<int>(pick(3)));
    const Node* gate = chance(20) ? expression(DType::kBool, 2) : nullptr;
    out_.kernel.stores.push_back({.param = static_cast<int>(out_.kernel.params.size()),
                                  .index = index,
                                  .value = value,
                                  .gate = gate});
    out_.kernel.params.push_back({.dtype = t, .elements = elements, .is_written = true});
  }

  /// Index expression over visible ranges with largest value below *elements.
  const Node* load_index(int64_t* elements) {
    const Node* index = g().index(static_cast<int64_t>(pick(3)));
    int64_t top = index->imm;
    for (const Node* r : visible_) {
      if (chance(35)) continue;
      const int64_t last = std::max<int64_t>(largest(r) - 1, 0);
      static constexpr std::array<int64_t, 6> kStrides = {1, 1, 1, 2, 17, 64};
      int64_t s = kStrides[pick(kStrides.size())];
      switch (pick(8)) {
        case 0: {  // backwards
          index = g().add(index, g().sub(g().index(last), r));
          top += last;
          break;
        }
        case 1: {
          const int64_t d = 2 + static_cast<int64_t>(pick(9));
          index = g().add(index, g().div(r, d));
          top += last / d;
          break;
        }
        case 2: {
          const int64_t d = 2 + static_cast<int64_t>(pick(63));
          index = g().add(index, g().mul(g().mod(r, d), s));
          top += std::min(last, d - 1) * s;
          break;
        }
        default: index = g().add(index, g().mul(r, s)); top += last * s;
      }
    }
    *elements = top + 1;
    return index;
  }

  const Node* load(DType t) {
    int64_t elements = 0;
    const Node* index = load_index(&elements);
    const Node* gate = nullptr;
    if (!visible_.empty() && chance(30)) {
      // Padding: shifted index, gate where it is inside.
      const int64_t shift = 1 + static_cast<int64_t>(pick(3));
      index = g().sub(index, g().index(shift));
      gate = g().less(g().index(-1), index);
      if (chance(50)) {
        const int64_t fewer =
            std::max<int64_t>(1, elements - shift - static_cast<int64_t>(pick(4)));
        gate = g().both(gate, g().less(index, g().index(fewer)));
        elements = fewer;
      }
    }
    const int param = static_cast<int>(out_.kernel.params.size());
    out_.kernel.params.push_back({.dtype = t, .elements = elements, .is_read = true});
    if (gate && gate->is_const()) gate = gate->imm ? nullptr : gate;
    return g().load(param, t, index, gate);
  }

  const Node* leaf(DType t) {
    if (!visible_.empty() && chance(15)) return g().cast(visible_[pick(visible_.size())], t);
    if (chance(20)) return g().constant(t, static_cast<int64_t>(pick(9)) - 4);
    return load(t);
  }

  const Node* reduction(DType t) {
    std::vector<const Node*> ranges{new_range()};
    if (chance(30)) ranges.push_back(new_range());
    const std::vector<const Node*> outer = visible_;
    visible_.insert(visible_.end(), ranges.begin(), ranges.end());
    const auto op = static_cast<ir::ReduceOp>(pick(4));
    const bool is_order_free = op == ir::ReduceOp::kMax || op == ir::ReduceOp::kMin || !is_float(t);
    const Node* value = nullptr;
    if (is_order_free) {
      value = expression(t, 2);
    } else if (op == ir::ReduceOp::kProd) {
      value = g().select(expression(DType::kBool, 1), g().constant(t, 1), g().constant(t, -1));
    } else {
      // At most a few hundred terms of at most 16: exact in float32, and in float64 before
      // rounding.
      const auto small = [&] {
        return g().cast(g().binary(Op::kMod, load(DType::kI8), g().constant(DType::kI8, 4)), t);
      };
      value = chance(60) ? g().binary(Op::kMul, small(), small()) : small();
    }
    visible_ = outer;
    return g().reduce(op, value, ranges);
  }

  const Node* expression(DType t, int depth) {
    if (depth <= 0) return leaf(t);
    if (reduces_ < 3 && chance(15)) {
      ++reduces_;
      return reduction(t);
    }
    const auto sub = [&](DType s) { return expression(s, depth - 1); };
    const unsigned kind = static_cast<unsigned>(pick(10));
    if (kind == 0) return leaf(t);
    if (kind == 1) return g().cast(sub(any_type()), t);
    if (kind == 2) return g().select(sub(DType::kBool), sub(t), sub(t));
    // float64 without hardware may differ where products underflow: edge_test covers it with
    // hardware.
    if (kind == 3 && t == DType::kF32) return g().fma(sub(t), sub(t), sub(t));
    if (kind == 4) {
      if (is_bool(t)) return g().unary(Op::kNot, sub(t));
      if (is_int(t)) return g().unary(chance(50) ? Op::kNeg : Op::kNot, sub(t));
      static constexpr std::array kUnary = {Op::kNeg, Op::kRecip, Op::kSqrt, Op::kTrunc};
      return g().unary(kUnary[pick(kUnary.size())], sub(t));
    }
    if (kind == 5) {
      // Not from floats: the payload of a NaN is nobody's promise.
      for (DType from : kAllTypes)
        if (from != t && is_int(from) && !is_bool(t) && item_size(from) == item_size(t) &&
            chance(40))
          return g().bitcast(sub(from), t);
    }
    if (is_bool(t) && chance(60)) {
      static constexpr std::array kCompare = {Op::kLt, Op::kEq, Op::kNe};
      const DType in = any_type();
      return g().binary(kCompare[pick(kCompare.size())], sub(in), sub(in));
    }
    if (is_float(t)) {
      static constexpr std::array kFloat = {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv,
                                            Op::kMax, Op::kMin, Op::kMod};
      return g().binary(kFloat[pick(kFloat.size())], sub(t), sub(t));
    }
    if (is_bool(t)) {
      static constexpr std::array kBool = {Op::kAnd, Op::kOr, Op::kXor};
      return g().binary(kBool[pick(kBool.size())], sub(t), sub(t));
    }
    static constexpr std::array kInt = {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMod, Op::kMax,
                                        Op::kMin, Op::kAnd, Op::kOr,  Op::kXor, Op::kShl, Op::kShr};
    return g().binary(kInt[pick(kInt.size())], sub(t), sub(t));
  }

  void fill(size_t p) {
    const ir::Param& param = out_.kernel.params[p];
    const auto n = static_cast<size_t>(param.elements);
    const auto size = static_cast<size_t>(item_size(param.dtype));
    std::vector<std::byte> bytes(n * size);
    for (size_t i = 0; i < n; ++i) write(param.dtype, &bytes[i * size]);
    out_.buffers.push_back(std::move(bytes));
  }

  /// Mostly small values, sometimes any bit pattern.
  void write(DType t, std::byte* at) {
    const auto size = static_cast<size_t>(item_size(t));
    uint64_t bits = random_();
    if (is_bool(t))
      bits &= 1;
    else if (!chance(25)) {
      const auto v = static_cast<int64_t>(pick(41)) - 20;
      const double f = static_cast<double>(v) / 4;
      bits = t == DType::kF64    ? std::bit_cast<uint64_t>(f)
             : t == DType::kF32  ? std::bit_cast<uint32_t>(static_cast<float>(f))
             : t == DType::kF16  ? f32_to_f16(static_cast<float>(f))
             : t == DType::kBF16 ? f32_to_bf16(static_cast<float>(f))
                                 : static_cast<uint64_t>(v);
    }
    std::memcpy(at, &bits, size);
  }

  std::mt19937_64 random_;
  RandomKernel out_;
  std::vector<const Node*> visible_;
  int64_t budget_ = 1;
  int reduces_ = 0;
};

}  // namespace

RandomKernel random_kernel(uint64_t seed) { return Generator(seed).run(); }

}  // namespace bm::test
