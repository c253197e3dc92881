#pragma once
// Internal to graph.cpp and graph_build.cpp: everything a sealed graph consists of.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/graph.h"
#include "runtime/graph_inputs.h"
#include "runtime/graph_plan.h"
#include "runtime/hal/device.h"
#include "runtime/profiler.h"
#include "runtime/stream.h"

namespace bm::runtime {

inline constexpr uint32_t kNoSlot = UINT32_MAX;
/// Bytes between the signals of two queues: a cache line, because queues poll each other's words.
inline constexpr uint64_t kSignalStride = 64;

/// A device with queues that the graph runs on or whose memory it touches.
struct GraphDevice {
  Device* device = nullptr;
  uint32_t end_queue = 0;            ///< queue that signals the device's timeline at the end
  uint32_t previous_slot = kNoSlot;  ///< hardware value of the work before this replay
  uint32_t done_slot = kNoSlot;      ///< hardware value this replay signals
  std::vector<uint32_t> waiters;     ///< other devices whose queues wait for our earlier work
  std::vector<uint32_t> sources;     ///< other devices whose queues our queues wait for
  Point done;                        ///< of the last replay
  uint64_t previous = 0;             ///< timeline value before the replay in progress
  const char* queues = "compute";    ///< the graph runs on, for messages
};

/// One hardware queue and what it runs.
struct RecordedQueue {
  uint32_t device = 0;  ///< index into GraphState::devices
  hal::Queue* queue = nullptr;
  std::unique_ptr<hal::Recording> recording;
};

/// Commands an inline device runs between two meetings with hardware queues.
struct HostStep {
  hal::Queue* queue = nullptr;
  std::unique_ptr<hal::Recording> recording;
  std::vector<QueueWait> waits;  ///< by the host before it
  uint32_t signal = 0;           ///< ordinal of kHostQueue given after it; 0: none
};

/// Work that completes at a device's Point uses this storage.
struct StorageUse {
  Storage* storage = nullptr;
  uint32_t device = 0;
};
struct InputUse {
  uint32_t input = 0;
  uint32_t device = 0;
};

/// Address of an input on a device that does not own it.
struct PeerInput {
  uint32_t input = 0;
  Device* device = nullptr;
  uint32_t slot = 0;
};
struct DimSlot {
  hal::DimExpr dim;  ///< over the graph's variables
  uint32_t slot = 0;
};

/// Where a call's timestamps land when the graph was built with the profiler on.
struct CallTimestamps {
  uint32_t call = 0;
  std::string name, row;
  const char* category = "kernel";
  uint32_t clock = 0;         ///< index into GraphState::clocks
  std::byte* host = nullptr;  ///< begin, end ticks
  double flops = 0, bytes = 0;
  std::vector<uint32_t> after;  ///< earlier calls' positions in GraphState::timestamps
};

struct GraphState {
  InputTable inputs;
  uint32_t num_inputs = 0, num_vars = 0;
  std::vector<uint64_t> values;  ///< the slots: inputs, variables, then one per thing below
  std::vector<DimSlot> dims;
  std::vector<PeerInput> peer_inputs;

  std::vector<HostStep> host_steps;
  std::vector<GraphDevice> devices;
  std::vector<RecordedQueue>
      queues;  ///< recorded queue i of the plan is queues[i - 1]; 0 is the host

  // One 64-bit signal per queue, 64 bytes apart; ordinals count up from `signal_base`.
  std::unique_ptr<hal::Buffer> signals;
  uint32_t base_slot = kNoSlot;
  uint64_t signal_base = 0;
  uint32_t most_signals = 0;  ///< largest ordinal of any queue

  std::vector<std::unique_ptr<hal::Buffer>> memory;  ///< argument blocks, timestamps
  std::vector<StoragePtr> storages;                  ///< of fixed arguments: kept alive
  std::vector<std::shared_ptr<const hal::Program>> programs;
  std::vector<StorageUse> storage_uses;
  std::vector<InputUse> input_uses;

  std::vector<CallTimestamps> timestamps;
  std::vector<ClockMap> clocks;

  std::string name, device_name;
  std::string summary;  ///< name and first calls, for messages
  size_t num_calls = 0, num_args = 0;
  double flops = 0, bytes = 0;
};

/// The sealed state of make_graph; same arguments and errors.
Result<std::unique_ptr<GraphState>> build_graph(std::vector<Call> calls, uint32_t num_inputs,
                                                uint32_t num_vars,
                                                std::span<const Buffer> capture_inputs);

}  // namespace bm::runtime
