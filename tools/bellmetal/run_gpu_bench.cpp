// The table of `bellmetal bench gpu`.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "runtime/device.h"
#include "tensor/exception.h"
#include "tools/bellmetal/cpu_bench/cpu_report.h"
#include "tools/bellmetal/cpu_bench/cpu_run.h"
#include "tools/bellmetal/gpu_cases.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

CpuRow run_case(const GpuCase& c, World& world, runtime::Device& device,
                const std::shared_ptr<DeviceCopies>& copies, const Pace& pace) {
  CpuRow row;
  row.outcome.name = c.name;
  row.outcome.threads = 0;
  try {
    auto contest = c.make(world, device, copies);
    auto outcome = contest ? hold(*contest, c.name, 0, pace, interrupt_flag())
                           : tl::unexpected(contest.error());
    if (outcome)
      row.outcome = std::move(*outcome);
    else
      row.problem = outcome.error().message;
  } catch (const std::exception& e) {
    row.problem = e.what();
  }
  if (!row.problem.empty() && !row.problem.starts_with(c.name))
    row.problem = c.name + ": " + row.problem;
  return row;
}

int list_cases(bool as_json) {
  Json names = Json::array();
  for (const GpuCase& c : gpu_cases()) {
    names.push_back(c.name);
    if (!as_json) fmt::print("{}\n", c.name);
  }
  if (as_json) print_json({{"cases", names}});
  return kOk;
}

int print(const CpuBenchOptions& options, const std::vector<CpuRow>& rows,
          std::vector<std::string> notes) {
  Json list = Json::array();
  bool is_good = true;
  for (const CpuRow& row : rows) {
    is_good = is_good && row.problem.empty();
    list.push_back(to_json(row));
    if (!row.problem.empty()) notes.push_back(row.problem);
    for (const std::string& note : row.outcome.notes)
      notes.push_back(row.outcome.name + ": " + note);
  }
  if (options.json) {
    print_json({{"suite", "gpu"}, {"device", options.device}, {"rows", list}, {"notes", notes}});
  } else {
    fmt::print(
        "gpu on {}; medians; spread: distance of the quartiles; ratio above 1: ours is "
        "better\n{}",
        options.device, cpu_table(rows));
    for (const std::string& note : notes) fmt::print("note: {}\n", note);
  }
  return is_interrupted() ? kInterrupted : is_good ? kOk : kFailure;
}

}  // namespace

int run_gpu_bench(const CpuBenchOptions& given) {
  if (given.is_listing) return list_cases(given.json);
  CpuBenchOptions options = given;
  const std::vector<GpuCase> cases = gpu_cases();
  for (const std::string& only : options.only)
    if (std::none_of(cases.begin(), cases.end(),
                     [&](const GpuCase& c) { return c.name.find(only) != std::string::npos; }))
      return report(Error(Code::kInvalidArgument,
                          fmt::format("no case holds \"{}\"; `bellmetal bench gpu --list` names "
                                      "them",
                                      only)),
                    kUsage, options.json);
  auto opened =
      options.device.empty() ? runtime::default_device() : runtime::open_device(options.device);
  if (!opened) return report(opened.error(), options.json);
  runtime::Device& device = **opened;
  options.device = device.name();
  InterruptScope interrupt;
  World world(options, 1);
  std::vector<CpuRow> rows;
  try {
    std::shared_ptr<DeviceCopies> copies;
    if (auto found = DeviceCopies::open(device, most_copied(world)))
      copies = std::move(*found);
    else
      world.note("no copies to compare with: " + found.error().message);
    Pace pace{.seconds = options.seconds};
    if (options.is_tiny) pace = {.seconds = 0, .min_repeats = 2, .sample_ms = 0};
    for (const GpuCase& c : cases) {
      if (is_interrupted()) break;
      if (!is_chosen(options, c.name)) continue;
      rows.push_back(run_case(c, world, device, copies, pace));
      if (const Status alive = device.lost(); !alive) return report(alive.error(), options.json);
    }
  } catch (const Exception& e) {
    return report(e.error(), options.json);
  }
  return print(options, rows, world.notes());
}

}  // namespace bm::cli
