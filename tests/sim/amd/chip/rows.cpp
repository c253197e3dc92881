#include "tests/sim/amd/chip/rows.h"

#include <algorithm>

namespace bm::sim::amd {
namespace {

// Linux, soc15_hw_ip.h: *_HWID.
constexpr uint16_t kMp1Id = 1, kGcId = 11, kMmhubId = 34, kOsssysId = 40, kHdpId = 41,
                   kNbifId = 108, kMp0Id = 255, kSdma0Id = 42;

struct Versions {
  IpVersion gc, mmhub, nbio, osssys, mp, hdp;
  std::string_view gc_header, mmhub_header, nbio_header, osssys_header, mp_header, hdp_header;
};

/// Where a block's registers are is what its discovery table says; these chips' own tables are in
/// no public file. The addresses are those of sienna_cichlid_ip_offset.h, the last discrete
/// generation that Linux lists, with segment 5 of NBIO from yellow_carp_offset.h, those of the
/// smaller blocks moved a little from chip to chip (`shift`), so that no driver can have them by
/// heart. GC's stay: PM4 packets name registers from fixed places (nvd.h,
/// PACKET3_SET_SH_REG_START).
std::vector<IpRow> make_ips(const Versions& v, uint32_t shift) {
  return {
      {Ip::kGc, kGcId, v.gc, v.gc_header, {0x1260, 0xa000, 0x1c000, 0x2402c00}, 4},
      {Ip::kMmhub, kMmhubId, v.mmhub, v.mmhub_header, {0x1a000 + shift, 0x2408800}, 2},
      // RCC_CONFIG_MEMSIZE and the index registers are looked for at fixed places.
      {Ip::kNbio,
       kNbifId,
       v.nbio,
       v.nbio_header,
       {0x0, 0x14, 0xd20, 0x10400, 0x241b000, 0x4040000},
       6},
      {Ip::kOsssys, kOsssysId, v.osssys, v.osssys_header, {0x10a0 + shift, 0x240a000}, 2},
      {Ip::kMp0,
       kMp0Id,
       v.mp,
       v.mp_header,
       {0x16000 + shift, 0xdc0000, 0xe00000, 0xe40000, 0x243fc00},
       5},
      // smu_v13_0_0_ppt.c and smu_v14_0_2_ppt.c: mmMP1_SMN_C2PMSG_*; no header.
      {Ip::kMp1, kMp1Id, v.mp, "", {0x16000 + shift, 0xdc0000, 0xe00000, 0xe40000, 0x243fc00}, 5},
      {Ip::kHdp, kHdpId, v.hdp, v.hdp_header, {0xf20 + shift, 0x240a400}, 2},
  };
}

Versions navi3(uint8_t gc_revision, std::string_view gc_header, uint8_t mmhub_revision,
               std::string_view mmhub_header, uint8_t mp_revision) {
  return {{11, 0, gc_revision},
          {3, 0, mmhub_revision},
          {4, 3, 0},
          {6, 0, 0},
          {13, 0, mp_revision},
          {6, 0, 0},
          gc_header,
          mmhub_header,
          "nbio_4_3_0",
          "osssys_6_0_0",
          "mp_13_0_0",
          "hdp_6_0_0"};
}

Versions navi4(uint8_t gc_revision, uint8_t mp_revision) {
  return {{12, 0, gc_revision}, {4, 1, 0},      {6, 3, 1},   {7, 0, 0},
          {14, 0, mp_revision}, {7, 0, 0},      "gc_12_0_0", "mmhub_4_1_0",
          "nbif_6_3_1",         "osssys_7_0_0", "mp_14_0_2", "hdp_7_0_0"};
}

std::vector<ChipRow> make_rows() {
  // Versions: amdgpu_discovery.c accepts them; which chip has which is from the names of the
  // firmware files that it loads (psp_13_0_0_sos.bin, gc_11_0_0_mec.bin, …). Which MMHUB Navi 32
  // has is in no public file: the one that gmc_v11_0_set_mmhub_funcs() takes for all others.
  // Device ids: amdgpu_drv.c matches by class; pci.ids has the names.
  const ChipRow navi31 = {.name = "gfx1100",
                          .device_ids = {0x744c},
                          .revision = 0xc8,
                          .isa = "gfx1100",
                          .pte = PteFormat::kGfx11,
                          .smu = SmuInterface::k13_0_0,
                          .sdma = {6, 0, 0},
                          .generation = 11,
                          .shader_engines = 6,
                          .arrays = 2,
                          .wgps = 4,
                          .ips = make_ips(navi3(0, "gc_11_0_0", 0, "mmhub_3_0_0", 0), 0)};
  ChipRow navi32 = navi31;
  navi32.name = "gfx1101";
  navi32.device_ids = {0x747e};
  navi32.sdma = {6, 0, 3};
  navi32.shader_engines = 3;
  navi32.wgps = 5;
  navi32.ips = make_ips(navi3(3, "gc_11_0_3", 0, "mmhub_3_0_0", 10), 0x8);
  ChipRow navi33 = navi31;
  navi33.name = "gfx1102";
  navi33.device_ids = {0x7480};
  navi33.smu = SmuInterface::k13_0_7;
  navi33.sdma = {6, 0, 2};
  navi33.shader_engines = 2;
  navi33.ips = make_ips(navi3(2, "gc_11_0_0", 2, "mmhub_3_0_2", 7), 0x10);
  const ChipRow navi44 = {.name = "gfx1200",
                          .device_ids = {0x7590},
                          .revision = 0xc0,
                          .isa = "gfx1200",
                          .pte = PteFormat::kGfx12,
                          .smu = SmuInterface::k14_0_2,
                          .sdma = {7, 0, 0},
                          .generation = 12,
                          .has_reserved_tmr = true,
                          .shader_engines = 2,
                          .arrays = 2,
                          .wgps = 4,
                          .ips = make_ips(navi4(0, 2), 0x18)};
  ChipRow navi48 = navi44;
  navi48.name = "gfx1201";
  navi48.device_ids = {0x7550, 0x7551};
  navi48.isa = "gfx1201";
  navi48.sdma = {7, 0, 1};
  navi48.shader_engines = 4;
  navi48.ips = make_ips(navi4(1, 3), 0x20);
  // MI300X: eight chiplets on four dies with four copy engines each (aqua_vanjaram.c,
  // sdma_v4_4_2.c). Where their registers are is in no public file: GC as aldebaran_ip_offset.h has
  // it, further chiplets and dies beyond BAR 5, where amdgpu_device_rreg() goes by an index.
  const ChipRow mi300x = {
      .name = "gfx942",
      .device_ids = {0x74a1},
      .revision = 0,
      .isa = "gfx942",
      .pte = PteFormat::kGfx9,
      .smu = SmuInterface::k13_0_6,
      .sdma = {4, 4, 2},
      .generation = 9,
      .has_reserved_tmr = true,
      .has_direct_load = true,
      .shader_engines = 4,
      .arrays = 1,
      .wgps = 10,
      .ips = {
          {Ip::kGc, kGcId, {9, 4, 3}, "gc_9_4_3", {0x2000, 0xa000, 0x2402c00}, 3, 8, 0x100000},
          {Ip::kMmhub, kMmhubId, {1, 8, 0}, "mmhub_1_8_0", {0x1a028, 0x2408800}, 2, 4, 0x140000},
          {Ip::kNbio,
           kNbifId,
           {7, 9, 0},
           "nbio_7_9_0",
           {0x0, 0x14, 0xd20, 0x10400, 0x241b000, 0x4040000, 0x5000000, 0x6000000, 0x7000000},
           9},
          {Ip::kOsssys, kOsssysId, {4, 4, 2}, "osssys_4_4_2", {0x10a8, 0x240a000}, 2},
          {Ip::kMp0,
           kMp0Id,
           {13, 0, 6},
           "mp_13_0_6",
           {0x16028, 0xdc0000, 0xe00000, 0xe40000, 0x243fc00},
           5},
          {Ip::kMp1, kMp1Id, {13, 0, 6}, "", {0x16028, 0xdc0000, 0xe00000, 0xe40000, 0x243fc00}, 5},
          {Ip::kHdp, kHdpId, {4, 4, 2}, "hdp_4_4_2", {0xf28, 0x240a400}, 2},
          {Ip::kSdma, kSdma0Id, {4, 4, 2}, "sdma_4_4_2", {0x7100, 0x240c000}, 2, 16, 0x100},
      }};
  return {mi300x, navi31, navi32, navi33, navi44, navi48};
}

}  // namespace

const std::vector<ChipRow>& chip_rows() {
  static const std::vector<ChipRow> rows = make_rows();
  return rows;
}

const ChipRow* find_chip_row(std::string_view name) {
  const auto& rows = chip_rows();
  const auto found = std::ranges::find(rows, name, &ChipRow::name);
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace bm::sim::amd
