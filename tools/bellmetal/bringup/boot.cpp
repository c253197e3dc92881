#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/gpu.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/sensors.h"
#include "tools/bellmetal/bringup/small_kernel.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using amd::am::Stage;

/// Prints stages while they happen, so that the one that takes the machine with it is seen.
class StagePrinter final : public amd::am::StageWatcher {
 public:
  StagePrinter(PciRecord& record, bool is_quiet) : record_(record), is_quiet_(is_quiet) {}

  void stage_begins(std::string_view name) override {
    record_.mark(fmt::format("stage {}", name));
    if (is_quiet_) return;
    fmt::print("{:>2}  {:<18}", stages_.size() + 1, name);
    std::fflush(stdout);
  }

  void stage_ended(const Stage& stage) override {
    stages_.push_back(stage);
    if (!stage.error.empty()) record_.mark(fmt::format("failed {}", stage.name));
    record_.flush();
    if (is_quiet_) return;
    fmt::print("{:>10.2f} ms  {}\n", static_cast<double>(stage.us) / 1000,
               stage.error.empty() ? stage.seen.empty() ? "fine" : stage.seen : "FAILED");
    if (const auto* terms = amd::am::find_stage_terms(stage.name); terms != nullptr)
      fmt::print("    needs   {}\n    leaves  {}\n", terms->needs, terms->leaves);
    if (!stage.error.empty()) fmt::print("    cause   {}\n", stage.error);
  }

  const std::vector<Stage>& stages() const { return stages_; }

 private:
  PciRecord& record_;
  const bool is_quiet_;
  std::vector<Stage> stages_;
};

Json to_json(const std::vector<Stage>& stages) {
  Json list = Json::array();
  for (const Stage& stage : stages) {
    Json one = {{"number", list.size() + 1}, {"name", stage.name}, {"time_us", stage.us}};
    if (const auto* terms = amd::am::find_stage_terms(stage.name); terms != nullptr) {
      one["needs"] = terms->needs;
      one["leaves"] = terms->leaves;
    }
    if (!stage.seen.empty()) one["found"] = stage.seen;
    one["register_reads"] = stage.counts.register_reads;
    one["register_writes"] = stage.counts.register_writes;
    one["memory_reads"] = stage.counts.memory_reads;
    one["memory_writes"] = stage.counts.memory_writes;
    if (!stage.error.empty()) one["error"] = stage.error;
    list.push_back(std::move(one));
  }
  return list;
}

/// What the transport has counted when the boot, and the kernel after it, were over.
struct Stats {
  PciCounts counts;
  PciRecord::Uses tables;

  /// Single accesses and bursts, of BARs and configuration space.
  uint64_t writes() const {
    uint64_t sum = counts.config_writes;
    for (const BarCounts& bar : counts.bars) sum += bar.writes + bar.write_bursts;
    return sum;
  }
  uint64_t reads() const {
    uint64_t sum = counts.config_reads;
    for (const BarCounts& bar : counts.bars) sum += bar.reads + bar.read_bursts;
    return sum;
  }
};

Json to_json(const Stats& stats) {
  Json bars = Json::array();
  for (uint32_t i = 0; i < kPciBars; ++i) {
    const BarCounts& bar = stats.counts.bars[i];
    if (bar.reads + bar.writes + bar.read_bursts + bar.write_bursts == 0) continue;
    bars.push_back({{"bar", i},
                    {"reads", bar.reads},
                    {"writes", bar.writes},
                    {"read_bursts", bar.read_bursts},
                    {"write_bursts", bar.write_bursts},
                    {"burst_bytes_read", bar.burst_bytes_read},
                    {"burst_bytes_written", bar.burst_bytes_written}});
  }
  return {{"bars", bars},
          {"configuration_reads", stats.counts.config_reads},
          {"configuration_writes", stats.counts.config_writes},
          {"calls", stats.counts.calls},
          {"page_table_writes", stats.tables.writes},
          {"page_table_reads", stats.tables.reads},
          {"bus_writes", stats.writes()},
          {"bus_reads", stats.reads()}};
}

void print_stats(const Stats& stats) {
  using enum Table::Align;
  Table table({{"accesses"},
               {"reads", kRight},
               {"writes", kRight},
               {"bursts read", kRight},
               {"bursts written", kRight},
               {"bytes read", kRight},
               {"bytes written", kRight}});
  const auto number = [](uint64_t value) { return fmt::format("{}", value); };
  for (uint32_t i = 0; i < kPciBars; ++i) {
    const BarCounts& bar = stats.counts.bars[i];
    if (bar.reads + bar.writes + bar.read_bursts + bar.write_bursts == 0) continue;
    table.add({fmt::format("BAR {}", i), number(bar.reads), number(bar.writes),
               number(bar.read_bursts), number(bar.write_bursts), human_bytes(bar.burst_bytes_read),
               human_bytes(bar.burst_bytes_written)});
  }
  table.add(
      {"configuration", number(stats.counts.config_reads), number(stats.counts.config_writes)});
  table.add({"page tables", number(stats.tables.reads), number(stats.tables.writes)});
  table.add({"all", number(stats.reads()), number(stats.writes())});
  fmt::print("{}", table.text());
}

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

  auto record = std::make_shared<PciRecord>(sink);
  StagePrinter printer(*record, as_json);
  auto gpu = amd::am::AmGpu::open(std::make_unique<PciRecorder>(std::move(*function), record),
                                  {.firmware = options.card.search(),
                                   .always_reset = options.always_reset,
                                   .watcher = &printer,
                                   .power_limit_w = options.power_limit_w});
  const bool runs_kernel = gpu && (options.runs_kernel || options.has_stats);
  Result<KernelRun> kernel = KernelRun{};
  if (runs_kernel) {
    record->mark("kernel");
    kernel = run_small_kernel(**gpu);
  }
  Stats stats{.counts = record->counts(), .tables = {}};
  if (gpu) stats.tables = record->uses(0, (*gpu)->page_table_places());
  std::optional<Result<amd::am::Sensors>> sensors;
  if (gpu && options.has_stats) {
    record->mark("sensors");
    sensors = (*gpu)->sensors();
  }
  uint64_t us = 0;
  for (const Stage& stage : printer.stages()) us += stage.us;

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
  json["stages"] = to_json(printer.stages());
  if (runs_kernel && kernel)
    json["kernel"] = {{"stored", kernel->value}, {"time_us", kernel->time_us}};
  if (options.has_stats) json["accesses"] = to_json(stats);
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
    if (options.has_stats) print_stats(stats);
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
