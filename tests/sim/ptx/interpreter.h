#pragma once
// Runs PTX on the CPU: what our renderers, nvrtc and other tensor compilers emit. The threads of a
// block step together, lowest program counter first, so structured code reconverges by itself.
//
// Source of semantics: PTX ISA 8.x/9.0 manual (docs.nvidia.com/cuda/parallel-thread-execution).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "runtime/base/result.h"

namespace bm::sim::ptx {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

/// The device's address space. Thread: `at` is called from `Launch::threads` threads at once.
class Memory {
 public:
  virtual ~Memory() = default;
  /// Host pointer to [address, address + bytes), all of it contiguous on the host, or nullptr if
  /// any byte is not mapped or does not allow `access`. Neighbouring lanes may be asked for as one
  /// range, and then one by one where the range is refused.
  virtual std::byte* at(uint64_t address, uint32_t bytes, Access access) = 0;
};

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  bool operator==(const Dim3&) const = default;
  uint64_t volume() const { return uint64_t{x} * y * z; }
};

struct Param {
  std::string name;
  uint32_t offset = 0, bytes = 0, alignment = 1;
};

struct KernelInfo {
  std::string name;
  std::vector<Param> params;
  uint32_t param_bytes = 0;
  uint32_t shared_bytes = 0;  ///< static; the dynamic part follows, aligned to 16
  uint32_t local_bytes = 0;   ///< per thread
  uint32_t registers = 0;  ///< 32-bit registers the text uses: an upper bound, nothing is allocated
  uint32_t instructions = 0;
  bool uses_dynamic_shared = false;
  std::optional<Dim3> max_block, required_block;  ///< .maxntid, .reqntid
};

/// A .global or .const variable at `offset` of the module's image.
struct Variable {
  std::string name;
  uint64_t offset = 0, bytes = 0;
  bool is_const = false;
};

namespace detail {
struct ModuleData;
}

/// Parsed and lowered text; immutable, usable from any thread.
class Module {
 public:
  explicit Module(std::unique_ptr<const detail::ModuleData> data);
  ~Module();

  /// ".version" as major * 10 + minor, and the number of ".target sm_NN".
  uint32_t version() const;
  uint32_t sm() const;
  const std::vector<KernelInfo>& kernels() const;
  const KernelInfo* find(std::string_view kernel) const;

  /// Module variables: who loads the module gives them `image_bytes` of device memory, aligned to
  /// 256, filled with `image(address)`, and passes that address as Launch::image.
  const std::vector<Variable>& variables() const;
  uint64_t image_bytes() const;
  std::vector<std::byte> image(uint64_t address) const;

  const detail::ModuleData& data() const { return *data_; }

 private:
  std::unique_ptr<const detail::ModuleData> data_;
};

/// Errors: kCompile naming the line and its text, as ptxas would refuse it or because the form is
/// not known here; kCorrupt if `text` is not PTX at all.
Result<std::shared_ptr<const Module>> parse(std::string_view text);

struct Checks {
  bool uninitialised_shared = false;  ///< reading shared memory nobody wrote is a fault
  bool shared_races = false;  ///< accesses of one shared byte by two threads, one of them a write,
                              ///< with no barrier between them are a fault
};

struct Launch {
  std::string_view kernel = {};
  Dim3 grid = {}, block = {};
  uint32_t dynamic_shared = 0;
  std::span<const std::byte> params = {};  ///< naturally aligned; at least KernelInfo::param_bytes
  uint64_t image = 0;             ///< address of the module's variables; 0: a fresh private copy
  uint64_t max_instructions = 0;  ///< steps of all blocks together, 0: no limit. One step executes
                                  ///< an instruction for all threads of a block that are there.
  const std::atomic<bool>* cancel = nullptr;
  uint32_t threads = 1;  ///< host threads that run blocks; 1 also fixes the order of blocks
  uint32_t max_shared = 227 * 1024;  ///< static and dynamic together
  Checks checks = {};
};

struct Fault {
  enum class Kind : uint8_t {
    kInvalidLaunch,  ///< no such kernel, parameters missing, block over 1024 threads
    kUnmapped,       ///< global address not mapped or not writable
    kMisaligned,
    kSharedOutOfRange,
    kLocalOutOfRange,
    kParamOutOfRange,
    kUninitialisedShared,
    kSharedRace,
    kIllegal,          ///< trap, or an operation without meaning (bad lane mask, branch index)
    kBarrierDeadlock,  ///< threads wait at a barrier that the others never reach
    kInstructionLimit,
    kCancelled,
  };
  Kind kind = Kind::kIllegal;
  uint64_t address = 0;
  Access access = Access::kRead;
  Dim3 block{0, 0, 0}, thread{0, 0, 0};
  std::string where;  ///< kernel, line and text of the instruction, and details of the cause

  std::string text() const;  ///< one line: kind, address, block, thread, where
};

std::string_view fault_name(Fault::Kind kind);

/// What goes between memory and a multiprocessor at least. Source: CUDA C++ Best Practices Guide
/// 13.0, "Coalesced Access to Global Memory".
inline constexpr uint64_t kSectorBytes = 32;

/// What memory instructions moved, counted.
struct Traffic {
  uint64_t global_load_bytes = 0;     ///< by loads and cp.async, of all threads
  uint64_t global_load_sectors = 0;   ///< that the loads of a warp touch, each load by itself
  uint64_t global_store_bytes = 0;    ///< by stores
  uint64_t global_store_sectors = 0;  ///< as of loads
  uint64_t shared_passes = 0;         ///< of shared memory: a pass reaches every bank once
  uint64_t shared_conflicts = 0;      ///< passes that only conflicts of banks need
  uint64_t group_products = 0;        ///< multiplications by wgmma

  void add(const Traffic& other) {
    global_load_bytes += other.global_load_bytes;
    global_load_sectors += other.global_load_sectors;
    global_store_bytes += other.global_store_bytes;
    global_store_sectors += other.global_store_sectors;
    shared_passes += other.shared_passes;
    shared_conflicts += other.shared_conflicts;
    group_products += other.group_products;
  }
};

struct Stats {
  uint64_t steps = 0;              ///< see Launch::max_instructions
  uint64_t lane_instructions = 0;  ///< steps times the threads they were for
  uint64_t blocks = 0;
  Traffic traffic = {};
};

/// Runs the whole grid. Memory written before a fault stays written.
tl::expected<Stats, Fault> run(const Module& module, const Launch& launch, Memory& memory);

}  // namespace bm::sim::ptx
