#include "tests/sim/amd/chip/nbio.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {
// Fixed addresses, before any base is known: amdgpu_discovery.c, mmMM_INDEX, mmMM_DATA,
// mmMM_INDEX_HI, mmDRIVER_SCRATCH_0 … 2.
constexpr uint32_t kMmIndex = 0, kMmData = 1, kMmIndexHi = 6, kScratch = 0x94;
// nbio_2_3_default.h, mmREMAP_HDP_MEM_FLUSH_CNTL_DEFAULT.
constexpr uint32_t kRemapReset = 0x385c;
}  // namespace

Nbio::Nbio(RegisterBus& bus, Vram& vram) : bus_(bus), vram_(vram) {
  bus.declare(Ip::kNbio, "RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE",
              {.reset = static_cast<uint32_t>(vram.size() >> 20), .is_read_only = true});
  aperture_ = &bus.declare(Ip::kNbio, "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN");
  aperture_enable_ =
      bus.field(Ip::kNbio, "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", "BIF_DOORBELL_APER_EN");
  remap_ = &bus.declare(Ip::kNbio, "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", {.reset = kRemapReset});
  remap_register_ =
      &bus.declare(Ip::kNbio, "BIF_BX0_REMAP_HDP_REG_FLUSH_CNTL", {.reset = kRemapReset + 4});
  const char* const source = "amdgpu_discovery.c, amdgpu_device.c";
  bus.declare_at(Ip::kNbio, kMmIndex, "MM_INDEX", source,
                 {.read = [this] { return mm_index_; },
                  .write = [this](uint32_t value) { mm_index_ = value; }});
  bus.declare_at(Ip::kNbio, kMmIndexHi, "MM_INDEX_HI", source,
                 {.read = [this] { return mm_index_hi_; },
                  .write = [this](uint32_t value) { mm_index_hi_ = value; }});
  // Bit 31 of the index: video memory, past the HDP.
  const auto memory_offset = [this] {
    return uint64_t{mm_index_hi_} << 31 | (mm_index_ & 0x7fffffff);
  };
  bus.declare_at(Ip::kNbio, kMmData, "MM_DATA", source,
                 {.read =
                      [this, memory_offset] {
                        if ((mm_index_ & 1u << 31) == 0) return bus_.read(mm_index_ / 4);
                        uint32_t value = UINT32_MAX;
                        vram_.read(memory_offset(), std::as_writable_bytes(std::span(&value, 1)));
                        return value;
                      },
                  .write =
                      [this, memory_offset](uint32_t value) {
                        if ((mm_index_ & 1u << 31) == 0) return bus_.write(mm_index_ / 4, value);
                        vram_.write(memory_offset(), std::as_bytes(std::span(&value, 1)));
                      }});
  for (uint32_t i = 0; i < 3; ++i)
    bus.declare_at(Ip::kNbio, kScratch + i, fmt::format("DRIVER_SCRATCH_{}", i), source);
  rsmu_index_ = &bus.declare(Ip::kNbio, "BIF_BX_PF0_RSMU_INDEX");
  bus.declare(Ip::kNbio, "BIF_BX_PF0_RSMU_DATA",
              {.read = [this] { return bus_.read(*rsmu_index_ / 4); },
               .write = [this](uint32_t value) { bus_.write(*rsmu_index_ / 4, value); }});
  pcie_index_ = &bus.declare(Ip::kNbio, "BIF_BX0_PCIE_INDEX2");
  pcie_index_hi_ = bus.declare_if_there(Ip::kNbio, "BIF_BX0_PCIE_INDEX2_HI");
  bus.declare(Ip::kNbio, "BIF_BX0_PCIE_DATA2",
              {.read = [this] { return bus_.read(*pcie_index_ / 4); },
               .write = [this](uint32_t value) { bus_.write(*pcie_index_ / 4, value); }});
  // PF1's pair is the other function's, which flushes the same.
  for (const char* const function : {"PF0", "PF1"}) {
    const std::string name = fmt::format("BIF_BX_{}_GPU_HDP_FLUSH_", function);
    uint32_t& done = bus.declare(Ip::kNbio, name + "DONE", {.is_read_only = true});
    bus.declare(Ip::kNbio, name + "REQ", {.write = [this, &done](uint32_t value) {
                  vram_.flush();
                  ++flushes_;
                  done = value;
                }});
    flush_pairs_.emplace_back(*bus.address_of(Ip::kNbio, name + "REQ"),
                              *bus.address_of(Ip::kNbio, name + "DONE"));
  }
  const bool is_nbif = bus.row().ip(Ip::kNbio).header == "nbif_6_3_1";
  for (uint32_t i = 0; i < 6; ++i) {
    const std::string name =
        fmt::format("{}S2A_DOORBELL_ENTRY_{}_CTRL", is_nbif ? "GDC_S2A0_" : "", i);
    const auto field = [&](const char* rest) {
      return bus.field(Ip::kNbio, name, fmt::format("S2A_DOORBELL_PORT{}_{}", i, rest));
    };
    entries_.push_back({&bus.declare(Ip::kNbio, name), field("ENABLE"), field("AWID"),
                        field("RANGE_OFFSET"), field("RANGE_SIZE")});
  }
  for (const char* const prefix : {"BIF_", "RCC_"}) bus.declare_all(Ip::kNbio, prefix);
  bus.intercept = [this](uint32_t address, bool is_write, uint32_t* value) {
    if (address != *remap_ / 4 && address != *remap_register_ / 4) return false;
    if (!is_write) {
      *value = 0;
    } else if (address == *remap_ / 4) {
      vram_.flush();
      ++flushes_;
    }
    return true;
  };
  bus.declare_all(Ip::kHdp, "HDP_");
}

bool Nbio::reaches(uint32_t dword, uint32_t awid) const {
  for (const Entry& entry : entries_) {
    const uint32_t value = *entry.value;
    if (entry.enable.of(value) == 0 || entry.awid.of(value) != awid) continue;
    // A size of 0 is what nothing else takes: nbio_v4_3_gc_doorbell_init() gives none.
    const uint32_t offset = entry.offset.of(value), size = entry.size.of(value);
    if (size == 0 || (dword >= offset && dword < offset + size)) return true;
  }
  return false;
}

bool Nbio::write_and_wait(uint32_t request, uint32_t answer, uint32_t /*value*/) {
  if (std::ranges::find(flush_pairs_, std::pair(request, answer)) == flush_pairs_.end())
    return false;
  vram_.flush();
  ++flushes_;
  return true;
}

}  // namespace bm::sim::amd
