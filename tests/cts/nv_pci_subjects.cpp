// Modelled NVIDIA cards in other processes, reached as BM_PCI says: two of them, the second one for
// what happens between devices. tests/integration/nv_pci_test.py starts them.

#include <memory>

#include "drivers/nv/device.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/nv_kernels.h"
#include "tests/cts/process_memory.h"

namespace bm::cts {
namespace {

template <uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  return nv::open_device("PCI", kUnit, "");
}

}  // namespace

std::vector<Subject> subjects() {
  static const ScopedSetting text("BM_NV_CODE", "ptx");
  Subject subject{"NV_PCI", open<0>, ptx_kernel, ptx_exemptions(), {}, open<1>};
  exempt_process_memory(subject);
  return {subject};
}

}  // namespace bm::cts
