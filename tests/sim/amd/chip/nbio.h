#pragma once
// The bus interface: what of the chip is reached from PCI, and doorbells on their way in.
//
// Sources: Linux 6.12, amdgpu/nbio_v4_3.c, nbif_v6_3_1.c, soc21.c, amdgpu_device.c
// (amdgpu_device_indirect_rreg(), MM_INDEX: amdgpu_device_mm_access()).
//
// What it refuses:
//   N1  doorbells before RCC_DOORBELL_APER_EN: nobody hears them.
//   N2  doorbells that no S2A entry lets through to the engine they are for:
//       nbio_v4_3_gc_doorbell_init(), nbio_v4_3_sdma_doorbell_range().
//   N4  NBIO 7.9: doorbells to chiplets that XCC_DOORBELL_FENCE holds back, on other dies without
//       SHUB_SLV_MODE, without BIFC_DOORBELL_ACCESS_EN_PF; to copy engines without their
//       DOORBELL0_CTRL_ENTRY and S2A port: nbio_v7_9_init_registers(),
//       nbio_v7_9_sdma_doorbell_range(). Registers of other dies that the model does not know.
//   N3  a register flush of the HDP elsewhere than REMAP_HDP_MEM_FLUSH_CNTL says.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/amd/chip/bus.h"
#include "tests/sim/amd/chip/vram.h"

namespace bm::sim::amd {

class Nbio {
 public:
  Nbio(RegisterBus& bus, Vram& vram);
  bool has_doorbells() const { return aperture_enable_.of(*aperture_) != 0; }
  /// Whether doorbell `dword` of BAR 2 goes to the command processor (AWID 3) or the copy engines
  /// (AWID 0xe).
  bool reaches(uint32_t dword, uint32_t awid) const;
  /// NBIO 7.9: whether the doorbell gets to that copy engine, and whether those of all chiplets do
  /// that are there; empty: yes.
  std::string missing_for_copies(uint32_t dword, uint32_t engine) const;
  std::string missing_for_chiplets() const;
  /// A command processor asks for a flush of the HDP and waits.
  bool write_and_wait(uint32_t request, uint32_t answer, uint32_t value);
  uint64_t flushes() const { return flushes_; }

 private:
  void declare_entries();
  void declare_dies();
  void write_by_index(uint32_t value);
  RegisterBus& bus_;
  Vram& vram_;
  uint32_t *fence_ = nullptr, *access_ = nullptr;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> dies_;  ///< by die and address: other dies'
  std::vector<uint32_t*> ranges_, ports_;                   ///< DOORBELL0_CTRL_ENTRY, S2A
  uint32_t *aperture_ = nullptr, *remap_ = nullptr, *remap_register_ = nullptr,
           *rsmu_index_ = nullptr, *pcie_index_ = nullptr, *pcie_index_hi_ = nullptr;
  uint32_t mm_index_ = 0, mm_index_hi_ = 0;
  Field aperture_enable_;
  struct Entry {
    uint32_t* value = nullptr;
    Field enable, awid, offset, size;
  };
  std::vector<Entry> entries_;
  std::vector<std::pair<uint32_t, uint32_t>> flush_pairs_;  ///< addresses of REQ and DONE
  std::atomic<uint64_t> flushes_{0};
};

}  // namespace bm::sim::amd
