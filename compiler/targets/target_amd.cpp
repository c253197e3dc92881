// Facts of AMD's GPUs, by the name LLVM gives them.
#include <algorithm>
#include <array>
#include <string_view>

#include "compiler/targets/target.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

enum class MatrixForm : uint8_t { kNone, kWmma11, kWmma12, kMfma };
/// v_dot4_i32_i8 takes signed elements, v_dot4_i32_iu8 lets each operand say. Source: AMD CDNA3,
/// RDNA2, RDNA3 and RDNA4 ISA guides, "VOP3P Instructions".
enum class DotForm : uint8_t { kSigned, kAny };

/// Source: LLVM 19, AMDGPUUsage.rst, "Processors" and "Address Spaces"; GCNProcessors.td of LLVM 17
/// to 20 for the first release that has a name.
struct AmdRow {
  std::string_view name;
  uint32_t wave;         ///< lanes of a wave of our kernels
  bool has_cumode;       ///< work-groups on one compute unit or on a pair of them
  uint32_t local_bytes;  ///< of a work-group
  int from_release;      ///< of LLVM
  MatrixForm matrix;
  DotForm dots;
};
constexpr std::array kAmdRows = {
    // Code only (DEV=NULL::gfx90a): drivers/amd has no rows for them. Their matrix instructions
    // have
    // other shapes than CDNA3's, and are not used.
    AmdRow{"gfx906", 64, false, 64 << 10, 11, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx908", 64, false, 64 << 10, 11, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx90a", 64, false, 64 << 10, 13, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx942", 64, false, 64 << 10, 17, MatrixForm::kMfma, DotForm::kSigned},
    AmdRow{"gfx950", 64, false, 160 << 10, 20, MatrixForm::kMfma, DotForm::kSigned},
    AmdRow{"gfx1030", 32, true, 64 << 10, 11, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1031", 32, true, 64 << 10, 11, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1032", 32, true, 64 << 10, 12, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1033", 32, true, 64 << 10, 12, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1034", 32, true, 64 << 10, 13, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1035", 32, true, 64 << 10, 13, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1036", 32, true, 64 << 10, 15, MatrixForm::kNone, DotForm::kSigned},
    AmdRow{"gfx1100", 32, true, 64 << 10, 17, MatrixForm::kWmma11, DotForm::kAny},
    AmdRow{"gfx1101", 32, true, 64 << 10, 17, MatrixForm::kWmma11, DotForm::kAny},
    AmdRow{"gfx1102", 32, true, 64 << 10, 17, MatrixForm::kWmma11, DotForm::kAny},
    AmdRow{"gfx1103", 32, true, 64 << 10, 17, MatrixForm::kWmma11, DotForm::kAny},
    AmdRow{"gfx1150", 32, true, 64 << 10, 17, MatrixForm::kWmma11, DotForm::kAny},
    AmdRow{"gfx1151", 32, true, 64 << 10, 17, MatrixForm::kWmma11, DotForm::kAny},
    AmdRow{"gfx1200", 32, true, 64 << 10, 18, MatrixForm::kWmma12, DotForm::kAny},
    AmdRow{"gfx1201", 32, true, 64 << 10, 18, MatrixForm::kWmma12, DotForm::kAny}};

const AmdRow* find_row(std::string_view name) {
  const auto* row = std::ranges::find(kAmdRows, name, &AmdRow::name);
  return row == kAmdRows.end() ? nullptr : row;
}

/// Fragment layout: lane l of the wave has index l % 16 in its lane group. RDNA3: both halves of
/// the wave hold the same rows and columns, results are in rows 2·s + l / 16. RDNA4: the halves
/// hold halves of K, results are in rows s + 8·(l / 16). CDNA3: four quarters, rows s + 4·(l / 16).
/// Source: AMD RDNA3 and RDNA4 ISA guides, "WMMA"; CDNA3 ISA guide, "Matrix Arithmetic
/// Instructions".
struct MatrixShape {
  MatrixForm form;
  uint32_t parts, accumulators, row_step, row_part;
};
constexpr std::array kMatrixShapes = {MatrixShape{MatrixForm::kWmma11, 1, 8, 2, 1},
                                      MatrixShape{MatrixForm::kWmma12, 2, 8, 1, 8},
                                      MatrixShape{MatrixForm::kMfma, 4, 4, 1, 4}};
/// K of one instruction: 16 elements of 16 bits; of 8 bits 16, on CDNA3 32.
struct MatrixType {
  DType in, sum;
  uint32_t k_words;
  bool has_mfma;
};
constexpr std::array kMatrixTypes = {
    MatrixType{DType::kF16, DType::kF32, 8, true}, MatrixType{DType::kBF16, DType::kF32, 8, true},
    MatrixType{DType::kI8, DType::kI32, 4, true}, MatrixType{DType::kU8, DType::kI32, 4, false}};

std::vector<MatrixInfo> matrix_rows(MatrixForm form) {
  const auto* shape = std::ranges::find(kMatrixShapes, form, &MatrixShape::form);
  if (form == MatrixForm::kNone) return {};
  const bool is_mfma = form == MatrixForm::kMfma;
  std::vector<MatrixInfo> rows;
  for (const MatrixType& type : kMatrixTypes)
    if (type.has_mfma || !is_mfma)
      rows.push_back({.in = type.in,
                      .sum = type.sum,
                      .k_words = is_mfma ? 8 : type.k_words,
                      .slot = 16,
                      .a_slots = 1,
                      .parts = shape->parts,
                      .is_part_low = false,
                      .accumulators = shape->accumulators,
                      .row_step = shape->row_step,
                      .row_part = shape->row_part});
  return rows;
}

std::vector<DotInfo> dot_rows(DotForm form) {
  std::vector<DotInfo> rows = {{DotKind::kS8S8, 32}};
  if (form == DotForm::kAny) rows.push_back({DotKind::kU8S8, 32});
  return rows;
}

/// Work-items along an axis of a grid are counted in 32 bits, groups along the second and third
/// axis in 16. Source: HSA runtime specification 1.2, "kernel dispatch packet"; LLVM,
/// AMDGPUUsage.rst, "SGPR register initial state", TTMP7 of gfx12.
constexpr uint32_t kMaxBlock = 1024;
constexpr std::array<int64_t, 3> kMaxGroups = {UINT32_MAX / kMaxBlock, 65535, 65535};

/// Waves of a compute unit, its vector registers over all lanes, and groups: as many as there are
/// barriers. Source: LLVM 19, AMDGPUBaseInfo.cpp, getEUsPerCU, getMaxWavesPerEU, getTotalNumVGPRs
/// (the smaller ones of RDNA) and getMaxWorkGroupsPerCU.
struct UnitShape {
  MatrixForm form;
  uint32_t waves, registers;
};
constexpr std::array kUnitShapes = {UnitShape{MatrixForm::kNone, 32, 2 * 1024 * 32},
                                    UnitShape{MatrixForm::kMfma, 32, 4 * 512 * 64},
                                    UnitShape{MatrixForm::kWmma11, 32, 2 * 1024 * 32},
                                    UnitShape{MatrixForm::kWmma12, 32, 2 * 1024 * 32}};
constexpr uint32_t kUnitGroups = 16;
/// Two SIMD32, or four SIMD16. Source: AMD RDNA3 and CDNA3 ISA guides.
constexpr uint32_t kUnitLanes = 64;

}  // namespace

bool is_amd(const hal::Arch& arch) {
  return arch.vendor == hal::Vendor::kAmd ||
         (arch.vendor == hal::Vendor::kNull && arch.name.starts_with("gfx"));
}

Status check_amd(const hal::Arch& arch) {
  if (find_row(arch.name) != nullptr) return {};
  std::string known;
  for (const AmdRow& row : kAmdRows) known += fmt::format(" {}", row.name);
  return fail(Code::kUnsupported, "architecture {}: AMD's targets are{}", arch.name, known);
}

/// Everything rounds as IEEE 754 says and keeps subnormals, which the kernel's initial mode asks
/// for. Source: LLVM, AMDGPUUsage.rst, FLOAT_ROUND_MODE and FLOAT_DENORM_MODE of COMPUTE_PGM_RSRC1.
TargetInfo amd_info(const hal::Arch& arch, TargetInfo info) {
  const AmdRow* row = find_row(arch.name);
  if (row == nullptr) return info;
  info.has_f16c = info.has_f64 = info.keeps_subnormals = info.has_unaligned_words = true;
  info.hoists_loads = true;
  info.max_block = arch.max_block > 1 ? std::min(arch.max_block, kMaxBlock) : kMaxBlock;
  info.shared_memory_bytes = arch.vendor == hal::Vendor::kAmd && arch.shared_memory_bytes != 0
                                 ? std::min(arch.shared_memory_bytes, row->local_bytes)
                                 : row->local_bytes;
  info.max_groups = kMaxGroups;
  info.triple = "amdgcn-amd-amdhsa";
  info.cpu = arch.name;
  info.features = arch.features;
  if (row->has_cumode && info.features.empty())
    info.features = settings().amd_cumode ? "+cumode" : "-cumode";
  info.llvm_release = row->from_release;
  info.sub_group = row->wave;
  info.has_shuffles = info.has_segments = info.has_wide_stores = true;
  // VOPD, wave32 of gfx11 and gfx12. Source: AMD RDNA3 and RDNA4 ISA guides, "Dual Issue VALU".
  info.has_dual_fma = row->matrix == MatrixForm::kWmma11 || row->matrix == MatrixForm::kWmma12;
  info.matrix = matrix_rows(row->matrix);
  for (MatrixInfo m : info.matrix) {
    if (m.sum != DType::kI32) continue;
    m.has_signed_right = m.in == DType::kU8;
    info.quantised.push_back(m);
  }
  info.dots = dot_rows(row->dots);
  const UnitShape* unit = std::ranges::find(kUnitShapes, row->matrix, &UnitShape::form);
  info.pipe.cu_items = unit->waves * row->wave;
  info.pipe.cu_lanes = kUnitLanes;
  info.pipe.cu_groups = kUnitGroups;
  info.pipe.cu_registers = unit->registers;
  return info;
}

}  // namespace bm::compiler
