#pragma once
// What code generation wants to know of a processor, derived from hal::Arch.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/program/dot.h"
#include "compiler/ir/dtype.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"

namespace bm::compiler {

/// MMA: an instruction with which a sub-group multiplies two tiles, and the layout of its
/// fragments. Operands are words of 32 bits along K, `k_words` per row of A and column of B. A
/// lane has a groupID g, 0 … slot - 1, and a threadID_in_group p (names of the PTX ISA): it holds,
/// of row g of A and column g of B, the words of part p of K. The defaults are those of mma.sync:
/// 16 by 8.
struct MatrixInfo {
  DType in = DType::kF16;     ///< of both operands
  DType sum = DType::kF32;    ///< of accumulator and result
  uint32_t k_words = 8;       ///< 8: K = 16 elements of 16 bits
  uint32_t slot = 8;          ///< lane groups: rows or columns
  uint32_t a_slots = 2;       ///< of A in one instruction; of B it takes one
  uint32_t parts = 4;         ///< of K: threads in a group; 1: lanes that share g hold the same
  bool is_part_low = true;    ///< p is the low digit of a lane's id, g the high one
  uint32_t accumulators = 4;  ///< accumulators of a lane
  /// Accumulators, where not 0: the s-th lies in row s·row_step + p·row_part and column g. Where 0:
  /// in row g of slot s / 2 and column 2·p + s % 2.
  uint32_t row_step = 0, row_part = 0;
  /// Warpgroup MMA: sub-groups that execute it together, asynchronously, on tiles in shared memory;
  /// each has `a_slots` of the rows and up to `b_slots` of the columns. 1: on registers.
  uint32_t sub_groups = 1;
  uint32_t b_slots = 1;
  /// tcgen05: accumulators are in tensor memory, and one work-item has tiles in shared memory
  /// multiplied, asynchronously: TensorMemory::kLanes rows by up to 256 columns. a_slots and
  /// accumulators are those of a piece that is loaded from there, laid out as mma.sync's.
  bool has_tensor_memory = false;
  bool has_signed_right = false;  ///< of uint8: B is int8

  /// Of one lane and lane group.
  uint32_t words() const { return k_words / parts; }
  /// Whether operands are tiles in shared memory.
  bool reads_shared_memory() const { return sub_groups > 1 || has_tensor_memory; }
};

/// Tensor memory: lanes of 32-bit columns, which are allocated by powers of two and at least as
/// many. Source: PTX ISA 9.0, "Tensor Memory", "Tensor Memory Allocation".
struct TensorMemory {
  static constexpr uint32_t kLanes = 128, kColumns = 512, kLeastColumns = 32;
  /// Of shared memory: two mbarriers, and where the columns are.
  static constexpr uint32_t kSharedBytes = 32;
  static uint32_t allocated(int64_t columns) {
    return std::bit_ceil(std::max(static_cast<uint32_t>(columns), kLeastColumns));
  }
};

/// Room that groups have on a compute unit, and how those that multiply matrices use it.
struct PipeInfo {
  bool has_async_copies = false;  ///< CopyKind::kAsync
  uint32_t group_memory_bytes =
      0;  ///< shared memory of one group at most, asked for at launch; 0: none do
  uint32_t cu_memory_bytes = 0;  ///< shared memory of all groups on one compute unit
  uint32_t reserved_bytes = 0;   ///< of every group, by the system
  uint32_t cu_items = 1024;      ///< most work-items on one compute unit
  uint32_t cu_lanes = 128;       ///< work-items that begin an instruction in a cycle
  uint32_t cu_groups = 16;       ///< most groups
  /// From memory, while 1024 work-items do one operation each.
  double cu_bytes = 128;
  uint32_t cu_registers = 65536;  ///< of 32 bits
};

struct TargetInfo {
  uint32_t vector_bits = 128;
  uint32_t vector_registers = 16;
  // Data caches in bytes. Without work-groups only.
  uint64_t l1_bytes = 32 << 10;
  uint64_t l2_bytes = 1 << 20;   ///< last level that one core has to itself
  uint64_t llc_bytes = 8 << 20;  ///< last level of all
  uint32_t cache_line_bytes = 64;
  uint32_t page_bytes = 4096;  ///< least distance of addresses that need translations of their own
  bool has_masks = false;      ///< loads and stores of some lanes, at no cost
  bool has_scaling = false;    ///< vectors times powers of two in one instruction
  /// Widest vectors whose bytes are looked up in a table of sixteen in one instruction; 0: none.
  uint32_t byte_lookup_bits = 0;
  bool has_fma = false;         ///< fused multiply-add of float32 and float64
  bool has_f16c = false;        ///< conversions float16 ↔ float32
  bool has_bf16_round = false;  ///< conversion float32 → bfloat16; NaN may lose its payload
  /// Sums, differences and products of 16-bit floats in one instruction and one rounding; subnormal
  /// numbers are kept, NaN may lose its payload.
  bool has_f16_arithmetic = false, has_bf16_arithmetic = false;
  bool has_exp2 = false;         ///< ValueOp::kExp2
  bool has_dual_fma = false;     ///< two independent ones of float32 in one instruction
  bool has_pack_half2 = false;   ///< ValueOp::kPackHalf2
  bool has_nan_min_max = false;  ///< scalar max and min of float32: NaN if one is, either zero
  bool has_round = false;        ///< truncation of floats in one instruction
  bool has_f64 = true;           ///< float64 arithmetic
  bool keeps_subnormals = true;  ///< float32 arithmetic on subnormal numbers is certain
  /// Row cache: workspace for values of a row between the passes over it; they stay in L1 or L2.
  uint64_t row_bytes = 0;
  /// Results of at least this many bytes get non-temporal stores; 0: never.
  uint64_t stream_bytes = 0;
  bool has_unaligned_words = false;  ///< words at any address cost what aligned ones do
  /// Its compiler moves waits for memory in front of products that need not wait; see
  /// PipeOp::kOrder.
  bool hoists_loads = false;
  bool has_groups = false;  ///< kernels run in work-groups of up to max_block work-items
  uint32_t max_block = 1;
  uint32_t shared_memory_bytes = 0;  ///< shared memory (LDS) of a work-group
  uint32_t sub_group = 32;           ///< work-items of a group that run as one
  bool has_shuffles = false;         ///< ValueOp::kShuffle: they read each other's registers
  bool has_wide_stores = false;      ///< Builder::store_together of 16 bytes
  bool has_segments = false;  ///< the same for segments of a sub-group, whatever rows are added by
  /// Width of a bank of shared memory (bank conflicts). Source: CUDA C++ Programming Guide 13.0,
  /// "Shared Memory"; AMD RDNA3 ISA guide, "LDS".
  uint32_t shared_bank_bytes = 4;
  /// Of every param, for a work-item of a kernel that only waits for memory: 32 KiB by 2048 of
  /// them, about what a multiprocessor of an H200 must have in flight for 4.8 TB/s.
  uint32_t item_bytes_ahead = 16;
  std::vector<DotInfo> dots;       ///< instructions for dot products of int8 elements
  std::vector<MatrixInfo> matrix;  ///< MMAs, best first
  /// MMAs of quantised blocks, the longest K first: A, of the matrix, is `in`, B is int8.
  std::vector<MatrixInfo> quantised;
  std::vector<MatrixInfo> tensor_memory;  ///< MMAs with accumulators in tensor memory
  PipeInfo pipe;                          ///< for multistage pipelines of MMAs
  /// Largest number of groups along each axis of a grid.
  std::array<int64_t, 3> max_groups = {INT32_MAX, INT32_MAX, INT32_MAX};
  std::string triple, cpu, features;  ///< for LLVM and clang: never empty triple and cpu; cpu is
                                      ///< "sm_90" for CUDA
  /// What programs with a kWarpgroupMma or kTensor are made for instead of `cpu`: "sm_90a".
  std::string specific_cpu;
  int llvm_release = 0;  ///< first major release of LLVM that knows `cpu`; 0: any we load

  /// Whether there is an instruction for this many words.
  bool has_dot(DotKind kind, uint32_t lanes) const {
    return std::ranges::any_of(
        dots, [&](const DotInfo& d) { return d.kind == kind && d.bits == lanes * 32; });
  }
};

TargetInfo target_info(const hal::Arch& arch);

/// Whether kernels for `arch` are CUDA programs: NVIDIA's devices, and NULL in place of one.
bool is_cuda(const hal::Arch& arch);

/// Whether kernels for `arch` are AMD's code objects: AMD's devices, and NULL in place of one.
bool is_amd(const hal::Arch& arch);
/// Errors: kUnsupported naming the targets there are.
Status check_amd(const hal::Arch& arch);
/// Facts of an AMD GPU over those that every device with work-groups has.
TargetInfo amd_info(const hal::Arch& arch, TargetInfo info);

}  // namespace bm::compiler
