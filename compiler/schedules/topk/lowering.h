#pragma once
// Lowering of top-k and sorting; see topk/lower.cpp.

namespace bm::compiler {

class Emitter;

/// For the table of strategies.
void lower_topk(Emitter& e);

}  // namespace bm::compiler
