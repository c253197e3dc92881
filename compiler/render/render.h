#pragma once
// Program → source text. Renderers translate one statement at a time; every choice that could
// change a result was made before.

#include <array>
#include <string>

#include "compiler/program/program.h"
#include "compiler/targets/target.h"

namespace bm::compiler {

/// LLVM IR text (opaque pointers, LLVM 17 and later). Entry point: `program.name`, as CodeObject
/// says.
std::string render_llvm(const Program& program, const TargetInfo& target);

/// C with vector extensions for clang 15 and later; needs no header.
std::string render_c(const Program& program, const TargetInfo& target);

/// OpenCL C 1.2 of a program with work-groups. The kernel is `program.name`; arguments are its
/// params as __global pointers, then its variables as long. float64 and conversions of float16
/// appear only where the target has them.
std::string render_opencl(const Program& program);

/// CUDA C++ of a program with work-groups, to be compiled without contraction. The kernel is
/// `program.name` with C linkage; arguments as render_ptx has them. Needs no header.
std::string render_cuda(const Program& program);

/// PTX of a program with work-groups, for target.cpu ("sm_90"). One entry, `program.name`, whose
/// parameters are 64-bit words: its params' addresses, then its variables.
std::string render_ptx(const Program& program, const TargetInfo& target);

/// LLVM IR text of a program with work-groups, from which LLVM makes PTX as render_ptx says.
std::string render_nvptx(const Program& program);

/// LLVM IR text of a program with work-groups for an AMD GPU. The kernel is `program.name`; its
/// argument block is 64-bit words: its params' addresses, then its variables.
std::string render_amdgpu(const Program& program, const TargetInfo& target);

/// HIP C++ of a program with work-groups and without matrix instructions, to be compiled without
/// contraction. Arguments as render_amdgpu has them. Needs no header.
std::string render_hip(const Program& program, const TargetInfo& target);

/// Name of the PTX instruction of a kDot: "dp4a.u32.s32".
std::string_view dp4a_name(const Value& v);

/// cp.async of a kCopy, without operands.
std::string_view async_copy_name(const Stmt& s);
inline constexpr std::string_view kExp2Name = "ex2.approx.ftz.f32",
                                  kRoundTf32Name = "cvt.rna.tf32.f32";
/// The same of a kPackHalf2: "cvt.rn.f16x2.f32".
std::string_view pack_half2_name(const Value& v);

/// PTX of a kDequantise2, by registers or operands of an asm statement; `spare`: two registers.
std::string dequantise2_text(std::string_view to, std::string_view codes, std::string_view scales,
                             const std::array<std::string, 2>& spare, const Value& v);
/// The same with registers of its own.
std::string dequantise2_asm(std::string_view to, std::string_view codes, std::string_view scales,
                            const Value& v);

/// The PTX instruction of a kShuffle, by registers or operands of an asm statement.
std::string shuffle_text(std::string_view to, std::string_view from, const Value& v);

/// Name of the PTX instruction of a kMatrix statement: "mma.sync.aligned.m16n8k16…".
std::string mma_name(const Stmt& s);
/// How many of its operands are A's: those of 8 rows with two accumulators, of 16 with four.
size_t mma_left_words(const Stmt& s);

/// The same of a kWarpgroupMma statement: "wgmma.mma_async.sync.aligned.m64n256k16…", and what
/// stands behind its operands.
std::string warpgroup_mma_name(const Stmt& s);
std::string warpgroup_mma_flags(const Stmt& s);
/// A tile's descriptor but for its address, which goes without its lowest bits into the lowest
/// ones.
uint64_t descriptor_bits(const TileLayout& tile);
inline constexpr int kDescriptorShift = 4;

/// tcgen05, likewise: "tcgen05.mma.cta_group::1.kind::f16", its instruction descriptor, and a
/// tile's shared memory descriptor but for the address.
std::string_view tensor_mma_name(const Stmt& s);
uint32_t tensor_mma_descriptor(const Stmt& s);
uint64_t tensor_tile_bits(const TileLayout& tile);
/// Loads a kLoad's registers: "tcgen05.ld.sync.aligned.16x256b.x16.b32".
std::string tensor_load_name(const Stmt& s);
inline constexpr int64_t kTensorLoadLanes = 16;  ///< that one reaches
inline constexpr std::string_view
    kTensorAllocateName = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32",
    kTensorKeepName = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    kTensorFreeName = "tcgen05.dealloc.cta_group::1.sync.aligned.b32",
    kTensorCommitName = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64",
    kTensorBefore = "tcgen05.fence::before_thread_sync;",
    kTensorAfter = "tcgen05.fence::after_thread_sync;",
    kTensorLoadWait = "tcgen05.wait::ld.sync.aligned;",
    kMbarrierStart = "mbarrier.init.shared::cta.b64",
    kMbarrierFence = "fence.mbarrier_init.release.cluster;",
    kMbarrierTest = "mbarrier.try_wait.parity.shared::cta.b64";
/// What a step of K is apart from the next one in a tile's descriptor.
inline int64_t descriptor_step(const TileLayout& tile) {
  constexpr int64_t kStepBytes = 32, kSteps = 4;
  return (tile.is_transposed ? tile.panel_bytes / kSteps : kStepBytes) >> kDescriptorShift;
}
inline constexpr int kStepsOfLine = 4;  ///< of K, in a line of 128 bytes

/// The PTX instruction of a kPipe statement.
std::string pipe_text(const Stmt& s);

/// Target of a program: `target.cpu`, or another one for instructions that only that one has.
std::string_view cuda_target(const Program& program, const TargetInfo& target);

}  // namespace bm::compiler
