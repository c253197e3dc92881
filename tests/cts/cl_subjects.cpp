// OpenCL: the first device of the first platform, with each kind of memory it may have.

#include <cstdio>

#include "drivers/cl/device.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/kernels.h"

namespace bm::cts {
namespace {

Result<hal::CodeObject> text_kernel(std::string_view name, const hal::Device& device) {
  return make_code(name, device, BM_TRY(read_image(BM_CL_KERNELS)));
}

}  // namespace

std::vector<Subject> subjects() {
  if (const auto count = cl::count_devices(""); !count || *count == 0) {
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
