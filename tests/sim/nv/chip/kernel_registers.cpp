#include "tests/sim/nv/chip/kernel_registers.h"

namespace bm::sim::nv::card {
namespace {

struct KernelRow {
  uint32_t address;
  const char* name;
  const char* source;
  uint32_t reset;
  bool is_read_only;
};

constexpr KernelRow kKernelRows[] = {
    {0x000004, "NV_PMC_BOOT_1", "nv_ref.h: VGPU 17:16 REAL, little endian", 0, true},
    {0x009140, "NV_PTIMER_INTR_EN_0", "turing/tu102/dev_timer.h", 0, false},
    {0x070000, "NV_UFLUSH_FB_FLUSH", "nouveau g84_bar_flush(): 1 starts, 2 is busy", 0, false},
    {0x1040d8, "NV_CE_GRCE_MASK", "blackwell/gb202/dev_ce.h", 3, true},
    {0x101000, "PEXTDEV straps", "nouveau engine/device/base.c: a crystal of 27 MHz", 0x400000,
     true},
};

}  // namespace

void declare_kernel_registers(RegisterFile& registers) {
  for (const KernelRow& row : kKernelRows)
    registers.declare(row.address, row.name, row.source,
                      {.reset = row.reset, .is_read_only = row.is_read_only});
}

}  // namespace bm::sim::nv::card
