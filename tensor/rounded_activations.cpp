#include "tensor/rounded_activations.h"

#include <algorithm>

#include "compiler/targets/target.h"
#include "runtime/base/env.h"
#include "tensor/node.h"

namespace bm {
namespace {

/// As of GEMM in fusion_products.cpp.
constexpr int64_t kLeastRows = 8;
constexpr double kMostF16 = 65504;

}  // namespace

std::optional<DType> rounded_type(const Tensor& x, const Tensor& weight) {
  const DType type = weight.dtype();
  if (!settings().round_activations || x.dtype() != DType::kF32 || !is_half_like(type)) return {};
  const int64_t columns = x.size(-1).max();
  if (columns <= 0 || max_elements(x.shape()) / columns < kLeastRows) return {};
  const compiler::TargetInfo target = compiler::target_info(x.device().hal().arch());
  const bool has_instruction = std::ranges::any_of(
      target.matrix, [&](const auto& info) { return info.in == type && info.sum == DType::kF32; });
  return has_instruction ? std::optional(type) : std::nullopt;
}

Tensor rounded_activations(const Tensor& x, DType type) {
  return (type == DType::kF16 ? x.clip(-kMostF16, kMostF16) : x).cast(type);
}

}  // namespace bm
