#include "tests/unit/compiler/random_split.h"

#include <algorithm>

#include "compiler/targets/target.h"
#include "compiler/schedules/gemm_cpu/prepack.h"
#include "tensor/shared_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {

Result<bool> run_packed(const hal::Arch& arch, std::string_view renderer, const RandomKernel& k,
                        Buffers* buffers, compiler::CompileOptions options) {
  std::vector<bool> is_constant;
  for (const ir::Param& p : k.kernel.params) is_constant.push_back(!p.is_written);
  const auto packed =
      compiler::pack_constants(k.kernel, compiler::target_info(arch), arch.units, is_constant);
  if (!packed) return false;
  const ir::Param& panels = packed->pack.params[0];
  // The packing kernel writes all of it.
  Buffers sides{
      std::vector<std::byte>(static_cast<size_t>(panels.elements * item_size(panels.dtype)),
                             std::byte{0xff}),
      (*buffers)[static_cast<size_t>(packed->operand)]};
  BM_TRY(run_on_cpu(arch, renderer, packed->pack, sides, {}, options));
  buffers->push_back(sides[0]);
  BM_TRY(run_on_cpu(arch, renderer, packed->main, *buffers, k.vars, options));
  if (buffers->back() != sides[0])
    return fail(Code::kInternal, "kernel {} wrote what was packed", k.kernel.name);
  buffers->pop_back();
  return true;
}

Result<bool> run_shared(const hal::Arch& arch, std::string_view renderer, const RandomKernel& k,
                        Buffers* buffers, compiler::CompileOptions options) {
  ir::KernelIr shared = BM_TRY(ir::deserialize(ir::serialize(k.kernel)));
  shared.name = k.kernel.name;
  shared.vars = k.kernel.vars;
  const KernelConstants constants = share_kernel(shared, true);
  const bool has_moved = std::any_of(constants.first.begin(), constants.first.end(),
                                     [](int64_t first) { return first != 0; });
  if (constants.values.empty() && !has_moved) return false;
  std::vector<int64_t> vars = k.vars;
  vars.insert(vars.end(), constants.values.begin(), constants.values.end());
  // A kernel is given memory from its first element on, and no more than it asks for.
  Buffers parts;
  for (size_t p = 0; p < buffers->size(); ++p) {
    const int64_t item = item_size(shared.params[p].dtype);
    const auto begin = (*buffers)[p].begin() + constants.first[p] * item;
    parts.emplace_back(begin, begin + shared.params[p].elements * item);
  }
  BM_TRY(run_on_cpu(arch, renderer, shared, parts, vars, options));
  for (size_t p = 0; p < buffers->size(); ++p)
    if (shared.params[p].is_written) (*buffers)[p] = parts[p];
  return true;
}

}  // namespace bm::test
