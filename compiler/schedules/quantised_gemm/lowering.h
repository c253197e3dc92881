#pragma once
// What both ways of lowering a quantised GEMM share.

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// Four contiguous elements of a bytewise expression as a word: every byte of it is what one
/// element would be. `is_aligned`: words of params begin at multiples of 4 bytes.
ValueId bytes_of(Emitter& e, const Node* n, const Env& env, bool is_aligned);

/// A plan with is_staged.
void lower_staged_dequantised_gemm(Emitter& e);

}  // namespace bm::compiler
