#pragma once
// What booting depends on beside register tables and firmware files: a row per generation of the
// graphics block. IP discovery says the version, the version picks the row, and blocks ask the row.

#include <cstdint>
#include <span>
#include <string_view>

#include "drivers/amd/regs/boot_registers.h"
#include "drivers/memory/page_table_format.h"

namespace bm::amd::am {

/// What runs the packets of compute queues, and who starts it.
enum class ProcessorKind : uint8_t {
  kRs64,  ///< RISC-V; the IMU and the RLC load it, it begins where its file says
  kF32,   ///< the PSP loads it, it begins at 0 when it is let go
};

/// Who says where the PSP's protected memory (TMR) is. Source: psp_early_init(), psp_hw_start().
enum class ProtectedMemory : uint8_t {
  kOurs,          ///< as large as the table of contents says
  kAtBoot,        ///< the boot loader's; the table is loaded all the same
  kAtBootWanted,  ///< the boot loader's, and an empty SETUP_TMR wanted
};

/// Interrupt clients and sources. Source: soc15_ih_clientid.h; ivsrcid/.
enum class InterruptForm : uint8_t { kSoc15, kSoc21 };

/// Numbers of PPSMC_MSG_*; 0: there is none that is used here.
struct SmuMessages {
  uint8_t enable_all, table_high, table_low;
  uint8_t driver_reset;               ///< GfxDriverReset; 0: mode 1 by the debug mailbox
  uint8_t metrics, metrics_argument;  ///< TransferTableSmu2Dram of a table, or GetMetricsTable
  uint8_t get_power_limit, set_power_limit;  ///< GetPptLimit, SetPptLimit
  uint8_t reset_copies;                      ///< ResetSDMA, a bit an engine
  bool is_always_there;                      ///< started by the board's own firmware, no file
};

struct CopyForm {
  Block block;                 ///< that its registers are of
  uint32_t engine_stride;      ///< dwords; 0: engines are instances of the block
  uint32_t hypervisor_stride;  ///< of SDMAn_F32_CNTL and the like
  uint32_t queue_stride;       ///< 0: one queue an engine
};

struct Generation {
  std::string_view name;
  uint8_t gc_major, gc_minor;
  /// Booted only where BM_AMD_EXPERIMENTAL names it: what no card and no other model has judged.
  bool is_experimental;
  const memory::PageTableFormat& (*tables)();
  /// Whether an entry of `level` is a leaf.
  bool (*is_leaf)(uint32_t level, uint64_t entry);
  /// PAGE_TABLE_BLOCK_SIZE. Not 0: entries of the last directory are to the hardware those of a
  /// page table that translates further, so that it counts one level less.
  uint8_t table_block_size;
  uint8_t l2_bank_select, l2_large_fragment;
  bool has_fragment_processing;  ///< VM_L2_CNTL.ENABLE_L2_FRAGMENT_PROCESSING
  bool has_private_caches;       ///< flushed by VM_L2_BANK_SELECT_RESERVED_CID2
  uint64_t top_bytes;            ///< of video memory: firmware's and the discovery table's
  ProcessorKind processor;
  uint8_t front_pipes, compute_pipes;  ///< that the kernel starts and loads stacks of
  bool has_processor_reset;            ///< GRBM_SOFT_RESET.SOFT_RESET_CP, which the kernel uses
  bool has_tcp_golden;                 ///< TCP_CNTL bit 29 (golden_settings_gc_11_0)
  ProtectedMemory protected_memory;
  InterruptForm interrupts;
  /// In 64-bit words: of the first compute queue; the last that the command processor listens to.
  uint32_t compute_doorbell, last_doorbell;
  uint32_t preload_bytes;  ///< CP_HQD_PERSISTENT_STATE.PRELOAD_SIZE
  uint32_t misc_reserved;  ///< compute_misc_reserved of the descriptor
  CopyForm copies;
  SmuMessages smu;
};

/// nullptr: not booted here.
const Generation* find_generation(uint8_t gc_major, uint8_t gc_minor);

}  // namespace bm::amd::am
