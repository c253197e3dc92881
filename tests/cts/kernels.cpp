#include "tests/cts/kernels.h"

#include <cstring>
#include <fstream>
#include <iterator>

namespace bm::cts {

Result<hal::CodeObject> make_code(std::string_view name, const hal::Device& device,
                                  std::span<const std::byte> image) {
  for (const KernelRow& row : kKernelTable) {
    if (row.name != name) continue;
    const bool has_groups = device.arch().max_block > 1;
    hal::CodeObject code;
    code.entry = name;
    code.arch = device.arch().name;
    code.image.assign(image.begin(), image.end());
    code.num_buffers = row.buffers;
    code.num_vars = row.vars;
    code.block = {.x = has_groups ? row.threads : 1};
    code.work_per_block = row.host_work;
    return code;
  }
  return fail(Code::kNotFound, "no kernel '{}'", name);
}

Result<std::vector<std::byte>> read_image(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.empty()) return fail(Code::kNotFound, "{} is missing", path);
  std::vector<std::byte> image(text.size());
  std::memcpy(image.data(), text.data(), text.size());
  return image;
}

Result<hal::CodeObject> host_kernel(std::string_view name, const hal::Device& device) {
  const char* const path =
      name == "undefined" ? BM_TEST_KERNELS "/undefined.o" : BM_TEST_KERNELS "/cc_pic.o";
  return make_code(name, device, BM_TRY(read_image(path)));
}

Result<std::unique_ptr<hal::Device>> open_driver(std::string_view name) {
  for (const hal::DriverInfo& driver : hal::builtin_drivers())
    if (driver.name == name) return driver.open("", 0, "");
  return fail(Code::kNotFound, "no driver '{}' in this build", name);
}

}  // namespace bm::cts
