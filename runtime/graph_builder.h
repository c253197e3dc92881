#pragma once
// Internal to graph_build.cpp (who runs what, memory, order of the steps) and graph_emit.cpp
// (commands, patches, recordings): one graph under construction.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "runtime/graph_state.h"

namespace bm::runtime {

/// Commands of one recording under construction.
struct CommandList {
  std::vector<hal::Command> commands;
  std::vector<hal::Patch> patches;

  void add(hal::Command command) { commands.push_back(std::move(command)); }
  /// Patches a field of the command added last.
  void patch(hal::PatchField field, uint32_t slot, uint64_t addend = 0, uint32_t word = 0) {
    patches.push_back({static_cast<uint32_t>(commands.size() - 1), field, word, slot, addend});
  }
};

/// Host-visible memory of one device, given out front to back.
struct Arena {
  uint64_t size = 0, used = 0;
  hal::Buffer* memory = nullptr;
};

struct Place {
  hal::GpuVa va{};
  std::byte* host = nullptr;
};

class GraphBuilder {
 public:
  GraphBuilder(std::vector<Call> calls, uint32_t num_inputs, uint32_t num_vars)
      : calls_(std::move(calls)),
        state_(std::make_unique<GraphState>()),
        plan_calls_(calls_.size()),
        executors_(calls_.size()),
        with_timestamps_(profiler().is_on()) {
    state_->num_inputs = num_inputs;
    state_->num_vars = num_vars;
    next_slot_ = num_inputs + num_vars;
  }

  Result<std::unique_ptr<GraphState>> run(std::span<const Buffer> capture_inputs);

 private:
  // 1. Who runs what.
  Status check_calls();
  Status assign_queues();
  uint32_t queue_index_of(Device& device, hal::QueueKind kind);
  uint32_t device_index(Device& device);
  const char* queues_of(uint32_t device) const;
  void touch(uint32_t queue_index, Device& device);
  void collect_accesses(uint32_t call);
  std::vector<EndGroup> make_ends();
  bool is_touching(uint32_t call, const Device& device) const;
  // 2. Memory and slots.
  Status allocate_arenas();
  Status allocate_signals();
  Place take(Device& device, uint64_t bytes);
  uint32_t new_slot() { return next_slot_++; }
  uint32_t dim_slot(const hal::DimExpr& dim, const std::vector<uint32_t>& vars);
  uint32_t input_slot(uint32_t input, const Device& owner, Device& executor);
  // 3. Commands.
  Status emit_prologue(CommandList& list, uint32_t queue_index);
  Status emit_call(CommandList& list, uint32_t call);
  Status emit_command(CommandList& list, uint32_t call);
  Status emit_kernel(CommandList& list, const Call& call, const KernelCall& kernel, Device& device);
  Status emit_copy(CommandList& list, const Call& call, Device& device);
  Status emit_grid(CommandList& list, const KernelCall& kernel, hal::Dim3& grid);
  Status emit_wait(CommandList& list, Device& device, const QueueWait& wait);
  Status emit_signal(CommandList& list, Device& device, uint32_t queue_index, uint32_t ordinal);
  Status emit_end(CommandList& list, uint32_t device, std::span<const QueueWait> waits);
  Result<hal::GpuVa> signal_address(Device& device, uint32_t queue_index);
  Result<hal::GpuVa> address(const Buffer& buffer, Device& executor);
  // 4. Recordings.
  Status record_queues();
  Status record_host_steps();
  Status close_step(HostStep& step, CommandList& list);
  void note_uses();
  void note_timestamps(uint32_t call, const Place& place);
  void link_timestamps();
  Result<uint32_t> clock_of(Device& device);

  std::vector<Call> calls_;
  std::unique_ptr<GraphState> state_;
  std::vector<PlanCall> plan_calls_;
  std::vector<Device*> executors_;                   ///< per call
  std::vector<std::vector<uint64_t>> slot_offsets_;  ///< per call and argument: offset in its input
  std::map<Device*, Arena> arenas_;
  std::vector<std::set<uint32_t>> touched_;  ///< per queue: queue devices whose memory it uses;
                                             ///< the host queue never does, queues copy for it
  std::map<Device*, uint32_t> device_indices_;
  GraphPlan plan_;
  std::vector<uint32_t> end_devices_;  ///< device of each epilogue of the plan
  std::map<Device*, uint32_t> clock_indices_;
  const bool with_timestamps_;
  uint32_t next_slot_ = 0;
  uint32_t current_call_ = 0;
};

/// Bytes of a kernel's argument block, padded so that blocks follow each other aligned.
uint64_t block_bytes(const hal::CodeObject& code);

}  // namespace bm::runtime
