#include "drivers/nv/gsp/generation.h"

namespace bm::nv::gsp {
namespace {

// Sources. Paths, registers: nouveau,
// nvkm/subdev/gsp/{tu102,ga100,ga102,ad102,gh100,gb100,gb202}.c, nvkm/subdev/fsp/*.c; nova-core,
// fb/hal/*.rs, fsp/hal/*.rs, gpu/hal/*.rs, regs.rs. Carve-outs: nouveau, gsp/rm/r570/rm.c;
// open-gpu-kernel-modules 570.144, gsp_fw_heap.h, kernel_gsp_tu102.c (kgspCalculateFbLayout),
// g_kernel_gsp_nvoc.c (kgspGetFrtsSize: none on GA100; kgspGetNonWprHeapSize,
// kgspGetPrescrubbedTopFbSize, bScrubberUcodeSupported), kern_fsp_gh100.c.
constexpr Generation kTuring{
    .family = "tu10x",
    .architecture = 0x16,
    .path = BootPath::kBooterPio,
    .rom_done = RomDone::kSecureScratch,
    .memory_size = MemorySize::kLocalRange,
    .flush_page = FlushPage::kNiso,
    .riscv = RiscvStatus::kCoreSwitch,
    .display_fuse = 0x21c04,
    .config_mirror = 0x88000,
    .address_bits = 40,
    .frts_bytes = kMiB,
    .non_wpr_heap_bytes = kMiB,
    .heap_base_bytes = 8 * kMiB,
    .heap_least_bytes = 64 * kMiB,
    .heap_most_bytes = 256 * kMiB,
    .scrubbed_bytes = 256 * kMiB,
};

constexpr Generation ga100() {
  Generation row = kTuring;
  row.family = "ga100";
  row.architecture = 0x17;
  row.flush_page = FlushPage::kNisoHigh;
  row.display_fuse = 0x820c04;
  row.address_bits = 47;
  row.frts_bytes = 0;
  row.scrubbed_bytes = 0;
  return row;
}

constexpr Generation ga10x() {
  Generation row = ga100();
  row.family = "ga10x";
  row.path = BootPath::kBooterDma;
  row.memory_size = MemorySize::kScratch42;
  row.riscv = RiscvStatus::kCpuctl;
  row.frts_bytes = kMiB;
  row.heap_os_bytes = 22 * kMiB;
  row.heap_least_bytes = 88 * kMiB;
  row.heap_most_bytes = 280 * kMiB;
  row.scrubbed_bytes = 256 * kMiB;
  return row;
}

constexpr Generation ad10x() {
  Generation row = ga10x();
  row.family = "ad10x";
  row.architecture = 0x19;
  row.has_scrubber = true;
  return row;
}

constexpr Generation gh100() {
  Generation row = ga10x();
  row.family = "gh100";
  row.architecture = 0x18;
  row.path = BootPath::kFsp;
  row.rom_done = RomDone::kThermScratch;
  row.flush_page = FlushPage::kFbhub;
  row.therm_scratch = 0x200bc;
  row.config_mirror = 0x92000;
  row.address_bits = 52;
  row.non_wpr_heap_bytes = 2 * kMiB;
  row.heap_base_bytes = 14 * kMiB;
  row.scrubbed_bytes = 0;
  row.cot_version = 1;
  row.end_reserve_bytes = 2 * kMiB;
  return row;
}

constexpr Generation gb10x() {
  Generation row = gh100();
  row.family = "gb10x";
  row.architecture = 0x1a;
  row.flush_page = FlushPage::kHshub;
  row.cot_version = 2;
  // 8 MiB for saving state, 16 MiB of surfaces and a page, in steps of 128 KiB.
  row.pmu_bytes = 24 * kMiB + 128 * kKiB;
  row.end_reserve_bytes = 2 * kMiB + 128 * kKiB;
  return row;
}

constexpr Generation gb20x() {
  Generation row = gb10x();
  row.family = "gb20x";
  row.architecture = 0x1b;
  row.flush_page = FlushPage::kFbhub0;
  row.therm_scratch = 0xad00bc;
  row.non_wpr_heap_bytes = 2 * kMiB + 128 * kKiB;
  return row;
}

constexpr Generation kGenerations[] = {kTuring, ga10x(), ad10x(), gh100(), gb10x(), gb20x()};
constexpr Generation kGa100 = ga100();

}  // namespace

Result<const Generation*> find_generation(uint32_t architecture, uint32_t implementation) {
  // The one architecture whose first chip is of another family than the rest.
  if (architecture == kGa100.architecture && implementation == 0) return &kGa100;
  for (const Generation& row : kGenerations)
    if (row.architecture == architecture) return &row;
  return fail(Code::kUnsupported,
              "architecture {:#x}, implementation {:#x}: no row in drivers/nv/gsp/generation.cpp",
              architecture, implementation);
}

}  // namespace bm::nv::gsp
