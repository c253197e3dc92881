// Facts of AMD's GPUs, by the name LLVM gives them.
#include <algorithm>
#include <array>
#include <string_view>

#include "compiler/codegen/target.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

/// Source: LLVM 19, AMDGPUUsage.rst, "Processors" and "Address Spaces"; GCNProcessors.td of LLVM 17
/// to 20 for the first release that has a name.
struct AmdRow {
  std::string_view name;
  uint32_t wave;         ///< lanes of a wave of our kernels
  bool has_cumode;       ///< work-groups on one compute unit or on a pair of them
  uint32_t local_bytes;  ///< of a work-group
  int from_release;      ///< of LLVM
};
constexpr std::array kAmdRows = {
    AmdRow{"gfx942", 64, false, 64 << 10, 17}, AmdRow{"gfx950", 64, false, 160 << 10, 20},
    AmdRow{"gfx1100", 32, true, 64 << 10, 17}, AmdRow{"gfx1101", 32, true, 64 << 10, 17},
    AmdRow{"gfx1102", 32, true, 64 << 10, 17}, AmdRow{"gfx1103", 32, true, 64 << 10, 17},
    AmdRow{"gfx1150", 32, true, 64 << 10, 17}, AmdRow{"gfx1151", 32, true, 64 << 10, 17},
    AmdRow{"gfx1200", 32, true, 64 << 10, 18}, AmdRow{"gfx1201", 32, true, 64 << 10, 18}};

const AmdRow* find_row(std::string_view name) {
  const auto* row = std::ranges::find(kAmdRows, name, &AmdRow::name);
  return row == kAmdRows.end() ? nullptr : row;
}

/// Work-items along an axis of a grid are counted in 32 bits, groups along the second and third
/// axis in 16. Source: HSA runtime specification 1.2, "kernel dispatch packet"; LLVM,
/// AMDGPUUsage.rst, "SGPR register initial state", TTMP7 of gfx12.
constexpr uint32_t kMaxBlock = 1024;
constexpr std::array<int64_t, 3> kMaxGroups = {UINT32_MAX / kMaxBlock, 65535, 65535};

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
  info.has_f16c = info.has_f64 = info.keeps_subnormals = true;
  info.max_block = arch.max_block > 1 ? std::min(arch.max_block, kMaxBlock) : kMaxBlock;
  info.local_memory_bytes = arch.vendor == hal::Vendor::kAmd && arch.local_memory_bytes != 0
                                ? std::min(arch.local_memory_bytes, row->local_bytes)
                                : row->local_bytes;
  info.max_groups = kMaxGroups;
  info.triple = "amdgcn-amd-amdhsa";
  info.cpu = arch.name;
  info.features = arch.features;
  if (row->has_cumode && info.features.empty())
    info.features = settings().amd_cumode ? "+cumode" : "-cumode";
  info.llvm_release = row->from_release;
  info.sub_group = row->wave;
  return info;
}

}  // namespace bm::compiler
