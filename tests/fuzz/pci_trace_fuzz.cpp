// Traces of a PCI function, ours and the kernel's: any text parses into accesses that print again,
// or fails with a message.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "drivers/transport/mmiotrace.h"
#include "drivers/transport/pci_trace.h"
#include "runtime/base/check.h"

namespace {

void check(const bm::Result<bm::PciTrace>& trace) {
  if (!trace) {
    BM_CHECK(!trace.error().message.empty());
    return;
  }
  for (const bm::PciAccess& access : trace->accesses) BM_CHECK(bm::to_line(access).ends_with('\n'));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(bm::parse_pci_trace(text));
  check(bm::import_mmiotrace(text));
  return 0;
}
