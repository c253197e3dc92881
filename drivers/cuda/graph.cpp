#include "drivers/cuda/graph.h"

#include <algorithm>

#include "runtime/base/log.h"

namespace bm::cuda {
namespace {

/// What a kernel node takes; the driver copies everything in the call.
struct KernelParams {
  explicit KernelParams(const Step& step)
      : bytes(step.program->argument_words() * sizeof(uint64_t)),
        extra{kParamPointer, step.arguments, kParamSize, &bytes, kParamEnd} {
    const hal::Dim3 block = step.program->code().block;
    node.function = step.program->function();
    // A grid of nothing is no node: any other stands for it, and is not launched.
    node.grid_x = std::max(step.grid.x, 1u);
    node.grid_y = std::max(step.grid.y, 1u);
    node.grid_z = std::max(step.grid.z, 1u);
    node.block_x = block.x;
    node.block_y = block.y;
    node.block_z = block.z;
    node.shared_bytes = step.program->launch_shared_bytes();
    node.extra = bytes == 0 ? nullptr : extra.data();
  }
  KernelParams(const KernelParams&) = delete;
  KernelParams& operator=(const KernelParams&) = delete;
  size_t bytes;
  std::array<void*, 5> extra;
  KernelNodeParams node;
};

/// Host memory is named as such where the other side is video memory; between two ranges of it the
/// GPU copies.
CopyParams copy_params(const Step& step) {
  CopyParams params;
  const auto fill = [](CopySide& side, const Place& place, const Place& other) {
    const bool is_host = place.space == Space::kShared && other.space == Space::kDevice;
    side.memory_type = is_host ? kMemoryHost : kMemoryDevice;
    side.host = is_host ? place.host : nullptr;
    side.device = is_host ? 0 : place.va;
  };
  fill(params.src, step.src, step.dst);
  fill(params.dst, step.dst, step.src);
  params.width_bytes = step.words[2];
  return params;
}

}  // namespace

bool can_be_node(const Step& step) {
  if (step.kind == StepKind::kLaunch) return true;
  return step.kind == StepKind::kCopy && step.words[2] != 0 && step.dst.is_device_reachable() &&
         step.src.is_device_reachable();
}

GraphSegment::GraphSegment(const Context& context, std::span<const Step> steps)
    : context_(context), steps_(steps), nodes_(steps.size()) {
  dirty_.reserve(steps.size());
}

GraphSegment::~GraphSegment() {
  const Current current(context_);
  if (exec_ != nullptr) context_.api.cuGraphExecDestroy(exec_);
  if (graph_ != nullptr) context_.api.cuGraphDestroy(graph_);
}

Result<std::unique_ptr<GraphSegment>> GraphSegment::build(const Context& context,
                                                          std::span<const Step> steps,
                                                          CuStream stream) {
  std::unique_ptr<GraphSegment> segment(new GraphSegment(context, steps));
  if (Status created = segment->create(); !created) {
    BM_TRY(context.health.status());
    created.error().code = Code::kUnsupported;
    return tl::unexpected(std::move(created.error()));
  }
  // Best effort: without it the first launch does the same.
  if (context.api.cuGraphUpload != nullptr) context.api.cuGraphUpload(segment->exec_, stream);
  return segment;
}

Status GraphSegment::create() {
  const Api& api = context_.api;
  BM_TRY(context_.done(api.cuGraphCreate(&graph_, 0), "cuGraphCreate"));
  CuGraphNode previous = nullptr;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].kind == StepKind::kNothing) continue;
    Node& node = nodes_[i];
    node.handle = previous;  // add_node() takes what it depends on from here
    BM_TRY(context_.done(add_node(i), "adding a graph node"));
    previous = node.handle;
    node.is_idle = is_idle(steps_[i]);
    idle_ += node.is_idle ? 1 : 0;
  }
  return context_.done(api.cuGraphInstantiate(&exec_, graph_, nullptr, nullptr, 0),
                       "cuGraphInstantiate");
}

CuResult GraphSegment::add_node(size_t index) {
  const Api& api = context_.api;
  const Step& step = steps_[index];
  Node& node = nodes_[index];
  const CuGraphNode after = node.handle;
  const size_t count = after == nullptr ? 0 : 1;
  if (step.kind == StepKind::kLaunch) {
    const KernelParams params(step);
    return api.cuGraphAddKernelNode(&node.handle, graph_, &after, count, &params.node);
  }
  node.dst = step.dst.space;
  node.src = step.src.space;
  const CopyParams params = copy_params(step);
  return api.cuGraphAddMemcpyNode(&node.handle, graph_, &after, count, &params, context_.handle);
}

CuResult GraphSegment::set_node(size_t index) {
  const Api& api = context_.api;
  const Step& step = steps_[index];
  const Node& node = nodes_[index];
  if (step.kind == StepKind::kLaunch) {
    const KernelParams params(step);
    return api.cuGraphExecKernelNodeSetParams(exec_, node.handle, &params.node);
  }
  const CopyParams params = copy_params(step);
  return api.cuGraphExecMemcpyNodeSetParams(exec_, node.handle, &params, context_.handle);
}

bool GraphSegment::is_idle(const Step& step) const {
  return step.kind == StepKind::kLaunch ? step.is_empty_grid() : step.words[2] == 0;
}

void GraphSegment::mark(size_t step) {
  Node& node = nodes_[step];
  if (node.is_dirty) return;
  node.is_dirty = true;
  dirty_.push_back(static_cast<uint32_t>(step));
}

Result<bool> GraphSegment::update() {
  if (is_refused_) return false;
  size_t kept = 0;
  bool fits = true;
  for (const uint32_t index : dirty_) {
    Node& node = nodes_[index];
    const Step& step = steps_[index];
    const bool idles = is_idle(step);
    if (idles != node.is_idle) idle_ += idles ? 1 : uint32_t(-1);
    node.is_idle = idles;
    const bool is_same_kind = step.kind != StepKind::kCopy || idles ||
                              (step.dst.space == node.dst && step.src.space == node.src);
    fits = fits && is_same_kind;
    if (idles || !is_same_kind) {
      dirty_[kept++] = index;  // until there is something to set
      continue;
    }
    const CuResult error = set_node(index);
    if (error != kSuccess) {
      log("cuda", LogLevel::kInfo, "graph update refused, its commands run one by one: {}",
          error_name(context_.api, error));
      is_refused_ = true;
      if (is_sticky(error)) BM_TRY(context_.done(error, "graph update"));
      return false;
    }
    node.is_dirty = false;
  }
  dirty_.resize(kept);
  return fits && idle_ == 0;
}

Status GraphSegment::launch(CuStream stream) const {
  return context_.done(context_.api.cuGraphLaunch(exec_, stream), "cuGraphLaunch");
}

}  // namespace bm::cuda
