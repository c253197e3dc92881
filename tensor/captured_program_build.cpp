// From a function to a captured program.

#include <algorithm>
#include <map>
#include <unordered_map>

#include "runtime/base/env.h"
#include "runtime/planner.h"
#include "tensor/captured_program.h"
#include "tensor/exception.h"
#include "tensor/primitives.h"

namespace bm {
void settle_results(std::span<Tensor* const> results, std::span<Tensor* const> arguments) {
  std::vector<Tensor*> wanted;
  for (Tensor* t : results) {
    t->device();
    if (!t->is_realized() && is_view_of_storage(t->node().get())) {
      const bool is_argument = std::any_of(arguments.begin(), arguments.end(),
                                           [&](Tensor* a) { return a->node() == t->node(); });
      if (is_argument) continue;
      *t = t->contiguous();
    }
    wanted.push_back(t);
  }
  Tensor::realize(wanted);
}

std::unique_ptr<CapturedProgram> CapturedProgram::capture(std::span<Tensor* const> arguments,
                                                          JitInputs& inputs, const Body& body,
                                                          const CaptureOptions& options) {
  return guard_call("capturing a program", [&] {
    std::unique_ptr<CapturedProgram> p(new CapturedProgram);
    p->options_ = options;
    p->arenas_ = options.arenas ? options.arenas : std::make_shared<ArenaPool>();
    p->keys_ = inputs.keys();
    p->slots_.resize(inputs.num_slots());
    p->bound_.resize(inputs.num_slots());
    inputs.bind_first(&p->bound_);
    for (size_t i = 0; i < p->bound_.size(); ++i)
      for (size_t k = 0; k < i; ++k)
        if (overlaps(p->bound_[k], p->bound_[i]))
          raise(Code::kInvalidArgument,
                "Jit: duplicate inputs to JIT: arguments {} and {} share memory", k, i);
    p->seen_detached_ = num_detached();
    CaptureScope scope;
    p->record(body, &scope);
    p->plan_memory(scope);
    p->note_memory([&](const runtime::Storage* storage) {
      return scope.has_made(storage) ||
             std::any_of(p->arena_blocks_.begin(), p->arena_blocks_.end(),
                         [&](const runtime::Buffer& b) { return b.storage.get() == storage; });
    });
    p->build_graph();
    p->watched_ = scope.watched();
    p->targets_ = scope.targets();
    check_step(CaptureStep::kFirstRun);
    p->is_first_run_ = true;
    p->replay(arguments, inputs);
    p->is_first_run_ = false;
    scope.keep();
    // What only the capture held is gone: replays need not look at it.
    for (const CaptureScope::Target& target : p->targets_)
      std::erase_if(target.base->readers, [](const auto& reader) { return reader.expired(); });
    return p;
  });
}

void CapturedProgram::record(const Body& body, CaptureScope* scope) {
  StandIns stand_ins = make_stand_ins(keys_, bound_);
  std::vector<Tensor*> arguments;
  for (Tensor& t : stand_ins.tensors) arguments.push_back(&t);
  results_ = body(arguments);
  settle_results(results_.tensors, arguments);
  check_step(CaptureStep::kPacking);
  packed_.split(&scope->schedule(), stand_ins.slots);
  Schedule schedule = scope->take();
  scope->stop();
  calls_ = std::move(schedule.calls);
  vars_ = std::move(schedule.vars);
  values_.resize(vars_.size());
  for (runtime::Call& call : calls_)
    for (runtime::Arg& arg : call.args) arg.slot = stand_ins.slot_of(arg.buffer);
  note_slots();
  sort_outputs(*scope, stand_ins);
  // Handing an input through is work enough; a result that depends on nothing would be frozen.
  const bool is_all_passed = std::all_of(outputs_.begin(), outputs_.end(), [](const Output& o) {
    return o.kind == Output::Kind::kPassed;
  });
  if (calls_.empty() && !is_all_passed)
    raise(Code::kInvalidArgument, "Jit: the function ran no tensor work (didn't JIT anything!)");
  check_sharing();
  choose_donors();
}

/// What the calls do with the inputs.
void CapturedProgram::note_slots() {
  for (size_t c = 0; c < calls_.size(); ++c)
    for (const runtime::Arg& arg : calls_[c].args) {
      if (arg.slot < 0 || static_cast<size_t>(arg.slot) >= slots_.size()) continue;
      Slot& slot = slots_[static_cast<size_t>(arg.slot)];
      slot.is_written |= arg.is_written;
      has_written_slots_ |= arg.is_written;
      if (arg.is_read) slot.last_read = static_cast<uint32_t>(c);
    }
}

/// An assign realises other views of its storage first, which arguments of this call cannot see.
void CapturedProgram::check_sharing() const {
  for (size_t i = 0; i < keys_.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (keys_[i].slot == keys_[k].slot && slots_[keys_[i].slot].is_written)
        raise(Code::kInvalidArgument,
              "Jit: arguments {} and {} are views of one tensor, and the function writes through "
              "one of them; pass the tensor itself",
              k, i);
}

void CapturedProgram::sort_outputs(const CaptureScope& scope, const StandIns& stand_ins) {
  std::unordered_map<const runtime::Storage*, uint32_t> known;
  for (Tensor* t : results_.tensors) {
    Output out;
    const NodePtr& node = t->node();
    const auto passed = std::find_if(stand_ins.tensors.begin(), stand_ins.tensors.end(),
                                     [&](const Tensor& a) { return a.node() == node; });
    if (passed != stand_ins.tensors.end()) {
      out.kind = Output::Kind::kPassed;
      has_passed_outputs_ = true;
      out.index = static_cast<uint32_t>(passed - stand_ins.tensors.begin());
    } else if (!scope.has_made(node->buffer.storage.get())) {
      out.kind = Output::Kind::kState;
    } else if (options_.outputs != Outputs::kReuse) {
      const auto [it, is_new] =
          known.emplace(node->buffer.storage.get(), static_cast<uint32_t>(new_.size()));
      out.index = it->second;
      if (is_new) {
        NewStorage storage;
        storage.device = &node->buffer.device();
        storage.size = node->buffer.size;
        storage.shape = node->shape;
        storage.dtype = node->dtype;
        storage.present = node->buffer;
        new_.push_back(std::move(storage));
      }
    }
    outputs_.push_back(out);
  }
  for (size_t k = 0; k < new_.size(); ++k) bound_.push_back(new_[k].present);
  for (runtime::Call& call : calls_)
    for (runtime::Arg& arg : call.args)
      if (const auto it = known.find(arg.buffer.storage.get()); it != known.end())
        arg.slot = static_cast<int32_t>(slots_.size() + it->second);
}

void CapturedProgram::choose_donors() {
  if (options_.outputs != Outputs::kDonate) return;
  std::vector<bool> is_taken(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    is_taken[i] = !keys_[i].views.empty() || slots_[keys_[i].slot].is_written;
    for (size_t k = 0; k < keys_.size(); ++k)
      if (k != i && keys_[k].slot == keys_[i].slot) is_taken[i] = true;
    for (const Output& o : outputs_)
      if (o.kind == Output::Kind::kPassed && o.index == i) is_taken[i] = true;
  }
  for (NewStorage& storage : new_)
    for (size_t i = 0; i < keys_.size() && storage.donor < 0; ++i) {
      if (is_taken[i] || keys_[i].device != storage.device ||
          bound_[keys_[i].slot].size != storage.size)
        continue;
      is_taken[i] = true;
      storage.donor = static_cast<int32_t>(i);
    }
}

/// Places intermediate storages whose lifetimes do not overlap into one arena per device.
void CapturedProgram::plan_memory(const CaptureScope& scope) {
  if (settings().no_memory_planner) return;
  check_step(CaptureStep::kPlan);
  struct Use {
    runtime::StoragePtr storage;
    uint32_t first = 0, last = 0;
    long count = 0;
    bool is_copied = false;
  };
  std::vector<Use> uses;
  std::unordered_map<const runtime::Storage*, size_t> index;
  for (size_t c = 0; c < calls_.size(); ++c)
    for (const runtime::Arg& arg : calls_[c].args) {
      if (arg.slot >= 0) continue;
      auto [it, is_new] = index.emplace(arg.buffer.storage.get(), uses.size());
      if (is_new) uses.push_back({arg.buffer.storage, static_cast<uint32_t>(c), 0, 0, false});
      Use& u = uses[it->second];
      u.last = static_cast<uint32_t>(c);
      u.count += 1;
      u.is_copied |= std::holds_alternative<runtime::CopyCall>(calls_[c].what);
    }
  const auto undo = scope.undo_holders();
  std::map<runtime::Device*, std::vector<size_t>> by_device;
  for (size_t i = 0; i < uses.size(); ++i) {
    const Use& u = uses[i];
    const auto it = undo.find(u.storage.get());
    const long held = u.count + 1 + (it == undo.end() ? 0 : it->second);
    // Held by nothing but these calls, this table and the undo list, first touched by a write: an
    // intermediate.
    if (u.storage.use_count() != held || u.is_copied) continue;
    const runtime::Call& first = calls_[u.first];
    const bool is_written_first =
        std::any_of(first.args.begin(), first.args.end(), [&](const runtime::Arg& arg) {
          return arg.buffer.storage == u.storage && arg.is_written && !arg.is_read;
        });
    if (is_written_first) by_device[&u.storage->device()].push_back(i);
  }
  for (auto& [device, members] : by_device) {
    std::vector<runtime::PlanBuffer> wanted;
    for (size_t i : members)
      wanted.push_back(
          {.size = uses[i].storage->size(), .first_use = uses[i].first, .last_use = uses[i].last});
    const auto plan = runtime::plan_memory(wanted);
    if (!plan) continue;  // absurd sizes: the buffers stay as they are
    const runtime::Buffer arena =
        unwrap(arenas_->take(*device, std::max<uint64_t>(plan->arena_sizes.at(0), 1)));
    arena_blocks_.push_back(arena);
    std::unordered_map<const runtime::Storage*, uint64_t> offsets;
    for (size_t k = 0; k < members.size(); ++k)
      offsets[uses[members[k]].storage.get()] = plan->offsets[k];
    for (runtime::Call& call : calls_)
      for (runtime::Arg& arg : call.args) {
        const auto it = offsets.find(arg.buffer.storage.get());
        if (arg.slot >= 0 || it == offsets.end()) continue;
        arg.buffer.storage = arena.storage;
        arg.buffer.offset += it->second + arena.offset;
      }
  }
}

void CapturedProgram::note_memory(const std::function<bool(const runtime::Storage*)>& is_own) {
  std::unordered_map<const runtime::Storage*, size_t> index;
  for (size_t c = 0; c < calls_.size(); ++c)
    for (const runtime::Arg& arg : calls_[c].args) {
      if (arg.slot >= 0) continue;
      const auto [it, is_new] = index.emplace(arg.buffer.storage.get(), fixed_.size());
      if (is_new)
        fixed_.push_back({.bytes = arg.buffer, .is_own = is_own(arg.buffer.storage.get())});
      Fixed& fixed = fixed_[it->second];
      const uint64_t begin = std::min(fixed.bytes.offset, arg.buffer.offset);
      const uint64_t end =
          std::max(fixed.bytes.offset + fixed.bytes.size, arg.buffer.offset + arg.buffer.size);
      fixed.bytes.offset = begin;
      fixed.bytes.size = end - begin;
      if (!arg.is_written || fixed.is_written) continue;
      fixed.is_written = true;
      fixed.first_write = static_cast<uint32_t>(c);
      written_.push_back(static_cast<uint32_t>(it->second));
    }
}

void CapturedProgram::build_graph() {
  check_step(CaptureStep::kGraph);
  if (settings().jit == 1 && !calls_.empty()) {
    auto graph = runtime::make_graph(calls_, static_cast<uint32_t>(bound_.size()),
                                     static_cast<uint32_t>(vars_.size()), bound_);
    if (graph)
      graph_ = std::move(*graph);
    else if (graph.error().code != Code::kUnsupported)
      throw Exception(std::move(graph.error()));
  }
  for (runtime::Call& call : calls_)
    for (runtime::Arg& arg : call.args)
      if (arg.slot >= 0) {
        arg.buffer.offset -= bound_[static_cast<size_t>(arg.slot)].offset;
        arg.buffer.storage.reset();
      }
}

}  // namespace bm
