// Runs of captured programs. In the ordinary case (outputs in memory of the program, unchecked) a
// run allocates nothing, looks nothing up and makes no system call.

#include "tensor/captured_program.h"

#include <algorithm>

#include "runtime/base/env.h"
#include "tensor/exception.h"
#include "tensor/schedule.h"

namespace bm {
namespace {

constexpr std::string_view kRunning = "running a captured program";

/// Call by call: for what is no graph, and to see each kernel once with DEBUG=2. Offsets of input
/// arguments count from the start of the input.
void run_calls(std::span<const runtime::Call> calls, std::span<const runtime::Buffer> slots,
               std::span<const int64_t> values) {
  for (const runtime::Call& call : calls) {
    runtime::Call bound = call;
    for (runtime::Arg& arg : bound.args) {
      if (arg.slot < 0) continue;
      const runtime::Buffer& slot = slots[static_cast<size_t>(arg.slot)];
      arg.buffer.storage = slot.storage;
      arg.buffer.offset += slot.offset;
    }
    unwrap(runtime::execute(bound, values));
  }
}

/// Whether a lazy tensor reads `storage`, or a view of it for which `is_kept` says so, and is
/// itself none of those views. No allocation.
template <class Kept>
bool has_lazy_readers(const Node& storage, const Kept& is_kept) {
  for (const std::weak_ptr<Node>& w : storage.readers) {
    const NodePtr reader = w.lock();
    if (!reader || reader->is_realized()) continue;
    if (!is_kept(reader.get()) || has_lazy_readers(*reader, is_kept)) return true;
  }
  return false;
}

}  // namespace

CapturedProgram::~CapturedProgram() = default;

uint64_t CapturedProgram::arena_bytes() const {
  uint64_t sum = 0;
  for (const runtime::Buffer& block : arena_blocks_) sum += block.size;
  return sum;
}

/// Asked when some watched node, perhaps of another program, got storage since the last time.
bool CapturedProgram::has_detached() {
  const uint64_t now = num_detached();
  for (const std::weak_ptr<Node>& w : watched_)
    if (const NodePtr node = w.lock(); node && node->is_realized()) return true;
  seen_detached_ = now;
  return false;
}

std::span<Tensor* const> CapturedProgram::run(std::span<Tensor* const> arguments) {
  if (try_replay(arguments)) [[likely]]
    return results_.tensors;
  own_inputs_.describe(arguments);
  if (arguments.size() != keys_.size())
    raise(Code::kInvalidArgument, "captured program: {} arguments given, it takes {}",
          arguments.size(), keys_.size());
  if (!own_inputs_.matches(keys_)) {
    for (size_t i = 0; i < keys_.size(); ++i)
      if (arguments[i]->dtype() != keys_[i].dtype || !(arguments[i]->shape() == keys_[i].shape) ||
          &arguments[i]->device() != keys_[i].device)
        raise(Code::kInvalidArgument,
              "captured program: argument {} is {} {} on {}, not {} {} on {}", i,
              dtype_name(arguments[i]->dtype()), to_string(arguments[i]->shape()),
              arguments[i]->device().name(), dtype_name(keys_[i].dtype), to_string(keys_[i].shape),
              keys_[i].device->name());
    raise(Code::kInvalidArgument,
          "captured program: the arguments are other views of their storages than at capture; pass "
          "contiguous() ones");
  }
  replay(arguments, own_inputs_);
  return results_.tensors;
}

std::span<Tensor* const> CapturedProgram::run(std::initializer_list<Tensor> arguments) {
  return guard_call("running a captured program", [&] {
    std::vector<Tensor> held(arguments);
    std::vector<Tensor*> pointers;
    for (Tensor& t : held) pointers.push_back(&t);
    return run(pointers);
  });
}

void CapturedProgram::replay(std::span<Tensor* const> arguments, JitInputs& inputs) {
  guard_call(kRunning, [&] {
    inputs.bind(&bound_);
    replay_bound(arguments);
  });
}

bool CapturedProgram::try_replay(std::span<Tensor* const> arguments) {
  return guard_call(kRunning, [&] {
    if (!bind_whole(arguments, keys_, bound_)) return false;
    replay_bound(arguments);
    return true;
  });
}

void CapturedProgram::replay_bound(std::span<Tensor* const> arguments) {
  guard_inputs();
  keep_old_values(arguments);
  if (options_.is_checked || settings().checked) [[unlikely]]
    mark_old_outputs();
  for (size_t i = 0; i < vars_.size(); ++i) values_[i] = vars_[i].value();
  if (!new_.empty()) make_new_storage();
  run_bound();
  finish(arguments);
}

/// Inputs that lie in what the program writes: copied where the copy means the same, refused
/// elsewhere.
void CapturedProgram::guard_inputs() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const runtime::Storage* const storage = bound_[i].storage.get();
    if (storage == slots_[i].harmless) continue;
    slots_[i].harmless = storage;
    for (const uint32_t w : written_) {
      if (fixed_[w].bytes.storage.get() != storage) continue;
      slots_[i].harmless = nullptr;
      if (overlaps(bound_[i], fixed_[w].bytes)) copy_away(i, fixed_[w]);
      break;  // a storage is there once
    }
  }
  if (has_written_slots_) [[unlikely]]
    check_written_inputs();
}

void CapturedProgram::copy_away(size_t i, const Fixed& written) {
  Slot& slot = slots_[i];
  // The last run's output fed back, or a state that is written after the input was read.
  if (!written.is_own && (slot.is_written || slot.last_read > written.first_write))
    raise(Code::kInvalidArgument,
          "Jit: input {} shares memory with a tensor that the function writes and does not get "
          "as an argument; pass a clone() of it",
          i);
  if (!slot.shadow.has_storage())
    slot.shadow = unwrap(runtime::allocate(bound_[i].storage->device(), {.size = bound_[i].size}));
  slot.shadow.size = bound_[i].size;
  unwrap(runtime::copy(slot.shadow, bound_[i]));
  bound_[i] = slot.shadow;
}

void CapturedProgram::check_written_inputs() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_written) continue;
    for (size_t k = 0; k < slots_.size(); ++k)
      if (k != i && overlaps(bound_[i], bound_[k]))
        raise(
            Code::kInvalidArgument,
            "Jit: duplicate inputs to JIT: inputs {} and {} share memory, and the function writes "
            "one of them",
            std::min(i, k), std::max(i, k));
    for (const Fixed& fixed : fixed_)
      if (overlaps(bound_[i], fixed.bytes))
        raise(Code::kInvalidArgument,
              "Jit: input {}, which the function writes, shares memory with a tensor that it reads "
              "and does not get as an argument; pass a clone() of it",
              i);
  }
}

/// Lazy tensors made of what this run overwrites keep the value they have now, as under an assign.
void CapturedProgram::keep_old_values(std::span<Tensor* const> arguments) {
  if (has_written_slots_) [[unlikely]]
    keep_old_arguments(arguments);
  // The capture itself has seen to those that were there before it.
  if (is_first_run_) return;
  for (const CaptureScope::Target& target : targets_) {
    if (target.base->readers.empty()) continue;
    const auto is_view = [&](const Node* view) {
      return std::any_of(target.views.begin(), target.views.end(),
                         [&](const NodePtr& v) { return v.get() == view; });
    };
    if (has_lazy_readers(*target.base, is_view)) keep_old_contents(target.base, target.views);
  }
  if (options_.outputs != Outputs::kReuse) return;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    // An argument handed through has no value before the first run of a loaded program.
    if (outputs_[i].kind != Output::Kind::kOwn) continue;
    const NodePtr& node = results_.tensors[i]->node();
    if (node->readers.empty()) continue;
    if (has_lazy_readers(*node, [](const Node*) { return false; })) keep_old_contents(node, {});
  }
}

void CapturedProgram::keep_old_arguments(std::span<Tensor* const> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!slots_[keys_[i].slot].is_written) continue;
    const NodePtr* base = &arguments[i]->node();
    while (is_movement((*base)->kind)) base = &(*base)->src[0];
    const auto is_argument = [&](const Node* view) {
      for (const Node* n = arguments[i]->node().get(); n != base->get(); n = n->src[0].get())
        if (n == view) return true;
      return false;
    };
    if (!has_lazy_readers(**base, is_argument)) continue;
    std::vector<NodePtr> views;
    for (const NodePtr* n = &arguments[i]->node(); n != base; n = &(*n)->src[0])
      views.push_back(*n);
    keep_old_contents(NodePtr(*base), views);
  }
}

/// Checked: who still holds an output that is about to be overwritten, reads an error from now on.
void CapturedProgram::mark_old_outputs() {
  if (options_.outputs != Outputs::kReuse || is_first_run_) return;
  std::vector<std::pair<NodePtr, NodePtr>> replaced;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].kind != Output::Kind::kOwn) continue;
    Tensor& t = *results_.tensors[i];
    const auto known = std::find_if(replaced.begin(), replaced.end(),
                                    [&](const auto& pair) { return pair.first == t.node(); });
    if (known != replaced.end()) {
      t = Tensor(known->second);
      continue;
    }
    if (t.node().use_count() == 1) continue;
    const NodePtr old = t.node();
    const auto node = std::make_shared<Node>();
    node->kind = NodeKind::kBuffer;
    node->dtype = old->dtype;
    node->device = old->device;
    node->shape = old->shape;
    node->buffer = old->buffer;
    t = Tensor(node);
    replaced.emplace_back(old, node);
  }
  for (const auto& [old, node] : replaced) old->gone = Gone::kOverwritten;
}

void CapturedProgram::make_new_storage() {
  for (size_t k = 0; k < new_.size(); ++k) {
    NewStorage& storage = new_[k];
    if (!is_first_run_)
      storage.present = storage.spare.has_storage()
                            ? std::exchange(storage.spare, {})
                            : unwrap(runtime::allocate(*storage.device, {.size = storage.size}));
    bound_[slots_.size() + k] = storage.present;
  }
}

void CapturedProgram::run_bound() {
  std::unique_lock<std::mutex> turn;
  if (!arena_blocks_.empty()) turn = arenas_->run_lock();
  if (!packed_.empty()) packed_.refresh();
  // A graph reports one line for all its kernels: show them once.
  if (graph_ && !(is_first_run_ && settings().debug >= 2))
    unwrap(graph_->replay(bound_, values_));
  else
    run_calls(calls_, bound_, values_);
}

void CapturedProgram::finish(std::span<Tensor* const> arguments) {
  ++generation_;
  for (const uint32_t w : written_) fixed_[w].bytes.storage->note_write();
  if (has_written_slots_) [[unlikely]]
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].is_written) bound_[i].storage->note_write();
  if (has_passed_outputs_) [[unlikely]]
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_[i].kind == Output::Kind::kPassed)
        *results_.tensors[i] = *arguments[outputs_[i].index];
  if (new_.empty()) return;
  renew_outputs();
  take_donations(arguments);
}

void CapturedProgram::renew_outputs() {
  for (size_t k = 0; k < new_.size(); ++k) {
    NewStorage& storage = new_[k];
    bound_[slots_.size() + k].storage.reset();
    if (!is_first_run_) {
      const bool is_free = storage.idle && storage.idle.use_count() == 1;
      NodePtr node = is_free ? std::move(storage.idle) : std::make_shared<Node>();
      storage.idle.reset();
      node->kind = NodeKind::kBuffer;
      node->dtype = storage.dtype;
      node->device = storage.device;
      node->shape = storage.shape;
      node->buffer = storage.present;
      node->readers.clear();
      node->gone = Gone::kNo;
      for (size_t i = 0; i < outputs_.size(); ++i)
        if (outputs_[i].kind == Output::Kind::kOwn && outputs_[i].index == k)
          *results_.tensors[i] = Tensor(node);
    }
    storage.present = {};
  }
}

void CapturedProgram::take_donations(std::span<Tensor* const> arguments) {
  for (NewStorage& storage : new_) {
    if (storage.donor < 0) continue;
    const NodePtr& node = arguments[static_cast<size_t>(storage.donor)]->node();
    // A view, or memory of somebody else, stays with its owner.
    if (!node->is_realized() || node->buffer.storage->is_imported()) continue;
    const auto none = [](const Node*) { return false; };
    if (has_lazy_readers(*node, none)) keep_old_contents(node, {});
    storage.spare = std::exchange(node->buffer, {});
    node->gone = Gone::kDonated;
    storage.idle = node;
    const bool is_fit = storage.spare.storage.use_count() == 1 && storage.spare.offset == 0 &&
                        storage.spare.size >= storage.size;
    if (is_fit)
      storage.spare.size = storage.size;
    else
      storage.spare = {};
  }
}

}  // namespace bm
