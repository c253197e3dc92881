#include "drivers/cpu/recording.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "drivers/cpu/host_addresses.h"
#include "drivers/cpu/host_commands.h"
#include "drivers/cpu/program.h"

namespace bm::cpu {
namespace {

using hal::raw;

Status check_command(const hal::Command& command) {
  struct Visitor {
    Status operator()(const hal::Wait& c) const { return check_word(c.signal, "Wait"); }
    Status operator()(const hal::Signal& c) const { return check_word(c.signal, "Signal"); }
    Status operator()(const hal::Timestamp& c) const { return check_word(c.dst, "Timestamp"); }
    Status operator()(const hal::Write& c) const { return check_word(c.dst, "Write"); }
    Status operator()(const hal::Copy& c) const { return check_copy(c); }
    Status operator()(const hal::Barrier&) const { return {}; }
    Status operator()(const hal::Dispatch&) const { return {}; }
  };
  return std::visit(Visitor{}, command);
}

/// Blocks of a grid. Errors: kInvalidArgument beyond 2^63, which the pool's counters could not
/// hold.
Result<uint64_t> count_blocks(const std::array<uint64_t, 3>& grid) {
  uint64_t blocks = 0;
  if (__builtin_mul_overflow(grid[0], grid[1], &blocks) ||
      __builtin_mul_overflow(blocks, grid[2], &blocks) ||
      blocks > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return fail(Code::kInvalidArgument, "grid of {} x {} x {} blocks", grid[0], grid[1], grid[2]);
  return blocks;
}

CallKind kind_of_launch(uint64_t blocks, uint64_t work_per_block, const CallRules& rules) {
  if (rules.counts_only) return CallKind::kCounted;
  if (blocks == 0) return CallKind::kNothing;
  uint64_t work = 0;
  const bool is_big = __builtin_mul_overflow(blocks, work_per_block, &work) || work >= kPoolWork;
  return is_big && blocks > 1 && rules.pool_threads > 1 ? CallKind::kPoolKernel : CallKind::kKernel;
}

Result<Call> launch_call(const hal::Dispatch& dispatch, const CallRules& rules) {
  if (dispatch.program == nullptr)
    return fail(Code::kInvalidArgument, "Dispatch without a program");
  const hal::CodeObject& code = dispatch.program->code();
  const uint64_t blocks = BM_TRY(count_blocks({dispatch.grid.x, dispatch.grid.y, dispatch.grid.z}));
  Call call{.kind = kind_of_launch(blocks, code.work_per_block, rules),
            .words = {0, raw(dispatch.kernarg), blocks, code.scratch_bytes}};
  if (rules.counts_only) return call;
  // The one checked downcast: a program of another device would be called at a wild address.
  const auto* program = dynamic_cast<const CpuProgram*>(dispatch.program);
  if (program == nullptr)
    return fail(Code::kInvalidArgument, "kernel '{}' was loaded by another device", code.entry);
  if (code.num_buffers + code.num_vars != 0 &&
      (raw(dispatch.kernarg) == 0 || raw(dispatch.kernarg) % 8 != 0))
    return fail(Code::kInvalidArgument, "kernel '{}': argument block at {:#x}", code.entry,
                raw(dispatch.kernarg));
  if (code.scratch_bytes != 0 && !rules.has_pool)
    return fail(Code::kUnsupported, "kernel '{}' wants {} bytes of scratch; this queue has none",
                code.entry, code.scratch_bytes);
  call.words[0] = reinterpret_cast<uint64_t>(program->entry());
  return call;
}

}  // namespace

Result<Call> make_call(const hal::Command& command, const CallRules& rules) {
  struct Visitor {
    const CallRules& rules;
    Result<Call> operator()(const hal::Wait& c) const {
      return Call{CallKind::kWait, {raw(c.signal), c.value}};
    }
    Result<Call> operator()(const hal::Signal& c) const {
      return Call{CallKind::kSignal, {raw(c.signal), c.value}};
    }
    Result<Call> operator()(const hal::Timestamp& c) const {
      return Call{CallKind::kTimestamp, {raw(c.dst)}};
    }
    Result<Call> operator()(const hal::Barrier&) const { return Call{CallKind::kBarrier, {}}; }
    Result<Call> operator()(const hal::Copy& c) const {
      return Call{rules.counts_only ? CallKind::kCounted : CallKind::kCopy,
                  {raw(c.dst), raw(c.src), c.bytes}};
    }
    Result<Call> operator()(const hal::Dispatch& c) const { return launch_call(c, rules); }
    Result<Call> operator()(const hal::Write& c) const {
      return Call{CallKind::kWrite, {raw(c.dst), c.value}};
    }
  };
  BM_TRY(check_command(command));
  return std::visit(Visitor{rules}, command);
}

Result<std::unique_ptr<CallRecording>> CallRecording::build(std::span<const hal::Command> commands,
                                                            std::span<const hal::Patch> patches,
                                                            const CallRules& rules) {
  std::unique_ptr<CallRecording> recording(new CallRecording(rules));
  recording->calls_.reserve(commands.size());
  for (const hal::Command& command : commands)
    recording->calls_.push_back(BM_TRY(make_call(command, rules)));
  // Stores point into both vectors: they must not move any more.
  recording->launches_.reserve(std::min(patches.size(), commands.size()));
  uint32_t slots = 0;
  for (const hal::Patch& patch : patches) {
    if (patch.slot == std::numeric_limits<uint32_t>::max())
      return fail(Code::kInvalidArgument, "patch of slot {}", patch.slot);
    slots = std::max(slots, patch.slot + 1);
    uint64_t* target = BM_TRY(recording->target_of(commands, patch));
    if (target != nullptr) recording->stores_.push_back({patch.slot, target, patch.addend});
    const bool is_address = patch.field == hal::PatchField::kSignalAddress ||
                            patch.field == hal::PatchField::kCopyDst ||
                            patch.field == hal::PatchField::kCopySrc ||
                            patch.field == hal::PatchField::kCopyBytes;
    if (is_address) recording->addressed_.push_back(patch.command);
  }
  recording->last_.resize(slots);
  BM_TRY(recording->sort_stores());
  return recording;
}

Result<uint64_t*> CallRecording::target_of(std::span<const hal::Command> commands,
                                           const hal::Patch& patch) {
  using hal::PatchField;
  if (patch.command >= commands.size())
    return fail(Code::kInvalidArgument, "patch of command {} of {}", patch.command,
                commands.size());
  const hal::Command& command = commands[patch.command];
  Call& call = calls_[patch.command];
  const auto mismatch = [&] {
    return fail(Code::kInvalidArgument, "patch field {} does not exist in command {} (kind {})",
                static_cast<int>(patch.field), patch.command, command.index());
  };
  const auto* dispatch = std::get_if<hal::Dispatch>(&command);
  const bool is_copy = std::holds_alternative<hal::Copy>(command);
  const bool has_value = std::holds_alternative<hal::Wait>(command) ||
                         std::holds_alternative<hal::Signal>(command) ||
                         std::holds_alternative<hal::Write>(command);
  switch (patch.field) {
    case PatchField::kKernarg: {
      if (dispatch == nullptr) return mismatch();
      const hal::CodeObject& code = dispatch->program->code();
      if (patch.word >= code.num_buffers + code.num_vars)
        return fail(Code::kInvalidArgument, "patch of argument {} of kernel '{}', which has {}",
                    patch.word, code.entry, code.num_buffers + code.num_vars);
      if (!is_host_address(dispatch->kernarg)) return nullptr;
      return reinterpret_cast<uint64_t*>(raw(dispatch->kernarg)) + patch.word;
    }
    case PatchField::kGridX:
    case PatchField::kGridY:
    case PatchField::kGridZ:
      if (dispatch == nullptr) return mismatch();
      return grid_target(patch.command,
                         static_cast<size_t>(patch.field) - static_cast<size_t>(PatchField::kGridX),
                         *dispatch);
    case PatchField::kCopyDst:
      if (!is_copy) return mismatch();
      return &call.words[0];
    case PatchField::kCopySrc:
      if (!is_copy) return mismatch();
      return &call.words[1];
    case PatchField::kCopyBytes:
      if (!is_copy) return mismatch();
      return &call.words[2];
    case PatchField::kSignalAddress:
      if (!has_value && !std::holds_alternative<hal::Timestamp>(command)) return mismatch();
      return &call.words[0];
    case PatchField::kSignalValue:
      if (!has_value) return mismatch();
      return &call.words[1];
  }
  return mismatch();
}

uint64_t* CallRecording::grid_target(uint32_t command, size_t axis, const hal::Dispatch& dispatch) {
  auto found = std::find_if(launches_.begin(), launches_.end(),
                            [command](const Launch& launch) { return launch.call == command; });
  if (found == launches_.end()) {
    launches_.push_back({.call = command,
                         .work_per_block = dispatch.program->code().work_per_block,
                         .grid = {dispatch.grid.x, dispatch.grid.y, dispatch.grid.z}});
    found = launches_.end() - 1;
  }
  return &found->grid[axis];
}

Status CallRecording::sort_stores() {
  std::sort(stores_.begin(), stores_.end(),
            [](const Store& a, const Store& b) { return a.target < b.target; });
  for (size_t i = 1; i < stores_.size(); ++i) {
    const Store &a = stores_[i - 1], &b = stores_[i];
    // Only changed slots are rewritten, so the later of two would not always win.
    if (a.target == b.target && (a.slot != b.slot || a.addend != b.addend))
      return fail(Code::kInvalidArgument, "slots {} and {} both patch the word at {}", a.slot,
                  b.slot, static_cast<const void*>(a.target));
  }
  std::sort(stores_.begin(), stores_.end(), [](const Store& a, const Store& b) {
    return a.slot != b.slot ? a.slot < b.slot : a.target < b.target;
  });
  first_store_.assign(last_.size() + 1, 0);
  for (const Store& store : stores_) ++first_store_[store.slot + 1];
  for (size_t i = 1; i < first_store_.size(); ++i) first_store_[i] += first_store_[i - 1];
  return {};
}

Status CallRecording::patch(std::span<const uint64_t> values) {
  if (values.size() < last_.size())
    return fail(Code::kInvalidArgument, "replay with {} values, {} wanted", values.size(),
                last_.size());
  bool changed = false;
  for (size_t slot = 0; slot < last_.size(); ++slot) {
    const uint64_t value = values[slot];
    if (value == last_[slot] && !must_write_all_) continue;
    changed = true;
    last_[slot] = value;
    for (uint32_t i = first_store_[slot]; i < first_store_[slot + 1]; ++i)
      *stores_[i].target = value + stores_[i].addend;
  }
  if (!changed) return {};
  must_write_all_ = true;  // stays so if something is refused
  BM_TRY(check_addresses());
  BM_TRY(update_launches());
  must_write_all_ = false;
  return {};
}

/// Before anything runs, as at record.
Status CallRecording::check_addresses() const {
  for (const uint32_t index : addressed_) {
    const Call& call = calls_[index];
    const hal::GpuVa first{call.words[0]};
    if (call.kind == CallKind::kCopy || call.kind == CallKind::kCounted) {
      BM_TRY(check_copy({first, hal::GpuVa{call.words[1]}, call.words[2]}));
    } else {
      BM_TRY(check_word(first, "a command"));
    }
  }
  return {};
}

Status CallRecording::update_launches() {
  for (const Launch& launch : launches_) {
    for (uint64_t extent : launch.grid)
      if (extent > std::numeric_limits<uint32_t>::max())
        return fail(Code::kInvalidArgument, "launch dimension {} of command {} exceeds 32 bits",
                    extent, launch.call);
    const uint64_t blocks = BM_TRY(count_blocks(launch.grid));
    calls_[launch.call].words[2] = blocks;
    calls_[launch.call].kind = kind_of_launch(blocks, launch.work_per_block, rules_);
  }
  return {};
}

}  // namespace bm::cpu
