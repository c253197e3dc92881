#pragma once
// AMD GPUs this driver knows: one row per instruction set. A generation is data; nothing else asks
// which chip this is.

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::amd {

/// Words of the cache packets ACQUIRE_MEM and RELEASE_MEM.
enum class CacheForm : uint8_t {
  kCoherCntl,  ///< gfx9: CP_COHER_CNTL and TC actions
  kGcr,        ///< gfx10, gfx11: GCR_CNTL
  kGcrNoGl1,   ///< gfx12: GCR_CNTL on chips without GL1 and metadata cache
};

/// Packets of the copy engine.
enum class SdmaForm : uint8_t { kV4_4, kV5_2, kV6, kV7 };

/// Register tables (regs/registers.h).
enum class RegisterSet : uint8_t { kGc9_4_3, kGc10_3, kGc11, kGc12 };

/// Which bits of a register a field covers.
struct RegisterField {
  uint8_t low = 0, bits = 0;
  constexpr uint32_t max() const { return bits >= 32 ? UINT32_MAX : (uint32_t{1} << bits) - 1; }
  constexpr uint32_t put(uint32_t value) const { return (value & max()) << low; }
  constexpr uint32_t get(uint32_t word) const { return (word >> low) & max(); }
};

/// What the kernel saves per compute unit when a queue is switched out; the sizes must match the
/// kernel driver's to the byte.
struct SaveArea {
  uint32_t vgpr_bytes, sgpr_bytes;
  uint32_t control_bytes_per_wave;
  uint32_t control_limit = UINT32_MAX;  ///< bytes of the control stack that the hardware can use
};

struct ChipRow {
  std::string_view name;    ///< "gfx1100"
  uint32_t target_version;  ///< gfx_target_version in sysfs: 110000
  uint8_t elf_machine;      ///< EF_AMDGPU_MACH of its code objects
  RegisterSet registers;
  CacheForm caches;
  SdmaForm sdma;
  uint8_t wave;             ///< lanes of the waves our compiler makes
  bool has_wave32;          ///< DISPATCH_INITIATOR.CS_W32_EN
  uint16_t max_vgprs;       ///< per lane
  uint16_t vgpr_granule32;  ///< registers per step of RSRC1.VGPRS in wave32 (wave64 where alone)
  uint16_t vgprs_per_simd;  ///< wave-wide registers that a SIMD's waves share
  uint16_t vgpr_unit;       ///< steps in which a wave takes them
  uint8_t waves_per_simd;
  uint8_t simds_per_cu;   ///< twice as many for work-groups of WGP mode, where there is one
  uint32_t lds_bytes;     ///< of one work-group
  uint32_t lds_unit;      ///< bytes; steps of RSRC2.LDS_SIZE
  uint32_t scratch_unit;  ///< bytes; steps of a wave's scratch
  RegisterField scratch_wave_size;  ///< of COMPUTE_TMPRING_SIZE
  bool is_scratch_per_engine;       ///< TMPRING_SIZE.WAVES counts per shader engine
  bool needs_privilege;             ///< RSRC1.PRIV: waves can be saved on gfx11 only with it
  SaveArea save;
  bool validated;  ///< run on a card by us
};

/// Every chip, by target version.
std::span<const ChipRow> chips();
/// Row of a target version, or nullptr.
const ChipRow* find_chip(uint32_t target_version);
/// Row of a name such as "gfx1100", or nullptr.
const ChipRow* find_chip(std::string_view name);
/// Row whose code objects carry `elf_machine`, or nullptr.
const ChipRow* find_chip_by_machine(uint8_t elf_machine);

/// As find_chip. Errors: kUnsupported naming the version and the chips there are.
Result<const ChipRow*> require_chip(uint32_t target_version);

}  // namespace bm::amd
