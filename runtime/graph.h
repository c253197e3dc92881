#pragma once
// Launching kernels one by one, and capturing a list of them for replay.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/buffer.h"
#include "runtime/hal/program.h"

namespace bm::runtime {

/// What a call touches: a fixed buffer, or a part of input number `slot`.
struct Arg {
  Buffer buffer;      ///< the bytes touched at capture; for a slot, within the input bound to it
  int32_t slot = -1;  ///< >= 0: replaced by inputs[slot] on replay
  bool is_written = false;
  bool is_read = true;
};

/// Kernel launch. `vars` index Graph variables: the value of variable v of the call is
/// var_values[vars[v]]. Further variables of the program have the values of `constants`.
struct KernelCall {
  std::shared_ptr<const hal::Program> program;
  Device* device = nullptr;
  std::vector<uint32_t> vars;
  std::vector<int64_t> constants;
  double flops = 0, bytes = 0;  ///< for statistics, at the variables' capture values
};
/// args[0] = destination, args[1] = source.
struct CopyCall {};
/// Function run on the host with the buffers' host pointers, in order (REF device, host callbacks).
struct HostCall {
  std::function<Status(std::span<std::byte* const> args, std::span<const int64_t> vars)> function;
  Device* device = nullptr;
  std::vector<uint32_t> vars;
};

struct Call {
  std::string name;
  std::variant<KernelCall, CopyCall, HostCall> what;
  std::vector<Arg> args;
};

/// Runs one call now (asynchronously where the device is). `var_values`: all variables, indexed by
/// Call vars. Updates statistics (stats.h) and the profiler.
Status execute(const Call& call, std::span<const int64_t> var_values);

/// Captured program: dependency analysis, one immutable recording per queue, patch table, slots.
/// One run at a time per Graph; different Graphs may run on different threads.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Replays with inputs (one per slot; same sizes and devices as at capture) and variable values.
  /// On inline devices returns with the work done. No allocation, no look-up, no system call. Waits
  /// for the previous replay first. Errors: kInvalidArgument: inputs or variables do not fit.
  /// kUnsupported: an input overlaps written memory of the graph, or a written input another one,
  /// in a way capture did not see; nothing ran: copy the input or capture again. Anything else: a
  /// device failed.
  virtual Status replay(std::span<const Buffer> inputs, std::span<const int64_t> var_values) = 0;
  /// Waits for the last replay.
  virtual Status wait() = 0;
  virtual size_t num_calls() const = 0;
};

/// `capture_inputs`: the inputs as bound at capture. An argument's offset in its input is
/// `arg.buffer.offset - capture_inputs[slot].offset`; when empty, inputs are taken to start at
/// offset 0 of their storage. Errors: kUnsupported: this batch cannot be a graph (a HostCall,
/// memory a device cannot reach, …): run the calls with execute. kInvalidArgument: a call is
/// malformed.
Result<std::unique_ptr<Graph>> make_graph(std::vector<Call> calls, uint32_t num_inputs,
                                          uint32_t num_vars,
                                          std::span<const Buffer> capture_inputs = {});

/// Assigns byte ranges of shared arenas to buffers whose lifetimes (call index first…last) do not
/// overlap. `kept` buffers are left alone. See planner.h.

}  // namespace bm::runtime
