#!/usr/bin/env python3
"""Writes registers.inc: offsets and fields of the registers that the chip model declares.

Read from the register headers of a Linux tree (drivers/gpu/drm/amd/include/asic_reg, MIT licence;
linux-source-6.12 of Debian has them): names, dword offsets, base indices, field positions.

  extract_registers.py LINUX_TREE > registers.inc
"""
import pathlib
import re
import sys

# Header → patterns of the names it is asked for.
VM = [
    r"{h}VM_CONTEXT\d+_CNTL", r"{h}VM_CONTEXT0_PAGE_TABLE_(START|END|BASE)_ADDR_(LO|HI)32",
    r"{h}VM_INVALIDATE_ENG\d+_(SEM|REQ|ACK|ADDR_RANGE_LO32|ADDR_RANGE_HI32)",
    r"{h}VM_L2_(CNTL\d?|CONTEXT1_IDENTITY_APERTURE_\w+|CONTEXT_IDENTITY_PHYSICAL_OFFSET_\w+)",
    r"{h}VM_L2_PROTECTION_FAULT_\w+", r"{h}VM_L2_BANK_SELECT_RESERVED_CID2",
    r"{h}MC_VM_(AGP_\w+|SYSTEM_APERTURE_\w+|MX_L1_TLB_CNTL|FB_LOCATION_(BASE|TOP)|FB_OFFSET)",
    r"{h}MC_VM_XGMI_LFB_(CNTL|SIZE)",
]
GC = [p.format(h="GC") for p in VM] + [
    r"CP_HQD_\w+", r"CP_MQD_\w+", r"CP_STAT", r"CP_INT_CNTL", r"CP_RB_WPTR_POLL_CNTL",
    r"CP_MEC_(RS64_)?CNTL", r"CP_ME_CNTL", r"CP_(PFP|ME|MEC_RS64)_PRGRM_CNTR_START(_HI)?",
    r"CP_MEC_DOORBELL_RANGE_(LOWER|UPPER)", r"CP_ME1_PIPE[0-3]_INT_CNTL", r"CP_PQ_WPTR_POLL_CNTL", r"CP_PQ_STATUS", r"CP_DEBUG",
    r"SPI_COMPUTE_QUEUE_RESET", r"GRBM_(CNTL|GFX_CNTL|GFX_INDEX|SOFT_RESET|STATUS2?)",
    r"GB_ADDR_CONFIG", r"SH_MEM_(CONFIG|BASES)", r"TCP_CNTL", r"SCRATCH_REG\d",
    r"RLC_(CNTL|STAT|SRM_CNTL|SPM_MC_CNTL|SAFE_MODE|CGCG_CGLS_CTRL|CGTT_MGCG_OVERRIDE)",
    r"RLC_RLCS_BOOTLOAD_STATUS", r"SDMA[01]_RLC_CGCG_CTRL",
    r"SDMA[01]_(WATCHDOG_CNTL|UTCL1_CNTL|UTCL1_PAGE|F32_CNTL|MCU_CNTL|CNTL|FREEZE|STATUS_REG)",
    r"SDMA[01]_SEM_WAIT_FAIL_TIMER_CNTL",
    r"SQ_IND_(INDEX|DATA)", r"CP_CPC_(STATUS|BUSY_STAT|STALLED_STAT1)",
    r"SDMA[01]_QUEUE[01]_IB_(BASE_LO|BASE_HI|SIZE|RPTR|OFFSET)",
    r"SDMA[01]_QUEUE[01]_(RB_\w+|IB_CNTL|DOORBELL|DOORBELL_OFFSET|MINOR_PTR_UPDATE|CONTEXT_STATUS)",
]
GC9 = [p.format(h="") for p in VM] + GC[len(VM):] + [r"TCP_UTCL1_CNTL2"]
MM9 = [p.format(h="") for p in VM]
MM = [p.format(h="MM") for p in VM] + [r"MM_ATC_L2_MISC_CG"]
NBIO = [
    r"BIF_BX_PF[01]_(GPU_HDP_FLUSH_(REQ|DONE)|RSMU_(INDEX|DATA))",
    r"BIF_BX0_(REMAP_HDP_(MEM|REG)_FLUSH_CNTL|PCIE_INDEX2(_HI)?|PCIE_DATA2)",
    r"BIF_BX0_(BIF_DOORBELL_INT_CNTL|INTERRUPT_CNTL2?|BIF_FB_EN)",
    r"RCC_DEV0_EPF0_RCC_(DOORBELL_APER_EN|CONFIG_MEMSIZE)", r"RCC_DEV0_EPF2_STRAP2",
    r"RCC_STRAP0_RCC_DEV0_EPF0_STRAP0", r"(GDC_S2A0_)?S2A_DOORBELL_ENTRY_[0-5]_CTRL",
    r"BIF_BX_PF0_DOORBELL_SELFRING_GPA_APER_(CNTL|BASE_LOW|BASE_HIGH)",
]
NBIO7 = [p for p in NBIO if "S2A" not in p] + [
    r"S2A_DOORBELL_ENTRY_[0-6]_CTRL", r"DOORBELL0_CTRL_ENTRY_([0-9]|1[0-6])",
    r"XCC_DOORBELL_FENCE", r"BIFC_(GFX_INT_MONITOR_MASK|DOORBELL_ACCESS_EN_PF)",
]
SDMA4 = [
    r"SDMA_(F32_CNTL|CNTL|FREEZE|STATUS_REG|UTCL1_(CNTL|PAGE|TIMEOUT)|SEM_WAIT_FAIL_TIMER_CNTL)",
    r"SDMA_GFX_(RB_\w+|IB_\w+|DOORBELL|DOORBELL_OFFSET|MINOR_PTR_UPDATE|CONTEXT_STATUS)",
]
IH = [
    r"IH_RB_(BASE|BASE_HI|CNTL|WPTR|RPTR)(_RING1)?", r"IH_RB_WPTR_ADDR_(LO|HI)",
    r"IH_DOORBELL_RPTR(_RING1)?", r"IH_(CNTL2?|CHICKEN|STORM_CLIENT_LIST_CNTL|INT_FLOOD_CNTL)",
    r"IH_MSI_STORM_CTRL", r"IH_RING1_CLIENT_CFG_(INDEX|DATA)",
]
PSP = [r"MP(0|ASP)_SMN_C2PMSG_(33|35|36|58|64|67|69|70|71|81|101|102|103)"]
HDP = [r"HDP_(MEM_POWER_CTRL|NONSURFACE_BASE(_HI)?|NONSURFACE_INFO|MISC_CNTL|HOST_PATH_CNTL)"]
HEADERS = {
    "gc/gc_11_0_0": GC, "gc/gc_11_0_3": GC, "gc/gc_12_0_0": GC,
    "mmhub/mmhub_3_0_0": MM, "mmhub/mmhub_3_0_2": MM, "mmhub/mmhub_4_1_0": MM,
    "nbio/nbio_4_3_0": NBIO, "nbif/nbif_6_3_1": NBIO,
    "oss/osssys_6_0_0": IH, "oss/osssys_7_0_0": IH,
    "mp/mp_13_0_0": PSP, "mp/mp_14_0_2": PSP, "hdp/hdp_6_0_0": HDP, "hdp/hdp_7_0_0": HDP,
    "gc/gc_9_4_3": GC9, "mmhub/mmhub_1_8_0": MM9, "nbio/nbio_7_9_0": NBIO7,
    "oss/osssys_4_4_2": IH, "mp/mp_13_0_6": PSP, "hdp/hdp_4_4_2": HDP, "sdma/sdma_4_4_2": SDMA4,
}
# Registers whose fields the model looks at.
FIELDS = re.compile(
    r"(GC|MM)?VM_(CONTEXT0_CNTL|INVALIDATE_ENG17_REQ|L2_CNTL|L2_PROTECTION_FAULT_(CNTL|STATUS"
    r"|STATUS_LO32))$|(GC|MM)?MC_VM_MX_L1_TLB_CNTL$|IH_RB_(CNTL(_RING1)?|WPTR)$|IH_DOORBELL_RPTR$"
    r"|CP_HQD_(PQ_CONTROL|PQ_DOORBELL_CONTROL|EOP_CONTROL|ACTIVE)$|CP_MEC_RS64_CNTL$|CP_ME_CNTL$"
    r"|CP_MQD_CONTROL$|CP_ME1_PIPE[0-3]_INT_CNTL$|GRBM_(GFX_CNTL|GFX_INDEX|SOFT_RESET)$|SQ_IND_INDEX$|RLC_SAFE_MODE$|SH_MEM_CONFIG$"
    r"|RLC_RLCS_BOOTLOAD_STATUS$|SDMA[01]_(F32_CNTL|MCU_CNTL|CNTL|QUEUE[01]_(RB_CNTL|IB_CNTL|DOORBELL"
    r"|DOORBELL_OFFSET))$|(GDC_S2A0_)?S2A_DOORBELL_ENTRY_[0-5]_CTRL$"
    r"|RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN$|CP_MEC_CNTL$|S2A_DOORBELL_ENTRY_6_CTRL$"
    r"|DOORBELL0_CTRL_ENTRY_\d+$|XCC_DOORBELL_FENCE$|SDMA_(F32_CNTL|CNTL)$"
    r"|SDMA_GFX_(RB_CNTL|IB_CNTL|DOORBELL|DOORBELL_OFFSET)$")


def main():
    root = pathlib.Path(sys.argv[1]) / "drivers/gpu/drm/amd/include/asic_reg"
    print("// Written by extract_registers.py from Linux 6.12, drivers/gpu/drm/amd/include/asic_reg;"
          " do not edit.")
    for header, patterns in HEADERS.items():
        wanted = re.compile("(?:" + "|".join(patterns) + ")$")
        stem = header.split("/")[1]
        offsets, bases, fields = {}, {}, []
        for line in (root / f"{header}_offset.h").read_text().splitlines():
            found = re.match(r"#define\s+(?:reg|mm)(\w+)\s+(0x[0-9a-fA-F]+|\d+)\s*$", line)
            if not found:
                continue
            name, value = found[1], int(found[2], 0)
            if name.endswith("_BASE_IDX"):
                bases[name.removesuffix("_BASE_IDX")] = value
            elif wanted.match(name):
                offsets[name] = value
        for line in (root / f"{header}_sh_mask.h").read_text().splitlines():
            found = re.match(r"#define\s+(\w+?)__(\w+)_MASK\s+(0x[0-9a-fA-F]+)L?\s*$", line)
            if found and found[1] in offsets and FIELDS.match(found[1]):
                fields.append((found[1], found[2], int(found[3], 0)))
        print(f"BM_HEADER({stem})")
        for name in sorted(offsets):
            print(f"BM_REGISTER({name}, {bases[name]}, {offsets[name]:#x})")
            for register, field, mask in fields:
                if register == name:
                    shift = (mask & -mask).bit_length() - 1
                    print(f"BM_FIELD({field}, {shift}, {mask:#x})")
        print("BM_HEADER_END()")


main()
