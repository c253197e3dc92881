#pragma once
// The kernels of tests/cts/kernels.c as code objects.

#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/cpu/cpu_info.h"
#include "runtime/hal/program.h"

namespace bm::test {

/// Names of the objects compiled from kernels.c: "cc_pic", "clang_large", …
inline std::vector<std::string> kernel_variants() {
  std::istringstream text(BM_TEST_KERNEL_VARIANTS);
  return {std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
}

/// `object`: a variant or "undefined". Empty image if the file is missing.
inline hal::CodeObject kernel(std::string_view entry, uint32_t num_buffers, uint32_t num_vars,
                              std::string_view object = "cc_pic") {
  hal::CodeObject code;
  code.entry = entry;
  code.arch = cpu::host_arch_name();
  code.num_buffers = num_buffers;
  code.num_vars = num_vars;
  std::ifstream file(std::string(BM_TEST_KERNELS) + "/" + std::string(object) + ".o",
                     std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  code.image.resize(text.size());
  if (!text.empty()) std::memcpy(code.image.data(), text.data(), text.size());
  return code;
}

template <class T>
uint64_t address(const T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace bm::test
