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

/// `x` to the nearest of the type, ties to even. What is beyond float16's largest number becomes
/// that number; NaN stays.
Tensor rounded_activations(const Tensor& x, DType type);

}  // namespace bm
