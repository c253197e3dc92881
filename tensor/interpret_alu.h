#pragma once
// Elementwise operations of the reference device.

#include <span>

#include "compiler/ir/node.h"
#include "tensor/interpret_value.h"

namespace bm::reference {

/// Gets the operands' dtype and values; the result is not yet rounded or wrapped (see store).
using AluFunction = Value (*)(DType operands, std::span<const Value> args);

/// Function of an operation on operands of a dtype; nullptr where the two do not go together.
/// kSelect, kCast and kBitcast are not in the table: their operands differ in dtype.
AluFunction alu_function(ir::Op op, DType operands);

/// ir::Op::kCast without the final rounding.
Value convert(const Value& v, DType from, DType to);

}  // namespace bm::reference
