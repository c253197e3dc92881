// Modelled NVIDIA cards in other processes, reached as BM_PCI says: two of them, the second one for
// what happens between devices. tests/integration/nv_pci_test.py starts them.

#include <memory>

#include "drivers/nv/device.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/nv_kernels.h"

namespace bm::cts {
namespace {

template <uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  return nv::open_device("PCI", kUnit, "");
}

}  // namespace

// Neither remote PCI nor the model behind vfio-user reaches memory of this process that it was
// given no descriptor of, which is what these wrap.
std::vector<Subject> subjects() {
  static const ScopedSetting text("BM_NV_CODE", "ptx");
  Subject subject{"NV_PCI", open<0>, ptx_kernel, ptx_exemptions(), {}, open<1>};
  for (const char* const name : {"memory.external", "cross.freed_inputs", "cross.peer_points",
                                 "cross.chain", "cross.removed_wait", "cross.changed_inputs",
                                 "cross.peer_chain", "cross.scrambled", "fault.bad_imports"})
    subject.unsupported.push_back({name, "the card's side does not reach memory of this process"});
  return {subject};
}

}  // namespace bm::cts
