#include "compiler/targets/card.h"

#include <algorithm>
#include <array>

namespace bm::compiler {
namespace {

constexpr double kGiga = 1e9;

/// The largest card of each architecture. Units, boost clocks, bandwidths and peaks of matrix
/// instructions (without sparsity, sums in float32): NVIDIA's architecture whitepapers of Turing,
/// A100, GA102, Ada, H100 (SXM), Blackwell and RTX Blackwell PRO; AMD's product pages and CDNA3,
/// CDNA4, RDNA3 and RDNA4 whitepapers, November 2026. Issue: CUDA C++ Programming Guide 13.0,
/// "Compute Capabilities" (four schedulers); RDNA3 ISA guide (two SIMD32), CDNA3 ISA guide (four
/// SIMD16, a wave of 64 takes four cycles). Registers of AMD: LLVM 19, AMDGPUBaseInfo.cpp,
/// getVGPRAllocGranule, getTotalNumVGPRs, getMaxWavesPerEU. Of NVIDIA: cuda_occupancy.h of CUDA
/// 13.0 (256 for a warp).
constexpr std::array kCards = {
    CardInfo{"sm_75", "TU102", 72, 1.77 * kGiga, 672 * kGiga, 4, 128, 1024, 2048, 8, 4, 8, 512},
    CardInfo{"sm_80", "A100", 108, 1.41 * kGiga, 2039 * kGiga, 4, 128, 2048, 4096, 8, 4, 16, 512},
    CardInfo{"sm_86", "A40", 84, 1.74 * kGiga, 696 * kGiga, 4, 256, 1024, 2048, 8, 4, 12, 512},
    CardInfo{"sm_89", "RTX 6000 Ada", 142, 2.505 * kGiga, 960 * kGiga, 4, 256, 1024, 2048, 8, 4, 12,
             512},
    CardInfo{"sm_90", "H100 SXM", 132, 1.83 * kGiga, 3352 * kGiga, 4, 256, 4096, 8192, 8, 4, 16,
             512},
    CardInfo{"sm_100", "B200", 148, 1.86 * kGiga, 8000 * kGiga, 4, 256, 8192, 16384, 8, 4, 16, 512},
    CardInfo{"sm_120", "RTX PRO 6000", 188, 2.617 * kGiga, 1792 * kGiga, 4, 256, 1024, 2048, 8, 4,
             12, 512},
    CardInfo{"gfx942", "MI300X", 304, 2.1 * kGiga, 5300 * kGiga, 1, 256, 2048, 4096, 8, 4, 8, 512},
    CardInfo{"gfx950", "MI355X", 256, 2.4 * kGiga, 8000 * kGiga, 1, 256, 4096, 8192, 8, 4, 8, 512},
    CardInfo{"gfx1030", "RX 6900 XT", 80, 2.25 * kGiga, 512 * kGiga, 2, 128, 0, 0, 16, 2, 16, 1024},
    CardInfo{"gfx1100", "RX 7900 XTX", 96, 2.5 * kGiga, 960 * kGiga, 2, 256, 512, 512, 24, 2, 16,
             1536},
    CardInfo{"gfx1201", "RX 9070 XT", 64, 2.97 * kGiga, 640 * kGiga, 2, 256, 1024, 2048, 24, 2, 16,
             1536}};

}  // namespace

const CardInfo* find_card(std::string_view arch) {
  const auto* row = std::ranges::find(kCards, arch, &CardInfo::arch);
  return row == kCards.end() ? nullptr : row;
}

}  // namespace bm::compiler
