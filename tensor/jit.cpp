#include "tensor/jit.h"

#include <set>
#include <unordered_map>

#include "runtime/base/env.h"
#include "runtime/graph.h"
#include "runtime/planner.h"
#include "tensor/packed_operands.h"
#include "tensor/schedule.h"

namespace bm::detail {
namespace {

struct TensorKey {
  Shape shape;
  DType dtype;
  runtime::Device* device;
};

bool overlaps(const runtime::Buffer& a, const runtime::Buffer& b) {
  return a.storage == b.storage && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
}

/// Call by call: for what is no graph, and to see each kernel once with DEBUG=2. Offsets of input
/// arguments count from the start of the input.
void run_calls(std::vector<runtime::Call>& calls, std::span<const runtime::Buffer> inputs,
               std::span<const int64_t> values) {
  for (runtime::Call& call : calls) {
    runtime::Call bound = call;
    for (runtime::Arg& arg : bound.args) {
      if (arg.slot < 0) continue;
      const runtime::Buffer& input = inputs[static_cast<size_t>(arg.slot)];
      arg.buffer.storage = input.storage;
      arg.buffer.offset += input.offset;
    }
    unwrap(runtime::execute(bound, values));
  }
}

}  // namespace

struct JitCore::Entry {
  std::vector<TensorKey> inputs;
  std::vector<int64_t> scalars;
  bool is_captured = false;

  std::vector<runtime::Call> calls;  ///< kept when there is no graph
  std::unique_ptr<runtime::Graph> graph;
  std::vector<Var> vars;
  size_t num_calls = 0;
  std::vector<runtime::Buffer> written;  ///< captured storage the program writes (inputs excluded)
  std::vector<runtime::Buffer> bound;    ///< scratch of replay: input buffers
  std::vector<runtime::Buffer> shadow;   ///< copies of inputs that alias `written`, made on demand
  std::vector<int64_t> values;           ///< scratch of replay: variable values
  std::vector<std::pair<NodePtr, size_t>> passed_through;  ///< outputs that are an input's storage
  std::vector<size_t> written_inputs;
  PackedOperands packed;
};

JitCore::JitCore(JitOptions options) : options_(options) {}
JitCore::~JitCore() = default;

void JitCore::reset() {
  entries_.clear();
  entry_ = 0;
}
size_t JitCore::num_captures() const {
  size_t n = 0;
  for (const auto& e : entries_) n += e->is_captured ? 1 : 0;
  return n;
}
size_t JitCore::num_calls() const {
  return entry_ < entries_.size() ? entries_[entry_]->num_calls : 0;
}
uint64_t JitCore::packed_bytes() const {
  return entry_ < entries_.size() ? entries_[entry_]->packed.bytes() : 0;
}
bool JitCore::is_graph() const {
  return entry_ < entries_.size() && entries_[entry_]->graph != nullptr;
}

bool JitCore::matches(const Entry& e, const JitArguments& a) const {
  if (e.inputs.size() != a.tensors.size() || e.scalars != a.scalars) return false;
  for (size_t i = 0; i < e.inputs.size(); ++i) {
    const Tensor& t = *a.tensors[i];
    if (t.dtype() != e.inputs[i].dtype || &t.device() != e.inputs[i].device ||
        !(t.shape() == e.inputs[i].shape))
      return false;
  }
  return true;
}

JitCore::Action JitCore::begin(const JitArguments& a, bool is_capture_forced) {
  if (CaptureScope::current())
    return Action::kPlain;  // a nested Jit is inlined into the outer capture
  const int level = settings().jit;
  bool is_known = entry_ < entries_.size() && matches(*entries_[entry_], a);
  for (size_t i = 0; !is_known && i < entries_.size(); ++i)
    if (matches(*entries_[i], a)) {
      entry_ = i;
      is_known = true;
    }
  if (!is_known) {
    if (options_.is_strict && !entries_.empty())
      raise(Code::kInvalidArgument,
            "Jit: the arguments differ from the captured ones in shape, dtype, device or scalar "
            "value (strict mode)");
    auto e = std::make_unique<Entry>();
    for (const Tensor* t : a.tensors) e->inputs.push_back({t->shape(), t->dtype(), &t->device()});
    e->scalars = a.scalars;
    if (entries_.size() < options_.capacity) {
      entry_ = entries_.size();
      entries_.push_back(std::move(e));
    } else {  // the cache is full: the entry after the last used one has waited longest in rotation
      entry_ = (entry_ + 1) % entries_.size();
      entries_[entry_] = std::move(e);
    }
    if (level == 0 || !is_capture_forced) return Action::kPlain;
    return Action::kCapture;
  }
  if (level == 0) return Action::kPlain;
  Entry& e = *entries_[entry_];
  if (!e.is_captured) return Action::kCapture;
  replay(e, a);
  return Action::kReplay;
}

void JitCore::replay(Entry& e, const JitArguments& a) {
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    Tensor& t = *a.tensors[i];
    if (!t.is_realized()) t.realize();
    e.bound[i] = t.buffer();
    for (const runtime::Buffer& w : e.written) {
      if (!overlaps(e.bound[i], w)) continue;
      // Typically the last call's output fed back: the program would overwrite it while reading.
      runtime::Buffer& copy = e.shadow[i];
      if (!copy.has_storage() || copy.size != e.bound[i].size)
        copy = unwrap(runtime::allocate(t.device(), {.size = e.bound[i].size}));
      copy.size = e.bound[i].size;
      unwrap(runtime::copy(copy, e.bound[i]));
      e.bound[i] = copy;
      break;
    }
  }
  for (size_t i = 0; i < e.vars.size(); ++i) e.values[i] = e.vars[i].value();
  for (auto& [node, input] : e.passed_through) node->buffer = e.bound[input];
  e.packed.refresh();
  if (e.graph) {
    unwrap(e.graph->replay(e.bound, e.values));
    for (const runtime::Buffer& w : e.written) w.storage->note_write();
    for (const size_t i : e.written_inputs) e.bound[i].storage->note_write();
    for (runtime::Buffer& b : e.bound) b.storage.reset();  // inputs belong to the caller
    return;
  }
  run_calls(e.calls, e.bound, e.values);
}

namespace {

/// Checks the inputs and returns their buffers.
std::vector<runtime::Buffer> bind_inputs(const JitArguments& a) {
  std::vector<runtime::Buffer> bound;
  for (Tensor* t : a.tensors) {
    t->realize();
    for (size_t i = 0; i < bound.size(); ++i)
      if (overlaps(bound[i], t->buffer()))
        raise(Code::kInvalidArgument,
              "Jit: duplicate inputs to JIT: arguments {} and {} share memory", i, bound.size());
    bound.push_back(t->buffer());
  }
  return bound;
}

/// Places intermediate storages whose lifetimes do not overlap into one arena per device.
void plan_memory(std::vector<runtime::Call>& calls) {
  if (settings().no_memory_planner) return;
  struct Use {
    runtime::StoragePtr storage;
    uint32_t first = 0, last = 0;
    long count = 0;
    bool is_copied = false;
  };
  std::vector<Use> uses;
  std::unordered_map<const runtime::Storage*, size_t> index;
  for (size_t c = 0; c < calls.size(); ++c)
    for (const runtime::Arg& arg : calls[c].args) {
      if (arg.slot >= 0) continue;
      auto [it, is_new] = index.emplace(arg.buffer.storage.get(), uses.size());
      if (is_new) uses.push_back({arg.buffer.storage, static_cast<uint32_t>(c), 0, 0, false});
      Use& u = uses[it->second];
      u.last = static_cast<uint32_t>(c);
      u.count += 1;
      u.is_copied |= std::holds_alternative<runtime::CopyCall>(calls[c].what);
    }
  std::unordered_map<runtime::Device*, std::vector<size_t>> lanes;
  for (size_t i = 0; i < uses.size(); ++i) {
    const Use& u = uses[i];
    // Held by nothing but these calls and this table, first touched by a write: an intermediate.
    if (u.storage.use_count() != u.count + 1 || u.is_copied) continue;
    const runtime::Call& first = calls[u.first];
    const bool is_written_first =
        std::any_of(first.args.begin(), first.args.end(), [&](const runtime::Arg& arg) {
          return arg.buffer.storage == u.storage && arg.is_written && !arg.is_read;
        });
    if (is_written_first) lanes[&u.storage->device()].push_back(i);
  }
  for (auto& [device, members] : lanes) {
    std::vector<runtime::PlanBuffer> wanted;
    for (size_t i : members)
      wanted.push_back(
          {.size = uses[i].storage->size(), .first_use = uses[i].first, .last_use = uses[i].last});
    const auto plan = runtime::plan_memory(wanted);
    if (!plan) continue;  // absurd sizes: the buffers stay as they are
    const runtime::Buffer arena = unwrap(
        runtime::allocate(*device, {.size = std::max<uint64_t>(plan->arena_sizes.at(0), 1)}));
    std::unordered_map<const runtime::Storage*, uint64_t> offsets;
    for (size_t k = 0; k < members.size(); ++k)
      offsets[uses[members[k]].storage.get()] = plan->offsets[k];
    for (runtime::Call& call : calls)
      for (runtime::Arg& arg : call.args) {
        const auto it = offsets.find(arg.buffer.storage.get());
        if (arg.slot >= 0 || it == offsets.end()) continue;
        arg.buffer.storage = arena.storage;
        arg.buffer.offset += it->second + arena.offset;
      }
  }
}

}  // namespace

void JitCore::capture(const JitArguments& a,
                      const std::function<void(std::vector<Tensor*>&)>& body) {
  const size_t index = entry_;
  Entry& e = *entries_[index];
  e.bound = bind_inputs(a);
  Schedule schedule;
  std::vector<Tensor*> outputs;
  {
    CaptureScope scope;
    body(outputs);
    Tensor::realize(outputs);
    e.packed = {};
    e.packed.split(&scope.schedule(), e.bound);
    schedule = scope.take();
  }
  entry_ = index;
  std::set<size_t> written_inputs;
  for (runtime::Call& call : schedule.calls)
    for (runtime::Arg& arg : call.args)
      for (size_t i = 0; i < e.bound.size(); ++i)
        if (overlaps(arg.buffer, e.bound[i])) {
          arg.slot = static_cast<int32_t>(i);
          if (arg.is_written) written_inputs.insert(i);
        }
  e.written_inputs.assign(written_inputs.begin(), written_inputs.end());
  e.passed_through.clear();
  for (Tensor* t : outputs)
    for (size_t i = 0; i < e.bound.size(); ++i)
      if (t->buffer().storage == e.bound[i].storage) e.passed_through.emplace_back(t->node(), i);
  // Handing an input through is work enough; a result that depends on nothing would be frozen.
  if (schedule.calls.empty() && e.passed_through.size() != outputs.size())
    raise(Code::kInvalidArgument, "Jit: the function ran no tensor work (didn't JIT anything!)");
  plan_memory(schedule.calls);
  e.written.clear();
  for (const runtime::Call& call : schedule.calls)
    for (const runtime::Arg& arg : call.args) {
      if (!arg.is_written || arg.slot >= 0) continue;
      const bool is_known =
          std::any_of(e.written.begin(), e.written.end(),
                      [&](const runtime::Buffer& w) { return w.storage == arg.buffer.storage; });
      if (is_known) continue;
      runtime::Buffer whole{arg.buffer.storage, 0, arg.buffer.storage->size()};
      e.written.push_back(whole);
    }
  e.vars = schedule.vars;
  e.values.resize(e.vars.size());
  e.shadow.resize(e.bound.size());
  e.num_calls = schedule.calls.size();
  if (settings().jit == 1 && !schedule.calls.empty()) {
    auto graph = runtime::make_graph(schedule.calls, static_cast<uint32_t>(e.bound.size()),
                                     static_cast<uint32_t>(e.vars.size()), e.bound);
    if (graph)
      e.graph = std::move(*graph);
    else if (graph.error().code != Code::kUnsupported)
      throw Exception(std::move(graph.error()));
  }
  for (runtime::Call& call : schedule.calls)
    for (runtime::Arg& arg : call.args)
      if (arg.slot >= 0) arg.buffer.offset -= e.bound[static_cast<size_t>(arg.slot)].offset;
  e.is_captured = true;
  if (e.graph &&
      settings().debug >= 2) {  // the graph reports one line for all; show its kernels once
    for (size_t i = 0; i < e.vars.size(); ++i) e.values[i] = e.vars[i].value();
    e.packed.refresh();
    run_calls(schedule.calls, e.bound, e.values);
    return;
  }
  if (!e.graph) e.calls = std::move(schedule.calls);
  replay(e, a);
}

}  // namespace bm::detail
