#include "drivers/amd/chips.h"

#include <algorithm>
#include <array>
#include <string>

#include "drivers/amd/regs/registers.h"

namespace bm::amd {
namespace {

// Save areas. Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_queue.c, kfd_get_vgpr_size_per_cu() and
// CNTL_STACK_BYTES_PER_WAVE; the limit of gfx10: kfd_queue_ctx_save_restore_size().
constexpr SaveArea kSaveMi300{0x80000, 0x4000, 8};
constexpr SaveArea kSaveLarge{0x60000, 0x4000, 12}, kSaveSmall{0x40000, 0x4000, 12};
constexpr SaveArea kSaveGfx10{0x40000, 0x4000, 12, 0x7000};

// The forms a generation is made of. Scratch units and register granules: LLVM,
// AMDGPUUsage.rst, "compute_pgm_rsrc1 for GFX6-GFX12" and "Private Segment Buffer"; LDS: the same,
// "Address Spaces". Register files: LLVM, AMDGPUBaseInfo.cpp, getTotalNumVGPRs() and
// getVGPRAllocGranule(); GCNProcessors.td for which chips have the large one.
constexpr ChipRow kGfx9{
    .name = "",
    .target_version = 0,
    .elf_machine = 0,
    .registers = RegisterSet::kGc9_4_3,
    .caches = CacheForm::kCoherCntl,
    .sdma = SdmaForm::kV4_4,
    .wave = 64,
    .has_wave32 = false,
    .max_vgprs = 512,
    .vgpr_granule32 = 8,
    .vgprs_per_simd = 512,
    .vgpr_unit = 8,
    .waves_per_simd = 8,
    .simds_per_cu = 4,
    .lds_bytes = 65536,
    .lds_unit = 512,
    .scratch_unit = 1024,
    .scratch_wave_size = kGc943ComputeTmpringSizeWavesize,
    .is_scratch_per_engine = false,
    .needs_privilege = false,
    .save = kSaveMi300,
    .validated = false,
};
// RDNA2. Scratch: LLVM, AMDGPUAsmPrinter.cpp, getSIProgramInfo() (blocks of 256 dwords before
// GFX11); ROCR, amd_aql_queue.cpp, FillComputeTmpRingSize() (WAVES of the whole GPU before GFX11).
constexpr ChipRow kGfx10{
    .name = "",
    .target_version = 0,
    .elf_machine = 0,
    .registers = RegisterSet::kGc10_3,
    .caches = CacheForm::kGcr,
    .sdma = SdmaForm::kV5_2,
    .wave = 32,
    .has_wave32 = true,
    .max_vgprs = 256,
    .vgpr_granule32 = 8,
    .vgprs_per_simd = 1024,
    .vgpr_unit = 16,
    .waves_per_simd = 16,
    .simds_per_cu = 2,
    .lds_bytes = 65536,
    .lds_unit = 512,
    .scratch_unit = 1024,
    .scratch_wave_size = kGc1030ComputeTmpringSizeWavesize,
    .is_scratch_per_engine = false,
    .needs_privilege = false,
    .save = kSaveGfx10,
    .validated = false,
};
constexpr ChipRow kGfx11{
    .name = "",
    .target_version = 0,
    .elf_machine = 0,
    .registers = RegisterSet::kGc11,
    .caches = CacheForm::kGcr,
    .sdma = SdmaForm::kV6,
    .wave = 32,
    .has_wave32 = true,
    .max_vgprs = 256,
    .vgpr_granule32 = 8,
    .vgprs_per_simd = 1024,
    .vgpr_unit = 16,
    .waves_per_simd = 16,
    .simds_per_cu = 2,
    .lds_bytes = 65536,
    .lds_unit = 512,
    .scratch_unit = 256,
    .scratch_wave_size = kGc1100ComputeTmpringSizeWavesize,
    .is_scratch_per_engine = true,
    .needs_privilege = true,
    .save = kSaveSmall,
    .validated = false,
};
constexpr ChipRow kGfx12{
    .name = "",
    .target_version = 0,
    .elf_machine = 0,
    .registers = RegisterSet::kGc12,
    .caches = CacheForm::kGcrNoGl1,
    .sdma = SdmaForm::kV7,
    .wave = 32,
    .has_wave32 = true,
    .max_vgprs = 256,
    .vgpr_granule32 = 8,
    .vgprs_per_simd = 1536,
    .vgpr_unit = 24,
    .waves_per_simd = 16,
    .simds_per_cu = 2,
    .lds_bytes = 65536,
    .lds_unit = 512,
    .scratch_unit = 256,
    .scratch_wave_size = kGc1200ComputeTmpringSizeWavesize,
    .is_scratch_per_engine = true,
    .needs_privilege = false,
    .save = kSaveLarge,
    .validated = false,
};

constexpr ChipRow chip(ChipRow row, std::string_view name, uint32_t version, uint8_t machine) {
  row.name = name;
  row.target_version = version;
  row.elf_machine = machine;
  return row;
}
/// Chips with half as many registers again, which are saved, too.
constexpr ChipRow large(ChipRow row) {
  row.save = kSaveLarge;
  row.vgprs_per_simd = 1536;
  row.vgpr_unit = 24;
  return row;
}
constexpr ChipRow with_lds(ChipRow row, uint32_t bytes, uint32_t unit) {
  row.lds_bytes = bytes;
  row.lds_unit = unit;
  return row;
}

// Machine numbers: LLVM, llvm/BinaryFormat/ELF.h, EF_AMDGPU_MACH_AMDGCN_*.
constexpr std::array kChips{
    chip(kGfx9, "gfx942", 90402, 0x4c),
    chip(with_lds(kGfx9, 163840, 1280), "gfx950", 90500, 0x4f),
    chip(kGfx10, "gfx1030", 100300, 0x36),
    chip(kGfx10, "gfx1031", 100301, 0x37),
    chip(kGfx10, "gfx1032", 100302, 0x38),
    chip(kGfx10, "gfx1033", 100303, 0x39),
    chip(kGfx10, "gfx1034", 100304, 0x3e),
    chip(kGfx10, "gfx1035", 100305, 0x3d),
    chip(kGfx10, "gfx1036", 100306, 0x45),
    chip(large(kGfx11), "gfx1100", 110000, 0x41),
    chip(large(kGfx11), "gfx1101", 110001, 0x46),
    chip(kGfx11, "gfx1102", 110002, 0x47),
    chip(kGfx11, "gfx1103", 110003, 0x44),
    chip(kGfx11, "gfx1150", 110500, 0x43),
    chip(large(kGfx11), "gfx1151", 110501, 0x4a),
    chip(kGfx12, "gfx1200", 120000, 0x48),
    chip(kGfx12, "gfx1201", 120001, 0x4e),
};

constexpr bool is_sorted_by_version() {
  for (size_t i = 1; i < kChips.size(); ++i)
    if (kChips[i - 1].target_version >= kChips[i].target_version) return false;
  return true;
}
static_assert(is_sorted_by_version());

}  // namespace

std::span<const ChipRow> chips() { return kChips; }

const ChipRow* find_chip(uint32_t target_version) {
  const auto* row = std::ranges::find(kChips, target_version, &ChipRow::target_version);
  return row == kChips.end() ? nullptr : row;
}

const ChipRow* find_chip(std::string_view name) {
  const auto* row = std::ranges::find(kChips, name, &ChipRow::name);
  return row == kChips.end() ? nullptr : row;
}

const ChipRow* find_chip_by_machine(uint8_t elf_machine) {
  const auto* row = std::ranges::find(kChips, elf_machine, &ChipRow::elf_machine);
  return row == kChips.end() ? nullptr : row;
}

Result<const ChipRow*> require_chip(uint32_t target_version) {
  if (const ChipRow* row = find_chip(target_version)) return row;
  std::string known;
  for (const ChipRow& row : kChips) known += fmt::format(" {}", row.name);
  return fail(Code::kUnsupported,
              "GPU of gfx_target_version {} (gfx{}{:x}{:x}) is not supported; known are{}",
              target_version, target_version / 10000, target_version / 100 % 100,
              target_version % 100, known);
}

}  // namespace bm::amd
