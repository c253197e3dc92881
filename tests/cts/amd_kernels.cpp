#include "tests/cts/amd_kernels.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "compiler/toolchain/toolchain.h"
#include "tests/cts/kernels.h"

namespace bm::cts {
namespace {

/// Calls what no kernel may: the object is left with a symbol that nobody defines.
constexpr std::string_view kUndefined = R"ll(
target triple = "amdgcn-amd-amdhsa"
declare i32 @system(ptr)
define amdgpu_kernel void @undefined(ptr addrspace(1) %out) {
  %done = call i32 @system(ptr null)
  store i32 %done, ptr addrspace(1) %out
  ret void
}
)ll";

}  // namespace

Result<hal::CodeObject> amd_kernel(std::string_view name, const hal::Device& device) {
  // Compiling takes longer than most cases.
  static std::mutex mutex;
  static std::map<std::string, std::vector<std::byte>> images;
  const bool is_undefined = name == "undefined";
  const std::string key = device.arch().name + (is_undefined ? " undefined" : "");
  const std::lock_guard lock(mutex);
  if (!images.contains(key)) {
    const std::vector<std::byte> file = BM_TRY(read_image(BM_CTS_AMDGPU));
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    images[key] = BM_TRY(compiler::llvm_compile(is_undefined ? kUndefined : text,
                                                compiler::target_info(device.arch())));
  }
  return make_code(name, device, images[key]);
}

}  // namespace bm::cts
