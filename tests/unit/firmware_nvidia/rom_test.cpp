// ROMs: images, the BIT, FWSEC, and what is written into it.

#include <algorithm>

#include <gtest/gtest.h>

#include "firmware/nvidia/fwsec.h"
#include "firmware/nvidia/vbios.h"
#include "tests/unit/firmware_nvidia/nv_files.h"

namespace bm::firmware::nvidia {
namespace {

bool same(std::span<const std::byte> part, const Bytes& bytes) {
  return std::ranges::equal(part, view(bytes));
}
Result<Fwsec> fwsec_of(const RomFile& file, Fusing fusing = Fusing::kProduction) {
  const Rom rom = BM_TRY(parse_rom(image_of(file.bytes)));
  return find_fwsec(rom, fusing);
}
void expect_error(const RomFile& file, Code code, std::string_view part) {
  const auto fwsec = fwsec_of(file);
  ASSERT_FALSE(fwsec) << part;
  EXPECT_EQ(fwsec.error().code, code) << fwsec.error().message;
  EXPECT_NE(fwsec.error().message.find(part), std::string::npos) << fwsec.error().message;
}

TEST(Rom, ImagesBehindPcisLastOne) {
  for (const int ifr : {0, 1, 2, 3}) {
    RomFile file{.ifr_version = ifr};
    file.build();
    const auto rom = parse_rom(image_of(file.bytes));
    ASSERT_TRUE(rom) << rom.error().message;
    EXPECT_EQ(rom->start, file.start);
    ASSERT_EQ(rom->images.size(), 4u);
    EXPECT_EQ(rom->bytes.size(), 0x800u + 0x600 + 0x400 + 0x1000);
    EXPECT_EQ(rom->expansion_offset, 0x600u);
    const uint8_t types[] = {kPcAtImage, kEfiImage, kFwsecImage, kFwsecImage};
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(rom->images[i].code_type, types[i]);
      EXPECT_EQ(rom->images[i].offset, file.images[i] - file.start);
      EXPECT_EQ(rom->images[i].is_last, i == 3);
      EXPECT_EQ(rom->images[i].device, 0x2484);
    }
  }
}

TEST(Rom, ANotebooksImageEndsIt) {
  for (const bool says_so : {true, false}) {
    RomFile file{.has_nbsi = true, .nbsi_says_last = says_so};
    const auto rom = parse_rom(image_of(file.build().bytes));
    ASSERT_TRUE(rom) << rom.error().message;
    ASSERT_EQ(rom->images.size(), 5u);
    EXPECT_EQ(rom->images[4].code_type, kNbsiImage);
    EXPECT_FALSE(rom->images[4].has_extension);
    EXPECT_EQ(rom->images[4].size, 0x200u);
    EXPECT_TRUE(rom->images[4].is_last);
    EXPECT_TRUE(find_fwsec(*rom));
  }
}

// Nobody says which image is the last one, and behind it lies what flash was erased to.
TEST(Rom, ErasedFlashBehindFwsecEndsIt) {
  RomFile file;
  file.build();
  set<uint8_t>(file.bytes, file.images[3] + 0x39, uint8_t{0});
  set<uint8_t>(file.bytes, file.images[3] + 0x4a, uint8_t{0});
  file.bytes.resize(0x2200);
  EXPECT_FALSE(parse_rom(image_of(file.bytes))) << "more may follow where nobody has looked";
  file.bytes.resize(0x4000, 0xff);
  const auto rom = parse_rom(image_of(file.bytes));
  ASSERT_TRUE(rom) << rom.error().message;
  EXPECT_EQ(rom->images.size(), 4u);
  EXPECT_TRUE(find_fwsec(*rom));
}

TEST(Rom, EveryByteThatIsMissingIsMissed) {
  for (const int ifr : {0, 3}) {
    RomFile file{.ifr_version = ifr};
    file.build();
    const size_t end = file.start + 0x2200;
    for (size_t size = 0; size < end; ++size) {
      const auto rom = parse_rom(Image("rom", view(file.bytes).first(size)));
      ASSERT_FALSE(rom) << size;
      ASSERT_EQ(rom.error().code, Code::kCorrupt);
      ASSERT_EQ(rom.error().message.find("rom: "), 0u) << rom.error().message;
    }
    EXPECT_TRUE(parse_rom(Image("rom", view(file.bytes).first(end))));
  }
}

TEST(Rom, HeadersThatLeadNowhereAreRefused) {
  const auto refuses = [](const std::function<void(RomFile&)>& damage, Code code,
                          std::string_view why, int ifr = 0) {
    RomFile file{.ifr_version = ifr};
    damage(file.build());
    const auto rom = parse_rom(image_of(file.bytes));
    ASSERT_FALSE(rom) << why;
    EXPECT_EQ(rom.error().code, code);
    EXPECT_NE(rom.error().message.find(why), std::string::npos) << rom.error().message;
  };
  const auto put = [](size_t image, size_t at, auto value) {
    return [=](RomFile& file) { set(file.bytes, file.images[image] + at, value); };
  };
  refuses(put(0, 0, uint32_t{0x12345678}), Code::kCorrupt, "no ROM");
  refuses(put(1, 0, uint16_t{0x1234}), Code::kCorrupt, "no image at 0x800");
  refuses(put(2, 0x24, uint8_t{'X'}), Code::kCorrupt, "no PCI data structure");
  refuses(put(2, 0x18, uint16_t{0xffff}), Code::kCorrupt, "PCI data");
  refuses(put(2, 0x48, uint16_t{0}), Code::kCorrupt, "no size");
  refuses(put(2, 0x48, uint16_t{0xffff}), Code::kCorrupt, "image of type 0xe0");
  refuses([](RomFile& file) { set<uint8_t>(file.bytes, 5, 4); }, Code::kUnsupported, "version 4",
          3);
  refuses([](RomFile& file) { set<uint8_t>(file.bytes, 0x1080, 0); }, Code::kCorrupt, "directory",
          3);
  refuses([](RomFile& file) { set<uint32_t>(file.bytes, 0x1088, 0x3002); }, Code::kCorrupt,
          "no multiple", 3);
  refuses([](RomFile& file) { set<uint32_t>(file.bytes, 0x40, 0xffffffff); }, Code::kCorrupt,
          "ROM directory", 3);
}

TEST(Bit, OneWhoseSumIsWrongIsTakenWhereThereIsNoOther) {
  RomFile file;
  file.build();
  set<uint8_t>(file.bytes, file.bit + 11, static_cast<uint8_t>(file.bytes[file.bit + 11] + 1));
  const auto rom = parse_rom(image_of(file.bytes));
  ASSERT_TRUE(rom);
  const auto bit = find_bit(*rom);
  ASSERT_TRUE(bit) << bit.error().message;
  EXPECT_EQ(bit->tokens.size(), 3u);
}

TEST(Bit, TokensAndVersion) {
  for (const uint8_t token_bytes : {uint8_t{6}, uint8_t{8}}) {
    RomFile file{.token_bytes = token_bytes};
    const auto rom = parse_rom(image_of(file.build().bytes));
    ASSERT_TRUE(rom);
    const auto bit = find_bit(*rom);
    ASSERT_TRUE(bit) << bit.error().message;
    EXPECT_EQ(bit->offset, 0x1b0u);
    ASSERT_EQ(bit->tokens.size(), 3u);
    EXPECT_EQ(bit->tokens[2].id, kFalconDataToken);
    EXPECT_EQ(bit->tokens[2].pointer, 0x260u);
    EXPECT_EQ(vbios_version(*rom, *bit), "94.02.71.00.5e");
    const auto entries = falcon_ucodes(*rom, *bit);
    ASSERT_TRUE(entries) << entries.error().message;
    ASSERT_EQ(entries->size(), 3u);
    EXPECT_EQ((*entries)[2].application, 0x85);
    EXPECT_EQ((*entries)[2].target, 7);
    EXPECT_EQ((*entries)[2].descriptor, file.desc - file.start);
  }
  RomFile file;
  file.build();
  set<uint8_t>(file.bytes, file.bit + 2, uint8_t{'X'});
  expect_error(file, Code::kCorrupt, "no BIT");
  file.build();
  set<uint8_t>(file.bytes, file.bit + 9, 5);
  file.fix_bit_sum();
  expect_error(file, Code::kCorrupt, "have 5 bytes");
  file.build();
  set<uint8_t>(file.bytes, file.tokens + 12 + 1, 1);
  expect_error(file, Code::kUnsupported, "no falcon data");
  file.build();
  set<uint32_t>(file.bytes, file.start + 0x260, 0xfffffff0);
  expect_error(file, Code::kCorrupt, "table of falcons");
  file.build();
  set<uint8_t>(file.bytes, file.table, 2);
  expect_error(file, Code::kUnsupported, "version 2");
}

TEST(Fwsec, VersionThree) {
  RomFile file{.ifr_version = 3};
  const auto fwsec = fwsec_of(file.build());
  ASSERT_TRUE(fwsec) << fwsec.error().message;
  EXPECT_EQ(fwsec->descriptor_version, 3);
  EXPECT_EQ(fwsec->application, 0x85);
  EXPECT_TRUE(same(fwsec->code, file.code_bytes));
  EXPECT_TRUE(same(fwsec->data, file.data_bytes));
  EXPECT_EQ(fwsec->code_virtual, 0x2000u);
  EXPECT_EQ(fwsec->engine_id_mask, 0x400);
  EXPECT_EQ(fwsec->ucode_id, 9);
  EXPECT_EQ(fwsec->signature_at, RomFile::kSignature);
  ASSERT_EQ(fwsec->signatures.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(same(fwsec->signatures[i], pattern(384, 200 + i)));
}

TEST(Fwsec, VersionTwo) {
  RomFile file{.descriptor = 2};
  const auto fwsec = fwsec_of(file.build());
  ASSERT_TRUE(fwsec) << fwsec.error().message;
  EXPECT_EQ(fwsec->descriptor_version, 2);
  EXPECT_TRUE(same(fwsec->code, file.code_bytes));
  EXPECT_TRUE(same(fwsec->data, file.data_bytes));
  EXPECT_EQ(fwsec->entry, 0x10u);
  EXPECT_EQ(fwsec->secure, (Range{0x100, 0x400}));
  EXPECT_TRUE(fwsec->signatures.empty());
}

TEST(Fwsec, ApplicationsByFusing) {
  RomFile file{.application = 0x05};
  EXPECT_TRUE(fwsec_of(file.build()));
  EXPECT_TRUE(fwsec_of(file, Fusing::kDebug));
  file.application = 0x45;
  file.before.clear();
  expect_error(file.build(), Code::kNotFound, "0x85");
  EXPECT_TRUE(fwsec_of(file, Fusing::kDebug));
  // The vendor's module passes over entries that it cannot read.
  file.application = 0x85;
  file.before = {0x85};
  EXPECT_TRUE(fwsec_of(file.build()));
}

TEST(Fwsec, SizesThatLieAreRefused) {
  struct Case {
    uint8_t descriptor;
    size_t at;
    uint32_t value;
    Code code;
  };
  const Case cases[] = {
      {3, 0, 0x04ac0300, Code::kUnsupported},                                          // no version
      {3, 0, 0x04ac0401, Code::kUnsupported}, {3, 0, 0x002b0301, Code::kUnsupported},  // too short
      {3, 0, 0x04ab0301, Code::kCorrupt},  // too short for its signatures
      {3, 4, 0x600, Code::kCorrupt},       // stored
      {3, 8, 0x1a0, Code::kCorrupt},       // signature over the end of data
      {3, 8, 0xfffffff0, Code::kCorrupt},     {3, 20, 0xfffffff0, Code::kCorrupt},  // code
      {3, 32, 0xfffffff0, Code::kCorrupt},                                          // data
      {2, 24, 0xfffffff0, Code::kCorrupt},                                          // code
      {2, 40, 0xfffffff0, Code::kCorrupt},                                          // data's place
      {2, 48, 0xfffffff0, Code::kCorrupt},                                          // data
      {2, 36, 0x501, Code::kCorrupt},                                               // secure code
      {2, 32, 0xfff, Code::kCorrupt},      // before the code
      {2, 32, 0x1200, Code::kCorrupt},     // over its end
      {2, 20, 0x100, Code::kUnsupported},  // base
      {2, 44, 0xffffff00, Code::kUnsupported}};
  for (const Case& one : cases) {
    RomFile file{.descriptor = one.descriptor};
    file.build();
    set(file.bytes, file.desc + one.at, one.value);
    const auto fwsec = fwsec_of(file);
    ASSERT_FALSE(fwsec) << int{one.descriptor} << " " << one.at << " " << one.value;
    EXPECT_EQ(fwsec.error().code, one.code) << one.at << ": " << fwsec.error().message;
  }
}

TEST(Fwsec, FusesChooseTheSignature) {
  RomFile file;  // versions 0, 1 and 3
  const auto fwsec = fwsec_of(file.build());
  ASSERT_TRUE(fwsec);
  EXPECT_EQ(signature_index(*fwsec, 0).value(), 0u);
  EXPECT_EQ(signature_index(*fwsec, 1).value(), 1u);
  EXPECT_EQ(signature_index(*fwsec, 7).value(), 2u);
  for (const uint32_t fuses : {3u, 0xfu, 0xffffu, 0xffffffffu})
    EXPECT_EQ(signature_index(*fwsec, fuses).error().code, Code::kUnsupported) << fuses;
  file.versions = 0x1f;  // more than there are signatures
  const auto lying = fwsec_of(file.build());
  ASSERT_TRUE(lying);
  EXPECT_EQ(signature_index(*lying, 8).error().code, Code::kCorrupt);
}

/// What s_prepareForFwsec_TU102 writes.
Bytes frts_input() {
  Bytes input;
  words(input, 0, {1, 24, 0, 0, 0, 2, 1, 20, 0x12345, 0x100, 2});
  return input;
}

TEST(Fwsec, FrtsAndSbAreWrittenAndNothingElse) {
  for (const uint8_t descriptor : {uint8_t{2}, uint8_t{3}}) {
    RomFile file{.descriptor = descriptor};
    const auto fwsec = fwsec_of(file.build());
    ASSERT_TRUE(fwsec);
    Bytes expected = file.data_bytes;
    expected.resize(0x400);
    if (descriptor == 3)
      std::ranges::copy(pattern(384, 201), expected.begin() + RomFile::kSignature);
    Bytes code = file.code_bytes;
    code.resize(0x500);
    Bytes with_frts = expected;
    std::ranges::copy(frts_input(), with_frts.begin() + RomFile::kInput);
    set<uint32_t>(with_frts, RomFile::kMapper + 44, 0x15);
    const auto frts =
        prepare(*fwsec, {.frts_address = 0x12345000, .frts_size = 0x100000, .fuse_register = 1});
    ASSERT_TRUE(frts) << frts.error().message;
    EXPECT_TRUE(same(frts->code, code));
    EXPECT_TRUE(same(frts->data, with_frts));
    Bytes with_sb = expected;
    std::copy_n(frts_input().begin(), 24, with_sb.begin() + RomFile::kInput);
    set<uint32_t>(with_sb, RomFile::kMapper + 44, 0x19);
    const auto sb = prepare(*fwsec, {.command = FwsecCommand::kSb, .fuse_register = 1});
    ASSERT_TRUE(sb) << sb.error().message;
    EXPECT_TRUE(same(sb->data, with_sb));
  }
}

TEST(Fwsec, RequestsAndMappersThatDoNotFitAreRefused) {
  RomFile file;
  const auto fwsec = fwsec_of(file.build());
  ASSERT_TRUE(fwsec);
  for (const auto& [address, size] : {std::pair<uint64_t, uint64_t>{0, 0x100000},
                                      {0x1000, 0},
                                      {0x1001, 0x1000},
                                      {0x1000, 0x1800},
                                      {uint64_t{1} << 44, 0x1000}}) {
    const auto ready = prepare(*fwsec, {.frts_address = address, .frts_size = size});
    ASSERT_FALSE(ready) << address;
    EXPECT_EQ(ready.error().code, Code::kInvalidArgument);
  }
  struct Case {
    size_t at;
    uint32_t value;
    Code code;
  };
  for (const Case& one : {Case{RomFile::kMapper, 0, Code::kUnsupported},
                          {RomFile::kMapper + 4, 0x00400004, Code::kUnsupported},
                          {RomFile::kMapper + 8, 0x2f0, Code::kCorrupt},
                          {RomFile::kMapper + 8, 0xffffffe0, Code::kCorrupt},
                          {RomFile::kMapper + 12, 43, Code::kUnsupported},
                          {RomFile::kInterface, 0x02080402, Code::kUnsupported},
                          {RomFile::kInterface, 0x01080401, Code::kCorrupt},
                          {RomFile::kInterface + 16, 0x2e0, Code::kCorrupt},
                          {RomFile::kInterface + 16, 0xffffffff, Code::kCorrupt}}) {
    file.build();
    set(file.bytes, file.data + one.at, one.value);
    const auto damaged = fwsec_of(file);
    ASSERT_TRUE(damaged) << one.at;
    const auto ready = prepare(*damaged, {.frts_address = 0x1000, .frts_size = 0x1000});
    ASSERT_FALSE(ready) << one.at << " " << one.value;
    EXPECT_EQ(ready.error().code, one.code) << ready.error().message;
  }
}

}  // namespace
}  // namespace bm::firmware::nvidia
