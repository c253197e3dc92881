#include "tensor/schedule.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "compiler/compile.h"
#include "tensor/assign_host.h"
#include "tensor/capture_scope.h"
#include "tensor/exception.h"
#include "tensor/fusion.h"
#include "tensor/fusion_segments.h"
#include "tensor/interpret.h"
#include "tensor/lower.h"
#include "tensor/primitives.h"
#include "tensor/shared_kernel.h"

namespace bm {
namespace {

bool is_interpreted(const Node& n) { return n.device->hal().arch().vendor == hal::Vendor::kRef; }

/// Whether any byte of a buffer has an address that kernels may be given. NULL asks for the kernels
/// of what it stands for.
bool has_plain_addresses(runtime::Device& device) {
  return device.hal().arch().vendor != hal::Vendor::kOpenCl;
}

uint64_t bytes_of(const Node& n) {
  return static_cast<uint64_t>(max_elements(n.shape) * item_size(n.dtype));
}

/// Node without its sources' history: what a host function needs to know.
std::shared_ptr<Node> detached(const Node& n) {
  auto copy = std::make_shared<Node>();
  copy->kind = n.kind;
  copy->op = n.op;
  copy->reduce_op = n.reduce_op;
  copy->dtype = n.dtype;
  copy->device = n.device;
  copy->shape = n.shape;
  copy->ints = n.ints;
  copy->syms = n.syms;
  copy->scalar = n.scalar;
  for (const NodePtr& s : n.src) {
    auto source = std::make_shared<Node>();
    source->kind = NodeKind::kBuffer;
    source->dtype = s->dtype;
    source->device = s->device;
    source->shape = s->shape;
    copy->src.push_back(std::move(source));
  }
  return copy;
}

/// The interpreter makes an array of every view it reads, but the view stays one: an assign through
/// it must reach the storage.
bool is_passing(const Node& n, std::span<const NodePtr> roots) {
  return is_movement(n.kind) && is_interpreted(n) &&
         std::none_of(roots.begin(), roots.end(), [&](const NodePtr& r) { return r.get() == &n; });
}

/// The plan for `roots`. In a capture, what it would store of the nodes that were there before is
/// realised first, outside: those tensors have one value, not one per replay.
FusionPlan plan_inside(std::span<const NodePtr> roots) {
  FusionPlan plan = plan_fusion(roots);
  CaptureScope* const capture = CaptureScope::current();
  if (!capture) return plan;
  std::vector<NodePtr> outside;
  for (const NodePtr& n : plan.order)
    if (plan.stored.count(n.get()) && !capture->has_made(*n) && !is_passing(*n, roots))
      outside.push_back(n);
  if (!outside.empty()) {
    const CaptureScope::Suspension suspension(*capture);
    realize_nodes(outside);
  }
  if (!outside.empty()) plan = plan_fusion(roots);
  for (const NodePtr& n : plan.order)
    if (!capture->has_made(*n)) capture->watch(n);
  return plan;
}

class Builder {
 public:
  Schedule schedule;

  /// Schedules everything `roots` need. `assigned`: root whose value is written through `target`.
  void build(std::span<const NodePtr> roots, const Node* assigned, const NodePtr& target) {
    const FusionPlan plan = plan_inside(roots);
    const auto is_stored = [&](const Node* n) { return plan.stored.count(n) != 0; };
    const std::vector<SegmentGroup> groups = find_segment_groups(plan, assigned);
    std::unordered_map<const Node*, const SegmentGroup*> group_of;
    for (const SegmentGroup& g : groups)
      for (const NodePtr& n : g.nodes) group_of[n.get()] = &g;
    for (const NodePtr& n : plan.order) {
      if (!is_stored(n.get())) continue;
      if (const auto group = group_of.find(n.get()); group != group_of.end()) {
        if (group->second->nodes.back() == n) build_segments(*group->second, is_stored);
        continue;
      }
      if (n.get() == assigned)
        build_assign(n, target, is_stored);
      else
        build_node(n, is_stored);
      if (is_passing(*n, roots)) made_.pop_back();
    }
  }

  /// Makes realised nodes of everything scheduled; their sources may go.
  void commit() {
    CaptureScope* const capture = CaptureScope::current();
    for (auto& [node, buffer] : made_) {
      if (capture) capture->remember(node);
      if (node->is_watched) note_detached();
      const std::vector<NodePtr> sources = std::move(node->src);
      node->src.clear();
      node->ints.clear();
      node->syms.clear();
      node->kind = NodeKind::kBuffer;
      node->buffer = std::move(buffer);
    }
    made_.clear();
    storage_.clear();
    workspaces_.clear();
  }

 private:
  std::vector<std::pair<NodePtr, runtime::Buffer>> made_;
  std::unordered_map<const Node*, runtime::Buffer> storage_;
  std::vector<NodePtr> workspaces_;  ///< until their calls are made

  const runtime::Buffer& buffer_of(const Node* n) {
    if (!n->is_realized()) return storage_.at(n);
    check_readable(*n);
    return n->buffer;
  }

  runtime::Buffer make_storage(const NodePtr& n) {
    runtime::Buffer buffer =
        unwrap(runtime::allocate(*n->device, {.size = std::max<uint64_t>(bytes_of(*n), 1)}));
    storage_[n.get()] = buffer;
    if (CaptureScope* capture = CaptureScope::current()) capture->add_storage(buffer.storage);
    made_.emplace_back(n, buffer);
    return buffer;
  }

  void build_node(const NodePtr& n, const std::function<bool(const Node*)>& is_stored) {
    runtime::Buffer out = make_storage(n);
    if (max_elements(n->shape) == 0) return;
    if (n->kind == NodeKind::kCopy) {
      const runtime::Buffer& in = buffer_of(n->src[0].get());
      schedule.calls.push_back(
          {fmt::format("copy {}", out.size),
           runtime::CopyCall{},
           {{.buffer = out, .is_written = true, .is_read = false}, {.buffer = in}}});
      // Storages are rounded up; only the tensor's bytes move.
      for (runtime::Arg& a : schedule.calls.back().args) a.buffer.size = bytes_of(*n);
      return;
    }
    if (is_interpreted(*n)) return build_host_call(*n, out);
    build_kernel(unwrap(lower(*n, nullptr, is_stored)), *n->device);
  }

  void build_segments(const SegmentGroup& group,
                      const std::function<bool(const Node*)>& is_stored) {
    std::vector<const Node*> roots;
    for (const NodePtr& n : group.nodes) {
      make_storage(n);
      roots.push_back(n.get());
    }
    const auto is_read = [&](const Node* n) {
      return is_stored(n) && std::ranges::find(roots, n) == roots.end();
    };
    build_kernel(unwrap(lower_segments(roots, *group.segments, group.length, is_read)),
                 *group.segments->device);
  }

  void build_assign(const NodePtr& n, const NodePtr& target,
                    const std::function<bool(const Node*)>& is_stored) {
    if (max_elements(n->shape) == 0) return;
    if (is_interpreted(*n)) {
      runtime::Buffer value = make_storage(n);
      build_host_call(*n, value);
      build_host_assign(*target, value);
      made_.pop_back();
      return;
    }
    LoweredKernel direct = unwrap(lower(*n, target.get(), is_stored));
    if (!direct.reads_destination_elsewhere) return build_kernel(std::move(direct), *n->device);
    // The value reads elements that the same kernel would overwrite: compute it aside, then store
    // it.
    build_node(n, is_stored);
    made_.pop_back();
    auto copy = std::make_shared<Node>();
    copy->kind = NodeKind::kContiguous;
    copy->dtype = n->dtype;
    copy->device = n->device;
    copy->shape = n->shape;
    copy->src = {n};
    build_kernel(unwrap(lower(*copy, target.get(), [&](const Node* x) { return x == n.get(); })),
                 *n->device);
  }

  /// Decode attention is two kernels with a workspace between them.
  void build_kernel(LoweredKernel lowered, runtime::Device& device) {
    auto split = compiler::split_attention(lowered.ir, device.hal().arch(), device.renderer());
    if (!split) return add_kernel(std::move(lowered), device);
    auto between = std::make_shared<Node>();
    between->kind = NodeKind::kBuffer;
    between->dtype = DType::kF32;
    between->device = &device;
    between->shape = {split->elements};
    runtime::Buffer buffer = unwrap(runtime::allocate(device, {.size = bytes_of(*between)}));
    if (CaptureScope* capture = CaptureScope::current()) capture->add_storage(buffer.storage);
    between->buffer = std::move(buffer);
    LoweredKernel merge{.ir = std::move(split->merge),
                        .params = {lowered.params[0], between.get()},
                        .vars = lowered.vars};
    lowered.params[0] = between.get();
    lowered.ir = std::move(split->parts);
    workspaces_.push_back(std::move(between));
    add_kernel(std::move(lowered), device);
    add_kernel(std::move(merge), device);
  }

  void add_kernel(LoweredKernel lowered, runtime::Device& device) {
    runtime::KernelCall kernel;
    kernel.device = &device;
    std::vector<int64_t> values;
    for (const Var& v : lowered.vars) {
      kernel.vars.push_back(schedule.var_slot(v));
      values.push_back(v.value());
    }
    const ir::Cost cost = ir::estimate_cost(lowered.ir, values);
    kernel.flops = cost.flops;
    kernel.bytes = cost.bytes;
    KernelConstants constants = share_kernel(lowered.ir, has_plain_addresses(device));
    kernel.constants = std::move(constants.values);
    runtime::Call call{lowered.ir.name, std::move(kernel), {}};
    schedule.waiting.push_back(schedule.calls.size());
    for (size_t i = 0; i < lowered.params.size(); ++i) {
      const ir::Param& p = lowered.ir.params[i];
      runtime::Buffer buffer = buffer_of(lowered.params[i]);
      const auto skipped = static_cast<uint64_t>(constants.first[i] * item_size(p.dtype));
      buffer.offset += skipped;
      buffer.size -= skipped;
      call.args.push_back(
          {.buffer = std::move(buffer), .is_written = p.is_written, .is_read = p.is_read});
    }
    schedule.calls.push_back(std::move(call));
    schedule.wanted.push_back(
        {&device, std::make_shared<const ir::KernelIr>(std::move(lowered.ir))});
  }

  std::vector<uint32_t> vars_of(const Node& n) {
    std::vector<uint32_t> slots;
    const auto add = [&](const std::vector<SymInt>& list) {
      for (const SymInt& s : list)
        for (const SymInt::Term& t : s.terms()) slots.push_back(schedule.var_slot(t.var));
    };
    add(n.shape);
    add(n.syms);
    return slots;
  }

  void build_host_call(const Node& n, const runtime::Buffer& out) {
    auto node = detached(n);
    runtime::HostCall host;
    host.device = n.device;
    host.vars = vars_of(n);
    host.function = [node](std::span<std::byte* const> args, std::span<const int64_t>) -> Status {
      std::vector<const std::byte*> sources(args.begin() + 1, args.end());
      return interpret(*node, sources, args[0]);
    };
    const std::string name =
        n.kind == NodeKind::kAlu ? std::string(ir::op_name(n.op)) : kind_name(n.kind);
    runtime::Call call{
        name, std::move(host), {{.buffer = out, .is_written = true, .is_read = false}}};
    for (const NodePtr& s : n.src) call.args.push_back({.buffer = buffer_of(s.get())});
    schedule.calls.push_back(std::move(call));
  }

  void build_host_assign(const Node& target, const runtime::Buffer& value) {
    std::vector<std::shared_ptr<Node>> chain;
    const Node* base = &target;
    for (; is_movement(base->kind); base = base->src[0].get()) chain.push_back(detached(*base));
    auto shape = target.shape;
    auto base_strides = strides_of(base->shape);
    const int64_t item = item_size(target.dtype);
    runtime::HostCall host;
    host.device = target.device;
    host.vars = vars_of(target);
    host.function = [chain, shape, base_strides, item](std::span<std::byte* const> args,
                                                       std::span<const int64_t>) -> Status {
      return interpret_assign(chain, shape, base_strides, item, args[1], args[0]);
    };
    schedule.calls.push_back({"assign",
                              std::move(host),
                              {{.buffer = base->buffer, .is_written = true}, {.buffer = value}}});
  }

  static std::string kind_name(NodeKind kind) {
    switch (kind) {
      case NodeKind::kConst: return "const";
      case NodeKind::kReduce: return "reduce";
      case NodeKind::kScan: return "scan";
      case NodeKind::kTopK: return "top_k";
      case NodeKind::kGather: return "gather";
      case NodeKind::kCast: return "cast";
      default: return "move";
    }
  }
};

void run(Schedule& schedule) {
  if (CaptureScope* capture = CaptureScope::current()) {
    Schedule& into = capture->schedule();
    for (size_t i = 0; i < schedule.calls.size(); ++i)
      check_step(CaptureStep::kCall, into.calls.size() + i);
    for (size_t call : schedule.waiting) into.waiting.push_back(into.calls.size() + call);
    std::move(schedule.wanted.begin(), schedule.wanted.end(), std::back_inserter(into.wanted));
    for (runtime::Call& call : schedule.calls) {
      const auto renumber = [&](std::vector<uint32_t>& vars) {
        for (uint32_t& v : vars) v = into.var_slot(schedule.vars[v]);
      };
      if (auto* k = std::get_if<runtime::KernelCall>(&call.what)) renumber(k->vars);
      if (auto* h = std::get_if<runtime::HostCall>(&call.what)) renumber(h->vars);
      into.calls.push_back(std::move(call));
    }
    return;
  }
  schedule.make_programs();
  std::vector<int64_t> values;
  for (const Var& v : schedule.vars) values.push_back(v.value());
  for (const runtime::Call& call : schedule.calls) unwrap(runtime::execute(call, values));
}

// --- assign: who still needs the old contents -------------------------------------------------

using NodeSet = std::unordered_set<const Node*>;

/// The graph below the value of an assign, and below what a capture could have to restore: who of
/// it is held from elsewhere, and would be computed from the new contents later.
class Below {
 public:
  explicit Below(const NodePtr& value) {
    if (CaptureScope* const capture = CaptureScope::current()) held_ = &capture->held();
    if (value) own_.add(value, held_);  // the caller holds it once
  }
  bool has(const Node* n) const {
    return own_.find(n) != nullptr || (held_ != nullptr && held_->find(n) != nullptr);
  }
  /// `n`: lazy, held once by the caller. Looks upward, at what would be computed from it.
  bool is_needed_elsewhere(const NodePtr& n) const {
    std::vector<const Node*> stack{n.get()};
    NodeSet seen{n.get()};
    while (!stack.empty()) {
      const Node* const at = stack.back();
      stack.pop_back();
      long uses = 0, holders = -1;  // this one, or the caller
      for (const HolderCounts* graph : {&own_, held_}) {
        const HolderCounts::Entry* entry = graph == nullptr ? nullptr : graph->find(at);
        if (entry == nullptr) continue;
        uses += entry->uses;
        const NodePtr node = entry->node.lock();
        holders = node.use_count() - (at == n.get() ? 2 : 1);
        for (const Node* holder : entry->holders)
          if (!is_stored(holder) && seen.insert(holder).second) stack.push_back(holder);
      }
      if (holders > uses) return true;
    }
    return false;
  }

 private:
  bool is_stored(const Node* n) const {
    for (const HolderCounts* graph : {&own_, held_})
      if (const auto* entry = graph == nullptr ? nullptr : graph->find(n)) {
        const NodePtr node = entry->node.lock();
        if (node) return node->is_realized();
      }
    return true;
  }

  HolderCounts own_;
  const HolderCounts* held_ = nullptr;
};

/// Whether lazy nodes read `storage` or views of it. Most assigns find none: what lies below their
/// value need not be looked at then.
bool has_readers(const Node& storage, const NodeSet& chain) {
  return std::ranges::any_of(storage.readers, [&](const std::weak_ptr<Node>& w) {
    const NodePtr reader = w.lock();
    if (!reader || reader->is_realized()) return false;
    return !chain.count(reader.get()) || has_readers(*reader, chain);
  });
}

/// Lazy nodes that read `storage` or views of it and must keep its contents. `chain`: views that
/// stay views.
/// `below` has a value where has_readers() says so.
void collect_readers(Node& storage, const NodeSet& chain, const std::optional<Below>& below,
                     std::vector<NodePtr>& out) {
  std::vector<std::weak_ptr<Node>> readers;
  readers.swap(storage.readers);
  for (std::weak_ptr<Node>& w : readers) {
    NodePtr reader = w.lock();
    if (!reader || reader->is_realized()) continue;
    if (chain.count(reader.get())) {
      collect_readers(*reader, chain, below, out);
      storage.readers.push_back(reader);
      continue;
    }
    if (!below->has(reader.get()) || below->is_needed_elsewhere(reader))
      out.push_back(std::move(reader));
  }
}

}  // namespace

uint32_t Schedule::var_slot(const Var& v) {
  for (size_t i = 0; i < vars.size(); ++i)
    if (vars[i] == v) return static_cast<uint32_t>(i);
  vars.push_back(v);
  return static_cast<uint32_t>(vars.size() - 1);
}

void Schedule::make_programs() {
  const std::vector<ProgramPtr> programs = unwrap(programs_for(wanted));
  for (size_t i = 0; i < programs.size(); ++i)
    std::get<runtime::KernelCall>(calls[waiting[i]].what).program = programs[i];
  wanted.clear();
  waiting.clear();
}

void realize_nodes(std::span<const NodePtr> roots) {
  Builder builder;
  builder.build(roots, nullptr, nullptr);
  run(builder.schedule);
  builder.commit();
}

void assign_nodes(const NodePtr& target, const NodePtr& value) {
  NodeSet chain;
  NodePtr storage = target;
  for (; is_movement(storage->kind); storage = NodePtr(storage->src[0])) {
    const Node* const base = storage.get();
    if (base->kind == NodeKind::kExpand || base->kind == NodeKind::kPad)
      raise(Code::kInvalidArgument, "assign: the target {} repeats or pads elements of its storage",
            to_string(target->shape));
    chain.insert(base);
  }
  Node* const base = storage.get();
  if (!base->is_realized())
    raise(Code::kInvalidArgument, "assign: the target {} has no storage; realize() it first",
          to_string(target->shape));
  check_readable(*base);
  std::vector<NodePtr> roots;
  std::optional<Below> below;
  if (has_readers(*base, chain)) below.emplace(value);
  collect_readers(*base, chain, below, roots);
  if (CaptureScope* capture = CaptureScope::current()) capture->add_target(storage, target);
  auto root = std::make_shared<Node>();
  root->kind = NodeKind::kContiguous;
  root->dtype = value->dtype;
  root->device = value->device;
  root->shape = value->shape;
  root->src = {value};
  roots.push_back(root);
  Builder builder;
  builder.build(roots, root.get(), target);
  run(builder.schedule);
  builder.commit();
}

void keep_old_contents(const NodePtr& base, std::span<const NodePtr> but) {
  NodeSet views;
  for (const NodePtr& v : but) views.insert(v.get());
  std::vector<NodePtr> roots;
  std::optional<Below> below;
  if (has_readers(*base, views)) below.emplace(nullptr);
  collect_readers(*base, views, below, roots);
  if (!roots.empty()) realize_nodes(roots);
}

}  // namespace bm
