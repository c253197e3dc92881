#include "tools/bellmetal/bringup/boot_report.h"

#include <cstdio>

#include <fmt/format.h>

#include "tools/bellmetal/output.h"

namespace bm::cli {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

void StagePrinter::stage_begins(std::string_view name) {
  record_.mark(fmt::format("stage {}", name));
  if (is_quiet_) return;
  // Whole lines: a warning on the same terminal stands between two of them.
  fmt::print("{:>2}  {}\n", stages_.size() + 1, name);
  if (const auto* terms = find_stage_terms(terms_, name); terms != nullptr)
    fmt::print("    needs   {}\n", terms->needs);
  std::fflush(stdout);
}

void StagePrinter::stage_ended(const Stage& stage) {
  stages_.push_back(stage);
  if (!stage.error.empty()) record_.mark(fmt::format("failed {}", stage.name));
  record_.flush();
  if (is_quiet_) return;
  if (const auto* terms = find_stage_terms(terms_, stage.name); terms != nullptr)
    fmt::print("    leaves  {}\n", terms->leaves);
  fmt::print("    ended   after {:.2f} ms: {}\n", static_cast<double>(stage.us) / 1000,
             stage.error.empty() ? stage.seen.empty() ? "fine" : stage.seen : "FAILED");
  if (!stage.error.empty()) fmt::print("    cause   {}\n", stage.error);
  // Errors go to stderr: where both are one file they follow the stage that they are of.
  std::fflush(stdout);
}

uint64_t StagePrinter::us() const {
  uint64_t sum = 0;
  for (const Stage& stage : stages_) sum += stage.us;
  return sum;
}

Json StagePrinter::json() const {
  Json list = Json::array();
  for (const Stage& stage : stages_) {
    Json one = {{"number", list.size() + 1}, {"name", stage.name}, {"time_us", stage.us}};
    if (const auto* terms = find_stage_terms(terms_, stage.name); terms != nullptr) {
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

uint64_t BootStats::writes() const {
  uint64_t sum = counts.config_writes;
  for (const BarCounts& bar : counts.bars) sum += bar.writes + bar.write_bursts;
  return sum;
}

uint64_t BootStats::reads() const {
  uint64_t sum = counts.config_reads;
  for (const BarCounts& bar : counts.bars) sum += bar.reads + bar.read_bursts;
  return sum;
}

Json BootStats::json() const {
  Json bars = Json::array();
  for (uint32_t i = 0; i < kPciBars; ++i) {
    const BarCounts& bar = counts.bars[i];
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
          {"configuration_reads", counts.config_reads},
          {"configuration_writes", counts.config_writes},
          {"calls", counts.calls},
          {"page_table_writes", tables.writes},
          {"page_table_reads", tables.reads},
          {"bus_writes", writes()},
          {"bus_reads", reads()}};
}

void BootStats::print() const {
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
    const BarCounts& bar = counts.bars[i];
    if (bar.reads + bar.writes + bar.read_bursts + bar.write_bursts == 0) continue;
    table.add({fmt::format("BAR {}", i), number(bar.reads), number(bar.writes),
               number(bar.read_bursts), number(bar.write_bursts), human_bytes(bar.burst_bytes_read),
               human_bytes(bar.burst_bytes_written)});
  }
  table.add({"configuration", number(counts.config_reads), number(counts.config_writes)});
  table.add({"page tables", number(tables.reads), number(tables.writes)});
  table.add({"all", number(reads()), number(writes())});
  fmt::print("{}", table.text());
}

}  // namespace bm::cli
