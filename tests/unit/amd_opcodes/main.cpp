// usage: amd_opcode_report FOLDER: goes through all code objects NAME.CHIP.o that BM_AMD_DUMP left.
// Exit 1 if something emitted is not verified, or nothing was found.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/unit/amd_opcodes/report.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: amd_opcode_report FOLDER\n");
    return 2;
  }
  bm::test::OpcodeReport report;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    const std::filesystem::path name = entry.path().filename();
    if (name.extension() != ".o") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const std::string chip = name.stem().extension().string().substr(1);
    const bm::Status done = bm::test::look_at(std::as_bytes(std::span(bytes)), chip, report);
    if (!done) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), done.error().message.c_str());
      return 1;
    }
  }
  std::printf("%s", bm::test::to_string(report).c_str());
  for (const auto& [name, times] : report.opcodes)
    std::printf("%8llu %s\n", static_cast<unsigned long long>(times), name.c_str());
  return report.kernels == 0 || !report.unverified.empty() ? 1 : 0;
}
