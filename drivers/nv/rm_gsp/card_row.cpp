#include "drivers/nv/rm_gsp/card_row.h"

namespace bm::nv::gsp {
namespace {

constexpr uint32_t kAll = 15;

// Classes: Linux nouveau, nvkm/subdev/gsp/rm/{tu1xx,ga100,ga1xx,ad10x,gh100,gb10x,gb20x}.c;
// g_gpu_class_list.c of open-gpu-kernel-modules 570.144 has the same.
constexpr CardRow kRows[] = {
    {"tu10x",
     0x16,
     0,
     kAll,
     memory::nv_mmu_v2_page_tables,
     WindowRegisters::kBus,
     TokenForm::kRunlist,
     {0xc461, 0xc46f, 0xc5c0, 0xc5b5}},
    {"ga100",
     0x17,
     0,
     0,
     memory::nv_mmu_v2_page_tables,
     WindowRegisters::kBus,
     TokenForm::kRunlist,
     {0xc561, 0xc56f, 0xc6c0, 0xc6b5}},
    {"ga10x",
     0x17,
     1,
     kAll,
     memory::nv_mmu_v2_page_tables,
     WindowRegisters::kBus,
     TokenForm::kRunlist,
     {0xc561, 0xc56f, 0xc7c0, 0xc7b5}},
    {"gh100",
     0x18,
     0,
     kAll,
     memory::nv_mmu_v3_page_tables,
     WindowRegisters::kXal,
     TokenForm::kRunlist,
     {0xc661, 0xc86f, 0xcbc0, 0xc8b5}},
    {"ad10x",
     0x19,
     0,
     kAll,
     memory::nv_mmu_v2_page_tables,
     WindowRegisters::kBus,
     TokenForm::kRunlist,
     {0xc561, 0xc56f, 0xc9c0, 0xc7b5}},
    {"gb10x",
     0x1a,
     0,
     kAll,
     memory::nv_mmu_v3_page_tables,
     WindowRegisters::kXal,
     TokenForm::kRunlist,
     {0xc661, 0xc96f, 0xcdc0, 0xc9b5}},
    {"gb20x",
     0x1b,
     0,
     kAll,
     memory::nv_mmu_v3_page_tables,
     WindowRegisters::kXal,
     TokenForm::kRunlistEnabled,
     {0xc761, 0xca6f, 0xcec0, 0xcab5}},
};

}  // namespace

Result<const CardRow*> find_card_row(ChipId chip) {
  for (const CardRow& row : kRows)
    if (row.architecture == chip.architecture && chip.implementation >= row.first &&
        chip.implementation <= row.last)
      return &row;
  return fail(
      Code::kUnsupported,
      "no row for architecture {:#x}, implementation {:#x} in drivers/nv/rm_gsp/card_row.cpp",
      chip.architecture, chip.implementation);
}

}  // namespace bm::nv::gsp
