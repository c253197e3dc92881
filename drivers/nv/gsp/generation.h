#pragma once
// Generations of NVIDIA cards as their boot sees them: one row per family. What a boot does
// otherwise than another is an enumerator here; nothing else asks which chip it is.

#include <cstdint>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::nv::gsp {

inline constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

/// Who sets the GSP's protected memory (WPR2) up and starts it.
enum class BootPath : uint8_t {
  kBooterPio,  ///< FWSEC and the booter, written into falcons word by word; no boot ROM
  kBooterDma,  ///< the same by DMA, their signatures checked by the falcons' boot ROM
  kFsp,        ///< the FSP, told by one message (chain of trust)
};

/// Where the card says that the program in its ROM is through.
enum class RomDone : uint8_t {
  kSecureScratch,  ///< PGC6_AON_SECURE_SCRATCH_GROUP_05, readable once its mask says so
  kThermScratch,   ///< THERM_I2CS_SCRATCH, at Generation::therm_scratch
};

/// Where the size of video memory stands.
enum class MemorySize : uint8_t {
  kLocalRange,  ///< PFB_PRI_MMU_LOCAL_MEMORY_RANGE: magnitude, scale, ECC
  kScratch42,   ///< PGC6_AON_SECURE_SCRATCH_GROUP_42, in mebibytes
};

/// Registers that take the page by which the card flushes its writes to system memory.
enum class FlushPage : uint8_t {
  kNiso,      ///< bits 39:8 alone
  kNisoHigh,  ///< bits 63:40 in a second register
  kFbhub,     ///< GH100: the address as it is, high word first
  kHshub,     ///< GB10x: two pairs
  kFbhub0,    ///< GB20x
};

/// Whether the RISC-V core runs.
enum class RiscvStatus : uint8_t {
  kCoreSwitch,  ///< RISCV_CORE_SWITCH_RISCV_STATUS bit 0
  kCpuctl,      ///< RISCV_CPUCTL bit 7
};

struct Generation {
  std::string_view family;  ///< as firmware_set() names it
  uint32_t architecture = 0;
  BootPath path{};
  RomDone rom_done{};
  MemorySize memory_size{};
  FlushPage flush_page{};
  RiscvStatus riscv{};
  uint32_t therm_scratch = 0;
  uint32_t display_fuse = 0;  ///< FUSE_STATUS_OPT_DISPLAY: bit 0 is set on boards without one
  uint32_t config_mirror = 0;
  uint32_t address_bits = 0;  ///< of addresses in system memory

  /// Carve-outs of video memory, in bytes.
  uint64_t frts_bytes = 0;  ///< 0: FWSEC sets nothing up
  uint64_t non_wpr_heap_bytes = 0;
  uint64_t heap_os_bytes = 0;    ///< of the heap: for the operating system
  uint64_t heap_base_bytes = 0;  ///< and for the resource manager's start
  uint64_t heap_least_bytes = 0, heap_most_bytes = 0;
  /// What the ROM has scrubbed at the end of video memory; 0: all of it.
  uint64_t scrubbed_bytes = 0;
  bool has_scrubber = false;  ///< a program that scrubs more

  /// For the FSP.
  uint16_t cot_version = 0;
  uint64_t pmu_bytes = 0;          ///< for the PMU, above the FRTS region
  uint64_t end_reserve_bytes = 0;  ///< above that
};

/// By NV_PMC_BOOT_42. Errors: kUnsupported naming architecture and implementation.
Result<const Generation*> find_generation(uint32_t architecture, uint32_t implementation);

}  // namespace bm::nv::gsp
