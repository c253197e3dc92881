#include "tests/sim/nv/chip.h"

#include <array>

namespace bm::sim::nv {
namespace {

// Classes by number and by chip: open-gpu-kernel-modules 580.142,
// src/nvidia/generated/g_gpu_class_list.c (gpuGetEngClassDescriptorList_*, one entry per class
// here, display and video engines left out) and src/common/sdk/nvidia/inc/class/.
constexpr std::array<uint32_t, 20> kTu102 = {0xc365, 0x9067, 0x902d, 0xa06c, 0xa140, 0xc369, 0x0060,
                                             0xc597, 0xc46f, 0xc5c0, 0xc5b5, 0xc461, 0xc36f, 0xc361,
                                             0x83de, 0x90f1, 0x0080, 0x2080, 0x003e, 0x0040};
constexpr std::array<uint32_t, 22> kGa100 = {
    0xc365, 0xc697, 0xc56f, 0xc6c0, 0xc6b5, 0xc561, 0x9067, 0x902d, 0xa06c, 0xa140, 0xc369,
    0x0060, 0xc46f, 0xc461, 0xc36f, 0xc361, 0x83de, 0x90f1, 0x0080, 0x2080, 0x003e, 0x0040};
constexpr std::array<uint32_t, 22> kGa102 = {
    0xc365, 0xc797, 0xc56f, 0xc7c0, 0xc7b5, 0xc561, 0x9067, 0x902d, 0xa06c, 0xa140, 0xc369,
    0x0060, 0xc46f, 0xc461, 0xc36f, 0xc361, 0x83de, 0x90f1, 0x0080, 0x2080, 0x003e, 0x0040};
constexpr std::array<uint32_t, 22> kAd102 = {
    0xc365, 0xc997, 0xc9c0, 0xc56f, 0xc7b5, 0xc561, 0x9067, 0x902d, 0xa06c, 0xa140, 0xc369,
    0x0060, 0xc46f, 0xc461, 0xc36f, 0xc361, 0x83de, 0x90f1, 0x0080, 0x2080, 0x003e, 0x0040};
constexpr std::array<uint32_t, 24> kGh100 = {
    0xc365, 0xc56f, 0xc561, 0x9067, 0x902d, 0xcb97, 0xc86f, 0xcbc0, 0xc8b5, 0xc661, 0xa06c, 0xa140,
    0xc369, 0x0060, 0xc46f, 0xc461, 0xc36f, 0xc361, 0x83de, 0x90f1, 0x0080, 0x2080, 0x003e, 0x0040};
constexpr std::array<uint32_t, 26> kGb100 = {0xc365, 0xc56f, 0xc561, 0xcd97, 0xc96f, 0xcdc0, 0xc9b5,
                                             0xcd40, 0x9067, 0x902d, 0xc86f, 0xc661, 0xa06c, 0xc369,
                                             0x0060, 0xc46f, 0xc461, 0xc36f, 0xc361, 0x83de, 0x90f1,
                                             0x0080, 0x2080, 0x003e, 0x0040, 0x0070};
constexpr std::array<uint32_t, 28> kGb202 = {
    0xc365, 0xc56f, 0xc561, 0xce97, 0xc96f, 0xca6f, 0xcec0, 0xcab5, 0xcd40, 0xc761,
    0x9067, 0x902d, 0xc86f, 0xc661, 0xa06c, 0xc369, 0x0060, 0xc46f, 0xc461, 0xc36f,
    0xc361, 0x83de, 0x90f1, 0x0080, 0x2080, 0x003e, 0x0040, 0x0070};

// Shared memory configurations and the reserve per block. Source: CUDA C++ Programming Guide 13.0,
// "Technical Specifications per Compute Capability" and the sections of each capability.
constexpr std::array<uint32_t, 2> kShared75 = {32, 64};
constexpr std::array<uint32_t, 7> kShared80 = {8, 16, 32, 64, 100, 132, 164};
constexpr std::array<uint32_t, 5> kShared86 = {8, 16, 32, 64, 100};
constexpr std::array<uint32_t, 9> kShared90 = {8, 16, 32, 64, 100, 132, 164, 196, 228};

// Copy engines of graphics: open-gpu-kernel-modules 595.45.04, NV_CE_GRCE_ALLOWED_LCE_MASK of
// kernel_ce_ga100.c, kernel_ce_ga102.c (0x3) and kernel_ce_gb202.c (0xf), NV_CE_MAX_GRCE of
// kernel_ce_gh100.c; two on TU102 (nvLinkCeAutoConfigTable_TU102) and GB100 (kernel_ce_gb100.c).
// Counts are the maxima of the full die, as the litter values of GR_GET_INFO report them. PCI
// numbers: any product of the chip, from the PCI ID repository.
constexpr std::array kChips = {
    Chip{"tu102", "NVIDIA GeForce RTX 2080 Ti", 0x1e07, 0x705, 0xc461, 0xc5c0, 0xc5b5, 2, false,
         TokenForm::kRunlistChannel, 5, 2, 6, 6, 2, 32, kTu102, kShared75, 0},
    Chip{"ga100", "NVIDIA A100-SXM4-80GB", 0x20b2, 0x800, 0xc561, 0xc6c0, 0xc6b5, 3, false,
         TokenForm::kRunlistChannel, 10, 2, 8, 8, 2, 64, kGa100, kShared80, 1024},
    Chip{"ga102", "NVIDIA GeForce RTX 3090", 0x2204, 0x806, 0xc561, 0xc7c0, 0xc7b5, 3, false,
         TokenForm::kRunlistChannel, 5, 2, 7, 6, 2, 48, kGa102, kShared86, 1024},
    Chip{"ad102", "NVIDIA GeForce RTX 4090", 0x2684, 0x809, 0xc561, 0xc9c0, 0xc7b5, 3, false,
         TokenForm::kRunlistChannel, 5, 2, 12, 6, 2, 48, kAd102, kShared86, 1024},
    Chip{"gh100", "NVIDIA H200", 0x2335, 0x900, 0xc661, 0xcbc0, 0xc8b5, 4, true,
         TokenForm::kRunlistChannel, 10, 2, 8, 9, 2, 64, kGh100, kShared90, 1024},
    Chip{"gb100", "NVIDIA B200", 0x2901, 0xa00, 0xc661, 0xcdc0, 0xc9b5, 5, false,
         TokenForm::kRunlistChannel, 20, 2, 8, 10, 2, 64, kGb100, kShared90, 1024},
    Chip{"gb202", "NVIDIA GeForce RTX 5090", 0x2b85, 0xa04, 0xc761, 0xcec0, 0xcab5, 5, false,
         TokenForm::kRunlistChannelRing, 8, 4, 12, 8, 2, 48, kGb202, kShared86, 1024},
};

}  // namespace

const Chip* find_chip(std::string_view name) {
  for (const Chip& chip : kChips)
    if (chip.name == name) return &chip;
  return nullptr;
}

std::span<const Chip> all_chips() { return kChips; }

}  // namespace bm::sim::nv
