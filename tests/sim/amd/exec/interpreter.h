#pragma once
// Executes RDNA2, RDNA3, RDNA4 and CDNA3 machine code on the CPU: work-groups one after another,
// the waves of a work-group in turns. Arithmetic is IEEE exact in the modes of the kernel; v_exp,
// v_log, v_rcp, v_rsq, v_sqrt, v_sin and v_cos, which hardware approximates, are the correctly
// rounded results.
//
// Does not own: packets, queues and address translation; `Memory` is what page tables allow.
// Sources: AMD "RDNA2", "RDNA3", "RDNA4" and "CDNA3" ISA reference guides; initial register state
// and kernel descriptor: LLVM "User Guide for AMDGPU Backend", sections "Kernel Descriptor" and
// "Initial Kernel Execution State".

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "tests/sim/amd/isa/opcodes.h"

namespace bm::sim::amd {

enum class Access : uint8_t { kRead, kWrite, kAtomic, kExecute };

/// The GPU's address space as page tables allow it.
class Memory {
 public:
  struct Place {
    std::byte* host = nullptr;   ///< start of the range, contiguous on the host; null: refused
    bool is_permission = false;  ///< refused although mapped: the page does not allow the access
  };
  virtual ~Memory() = default;
  /// Host place of [address, address + bytes) when all of it allows `access`. Neighbouring lanes
  /// may be asked for as one range, and then one by one where the range is refused.
  virtual Place at(uint64_t address, uint32_t bytes, Access access) = 0;
};

struct Extent3 {
  uint32_t x = 1, y = 1, z = 1;
  bool operator==(const Extent3&) const = default;
};

/// Where a wave of the work-group that runs stands.
struct WaveView {
  uint64_t pc = 0, exec = 0;
  bool is_in_barrier = false;
  bool has_failed = false;  ///< this one's fault ended the launch
};

/// One launch, as the packet processor hands it to the shader engines.
struct Dispatch {
  Isa isa = Isa::kGfx11;
  uint64_t entry = 0;                        ///< address of the first instruction, aligned to 256
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;  ///< COMPUTE_PGM_RSRC1 … 3
  std::vector<uint32_t> user_sgprs = {};     ///< COMPUTE_USER_DATA; as many as RSRC2.USER_SGPR says
  Extent3 grid = {};                         ///< work-groups
  Extent3 group = {};                        ///< work-items of a whole work-group
  Extent3 last_group = {0, 0, 0};  ///< work-items of the last group of an axis; 0: a whole one
  uint32_t lds_bytes = 0;
  uint64_t scratch_base = 0;      ///< device memory, scratch_per_lane bytes for every lane of a
                                  ///< work-group
  uint32_t scratch_per_lane = 0;  ///< bytes
  uint32_t wave_size = 32;        ///< 32 or 64
  uint64_t max_instructions = 0;  ///< of all waves together; 0: no limit
  const std::atomic<bool>* cancel = nullptr;
  /// Called now and then, and when a fault ends the launch, with the waves that have not ended.
  std::function<void(std::span<const WaveView>)> observe = {};
  bool unaligned_access = true;  ///< SH_MEM_CONFIG.ALIGNMENT_MODE unaligned, as KFD sets it
  uint64_t shared_aperture = uint64_t{1} << 48;   ///< FLAT addresses of LDS
  uint64_t private_aperture = uint64_t{2} << 48;  ///< FLAT addresses of scratch
};

struct Fault {
  enum class Kind : uint8_t {
    kInvalidDispatch,     ///< empty or oversized work-group, misaligned entry, missing scratch, …
    kIllegalOpcode,       ///< not an instruction, or not one that is modelled
    kRegisterOutOfRange,  ///< VGPR beyond the wave's allocation
    kUnmapped,
    kPermission,
    kMisaligned,
    kLdsOutOfRange,
    kScratchOutOfRange,
    kTrap,             ///< s_trap; `address` is its number
    kBarrierDeadlock,  ///< every wave waits
    kInstructionLimit,
    kCancelled,
    kNotWaited,  ///< a register is used before what writes it is done, or LDS behind a barrier
  };
  Kind kind = Kind::kIllegalOpcode;
  Access access = Access::kRead;
  uint64_t pc = 0;
  uint64_t address = 0;
  Extent3 group{0, 0, 0};
  uint32_t wave = 0, lane = 0;
  std::string detail;  ///< instruction's text or what is wrong with the dispatch

  std::string text() const;
};
std::string_view fault_name(Fault::Kind kind);

struct Statistics {
  uint64_t instructions = 0, groups = 0, waves = 0;
  /// Passes over LDS beyond one for every 128 bytes that loads and stores of a wave move: 32 banks
  /// of four bytes, each of which gives one word a pass. Source: AMD RDNA3 ISA guide, "LDS".
  uint64_t lds_conflicts = 0;
  /// Executed instructions by the name of the opcode; a VOPD counts once for each half.
  std::unordered_map<std::string_view, uint64_t> opcodes;
};

/// Runs the whole grid. Memory written before a fault stays written.
tl::expected<Statistics, Fault> run(const Dispatch& dispatch, Memory& memory);

/// Whether this opcode of the tables has semantics here.
bool is_executable(const OpcodeRow& row);

}  // namespace bm::sim::amd
