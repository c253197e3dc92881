// Modelled AMD cards in other processes, reached as BM_PCI says: two of them, the second one for
// what happens between devices. tests/integration/amd_pci_test.py starts them.

#include <memory>

#include "drivers/amd/device.h"
#include "tests/cts/amd_kernels.h"
#include "tests/cts/cts.h"
#include "tests/cts/process_memory.h"

namespace bm::cts {
namespace {

template <uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  return amd::open_device("PCI", kUnit, "");
}

}  // namespace

std::vector<Subject> subjects() {
  Subject subject{"PCI", open<0>, amd_kernel, {}, {}, open<1>};
  exempt_process_memory(subject);
  return {subject};
}

}  // namespace bm::cts
