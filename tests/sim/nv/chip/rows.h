#pragma once
// The cards that the model can be: what differs among generations, as data.
// Source, here and wherever `K` is named: open-gpu-kernel-modules 570.144,
// src/common/inc/swref/published (headers by chip) and src/nvidia/src/kernel/gpu.

#include <cstdint>
#include <span>
#include <string_view>

namespace bm::sim::nv::card {

/// Who sets up the write-protected region and starts the GSP.
enum class BootPath : uint8_t {
  kFalconLoader,  ///< FWSEC by the generic boot loader, booter by PIO: Turing, GA100
  kFalconDma,     ///< FWSEC and booter by the falcon's own DMA, checked by its boot ROM: GA10x, Ada
  kFsp,           ///< chain of trust of the FSP: Hopper, Blackwell
};
enum class MmuVersion : uint8_t { k2, k3 };
enum class MemorySize : uint8_t {
  kLocalRange,  ///< NV_PFB_PRI_MMU_LOCAL_MEMORY_RANGE
  kScratch42,   ///< NV_USABLE_FB_SIZE_IN_MB
};

struct CardRow {
  std::string_view name;  ///< of the engines' row (tests/sim/nv/chip.h) and of the firmware folder
  std::string_view gsp_of;  ///< whose folder has gsp.bin
  uint16_t device;
  uint32_t boot0, boot42;
  BootPath boot;
  MmuVersion mmu;
  MemorySize memory_size;
  std::string_view signature;  ///< section of gsp.bin
  uint32_t descriptor;         ///< version of FWSEC's; 0: there is none
  uint32_t i2cs_scratch;       ///< where the ROM tells the end of its boot; 0: PGC6 group 05
  uint32_t bar0_window;        ///< register of the PRAMIN window
  uint32_t config_mirror;      ///< configuration space in BAR 0
  uint32_t cot_version, key_bytes, signature_bytes;  ///< of the FSP's message
  uint32_t scrub_handoff;  ///< NV_PGC6_BSI_SECURE_SCRATCH_15, the scrubber's word; 0: no scrubber
  uint32_t frts_bytes;     ///< kgspGetFrtsSize(); 0: no FRTS region, no FWSEC
  uint32_t non_wpr_heap;   ///< kgspGetNonWprHeapSize()
  uint32_t least_heap_mib, most_heap_mib;
};

const CardRow* find_card_row(std::string_view name);
std::span<const CardRow> all_card_rows();

}  // namespace bm::sim::nv::card
