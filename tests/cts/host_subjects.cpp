// The devices every machine has.

#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/base/env.h"
#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

Result<std::unique_ptr<hal::Device>> open_driver(std::string_view name) {
  for (const hal::DriverInfo& driver : hal::builtin_drivers())
    if (driver.name == name) return driver.open("", 0, "");
  return fail(Code::kNotFound, "no driver '{}' in this build", name);
}

struct Signature {
  std::string_view name;
  uint32_t buffers, vars;
  uint64_t work_per_block;
};
// `mark` is declared expensive, so that large grids take the pool.
constexpr Signature kSignatures[] = {
    {"saxpy", 3, 2, 64}, {"iota", 1, 2, 64},      {"look_up", 2, 1, 64},  {"sines", 2, 1, 640},
    {"move", 2, 1, 100}, {"increment", 1, 1, 16}, {"mark", 1, 0, 10'000}, {"undefined", 1, 0, 1}};

Result<hal::CodeObject> host_kernel(std::string_view name, const hal::Device& device) {
  for (const Signature& signature : kSignatures) {
    if (signature.name != name) continue;
    const std::string path =
        fmt::format("{}/{}.o", BM_TEST_KERNELS, name == "undefined" ? "undefined" : "cc_pic");
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    if (text.empty()) return fail(Code::kNotFound, "{} is missing", path);
    hal::CodeObject code;
    code.entry = name;
    code.arch = device.arch().name;
    code.num_buffers = signature.buffers;
    code.num_vars = signature.vars;
    code.work_per_block = signature.work_per_block;
    code.image.resize(text.size());
    std::memcpy(code.image.data(), text.data(), text.size());
    return code;
  }
  return fail(Code::kNotFound, "no kernel '{}'", name);
}

}  // namespace

std::vector<Subject> subjects() {
  const auto open_cpu = [] { return open_driver("CPU"); };
  const auto open_pool = [] {
    const ScopedSetting threads("BM_THREADS", "4");
    return open_driver("CPU");
  };
  const auto open_null = [] { return open_driver("NULL"); };
  const auto open_ref = [] { return open_driver("REF"); };
  return {
      {.name = "CPU",
       .open = open_cpu,
       .kernel = host_kernel,
       .unsupported = {},
       .expected_failures = {}},
      {.name = "CPU_4_THREADS",
       .open = open_pool,
       .kernel = host_kernel,
       .unsupported = {},
       .expected_failures = {}},
      {.name = "NULL",
       .open = open_null,
       .kernel = nullptr,
       .unsupported = {{"copy.*", "does no work"}, {"dispatch.*", "does no work"}},
       .expected_failures = {{"queue.patched_copy", "does no work"},
                             {"queue.repeated_replay", "does no work"}}},
      {.name = "REF",
       .open = open_ref,
       .kernel = nullptr,
       .unsupported = {{"dispatch.*", "has no programs"}},
       .expected_failures = {}},
  };
}

}  // namespace bm::cts
