#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/gpu.h"
#include "tools/bellmetal/bringup/boot_report.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/bringup/sensors.h"
#include "tools/bellmetal/bringup/small_kernel.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

int run_boot(System& system, const BootOptions& options) {
  const bool as_json = options.card.as_json;
  PciRecord::Sink sink;
  std::optional<TraceFile> trace;
  if (!options.trace.empty()) {
    auto made = TraceFile::create(system, options.trace);
    if (!made) return report_file(made.error(), options.trace, as_json);
    trace = std::move(*made);
    sink = trace->sink();
  }
  std::string chosen;
  auto function = open_function(system, options.card, &chosen);
  if (!function) return report(function.error(), as_json);
  const PciIdentity identity = (*function)->identity();
  if (!as_json) fmt::print("{} ({:04x}:{:04x})\n", chosen, identity.vendor, identity.device);
  if (identity.vendor == kNvidiaVendor)
    return boot_nvidia(std::move(*function), options, chosen, trace ? &*trace : nullptr);

  auto record = std::make_shared<PciRecord>(sink);
  StagePrinter printer(*record, amd::am::boot_terms(), as_json);
  auto gpu = amd::am::AmGpu::open(
      std::make_unique<PciRecorder>(std::move(*function), record),
      {.firmware = options.card.search(),
       .always_reset = options.always_reset,
       .watcher = &printer,
       .experimental = settings().amd_experimental,
       .power_limit_w =
           options.power_limit_w != 0 ? options.power_limit_w : settings().amd_power_limit});
  const bool runs_kernel = gpu && (options.runs_kernel || options.has_stats);
  Result<KernelRun> kernel = KernelRun{};
  if (runs_kernel) {
    record->mark("kernel");
    kernel = run_small_kernel(**gpu);
  }
  BootStats stats{.counts = record->counts(), .tables = {}};
  if (gpu) stats.tables = record->uses(0, (*gpu)->page_table_places());
  std::optional<Result<amd::am::Sensors>> sensors;
  if (gpu && options.has_stats) {
    record->mark("sensors");
    sensors = (*gpu)->sensors();
  }
  const uint64_t us = printer.us();

  Json json = {{"function", chosen},
               {"vendor", fmt::format("{:04x}", identity.vendor)},
               {"device", fmt::format("{:04x}", identity.device)},
               {"booted", gpu.has_value()}};
  if (gpu) {
    json["warm"] = (*gpu)->was_warm();
    json["chip"] = (*gpu)->facts().name;
    for (const amd::KeptRecord& kept : (*gpu)->kept_records())
      json["kept"].push_back({{"offset", kept.offset}, {"bytes", kept.bytes}});
  }
  json["time_us"] = us;
  json["stages"] = printer.json();
  if (runs_kernel && kernel)
    json["kernel"] = {{"stored", kernel->value}, {"time_us", kernel->time_us}};
  if (options.has_stats) json["accesses"] = stats.json();
  if (sensors && *sensors) json["sensors"] = sensors_json(**sensors);
  if (sensors && !*sensors) json["sensors"] = {{"error", sensors->error().message}};
  if (!kernel) json["error"] = json_of(kernel.error());
  if (!gpu) json["error"] = json_of(gpu.error());
  if (!as_json) {
    if (gpu)
      fmt::print("booted {} {} in {:.1f} ms\n", (*gpu)->facts().name,
                 (*gpu)->was_warm() ? "warm" : "cold", static_cast<double>(us) / 1000);
    if (runs_kernel && kernel)
      fmt::print("one kernel stored {:#x}, seen after {} us\n", kernel->value, kernel->time_us);
    if (options.has_stats) stats.print();
    if (sensors)
      fmt::print("sensors: {}\n", *sensors ? sensors_text(**sensors) : sensors->error().message);
  }
  const Error error = !gpu ? gpu.error() : !kernel ? kernel.error() : Error{};
  const int code = gpu && kernel ? kOk : exit_code(error.code);
  // Closing is part of the trace.
  gpu = tl::unexpected(Error{});
  record->flush();
  if (trace && !trace->status())
    return report_file(trace->status().error(), options.trace, as_json);
  if (as_json) {
    print_json(json);
    return code;
  }
  return code == kOk ? code : report(error, false);
}

}  // namespace bm::cli
