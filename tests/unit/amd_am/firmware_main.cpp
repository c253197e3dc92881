// sim-amd-firmware: writes a folder of files that modelled cards take for firmware.

#include <cstdio>
#include <filesystem>

#include "tests/unit/amd_am/firmware_files.h"

int main(int count, char** words) {
  if (count < 3) {
    std::fputs("sim-amd-firmware FOLDER CHIP...: files of bytes that mean nothing\n", stderr);
    return 2;
  }
  std::filesystem::create_directories(words[1]);
  bm::test::FirmwareFolder folder(words[1]);
  for (int i = 2; i < count; ++i) {
    if (folder.write_chip(words[i])) continue;
    std::fprintf(stderr, "sim-amd-firmware: unknown chip %s\n", words[i]);
    return 1;
  }
  return 0;
}
