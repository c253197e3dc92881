// PTX of multistage pipelines that all renderers for NVIDIA share: cp.async, ldmatrix, wgmma.
#include <algorithm>

#include "compiler/render/render.h"

namespace bm::compiler {
namespace {

std::string_view operand_name(DType t) {
  switch (t) {
    case DType::kBF16: return "bf16";
    case DType::kF32: return "tf32";
    case DType::kI8: return "s8";
    case DType::kU8: return "u8";
    default: return "f16";
  }
}

std::string_view sum_name(DType t) { return is_float(t) ? "f32" : "s32"; }

}  // namespace

std::string_view dp4a_name(const Value& v) {
  return static_cast<DotKind>(v.imm) == DotKind::kS8S8 ? "dp4a.s32.s32" : "dp4a.u32.s32";
}

std::string_view async_copy_name(const Stmt& s) {
  // Words go through L1: only chunks of 16 bytes may pass it.
  return s.step == 16 ? "cp.async.cg.shared.global" : "cp.async.ca.shared.global";
}

std::string_view pack_half2_name(const Value& v) {
  return static_cast<DType>(v.imm) == DType::kBF16 ? "cvt.rn.bf16x2.f32" : "cvt.rn.f16x2.f32";
}

/// 0x64 before a byte makes it 1024 more as float16; 0x6480 is 1152. Sums and products of float16
/// round once, and the first one is exact.
std::string dequantise2_text(std::string_view to, std::string_view codes, std::string_view scales,
                             const std::array<std::string, 2>& spare, const Value& v) {
  return fmt::format(
      "prmt.b32 {0}, {3}, 0x64646464, {5}; mov.b32 {1}, 0x64806480; "
      "sub.rn.f16x2 {0}, {0}, {1}; mul.rn.f16x2 {2}, {0}, {4};",
      spare[0], spare[1], to, codes, scales, v.imm == 0 ? "0x4140" : "0x4342");
}

std::string dequantise2_asm(std::string_view to, std::string_view codes, std::string_view scales,
                            const Value& v) {
  const std::array<std::string, 2> spare{"two_codes", "bias"};
  return fmt::format("{{.reg .b32 {}, {}; {}}}", spare[0], spare[1],
                     dequantise2_text(to, codes, scales, spare, v));
}

std::string shuffle_text(std::string_view to, std::string_view from, const Value& v) {
  return fmt::format("shfl.sync.bfly.b32 {}, {}, {}, 31, -1;", to, from, v.imm);
}

std::string mma_name(const Stmt& s) {
  const std::string_view type = operand_name(s.matrix), sum = sum_name(s.matrix);
  const std::string_view right = s.has_signed_right ? operand_name(DType::kI8) : type;
  const size_t words = s.operands.size() - mma_left_words(s);
  const auto k = static_cast<int64_t>(words * 16) / item_size(s.matrix);
  return fmt::format("mma.sync.aligned.m{}n8k{}.row.col.{}.{}.{}.{}", 4 * s.accumulators, k, sum,
                     type, right, sum);
}

size_t mma_left_words(const Stmt& s) {
  const size_t slots = s.accumulators / 2;  // of 8 rows
  return s.operands.size() * slots / (slots + 1);
}

std::string warpgroup_mma_name(const Stmt& s) {
  const std::string_view type = operand_name(s.matrix);
  return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k{}.{}.{}.{}", 2 * s.accumulators,
                     32 / item_size(s.matrix), sum_name(s.matrix), type, type);
}

std::string warpgroup_mma_flags(const Stmt& s) {
  if (!is_float(s.matrix)) return "";
  std::string flags = ", 1, 1";
  // Only 16-bit numbers in shared memory may be transposed.
  if (!is_half_like(s.matrix)) return flags;
  if (s.operands.size() == 2) flags += s.tiles[0].is_transposed ? ", 1" : ", 0";
  return flags + (s.tiles[1].is_transposed ? ", 1" : ", 0");
}

/// Source: PTX ISA 9.0, "Matrix Descriptor Format" and "Strides".
uint64_t descriptor_bits(const TileLayout& tile) {
  constexpr uint64_t kSwizzle128 = 1, kEightLines = 8 * 128;
  // Not used where the tile is K-major.
  const uint64_t leading = tile.is_transposed ? tile.panel_bytes >> kDescriptorShift : 1;
  return kSwizzle128 << 62 | kEightLines >> kDescriptorShift << 32 | leading << 16;
}

std::string_view tensor_mma_name(const Stmt& s) {
  return s.matrix == DType::kF32 ? "tcgen05.mma.cta_group::1.kind::tf32"
                                 : "tcgen05.mma.cta_group::1.kind::f16";
}

/// Source: CUTLASS 4, cute/arch/mma_sm100_desc.hpp, InstrDescriptor. The interpreter of tests has
/// the fields from the table of PTX ISA 9.0, "Instruction Descriptor".
uint32_t tensor_mma_descriptor(const Stmt& s) {
  constexpr uint32_t kSumF32 = 1;
  const uint32_t type = s.matrix == DType::kF32 ? 2 : s.matrix == DType::kBF16 ? 1 : 0;
  const auto transposed = [&](size_t side) { return s.tiles[side].is_transposed ? 1u : 0u; };
  return kSumF32 << 4 | type << 7 | type << 10 | transposed(0) << 15 | transposed(1) << 16 |
         s.accumulators / 8 << 17 | TensorMemory::kLanes / 16 << 24;
}

/// Source: the same header, SmemDescriptor; tiles are laid out as wgmma has them.
uint64_t tensor_tile_bits(const TileLayout& tile) {
  constexpr uint64_t kVersion = 1, kSwizzle128 = 2, kEightLines = 8 * 128;
  const uint64_t leading = tile.is_transposed ? tile.panel_bytes >> kDescriptorShift : 1;
  return kSwizzle128 << 61 | kVersion << 46 | kEightLines >> kDescriptorShift << 32 | leading << 16;
}

std::string tensor_load_name(const Stmt& s) {
  return fmt::format("tcgen05.ld.sync.aligned.16x256b.x{}.b32", s.accumulators / 4);
}

std::string pipe_text(const Stmt& s) {
  switch (s.pipe) {
    case PipeOp::kCommitCopies: return "cp.async.commit_group;";
    case PipeOp::kWaitCopies: return fmt::format("cp.async.wait_group {};", s.step);
    case PipeOp::kProxyFence: return "fence.proxy.async.shared::cta;";
    case PipeOp::kWgmmaFence: return "wgmma.fence.sync.aligned;";
    case PipeOp::kWgmmaCommit: return "wgmma.commit_group.sync.aligned;";
    case PipeOp::kOrder:
    case PipeOp::kSettle: break;  // assemblers know
    case PipeOp::kWgmmaWait: return fmt::format("wgmma.wait_group.sync.aligned {};", s.step);
  }
  __builtin_unreachable();
}

std::string_view cuda_target(const Program& program, const TargetInfo& target) {
  const auto has_product = [](const Block& block) {
    return std::any_of(block.stmts.begin(), block.stmts.end(), [](const Stmt& s) {
      return s.kind == StmtKind::kWarpgroupMma || s.kind == StmtKind::kTensor;
    });
  };
  const bool has_any = std::any_of(program.blocks.begin(), program.blocks.end(), has_product);
  return has_any ? target.specific_cpu : target.cpu;
}

}  // namespace bm::compiler
