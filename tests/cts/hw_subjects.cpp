// Real GPUs: whatever of NV and CUDA this machine has. Label hw: never part of a normal test run.

#include <cstdio>

#include "tests/cts/cts.h"
#include "tests/cts/cuda_kernels.h"
#include "tests/cts/kernels.h"

namespace bm::cts {
namespace {

/// Says on stderr why a device is not among the subjects.
bool is_there(std::string_view name) {
  for (const hal::DriverInfo& driver : hal::builtin_drivers()) {
    if (driver.name != name) continue;
    const auto count = driver.count("");
    if (count && *count > 0) return true;
    std::fprintf(stderr, "skipped: %s: %s\n", driver.name,
                 count ? "no device" : count.error().message.c_str());
    return false;
  }
  std::fprintf(stderr, "skipped: %s is not part of this build\n", std::string(name).c_str());
  return false;
}

}  // namespace

std::vector<Subject> subjects() {
  const std::vector<Exemption> unsupported = {
      {"dispatch.undefined_symbol", "nvrtc refuses undeclared names when it compiles the text"}};
  std::vector<Subject> present;
  if (is_there("NV"))
    present.push_back({"NV", [] { return open_driver("NV"); }, cuda_kernel, unsupported, {}});
  if (is_there("CUDA"))
    present.push_back({"CUDA", [] { return open_driver("CUDA"); }, cuda_kernel, unsupported, {}});
  return present;
}

}  // namespace bm::cts
