#pragma once
// Program: the structured loop program between KernelIr and text. A tree of blocks holding typed
// values (dtype × lanes), loops, conditions, mutable registers and stores. Numerical order is fixed
// here: renderers translate one statement at a time and never reorder or contract floats.

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "compiler/program/dot.h"
#include "compiler/ir/kernel.h"
#include "compiler/ir/node.h"
#include "runtime/base/result.h"

namespace bm::compiler {

using ir::Op;
using ValueId = uint32_t;
using BlockId = uint32_t;
inline constexpr uint32_t kNone = ~0u;

struct Type {
  DType dtype = DType::kI64;
  uint32_t lanes = 1;
  bool operator==(const Type&) const = default;
};

/// Operations on 16-bit floats that some targets have.
constexpr bool is_half_arithmetic(Op op) {
  return op == Op::kAdd || op == Op::kSub || op == Op::kMul;
}

/// What a value is. 16-bit floats are opaque bit patterns here: only kConvert, kSelect, kBitcast,
/// data movement and, on targets that have them, is_half_arithmetic operations accept them. Machine
/// semantics: see each entry; nothing here traps.
enum class ValueOp : uint8_t {
  kConst,         ///< imm as in ir::Node (floats: bits of a double), same in every lane
  kArgument,      ///< scalar argument number imm of the function the value is in
  kVar,           ///< symbolic variable number imm (int64)
  kIndex,         ///< loop index; imm = block of the loop body
  kIota,          ///< int64 vector 0, imm, 2·imm, …
  kSplat,         ///< scalar → vector
  kExtract,       ///< lane imm of a vector
  kBuild,         ///< vector of `lanes` scalars
  kInsert,        ///< vector args[0] with lane imm replaced by scalar args[1]
  kHalf,          ///< lower (imm 0) or upper (imm 1) half of a vector
  kReverse,       ///< lanes in opposite order
  kConcatShift,   ///< lanes imm, imm + 1, … of two vectors one after the other
  kInterleave,    ///< lanes of the lower (imm 0) or upper (imm 1) halves of two vectors in turn
  kDeinterleave,  ///< lanes 0, 2, 4, … (imm 0) or 1, 3, 5, … (imm 1) of two vectors one after the
                  ///< other
  kLoad,   ///< param imm at element args[0] (int64 scalar), lanes contiguous; with args[1], a bool
           ///< scalar or vector: 0 where false, and that memory is not touched
  kWords,  ///< `lanes` consecutive 32-bit words of param imm from element args[0] on, where its
           ///< address is a multiple of all of them
  kUnalignedWords,  ///< the same at any address
  kIsAligned,       ///< bool: the address of param imm is a multiple of 16
  kTable,           ///< entry args[0] of constant uint64 table imm
  kItem,            ///< local id: this work-item in its group, threadIdx
  kLocalLoad,  ///< `lanes` elements of local array imm from args[0] on, as they are at this point;
               ///< in work-groups up to 16 bytes, from a multiple of as many on. Without groups
               ///< also one uint32 of an array of narrower elements, from a multiple of 4 bytes on
  kFragment,   ///< four words of four 8·8 tiles of 16 bits in local array imm / 2, which holds
               ///< bytes: work-item 8·m + r of a sub-group says where row r of tile m starts,
               ///< args[0], and 4·g + t gets elements 2t and 2t+1 of row g; imm odd: of column g
  kShuffle,  ///< args[0], 32 bits wide, of the lane whose id is this one's ^ imm in the sub-group;
             ///< all of them come here together
  kPackHalf2,    ///< word of two float32 rounded to the 16-bit floats of DType imm, args[0] low
  kDequantise2,  ///< word of two float16: bytes 2·imm and 2·imm + 1 of word args[0], less 128,
                 ///< times the lower and the upper float16 of word args[1], rounded once
  kExp2,  ///< 2^args[0] of float32, at most 2^-22 of it away; 0 where that is subnormal; targets
          ///< that have it: TargetInfo::has_exp2
  kRoundTf32,  ///< word of a float32: its bits rounded to those that MMA of tf32 reads
  kRead,       ///< current content of register imm
  kCall,       ///< function imm of Program::functions on scalars
  kDot,  ///< args[0] plus, in every lane, the products of the elements in two words; imm = DotKind
  kLdexp,    ///< args[0]·2^args[1], rounded once; args[1] is whole, where args[0] is no NaN
  kLookup,   ///< words: every byte of args[0], all below 16, becomes that byte of table imm
  kAny,      ///< bool vector → scalar: true in any lane
  kConvert,  ///< value conversion; the caller guarantees that float → int fits
  kAlu,  ///< `alu`: sqrt, trunc, max, min (if the target has them), not, bitcast, add … xor, shl,
         ///< shr (amount in range), div and mod of integers (non-zero divisor, no overflow), lt,
         ///< eq, ne, select, fma
};

struct Value {
  ValueOp op = ValueOp::kConst;
  Op alu = Op::kConst;
  Type type;
  int64_t imm = 0;
  std::vector<ValueId> args;
};

/// How 16 bytes, or 4 of float32, are copied from global to shared memory.
enum class CopyKind : uint8_t {
  kAsync,           ///< beside the work-item, until kWaitCopies
  kWords,           ///< through its registers
  kUnalignedWords,  ///< the same, from an address that is no multiple of 16
  kRoundTf32,       ///< nothing is: float32 that is there is rounded to tf32, ties away from zero
};

/// Order of asynchronous copies and MMAs of a multistage pipeline. PTX ISA 9.0: cp.async,
/// fence.proxy, wgmma.
enum class PipeOp : uint8_t {
  kCommitCopies,  ///< the kAsync copies so far are one more group
  kWaitCopies,    ///< until all but the last `step` groups are there, for this work-item
  kProxyFence,    ///< proxy fence: wgmma may read what this work-item stored or copied
  kWgmmaFence,    ///< wgmma.fence: accumulators that were written may be added to
  kWgmmaCommit,   ///< wgmma.commit_group: the MMAs so far are one more group
  kWgmmaWait,  ///< wgmma.wait_group: until all but the last `step` groups are done; `accumulators`
               ///< accumulators from target
  kOrder,      ///< what follows is not begun before what came first: stores of what was loaded
               ///< would wait for it in front of the MMAs in between
  kSettle,     ///< the kMma so far on `accumulators` accumulators from target are done by all lanes
};

/// What a group does with tensor memory, in the order of a kernel: all work-items come to each of
/// these. Products announce themselves at two mbarriers in turn, of 8 bytes each from byte `begin`
/// of local array `local` on. PTX ISA 9.0: tcgen05, mbarrier.
enum class TensorOp : uint8_t {
  kAllocate,  ///< `step` columns by the first sub-group; and starts the mbarriers. Takes
              ///< TensorMemory::kSharedBytes from byte `begin` on. A barrier of the group
  kMma,   ///< accumulators += product of two tiles of 128 bytes of K in shared memory, `operands`
          ///< bytes from the start of `local`: TensorMemory::kLanes rows, `accumulators`
          ///< columns. One work-item issues it. Where `end` is false they count as zeros before.
          ///< The mbarrier is the one at byte `begin`
  kWait,  ///< until the phase of parity `value` of the mbarrier at byte `begin` is complete
  kLoad,  ///< registers from target on = `step` times `accumulators` of tensor memory, from
          ///< `value` (lane << 16 | column) on, 16 lanes each time; laid out as kMma's of
          ///< StmtKind. Waits for them
  kFree,  ///< frees `step` columns. A barrier of the group
};

enum class StmtKind : uint8_t {
  kLet,
  kLoop,
  kIf,
  kAssign,
  kStore,
  kPrefetch,
  kLocalStore,
  kMma,   ///< MMA: accumulators from target on += product of the fragments `operands` of all
          ///< lanes of a sub-group, which arrive together; see MatrixInfo
  kCopy,  ///< `step` bytes of param `param` from element `begin` to local array `target`, which
          ///< holds bytes, from byte `value`; zeros where the gate `end` is false
  kPipe,  ///< see PipeOp
  kWarpgroupMma,  ///< wgmma: accumulators from target on += product of two tiles in shared memory,
                  ///< `operands` bytes from the start of array `local`; see TileLayout. A warpgroup
                  ///< (four sub-groups) issues it together, asynchronously. Five `operands`: A is
                  ///< in registers, words as of kMma for mma.sync, then the byte of B's tile
  kTensor,        ///< see TensorOp
  kBarrier,       ///< all work-items of a group arrive, and see each other's local stores so far
  kFault,         ///< reports Program::faults[target] at element `begin` and ends the process
};

/// Programs of targets with work-groups run once per work-item: statements outside kItem loops are
/// executed by every work-item, kItem loops are distributed over them.
enum class LoopKind : uint8_t {
  kGrid,  ///< blocks [begin, end) of one call (targets without work-groups)
  kSerial,
  kGroup,  ///< index = number of this group along `axis`; the body runs if it is < end
  kItem,   ///< index = begin + item + n·block for n = 0, 1, … while < end
};

/// A tile of a kWarpgroupMma in shared memory: rows of 128 bytes, eight to a block, with the
/// 128-byte swizzle: 16-byte chunk c of row r is kept at chunk c ^ r % 8. Rows run along K, one for
/// every row of A or column of B (K-major); is_transposed: along M or N, one for every step of K
/// (MN-major), and rows of the next 128 bytes start panel_bytes further.
struct TileLayout {
  bool is_transposed = false;
  uint32_t panel_bytes = 0;
};

struct Stmt {
  StmtKind kind = StmtKind::kLet;
  LoopKind loop = LoopKind::kSerial;
  ValueId value =
      kNone;  ///< kLet: defined; kLoop: the index; kIf: condition; kAssign, kStore: what is written
  ValueId begin =
      kNone;  ///< kLoop: first index; kStore, kPrefetch: element index, for the latter anywhere
  /// kLoop: index < end, in kGroup and kItem loops kNone when that holds anyway; kStore: gate
  /// (bool, scalar or vector) or kNone
  ValueId end = kNone;
  int64_t step = 1;  ///< kLoop; 1 in kGroup and kItem loops; kCopy: bytes
  /// kItem: largest iteration count of a work-item, 0 if not known (then there is an end)
  int64_t trip_count = 0;
  uint32_t axis = 0;    ///< kGroup
  uint32_t target = 0;  ///< kAssign: register; kStore, kPrefetch: param; kLocalStore: local array
  /// kStore of a vector without a gate: non-temporal where its address is a multiple of its
  /// size. Visible to others when the call ends, like every store. kPrefetch: not into L1.
  bool is_streamed = false;
  bool is_local = false;                  ///< kPrefetch: of local array `target`
  BlockId body = kNone;                   ///< kLoop, kIf
  DType matrix = DType::kF16;             ///< kMma: of the operands
  bool has_signed_right = false;          ///< kMma of uint8: B is int8
  uint32_t accumulators = 4;              ///< kMma: accumulators
  bool is_new_sum = false;                ///< kWarpgroupMma: accumulators count as zeros before
  CopyKind copy = CopyKind::kAsync;       ///< kCopy
  PipeOp pipe = PipeOp::kCommitCopies;    ///< kPipe
  TensorOp tensor = TensorOp::kAllocate;  ///< kTensor
  uint32_t param = 0;                     ///< kCopy
  uint32_t local = 0;                     ///< kWarpgroupMma
  std::array<TileLayout, 2> tiles = {};   ///< kWarpgroupMma: of A, B
  /// kStore, in work-groups kLocalStore: the elements contiguous with `value`, at an address that
  /// is a multiple of them all. kMma: words of A's fragment, then of B's, laid out as MatrixInfo
  /// says. For mma.sync work-item 4·g + t holds, of a tile of K = 8 words, words t and t+4 of row g
  /// and of row g+8 (order: t of both, then t+4 of both), and words t and t+4 of column g; results
  /// of columns 2t and 2t+1 in row g, then in row g+8. A tile of K = 4 words has no words t+4.
  /// Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16".
  std::vector<ValueId> operands = {};
};

struct Block {
  BlockId parent = kNone;
  uint32_t depth = 0;
  std::vector<Stmt> stmts;
};

/// Helper of scalars, no memory: slow paths of transcendental functions.
struct Function {
  std::string name;
  std::vector<Type> arguments;
  BlockId body = kNone;
  ValueId result = kNone;
};

/// Shared memory (LDS) of a work-group; on targets without groups, workspace of the executing
/// thread (hal::CodeObject::scratch_bytes).
struct LocalArray {
  DType dtype = DType::kF32;
  uint64_t count = 0;
  uint32_t alignment = 16;  ///< in bytes, of its start
};

struct Program {
  std::string name;
  std::vector<ir::Param> params;
  uint32_t num_vars = 0;
  std::vector<std::pair<int64_t, int64_t>> var_ranges;  ///< least and largest value, by variable
  std::vector<Value> values;
  std::vector<BlockId> block_of;  ///< by value
  std::deque<Block> blocks;
  std::vector<Type> registers;
  std::vector<BlockId> register_block;  ///< root block of the function a register belongs to
  std::vector<Function> functions;
  std::vector<std::vector<uint64_t>> tables;
  std::vector<std::string> faults;  ///< texts of kFault statements
  BlockId root = kNone;
  uint32_t block = 0;  ///< work-items per group; 0: the target has no work-groups
  /// Most groups along each axis that are ever launched.
  std::array<int64_t, 3> max_groups = {INT32_MAX, INT32_MAX, INT32_MAX};
  std::vector<LocalArray> locals;
  /// Shared memory is asked for at launch (dynamic); then there is one array.
  bool has_dynamic_shared = false;
  /// Without work-groups: values of the two implicit arguments, first block and end of the blocks
  /// to run.
  ValueId block_begin = kNone, block_end = kNone;

  const Value& at(ValueId v) const { return values[v]; }
  Type type(ValueId v) const { return values[v].type; }
};

/// Readable text, one statement per line.
std::string to_string(const Program& program);

/// Bytes of all local arrays of a program with work-groups, else 0.
uint64_t local_bytes(const Program& program);
/// Bytes of all local arrays of a program without work-groups, else 0. They lie one after the
/// other, each at a multiple of 64 bytes.
uint64_t scratch_bytes(const Program& program);
/// Bytes between the start of the workspace and that of local array `array`.
uint64_t scratch_offset(const Program& program, size_t array);

/// Checks types, arities, that every value is defined before use on the path to its user, and that
/// barriers are reached by all work-items of a group or by none.
/// Errors: kInternal naming the value.
Status verify(const Program& program);

}  // namespace bm::compiler
