#pragma once
// Registers that a boot touches, by their byte offsets in BAR0 and, for falcons, behind the
// falcon's own.
// Sources: nova-core, regs.rs and fb/regs.rs; nouveau, nvkm/falcon/{gm200,ga102,tu102,gp102}.c,
// nvkm/subdev/fsp/gh100.c, nvkm/subdev/gsp/*.c; names and fields as in the published headers of
// open-gpu-kernel-modules 570.144 (swref).

#include <cstdint>
#include <string_view>

namespace bm::nv::gsp {

/// `offset` is a multiple of 4.
struct Register {
  std::string_view name;
  uint32_t offset = 0;

  /// The same register of a unit at `base`.
  constexpr Register at(uint32_t base) const { return {name, offset + base}; }
  /// Register `index` of an array with `stride` bytes between.
  constexpr Register of(uint32_t index, uint32_t stride = 4) const {
    return {name, offset + index * stride};
  }
};

namespace reg {

inline constexpr Register kBoot0{"PMC_BOOT_0", 0x0};
inline constexpr Register kBoot42{"PMC_BOOT_42", 0xa00};
inline constexpr Register kScratch{"PBUS_SW_SCRATCH", 0x1400};  ///< an array
inline constexpr uint32_t kFrtsError = 0x0e, kSbError = 0x15;   ///< of kScratch

inline constexpr Register kLocalMemoryRange{"PFB_PRI_MMU_LOCAL_MEMORY_RANGE", 0x100ce0};
inline constexpr Register kWpr2Low{"PFB_PRI_MMU_WPR2_ADDR_LO", 0x1fa824};
inline constexpr Register kWpr2High{"PFB_PRI_MMU_WPR2_ADDR_HI", 0x1fa828};
inline constexpr Register kScratch05Mask{"PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK",
                                         0x118128};
inline constexpr Register kScratch05{"PGC6_AON_SECURE_SCRATCH_GROUP_05_0_GFW_BOOT", 0x118234};
inline constexpr Register kScratch42{"PGC6_AON_SECURE_SCRATCH_GROUP_42", 0x1183a4};
inline constexpr Register kBsiScratch14{"PGC6_BSI_SECURE_SCRATCH_14", 0x1180f8};
inline constexpr Register kBsiScratch15{"PGC6_BSI_SECURE_SCRATCH_15", 0x1180fc};
inline constexpr Register kVgaWorkspace{"PDISP_VGA_WORKSPACE_BASE", 0x625f04};
inline constexpr uint32_t kRom = 0x300000, kRomBytes = 1 << 20;  ///< the ROM as registers

inline constexpr Register kNisoFlush{"PFB_NISO_FLUSH_SYSMEM_ADDR", 0x100c10};
inline constexpr Register kNisoFlushHigh{"PFB_NISO_FLUSH_SYSMEM_ADDR_HI", 0x100c40};
inline constexpr Register kFbhubFlush{"PFB_FBHUB_PCIE_FLUSH_SYSMEM_ADDR_LO", 0x100a34};
inline constexpr Register kFbhubFlushHigh{"PFB_FBHUB_PCIE_FLUSH_SYSMEM_ADDR_HI", 0x100a38};
inline constexpr Register kHshubFlush{"PFB_HSHUB0_PCIE_FLUSH_SYSMEM_ADDR_LO", 0x870e50};
inline constexpr Register kHshubFlushHigh{"PFB_HSHUB0_PCIE_FLUSH_SYSMEM_ADDR_HI", 0x870e54};
inline constexpr Register kHshubEgFlush{"PFB_HSHUB0_EG_PCIE_FLUSH_SYSMEM_ADDR_LO", 0x8706c0};
inline constexpr Register kHshubEgFlushHigh{"PFB_HSHUB0_EG_PCIE_FLUSH_SYSMEM_ADDR_HI", 0x8706c4};
inline constexpr Register kFbhub0Flush{"PFB_FBHUB0_PCIE_FLUSH_SYSMEM_ADDR_LO", 0x8a1d58};
inline constexpr Register kFbhub0FlushHigh{"PFB_FBHUB0_PCIE_FLUSH_SYSMEM_ADDR_HI", 0x8a1d5c};

/// Fuses that say which signatures a card takes: arrays of 16, one a program.
inline constexpr Register kFuseNvdec{"FUSE_OPT_FPF_NVDEC_UCODE1_VERSION", 0x824100};
inline constexpr Register kFuseSec2{"FUSE_OPT_FPF_SEC2_UCODE1_VERSION", 0x824140};
inline constexpr Register kFuseGsp{"FUSE_OPT_FPF_GSP_UCODE1_VERSION", 0x8241c0};

inline constexpr uint32_t kGspFalcon = 0x110000, kSec2Falcon = 0x840000;
inline constexpr Register kQueueHead{"PGSP_QUEUE_HEAD", 0x110c00};

inline constexpr Register kFspEmemControl{"PFSP_EMEMC", 0x8f2ac0};
inline constexpr Register kFspEmemData{"PFSP_EMEMD", 0x8f2ac4};
inline constexpr Register kFspQueueHead{"PFSP_QUEUE_HEAD", 0x8f2c00};
inline constexpr Register kFspQueueTail{"PFSP_QUEUE_TAIL", 0x8f2c04};
inline constexpr Register kFspMessageHead{"PFSP_MSGQ_HEAD", 0x8f2c80};
inline constexpr Register kFspMessageTail{"PFSP_MSGQ_TAIL", 0x8f2c84};

}  // namespace reg

/// Behind a falcon's base.
namespace falcon_reg {

inline constexpr Register kMailbox0{"FALCON_MAILBOX0", 0x40};
inline constexpr Register kMailbox1{"FALCON_MAILBOX1", 0x44};
inline constexpr Register kOs{"FALCON_OS", 0x80};
inline constexpr Register kRm{"FALCON_RM", 0x84};
inline constexpr Register kHwcfg2{"FALCON_HWCFG2", 0xf4};
inline constexpr uint32_t kHwcfg2Riscv = 1u << 10, kHwcfg2Scrubbing = 1u << 12,
                          kHwcfg2Lockdown = 1u << 13, kHwcfg2ResetReady = 1u << 31;
inline constexpr Register kCpuctl{"FALCON_CPUCTL", 0x100};
inline constexpr uint32_t kCpuctlStart = 1u << 1, kCpuctlHalted = 1u << 4,
                          kCpuctlAliasEnabled = 1u << 6;
inline constexpr Register kBootVector{"FALCON_BOOTVEC", 0x104};
inline constexpr Register kHwcfg{"FALCON_HWCFG", 0x108};
inline constexpr Register kDmactl{"FALCON_DMACTL", 0x10c};
inline constexpr uint32_t kDmactlScrubbing = 6;  ///< data and code memory
inline constexpr Register kDmaBase{"FALCON_DMATRFBASE", 0x110};
inline constexpr Register kDmaFalconOffset{"FALCON_DMATRFMOFFS", 0x114};
inline constexpr Register kDmaCommand{"FALCON_DMATRFCMD", 0x118};
inline constexpr uint32_t kDmaFull = 1u << 0, kDmaIdle = 1u << 1, kDmaSecure = 1u << 2,
                          kDmaCode = 1u << 4, kDma256Bytes = 6u << 8;
inline constexpr Register kDmaMemoryOffset{"FALCON_DMATRFFBOFFS", 0x11c};
inline constexpr Register kDmaBaseHigh{"FALCON_DMATRFBASE1", 0x128};
inline constexpr Register kCpuctlAlias{"FALCON_CPUCTL_ALIAS", 0x130};
inline constexpr Register kImemControl{"FALCON_IMEMC", 0x180};
inline constexpr Register kImemData{"FALCON_IMEMD", 0x184};
inline constexpr Register kImemTag{"FALCON_IMEMT", 0x188};
inline constexpr uint32_t kImemIncrement = 1u << 24, kImemSecure = 1u << 28;
inline constexpr Register kDmemControl{"FALCON_DMEMC", 0x1c0};
inline constexpr Register kDmemData{"FALCON_DMEMD", 0x1c4};
inline constexpr uint32_t kDmemIncrement = 1u << 24;
inline constexpr Register kEngine{"FALCON_ENGINE", 0x3c0};
inline constexpr Register kTransferConfig{"FBIF_TRANSCFG", 0x600};  ///< an array
/// Coherent system memory, by its physical address.
inline constexpr uint32_t kTransferSystem = 1u | 1u << 2, kTransferMask = 7;
inline constexpr Register kFbifControl{"FBIF_CTL", 0x624};
inline constexpr uint32_t kFbifPhysicalNoContext = 1u << 7;

// The second part, from 0x1000 on.
inline constexpr Register kModSel{"FALCON_MOD_SEL", 0x1180};
inline constexpr uint32_t kModSelRsa3k = 1;
inline constexpr Register kBromUcodeId{"FALCON_BROM_CURR_UCODE_ID", 0x1198};
inline constexpr Register kBromEngines{"FALCON_BROM_ENGIDMASK", 0x119c};
inline constexpr Register kBromParameters{"FALCON_BROM_PARAADDR", 0x1210};
inline constexpr Register kCoreSwitchStatus{"RISCV_CORE_SWITCH_RISCV_STATUS", 0x1240};
inline constexpr Register kRiscvCpuctl{"RISCV_CPUCTL", 0x1388};
inline constexpr uint32_t kRiscvHalted = 1u << 4, kRiscvActive = 1u << 7;
inline constexpr Register kBcrControl{"RISCV_BCR_CTRL", 0x1668};
inline constexpr uint32_t kBcrValid = 1u << 0, kBcrRiscv = 1u << 4, kBcrFetch = 1u << 8;

}  // namespace falcon_reg

}  // namespace bm::nv::gsp
