// Modelled AMD cards in other processes, reached as BM_PCI says: two of them, the second one for
// what happens between devices. tests/integration/amd_pci_test.py starts them.

#include <memory>

#include "drivers/amd/device.h"
#include "tests/cts/amd_kernels.h"
#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

template <uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  return amd::open_device("PCI", kUnit, "");
}

}  // namespace

// Neither remote PCI nor the model behind vfio-user reaches memory of this process that it was
// given no descriptor of, which is what these wrap.
std::vector<Subject> subjects() {
  Subject subject{"PCI", open<0>, amd_kernel, {}, {}, open<1>};
  for (const char* const name : {"memory.external", "cross.freed_inputs", "cross.peer_points",
                                 "cross.chain", "cross.removed_wait", "cross.changed_inputs",
                                 "cross.peer_chain", "cross.scrambled", "fault.bad_imports"})
    subject.unsupported.push_back({name, "the card's side does not reach memory of this process"});
  return {subject};
}

}  // namespace bm::cts
