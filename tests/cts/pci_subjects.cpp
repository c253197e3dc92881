// Modelled AMD cards in other processes, reached as BM_PCI says: two of them, the second one for
// what happens between devices. tests/integration/amd_pci_test.py starts them.

#include <memory>

#include "drivers/amd/device.h"
#include "firmware/store.h"
#include "tests/cts/amd_kernels.h"
#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

template <uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  return amd::open_pci_device(kUnit, "", firmware::default_search());
}

}  // namespace

std::vector<Subject> subjects() {
  return {{"PCI",
           open<0>,
           amd_kernel,
           {{"memory.external", "the model does not reach memory of this process by itself"}},
           {},
           open<1>}};
}

}  // namespace bm::cts
