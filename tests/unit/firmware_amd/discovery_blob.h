#pragma once
// Writes an IP discovery table, by discovery.h read again.

#include <array>

#include "tests/unit/firmware_amd/blob.h"

namespace bm::firmware::amd {

/// Where a table of the list lies and how many bytes its checksum covers.
struct TablePlace {
  size_t index = 0, at = 0, bytes = 0;
};

/// Sums of the tables into the list, then of the whole into the header.
inline void reseal(Blob& blob, const std::vector<TablePlace>& places) {
  const bool is_v2 = blob.get<uint16_t>(4) == 2;
  for (const TablePlace& place : places) {
    const size_t entry = (is_v2 ? 16 : 12) + place.index * 8;
    blob.put<uint16_t>(entry + 2, byte_sum(blob.bytes().subspan(place.at, place.bytes)));
  }
  blob.put<uint16_t>(10, static_cast<uint16_t>(blob.size()));
  blob.put<uint16_t>(8, byte_sum(blob.bytes().subspan(10)));
}

/// Two dies: GC 11.0.3 with two bases and a UMC on the first, SDMA0 instance 1 on the second.
struct DiscoveryBlob {
  uint16_t binary_version = 1, ip_version = 3;
  bool is_wide = false;
  uint16_t num_dies = 2, first_die_id = 0, num_ips = 2;
  uint16_t gc_hw_id = 11;
  uint8_t gc_instance = 0;
  uint16_t gc_major = 1, gc_minor = 0;
  uint32_t gc_fields = 19;
  uint16_t mall_major = 1;
  uint32_t vcn_count = 2, nps_count = 2;
  std::array<bool, 6> left_out{}, wrong_sum{}, wrong_signature{};

  static constexpr size_t kIp = 0x80, kGc = 0x200, kHarvest = 0x300, kVcn = 0x400, kMall = 0x500,
                          kNps = 0x600;

  std::vector<TablePlace> places() const {
    return {{0, kIp, 0x160},
            {1, kGc, 12 + gc_fields * 4},
            {2, kHarvest, 8 + 32 * 4},
            {3, kVcn, 16 + 80},
            {4, kMall, 48},
            {5, kNps, 212}};
  }

  Blob write() const {
    Blob blob;
    blob.put<uint32_t>(0, 0x28211407).put<uint16_t>(4, binary_version).put<uint16_t>(6, 0);
    const bool is_v2 = binary_version == 2;
    if (is_v2) blob.put<uint16_t>(12, 6);
    const size_t list = is_v2 ? 16 : 12;
    const std::vector<TablePlace> all = places();
    for (const TablePlace& place : all)
      blob.put<uint16_t>(list + place.index * 8,
                         left_out[place.index] ? 0 : static_cast<uint16_t>(place.at));
    write_ips(blob);
    blob.put<uint32_t>(kGc, 0x4347).put(kGc + 4, gc_major).put(kGc + 6, gc_minor);
    blob.put<uint32_t>(kGc + 8, 12 + gc_fields * 4);
    for (uint32_t i = 0; i < gc_fields; ++i) blob.put<uint32_t>(kGc + 12 + i * 4, 100 + i);
    // {hw_id, instance}: UMC 3, VCN 1.
    blob.put<uint32_t>(kHarvest, 0x56524148).put<uint32_t>(kHarvest + 4, 0);
    blob.put<uint32_t>(kHarvest + 8, 150 | 3 << 16).put<uint32_t>(kHarvest + 12, 12 | 1 << 16);
    blob.put<uint32_t>(kVcn, 0x004e4356).put<uint16_t>(kVcn + 4, 1).put<uint32_t>(kVcn + 8, 96);
    blob.put<uint32_t>(kVcn + 12, vcn_count)
        .put<uint32_t>(kVcn + 32, 1)
        .put<uint32_t>(kVcn + 36, 5);
    blob.put<uint32_t>(kMall, 0x4c4c414d).put<uint16_t>(kMall + 4, mall_major);
    blob.put<uint32_t>(kMall + 8, 48).words(kMall + 12, {0x400000, 1, 2});
    blob.put<uint32_t>(kNps, 0x0053504e).put<uint16_t>(kNps + 4, 1).put<uint32_t>(kNps + 8, 212);
    blob.put<uint32_t>(kNps + 12, 4).put<uint32_t>(kNps + 16, nps_count);
    blob.put<uint64_t>(kNps + 20, 0).put<uint64_t>(kNps + 28, 0xf'ffff'ffff);
    blob.put<uint64_t>(kNps + 36, 0x10'0000'0000).put<uint64_t>(kNps + 44, 0x1f'ffff'ffff);
    blob.resize(kNps + 212);
    for (const TablePlace& place : all)
      if (wrong_signature[place.index]) blob.put<uint32_t>(place.at, 1);
    reseal(blob, all);
    for (const TablePlace& place : all) {
      const size_t sum = list + place.index * 8 + 2;
      if (wrong_sum[place.index])
        blob.put<uint16_t>(sum, static_cast<uint16_t>(blob.get<uint16_t>(sum) + 1));
    }
    reseal(blob, {});
    return blob;
  }

 private:
  void write_ips(Blob& blob) const {
    blob.put<uint32_t>(kIp, 0x53445049).put<uint16_t>(kIp + 4, ip_version);
    blob.put<uint16_t>(kIp + 6, 0x160).put<uint16_t>(kIp + 12, num_dies);
    blob.put<uint8_t>(kIp + 78, is_wide ? 1 : 0);
    // {die_id, die_offset}; lists of both dies behind the 80 bytes of the header.
    const size_t dies[] = {kIp + 80, kIp + 0x100};
    for (uint16_t die = 0; die < 2; ++die) {
      blob.put<uint16_t>(kIp + 14 + die * 4u, die);
      blob.put<uint16_t>(kIp + 16 + die * 4u, static_cast<uint16_t>(dies[die]));
    }
    size_t at = dies[0];
    blob.put<uint16_t>(at, first_die_id).put<uint16_t>(at + 2, num_ips);
    at += 4;
    blob.put(at, gc_hw_id).put(at + 2, gc_instance).put<uint8_t>(at + 3, 2);
    blob.put<uint8_t>(at + 4, 11).put<uint8_t>(at + 5, 0).put<uint8_t>(at + 6, 3);
    blob.put<uint8_t>(at + 7, 0x21);
    at += 8;
    for (const uint64_t base : {0x1260U, 0xa000U}) {
      if (is_wide)
        blob.put<uint64_t>(at, base | 0x8'0000'0000);
      else
        blob.put<uint32_t>(at, static_cast<uint32_t>(base));
      at += is_wide ? 8 : 4;
    }
    blob.put<uint16_t>(at, 150).put<uint8_t>(at + 2, 3).put<uint8_t>(at + 3, 0);
    blob.put<uint32_t>(at + 4, 0x00010008);
    blob.put<uint16_t>(dies[1], 1).put<uint16_t>(dies[1] + 2, 1);
    blob.put<uint16_t>(dies[1] + 4, 42).put<uint8_t>(dies[1] + 6, 1).put<uint8_t>(dies[1] + 7, 0);
    blob.put<uint32_t>(dies[1] + 8, 0x00000006);
    blob.resize(kIp + 0x160);
  }
};

}  // namespace bm::firmware::amd
