#pragma once
// Computations named in words: "softmax(f32[128, 1024])", "relu(f32[64, 64] @ f16[64, 64] + 1)".

#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace bm::cli {

/// The tensor an expression describes, on `device`; inputs are written as dtype[shape] and hold
/// zeros. Operators + - * / @ (product of matrices), functions as expression_help() lists them,
/// numbers. Errors: kInvalidArgument with the position; what the tensor layer says of shapes.
/// `unwritten`: gets the inputs, whose memory nobody has written.
Result<Tensor> parse_expression(std::string_view text, std::string_view device,
                                std::vector<Tensor>* unwritten = nullptr);

/// One line naming the functions.
std::string expression_help();

}  // namespace bm::cli
