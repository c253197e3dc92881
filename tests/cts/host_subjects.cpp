// The devices every machine has.

#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/kernels.h"

namespace bm::cts {

std::vector<Subject> subjects() {
  const auto open_cpu = [] { return open_driver("CPU"); };
  const auto open_pool = [] {
    const ScopedSetting threads("BM_THREADS", "4");
    return open_driver("CPU");
  };
  const auto open_null = [] { return open_driver("NULL"); };
  const auto open_ref = [] { return open_driver("REF"); };
  const std::vector<Exemption> is_inline = {
      {"cross.removed_wait", "a graph on the calling thread has no wait that could be removed"}};
  return {
      {"CPU", open_cpu, host_kernel, is_inline, {}},
      {"CPU_4_THREADS", open_pool, host_kernel, is_inline, {}},
      // The control of the suite: what passes on a device that does nothing checks nothing.
      {"NULL",
       open_null,
       host_kernel,
       {},
       {{"#copies", "does no work"}, {"#kernels", "does no work"}}},
      {"REF", open_ref, nullptr, {{"#kernels", "has no programs"}}, {}},
  };
}

}  // namespace bm::cts
