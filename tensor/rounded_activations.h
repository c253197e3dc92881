#pragma once
// Activations of linear layers in the type of their weights: matrix instructions take two operands
// of one type.

#include <optional>

#include "tensor/tensor.h"

namespace bm {

/// The type that `x` [..., in] (float32) is rounded to before it is multiplied with `weight` [out,
/// in]: that of the weight, if it is float16 or bfloat16, the device has matrix instructions for it
/// with float32 accumulators, each weight is read for 8 rows or more, and BM_ROUND_ACTIVATIONS is
/// not 0. Nothing: the product is one of float32.
std::optional<DType> rounded_type(const Tensor& x, const Tensor& weight);
/// The same for a second factor of `type`.
std::optional<DType> rounded_type(const Tensor& x, DType type);

/// Whether the product of `x` [..., in] (float32) and a quantised matrix is worth dequantising the
/// latter's blocks to float16 on their way into matrix instructions, and rounding `x`: on AMD's
/// GPUs that have these, and on NVIDIA's cards whose instructions for 16-bit floats do 2048
/// operations or more in a cycle of a compute unit (sm_80, sm_90, sm_100). Elsewhere instructions
/// for int8, and scales for every result, take no longer. BM_ROUND_ACTIVATIONS=0: nowhere.
bool dequantises(const Tensor& x);

/// `x` to the nearest of the type, ties to even. What is beyond float16's largest number becomes
/// that number; NaN stays.
Tensor rounded_activations(const Tensor& x, DType type);

}  // namespace bm
