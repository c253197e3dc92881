#pragma once
// A run of recorded launches and copies as one executable CUDA graph.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/cuda/steps.h"
#include "runtime/base/result.h"

namespace bm::cuda {

/// Whether a step can be a node: launches, and copies between memory the GPU reaches.
bool can_be_node(const Step& step);

/// Chain of kernel and memcpy nodes, each after the one before: commands of a queue are ordered.
/// Instantiated once; later only the nodes whose step changed are set again. Function, kind and
/// order of nodes are fixed.
/// Thread: under the submission lock, context current.
class GraphSegment {
 public:
  /// `steps`: of the recording, outliving this. Errors: kUnsupported where the driver refuses a
  /// node or the graph: the caller runs the steps one by one; the device's fault.
  static Result<std::unique_ptr<GraphSegment>> build(const Context& context,
                                                     std::span<const Step> steps, CuStream stream);
  ~GraphSegment();
  GraphSegment(const GraphSegment&) = delete;
  GraphSegment& operator=(const GraphSegment&) = delete;

  /// Notes that a step changed. Never allocates.
  void mark(size_t step);
  /// Sets the parameters of changed nodes. False: as they are now the steps cannot be run as a
  /// graph (a grid or copy of nothing, memory of another kind, a refused update), so run them one
  /// by one. Errors: the device's fault.
  Result<bool> update();
  Status launch(CuStream stream) const;
  std::span<const Step> steps() const { return steps_; }

 private:
  struct Node {
    CuGraphNode handle = nullptr;
    Space dst = Space::kDevice, src = Space::kDevice;  ///< of a copy: fixed
    bool is_dirty = false;
    bool is_idle = false;  ///< nothing to do: cannot be launched
  };
  GraphSegment(const Context& context, std::span<const Step> steps);
  Status create();
  CuResult add_node(size_t index);
  CuResult set_node(size_t index);
  bool is_idle(const Step& step) const;

  const Context& context_;
  const std::span<const Step> steps_;
  CuGraph graph_ = nullptr;
  CuGraphExec exec_ = nullptr;
  std::vector<Node> nodes_;  ///< one per step; none for steps that do nothing
  std::vector<uint32_t> dirty_;
  uint32_t idle_ = 0;  ///< nodes that are
  bool is_refused_ = false;
};

}  // namespace bm::cuda
