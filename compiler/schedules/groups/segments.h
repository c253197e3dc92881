#pragma once
// Segment reductions: of a few adjacent elements (a quantised block) whose work-items are adjacent
// lanes, by shuffles. Several results of one pass: elements, and one number a segment.

#include "compiler/ir/kernel.h"
#include "compiler/lowering/emitter.h"
#include "compiler/targets/target.h"

namespace bm::compiler {

/// The innermost output loop, if reductions of the kernel go along it and along nothing else, and
/// lanes of a sub-group can stand for its iterations; else nullptr. Kernels of one store have none.
const ir::Node* segment_loop(const ir::KernelIr& kernel, const TargetInfo& target);

/// Whether `n` is a reduction along the segment loop.
bool is_segment(const ir::Node* n, const ir::Node* loop);

/// Whether every reduction of the kernel is one of segments, or of rows that neither the segment
/// loop nor the one around it are loops of.
bool has_segments_only(const ir::KernelIr& kernel, const TargetInfo& target);

/// Kernels of the strategy "groups" with a segment loop.
void lower_segment_groups(Emitter& e);

/// Makes reductions of segments in a tree of lanes.
class SegmentReductions : public EmitRule {
 public:
  explicit SegmentReductions(Emitter& e)
      : e_(e), loop_(segment_loop(e.kernel(), e.builder().target())) {}
  std::optional<ValueId> replace(const Node* n, const Env& env) override;

 private:
  Emitter& e_;
  const ir::Node* loop_;
};

}  // namespace bm::compiler
