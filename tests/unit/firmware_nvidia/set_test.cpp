#include "firmware/nvidia/set.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "firmware/manifest.h"
#include "tests/unit/firmware_nvidia/nv_files.h"

namespace bm::firmware::nvidia {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> parts(std::string_view chip, std::string_view folder) {
  const auto set = firmware_set(chip);
  EXPECT_TRUE(set) << chip;
  const std::string before = fmt::format("nvidia/{}/gsp/", folder), after = "-570.144.bin";
  std::vector<std::string> names;
  for (const SetFile& file : set->files) {
    EXPECT_TRUE(file.name.starts_with(before) && file.name.ends_with(after)) << file.name;
    names.push_back(
        file.name.substr(before.size(), file.name.size() - before.size() - after.size()));
  }
  return names;
}

TEST(FirmwareSet, OfEveryFamily) {
  using Names = std::vector<std::string>;
  const Names loader{"booter_load", "booter_unload", "gen_bootloader", "bootloader", "gsp"};
  const Names fwsec{"booter_load", "booter_unload", "bootloader", "gsp"};
  const Names scrubber{"booter_load", "booter_unload", "scrubber", "bootloader", "gsp"};
  const Names fsp{"fmc", "bootloader", "gsp"};
  EXPECT_EQ(parts("TU104", "tu102"), loader);
  EXPECT_EQ(parts("tu117", "tu116"), loader);
  EXPECT_EQ(parts("ga100", "ga100"), loader);
  EXPECT_EQ(parts("ga106", "ga102"), fwsec);
  EXPECT_EQ(parts("ad104", "ad102"), scrubber);
  EXPECT_EQ(parts("gh100", "gh100"), fsp);
  EXPECT_EQ(parts("gb102", "gb100"), fsp);
  EXPECT_EQ(parts("GB203", "gb202"), fsp);
  EXPECT_TRUE(firmware_set("ga106")->has_fwsec);
  EXPECT_FALSE(firmware_set("gb203")->has_fwsec);
  const auto unknown = firmware_set("gp102");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kUnsupported);
}

TEST(FirmwareSet, ChipsByTheirRegister) {
  EXPECT_EQ(chip_name(0x16, 8).value(), "tu116");
  EXPECT_EQ(chip_name(0x17, 0).value(), "ga100");
  EXPECT_EQ(chip_name(0x19, 4).value(), "ad104");
  EXPECT_EQ(chip_name(0x1b, 2).value(), "gb202");
  EXPECT_EQ(chip_name(0x1a, 0xb).error().code, Code::kUnsupported);
  EXPECT_EQ(chip_name(0x3f, 0xf).error().code, Code::kUnsupported);
}

TEST(FirmwareSet, EveryFileIsInTheManifest) {
  for (const std::string_view chip : known_chips()) {
    const auto set = firmware_set(chip);
    ASSERT_TRUE(set);
    for (const SetFile& file : set->files)
      EXPECT_FALSE(versions_of(file.name).empty()) << file.name;
  }
}

TEST(FirmwareSet, SaysWhatIsMissingAndWhatIsNoGood) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("bm-nvfw-{}", ::getpid());
  const Search search{.folders = {folder.string()}};
  const auto write = [&](std::string_view part, const Bytes& bytes) {
    const fs::path path = folder / fmt::format("nvidia/ad102/gsp/{}-570.144.bin", part);
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  };
  const auto set = firmware_set("ad103");
  ASSERT_TRUE(set);
  fs::create_directories(folder);
  std::vector<std::string> lines = check_set(*set, search);
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"missing: ", "nvidia/ad102/gsp/scrubber-570.144.bin", "gsp-570.144.bin",
                           "firmware-nvidia-graphics", "sid", "non-free-firmware"})
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  for (const char* part : {"booter_load", "booter_unload", "scrubber"})
    write(part, HsFile{}.build());
  write("bootloader", riscv_file(riscv_descriptor()));
  write("gsp", gsp_file(gsp_parts()));
  EXPECT_TRUE(check_set(*set, search).empty());
  write("scrubber", gen_bootloader_file());
  write("gsp", gsp_file({gsp_parts()[0], gsp_parts()[1], gsp_parts()[5]}));
  lines = check_set(*set, search);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("scrubber"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("no signature for ad10x"), std::string::npos) << lines[1];
  std::vector<Part> newer = gsp_parts();
  newer[1].bytes = version_section("580.65.06");
  EXPECT_EQ(check_file(Kind::kGsp, "ad10x", image_of(gsp_file(newer))).error().code,
            Code::kUnsupported);
  EXPECT_TRUE(check_file(Kind::kFmc, "gh100", image_of(fmc_file(fmc_parts()))));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace bm::firmware::nvidia
