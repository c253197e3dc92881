#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "compiler/cache/disk_cache.h"
#include "compiler/tune/tuned.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using compiler::CacheStats;
using compiler::DiskCache;

nlohmann::ordered_json to_json(const CacheStats& stats) {
  nlohmann::ordered_json json = {{"path", stats.path},
                                 {"entries", stats.entries},
                                 {"payload_bytes", stats.payload_bytes},
                                 {"file_bytes", stats.file_bytes},
                                 {"max_bytes", stats.max_bytes}};
  if (!stats.memory_reason.empty()) json["not_in_use"] = stats.memory_reason;
  return json;
}

void print_stats(const CacheStats& stats) {
  if (!stats.memory_reason.empty()) {
    fmt::print("no cache file in use: {}\n", stats.memory_reason);
    return;
  }
  fmt::print("file     {}\n", stats.path);
  fmt::print("entries  {} ({} of at most {})\n", stats.entries, human_bytes(stats.payload_bytes),
             human_bytes(stats.max_bytes));
  fmt::print("on disk  {}\n", human_bytes(stats.file_bytes));
}

/// Prints what the cache holds after an action; an action on no file at all is an error.
int finish(const Status& done, bool as_json) {
  if (!done) return report(done.error(), as_json);
  const CacheStats stats = DiskCache::instance().stats();
  if (!stats.memory_reason.empty()) {
    const std::string why = fmt::format("no cache file in use: {}", stats.memory_reason);
    return report(Error{Code::kNotFound, why}, as_json);
  }
  if (as_json) {
    print_json(to_json(stats));
  } else {
    print_stats(stats);
  }
  return kOk;
}

int run_stats(bool as_json) {
  const CacheStats stats = DiskCache::instance().stats();
  if (as_json) {
    print_json(to_json(stats));
  } else {
    print_stats(stats);
  }
  return kOk;
}

int run_clear(bool clears_tuned, bool as_json) {
  Status done = DiskCache::instance().clear();
  if (done && clears_tuned && DiskCache::tuned().has_contents()) done = DiskCache::tuned().clear();
  return finish(done, as_json);
}

int run_trim(const std::string& size, bool as_json) {
  const Result<uint64_t> bytes = parse_bytes(size);
  if (!bytes) return report(bytes.error(), as_json);
  return finish(DiskCache::instance().trim(*bytes), as_json);
}

/// Tuned schedules to a file or from one.
int run_tuned(bool is_export, const std::string& path, bool as_json) {
  // What is taken over must outlive this process.
  if (const CacheStats stats = DiskCache::tuned().stats(); !stats.memory_reason.empty())
    return report(
        Error{Code::kNotFound, fmt::format("no cache file in use: {}", stats.memory_reason)},
        as_json);
  const Result<size_t> count =
      is_export ? compiler::export_tuned(path) : compiler::import_tuned(path);
  if (!count) return report_file(count.error(), path, as_json);
  if (as_json)
    print_json({{"file", path}, {"schedules", *count}});
  else
    fmt::print("{} tuned schedule{} {} {}\n", *count, *count == 1 ? "" : "s",
               is_export ? "written to" : "taken from", path);
  return kOk;
}

}  // namespace

void add_cache(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("cache", "Show or empty the cache of compiled kernels");
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto size = std::make_shared<std::string>();

  CLI::App* stats = command->add_subcommand("stats", "What it holds and where");
  stats->callback([&run, json] { run = [json] { return run_stats(*json); }; });

  auto clears_tuned = std::make_shared<bool>(false);
  CLI::App* clear = command->add_subcommand("clear", "Forget every compiled kernel");
  clear->add_flag("--tuned", *clears_tuned, "Forget what BM_TUNE has found, too");
  clear->callback(
      [&run, json, clears_tuned] { run = [=] { return run_clear(*clears_tuned, *json); }; });

  CLI::App* trim = command->add_subcommand("trim", "Drop the least recently used entries");
  trim->add_option("SIZE", *size, "Bytes to keep, as 0, 500M or 2G")->required();
  trim->callback([&run, json, size] { run = [json, size] { return run_trim(*size, *json); }; });

  auto path = std::make_shared<std::string>();
  CLI::App* save =
      command->add_subcommand("export-tuned", "Write what BM_TUNE has found to a text file");
  CLI::App* load = command->add_subcommand("import-tuned", "Take such a file's results over");
  for (CLI::App* action : {save, load}) {
    action->add_option("FILE", *path, "The file")->required();
    action->callback([&run, json, path, is_export = action == save] {
      run = [json, path, is_export] { return run_tuned(is_export, *path, *json); };
    });
  }

  for (CLI::App* action : {stats, clear, trim, save, load}) {
    action->add_flag("--json", *json, "Print one JSON object");
  }
  const char* lines =
      "bellmetal cache stats\nbellmetal cache trim 200M\nbellmetal cache clear --json\n"
      "bellmetal cache export-tuned tuned.txt\nbellmetal cache import-tuned tuned.txt";
  for (CLI::App* one : {command, stats, clear, trim, save, load}) one->footer(examples(lines));
}

}  // namespace bm::cli
