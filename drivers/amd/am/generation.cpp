#include "drivers/amd/am/generation.h"

#include <algorithm>

namespace bm::amd::am {
namespace {

constexpr uint64_t bit(uint32_t position) { return uint64_t{1} << position; }

// amdgpu_vm.h: AMDGPU_PDE_PTE, AMDGPU_PTE_TF, AMDGPU_PDE_PTE_GFX12. Levels: PDB2, PDB1, PDB0, PTB.
constexpr uint32_t kPdb0 = 2, kPtb = 3;
bool is_leaf_gfx9(uint32_t level, uint64_t entry) {
  if (level == kPdb0) return (entry & bit(56)) == 0;
  return level == kPtb || (entry & bit(54)) != 0;
}
bool is_leaf_gfx11(uint32_t level, uint64_t entry) {
  return level == kPtb || (entry & bit(54)) != 0;
}
bool is_leaf_gfx12(uint32_t level, uint64_t entry) {
  return level == kPtb || (entry & bit(63)) != 0;
}

// Sources: SDMA1_REG_OFFSET, SDMA1_HYP_DEC_REG_OFFSET of sdma_v6_0.c and sdma_v7_0.c; regSDMA0_
// QUEUE1_RB_CNTL - regSDMA0_QUEUE0_RB_CNTL (gc_11_0_0_offset.h, gc_12_0_0_offset.h).
constexpr CopyForm kInGraphics{Block::kGc, 0x600, 0x20, 0x58};
// sdma_v4_4_2_get_reg_offset(): an IP instance each.
constexpr CopyForm kInstances{Block::kSdma, 0, 0, 0};
// smu_v13_0_0_ppsmc.h, smu_v13_0_7_ppsmc.h, smu_v14_0_2_ppsmc.h, which agree on these.
constexpr SmuMessages kSmuRdna{.enable_all = 0x6,
                               .table_high = 0xe,
                               .table_low = 0xf,
                               .driver_reset = 0,
                               .metrics = 0x12,
                               .metrics_argument = 5,  // TABLE_SMU_METRICS
                               .get_power_limit = 0x33,
                               .set_power_limit = 0x32,
                               .reset_copies = 0,
                               .is_always_there = false};
// smu_v13_0_6_ppsmc.h.
constexpr SmuMessages kSmuMi300{.enable_all = 0x5,
                                .table_high = 0xd,
                                .table_low = 0xe,
                                .driver_reset = 0x3,
                                .metrics = 0x9,
                                .metrics_argument = 0,
                                .get_power_limit = 0x19,
                                .set_power_limit = 0x18,
                                .reset_copies = 0x4d,
                                .is_always_there = true};

// Reserved memory: 64 MiB is what the drivers of these chips and their VBIOS keep at the top, 384
// MiB what an MI300X does. Doorbells: AMDGPU_NAVI10_DOORBELL_MEC_RING0 and _USERQUEUE_END,
// AMDGPU_DOORBELL_LAYOUT1_MEC_RING_START and _USERQUEUE_END.
constexpr Generation kRows[] = {
    {.name = "gfx942",
     .gc_major = 9,
     .gc_minor = 4,
     .is_experimental = true,
     .tables = memory::gfx9_page_tables,
     .is_leaf = is_leaf_gfx9,
     .table_block_size = 9,
     .l2_bank_select = 12,
     .l2_large_fragment = 9,
     .has_fragment_processing = true,
     .has_private_caches = false,
     .top_bytes = 384 << 20,
     .processor = ProcessorKind::kF32,
     .front_pipes = 0,
     .compute_pipes = 4,
     .has_processor_reset = true,
     .has_tcp_golden = false,
     .protected_memory = ProtectedMemory::kAtBootWanted,
     .interrupts = InterruptForm::kSoc15,
     .compute_doorbell = 0x8,
     .last_doorbell = 0x1f,
     .preload_bytes = 0x53,
     .misc_reserved = 3,
     .copies = kInstances,
     .smu = kSmuMi300},
    {.name = "gfx11",
     .gc_major = 11,
     .gc_minor = 0,
     .is_experimental = false,
     .tables = memory::gfx11_page_tables,
     .is_leaf = is_leaf_gfx11,
     .table_block_size = 0,
     .l2_bank_select = 9,
     .l2_large_fragment = 6,
     .has_fragment_processing = false,
     .has_private_caches = true,
     .top_bytes = 64 << 20,
     .processor = ProcessorKind::kRs64,
     .front_pipes = 2,
     .compute_pipes = 4,
     .has_processor_reset = true,
     .has_tcp_golden = true,
     .protected_memory = ProtectedMemory::kOurs,
     .interrupts = InterruptForm::kSoc21,
     .compute_doorbell = 0x3,
     .last_doorbell = 0x8a,
     .preload_bytes = 0x55,
     .misc_reserved = 7,
     .copies = kInGraphics,
     .smu = kSmuRdna},
    {.name = "gfx12",
     .gc_major = 12,
     .gc_minor = 0,
     .is_experimental = false,
     .tables = memory::gfx12_page_tables,
     .is_leaf = is_leaf_gfx12,
     .table_block_size = 0,
     .l2_bank_select = 9,
     .l2_large_fragment = 6,
     .has_fragment_processing = false,
     .has_private_caches = true,
     .top_bytes = 64 << 20,
     .processor = ProcessorKind::kRs64,
     .front_pipes = 1,
     .compute_pipes = 2,
     .has_processor_reset = false,
     .has_tcp_golden = false,
     .protected_memory = ProtectedMemory::kAtBoot,
     .interrupts = InterruptForm::kSoc21,
     .compute_doorbell = 0x3,
     .last_doorbell = 0x8a,
     .preload_bytes = 0x55,
     .misc_reserved = 7,
     .copies = kInGraphics,
     .smu = kSmuRdna},
};

}  // namespace

const Generation* find_generation(uint8_t gc_major, uint8_t gc_minor) {
  for (const Generation& row : kRows)
    if (row.gc_major == gc_major && row.gc_minor == gc_minor) return &row;
  return nullptr;
}

}  // namespace bm::amd::am
