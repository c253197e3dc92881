#pragma once
// A captured function as an object: calls, their plan, memory, inputs and outputs.
//
// Made by Jit (tensor/jit.h) or from a file. It owns its outputs: every run writes them anew.
// docs/captured-programs.md says what a program sees of later changes around it.

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/graph.h"
#include "tensor/arena_pool.h"
#include "tensor/capture_scope.h"
#include "tensor/jit_inputs.h"
#include "tensor/packed_operands.h"

namespace bm {

struct ProgramImage;

/// Where a program's outputs lie.
enum class Outputs : uint8_t {
  kReuse,  ///< in memory of the program: the next run overwrites them
  kFresh,  ///< in new memory each time
  /// In memory that arguments of earlier calls gave up: every output takes over an argument of its
  /// size, in order, which must not be read after the call; one without takes new memory.
  kDonate,
};

struct CaptureOptions {
  Outputs outputs = Outputs::kReuse;
  /// Reading an output of an earlier run is an error, as with BM_CHECKED=1.
  bool is_checked = false;
  std::shared_ptr<ArenaPool> arenas = {};  ///< nullptr: one of its own
};

/// Gives results of a function that ran plainly storage, as a capture would: an argument handed
/// through stays what it is, other views of storage are copied. Throws Exception.
void settle_results(std::span<Tensor* const> results, std::span<Tensor* const> arguments);

/// Thread: one run at a time.
class CapturedProgram {
 public:
  /// The function: gets stand-ins for its arguments and returns its results, held by somebody: the
  /// object that keeps the tensors pointed to alive, and the tensors.
  struct Results {
    std::shared_ptr<void> owner;
    std::vector<Tensor*> tensors;
  };
  using Body = std::function<Results(std::span<Tensor* const> arguments)>;

  /// Records `body`, builds the graph and runs it once with `arguments`, which `inputs` describes.
  /// A transaction: when it throws, tensors are what they were before.
  /// Throws Exception: overlapping inputs; nothing recorded; data read while recording; what
  /// compiling, memory and devices report; and what `body` throws.
  static std::unique_ptr<CapturedProgram> capture(std::span<Tensor* const> arguments,
                                                  JitInputs& inputs, const Body& body,
                                                  const CaptureOptions& options);
  ~CapturedProgram();
  CapturedProgram(const CapturedProgram&) = delete;
  CapturedProgram& operator=(const CapturedProgram&) = delete;

  /// Writes the program to a file: a process that loads it replays at its first call. What the
  /// program reads besides its inputs is written as it is now and belongs to the loaded program.
  /// Throws Exception: kUnsupported (a device that interprets; an input handed through to an output
  /// does not stop it); kIo.
  void save(const std::string& path);
  /// `device`: another device of the same architecture instead of the program's only one.
  /// Throws Exception: kCorrupt; kUnsupported (another format, another processor); kIo; of devices.
  static std::unique_ptr<CapturedProgram> load(const std::string& path,
                                               std::string_view device = "");

  /// One run with arguments as at capture: shapes, dtypes, devices, views. Throws Exception:
  /// kInvalidArgument when they differ or share memory in a way the capture did not see.
  std::span<Tensor* const> run(std::span<Tensor* const> arguments);
  std::span<Tensor* const> run(std::initializer_list<Tensor> arguments);
  /// The same when `inputs` is known to match.
  void replay(std::span<Tensor* const> arguments, JitInputs& inputs);
  /// The same, if every argument is as inputs() says and none is a view or lazy; else false, and
  /// nothing ran.
  bool try_replay(std::span<Tensor* const> arguments);

  std::span<const InputKey> inputs() const { return keys_; }
  std::span<Tensor* const> outputs() const { return results_.tensors; }
  const void* owner() const { return results_.owner.get(); }
  /// Variables that may change between runs.
  std::span<const Var> vars() const { return vars_; }
  /// Runs so far; an output belongs to the run that wrote it.
  uint64_t generation() const { return generation_; }
  /// A tensor of the outside that was lazy at capture has a value of its own now, which the program
  /// does not read.
  bool is_outdated() { return num_detached() != seen_detached_ && has_detached(); }
  size_t num_calls() const { return calls_.size(); }
  bool is_graph() const { return graph_ != nullptr; }
  uint64_t packed_bytes() const { return packed_.bytes(); }
  uint64_t arena_bytes() const;

 private:
  CapturedProgram() = default;

  /// Memory the calls touch that is not an input.
  struct Fixed {
    runtime::Buffer bytes;  ///< from the first to the last touched
    bool is_own = false;    ///< holds nothing that the outside gave
    bool is_written = false;
    uint32_t first_write = 0;  ///< call
  };
  struct Slot {
    bool is_written = false;
    uint32_t last_read = 0;  ///< call
    runtime::Buffer shadow;  ///< copy of an input that the program would overwrite
    /// Never dereferenced: the storage bound last, when it is none that the program writes. Those
    /// live as long as the program, so that another one at this address is none of them either.
    const runtime::Storage* harmless = nullptr;
  };
  struct Output {
    enum class Kind : uint8_t {
      kOwn,     ///< written by every run
      kState,   ///< storage of the outside
      kPassed,  ///< the argument itself
    };
    Kind kind = Kind::kOwn;
    uint32_t index = 0;  ///< kPassed: argument; kOwn outside of kReuse: into new_
  };
  /// Storage of an output where every run has its own.
  struct NewStorage {
    runtime::Device* device = nullptr;
    uint64_t size = 0;
    Shape shape;
    DType dtype = DType::kF32;
    int32_t donor = -1;       ///< argument that gives its memory for the next run
    runtime::Buffer present;  ///< during a run
    runtime::Buffer spare;    ///< given by an argument
    NodePtr idle;             ///< of that argument: serves an output once nobody holds it
  };

  // Capture (captured_program_build.cpp).
  void record(const Body& body, CaptureScope* scope);
  void note_slots();
  void sort_outputs(const CaptureScope& scope, const StandIns& stand_ins);
  void choose_donors();
  void plan_memory(const CaptureScope& scope);
  void note_memory(const std::function<bool(const runtime::Storage*)>& is_own);
  void build_graph();
  void check_sharing() const;

  // Files (captured_program_save.cpp).
  ProgramImage image(std::vector<std::vector<std::byte>>* contents);
  void load_memory(const ProgramImage& image, std::span<runtime::Device* const> devices,
                   std::vector<runtime::Buffer>* memory);
  void load_calls(const ProgramImage& image, std::span<runtime::Device* const> devices,
                  std::span<const runtime::Buffer> memory);
  void load_outputs(const ProgramImage& image, std::span<runtime::Device* const> devices,
                    std::span<const runtime::Buffer> memory);

  // Runs (captured_program.cpp).
  bool has_detached();
  void replay_bound(std::span<Tensor* const> arguments);
  void guard_inputs();
  void copy_away(size_t slot, const Fixed& written);
  void check_written_inputs() const;
  void keep_old_values(std::span<Tensor* const> arguments);
  void keep_old_arguments(std::span<Tensor* const> arguments);
  void mark_old_outputs();
  void make_new_storage();
  void run_bound();
  void finish(std::span<Tensor* const> arguments);
  void renew_outputs();
  void take_donations(std::span<Tensor* const> arguments);

  CaptureOptions options_;
  std::shared_ptr<ArenaPool> arenas_;
  std::vector<InputKey> keys_;
  std::vector<runtime::Call> calls_;  ///< slots hold offsets from the begin of the input
  std::unique_ptr<runtime::Graph> graph_;
  std::vector<Var> vars_;
  PackedOperands packed_;
  std::vector<runtime::Buffer> arena_blocks_;
  std::vector<Fixed> fixed_;
  std::vector<uint32_t> written_;  ///< into fixed_
  std::vector<Slot> slots_;
  bool has_written_slots_ = false;
  Results results_;
  std::vector<Output> outputs_;
  bool has_passed_outputs_ = false;
  std::vector<NewStorage> new_;
  std::vector<CaptureScope::Target> targets_;
  std::vector<std::weak_ptr<Node>> watched_;
  uint64_t seen_detached_ = 0;
  uint64_t generation_ = 0;
  bool is_first_run_ = false;

  std::vector<runtime::Buffer> bound_;  ///< of the present run: slots, then new_
  std::vector<int64_t> values_;
  JitInputs own_inputs_;
};

}  // namespace bm
