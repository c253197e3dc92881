#pragma once
// Schedule: lazy nodes → calls in order, and running or recording them.

#include <span>
#include <vector>

#include "compiler/ir/kernel.h"
#include "runtime/graph.h"
#include "tensor/node.h"
#include "tensor/programs.h"

namespace bm {

/// Calls in execution order; Call vars index `vars`.
struct Schedule {
  std::vector<runtime::Call> calls;
  std::vector<Var> vars;
  /// Kernels whose programs are still to be made, and the calls that wait for them.
  std::vector<WantedKernel> wanted;
  std::vector<size_t> waiting;

  uint32_t var_slot(const Var& v);
  /// Makes the programs that are missing, all at once. Throws bm::Exception.
  void make_programs();
};

/// Gives every root storage (and with it the intermediate nodes worth keeping) and runs the calls,
/// or appends them to the capture in progress on this thread. Throws bm::Exception.
void realize_nodes(std::span<const NodePtr> roots);

/// Writes `value` through `target`, a view of realised storage. The caller holds `value` exactly
/// once; further holders are taken for tensors that must keep the old contents.
void assign_nodes(const NodePtr& target, const NodePtr& value);

/// Before `base` is written by other means than an assign: realises the lazy tensors that read it,
/// so that they keep its present contents; the views in `but` stay views. Throws bm::Exception.
void keep_old_contents(const NodePtr& base, std::span<const NodePtr> but);

}  // namespace bm
