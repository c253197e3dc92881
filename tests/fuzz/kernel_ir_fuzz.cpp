// Kernels read back from caches and bundles: any bytes either give a kernel that verifies or an
// error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "compiler/ir/kernel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto kernel = bm::ir::deserialize({reinterpret_cast<const char*>(data), size});
  if (!kernel) return 0;
  if (!bm::ir::verify(*kernel)) std::abort();
  // What was accepted survives another trip.
  const std::string bytes = bm::ir::serialize(*kernel);
  const auto again = bm::ir::deserialize(bytes);
  if (!again || bm::ir::serialize(*again) != bytes) std::abort();
  return 0;
}
