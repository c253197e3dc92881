#include "firmware/amd/set.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "firmware/manifest.h"
#include "tests/unit/firmware_amd/blob.h"

namespace bm::firmware::amd {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> needed(const ChipId& chip) {
  const auto set = firmware_set(chip);
  EXPECT_TRUE(set) << set.error().message;
  std::vector<std::string> names;
  for (const SetFile& file : set->files)
    if (!file.is_optional) names.push_back(file.name.substr(7));
  std::ranges::sort(names);
  return names;
}

const ChipId kNavi31{{11, 0, 0}, {13, 0, 0}, {13, 0, 0}, {6, 0, 0}, 0x744c, 0xc8};
const ChipId kNavi48{{12, 0, 1}, {14, 0, 3}, {14, 0, 3}, {7, 0, 1}, 0x7550, 0xc0};

TEST(FirmwareSet, OfEveryChip) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(needed(kNavi31), (Names{"gc_11_0_0_imu.bin", "gc_11_0_0_mec.bin", "gc_11_0_0_rlc.bin",
                                    "psp_13_0_0_sos.bin", "sdma_6_0_0.bin", "smu_13_0_0.bin"}));
  EXPECT_EQ(needed({{11, 0, 3}, {13, 0, 10}, {13, 0, 10}, {6, 0, 3}}),
            (Names{"gc_11_0_3_imu.bin", "gc_11_0_3_mec.bin", "gc_11_0_3_rlc.bin",
                   "psp_13_0_10_sos.bin", "sdma_6_0_3.bin", "smu_13_0_10.bin"}));
  EXPECT_EQ(needed({{11, 0, 2}, {13, 0, 7}, {13, 0, 7}, {6, 0, 2}}),
            (Names{"gc_11_0_2_imu.bin", "gc_11_0_2_mec.bin", "gc_11_0_2_rlc.bin",
                   "psp_13_0_7_sos.bin", "sdma_6_0_2.bin", "smu_13_0_7.bin"}));
  EXPECT_EQ(
      needed({{12, 0, 0}, {14, 0, 2}, {14, 0, 2}, {7, 0, 0}}),
      (Names{"gc_12_0_0_imu.bin", "gc_12_0_0_me.bin", "gc_12_0_0_mec.bin", "gc_12_0_0_pfp.bin",
             "gc_12_0_0_rlc.bin", "psp_14_0_2_sos.bin", "sdma_7_0_0.bin", "smu_14_0_2.bin"}));
  EXPECT_EQ(needed(kNavi48), (Names{"gc_12_0_1_imu.bin", "gc_12_0_1_me.bin", "gc_12_0_1_mec.bin",
                                    "gc_12_0_1_pfp.bin", "gc_12_0_1_rlc.bin", "psp_14_0_3_sos.bin",
                                    "sdma_7_0_1.bin", "smu_14_0_3.bin"}));
  EXPECT_EQ(needed({{9, 4, 3}, {13, 0, 6}, {13, 0, 6}, {4, 4, 2}}),
            (Names{"gc_9_4_3_mec.bin", "gc_9_4_3_rlc.bin", "psp_13_0_6_sos.bin", "sdma_4_4_2.bin",
                   "smu_13_0_6.bin"}));
}

TEST(FirmwareSet, NamesOfTargets) {
  const std::map<IpVersion, std::string> archs{{{9, 4, 3}, "gfx942"},   {{11, 0, 0}, "gfx1100"},
                                               {{11, 0, 3}, "gfx1101"}, {{11, 0, 2}, "gfx1102"},
                                               {{12, 0, 0}, "gfx1200"}, {{12, 0, 1}, "gfx1201"}};
  for (const auto& [version, arch] : archs)
    EXPECT_EQ(firmware_set({version, {}, {}, {}})->arch, arch);
  const auto unknown = firmware_set({{10, 3, 0}, {}, {}, {}});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kUnsupported);
  EXPECT_NE(unknown.error().message.find("10.3.0"), std::string::npos);
}

TEST(FirmwareSet, BoardsWithFilesOfTheirOwn) {
  ChipId kicker = kNavi31;
  kicker.pci_device = 0x744b;
  kicker.pci_revision = 0;
  EXPECT_EQ(needed(kicker),
            (std::vector<std::string>{"gc_11_0_0_imu_kicker.bin", "gc_11_0_0_mec.bin",
                                      "gc_11_0_0_rlc_kicker.bin", "psp_13_0_0_sos_kicker.bin",
                                      "sdma_6_0_0.bin", "smu_13_0_0_kicker.bin"}));
  EXPECT_TRUE(is_kicker(0x7551, 0xc8));
  EXPECT_FALSE(is_kicker(0x744b, 1));
  ChipId other = kNavi31;
  other.pci_revision = 0xce;
  EXPECT_TRUE(std::ranges::count(needed(other), "gc_11_0_0_rlc_1.bin"));
}

TEST(FirmwareSet, TheManifestKnowsEveryFile) {
  for (ChipId chip : {kNavi31, kNavi48, ChipId{{11, 0, 3}, {13, 0, 10}, {13, 0, 10}, {6, 0, 3}},
                      ChipId{{11, 0, 2}, {13, 0, 7}, {13, 0, 7}, {6, 0, 2}},
                      ChipId{{12, 0, 0}, {14, 0, 2}, {14, 0, 2}, {7, 0, 0}},
                      ChipId{{9, 4, 3}, {13, 0, 6}, {13, 0, 6}, {4, 4, 2}}}) {
    const auto set = firmware_set(chip);
    ASSERT_TRUE(set);
    for (const SetFile& file : set->files)
      EXPECT_FALSE(versions_of(file.name).empty()) << file.name;
  }
  ChipId kicker = kNavi31;
  kicker.pci_device = 0x744b;
  kicker.pci_revision = 0;
  ChipId kicker12 = kNavi48;
  kicker12.pci_device = 0x7551;
  kicker12.pci_revision = 0xc8;
  ChipId special = kNavi31;
  special.pci_revision = 0xce;
  for (const ChipId& chip : {kicker, kicker12, special}) {
    const auto set = firmware_set(chip);
    ASSERT_TRUE(set);
    for (const SetFile& file : set->files)
      EXPECT_FALSE(versions_of(file.name).empty()) << file.name;
  }
}

TEST(FirmwareSet, OfADiscoveryTable) {
  Discovery table;
  table.ips = {{.hw_id = kGcHwId, .major = 11, .minor = 0, .revision = 3},
               {.hw_id = kMp0HwId, .major = 13, .minor = 0, .revision = 10},
               {.hw_id = kMp1HwId, .major = 13, .minor = 0, .revision = 10}};
  const auto missing = chip_id(table, 0x7470, 0);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("no SDMA0 (hardware id 42)"), std::string::npos);
  table.ips.push_back({.hw_id = kSdma0HwId, .major = 6, .minor = 0, .revision = 3});
  const auto chip = chip_id(table, 0x7470, 0);
  ASSERT_TRUE(chip);
  EXPECT_EQ(firmware_set(*chip)->arch, "gfx1101");
  EXPECT_TRUE(std::ranges::count(needed(*chip), "psp_13_0_10_sos.bin"));
}

TEST(FirmwareSet, WhatIsMissingNamesPackageSuiteAndComponent) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("bm-set-{}", ::getpid());
  fs::create_directories(folder / "amdgpu");
  const Search search{.folders = {folder.string()}};
  const auto set = firmware_set(kNavi48);
  ASSERT_TRUE(set);
  const auto write = [&](const std::string& name, const Blob& blob) {
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(blob.bytes().data()), static_cast<long>(blob.size()));
  };
  std::vector<std::string> lines = check_set(*set, search);
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"missing: ", "amdgpu/gc_12_0_1_mec.bin", "amdgpu/psp_14_0_3_sos.bin",
                           "firmware-amd-graphics", "bookworm-backports", "non-free-firmware"})
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  EXPECT_EQ(lines[0].find("_ta.bin"), std::string::npos) << lines[0];
  // One that is there and no good is told too.
  Blob imu = ucode_file(1, 0, {0x20, 0, 0x10, 0x20}, 0x30, 12);
  imu.put<uint8_t>(0x100, 0xff);
  write("amdgpu/gc_12_0_1_imu.bin", imu);
  lines = check_set(*set, search);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("gc_12_0_1_imu.bin: CRC-32"), std::string::npos) << lines[1];
  fs::remove_all(folder);
}

// AMD's files of these chips have the first two numbers of their names in their headers
// (Package.HeadersHaveTheVersionOfTheName).
TEST(FirmwareSet, AFileOfAnotherBlockVersionIsNoFileOfThisName) {
  const auto set = firmware_set(kNavi48);
  ASSERT_TRUE(set);
  const auto imu = std::ranges::find(set->files, Kind::kImu, &SetFile::kind);
  const std::vector<uint32_t> words{0x20, 0, 0x10, 0x20};
  const Blob own = ucode_file(1, 0, words, 0x30, 12), older = ucode_file(1, 0, words, 0x30, 11);
  Blob later = own;
  later.put<uint16_t>(14, 1);
  EXPECT_TRUE(parse(*imu, Image("imu.bin", own.bytes())));
  for (const Blob& other : {older, later}) {
    const auto ucode = parse(*imu, Image("imu.bin", other.bytes()));
    ASSERT_FALSE(ucode);
    EXPECT_EQ(ucode.error().code, Code::kCorrupt);
    for (const char* part : {"imu.bin: ", "this chip's is 12.0.1", "the package's own file"})
      EXPECT_NE(ucode.error().message.find(part), std::string::npos) << ucode.error().message;
  }
}

}  // namespace
}  // namespace bm::firmware::amd
