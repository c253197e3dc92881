#pragma once
// Expression nodes of one kernel: a hash-consed DAG in an arena. Values are scalars (per iteration
// of the surrounding ranges); vectors appear only later, in codegen.

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compiler/ir/dtype.h"

namespace bm::ir {

/// Operations. Integer arithmetic wraps (two's complement); integer kDiv/kMod truncate toward zero
/// (C semantics) and are undefined only for a zero divisor, which renderers must not turn into a
/// trap: x/0 = 0 and x%0 = 0. Shifts by >= width give 0 (kShr of a negative value: -1 … all sign
/// bits). Float operations are IEEE; no reassociation, no contraction except the explicit kFma.
enum class Op : uint8_t {
  // Leaves.
  kConst,  ///< value in imm (bool, ints) or fimm (floats)
  kVar,    ///< symbolic variable number imm of KernelIr::vars; dtype int64
  kRange,  ///< loop index 0 … src[0]-1; imm = range id, unique in the kernel; dtype int64
  // Memory.
  kLoad,  ///< param imm at element src[0]; with src[1] (bool gate): 0 when the gate is false and
          ///< memory is not touched
  // Reduction over ranges: src[0] = value, src[1…] = kRange nodes; imm = ReduceOp. Accumulates in
  // dtype.
  kReduce,
  // Along an output loop src[1] of the kernel: src[0] of its iterations so far, this one included,
  // combined; imm = ReduceOp. 16-bit floats accumulate in float32.
  kScan,
  // Number src[2] (0, 1, …) of the values that int64 src[0] has over the kRange src[1], smallest
  // first; INT64_MAX where there are fewer.
  kTopK,
  // Unary.
  kNeg,
  kRecip,
  kSqrt,
  kExp2,
  kLog2,
  kSin,
  kTrunc,
  kNot,   ///< bitwise; logical for bool
  kCast,  ///< value conversion; float → int truncates and saturates (NaN → 0); → bool is (x != 0)
  kBitcast,  ///< same size
  // Binary (both operands and the result have one dtype, comparisons give bool).
  kAdd,
  kSub,
  kMul,
  kDiv,  ///< float: IEEE division; integer: truncating
  kMod,  ///< integer remainder with the sign of the dividend; float: C fmod
  kMax,
  kMin,  ///< float: NaN if either operand is NaN
  kAnd,
  kOr,
  kXor,
  kShl,
  kShr,
  kLt,
  kEq,
  kNe,
  // Ternary.
  kSelect,  ///< src[0] bool ? src[1] : src[2]
  kFma,     ///< fused a*b+c, one rounding (float32, float64)
};
inline constexpr int kNumOps = static_cast<int>(Op::kFma) + 1;

enum class ReduceOp : uint8_t { kSum, kProd, kMax, kMin };

/// "const", "var", "range", "load", …
std::string_view op_name(Op op);
std::string_view reduce_op_name(ReduceOp op);
constexpr bool is_unary(Op op) { return op >= Op::kNeg && op <= Op::kBitcast; }
constexpr bool is_binary(Op op) { return op >= Op::kAdd && op <= Op::kNe; }
constexpr bool is_ternary(Op op) { return op >= Op::kSelect; }
constexpr bool is_comparison(Op op) { return op == Op::kLt || op == Op::kEq || op == Op::kNe; }
constexpr bool is_alu(Op op) { return op >= Op::kNeg; }

struct Node {
  Op op = Op::kConst;
  DType dtype = DType::kI64;
  uint32_t id = 0;  ///< creation order in the Graph: sources have smaller ids
  int64_t imm = 0;  ///< constant, var, range id, param or ReduceOp; float constants: bits of fimm
  std::span<const Node* const> src;
  int64_t lo = INT64_MIN;  ///< for integer and bool values: bounds (inclusive) over all iterations
  int64_t hi = INT64_MAX;

  double fimm() const { return std::bit_cast<double>(imm); }
  ReduceOp reduce_op() const { return static_cast<ReduceOp>(imm); }
  bool is_const() const { return op == Op::kConst; }
  bool is_const(int64_t v) const { return op == Op::kConst && !is_float(dtype) && imm == v; }
  /// Ranges that loop inside this node; its src[0] alone depends on them.
  std::span<const Node* const> bound() const {
    if (op == Op::kReduce) return src.subspan(1);
    return op == Op::kTopK ? src.subspan(1, 1) : std::span<const Node* const>{};
  }
};

struct Linear;

/// Arena and only maker of nodes. Every maker simplifies (constants, identities, index arithmetic
/// with range analysis) and hash-conses: equal expressions are the same pointer.
/// Thread: one Graph belongs to one thread at a time.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const Node* constant(DType dtype,
                       int64_t value);  ///< any dtype; wraps integers, converts for floats
  const Node* constant_f(DType dtype,
                         double value);  ///< any dtype; rounds to float32/16 where narrower
  const Node* index(int64_t value) { return constant(DType::kI64, value); }
  const Node* boolean(bool value) { return constant(DType::kBool, value ? 1 : 0); }
  const Node* var(int index, int64_t min, int64_t max);
  /// Fresh loop index with the given extent (int64 expression of constants and vars).
  const Node* range(const Node* extent);
  /// Loop index with a chosen id (for rebuilding graphs); ids must stay unique per kernel.
  const Node* range_with_id(int64_t id, const Node* extent);
  const Node* load(int param, DType dtype, const Node* index, const Node* gate = nullptr);
  const Node* reduce(ReduceOp op, const Node* value, std::span<const Node* const> ranges);
  const Node* scan(ReduceOp op, const Node* value, const Node* range);
  const Node* top_k(const Node* value, const Node* range, const Node* number);
  const Node* unary(Op op, const Node* a);
  const Node* cast(const Node* a, DType dtype);
  const Node* bitcast(const Node* a, DType dtype);
  const Node* binary(Op op, const Node* a, const Node* b);
  const Node* select(const Node* condition, const Node* if_true, const Node* if_false);
  const Node* fma(const Node* a, const Node* b, const Node* c);

  // Shorthands for index arithmetic (int64).
  const Node* add(const Node* a, const Node* b) { return binary(Op::kAdd, a, b); }
  const Node* sub(const Node* a, const Node* b) { return binary(Op::kSub, a, b); }
  const Node* mul(const Node* a, const Node* b) { return binary(Op::kMul, a, b); }
  const Node* add(const Node* a, int64_t b) { return add(a, index(b)); }
  const Node* mul(const Node* a, int64_t b) { return mul(a, index(b)); }
  const Node* div(const Node* a, int64_t b) { return binary(Op::kDiv, a, index(b)); }
  const Node* mod(const Node* a, int64_t b) { return binary(Op::kMod, a, index(b)); }
  const Node* both(const Node* a, const Node* b);  ///< logical and; nullptr means true
  const Node* less(const Node* a, const Node* b) { return binary(Op::kLt, a, b); }

  /// The node `n`, of this graph or another one, on other sources in place of n.src; simplified as
  /// if made anew. The one place that lists what nodes there are.
  const Node* remake(const Node& n, std::span<const Node* const> sources);
  /// Rebuilds `n` with `from[i]` replaced by `to[i]`, simplifying again.
  const Node* substitute(const Node* n, std::span<const Node* const> from,
                         std::span<const Node* const> to);

  size_t size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  const Node* make(Op op, DType dtype, int64_t imm, std::span<const Node* const> src);
  /// Sum of terms and constant in canonical order (atoms by age, constant last).
  const Node* sum_of(Linear linear);
  const Node* simplify_binary(Op op, const Node* a, const Node* b);
  const Node* simplify_sum(Op op, const Node* a, const Node* b);
  const Node* simplify_product(const Node* a, const Node* b);
  const Node* simplify_comparison(Op op, const Node* a, const Node* b);
  const Node* simplify_div(const Node* a, int64_t c);
  const Node* simplify_mod(const Node* a, int64_t c);
};

/// Nodes reachable from `roots`, sources before users.
std::vector<const Node*> topological(std::span<const Node* const> roots);

/// Value of a constant expression of scalars for reference tests and folding: applies `op` to raw
/// constants with the semantics documented at Op. Integer values as int64, floats as double.
struct Scalar {
  DType dtype = DType::kI64;
  int64_t i = 0;
  double f = 0;
};
Scalar fold(Op op, DType dtype, std::span<const Scalar> args);

}  // namespace bm::ir
