// Graphs: nodes, instantiation, changed parameters, launches.
#include <algorithm>
#include <cstring>

#include "tests/sim/cuda/graphs.h"

namespace bm::sim::cuda {
namespace {

Graph* graph_of(Driver& d, void* handle) {
  auto* g = static_cast<Graph*>(handle);
  return d.graphs.contains(g) ? g : nullptr;
}
GraphExec* exec_of(Driver& d, void* handle) {
  auto* e = static_cast<GraphExec*>(handle);
  return d.execs.contains(e) ? e : nullptr;
}
Node* node_of(Driver& d, void* handle) {
  for (Graph* g : d.graphs)
    for (const auto& n : g->nodes)
      if (n.get() == handle) return n.get();
  return nullptr;
}

int add_node(Driver& d, void** out, void* graph, void* const* after, size_t count, NodeWork work) {
  Graph* g = graph_of(d, graph);
  if (!g) return kInvalidHandle;
  if (!out || (count && !after)) return kInvalidValue;
  auto node = std::make_unique<Node>();
  node->graph = g;
  node->work = std::move(work);
  for (size_t i = 0; i < count; ++i) {
    Node* before = node_of(d, after[i]);
    const auto& known = node->after;
    if (!before || before->graph != g) return kInvalidValue;
    if (std::find(known.begin(), known.end(), before) != known.end()) return kInvalidValue;
    node->after.push_back(before);
  }
  *out = node.get();
  g->nodes.push_back(std::move(node));
  return kSuccess;
}

int kernel_work(Driver& d, Context& c, const KernelNodeParams& p, NodeWork& out) {
  out.type = NodeType::kKernel;
  out.context = &c;
  return check_launch(d, c, p.function ? p.function : p.kernel, p.grid, p.block, p.shared_bytes,
                      p.params, p.extra, out.launch);
}
/// v1 parameters end before `kernel`.
KernelNodeParams widened(const void* v1) {
  KernelNodeParams out;
  std::memcpy(static_cast<void*>(&out), v1, kKernelNodeParamsV1);
  return out;
}

int add_kernel(const char* name, void** out, void* graph, void* const* after, size_t count,
               const KernelNodeParams* p) {
  return in_context(name, [&](Driver& d, Context& c) -> int {
    if (!p) return kInvalidValue;
    NodeWork work;
    if (const int code = kernel_work(d, c, *p, work)) return code;
    return add_node(d, out, graph, after, count, std::move(work));
  });
}

/// The step of an executable graph made from `node`; its own copy of the steps when some are in
/// flight.
GraphExec::Step* step_of(GraphExec& e, const void* node, NodeType type) {
  for (size_t i = 0; i < e.steps->size(); ++i) {
    if ((*e.steps)[i].origin != node || (*e.steps)[i].work.type != type) continue;
    if (e.steps.use_count() > 1) e.steps = std::make_shared<std::vector<GraphExec::Step>>(*e.steps);
    return &(*e.steps)[i];
  }
  return nullptr;
}

int set_kernel(const char* name, void* exec, void* node, const KernelNodeParams* p) {
  return in_context(name, [&](Driver& d, Context& c) -> int {
    GraphExec* e = exec_of(d, exec);
    if (!e) return kInvalidHandle;
    GraphExec::Step* step = p ? step_of(*e, node, NodeType::kKernel) : nullptr;
    if (!step) return kInvalidValue;
    NodeWork work;
    if (const int code = kernel_work(d, c, *p, work)) return code;
    if (work.launch.function != step->work.launch.function) return kInvalidValue;
    step->work = std::move(work);
    return kSuccess;
  });
}

void run_work(Driver& d, Context& c, const NodeWork& w) {
  switch (w.type) {
    case NodeType::kKernel: return run_launch(d, c, w.launch);
    case NodeType::kMemcpy: return run_copy(d, c, w.copy);
    case NodeType::kMemset: return run_memset(d, c, w.memset);
    case NodeType::kHost: return w.host.function(w.host.data);
    case NodeType::kEmpty:
    case NodeType::kWaitEvent:
    case NodeType::kEventRecord: return;
  }
}

/// Of the steps that may run, always the one added last: a missing dependency shows.
void run_steps(Driver& d, Context& c, const std::vector<GraphExec::Step>& steps) {
  std::vector<bool> is_done(steps.size());
  for (size_t n = 0; n < steps.size(); ++n) {
    for (size_t i = steps.size(); i-- > 0;) {
      const auto& after = steps[i].after;
      const bool may_run = !is_done[i] && std::all_of(after.begin(), after.end(),
                                                      [&](size_t a) { return is_done[a]; });
      if (!may_run) continue;
      is_done[i] = true;
      run_work(d, c, steps[i].work);
      break;
    }
    if (c.error || c.cancel) return;
  }
}

bool has_cycle(const std::vector<GraphExec::Step>& steps) {
  std::vector<bool> is_done(steps.size());
  for (size_t n = 0; n < steps.size(); ++n) {
    bool found = false;
    for (size_t i = 0; i < steps.size() && !found; ++i) {
      if (is_done[i]) continue;
      found = std::all_of(steps[i].after.begin(), steps[i].after.end(),
                          [&](size_t a) { return is_done[a]; });
      if (found) is_done[i] = true;
    }
    if (!found) return true;
  }
  return false;
}

std::vector<GraphExec::Step> steps_of(const Graph& g) {
  std::vector<GraphExec::Step> out;
  for (const auto& node : g.nodes) {
    GraphExec::Step step;
    step.origin = node.get();
    step.work = node->work;
    for (const Node* before : node->after)
      for (size_t i = 0; i < g.nodes.size(); ++i)
        if (g.nodes[i].get() == before) step.after.push_back(i);
    out.push_back(std::move(step));
  }
  return out;
}

int instantiate(const char* name, void** out, void* graph) {
  return in_context(name, [&](Driver& d, Context& c) -> int {
    Graph* g = graph_of(d, graph);
    if (!g) return kInvalidHandle;
    if (!out) return kInvalidValue;
    auto e = std::make_unique<GraphExec>();
    e->context = &c;
    e->steps = std::make_shared<std::vector<GraphExec::Step>>(steps_of(*g));
    if (has_cycle(*e->steps)) return kInvalidValue;
    *out = e.get();
    d.execs.insert(e.release());
    return kSuccess;
  });
}

/// CUgraphExecUpdateResult: 0 success, 2 topology, 3 node type, 4 function changed.
int update(void* exec, void* graph, int& result, void*& node) {
  return in_context("cuGraphExecUpdate", [&](Driver& d, Context&) -> int {
    GraphExec* e = exec_of(d, exec);
    const Graph* g = graph_of(d, graph);
    if (!e || !g) return kInvalidHandle;
    std::vector<GraphExec::Step> made = steps_of(*g);
    const auto refuse = [&](int why, const void* at) {
      result = why;
      node = const_cast<void*>(at);
      return kGraphExecUpdateFailure;
    };
    if (made.size() != e->steps->size()) return refuse(2, nullptr);
    for (size_t i = 0; i < made.size(); ++i) {
      const GraphExec::Step& old = (*e->steps)[i];
      if (made[i].after != old.after) return refuse(2, made[i].origin);
      if (made[i].work.type != old.work.type) return refuse(3, made[i].origin);
      if (made[i].work.launch.function != old.work.launch.function)
        return refuse(4, made[i].origin);
      made[i].origin = old.origin;
    }
    e->steps = std::make_shared<std::vector<GraphExec::Step>>(std::move(made));
    result = 0;
    node = nullptr;
    return kSuccess;
  });
}

}  // namespace

BM_FAKE_CUDA cuGraphCreate(void** out, unsigned flags) {
  return call("cuGraphCreate", [&](Driver& d) -> int {
    if (!out || flags) return kInvalidValue;
    auto* g = new Graph;
    d.graphs.insert(g);
    *out = g;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphDestroy(void* graph) {
  return call("cuGraphDestroy", [&](Driver& d) -> int {
    Graph* g = graph_of(d, graph);
    if (!g) return kInvalidHandle;
    d.graphs.erase(g);
    delete g;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphAddKernelNode(void** out, void* graph, void* const* after, size_t count,
                                  const void* params) {
  if (!params) return kInvalidValue;
  const KernelNodeParams p = widened(params);
  return add_kernel("cuGraphAddKernelNode", out, graph, after, count, &p);
}
BM_FAKE_CUDA cuGraphAddKernelNode_v2(void** out, void* graph, void* const* after, size_t count,
                                     const KernelNodeParams* params) {
  return add_kernel("cuGraphAddKernelNode_v2", out, graph, after, count, params);
}
BM_FAKE_CUDA cuGraphAddMemcpyNode(void** out, void* graph, void* const* after, size_t count,
                                  const CopyParams* params, void* context) {
  return in_context("cuGraphAddMemcpyNode", [&](Driver& d, Context&) -> int {
    auto* c = static_cast<Context*>(context);
    if (!params || !d.contexts.contains(c)) return kInvalidValue;
    if (const int code = check_copy(d, *params)) return code;
    NodeWork work;
    work.type = NodeType::kMemcpy;
    work.copy = *params;
    work.context = c;
    return add_node(d, out, graph, after, count, std::move(work));
  });
}
BM_FAKE_CUDA cuGraphAddMemsetNode(void** out, void* graph, void* const* after, size_t count,
                                  const MemsetParams* params, void* context) {
  return in_context("cuGraphAddMemsetNode", [&](Driver& d, Context&) -> int {
    auto* c = static_cast<Context*>(context);
    if (!params || !d.contexts.contains(c)) return kInvalidValue;
    if (const int code = check_memset(d, *params)) return code;
    NodeWork work;
    work.type = NodeType::kMemset;
    work.memset = *params;
    work.context = c;
    return add_node(d, out, graph, after, count, std::move(work));
  });
}
BM_FAKE_CUDA cuGraphAddEmptyNode(void** out, void* graph, void* const* after, size_t count) {
  return call("cuGraphAddEmptyNode",
              [&](Driver& d) { return add_node(d, out, graph, after, count, {}); });
}
BM_FAKE_CUDA cuGraphAddHostNode(void** out, void* graph, void* const* after, size_t count,
                                const HostParams* params) {
  return call("cuGraphAddHostNode", [&](Driver& d) -> int {
    if (!params || !params->function) return kInvalidValue;
    NodeWork work;
    work.type = NodeType::kHost;
    work.host = *params;
    return add_node(d, out, graph, after, count, std::move(work));
  });
}
BM_FAKE_CUDA cuGraphAddEventRecordNode(void** out, void* graph, void* const* after, size_t count,
                                       void* event) {
  return call("cuGraphAddEventRecordNode", [&](Driver& d) -> int {
    NodeWork work;
    work.type = NodeType::kEventRecord;
    work.event = static_cast<Event*>(event);
    if (!d.events.contains(work.event)) return kInvalidHandle;
    return add_node(d, out, graph, after, count, std::move(work));
  });
}
BM_FAKE_CUDA cuGraphAddEventWaitNode(void** out, void* graph, void* const* after, size_t count,
                                     void* event) {
  return call("cuGraphAddEventWaitNode", [&](Driver& d) -> int {
    NodeWork work;
    work.type = NodeType::kWaitEvent;
    work.event = static_cast<Event*>(event);
    if (!d.events.contains(work.event)) return kInvalidHandle;
    return add_node(d, out, graph, after, count, std::move(work));
  });
}
BM_FAKE_CUDA cuGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t count) {
  return call("cuGraphAddDependencies", [&](Driver& d) -> int {
    Graph* g = graph_of(d, graph);
    if (!g) return kInvalidHandle;
    for (size_t i = 0; i < count; ++i) {
      Node *a = node_of(d, from[i]), *b = node_of(d, to[i]);
      if (!a || !b || a->graph != g || b->graph != g || a == b) return kInvalidValue;
      b->after.push_back(a);
    }
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphDestroyNode(void* node) {
  return call("cuGraphDestroyNode", [&](Driver& d) -> int {
    Node* n = node_of(d, node);
    if (!n) return kInvalidHandle;
    Graph* g = n->graph;
    for (const auto& other : g->nodes) std::erase(other->after, n);
    std::erase_if(g->nodes, [&](const auto& one) { return one.get() == n; });
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
  return call("cuGraphGetNodes", [&](Driver& d) -> int {
    const Graph* g = graph_of(d, graph);
    if (!g || !count) return g ? kInvalidValue : kInvalidHandle;
    for (size_t i = 0; nodes && i < std::min(*count, g->nodes.size()); ++i)
      nodes[i] = g->nodes[i].get();
    *count = nodes ? std::min(*count, g->nodes.size()) : g->nodes.size();
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphNodeGetType(void* node, int* type) {
  return call("cuGraphNodeGetType", [&](Driver& d) -> int {
    const Node* n = node_of(d, node);
    if (!n || !type) return n ? kInvalidValue : kInvalidHandle;
    *type = static_cast<int>(n->work.type);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphKernelNodeSetParams(void* node, const void* params) {
  return in_context("cuGraphKernelNodeSetParams", [&](Driver& d, Context& c) -> int {
    Node* n = node_of(d, node);
    if (!n) return kInvalidHandle;
    if (!params || n->work.type != NodeType::kKernel) return kInvalidValue;
    NodeWork work;
    if (const int code = kernel_work(d, c, widened(params), work)) return code;
    n->work = std::move(work);
    return kSuccess;
  });
}

BM_FAKE_CUDA cuGraphInstantiate(void** out, void* graph, void** error_node, char* log,
                                size_t bytes) {
  if (error_node) *error_node = nullptr;
  if (log && bytes) *log = '\0';
  return instantiate("cuGraphInstantiate", out, graph);
}
BM_FAKE_CUDA cuGraphInstantiate_v2(void** out, void* graph, void** error_node, char* log,
                                   size_t bytes) {
  if (error_node) *error_node = nullptr;
  if (log && bytes) *log = '\0';
  return instantiate("cuGraphInstantiate_v2", out, graph);
}
BM_FAKE_CUDA cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long flags) {
  if (flags & ~15ull) return kInvalidValue;
  return instantiate("cuGraphInstantiateWithFlags", out, graph);
}
BM_FAKE_CUDA cuGraphExecDestroy(void* exec) {
  GraphExec* e = nullptr;
  const int code = call("cuGraphExecDestroy", [&](Driver& d) -> int {
    e = exec_of(d, exec);
    if (!e) return kInvalidHandle;
    d.execs.erase(e);
    return kSuccess;
  });
  // Steps in flight are shared, so nothing has to be waited for.
  delete e;
  return code;
}
BM_FAKE_CUDA cuGraphExecKernelNodeSetParams(void* exec, void* node, const void* params) {
  if (!params) return kInvalidValue;
  const KernelNodeParams p = widened(params);
  return set_kernel("cuGraphExecKernelNodeSetParams", exec, node, &p);
}
BM_FAKE_CUDA cuGraphExecKernelNodeSetParams_v2(void* exec, void* node,
                                               const KernelNodeParams* params) {
  return set_kernel("cuGraphExecKernelNodeSetParams_v2", exec, node, params);
}
BM_FAKE_CUDA cuGraphExecMemcpyNodeSetParams(void* exec, void* node, const CopyParams* params,
                                            void* context) {
  return in_context("cuGraphExecMemcpyNodeSetParams", [&](Driver& d, Context&) -> int {
    GraphExec* e = exec_of(d, exec);
    if (!e) return kInvalidHandle;
    GraphExec::Step* step = params ? step_of(*e, node, NodeType::kMemcpy) : nullptr;
    if (!step) return kInvalidValue;
    if (const int code = check_copy(d, *params)) return code;
    const CopyParams& old = step->work.copy;
    // Kinds of memory and the context stay what they were.
    if (old.src.memory_type != params->src.memory_type ||
        old.dst.memory_type != params->dst.memory_type || step->work.context != context)
      return kInvalidValue;
    step->work.copy = *params;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphExecMemsetNodeSetParams(void* exec, void* node, const MemsetParams* params,
                                            void* context) {
  return in_context("cuGraphExecMemsetNodeSetParams", [&](Driver& d, Context&) -> int {
    GraphExec* e = exec_of(d, exec);
    if (!e) return kInvalidHandle;
    GraphExec::Step* step = params ? step_of(*e, node, NodeType::kMemset) : nullptr;
    if (!step || step->work.context != context) return kInvalidValue;
    if (const int code = check_memset(d, *params)) return code;
    step->work.memset = *params;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuGraphExecUpdate(void* exec, void* graph, void** node, int* result) {
  int why = 0;
  void* at = nullptr;
  const int code = update(exec, graph, why, at);
  if (node) *node = at;
  if (result) *result = why;
  return code;
}
BM_FAKE_CUDA cuGraphExecUpdate_v2(void* exec, void* graph, void* info) {
  struct Info {
    int result;
    void *node, *from;
  } out{};
  const int code = update(exec, graph, out.result, out.node);
  if (info) std::memcpy(info, &out, sizeof out);
  return code;
}
BM_FAKE_CUDA cuGraphUpload(void* exec, void* stream) {
  return in_context("cuGraphUpload", [&](Driver& d, Context& c) -> int {
    return exec_of(d, exec) && stream_of(d, c, stream) ? kSuccess : kInvalidHandle;
  });
}
BM_FAKE_CUDA cuGraphLaunch(void* exec, void* stream) {
  return in_context("cuGraphLaunch", [&](Driver& d, Context& c) -> int {
    GraphExec* e = exec_of(d, exec);
    Stream* s = stream_of(d, c, stream);
    if (!e || !s) return kInvalidHandle;
    // One launch of an executable graph at a time.
    std::vector<Point> after = implicit_order(c, *s);
    after.push_back(e->last);
    for (const GraphExec::Step& step : *e->steps)
      if (step.work.type == NodeType::kWaitEvent && d.events.contains(step.work.event) &&
          step.work.event->record)
        after.push_back(step.work.event->record->point);
    const auto steps = e->steps;
    e->last = s->enqueue([&d, &c, steps] { run_steps(d, c, *steps); }, std::move(after));
    for (const GraphExec::Step& step : *steps) {
      if (step.work.type != NodeType::kEventRecord || !d.events.contains(step.work.event)) continue;
      const auto record = std::make_shared<Event::Record>();
      record->point = e->last;
      step.work.event->record = record;
    }
    return kSuccess;
  });
}

}  // namespace bm::sim::cuda
