#include "compiler/lowering/lower.h"

#include <algorithm>

#include "compiler/lowering/emitter.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

/// Largest value of a launch dimension for the variables a kernel is given, saturated.
int64_t largest(const hal::DimExpr& dim, const std::vector<ir::VarDecl>& vars) {
  int64_t sum = dim.constant;
  for (const hal::DimExpr::Term& t : dim.terms) {
    const int64_t value = t.coefficient > 0 ? vars[t.var].max : vars[t.var].min;
    int64_t product = 0;
    if (__builtin_mul_overflow(t.coefficient, value, &product) ||
        __builtin_add_overflow(sum, product, &sum))
      return INT32_MAX;
  }
  // Rounded up, as DimExpr::evaluate does: one more would make distances from the end negative.
  return std::clamp<int64_t>(sum / dim.divisor + (sum % dim.divisor > 0), 1, INT32_MAX);
}

/// No loop of a reduction is there twice, whatever schedules have made of the kernel's nodes: one
/// index for two loops goes over a diagonal only.
Status check_loops(const ir::KernelIr& kernel) {
  std::vector<const Node*> roots;
  for (const ir::Store& s : kernel.stores) roots.push_back(s.value);
  for (const Node* n : ir::topological(roots)) {
    if (n->op != Op::kReduce) continue;
    for (auto at = n->src.begin(); ++at < n->src.end();)
      if (std::find(n->src.begin() + 1, at, *at) != at)
        return fail(Code::kInternal, "kernel {}: a reduction over one loop twice", kernel.name);
  }
  return {};
}

}  // namespace

Result<Program> lower(const ir::KernelIr& kernel, const Schedule& schedule,
                      const TargetInfo& target) {
  Program program;
  program.name = kernel.name;
  program.params = kernel.params;
  program.num_vars = static_cast<uint32_t>(kernel.vars.size());
  for (const ir::VarDecl& v : kernel.vars) program.var_ranges.emplace_back(v.min, v.max);
  program.block = schedule.block;
  for (size_t axis = 0; axis < schedule.grid.size(); ++axis)
    program.max_groups[axis] = largest(schedule.grid[axis], kernel.vars);
  // "buffers first, then vars": params of the kernel are its buffers.
  const Strategy& strategy = strategy_of(schedule);
  const Rewritten rewritten = strategy.rewritten ? strategy.rewritten(schedule) : Rewritten{};
  const ir::KernelIr& lowered = rewritten.kernel ? *rewritten.kernel : kernel;
  BM_TRY(check_loops(lowered));
  Emitter emitter(lowered, rewritten.roots, schedule, program, target);
  BM_TRY(emitter.check());
  strategy.lower(emitter);
  BM_TRY(verify(program));
  return program;
}

}  // namespace bm::compiler
