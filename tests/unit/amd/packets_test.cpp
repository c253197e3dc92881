// Packets: encoder and decoder are each other's inverse, and the decoder takes nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/pm4/fields.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/regs/registers.h"
#include "drivers/amd/sdma/packets.h"

namespace bm::amd {
namespace {

constexpr CacheForm kForms[] = {CacheForm::kCoherCntl, CacheForm::kGcr, CacheForm::kGcrNoGl1};
constexpr SdmaForm kEngines[] = {SdmaForm::kV4_4, SdmaForm::kV5_2, SdmaForm::kV6, SdmaForm::kV7};

/// Whatever decodes must encode to the same words.
template <class Decode, class Encode>
int check_words(std::span<const uint32_t> words, const Decode& decode, const Encode& encode) {
  const auto decoded = decode(words);
  if (!decoded) return 0;
  EXPECT_TRUE(std::ranges::equal(encode(decoded->packet), words.first(decoded->dwords)));
  return 1;
}

std::vector<uint32_t> encode_pm4(const pm4::Packet& packet, CacheForm form) {
  std::vector<uint32_t> words;
  pm4::Writer(words, form).put(packet);
  return words;
}
std::vector<uint32_t> encode_sdma(const sdma::Packet& packet, SdmaForm form) {
  std::vector<uint32_t> words;
  sdma::Writer(words, form).put(packet);
  return words;
}

struct Random {
  std::mt19937_64 engine{20260101};
  uint64_t bits(uint32_t count) {
    return engine() & (count == 64 ? UINT64_MAX : (uint64_t{1} << count) - 1);
  }
  uint64_t address(uint64_t align) { return bits(48) & ~(align - 1); }
  uint32_t in(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(engine() % (uint64_t{high} - low + 1));
  }
};

pm4::Packet random_pm4(Random& r, CacheForm form, std::vector<uint32_t>& values) {
  values.assign(r.in(1, 12), 0);
  for (uint32_t& value : values) value = static_cast<uint32_t>(r.bits(32));
  const auto word = [&] { return static_cast<uint32_t>(r.bits(32)); };
  switch (r.in(0, 11)) {
    case 0: return pm4::Nop{r.in(1, 9)};
    case 1: return pm4::SetRegisters{r.in(0x2c00, 0x2ff0), values};
    case 2: return pm4::Dispatch{word(), word(), word(), word()};
    case 3: return pm4::PredExec{static_cast<uint8_t>(r.in(1, 255)), r.in(1, pm4::kMaxPredicated)};
    case 4:
      return pm4::WaitMemory{r.address(4), word(), word(), static_cast<pm4::Compare>(r.in(0, 6)),
                             static_cast<uint16_t>(r.bits(16))};
    case 5:
      return pm4::WriteThenWait{r.in(0, 0x3ffff), r.in(0, 0x3ffff), word(), word(),
                                static_cast<uint16_t>(r.bits(16))};
    case 6: return pm4::IndirectBuffer{r.address(4), r.in(1, pm4::kMaxIndirect)};
    case 7: return pm4::WriteData{r.address(4), values, r.bits(1) != 0};
    case 8:
      return pm4::CopyData{static_cast<uint8_t>(r.in(0, 15)),
                           static_cast<uint8_t>(r.in(0, 15)),
                           r.bits(1) != 0,
                           r.bits(1) != 0,
                           r.bits(64),
                           r.bits(64)};
    case 9:
      return pm4::EventWrite{static_cast<uint8_t>(r.in(0, 63)), static_cast<uint8_t>(r.in(0, 15))};
    case 10:
      return pm4::ReleaseMem{word() & pm4::release_bits(form),
                             static_cast<pm4::ReleaseData>(r.in(0, 3)),
                             r.bits(1) != 0,
                             r.address(8),
                             r.bits(64),
                             word()};
    default: return pm4::AcquireMem{word() & pm4::acquire_bits(form)};
  }
}

TEST(AmdPackets, RandomPm4PacketsSurviveTheirWords) {
  Random r;
  std::vector<uint32_t> values;
  for (const CacheForm form : kForms) {
    for (int i = 0; i < 20000; ++i) {
      const pm4::Packet packet = random_pm4(r, form, values);
      const std::vector<uint32_t> words = encode_pm4(packet, form);
      const auto decoded = pm4::decode(words, form);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
      ASSERT_EQ(decoded->dwords, words.size());
      ASSERT_EQ(decoded->packet.index(), packet.index());
      ASSERT_EQ(encode_pm4(decoded->packet, form), words) << pm4::describe(packet);
      // A cut packet is refused.
      if (words.size() > 1) {
        EXPECT_FALSE(pm4::decode(std::span(words).first(words.size() - 1), form));
      }
    }
  }
}

TEST(AmdPackets, EveryBitOfAPm4PacketIsUnderstoodOrRefused) {
  Random r;
  std::vector<uint32_t> values;
  for (const CacheForm form : kForms) {
    int taken = 0;
    for (int i = 0; i < 3000; ++i) {
      std::vector<uint32_t> words = encode_pm4(random_pm4(r, form, values), form);
      words.resize(words.size() + 4, 0);  // so that longer lengths have words to lie about
      words[r.in(0, static_cast<uint32_t>(words.size() - 1))] ^= 1u << r.in(0, 31);
      taken += check_words(
          words, [&](auto w) { return pm4::decode(w, form); },
          [&](const auto& p) { return encode_pm4(p, form); });
    }
    EXPECT_GT(taken, 500);
  }
}

TEST(AmdPackets, RandomWordsNeverBreakTheDecoders) {
  Random r;
  std::vector<uint32_t> words(24);
  for (int i = 0; i < 60000; ++i) {
    for (uint32_t& word : words) word = static_cast<uint32_t>(r.bits(32));
    if (r.bits(1) != 0)
      words[0] = 3u << 30 | r.in(0, 22) << 16 | static_cast<uint32_t>(r.bits(8)) << 8;
    for (const CacheForm form : kForms)
      check_words(
          words, [&](auto w) { return pm4::decode(w, form); },
          [&](const auto& p) { return encode_pm4(p, form); });
    words[0] = static_cast<uint32_t>(r.bits(4) | (r.bits(1) != 0 ? r.bits(32) & ~0xffull : 0));
    for (const SdmaForm form : kEngines)
      check_words(
          words, [&](auto w) { return sdma::decode(w, form); },
          [&](const auto& p) { return encode_sdma(p, form); });
    if (const auto packet = aql::decode(std::span(words).first(16))) {
      EXPECT_TRUE(std::ranges::equal(aql::encode(*packet), std::span(words).first(16)));
    }
  }
}

TEST(AmdPackets, RandomSdmaPacketsSurviveTheirWords) {
  Random r;
  for (const SdmaForm form : kEngines) {
    for (int i = 0; i < 20000; ++i) {
      std::vector<uint32_t> values(r.in(1, 9));
      for (uint32_t& value : values) value = static_cast<uint32_t>(r.bits(32));
      const sdma::Packet all[] = {
          sdma::Nop{},
          sdma::Skip{values},
          sdma::Copy{r.bits(48), r.bits(48), r.bits(21) + 1},
          sdma::Write{r.address(4), values},
          sdma::Fill{r.address(4), (r.bits(18) + 1) * 4},
          sdma::Indirect{r.address(32), r.in(1, 1000) * 8},
          sdma::Fence{r.address(4), static_cast<uint32_t>(r.bits(32))},
          sdma::Trap{static_cast<uint32_t>(r.bits(28))},
          sdma::WaitMemory{r.address(4), static_cast<uint32_t>(r.bits(32)),
                           static_cast<uint32_t>(r.bits(32)), static_cast<uint16_t>(r.bits(16))},
          sdma::Timestamp{r.address(8)}};
      for (const sdma::Packet& packet : all) {
        std::vector<uint32_t> words = encode_sdma(packet, form);
        const auto decoded = sdma::decode(words, form);
        ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
        ASSERT_EQ(decoded->dwords, words.size());
        ASSERT_EQ(encode_sdma(decoded->packet, form), words) << sdma::describe(packet);
        words[r.in(0, static_cast<uint32_t>(words.size() - 1))] ^= 1u << r.in(0, 31);
        check_words(
            words, [&](auto w) { return sdma::decode(w, form); },
            [&](const auto& p) { return encode_sdma(p, form); });
      }
    }
  }
}

TEST(AmdPackets, RandomAqlPacketsSurviveTheirWords) {
  Random r;
  for (int i = 0; i < 20000; ++i) {
    const aql::Header header{r.bits(1) != 0, static_cast<aql::Scope>(r.in(0, 2)),
                             static_cast<aql::Scope>(r.in(0, 2))};
    const aql::Packet all[] = {
        aql::Dispatch{header,
                      static_cast<uint16_t>(r.in(1, 3)),
                      {static_cast<uint16_t>(r.bits(16)), static_cast<uint16_t>(r.bits(16)),
                       static_cast<uint16_t>(r.bits(16))},
                      {static_cast<uint32_t>(r.bits(32)), 1, 2},
                      static_cast<uint32_t>(r.bits(32)),
                      static_cast<uint32_t>(r.bits(32)),
                      r.address(64),
                      r.bits(64),
                      r.bits(64)},
        aql::BarrierAnd{header, {r.bits(64), r.bits(64), 0, 1, r.bits(64)}, r.bits(64)},
        aql::Pm4Indirect{header, r.address(4), r.in(1, pm4::kMaxIndirect), r.bits(64)}};
    for (const aql::Packet& packet : all) {
      aql::Words words = aql::encode(packet);
      const auto decoded = aql::decode(words);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
      EXPECT_EQ(*decoded, packet);
      words[r.in(0, 15)] ^= 1u << r.in(0, 31);
      if (const auto other = aql::decode(words)) {
        EXPECT_EQ(aql::encode(*other), words);
      }
    }
  }
}

TEST(AmdPackets, AnInvalidAqlSlotIsNoPacket) {
  aql::Words words{};
  words[0] = aql::kInvalidWord;
  EXPECT_FALSE(aql::decode(words));
  EXPECT_FALSE(aql::decode(std::span(words).first(15)));
}

TEST(AmdPackets, TheQueueObjectKeepsItsFacts) {
  const aql::QueueObject queue{7, 31, 0x1234, 0x7f0000000000, 1 << 24, 512};
  const aql::QueueWords words = aql::encode_queue(queue, RegisterSet::kGc11);
  const aql::QueueObject back = aql::decode_queue(words);
  EXPECT_EQ(back.scratch, queue.scratch);
  EXPECT_EQ(back.scratch_bytes, queue.scratch_bytes);
  EXPECT_EQ(back.max_wave_id, queue.max_wave_id);
  EXPECT_EQ(back.tmpring, queue.tmpring);
  EXPECT_EQ(words[aql::kWriteIndexOffset / 4], 0u);
  EXPECT_EQ(words[aql::kReadIndexOffset / 4], 0u);
}

TEST(AmdChips, RowsAreFoundByVersionNameAndMachine) {
  for (const ChipRow& row : chips()) {
    EXPECT_EQ(find_chip(row.target_version), &row);
    EXPECT_EQ(find_chip(row.name), &row);
    EXPECT_EQ(find_chip_by_machine(row.elf_machine), &row);
    EXPECT_FALSE(row.validated) << "set only by a commit that names the run on hardware";
  }
  EXPECT_EQ(find_chip(100100), nullptr);
  const auto missing = require_chip(100100);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kUnsupported);
  EXPECT_NE(missing.error().message.find("gfx1010"), std::string::npos) << missing.error().message;
}

TEST(AmdRegisters, TheLaunchRegistersLieInTheShWindowInOneRow) {
  for (const ChipRow& chip : chips()) {
    const uint32_t gfx9[] = {0x2000}, navi[] = {0x1260};
    RegisterMap map;
    ASSERT_TRUE(map.add(gc_registers(chip.registers),
                        chip.registers == RegisterSet::kGc9_4_3 ? gfx9 : navi));
    EXPECT_EQ(map[Reg::COMPUTE_PGM_LO], 0x2e0cu);
    EXPECT_EQ(map[Reg::COMPUTE_PGM_HI], map[Reg::COMPUTE_PGM_LO] + 1);
    EXPECT_EQ(map[Reg::COMPUTE_PGM_RSRC2], map[Reg::COMPUTE_PGM_RSRC1] + 1);
    EXPECT_EQ(map[Reg::COMPUTE_NUM_THREAD_X], map[Reg::COMPUTE_START_X] + 3);
    EXPECT_EQ(map[Reg::COMPUTE_PERFCOUNT_ENABLE], map[Reg::COMPUTE_START_X] + 7);
    EXPECT_STREQ(map.name_at(0x2e0c), "COMPUTE_PGM_LO");
  }
}

TEST(AmdRegisters, AMissingSegmentIsNamed) {
  RegisterMap map;
  const uint32_t bases[] = {0, 0x14};
  const Status added = map.add(bus_registers(4, 3, 0), bases);
  ASSERT_FALSE(added);
  EXPECT_NE(added.error().message.find("BIF_BX_PF0_GPU_HDP_FLUSH_REQ (segment 2)"),
            std::string::npos);
  EXPECT_TRUE(bus_registers(7, 11, 0).empty());
}

TEST(AmdPackets, APieceNeverExceedsItsCountField) {
  for (const SdmaForm form : kEngines) {
    const auto words = encode_sdma(sdma::Copy{0, 0, sdma::max_piece(form)}, form);
    EXPECT_EQ(words[sdma::kCopyCount], sdma::max_piece(form) - 1);
    auto longer = words;
    ++longer[sdma::kCopyCount];
    EXPECT_FALSE(sdma::decode(longer, form));
  }
}

}  // namespace
}  // namespace bm::amd
