// Prefix sums and other scans in one pass.
// Scans: what the iterations of an output loop so far give together stays in registers from
// iteration to iteration.
#include <algorithm>

#include "compiler/program/expr.h"
#include "compiler/schedules/loops/lowering.h"
#include "runtime/base/check.h"

namespace bm::compiler {

namespace {

/// Running accumulators of float32 are kept in float64: what is added to a long sum would lose most
/// of its digits. 16-bit floats accumulate in float32.
DType sum_type(const Node* scan, const TargetInfo& target) {
  const DType t = is_half_like(scan->dtype) ? DType::kF32 : scan->dtype;
  const bool is_long = t == DType::kF32 && scan->reduce_op() == ir::ReduceOp::kSum;
  return is_long && target.has_f64 ? DType::kF64 : t;
}

}  // namespace

/// Register of the scan `n` in the iteration of the loops around it that `env` stands for. It
/// starts neutral whenever the loop that is scanned starts.
uint32_t Scan::register_of(const Node* n, const Env& env, Type type) {
  Env around = env;
  around[e_.number_of(n->src[1])] = 0;
  const auto [it, is_new] = registers_.try_emplace(e_.key(n, around), 0);
  if (is_new) {
    it->second = b_.add_register(type);
    b_.assign(block_, it->second, b_.neutral(n->reduce_op(), type));
  }
  return it->second;
}

/// Every lane combined with those before it.
ValueId Scan::scan_lanes(ir::ReduceOp op, ValueId values) {
  const Type t = b_.type(values);
  for (uint32_t distance = 1; distance < t.lanes; distance *= 2) {
    const ValueId before = b_.concat_shift(b_.neutral(op, t), values, t.lanes - distance);
    values = b_.reduce_step(op, before, values);
  }
  return values;
}

void Scan::start(BlockId block) {
  block_ = block;
  registers_.clear();
}

std::optional<ValueId> Scan::compute(const Node* n, const Env& env) {
  if (n->op != Op::kScan) return std::nullopt;
  return emit(n, env);
}

/// Unrolled iterations come in the order of their iterations, all at once.
ValueId Scan::emit(const Node* n, const Env& env) {
  BM_CHECK(block_ != kNone);
  const uint32_t along = e_.number_of(n->src[1]);
  std::vector<Env> iterations{env};
  for (size_t i = 0; e_.instances() && i < e_.instances()->size(); ++i) {
    Env iteration = env;
    iteration[along] = (*e_.instances())[i][along];
    if (e_.binding(iteration[along]).base == e_.binding(env[along]).base &&
        std::find(iterations.begin(), iterations.end(), iteration) == iterations.end())
      iterations.push_back(std::move(iteration));
  }
  std::sort(iterations.begin(), iterations.end(), [&](const Env& a, const Env& b) {
    return e_.binding(a[along]).offset < e_.binding(b[along]).offset;
  });
  const ir::ReduceOp op = n->reduce_op();
  const DType t = sum_type(n, b_.target());
  const BlockId body = e_.binding(env[along]).block;
  const uint32_t lanes = e_.binding(env[along]).lanes;
  const uint32_t vr = e_.vector_range(e_.dependencies(n), env);
  const uint32_t wide = vr == kNone ? 1 : e_.binding(env[vr]).lanes;
  const uint32_t reg = register_of(n, env, {t, lanes > 1 ? 1 : wide});
  ValueId so_far = b_.read(body, reg);
  for (const Env& iteration : iterations) {
    const Expr element(b_, e_.emit(n->src[0], iteration));
    const ValueId value = e_.splat(Expr(cast(element, t)), wide);
    ValueId result = kNone;
    if (lanes > 1) {
      const ValueId scanned = scan_lanes(op, value);
      result = b_.reduce_step(op, e_.splat(so_far, lanes), scanned);
      so_far = b_.reduce_step(op, so_far, b_.extract(scanned, lanes - 1));
    } else {
      result = so_far = b_.reduce_step(op, so_far, value);
    }
    e_.set_known(n, iteration, b_.cast(result, n->dtype));
  }
  b_.assign(body, reg, so_far);
  return e_.known(n, env);
}

}  // namespace bm::compiler
