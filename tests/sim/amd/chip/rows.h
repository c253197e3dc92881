#pragma once
// The chips that are modelled, a row each.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace bm::sim::amd {

struct IpVersion {
  uint8_t major = 0, minor = 0, revision = 0;
  bool operator==(const IpVersion&) const = default;
};

/// Blocks that have registers. The order is that of ChipRow::ips.
enum class Ip : uint8_t { kGc, kMmhub, kNbio, kOsssys, kMp0, kMp1, kHdp, kSdma, kCount };

struct IpRow {
  Ip ip = Ip::kGc;
  uint16_t hardware_id = 0;  ///< soc15_hw_ip.h, *_HWID
  IpVersion version = {};
  std::string_view header = {};        ///< register header of the kernel that describes it
  std::array<uint32_t, 9> bases = {};  ///< dwords, by segment
  uint32_t base_count = 0;
  uint32_t instances = 1, stride = 0;  ///< dwords between instances' registers
};

/// How page table entries look: amdgpu_vm.h, AMDGPU_PTE_*_VG10, AMDGPU_PTE_*_NV10 and
/// AMDGPU_PTE_*_GFX12.
enum class PteFormat : uint8_t { kGfx9, kGfx11, kGfx12 };
/// Message numbers of the power management firmware: pm/swsmu/inc/pmfw_if/smu_v*_ppsmc.h.
enum class SmuInterface : uint8_t { k13_0_0, k13_0_6, k13_0_7, k14_0_2 };

struct ChipRow {
  std::string_view name;             ///< "gfx1100"
  std::vector<uint16_t> device_ids;  ///< the first one is modelled unless another is asked for
  uint8_t revision = 0;
  std::string_view isa;  ///< of the interpreter
  PteFormat pte = PteFormat::kGfx11;
  SmuInterface smu = SmuInterface::k13_0_0;
  IpVersion sdma = {};
  uint32_t generation = 11;
  bool has_reserved_tmr = false;  ///< PSP sets the TMR up itself: psp_v14_0, boot_time_tmr
  /// Its processors are loaded by the PSP one by one and no RLC starts them: psp_early_init(),
  /// autoload_supported is clear for 13.0.6.
  bool has_direct_load = false;
  uint32_t shader_engines = 0, arrays = 0, wgps = 0;  ///< of the chip, of an engine, of an array
  std::vector<IpRow> ips;

  /// The block that the copy engines' registers are of, and chiplets with a graphics core each.
  Ip copy_block() const {
    return ips.size() > static_cast<size_t>(Ip::kSdma) ? Ip::kSdma : Ip::kGc;
  }
  uint32_t xccs() const { return ip(Ip::kGc).instances; }
  const IpRow& ip(Ip which) const { return ips[static_cast<size_t>(which)]; }
};

/// nullptr: no such chip.
const ChipRow* find_chip_row(std::string_view name);
const std::vector<ChipRow>& chip_rows();

}  // namespace bm::sim::amd
