#include "firmware/amd/discovery.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/unit/firmware_amd/discovery_blob.h"

namespace bm::firmware::amd {
namespace {

Result<Discovery> read(const Blob& blob) { return parse_discovery(Image("table", blob.bytes())); }

std::string error_of(const Blob& blob) {
  const auto result = read(blob);
  return result ? "" : result.error().message;
}
#define EXPECT_ERROR(text, blob) \
  EXPECT_NE(error_of(blob).find(text), std::string::npos) << error_of(blob)

TEST(Discovery, EveryVersionOfHeaderAndTable) {
  for (const uint16_t binary : std::array<uint16_t, 3>{0, 1, 2}) {
    for (const uint16_t version : std::array<uint16_t, 4>{1, 2, 3, 4}) {
      for (const bool is_wide : {false, true}) {
        DiscoveryBlob writer{.binary_version = binary, .ip_version = version, .is_wide = is_wide};
        const Blob blob = writer.write();
        const auto table = read(blob);
        ASSERT_TRUE(table) << table.error().message;
        EXPECT_EQ(table->version_major, binary);
        EXPECT_EQ(table->ip_discovery_version, version);
        ASSERT_EQ(table->ips.size(), 3u);
        const IpBlock* const gc = table->find(kGcHwId);
        ASSERT_NE(gc, nullptr);
        EXPECT_EQ(gc->major, 11);
        EXPECT_EQ(gc->minor, 0);
        EXPECT_EQ(gc->revision, 3);
        EXPECT_EQ(gc->harvest, version < 3 ? 1 : 0);
        EXPECT_EQ(gc->sub_revision, version < 3 ? 0 : 1);
        EXPECT_EQ(gc->variant, version < 3 ? 0 : 2);
        const uint64_t high = is_wide ? 0x8'0000'0000 : 0;
        EXPECT_EQ(gc->base_address, (std::vector<uint64_t>{0x1260 | high, 0xa000 | high}));
        const IpBlock* const sdma = table->find(kSdma0HwId, 1);
        ASSERT_NE(sdma, nullptr);
        EXPECT_EQ(sdma->die, 1);
        EXPECT_TRUE(sdma->base_address.empty());
        EXPECT_EQ(table->find(kSdma0HwId, 7), nullptr);
      }
    }
  }
}

TEST(Discovery, HarvestedInstances) {
  const auto table = read(DiscoveryBlob{}.write());
  ASSERT_TRUE(table) << table.error().message;
  ASSERT_EQ(table->harvest.size(), 2u);  // the list ends at hardware id 0
  EXPECT_TRUE(table->is_harvested(kUmcHwId, 3));
  EXPECT_TRUE(table->is_harvested(12, 1));
  EXPECT_FALSE(table->is_harvested(kUmcHwId, 2));
  EXPECT_FALSE(table->is_harvested(kGcHwId, 0));
  const auto old = read(DiscoveryBlob{.ip_version = 2}.write());
  ASSERT_TRUE(old);
  EXPECT_TRUE(old->is_harvested(kGcHwId, 0));  // by its entry
}

TEST(Discovery, GcConfiguration) {
  struct Row {
    uint16_t major, minor;
    uint32_t fields;
  };
  for (const Row& row : {Row{1, 0, 19}, Row{1, 1, 22}, Row{1, 2, 30}, Row{1, 3, 38}, Row{1, 9, 40},
                         Row{2, 0, 17}, Row{2, 1, 24}, Row{2, 5, 26}}) {
    const auto table =
        read(DiscoveryBlob{.gc_major = row.major, .gc_minor = row.minor, .gc_fields = row.fields}
                 .write());
    ASSERT_TRUE(table) << table.error().message;
    ASSERT_TRUE(table->gc);
    const GcInfo& gc = *table->gc;
    // Field n of the blob is 100 + n; places by discovery.h.
    EXPECT_EQ(gc.gc_num_se, 100u);
    EXPECT_EQ(gc.gc_wave_size, 111u);
    EXPECT_EQ(gc.gc_max_waves_per_simd, 112u);
    EXPECT_EQ(gc.gc_lds_size, 114u);
    if (row.major == 1) {
      EXPECT_EQ(gc.cus_per_array(), 2u * (101 + 102));
      EXPECT_EQ(gc.arrays_per_engine(), 116u);
      EXPECT_EQ(gc.gc_num_gl2a, 118u);
      EXPECT_EQ(gc.gc_num_tcps, row.minor >= 1 ? 121u : 0u);
      EXPECT_EQ(gc.gc_tcp_l1_size, row.minor >= 2 ? 123u : 0u);
      EXPECT_EQ(gc.gc_gl2c_per_gpu, row.minor >= 2 ? 129u : 0u);
      EXPECT_EQ(gc.gc_tcc_size, row.minor >= 3 ? 136u : 0u);
      EXPECT_EQ(gc.gc_tcc_cache_line_size, row.minor >= 3 ? 137u : 0u);
    } else {
      EXPECT_EQ(gc.cus_per_array(), 101u);
      EXPECT_EQ(gc.arrays_per_engine(), 102u);
      EXPECT_EQ(gc.gc_num_packer_per_sc, 116u);
      EXPECT_EQ(gc.gc_num_cu_per_sqc, row.minor >= 1 ? 120u : 0u);
      EXPECT_EQ(gc.gc_tcc_size, row.minor >= 1 ? 123u : 0u);
    }
  }
  EXPECT_ERROR("GC table at", (DiscoveryBlob{.gc_major = 3}.write()));
  EXPECT_ERROR("gc_info", (DiscoveryBlob{.gc_minor = 3, .gc_fields = 37}.write()));
}

TEST(Discovery, OtherTables) {
  const auto table = read(DiscoveryBlob{}.write());
  ASSERT_TRUE(table) << table.error().message;
  ASSERT_TRUE(table->mall && table->vcn && table->nps);
  // v1: UMC 0 has twice, UMC 1 half as much.
  EXPECT_EQ(table->mall->bytes(3), 2 * 0x400000u + 0x200000u + 0x400000u);
  ASSERT_EQ(table->vcn->instance_info.size(), 2u);
  EXPECT_EQ(table->vcn->instance_info[1].instance_num, 1u);
  EXPECT_EQ(table->vcn->instance_info[1].fuse_data, 0x5u);
  EXPECT_EQ(table->nps->nps_type, 4u);
  ASSERT_EQ(table->nps->instance_info.size(), 2u);
  EXPECT_EQ(table->nps->instance_info[1].base_address, 0x10'0000'0000u);
  EXPECT_EQ(table->nps->instance_info[1].limit_address, 0x1f'ffff'ffffu);
  EXPECT_EQ(table->nps_problem, "");
  const auto v2 = read(DiscoveryBlob{.mall_major = 2}.write());
  ASSERT_TRUE(v2);
  EXPECT_EQ(v2->mall->bytes(40), 40 * uint64_t{0x400000});
}

TEST(Discovery, TablesThatAreNotThere) {
  DiscoveryBlob writer;
  for (size_t i = 1; i < 6; ++i) writer.left_out[i] = true;
  const auto table = read(writer.write());
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->ips.size(), 3u);
  EXPECT_TRUE(table->harvest.empty());
  EXPECT_FALSE(table->gc || table->mall || table->vcn || table->nps);
  writer.left_out[0] = true;
  EXPECT_ERROR("lists no IP_DISCOVERY", writer.write());
}

TEST(Discovery, AnNpsTableThatDoesNotCheckIsPassedOver) {
  DiscoveryBlob writer;
  writer.wrong_sum[5] = true;
  const auto table = read(writer.write());
  ASSERT_TRUE(table);
  EXPECT_FALSE(table->nps);
  EXPECT_NE(table->nps_problem.find("sum of NPS_INFO"), std::string::npos) << table->nps_problem;
}

TEST(Discovery, ChecksumsAndSignatures) {
  // Of IP_DISCOVERY, GC, HARVEST_INFO and VCN_INFO; MALL_INFO's is not checked.
  const std::string names[] = {"IP_DISCOVERY", "GC", "HARVEST_INFO", "VCN_INFO"};
  for (size_t i = 0; i < 4; ++i) {
    DiscoveryBlob writer;
    writer.wrong_sum[i] = true;
    EXPECT_ERROR("sum of " + names[i], writer.write());
    DiscoveryBlob other;
    other.wrong_signature[i] = true;
    EXPECT_ERROR(names[i] + " table at", other.write());
  }
  DiscoveryBlob mall;
  mall.wrong_sum[4] = true;
  EXPECT_EQ(error_of(mall.write()), "");
  Blob blob = DiscoveryBlob{}.write();
  blob.put<uint16_t>(8, static_cast<uint16_t>(blob.get<uint16_t>(8) + 1));
  EXPECT_ERROR("sum of binary", blob);
  blob.put<uint32_t>(0, 0x12345678);
  EXPECT_ERROR("no IP discovery table: it begins with 0x12345678", blob);
  EXPECT_ERROR("binary_header at 0x4 has version 3.0",
               (DiscoveryBlob{.binary_version = 3}.write()));
  EXPECT_ERROR("has version 5, known: 1 to 4", (DiscoveryBlob{.ip_version = 5}.write()));
}

// tinygrad's model of a card has such a table: no sums, no sizes that only they need, and its index
// where GC has its id. Signatures and bounds still hold.
TEST(Discovery, PartsWithoutASumAreTakenAndNamed) {
  Blob blob = DiscoveryBlob{}.write();
  EXPECT_TRUE(read(blob)->without_sum.empty());
  blob.put<uint16_t>(8, 0).put<uint16_t>(10, 0);
  for (const size_t table : {0U, 1U}) blob.put<uint16_t>(12 + table * 8 + 2, 0);
  blob.put<uint16_t>(DiscoveryBlob::kIp + 6, 0).put<uint32_t>(DiscoveryBlob::kGc, 1);
  const auto table = read(blob);
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->without_sum, (std::vector<std::string>{"binary", "IP_DISCOVERY", "GC"}));
  EXPECT_EQ(table->ips.size(), 3u);
  ASSERT_TRUE(table->gc);
  EXPECT_EQ(table->gc->gc_num_se, 100u);
  blob.put<uint16_t>(12 + 2 * 8 + 2, 0x1234);
  EXPECT_ERROR("sum of HARVEST_INFO", blob);
  blob.put<uint32_t>(DiscoveryBlob::kIp, 1);
  EXPECT_ERROR("IP_DISCOVERY table at", blob);
}

TEST(Discovery, CountsAreBounded) {
  EXPECT_ERROR("num_dies at 0x", (DiscoveryBlob{.num_dies = 17}.write()));
  EXPECT_ERROR("die_id at 0x", (DiscoveryBlob{.first_die_id = 1}.write()));
  EXPECT_ERROR("is not inside its", (DiscoveryBlob{.num_ips = 0xffff}.write()));
  EXPECT_ERROR("5 instances, at most 4", (DiscoveryBlob{.vcn_count = 5}.write()));
  const auto nps = read(DiscoveryBlob{.nps_count = 13}.write());
  ASSERT_TRUE(nps);
  EXPECT_NE(nps->nps_problem.find("13 ranges, at most 12"), std::string::npos) << nps->nps_problem;
}

TEST(Discovery, DiesThatOverlapAreRefused) {
  // Sixteen dies would read one list of thousands of entries sixteen times.
  Blob blob;
  blob.put<uint32_t>(0, 0x28211407).put<uint16_t>(4, 1).put<uint16_t>(12, 60);
  constexpr size_t kAt = 60, kLists = kAt + 80;
  blob.put<uint32_t>(kAt, 0x53445049).put<uint16_t>(kAt + 4, 3).put<uint16_t>(kAt + 6, 80);
  blob.put<uint16_t>(kAt + 12, 16);
  // Each die's list begins four bytes behind the last and is made of the others' heads.
  for (uint16_t die = 0; die < 16; ++die) {
    blob.put<uint16_t>(kAt + 14 + die * 4u, die);
    blob.put<uint16_t>(kAt + 16 + die * 4u, static_cast<uint16_t>(kLists + die * 12u));
    blob.put<uint16_t>(kLists + die * 12u, die).put<uint16_t>(kLists + die * 12u + 2, 1000);
  }
  blob.resize(60000);
  reseal(blob, {{0, kAt, 80}});
  EXPECT_ERROR("dies overlap", blob);
}

TEST(Discovery, UnknownIpsAreCounted) {
  // HW_ID_MAX is 300 and HWIP_MAX_INSTANCE 44 (amdgpu.h).
  const auto far = read(DiscoveryBlob{.gc_hw_id = 300}.write());
  ASSERT_TRUE(far);
  EXPECT_EQ(far->unknown_ips, 1u);
  EXPECT_EQ(far->ips.size(), 2u);
  const auto many = read(DiscoveryBlob{.gc_instance = 44}.write());
  ASSERT_TRUE(many);
  EXPECT_EQ(many->unknown_ips, 1u);
  EXPECT_EQ(read(DiscoveryBlob{.gc_hw_id = 299, .gc_instance = 43}.write())->unknown_ips, 0u);
}

TEST(Discovery, ByteByByteShorterNeverCrashes) {
  const Blob whole = DiscoveryBlob{}.write();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.bytes().begin(),
                                     whole.bytes().begin() + static_cast<long>(size));
    EXPECT_FALSE(parse_discovery(Image("table", cut))) << size;
    // With the sums of what is left.
    if (size < 60) continue;
    Blob told = whole;
    told.resize(size);
    reseal(told, {});
    (void)read(told);
  }
}

TEST(Discovery, AnyByteMayLie) {
  const DiscoveryBlob writer;
  const Blob whole = writer.write();
  std::mt19937 random(3);
  for (size_t at = 4; at < whole.size(); ++at) {
    for (const uint8_t value : std::array<uint8_t, 5>{0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Blob blob = whole;
      blob.put<uint8_t>(at, value);
      if (random() % 8 == 0)
        blob.put<uint8_t>(random() % blob.size(), static_cast<uint8_t>(random()));
      reseal(blob, writer.places());
      const auto table = read(blob);
      EXPECT_LE(table ? table->ips.size() : 0, blob.size() / 8);
    }
  }
}

}  // namespace
}  // namespace bm::firmware::amd
