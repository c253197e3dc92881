#include "tests/sim/amd/chip/nbio.h"

#include <algorithm>
#include <array>
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
               .write = [this](uint32_t value) { write_by_index(value); }});
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
  if (bus.row().generation == 9)
    declare_dies();
  else
    declare_entries();
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

void Nbio::write_by_index(uint32_t value) {
  const uint32_t high = pcie_index_hi_ == nullptr ? 0 : *pcie_index_hi_, address = *pcie_index_ / 4;
  if (high == 0) return bus_.write(address, value);
  // aqua_vanjaram_encode_ext_smn_addressing(): die in bits 33:32, and bit 34.
  const uint32_t die = high & 3;
  const auto known = dies_.find({die, address});
  if ((high & ~3u) != 4 || known == dies_.end())
    return bus_.violations().add(
        fmt::format("write of {:#x} to dword {:#x} of another die ({:#x})", value, address, high));
  known->second = value;
}

void Nbio::declare_dies() {
  fence_ = &bus_.declare(Ip::kNbio, "XCC_DOORBELL_FENCE", {.reset = 0xff});
  access_ = &bus_.declare(Ip::kNbio, "BIFC_DOORBELL_ACCESS_EN_PF");
  for (uint32_t die = 1; die < bus_.row().ip(Ip::kMmhub).instances; ++die)
    for (const char* const name :
         {"XCC_DOORBELL_FENCE", "S2A_DOORBELL_ENTRY_1_CTRL", "S2A_DOORBELL_ENTRY_2_CTRL",
          "S2A_DOORBELL_ENTRY_5_CTRL", "S2A_DOORBELL_ENTRY_6_CTRL"})
      dies_[{die, *bus_.address_of(Ip::kNbio, name)}] = 0;
  for (uint32_t i = 1; i <= 16; ++i)
    ranges_.push_back(&bus_.declare(Ip::kNbio, fmt::format("DOORBELL0_CTRL_ENTRY_{}", i)));
  for (const uint32_t port : {1u, 2u, 5u, 6u})
    ports_.push_back(&bus_.declare(Ip::kNbio, fmt::format("S2A_DOORBELL_ENTRY_{}_CTRL", port)));
  for (const char* const prefix : {"S2A_", "DOORBELL0_", "BIFC_"})
    bus_.declare_all(Ip::kNbio, prefix);
}

std::string Nbio::missing_for_chiplets() const {
  if (fence_ == nullptr) return {};
  if (*access_ != 0xfffff) return "BIFC_DOORBELL_ACCESS_EN_PF";
  const uint32_t there = (1u << bus_.row().xccs()) - 1;
  if ((*fence_ & there) != 0) return "XCC_DOORBELL_FENCE of the first die";
  const Field follows = bus_.field(Ip::kNbio, "XCC_DOORBELL_FENCE", "SHUB_SLV_MODE");
  const uint32_t fence = *bus_.address_of(Ip::kNbio, "XCC_DOORBELL_FENCE");
  for (const auto& [place, value] : dies_)
    if (place.second == fence && follows.of(value) == 0)
      return fmt::format("SHUB_SLV_MODE of die {}", place.first);
  return {};
}

/// Linux gives a port the size of the engine's range, tinygrad four dwords: what is rung must be
/// inside. Engines of the first die: ports 1, 2, 5 and 6 with these AWIDs.
std::string Nbio::missing_for_copies(uint32_t dword, uint32_t engine) const {
  constexpr std::array<uint32_t, 4> kIds = {0xe, 0x8, 0x9, 0xa};
  if (engine >= kIds.size()) return "a way to engines of other dies, which is not modelled";
  const auto field = [&](const char* name, const char* rest) {
    return bus_.field(Ip::kNbio, name, rest);
  };
  const uint32_t range = *ranges_[engine], port = *ports_[engine];
  // All entries have the fields of the first.
  const uint32_t first =
      field("DOORBELL0_CTRL_ENTRY_1", "BIF_DOORBELL1_RANGE_OFFSET_ENTRY").of(range);
  const uint32_t count =
      field("DOORBELL0_CTRL_ENTRY_1", "BIF_DOORBELL1_RANGE_SIZE_ENTRY").of(range);
  if (dword < first || dword >= first + count)
    return fmt::format("DOORBELL0_CTRL_ENTRY_{}", engine + 1);
  const char* const name = "S2A_DOORBELL_ENTRY_1_CTRL";
  if (field(name, "S2A_DOORBELL_PORT1_ENABLE").of(port) == 0 ||
      field(name, "S2A_DOORBELL_PORT1_AWID").of(port) != kIds[engine] ||
      field(name, "S2A_DOORBELL_PORT1_RANGE_OFFSET").of(port) != kIds[engine] ||
      field(name, "S2A_DOORBELL_PORT1_RANGE_SIZE").of(port) <= dword - first)
    return fmt::format("the S2A port of engine {}", engine);
  return {};
}

void Nbio::declare_entries() {
  RegisterBus& bus = bus_;
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
