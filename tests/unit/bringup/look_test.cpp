// `bellmetal gpu discover`, `gpu firmware` and `gpu regs`: looking at a card that nobody has
// booted.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/unit/bringup/bench.h"

namespace bm::cli {
namespace {

using test::Bench;
using test::Outcome;

TEST(GpuDiscover, ShowsBlocksWithVersionsAndBases) {
  const Bench bench({.chip = "gfx1100"});
  const Outcome outcome = bench.gpu({"discover", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json["vendor"], "1002");
  EXPECT_EQ(json["device"], "744c");
  EXPECT_EQ(json["video_memory_bytes"], uint64_t{4} << 30);
  const auto& blocks = json["blocks"];
  const auto gc = std::ranges::find_if(blocks, [](const auto& b) { return b["block"] == "GC"; });
  ASSERT_NE(gc, blocks.end());
  EXPECT_EQ((*gc)["version"], "11.0.0");
  EXPECT_FALSE((*gc)["base_dwords"].empty());
  EXPECT_EQ((*gc)["harvested"], false);
  bool is_resizable = false;
  for (const auto& bar : json["bars"]) is_resizable |= bar.contains("resizable_bytes");
  EXPECT_TRUE(is_resizable);
  EXPECT_EQ(bench.rig.card->counts().register_writes, 0u) << "looking writes no register";
  const Outcome text = bench.gpu({"discover"});
  for (const char* words : {"BAR 0: 4", "IP discovery table: version 4", "MMHUB", "3.0.0"})
    EXPECT_NE(text.out.find(words), std::string::npos) << words << "\n" << text.out;
}

TEST(GpuFirmware, ListsEveryFileOfTheCardWithVersions) {
  const Bench bench;
  const Outcome outcome = bench.gpu({"firmware", "list", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json["chip"], "gfx1201");
  for (const auto& file : json["files"]) {
    if (file["optional"]) continue;
    EXPECT_TRUE(file["found"]) << file;
    EXPECT_TRUE(file.contains("crc32")) << file;
    EXPECT_FALSE(file["parts"].empty()) << file;
  }
  EXPECT_EQ(bench.gpu({"firmware", "check"}).exit, kOk);
}

TEST(GpuFirmware, WhatIsMissingNamesItsPackage) {
  const Bench bench({.chip = "gfx1100"});
  std::filesystem::remove(std::filesystem::path(bench.rig.folder.path()) /
                          "amdgpu/gc_11_0_0_mec.bin");
  const Outcome check = bench.gpu({"firmware", "check"});
  EXPECT_EQ(check.exit, kUnavailable);
  EXPECT_NE(check.out.find("gc_11_0_0_mec.bin"), std::string::npos) << check.out;
  EXPECT_NE(check.out.find("firmware-amd-graphics"), std::string::npos) << check.out;
  const Outcome list = bench.gpu({"firmware", "list"});
  EXPECT_NE(list.out.find("missing: firmware-amd-graphics"), std::string::npos) << list.out;
}

TEST(GpuFirmware, AFileThatIsThereAndNoGoodIsNotMissing) {
  const Bench bench({.chip = "gfx1100"});
  const auto path = std::filesystem::path(bench.rig.folder.path()) / "amdgpu/gc_11_0_0_mec.bin";
  std::filesystem::resize_file(path, 0);
  const auto row = [&bench] {
    const auto files = bench.gpu({"firmware", "list", "--json"}).json()["files"];
    return *std::ranges::find(files, nlohmann::json("amdgpu/gc_11_0_0_mec.bin"),
                              [](const auto& file) { return file["name"]; });
  };
  EXPECT_EQ(row()["found"], true) << row();
  EXPECT_FALSE(row().contains("packages")) << row();
  const Outcome list = bench.gpu({"firmware", "list"});
  EXPECT_NE(list.out.find("no good: " + path.string() + " is empty"), std::string::npos)
      << list.out;
  EXPECT_EQ(bench.gpu({"boot"}).exit, kBadFile);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(row()["found"], true) << row();
  EXPECT_EQ(bench.gpu({"boot"}).exit, kBadFile) << "not a mistake of the command line";
  std::filesystem::remove(path);
  std::ofstream(path) << "too short";
  const Outcome cut = bench.gpu({"boot"});
  EXPECT_EQ(cut.exit, kBadFile);
  EXPECT_NE(cut.err.find(path.string()), std::string::npos) << cut.err;
}

TEST(GpuFirmware, AFileOfAnotherChipIsNoGood) {
  const Bench bench({.chip = "gfx1100"});
  const auto path = std::filesystem::path(bench.rig.folder.path()) / "amdgpu/gc_11_0_0_mec.bin";
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(12);
    file.put(12);  // ip_version_major, of gfx12
  }
  const Outcome check = bench.gpu({"firmware", "check"});
  EXPECT_EQ(check.exit, kUnavailable) << check.out;
  EXPECT_NE(check.out.find(path.string() + ": its header (at 0xc) is that of a file for block "
                                           "version 12.0"),
            std::string::npos)
      << check.out;
  const Outcome list = bench.gpu({"firmware", "list"});
  EXPECT_NE(list.out.find("no good: " + path.string()), std::string::npos) << list.out;
  const Outcome boot = bench.gpu({"boot"});
  EXPECT_EQ(boot.exit, kBadFile) << boot.err;
  EXPECT_NE(boot.err.find(path.string()), std::string::npos) << boot.err;
}

TEST(GpuFirmware, NvidiasFilesByChip) {
  const Bench bench({.chip = "gfx1200"});  // its folder has none of NVIDIA's
  const auto run = [&](std::vector<std::string> words) {
    for (const std::string& word :
         {std::string("--firmware-dir"), std::string(bench.rig.folder.path())})
      words.push_back(word);
    return test::run_command(words);
  };
  const Outcome check = run({"gpu", "firmware", "check", "--chip", "GA104"});
  EXPECT_EQ(check.exit, kUnavailable) << check.out << check.err;
  for (const char* words : {"nvidia/ga102/gsp/booter_load-570.144.bin", "firmware-nvidia-graphics",
                            "non-free-firmware"})
    EXPECT_NE(check.out.find(words), std::string::npos) << check.out;
  const Outcome list = run({"gpu", "firmware", "list", "--chip", "gb203", "--json"});
  ASSERT_EQ(list.exit, kOk) << list.out << list.err;
  EXPECT_EQ(list.json()["family"], "gb20x");
  EXPECT_EQ(list.json()["fwsec"], false);
  EXPECT_EQ(list.json()["files"].size(), 3u);
}

TEST(GpuFirmware, NeedsNoCardWhereTheChipIsNamed) {
  const Bench bench({.chip = "gfx1200"});
  const Outcome outcome = test::run_command(
      {"gpu", "firmware", "check", "--chip", "gfx1200", "--firmware-dir", bench.rig.folder.path()});
  EXPECT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  EXPECT_EQ(test::run_command({"gpu", "firmware", "check", "--chip", "gfx900"}).exit, kUsage);
}

TEST(GpuRegs, ReadsByNameWithFieldsPatternsAndAddresses) {
  const Bench bench;
  const Outcome one = bench.gpu({"regs", "read", "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", "--json"});
  ASSERT_EQ(one.exit, kOk) << one.out << one.err;
  const auto value = one.json()["registers"][0];
  EXPECT_EQ(value["block"], "NBIF");
  EXPECT_EQ(value["fields"].size(), 1u) << value;
  // Memory size in MiB lies where no table says.
  const auto size = bench.gpu({"regs", "read", "0xde3", "--json"}).json()["registers"][0];
  EXPECT_EQ(size["value"], 4096);
  const auto many = bench.gpu({"regs", "read", "mmhub.*fb_location*", "--json"}).json();
  EXPECT_EQ(many["registers"].size(), 2u) << many;
  const Outcome wrong = bench.gpu({"regs", "read", "NO_SUCH_REGISTER"});
  EXPECT_EQ(wrong.exit, kUsage);
  EXPECT_NE(wrong.err.find("NO_SUCH_REGISTER"), std::string::npos);
}

TEST(GpuRegs, AnAddressThatTheBusDoesNotReachIsNotCutToOneThatItDoes) {
  const Bench bench;
  for (const char* const at : {"0x40000000", "0x10000378c", "0xffffffffffffffff"}) {
    EXPECT_EQ(bench.gpu({"regs", "read", at}).exit, kUsage) << at;
    EXPECT_EQ(bench.gpu({"regs", "write", at, "1", "--yes"}).exit, kUsage) << at;
  }
  EXPECT_EQ(bench.rig.card->counts().register_writes, 0u);
}

TEST(GpuRegs, NothingIsWrittenWithoutYes) {
  const Bench bench;
  const Outcome refused = bench.gpu({"regs", "write", "SCRATCH_REG7", "0x5eed"});
  EXPECT_EQ(refused.exit, kUsage);
  EXPECT_NE(refused.err.find("--yes"), std::string::npos) << refused.err;
  EXPECT_EQ(bench.rig.card->counts().register_writes, 0u);
  const Outcome written = bench.gpu({"regs", "write", "SCRATCH_REG7", "0x5eed", "--yes", "--json"});
  ASSERT_EQ(written.exit, kOk) << written.out;
  EXPECT_EQ(written.json()["registers"][0]["value"], 0x5eed);
}

TEST(GpuRegs, AFieldIsWrittenAndTheOthersStay) {
  const Bench bench;
  ASSERT_EQ(bench.gpu({"regs", "write", "GCVM_CONTEXT0_CNTL", "0x80", "--yes"}).exit, kOk);
  const Outcome outcome =
      bench.gpu({"regs", "write", "GCVM_CONTEXT0_CNTL.enable_context", "1", "--yes", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.json()["registers"][0]["value"], 0x81);
  EXPECT_EQ(bench.gpu({"regs", "write", "GCVM_CONTEXT0_CNTL.enable_context", "2", "--yes"}).exit,
            kUsage);
}

TEST(GpuRegs, DecodesWithoutACard) {
  const Outcome outcome = test::run_command(
      {"gpu", "regs", "decode", "GCVM_CONTEXT0_CNTL", "0x7", "--chip", "gfx1100", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  const auto fields = outcome.json()["registers"][0]["fields"];
  EXPECT_EQ(fields["enable_context"], 1);
  EXPECT_EQ(fields["page_table_depth"], 3);
  // Chips on trial have their tables, too; names are as NVIDIA's, whatever their case.
  for (const char* const chip : {"gfx942", "GFX1201"})
    EXPECT_EQ(
        test::run_command({"gpu", "regs", "decode", "CP_HQD_ACTIVE", "1", "--chip", chip}).exit,
        kOk)
        << chip;
  const Outcome other =
      test::run_command({"gpu", "regs", "decode", "CP_HQD_ACTIVE", "1", "--chip", "gfx900"});
  EXPECT_EQ(other.exit, kUsage);
  for (const char* const known : {"gfx942", "gfx1201", "ad102"})
    EXPECT_NE(other.err.find(known), std::string::npos) << other.err;
  const Outcome unknown =
      test::run_command({"gpu", "regs", "decode", "NO_SUCH", "1", "--chip", "gfx1100"});
  EXPECT_NE(unknown.err.find("regs decode '*' 0 --chip gfx1100"), std::string::npos) << unknown.err;
}

}  // namespace
}  // namespace bm::cli
