// The table of `bellmetal bench cpu`: one process of this program for each number of threads, since
// a device keeps the threads it was opened with.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "runtime/base/output_file.h"
#include "runtime/device.h"
#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/cpu_report.h"
#include "tools/bellmetal/cpu_bench/cpu_run.h"
#include "tools/bellmetal/cpu_bench/random_llama.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Command line and environment of the process for `threads` threads.
std::vector<std::string> child_arguments(const CpuBenchOptions& o, uint32_t threads) {
  std::vector<std::string> out{"bellmetal", "bench",
                               "cpu",       "--child",
                               "--threads", std::to_string(threads),
                               "--seconds", fmt::format("{}", o.seconds)};
  for (const std::string& only : o.only) out.insert(out.end(), {"--only", only});
  for (const std::string& peer : o.peers) out.insert(out.end(), {"--peer", peer});
  if (!o.device.empty()) out.insert(out.end(), {"--device", o.device});
  if (!o.has_peers) out.emplace_back("--no-peers");
  if (o.is_tiny) out.emplace_back("--tiny");
  return out;
}

void set_child_environment(uint32_t threads) {
  const std::string n = std::to_string(threads);
  for (const char* name : {"BM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
    ::setenv(name, n.c_str(), 1);
#if defined(__x86_64__)
  // Versions older than the processor take it for an old one and leave half of its vectors unused.
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    ::setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0);
#endif
  // OpenBLAS's idle threads keep their cores for 2^26 cycles otherwise, in the others' time.
  ::setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);
}

struct Collected {
  std::vector<CpuRow> rows;
  std::vector<std::string> notes;
  bool is_complete = true;  ///< every measuring process ended well
};

/// One line of the child: a row, or its notes at the end.
Status take_line(const std::string& line, Collected& all) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded())
    return fail(Code::kInternal, "the measuring process printed \"{}\"", line);
  if (json.contains("end")) {
    for (const std::string note : json["end"])
      if (std::find(all.notes.begin(), all.notes.end(), note) == all.notes.end())
        all.notes.push_back(note);
    return {};
  }
  all.rows.push_back(BM_TRY(cpu_row_from_json(json)));
  const CpuRow& row = all.rows.back();
  if (::isatty(2) != 0) print_error(row.problem.empty() ? cpu_table({row}) : row.problem + "\n");
  return {};
}

Status run_child(const CpuBenchOptions& options, uint32_t threads, Collected& all) {
  std::vector<std::string> arguments = child_arguments(options, threads);
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe(ends) != 0) return fail(Code::kIo, "no pipe for the measuring process");
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    // It ends with us, also when only we are told to end.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    set_child_environment(threads);
    ::dup2(ends[1], 1);
    ::close(ends[0]);
    ::close(ends[1]);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    return fail(Code::kIo, "the measuring process could not be started");
  }
  std::FILE* in = ::fdopen(ends[0], "r");
  char* text = nullptr;
  size_t room = 0;
  Status status;
  for (ssize_t n = 0; status && (n = ::getline(&text, &room, in)) > 0;)
    status = take_line({text, static_cast<size_t>(n - 1)}, all);
  std::free(text);
  std::fclose(in);
  int end = 0;
  while (::waitpid(child, &end, 0) < 0 && errno == EINTR) {}
  if (!status || is_interrupted() || (WIFEXITED(end) && WEXITSTATUS(end) <= kFailure))
    return status;
  return fail(Code::kInternal, "the measuring process for {} threads ended with {}", threads,
              WIFSIGNALED(end) ? fmt::format("signal {}", WTERMSIG(end))
                               : fmt::format("exit code {}", WEXITSTATUS(end)));
}

int print(const CpuBenchOptions& options, Collected& all) {
  const std::vector<Case> cases = all_cases();
  const auto place = [&](const CpuRow& row) {
    return std::find_if(cases.begin(), cases.end(),
                        [&](const Case& c) { return c.name == row.outcome.name; }) -
           cases.begin();
  };
  std::stable_sort(all.rows.begin(), all.rows.end(),
                   [&](const CpuRow& a, const CpuRow& b) { return place(a) < place(b); });
  bool is_good = all.is_complete;
  double busy = 0;
  Json list = Json::array();
  for (const CpuRow& row : all.rows) {
    is_good = is_good && row.problem.empty();
    busy = std::max(busy, row.outcome.busy_elsewhere);
    list.push_back(to_json(row));
    if (!row.problem.empty())
      all.notes.push_back(
          fmt::format("{}, {} threads: {}", row.outcome.name, row.outcome.threads, row.problem));
    for (const std::string& note : row.outcome.notes)
      all.notes.push_back(row.outcome.name + ": " + note);
  }
  // A tenth of two cores is what a shell and a desktop take.
  if (busy > 0.1)
    all.notes.push_back(
        fmt::format("the machine was not quiet: others used up to {:.0f} % of it "
                    "during a row",
                    busy * 100));
  if (options.json) {
    print_json({{"suite", "cpu"}, {"rows", list}, {"notes", all.notes}});
  } else {
    fmt::print("medians; spread: distance of the quartiles; ratio above 1: ours is better\n{}",
               cpu_table(all.rows));
    for (const std::string& note : all.notes) fmt::print("note: {}\n", note);
  }
  return is_interrupted() ? kInterrupted : is_good ? kOk : kFailure;
}

int list_cases(bool as_json) {
  Json names = Json::array();
  for (const Case& c : all_cases()) {
    names.push_back(c.name);
    if (!as_json) fmt::print("{}\n", c.name);
  }
  if (as_json) print_json({{"cases", names}});
  return kOk;
}

/// The measuring process: one JSON object a line.
int run_as_child(const CpuBenchOptions& options) {
  bool is_good = true;
  std::vector<std::string> notes;
  run_cpu_cases(
      options, options.threads.at(0),
      [&](const CpuRow& row) {
        is_good = is_good && row.problem.empty();
        fmt::print("{}\n", to_json(row).dump(-1, ' ', false, Json::error_handler_t::replace));
        std::fflush(stdout);
      },
      notes);
  fmt::print("{}\n", Json{{"end", notes}}.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::fflush(stdout);
  return is_good ? kOk : kFailure;
}

int write_model(const CpuBenchOptions& options) {
  RandomLlama model;
  const auto format = random_llama_format(options.format);
  if (!format) return report(format.error(), kUsage, options.json);
  model.format = *format;
  auto file = OutputFile::create(options.write_model);
  if (!file) return report_file(file.error(), options.write_model, options.json);
  Status done = write_random_llama(
      [&](std::span<const std::byte> bytes) { return file->write(bytes); }, model);
  if (done) done = file->commit();
  if (!done) return report(done.error(), kBadFile, options.json);
  if (options.json)
    print_json({{"path", options.write_model}, {"parameters", model.parameters()}});
  else
    fmt::print("{}: {:.2f} billion random weights in {}\n", options.write_model,
               static_cast<double>(model.parameters()) * 1e-9, options.format);
  return kOk;
}

int measure_compilation(const CpuBenchOptions& options) {
  const auto seconds = compile_seconds(options.compile_of, options.device);
  if (!seconds) return report(seconds.error(), true);
  print_json({{"compile_seconds", *seconds}});
  return kOk;
}

}  // namespace

int run_cpu_bench(const CpuBenchOptions& options) {
  if (options.is_listing) return list_cases(options.json);
  if (!options.write_model.empty()) return write_model(options);
  if (!options.compile_of.empty()) return measure_compilation(options);
  if (const auto known = check_cpu_options(options); !known)
    return report(known.error(), kUsage, options.json);
  InterruptScope interrupt;
  if (options.is_child) return run_as_child(options);
  // A name that no device has is a mistake of the command, not of every row.
  if (const Status named = runtime::check_device_name(options.device);
      !options.device.empty() && !named)
    return report(named.error(), options.json);
  Collected all;
  for (const uint32_t threads : options.threads) {
    if (is_interrupted()) break;
    // What was measured before is not lost with the process.
    if (const auto done = run_child(options, threads, all); !done) {
      all.notes.push_back(done.error().message);
      all.is_complete = false;
    }
  }
  return print(options, all);
}

}  // namespace bm::cli
