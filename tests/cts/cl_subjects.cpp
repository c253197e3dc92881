// OpenCL: the first device of the first platform, with each kind of memory it may have.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "drivers/cl/device.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

struct Signature {
  std::string_view name;
  uint32_t buffers, vars, threads;
};
constexpr Signature kSignatures[] = {
    {"saxpy", 3, 2, 64}, {"iota", 1, 2, 64},      {"look_up", 2, 1, 64}, {"sines", 2, 1, 64},
    {"move", 2, 1, 64},  {"increment", 1, 1, 64}, {"mark", 1, 0, 1}};

Result<hal::CodeObject> text_kernel(std::string_view name, const hal::Device& device) {
  for (const Signature& signature : kSignatures) {
    if (signature.name != name) continue;
    std::ifstream file(BM_CL_KERNELS, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    if (text.empty()) return fail(Code::kNotFound, "{} is missing", BM_CL_KERNELS);
    hal::CodeObject code;
    code.entry = name;
    code.arch = device.arch().name;
    code.num_buffers = signature.buffers;
    code.num_vars = signature.vars;
    code.block = {.x = signature.threads};
    code.image.resize(text.size());
    std::memcpy(code.image.data(), text.data(), text.size());
    return code;
  }
  return fail(Code::kNotFound, "no kernel '{}'", name);
}

}  // namespace

std::vector<Subject> subjects() {
  if (const auto count = cl::count_units(""); !count || *count == 0) {
    std::fprintf(stderr, "skipped: %s\n",
                 count ? "no OpenCL device" : count.error().message.c_str());
    return {};
  }
  const std::vector<Exemption> unsupported = {
      {"dispatch.undefined_symbol", "OpenCL C refuses undeclared names when it compiles the text"}};
  const auto fine = [] { return cl::open_device("", 0, ""); };
  const auto coarse = [] {
    const ScopedSetting svm("BM_CL_SVM", "1");
    return cl::open_device("", 0, "");
  };
  const auto objects = [] {
    const ScopedSetting svm("BM_CL_SVM", "0");
    return cl::open_device("", 0, "");
  };
  return {{"CL", fine, text_kernel, unsupported, {}},
          {"CL_COARSE_SVM", coarse, text_kernel, unsupported, {}},
          {"CL_MEM", objects, text_kernel, unsupported, {}}};
}

}  // namespace bm::cts
