#include "tensor/rounded_activations.h"

#include <algorithm>

#include "compiler/targets/card.h"
#include "compiler/targets/target.h"
#include "runtime/base/env.h"
#include "tensor/node.h"

namespace bm {
namespace {

/// As of GEMM in fusion_products.cpp.
constexpr int64_t kLeastRows = 8;
constexpr double kMostF16 = 65504;
/// Operations of a compute unit in a cycle; as of convolutions in ops_conv.cpp.
constexpr double kFastProducts = 2048;

}  // namespace

std::optional<DType> rounded_type(const Tensor& x, const Tensor& weight) {
  return rounded_type(x, weight.dtype());
}

std::optional<DType> rounded_type(const Tensor& x, DType type) {
  if (!settings().round_activations || x.dtype() != DType::kF32 || !is_half_like(type)) return {};
  const int64_t columns = x.size(-1).max();
  if (columns <= 0 || max_elements(x.shape()) / columns < kLeastRows) return {};
  const compiler::TargetInfo target = compiler::target_info(x.device().hal().arch());
  const bool has_instruction = std::ranges::any_of(
      target.matrix, [&](const auto& info) { return info.in == type && info.sum == DType::kF32; });
  return has_instruction ? std::optional(type) : std::nullopt;
}

bool dequantises(const Tensor& x) {
  const hal::Arch& arch = x.device().hal().arch();
  const compiler::CardInfo* card = compiler::find_card(arch.name);
  const bool is_fast_nvidia =
      compiler::is_cuda(arch) && card != nullptr && card->mma_f16 >= kFastProducts;
  // HIP source has no matrix instructions: int8 dot products are faster there.
  const bool is_amd = compiler::is_amd(arch) && x.device().renderer() != "HIP";
  return (is_amd || is_fast_nvidia) && rounded_type(x, DType::kF16).has_value();
}

Tensor rounded_activations(const Tensor& x, DType type) {
  return (type == DType::kF16 ? x.clip(-kMostF16, kMostF16) : x).cast(type);
}

}  // namespace bm
