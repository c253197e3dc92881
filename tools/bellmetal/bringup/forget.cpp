// `gpu forget`: what is kept for a hot restart becomes free.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/gpu.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

/// The card is booted for it: its table is read by a boot alone. A cold boot keeps nothing anyway.
int run_forget(System& system, const CardOptions& options) {
  std::string chosen;
  auto function = open_function(system, options, &chosen);
  if (!function) return report(function.error(), options.as_json);
  if (const PciIdentity identity = (*function)->identity(); identity.vendor == kNvidiaVendor)
    return report({Code::kUnsupported,
                   fmt::format("{} ({:04x}:{:04x}) keeps nothing: hot restart is for AMD cards",
                               chosen, identity.vendor, identity.device)},
                  options.as_json);
  auto gpu = amd::am::AmGpu::open(
      std::move(*function),
      {.firmware = options.search(), .experimental = settings().amd_experimental});
  if (!gpu) return report(gpu.error(), options.as_json);
  const size_t records = (*gpu)->kept_records().size();
  const auto bytes = (*gpu)->forget_all_but({});
  if (!bytes) return report(bytes.error(), options.as_json);
  if (options.as_json)
    print_json({{"function", chosen}, {"forgotten", records}, {"bytes", *bytes}});
  else if (records == 0)
    fmt::print("{}: nothing is kept\n", chosen);
  else
    fmt::print("{}: {} of {} kept ranges are free again\n", chosen, human_bytes(*bytes), records);
  return kOk;
}

}  // namespace bm::cli
