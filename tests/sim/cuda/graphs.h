#pragma once
// Graphs and what is made of them.

#include <memory>
#include <vector>

#include "tests/sim/cuda/driver.h"

namespace bm::sim::cuda {

/// CUgraphNodeType
enum class NodeType : int {
  kKernel = 0,
  kMemcpy = 1,
  kMemset = 2,
  kHost = 3,
  kEmpty = 5,
  kWaitEvent = 6,
  kEventRecord = 7,
};

struct HostParams {
  void (*function)(void*) = nullptr;
  void* data = nullptr;
};

/// What a node does; copied into executable graphs.
struct NodeWork {
  NodeType type = NodeType::kEmpty;
  Launch launch;
  CopyParams copy;
  MemsetParams memset;
  HostParams host;
  Event* event = nullptr;
  Context* context = nullptr;
};

struct Node {
  Graph* graph = nullptr;
  NodeWork work;
  std::vector<Node*> after;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};

struct GraphExec {
  struct Step {
    const Node* origin = nullptr;  ///< handle by which parameters are changed; may be gone
    NodeWork work;
    std::vector<size_t> after;
  };
  /// Launches in flight keep theirs.
  std::shared_ptr<std::vector<Step>> steps;
  Context* context = nullptr;
  Point last;
};

int check_copy(Driver& d, const CopyParams& p);
void run_copy(Driver& d, Context& c, const CopyParams& p);
int check_memset(Driver& d, const MemsetParams& p);
void run_memset(Driver& d, Context& c, const MemsetParams& p);

}  // namespace bm::sim::cuda
