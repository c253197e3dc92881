#include "firmware/amd/ucode.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "tests/unit/firmware_amd/blob.h"

namespace bm::firmware::amd {
namespace {

struct Expected {
  PartId id;
  uint64_t offset, size;
  uint32_t version = 0, feature_version = 0;
  bool is_aux = false;
  uint32_t type = 0;
};
struct Case {
  std::string name;
  Kind kind;
  Blob blob;
  std::vector<Expected> parts;
  bool has_crc;
};

/// Every format with every part that it can have.
std::vector<Case> cases() {
  using enum PartId;
  std::vector<Case> all;
  // psp_firmware_header_v1_0: {version, offset = size of sys, size}.
  all.push_back({"sos v1.0",
                 Kind::kSos,
                 ucode_file(1, 0, {7, 0x20, 0x30}, 0x50),
                 {{kSysDrv, 0x100, 0x20}, {kSos, 0x120, 0x30, 7}},
                 false});
  all.push_back(
      {"sos v1.1",
       Kind::kSos,
       ucode_file(1, 1, {7, 0x20, 0x30, 8, 0x50, 4, 9, 0x54, 8}, 0x60),
       {{kSysDrv, 0x100, 0x20}, {kSos, 0x120, 0x30, 7}, {kToc, 0x150, 4, 8}, {kKdb, 0x154, 8, 9}},
       false});
  all.push_back({"sos v1.2",
                 Kind::kSos,
                 ucode_file(1, 2, {7, 0x20, 0x30, 0, 0, 0, 9, 0x54, 8}, 0x60),
                 {{kSysDrv, 0x100, 0x20}, {kSos, 0x120, 0x30, 7}, {kKdb, 0x154, 8, 9}},
                 false});
  all.push_back({"sos v1.3",
                 Kind::kSos,
                 ucode_file(1, 3, {7, 0x20, 0x30, 8, 0x50, 4,    9, 0x54, 8,    10, 0x60,
                                   4, 11,   0x64, 4, 12,   0x68, 4, 13,   0x6c, 4},
                            0x70),
                 {{kSysDrv, 0x100, 0x20},
                  {kSos, 0x120, 0x30, 7},
                  {kToc, 0x150, 4, 8},
                  {kKdb, 0x154, 8, 9},
                  {kSpl, 0x160, 4, 10},
                  {kRl, 0x164, 4, 11},
                  {kSysDrv, 0x168, 4, 12, 0, true},
                  {kSos, 0x16c, 4, 13, 0, true}},
                 false});
  // {fw_type, fw_version, offset, size}, from the array.
  all.push_back(
      {"sos v2.0",
       Kind::kSos,
       ucode_file(2, 0, {3, 2, 5, 0, 0x20, 1, 6, 0x20, 0x10, 77, 7, 0x30, 4}, 0x34),
       {{kSysDrv, 0x100, 0x20, 5}, {kSos, 0x120, 0x10, 6}, {kUnknown, 0x130, 4, 7, 0, false, 77}},
       true});
  all.push_back({"sos v2.1",
                 Kind::kSos,
                 ucode_file(2, 1, {4, 2, 2, 5, 0, 8, 1, 6, 8, 8, 2, 7, 16, 8, 1, 8, 24, 8}, 32),
                 {{kSysDrv, 0x100, 8, 5},
                  {kSos, 0x108, 8, 6},
                  {kSysDrv, 0x110, 8, 7, 0, true},
                  {kSos, 0x118, 8, 8, 0, true}},
                 true});
  all.push_back({"ta v1.0",
                 Kind::kTa,
                 ucode_file(1, 0, {1, 0, 0x10, 2, 0x10, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0x18),
                 {{kXgmi, 0x100, 0x10, 1}, {kRas, 0x110, 8, 2}},
                 false});
  all.push_back({"ta v2.0",
                 Kind::kTa,
                 ucode_file(2, 0, {3, 1, 5, 0, 8, 3, 6, 8, 4, 8, 7, 12, 4}, 16),
                 {{kAsd, 0x100, 8, 5}, {kRas, 0x108, 4, 6}, {kXgmiAux, 0x10c, 4, 7}},
                 true});
  all.push_back(
      {"toc v1.0", Kind::kToc, ucode_file(1, 0, {3, 0, 0}, 0x40), {{kUcode, 0x100, 0x40}}, false});
  all.push_back(
      {"smu v1.0", Kind::kSmu, ucode_file(1, 0, {0x20000}, 0x40), {{kUcode, 0x100, 0x40}}, false});
  Blob smu20 = ucode_file(2, 0, {0x20000, 0x140, 0x10}, 0x40);
  smu20.fill(0x140, 0x10, 9);
  all.push_back({"smu v2.0",
                 Kind::kSmu,
                 seal(smu20),
                 {{kUcode, 0x100, 0x40}, {kPptable, 0x140, 0x10}},
                 false});
  Blob smu21 = ucode_file(2, 1, {0x20000, 2, 0x140}, 0x40);
  smu21.words(0x140, {3664, 0x158, 4, 36641, 0x15c, 8}).fill(0x158, 12, 9);
  all.push_back({"smu v2.1",
                 Kind::kSmu,
                 seal(smu21),
                 {{kUcode, 0x100, 0x40},
                  {kPptable, 0x158, 4, 0, 0, false, 3664},
                  {kPptable, 0x15c, 8, 0, 0, false, 36641}},
                 false});
  all.push_back({"sdma v1.0",
                 Kind::kSdma,
                 ucode_file(1, 0, {21, 3, 8, 4}, 0x30),
                 {{kUcode, 0x100, 0x30}, {kJumpTable, 0x120, 0x10}},
                 true});
  all.push_back({"sdma v1.1",
                 Kind::kSdma,
                 ucode_file(1, 1, {21, 3, 8, 4, 0x14}, 0x30),
                 {{kUcode, 0x100, 0x30}, {kJumpTable, 0x120, 0x10}},
                 true});
  all.push_back({"sdma v2.0",
                 Kind::kSdma,
                 ucode_file(2, 0, {21, 0x20, 6, 2, 0x120, 0x10, 2, 2}, 0x30),
                 {{kCtxUcode, 0x100, 0x20},
                  {kCtxJumpTable, 0x118, 8},
                  {kCtlUcode, 0x120, 0x10},
                  {kCtlJumpTable, 0x128, 8}},
                 true});
  all.push_back({"sdma v3.0",
                 Kind::kSdma,
                 ucode_file(3, 0, {21, 0x100, 0x30}, 0x30),
                 {{kUcode, 0x100, 0x30}},
                 true});
  all.push_back({"cp v1.0",
                 Kind::kCp,
                 ucode_file(1, 0, {21, 8, 4}, 0x30),
                 {{kUcode, 0x100, 0x30}, {kJumpTable, 0x120, 0x10}},
                 true});
  all.push_back({"cp v2.0",
                 Kind::kCp,
                 ucode_file(2, 0, {21, 0x20, 0x100, 0x10, 0x120, 0x3000, 7}, 0x30),
                 {{kUcode, 0x100, 0x20}, {kData, 0x120, 0x10}},
                 true});
  // Behind 17 words of v2.0: v2.1 {length, 3 × {version, feature, size, offset}}, v2.2 2 × {size,
  // offset}, v2.3 2 × {version, feature, size, offset}, v2.4 5 × {size, offset}.
  std::vector<uint32_t> rlc{21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0x110, 4, 0x114, 4, 0x118, 4, 0x11c};
  std::vector<Expected> parts{{kUcode, 0x100, 0x10},
                              {kRegListFormat, 0x110, 4},
                              {kRegList, 0x114, 4},
                              {kRegListFormatSeparate, 0x118, 4},
                              {kRegListSeparate, 0x11c, 4}};
  const auto add = [&](uint16_t minor) {
    Blob blob = ucode_file(2, minor, rlc, 0x80);
    blob.put<uint32_t>(20, 0x10);
    all.push_back({"rlc v2." + std::to_string(minor), Kind::kRlc, seal(blob), parts, false});
  };
  add(0);
  const auto more = [&](std::initializer_list<uint32_t> words) { rlc.insert(rlc.end(), words); };
  const auto parts_too = [&](std::initializer_list<Expected> list) {
    parts.insert(parts.end(), list);
  };
  more({36, 1, 2, 4, 0x120, 3, 4, 4, 0x124, 5, 6, 4, 0x128});
  parts_too({{kSaveRestoreListCntl, 0x120, 4, 1, 2},
             {kSaveRestoreListGpm, 0x124, 4, 3, 4},
             {kSaveRestoreListSrm, 0x128, 4, 5, 6}});
  add(1);
  more({8, 0x12c, 8, 0x134});
  parts_too({{kRlcIram, 0x12c, 8}, {kRlcDram, 0x134, 8}});
  add(2);
  const std::vector<uint32_t> words22 = rlc;
  const std::vector<Expected> parts22 = parts;
  more({7, 8, 4, 0x13c, 9, 10, 4, 0x140});
  parts_too({{kRlcp, 0x13c, 4, 7, 8}, {kRlcv, 0x140, 4, 9, 10}});
  add(3);
  more({4, 0x144, 4, 0x148, 4, 0x14c, 4, 0x150, 4, 0x154});
  parts_too({{kGlobalTapDelays, 0x144, 4},
             {kSe0TapDelays, 0x148, 4},
             {kSe1TapDelays, 0x14c, 4},
             {kSe2TapDelays, 0x150, 4},
             {kSe3TapDelays, 0x154, 4}});
  add(4);
  rlc = words22;
  parts = parts22;
  more({4, 0x13c, 4, 0x140});
  parts_too({{kRlc1Iram, 0x13c, 4}, {kRlc1Dram, 0x140, 4}});
  add(5);
  all.push_back({"imu v1.0",
                 Kind::kImu,
                 ucode_file(1, 0, {0x20, 0, 0x10, 0x20}, 0x30),
                 {{kImuIram, 0x100, 0x20}, {kImuDram, 0x120, 0x10}},
                 true});
  all.push_back({"mes v1.0",
                 Kind::kMes,
                 ucode_file(1, 0, {5, 0x20, 0x100, 6, 0x10, 0x120, 0x5000, 1, 0x6000, 2}, 0x30),
                 {{kUcode, 0x100, 0x20, 5}, {kData, 0x120, 0x10, 6}},
                 true});
  return all;
}

Result<Ucode> read(Kind kind, const Blob& blob) {
  return parse(kind, Image("a.bin", blob.bytes()));
}

/// The message, which has one line and names the file; "" for success.
std::string error_of(Kind kind, const Blob& blob) {
  const auto result = read(kind, blob);
  if (result) return "";
  EXPECT_TRUE(result.error().message.starts_with("a.bin: ")) << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  return result.error().message;
}
#define EXPECT_ERROR(text, kind, blob) \
  EXPECT_NE(error_of(kind, blob).find(text), std::string::npos) << error_of(kind, blob)

Case named(std::string_view name) {
  for (Case& entry : cases())
    if (entry.name == name) return std::move(entry);
  ADD_FAILURE() << name;
  return {};
}

TEST(Ucode, EveryFormatYieldsItsParts) {
  for (const Case& entry : cases()) {
    const auto ucode = read(entry.kind, entry.blob);
    ASSERT_TRUE(ucode) << entry.name << ": " << ucode.error().message;
    EXPECT_EQ(ucode->header.ucode_version, 0x1234u);
    ASSERT_EQ(ucode->parts.size(), entry.parts.size()) << entry.name;
    for (size_t i = 0; i < entry.parts.size(); ++i) {
      const Expected& expected = entry.parts[i];
      const Part& part = ucode->parts[i];
      EXPECT_EQ(part.id, expected.id) << entry.name << " " << i;
      EXPECT_EQ(part.offset, expected.offset) << entry.name << " " << part_name(part.id);
      EXPECT_EQ(part.bytes.size(), expected.size) << entry.name << " " << part_name(part.id);
      EXPECT_EQ(part.bytes.data(), entry.blob.bytes().data() + expected.offset) << entry.name;
      EXPECT_EQ(part.version, expected.version) << entry.name << " " << part_name(part.id);
      EXPECT_EQ(part.feature_version, expected.feature_version) << entry.name << " " << i;
      EXPECT_EQ(part.is_aux, expected.is_aux) << entry.name << " " << i;
      EXPECT_EQ(part.type, expected.type) << entry.name << " " << i;
      EXPECT_EQ(ucode->find(expected.id, expected.is_aux, expected.type), &part) << entry.name;
    }
  }
}

TEST(Ucode, StartAddressesAndFeatures) {
  const auto cp = read(Kind::kCp, named("cp v2.0").blob);
  ASSERT_TRUE(cp);
  EXPECT_EQ(cp->ucode_start_address, 0x7'0000'3000u);
  EXPECT_EQ(cp->feature_version, 21u);
  const auto mes = read(Kind::kMes, named("mes v1.0").blob);
  ASSERT_TRUE(mes);
  EXPECT_EQ(mes->ucode_start_address, 0x1'0000'5000u);
  EXPECT_EQ(mes->data_start_address, 0x2'0000'6000u);
  const auto smu = read(Kind::kSmu, named("smu v2.1").blob);
  ASSERT_TRUE(smu);
  EXPECT_EQ(smu->ucode_start_address, 0x20000u);
}

TEST(Ucode, ByteByByteShorterIsAnErrorAndNeverACrash) {
  for (const Case& entry : cases()) {
    for (size_t size = 0; size < entry.blob.size(); ++size) {
      // An allocation of that size: sanitizers then see a read behind it.
      const std::vector<std::byte> cut(entry.blob.bytes().begin(),
                                       entry.blob.bytes().begin() + static_cast<long>(size));
      const auto result = parse(entry.kind, Image("a.bin", cut));
      ASSERT_FALSE(result) << entry.name << " " << size;
      EXPECT_EQ(result.error().code, Code::kCorrupt);
      // Told the new size, only what is inside may be read.
      Blob told = entry.blob;
      told.resize(size);
      if (size < 32) continue;
      seal(told);
      const auto short_one = read(entry.kind, told);
      if (!short_one) continue;
      for (const Part& part : short_one->parts) EXPECT_LE(part.offset + part.bytes.size(), size);
    }
  }
}

TEST(Ucode, AnyWordOfTheHeadersMayLie) {
  for (const Case& entry : cases()) {
    for (size_t at = 0; at < 0x100; at += 4) {
      for (const uint32_t value : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 0xfffffff0u}) {
        Blob blob = entry.blob;
        blob.put(at, value);
        if (at != 28) blob.put(28, slow_crc32(blob.bytes().subspan(32)));
        if (const auto result = read(entry.kind, blob)) {
          for (const Part& part : result->parts) {
            EXPECT_GE(part.offset, 32u);
            EXPECT_LE(part.offset + part.bytes.size(), blob.size());
          }
        } else {
          EXPECT_FALSE(error_of(entry.kind, blob).empty());
        }
      }
    }
  }
}

TEST(Ucode, ErrorsNameFileOffsetAndRemedy) {
  Blob blob = named("cp v2.0").blob;
  blob.put<uint32_t>(0, static_cast<uint32_t>(blob.size() + 1));
  EXPECT_ERROR("cut off: it has 304 bytes, size_bytes says 305; install its package again",
               Kind::kCp, blob);
  blob.put<uint32_t>(0, static_cast<uint32_t>(blob.size() - 1));
  EXPECT_ERROR("no cp file", Kind::kCp, blob);
  blob = named("cp v2.0").blob;
  blob.put<uint32_t>(44, 0x11);
  seal(blob);
  EXPECT_ERROR("data (1 × 17 bytes at 0x120)", Kind::kCp, blob);
  blob = named("cp v2.0").blob;
  blob.put<uint32_t>(48, 0x11c);
  seal(blob);
  EXPECT_ERROR("data at 0x11c begins inside ucode (0x20 bytes at 0x100)", Kind::kCp, blob);
  blob = named("cp v2.0").blob;
  blob.put<uint32_t>(48, 0x3b);
  seal(blob);
  EXPECT_ERROR("data at 0x3b lies in the header", Kind::kCp, blob);
  blob = named("cp v2.0").blob;
  blob.put<uint32_t>(24, 59);
  seal(blob);
  EXPECT_ERROR("ucode_array_offset_bytes is 0x3b", Kind::kCp, blob);
  blob = named("cp v2.0").blob;
  blob.put<uint32_t>(4, 31);
  EXPECT_ERROR("header_size_bytes is 31", Kind::kCp, blob);
  blob = named("sdma v2.0").blob;
  blob.put<uint32_t>(40, 7);
  seal(blob);
  EXPECT_ERROR("ctx_jt (0x8 bytes at 0x11c) is not inside ctx_ucode", Kind::kSdma, blob);
}

TEST(Ucode, NewerHeadersAreToldFromWrongKinds) {
  Blob blob = named("sdma v3.0").blob;
  blob.put<uint16_t>(8, 4);
  const auto newer = read(Kind::kSdma, blob);
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code, Code::kUnsupported);
  EXPECT_ERROR("header version 4.0 at 0x8 is newer than 3.0, the newest of sdma files", Kind::kSdma,
               blob);
  // A later version of an older header is as unknown.
  blob.put<uint16_t>(8, 1).put<uint16_t>(10, 2);
  EXPECT_ERROR("header version 1.2 at 0x8 is newer than 1.1", Kind::kSdma, blob);
  blob.put<uint16_t>(8, 0).put<uint16_t>(10, 0);
  EXPECT_ERROR("no sdma file has header version 0.0", Kind::kSdma, blob);
  EXPECT_ERROR("no rlc file has header version 1.0", Kind::kRlc, named("imu v1.0").blob);
}

TEST(Ucode, CrcIsCheckedWhereItIsFilledIn) {
  for (const Case& entry : cases()) {
    Blob blob = entry.blob;
    const size_t last = blob.size() - 1;
    blob.put<uint8_t>(last, static_cast<uint8_t>(blob.get<uint8_t>(last) ^ 0x80));
    if (entry.has_crc) {
      EXPECT_ERROR("CRC-32 from 0x20 on is", entry.kind, blob) << entry.name;
    } else {
      EXPECT_EQ(error_of(entry.kind, blob), "") << entry.name;
    }
  }
  Blob gfx8 = ucode_file(1, 0, {21, 8, 4}, 0x30, 8);
  gfx8.put<uint32_t>(28, 1);
  EXPECT_EQ(error_of(Kind::kCp, gfx8), "");
}

TEST(Ucode, ListsAreBounded) {
  Blob blob = named("sos v2.0").blob;
  blob.put<uint32_t>(32, 14);
  seal(blob);
  EXPECT_ERROR("14 parts at 0x20", Kind::kSos, blob);
  blob.put<uint32_t>(32, 0xffffffff);
  seal(blob);
  EXPECT_ERROR("4294967295 parts", Kind::kSos, blob);
  blob = named("sos v2.1").blob;
  blob.put<uint32_t>(36, 5);
  seal(blob);
  EXPECT_ERROR("psp_aux_fw_bin_index at 0x24 is 5 of 4 parts", Kind::kSos, blob);
  blob = named("sos v2.1").blob;
  blob.put<uint32_t>(36, 4);
  seal(blob);
  EXPECT_ERROR("two parts sys_drv, the second at 0x110", Kind::kSos, blob);
  blob = named("smu v2.1").blob;
  blob.put<uint32_t>(36, 257);
  EXPECT_ERROR("257 pptables at 0x24", Kind::kSmu, blob);
  blob.put<uint32_t>(36, 256);
  EXPECT_ERROR("list of pptables", Kind::kSmu, blob);
}

TEST(Ucode, WhatAFileLacksIsNamed) {
  const auto rlc = read(Kind::kRlc, named("rlc v2.1").blob);
  ASSERT_TRUE(rlc);
  EXPECT_TRUE(rlc->need(PartId::kSaveRestoreListGpm));
  const auto missing = rlc->need(PartId::kRlcIram);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "a.bin: version 0x1234 has no rlc_iram_ucode; take another version of its package");
  const auto smu = read(Kind::kSmu, named("smu v2.1").blob);
  ASSERT_TRUE(smu);
  EXPECT_EQ(smu->need(PartId::kPptable, false, 36641)->size(), 8u);
  EXPECT_NE(smu->need(PartId::kPptable, false, 1).error().message.find("no pptable 1"),
            std::string::npos);
}

TEST(Ucode, CodeWithoutItsJumpTable) {
  const auto cp = read(Kind::kCp, named("cp v1.0").blob);
  ASSERT_TRUE(cp);
  EXPECT_EQ(code_before_jump_table(*cp)->size(), 0x20u);
  Blob blob = named("cp v1.0").blob;
  blob.put<uint32_t>(36, 7);
  const auto middle = read(Kind::kCp, seal(blob));
  ASSERT_TRUE(middle);
  EXPECT_FALSE(code_before_jump_table(*middle));
}

TEST(Ucode, AuxSosForOldPowerManagement) {
  EXPECT_TRUE(needs_aux_sos(0x5572ff));   // 85.114.255
  EXPECT_FALSE(needs_aux_sos(0x557300));  // 85.115.0
}

TEST(Ucode, KindsByName) {
  EXPECT_EQ(kind_of("amdgpu/gc_11_0_0_mec.bin"), Kind::kCp);
  EXPECT_EQ(kind_of("gc_12_0_0_uni_mes.bin"), Kind::kMes);
  EXPECT_EQ(kind_of("gc_11_0_0_mes_2.bin"), Kind::kMes);
  EXPECT_EQ(kind_of("gc_11_0_0_rlc_kicker.bin"), Kind::kRlc);
  EXPECT_EQ(kind_of("gc_11_0_0_rlc_1.bin"), Kind::kRlc);
  EXPECT_EQ(kind_of("psp_13_0_0_sos_kicker.bin"), Kind::kSos);
  EXPECT_EQ(kind_of("smu_13_0_0_kicker.bin"), Kind::kSmu);
  EXPECT_EQ(kind_of("vega20_smc.bin"), Kind::kSmu);
  EXPECT_EQ(kind_of("sdma_6_0_0.bin"), Kind::kSdma);
  EXPECT_EQ(kind_of("psp_13_0_0_ta.bin"), Kind::kTa);
  EXPECT_EQ(kind_of("gc_12_0_0_toc.bin"), Kind::kToc);
  EXPECT_EQ(kind_of("gc_12_0_0_imu.bin"), Kind::kImu);
  EXPECT_EQ(kind_of("vcn_4_0_0.bin"), std::nullopt);
}

TEST(Ucode, RandomDamageNeverLeavesTheFile) {
  std::mt19937 random(7);
  const std::vector<Case> all = cases();
  for (int round = 0; round < 20000; ++round) {
    const Case& entry = all[random() % all.size()];
    Blob blob = entry.blob;
    for (int i = 0; i < 3; ++i) blob.put<uint8_t>(random() % 0x100, static_cast<uint8_t>(random()));
    seal(blob);
    const auto result = read(static_cast<Kind>(random() % 9), blob);
    if (!result) continue;
    for (const Part& part : result->parts) {
      ASSERT_GE(part.bytes.data(), blob.bytes().data() + 32);
      ASSERT_LE(part.offset + part.bytes.size(), blob.size());
    }
  }
}

}  // namespace
}  // namespace bm::firmware::amd
