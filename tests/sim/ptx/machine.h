#pragma once
// What lowering produces and a block executes: flat code over struct-of-arrays registers.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/ptx/interpreter.h"
#include "tests/sim/ptx/types.h"

namespace bm::sim::ptx {

inline constexpr uint32_t kNone = ~0u;
inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kMaxBlock = 1024;
inline constexpr uint32_t kMaxOperands = 24;

/// Generic addresses: windows above anything a device maps; everything else is global.
inline constexpr uint64_t kSharedWindow = uint64_t{0x4000} << 48;
inline constexpr uint64_t kLocalWindow = uint64_t{0x4001} << 48;
inline constexpr uint64_t kParamWindow = uint64_t{0x4002} << 48;
inline constexpr uint64_t kPrivateImage = uint64_t{0x4003} << 48;  ///< Launch::image == 0
inline constexpr uint64_t kWindowMask = uint64_t{0xffff} << 48;

struct Exec;
struct Inst;
using Handler = void (*)(Exec&, const Inst&);

/// What an instruction does to the threads that execute it; all but kPlain are the scheduler's
/// work.
enum class Flow : uint8_t {
  kPlain,
  kBranch,
  kTable,   ///< branch to targets[op[0]]
  kCall,    ///< writes the return address to op[0], goes to target
  kReturn,  ///< goes to the address in op[0]
  kExit,
  kTrap,
  kBarrier,      ///< op[0] number, op[1] thread count or kNone; waits
  kArrive,       ///< the same without waiting
  kReduce,       ///< barrier with reduction: op[2] result, op[3] predicate; imm ReduceKind
  kWarpPlain,    ///< op[mask_op] is the lane mask: waits for those lanes, then runs the handler
  kWarpBarrier,  ///< op[0] mask
};

enum class ReduceKind : uint8_t { kPopc, kAnd, kOr };

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

/// Operands are places in the register file: bytes per lane before the register's column.
struct Inst {
  Handler run = nullptr;
  Flow flow = Flow::kPlain;
  bool guard_negated = false;
  bool is_wide = true;  ///< address operand has 64 bits, not 32
  bool flag = false;    ///< handlers' own
  Space space = Space::kGlobal;
  uint8_t count = 0;  ///< handlers' own: vector elements
  uint8_t mask_op = 0;
  uint32_t guard = kNone;
  uint32_t target = 0;
  uint32_t line = 0;
  uint32_t op[kMaxOperands] = {};
  uint64_t imm = 0;
  std::string_view text;
};

/// A register column that is filled before the code runs and never written by it.
struct Constant {
  enum class Kind : uint8_t { kValue, kImage, kDynamicShared, kSpecial };
  Kind kind = Kind::kValue;
  uint8_t width = 4;
  uint32_t place = 0;
  uint64_t value = 0;  ///< the bits; offset in the image; Special
};

enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLane,
  kWarpId,
  kWarpCount,
  kSm,
  kSmCount,
  kGridId,
  kMaskEq,
  kMaskLe,
  kMaskLt,
  kMaskGe,
  kMaskGt,
  kDynamicShared,
  kTotalShared,
  kZero,
  kOne,
};

struct Kernel {
  KernelInfo info;
  std::vector<Inst> code;
  std::vector<Constant> constants;
  std::vector<std::vector<uint32_t>> tables;  ///< branch targets
  std::vector<std::vector<uint32_t>> lists;   ///< operands beyond what Inst::op holds
  std::vector<uint32_t> left_lists;           ///< of lists: left operands of wgmma in registers
  uint32_t file_bytes = 0;                    ///< registers per lane
  uint32_t entry = 0;                         ///< callees come first, so that they run first
};

struct Relocation {
  uint64_t at = 0;      ///< offset of an address in the image
  uint64_t target = 0;  ///< offset it points to
  uint8_t width = 8;
};

namespace detail {
struct ModuleData {
  std::string text;  ///< names and messages are views into it
  uint32_t version = 0, sm = 0;
  std::vector<Kernel> kernels;
  std::vector<KernelInfo> infos;
  std::vector<Variable> variables;
  std::vector<std::byte> image;  ///< initialised part
  uint64_t image_bytes = 0;
  std::vector<Relocation> relocations;
};
}  // namespace detail

}  // namespace bm::sim::ptx
