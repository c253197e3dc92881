// sim-nv-firmware: writes a folder of files that modelled cards take for firmware.

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tests/unit/nv_gsp/card_rig.h"

int main(int count, char** words) {
  using namespace bm::nv::gsp::test;
  if (count < 3) {
    std::fputs("sim-nv-firmware FOLDER CHIP...: files of bytes that mean nothing\n", stderr);
    return 2;
  }
  for (int i = 2; i < count; ++i) {
    if (std::ranges::none_of(kChips,
                             [&](const char* one) { return one == std::string(words[i]); })) {
      std::fprintf(stderr, "sim-nv-firmware: unknown chip %s\n", words[i]);
      return 1;
    }
    const Files files(words[i]);
    std::filesystem::copy(files.search().folders.front(), words[1],
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }
  return 0;
}
