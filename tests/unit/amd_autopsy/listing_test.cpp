// Packets by name, those of other drivers too.

#include <gtest/gtest.h>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/packet_listing.h"
#include "drivers/amd/sdma/packets.h"

namespace bm::amd {
namespace {

TEST(PacketListing, NamesPacketsUpToTheOneThatIsNone) {
  std::vector<uint32_t> words;
  pm4::Writer writer(words, CacheForm::kGcr);
  writer.put(pm4::WaitMemory{.address = 0x1000, .value = 5});
  words.insert(words.end(), {0xc0033200 | 0x8a00, 0, 0, 0, 0});  // not one of ours, with a name
  words[7] = 0xc003a200;                                         // MAP_QUEUES
  words.push_back(0x12345678);
  words.push_back(0);
  const auto list = list_pm4(words, CacheForm::kGcr, 10);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].text, "WAIT_REG_MEM [0x1000] & 0xffffffff >= 0x5");
  ASSERT_TRUE(list[0].wait);
  EXPECT_FALSE(list[0].wait->is_met(4));
  EXPECT_TRUE(list[0].wait->is_met(5));
  EXPECT_TRUE(list[1].text.starts_with("MAP_QUEUES of 5 dwords")) << list[1].text;
  EXPECT_FALSE(list[1].is_bad);
  EXPECT_TRUE(list[2].is_bad);
  EXPECT_EQ(list[2].at, 12u);
}

TEST(PacketListing, APacketThatIsCutOffIsNotABadOne) {
  std::vector<uint32_t> words;
  pm4::Writer(words, CacheForm::kGcr).put(pm4::WaitMemory{.address = 0x1000, .value = 5});
  words.pop_back();
  EXPECT_TRUE(list_pm4(words, CacheForm::kGcr, 10).empty());
}

TEST(PacketListing, CopyPackets) {
  std::vector<uint32_t> words;
  sdma::Writer writer(words, SdmaForm::kV6);
  writer.put(sdma::Indirect{.address = 0x2000, .dwords = 8});
  writer.put(sdma::Copy{.source = 0x3000, .target = 0x4000, .bytes = 64});
  words.insert(words.end(), {0xff, 0, 0, 0, 0, 0, 0, 0});
  const auto list = list_sdma(words, SdmaForm::kV6, 10);
  ASSERT_EQ(list.size(), 3u);
  ASSERT_TRUE(list[0].buffer);
  EXPECT_EQ(list[0].buffer->address, 0x2000u);
  EXPECT_FALSE(list[1].is_bad);
  EXPECT_TRUE(list[2].is_bad);
}

TEST(PacketListing, SlotsOfAqlRings) {
  std::vector<uint32_t> words;
  const auto put = [&](const aql::Words& packet) {
    words.insert(words.end(), packet.begin(), packet.end());
  };
  put(aql::encode(aql::Dispatch{.threads = {64, 1, 1}, .grid = {640, 1, 1}, .descriptor = 0x4000}));
  put(aql::encode(aql::Pm4Indirect{.address = 0x2000, .dwords = 8}));
  put(aql::encode(aql::BarrierAnd{.dependencies = {0, 0x3000, 0, 0, 0}}));
  put({aql::kInvalidWord});
  put({0x1507});  // type 7
  put({0x1502});
  const auto list = list_aql(words, 10);
  ASSERT_EQ(list.size(), 5u) << "nothing behind what is no packet";
  EXPECT_NE(list[0].text.find("0x4000"), std::string::npos) << list[0].text;
  ASSERT_TRUE(list[1].buffer);
  EXPECT_EQ(list[1].buffer->address, 0x2000u);
  EXPECT_EQ(list[1].buffer->dwords, 8u);
  ASSERT_TRUE(list[2].wait);
  EXPECT_EQ(list[2].wait->address, 0x3008u);
  EXPECT_TRUE(list[2].wait->is_met(0));
  EXPECT_FALSE(list[2].wait->is_met(1));
  EXPECT_NE(list[3].text.find("not written yet"), std::string::npos);
  EXPECT_TRUE(list[4].is_bad);
  EXPECT_EQ(list_aql(words, 2).size(), 2u);
  words.resize(20);
  EXPECT_EQ(list_aql(words, 10).size(), 1u) << "half a packet is none yet";
}

}  // namespace
}  // namespace bm::amd
