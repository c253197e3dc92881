// NVIDIA's own files and ROMs of cards, where there are some: the judge of the readers that we
// wrote for our own.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "firmware/nvidia/fwsec.h"
#include "firmware/nvidia/set.h"
#include "firmware/nvidia/vbios.h"

namespace bm::firmware::nvidia {
namespace {

namespace fs = std::filesystem;

TEST(Package, EveryFileOfEveryChipParses) {
  const Search search = default_search();
  int files = 0;
  for (const std::string_view chip : known_chips()) {
    const auto set = firmware_set(chip);
    ASSERT_TRUE(set);
    for (const SetFile& wanted : set->files) {
      const auto file = load(wanted.name, search);
      if (!file && file.error().code == Code::kNotFound) continue;
      ASSERT_TRUE(file) << file.error().message;
      const Status status = check_file(wanted.kind, set->family, Image(file->path, file->bytes));
      EXPECT_TRUE(status) << status.error().message;
      if (file->row == nullptr) std::printf("%s: not of the manifest\n", file->path.c_str());
      ++files;
    }
  }
  if (files == 0)
    GTEST_SKIP()
        << "no nvidia folder with files of " << kFirmwareVersion << " in "
        << fmt::format("{}", fmt::join(search.folders, ", "))
        << "; unpack firmware-nvidia-graphics and name its lib/firmware in BM_FIRMWARE_DIR";
  std::printf("%d files\n", files);
}

TEST(Package, RomsParse) {
  const char* const folder = std::getenv("BM_NVIDIA_ROMS");
  if (folder == nullptr) GTEST_SKIP() << "BM_NVIDIA_ROMS names no folder of *.rom files";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".rom") continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    const auto rom =
        parse_rom(Image(entry.path().filename().string(), std::as_bytes(std::span(text))));
    ASSERT_TRUE(rom) << rom.error().message;
    const auto bit = find_bit(*rom);
    ASSERT_TRUE(bit) << bit.error().message;
    const auto fwsec = find_fwsec(*rom);
    ASSERT_TRUE(fwsec) << fwsec.error().message;
    const auto mapper = find_dmem_mapper(*fwsec);
    ASSERT_TRUE(mapper) << mapper.error().message;
    const auto ready = prepare(*fwsec, {.frts_address = 0x1ff00000, .frts_size = 0x100000});
    EXPECT_TRUE(ready) << ready.error().message;
    std::printf(
        "%s: %s, %zu images from %#lx, FWSEC v%d: code %#zx, data %#zx, %zu signatures "
        "(%#x), input %#x + %#x\n",
        rom->name.c_str(), vbios_version(*rom, *bit).c_str(), rom->images.size(),
        static_cast<unsigned long>(rom->start), fwsec->descriptor_version, fwsec->code.size(),
        fwsec->data.size(), fwsec->signatures.size(), fwsec->signature_versions,
        mapper->command_in.offset, mapper->command_in.size);
  }
}

}  // namespace
}  // namespace bm::firmware::nvidia
