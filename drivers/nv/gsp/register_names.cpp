#include "drivers/nv/gsp/register_names.h"

#include <fmt/format.h>

#include "drivers/nv/gsp/registers.h"

namespace bm::nv::gsp {
namespace {

// Sources: open-gpu-kernel-modules 570.144, published/*/{dev_boot,dev_bus,dev_fb,dev_gsp,
// dev_falcon_v4,dev_falcon_second_pri,dev_riscv_pri,dev_fsp_pri,dev_vm}.h; nova-core, regs.rs.

bool any(const Generation&) { return true; }
bool has_booter(const Generation& row) { return row.path != BootPath::kFsp; }
bool has_frts(const Generation& row) { return has_booter(row) && row.frts_bytes != 0; }
bool has_fsp(const Generation& row) { return row.path == BootPath::kFsp; }
bool has_local_range(const Generation& row) { return row.memory_size == MemorySize::kLocalRange; }
bool has_scratch42(const Generation& row) { return row.memory_size == MemorySize::kScratch42; }
bool has_rom_scratch(const Generation& row) { return row.rom_done == RomDone::kSecureScratch; }
bool has_core_switch(const Generation& row) { return row.riscv == RiscvStatus::kCoreSwitch; }
bool has_riscv_control(const Generation& row) { return row.riscv == RiscvStatus::kCpuctl; }
bool has_bus_window(const Generation& row) { return row.path != BootPath::kFsp; }

constexpr NamedField kBoot42Fields[] = {{"ARCHITECTURE", 29, 24},
                                        {"IMPLEMENTATION", 23, 20},
                                        {"MAJOR_REVISION", 19, 16},
                                        {"MINOR_REVISION", 15, 12}};
constexpr NamedField kErrorFields[] = {{"FRTS_ERR", 31, 16}};
constexpr NamedField kSbErrorFields[] = {{"SB_ERR", 15, 0}};
constexpr NamedField kRangeFields[] = {
    {"LOWER_SCALE", 3, 0}, {"LOWER_MAG", 9, 4}, {"ECC_MODE", 30, 30}};
constexpr NamedField kProgressFields[] = {{"PROGRESS", 7, 0}};
constexpr NamedField kWprFields[] = {{"VAL", 31, 4}};
constexpr NamedField kHwcfg2Fields[] = {{"RISCV", 10, 10},
                                        {"MEM_SCRUBBING", 12, 12},
                                        {"RISCV_BR_PRIV_LOCKDOWN", 13, 13},
                                        {"RESET_READY", 31, 31}};
constexpr NamedField kCpuctlFields[] = {{"STARTCPU", 1, 1}, {"HALTED", 4, 4}, {"ALIAS_EN", 6, 6}};
constexpr NamedField kDmactlFields[] = {
    {"REQUIRE_CTX", 0, 0}, {"DMEM_SCRUBBING", 1, 1}, {"IMEM_SCRUBBING", 2, 2}};
constexpr NamedField kRiscvFields[] = {{"HALTED", 4, 4}, {"ACTIVE_STAT", 7, 7}};
constexpr NamedField kSwitchFields[] = {{"ACTIVE_STAT", 0, 0}};
constexpr NamedField kWindowFields[] = {{"BASE", 23, 0}, {"TARGET", 25, 24}};
constexpr NamedField kBlockFields[] = {{"PTR", 27, 0}, {"TARGET", 29, 28}, {"MODE", 31, 31}};
constexpr NamedField kPdbFields[] = {{"APERTURE", 2, 1}, {"ADDR", 31, 4}};
constexpr NamedField kFaultAddressFields[] = {{"PHYS_APERTURE", 1, 0}, {"ADDR", 31, 12}};
constexpr NamedField kFaultInstanceFields[] = {
    {"ENGINE_ID", 8, 0}, {"APERTURE", 11, 10}, {"ADDR", 31, 12}};
constexpr NamedField kFaultInfoFields[] = {{"FAULT_TYPE", 4, 0},       {"REPLAYABLE_FAULT", 7, 7},
                                           {"CLIENT", 14, 8},          {"ACCESS_TYPE", 19, 16},
                                           {"CLIENT_TYPE", 20, 20},    {"GPC_ID", 28, 24},
                                           {"PROTECTED_MODE", 29, 29}, {"VALID", 31, 31}};
constexpr NamedField kFaultStatusFields[] = {{"NON_REPLAYABLE", 9, 9}, {"VALID", 31, 31}};

constexpr uint32_t kGsp = reg::kGspFalcon, kSec2 = reg::kSec2Falcon;
constexpr uint32_t kFunction = 0xb80000;

constexpr NamedRegister kRegisters[] = {
    {"PMC_BOOT_0", 0x0, any},
    {"PMC_BOOT_42", 0xa00, any, kBoot42Fields},
    {"PGC6_SCRATCH_05_PRIV_LEVEL_MASK", reg::kScratch05Mask.offset, has_rom_scratch},
    {"PGC6_SCRATCH_05_GFW_BOOT", reg::kScratch05.offset, has_rom_scratch, kProgressFields},
    {"PBUS_SW_SCRATCH_0E", 0x1400 + 4 * reg::kFrtsError, has_frts, kErrorFields},
    {"PBUS_SW_SCRATCH_15", 0x1400 + 4 * reg::kSbError, has_frts, kSbErrorFields},
    {"PFB_PRI_MMU_LOCAL_MEMORY_RANGE", reg::kLocalMemoryRange.offset, has_local_range,
     kRangeFields},
    {"PGC6_SCRATCH_42", reg::kScratch42.offset, has_scratch42},
    {"PFB_PRI_MMU_WPR2_ADDR_LO", reg::kWpr2Low.offset, any, kWprFields},
    {"PFB_PRI_MMU_WPR2_ADDR_HI", reg::kWpr2High.offset, any, kWprFields},
    {"PGSP_FALCON_HWCFG2", kGsp + falcon_reg::kHwcfg2.offset, any, kHwcfg2Fields},
    {"PGSP_FALCON_CPUCTL", kGsp + falcon_reg::kCpuctl.offset, any, kCpuctlFields},
    {"PGSP_FALCON_DMACTL", kGsp + falcon_reg::kDmactl.offset, has_booter, kDmactlFields},
    {"PGSP_FALCON_MAILBOX0", kGsp + falcon_reg::kMailbox0.offset, any},
    {"PGSP_FALCON_MAILBOX1", kGsp + falcon_reg::kMailbox1.offset, any},
    {"PGSP_FALCON_OS", kGsp + falcon_reg::kOs.offset, any},
    {"PGSP_RISCV_CORE_SWITCH_STATUS", kGsp + falcon_reg::kCoreSwitchStatus.offset, has_core_switch,
     kSwitchFields},
    {"PGSP_RISCV_CPUCTL", kGsp + falcon_reg::kRiscvCpuctl.offset, has_riscv_control, kRiscvFields},
    {"PSEC_FALCON_HWCFG2", kSec2 + falcon_reg::kHwcfg2.offset, has_booter, kHwcfg2Fields},
    {"PSEC_FALCON_CPUCTL", kSec2 + falcon_reg::kCpuctl.offset, has_booter, kCpuctlFields},
    {"PSEC_FALCON_MAILBOX0", kSec2 + falcon_reg::kMailbox0.offset, has_booter},
    {"PSEC_FALCON_MAILBOX1", kSec2 + falcon_reg::kMailbox1.offset, has_booter},
    {"PFSP_QUEUE_HEAD", reg::kFspQueueHead.offset, has_fsp},
    {"PFSP_QUEUE_TAIL", reg::kFspQueueTail.offset, has_fsp},
    {"PFSP_MSGQ_HEAD", reg::kFspMessageHead.offset, has_fsp},
    {"PFSP_MSGQ_TAIL", reg::kFspMessageTail.offset, has_fsp},
    {"PBUS_BAR0_WINDOW", 0x1700, has_bus_window, kWindowFields},
    {"PBUS_BAR1_BLOCK", 0x1704, any, kBlockFields},
    {"MMU_INVALIDATE_PDB", kFunction + 0x30a0, any, kPdbFields},
    {"MMU_INVALIDATE_UPPER_PDB", kFunction + 0x30a4, any},
    {"MMU_FAULT_ADDR_LO", kFunction + 0x3080, any, kFaultAddressFields},
    {"MMU_FAULT_ADDR_HI", kFunction + 0x3084, any},
    {"MMU_FAULT_INST_LO", kFunction + 0x3088, any, kFaultInstanceFields},
    {"MMU_FAULT_INST_HI", kFunction + 0x308c, any},
    {"MMU_FAULT_INFO", kFunction + 0x3090, any, kFaultInfoFields},
    {"MMU_FAULT_STATUS", kFunction + 0x3094, any, kFaultStatusFields},
};

}  // namespace

std::span<const NamedRegister> named_registers() { return kRegisters; }

std::string fields_text(const NamedRegister& which, uint32_t value) {
  std::string text;
  for (const NamedField& field : which.fields)
    if (field.get(value) != 0)
      text += fmt::format("{}{} {:#x}", text.empty() ? "" : ", ", field.name, field.get(value));
  return text;
}

}  // namespace bm::nv::gsp
