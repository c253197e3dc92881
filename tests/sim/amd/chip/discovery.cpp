#include "tests/sim/amd/chip/discovery.h"

#include <cstring>
#include <numeric>

namespace bm::sim::amd {
namespace {

constexpr uint32_t kBinary = 0x28211407, kIpTable = 0x53445049, kGcTable = 0x4347,
                   kHarvest = 0x56524148;
constexpr size_t kTables = 6, kDiscoveryHeader = 12 + kTables * 8;

class Bytes {
 public:
  void u8(uint32_t v) { out_.push_back(static_cast<std::byte>(v)); }
  void u16(uint32_t v) { u8(v & 0xff), u8(v >> 8 & 0xff); }
  void u32(uint32_t v) { u16(v & 0xffff), u16(v >> 16); }
  void pad(size_t to) {
    while (out_.size() < to) u8(0);
  }
  size_t size() const { return out_.size(); }
  void put16(size_t at, uint32_t v) {
    out_[at] = static_cast<std::byte>(v & 0xff);
    out_[at + 1] = static_cast<std::byte>(v >> 8 & 0xff);
  }
  uint16_t sum(size_t from, size_t to) const {
    uint32_t total = 0;
    for (size_t i = from; i < to; ++i) total += static_cast<uint32_t>(out_[i]);
    return static_cast<uint16_t>(total);
  }
  std::vector<std::byte> out_;
};

/// `wide`: bases of 64 bits.
void put_ip(Bytes& out, uint32_t id, uint32_t instance, IpVersion version,
            const std::vector<uint64_t>& bases, bool is_wide = false) {
  const auto count = static_cast<uint32_t>(bases.size());
  out.u16(id);
  out.u8(instance);
  out.u8(count);
  out.u8(version.major), out.u8(version.minor), out.u8(version.revision);
  out.u8(0);  // harvest, or sub-revision and variant
  for (const uint64_t base : bases) {
    out.u32(static_cast<uint32_t>(base));
    if (is_wide) out.u32(static_cast<uint32_t>(base >> 32));
  }
}

std::vector<uint64_t> bases_of(const IpRow& ip, uint32_t instance) {
  std::vector<uint64_t> bases;
  for (uint32_t i = 0; i < ip.base_count; ++i)
    bases.push_back(uint64_t{ip.bases[i]} + instance * ip.stride);
  return bases;
}

}  // namespace

std::vector<std::byte> make_discovery(const ChipRow& row, uint32_t version, bool has_sums) {
  Bytes out;
  out.pad(kDiscoveryHeader);
  struct Table {
    size_t offset = 0, size = 0;
  };
  std::array<Table, kTables> tables;

  // IP_DISCOVERY: header, one die.
  tables[0].offset = out.size();
  out.u32(kIpTable);
  out.u16(version);
  const size_t size_at = out.size();
  out.u16(0);
  out.u32(0);
  out.u16(1);
  const size_t die_at = out.size();
  out.pad(out.size() + 64);
  const bool is_wide = version == 4 && row.ips.size() > static_cast<size_t>(Ip::kSdma);
  out.u16(is_wide ? 1 : 0);  // version 4: bit 0 tells 64-bit bases
  out.put16(die_at + 2, static_cast<uint32_t>(out.size()));
  const size_t count_at = out.size() + 2;
  out.u32(0);
  uint32_t ips = 0;
  for (const IpRow& ip : row.ips) {
    for (uint32_t i = 0; i < ip.instances; ++i) {
      put_ip(out, ip.hardware_id, i, ip.version, bases_of(ip, i), is_wide);
      ++ips;
    }
  }
  // From gfx11 on copy engines have the graphics core's addresses (sdma_v6_0_get_reg_offset()).
  constexpr uint32_t kSdma0 = 42, kSdma1 = 43, kDf = 46, kUmc = 150, kThm = 3;
  const IpRow& gc = row.ip(Ip::kGc);
  if (row.copy_block() == Ip::kGc)
    for (const uint32_t id : {kSdma0, kSdma1}) {
      put_ip(out, id, 0, row.sdma, bases_of(gc, 0), is_wide);
      ++ips;
    }
  // Blocks that a compute driver passes over.
  put_ip(out, kDf, 0, {4, 3, 0}, {0x7000, 0x240b800}, is_wide);
  put_ip(out, kThm, 0, {13, 0, 2}, {0x16600, 0x2400c00}, is_wide);
  put_ip(out, kUmc, 0, {8, 10, 0}, {0x14000, 0x2425800}, is_wide);
  put_ip(out, kUmc, 1, {8, 10, 0}, {0x54000 | (is_wide ? uint64_t{1} << 32 : 0), 0x2425c00},
         is_wide);
  ips += 4;
  out.put16(count_at, ips);
  tables[0].size = out.size() - tables[0].offset;
  out.put16(size_at, static_cast<uint32_t>(tables[0].size));

  // GC: gc_info_v1_2.
  tables[1].offset = out.size();
  const bool is_cdna = row.generation == 9;
  // gc_info_v2_0: of a chiplet, in compute units and shader arrays.
  const std::vector<uint32_t> cdna_info = {row.shader_engines,
                                           row.wgps,
                                           row.arrays,
                                           4 /* render backends of an engine */,
                                           16 /* texture caches */,
                                           512,
                                           32,
                                           0x20,
                                           0x710,
                                           0x400,
                                           1,
                                           64,
                                           8,
                                           32,
                                           64,
                                           1,
                                           4};
  const std::vector<uint32_t> rdna_info = {row.shader_engines,
                                           row.wgps,
                                           0,
                                           4 /* render backends of an engine */,
                                           16,
                                           1024,
                                           32,
                                           0x20,
                                           0x710,
                                           0x400,
                                           1,
                                           32,
                                           16,
                                           32,
                                           128,
                                           1,
                                           row.arrays,
                                           4,
                                           4,
                                           8,
                                           8,
                                           64,
                                           2,
                                           32,
                                           1,
                                           32,
                                           16,
                                           1,
                                           128,
                                           16};
  const std::vector<uint32_t>& gc_info = is_cdna ? cdna_info : rdna_info;
  out.u32(kGcTable);
  out.u16(is_cdna ? 2 : 1), out.u16(is_cdna ? 0 : 2);
  out.u32(static_cast<uint32_t>(12 + gc_info.size() * 4));
  for (const uint32_t word : gc_info) out.u32(word);
  tables[1].size = out.size() - tables[1].offset;

  // HARVEST: the second memory controller is not there.
  tables[2].offset = out.size();
  out.u32(kHarvest);
  out.u32(0);
  out.u16(kUmc), out.u8(1), out.u8(0);
  out.pad(tables[2].offset + 8 + 32 * 4);
  tables[2].size = out.size() - tables[2].offset;

  std::memcpy(out.out_.data(), &kBinary, 4);
  out.put16(4, 1);
  for (size_t i = 0; i < kTables; ++i) {
    const size_t at = 12 + i * 8;
    out.put16(at, static_cast<uint32_t>(tables[i].offset));
    if (!has_sums) continue;
    out.put16(at + 2, out.sum(tables[i].offset, tables[i].offset + tables[i].size));
    out.put16(at + 4, static_cast<uint32_t>(tables[i].size));
  }
  if (!has_sums) return out.out_;
  out.put16(10, static_cast<uint32_t>(out.size()));
  // The sum is of everything after its own field.
  out.put16(8, out.sum(10, out.size()));
  return out.out_;
}

}  // namespace bm::sim::amd
