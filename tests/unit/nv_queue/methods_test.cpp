#include <gtest/gtest.h>

#include <set>

#include "drivers/nv/methods/bank0.h"
#include "drivers/nv/methods/compute.h"
#include "drivers/nv/methods/copy.h"
#include "drivers/nv/methods/push.h"
#include "drivers/nv/methods/qmd.h"

namespace bm::nv {
namespace {

constexpr ChannelClasses kAda = {.channel = 0xc56f, .compute = 0xc9c0, .copy = 0xc7b5};
constexpr QmdVersion kVersions[] = {QmdVersion::k2_3, QmdVersion::k3_0, QmdVersion::k4_0,
                                    QmdVersion::k5_0};

TEST(NvPush, HeadersOfEveryOpcode) {
  std::vector<uint32_t> words;
  Push push(words, kAda);
  const uint32_t data[] = {1, 2};
  push.incr(Subchannel::kHost, kSemAddrLo, 0x10, 0x20);
  push.non_incr(Subchannel::kCompute, kComputeLoadInlineData, data);
  push.immediate(Subchannel::kCompute, kComputeWaitForIdle, 0);
  push.incr_once(Subchannel::kCopy, kCopyRemapConstA, std::span(data).first(1));
  // 31:29 opcode, 28:16 count or value, 15:13 subchannel, 11:0 method / 4.
  EXPECT_EQ(words, (std::vector<uint32_t>{0x20020017, 0x10, 0x20, 0x6002206d, 1, 2, 0x80002044,
                                          0xa00181c0, 1}));
  EXPECT_TRUE(check_push(words, kAda));
}

TEST(NvPush, WrongWordsAreRefused) {
  EXPECT_TRUE(check_method(kAda, Subchannel::kHost, kSemAddrLo, 0xfffffffc));
  const auto refused = [](Subchannel subchannel, uint32_t method, uint32_t word) {
    const Status status = check_method(kAda, subchannel, method, word);
    return status ? std::string() : status.error().message;
  };
  EXPECT_NE(refused(Subchannel::kHost, kSemAddrLo, 2).find("SEM_ADDR_LO"), std::string::npos);
  EXPECT_NE(refused(Subchannel::kHost, 0x60, 0x100).find("SEM_ADDR_HI"), std::string::npos)
      << "addresses of 57 bits need Hopper's channel";
  EXPECT_TRUE(check_method({.channel = 0xc86f}, Subchannel::kHost, 0x60, 0x1000000));
  EXPECT_NE(refused(Subchannel::kCompute, 0x104, 0), "");
  EXPECT_NE(refused(Subchannel::kHost, kComputeWaitForIdle, 0), "");
  EXPECT_FALSE(check_method({.channel = 0xc46f, .compute = 0xc5c0}, Subchannel::kCompute,
                            kSendSignalingPcas2B, 9))
      << "Turing has the older launch method only";
}

TEST(NvPush, BrokenBuffersAreRefused) {
  const uint32_t past_end[] = {push_header(PushOp::kIncrement, Subchannel::kHost, kSemAddrLo, 2),
                               4};
  EXPECT_FALSE(check_push(past_end, kAda));
  const uint32_t no_opcode[] = {0xc0000000};
  EXPECT_FALSE(check_push(no_opcode, kAda));
}

TEST(NvPush, RingEntriesHold40BitsAndLength) {
  EXPECT_EQ(ring_entry(0x10'0000'0004, 1), 0x10'0000'0004u | uint64_t{1} << 42);
  EXPECT_EQ(ring_entry(0, kMaxEntryWords), 0x7fff'fc00'0000'0000u);
}

TEST(NvQmd, FieldsOfAFormatDoNotOverlap) {
  for (const QmdVersion version : kVersions) {
    const QmdFormat& format = qmd_format(version);
    std::set<uint32_t> used;
    for (size_t key = 0; key < kQmdKeys; ++key) {
      const QmdField& field = format.fields[key];
      const auto name = static_cast<QmdKey>(key);
      uint32_t instances = 1;
      if (name >= QmdKey::kBankValid && name <= QmdKey::kBankBytes) instances = 8;
      if (name >= QmdKey::kReleaseEnable && name <= QmdKey::kReleasePayload) instances = 2;
      if (field.stride == 0) instances = 1;
      for (uint32_t i = 0; i < instances; ++i) {
        for (uint32_t b = 0; b < field.bits; ++b)
          EXPECT_TRUE(used.insert(field.low + i * field.stride + b).second) << qmd_key_name(name);
        for (uint32_t b = 0; b < field.upper_bits; ++b)
          EXPECT_TRUE(used.insert(field.upper_low + i * field.stride + b).second)
              << qmd_key_name(name);
      }
    }
    EXPECT_LT(*used.rbegin(), format.dwords * 32);
  }
}

TEST(NvQmd, EveryFieldReadsBackWhatWasWritten) {
  for (const QmdVersion version : kVersions) {
    const QmdFormat& format = qmd_format(version);
    for (size_t i = 0; i < kQmdKeys; ++i) {
      const QmdField& field = format.fields[i];
      if (!field.exists()) continue;
      std::vector<uint32_t> words(format.dwords);
      Qmd qmd(format, words);
      const uint32_t width = field.bits + field.upper_bits;
      const uint64_t most = (width >= 64 ? UINT64_MAX : (uint64_t{1} << width) - 1) << field.shift;
      const auto key = static_cast<QmdKey>(i);
      EXPECT_EQ(qmd.with(key, most).get(key), most) << qmd_key_name(key);
      uint32_t bits = 0;
      for (const uint32_t word : words) bits += static_cast<uint32_t>(std::popcount(word));
      EXPECT_EQ(bits, width) << qmd_key_name(key);
    }
  }
}

TEST(NvQmd, ShiftsBelongToTheField) {
  std::vector<uint32_t> words(96);
  Qmd qmd(qmd_format(QmdVersion::k5_0), words);
  qmd.with(QmdKey::kProgram, 0x10'0123'4560).with(QmdKey::kSharedBytes, 0x480);
  EXPECT_EQ(words[1024 / 32], 0x0012'3456u) << "addresses of code are stored in units of 16";
  EXPECT_EQ(words[1056 / 32], 0x1u);
  EXPECT_EQ(qmd.get(QmdKey::kSharedBytes), 0x480u);
  EXPECT_EQ(words[1152 / 32] & 0x7ff, 9u);
}

TEST(NvQmdDeathTest, ValuesThatDoNotFitAbortWithTheFieldsName) {
  std::vector<uint32_t> words(96);
  Qmd qmd(qmd_format(QmdVersion::k4_0), words);
  EXPECT_DEATH(qmd.with(QmdKey::kGridY, 0x10000), "GridY");
  EXPECT_DEATH(qmd.with(QmdKey::kBankAddress, 0x1020), "BankAddress") << "not a multiple of 64";
  EXPECT_DEATH(qmd.with(QmdKey::kGlobalCaching, 1), "GlobalCaching") << "4.0 has no such field";
  EXPECT_DEATH(qmd.with(QmdKey::kBankBytes, 8), "BankBytes") << "counted in units of 16";
}

TEST(NvQmd, LargestConstantBankFits) {
  // 64 KiB is 4096 units of 16 bytes: needs the 13th bit.
  for (const QmdVersion version : kVersions) {
    std::vector<uint32_t> words(qmd_format(version).dwords);
    Qmd qmd(qmd_format(version), words);
    EXPECT_EQ(qmd.with(QmdKey::kBankBytes, 0x10000, 7).get(QmdKey::kBankBytes, 7), 0x10000u);
  }
}

TEST(NvQmd, SassVersions) {
  EXPECT_EQ(sass_version(75), 0x75u);
  EXPECT_EQ(sass_version(86), 0x86u);
  EXPECT_EQ(sass_version(90), 0x90u);
  EXPECT_EQ(sass_version(100), 0xa0u);
  EXPECT_EQ(sass_version(120), 0xa4u);
}

#ifndef NDEBUG
TEST(NvPushDeathTest, DebugBuildsCheckEveryWord) {
  std::vector<uint32_t> words;
  Push push(words, kAda);
  EXPECT_DEATH(push.incr(Subchannel::kHost, kSemAddrLo, 1u), "SEM_ADDR_LO");
}
#endif

}  // namespace
}  // namespace bm::nv
