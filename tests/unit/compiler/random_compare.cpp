#include "tests/unit/compiler/random_compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compiler/ir/evaluate.h"
#include "compiler/ir/number.h"

namespace bm::test {
namespace {

bool is_nan(DType t, const std::byte* at) {
  const auto load = [&](auto v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (t) {
    case DType::kF16: return (load(uint16_t{}) & 0x7fff) > 0x7c00;
    case DType::kBF16: return (load(uint16_t{}) & 0x7fff) > 0x7f80;
    case DType::kF32: return std::isnan(load(float{}));
    case DType::kF64: return std::isnan(load(double{}));
    default: return false;
  }
}

/// Largest finite magnitude, at least 1.
double scale_of(DType t, const std::vector<std::byte>& bytes) {
  double most = 1;
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(item_size(t)))
    if (const double v = std::fabs(number_at(t, &bytes[i])); std::isfinite(v))
      most = std::max(most, v);
  return most;
}

/// Which zero a maximum of both is depends on the order.
bool has_extremum(const ir::KernelIr& kernel) {
  std::vector<const ir::Node*> roots;
  for (const ir::Store& s : kernel.stores) roots.push_back(s.value);
  return std::ranges::any_of(ir::topological(roots), [](const ir::Node* n) {
    return n->op == ir::Op::kReduce && n->reduce_op() != ir::ReduceOp::kSum &&
           n->reduce_op() != ir::ReduceOp::kProd;
  });
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> reference(const RandomKernel& k) {
  auto buffers = k.buffers;
  std::vector<std::span<std::byte>> spans(buffers.begin(), buffers.end());
  BM_TRY(compiler::evaluate(k.kernel, spans, k.vars));
  return buffers;
}

testing::AssertionResult same(const RandomKernel& k, const std::vector<std::vector<std::byte>>& got,
                              const std::vector<std::vector<std::byte>>& want) {
  const bool has_any_zero = has_extremum(k.kernel);
  for (size_t p = 0; p < want.size(); ++p) {
    const DType t = k.kernel.params[p].dtype;
    const auto size = static_cast<size_t>(item_size(t));
    const double rounding = t == DType::kBF16 ? 0x1p-8 : t == DType::kF16 ? 0x1p-11 : 0;
    const double room =
        is_float(t) && k.tolerance > 0 ? std::max(k.tolerance, rounding) * scale_of(t, want[p]) : 0;
    for (size_t i = 0; i < want[p].size(); i += size) {
      if (std::memcmp(&got[p][i], &want[p][i], size) == 0) continue;
      if (is_nan(t, &got[p][i]) && is_nan(t, &want[p][i])) continue;
      if (has_any_zero && is_float(t) && number_at(t, &got[p][i]) == 0 &&
          number_at(t, &want[p][i]) == 0)
        continue;
      if (room > 0 && std::fabs(number_at(t, &got[p][i]) - number_at(t, &want[p][i])) <= room)
        continue;
      uint64_t g = 0, w = 0;
      std::memcpy(&g, &got[p][i], size);
      std::memcpy(&w, &want[p][i], size);
      return testing::AssertionFailure() << fmt::format(
                 "param {} ({}) element {}: got {:#x} ({}), want {:#x} ({})\n", p, dtype_name(t),
                 i / size, g, number_at(t, &got[p][i]), w, number_at(t, &want[p][i]));
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace bm::test
