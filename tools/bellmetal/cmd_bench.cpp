#include <memory>
#include <thread>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

namespace {

/// Options of both tables of kernels.
void add_table_options(CLI::App* command, const std::shared_ptr<CpuBenchOptions>& o) {
  command->add_option("--only", o->only, "Rows whose name holds this text; several with commas")
      ->delimiter(',');
  command->add_option("--peer", o->peers,
                      "Where a peer is, NAME=PATH; for example python=/usr/bin/python3");
  command->add_option("--seconds", o->seconds, "Seconds of measuring per row")
      ->check(CLI::Range(0.0, 3600.0));
  command->add_flag("!--no-peers", o->has_peers, "Measure this build alone");
  command->add_flag("--tiny", o->is_tiny,
                    "Small shapes, hardly repeated: whether everything works");
  command->add_flag("--list", o->is_listing, "Name the rows");
}

void add_gpu_bench(CLI::App& bench, Run& run) {
  CLI::App* command = bench.add_subcommand(
      "gpu", "Kernels from this compiler on a GPU beside PyTorch and copies in its memory");
  auto o = std::make_shared<CpuBenchOptions>();
  add_table_options(command, o);
  command->add_option("--device", o->device, "Device as in DEV, for example NV");
  command->add_flag("--json", o->json,
                    "Print one JSON object; rows: name, unit, ours, spread, peers, bounds, goal, "
                    "is_met, ratio");
  command->footer(
      examples("bellmetal bench gpu --device NV\n"
               "bellmetal bench gpu --device AMD --only softmax,transpose --json"));
  command->callback([&run, o] { run = [o] { return run_gpu_bench(*o); }; });
}

void add_cpu_bench(CLI::App& bench, Run& run) {
  CLI::App* command = bench.add_subcommand(
      "cpu", "Kernels from this compiler beside the CPU libraries found on this machine");
  auto o = std::make_shared<CpuBenchOptions>();
  add_table_options(command, o);
  o->threads = std::thread::hardware_concurrency() > 1 ? std::vector<uint32_t>{1, 2}
                                                       : std::vector<uint32_t>{1};
  command->add_option("--threads", o->threads, "Numbers of threads, for example 1,2")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  command->add_option("--device", o->device, "Device as in DEV, for example CPU:CLANG");
  command->add_option("--write-model", o->write_model,
                      "Write the llama model with random weights to this file and end");
  command->add_option("--format", o->format, "Of the model to write, for example Q4_K");
  command->add_option("--compile-of", o->compile_of)->group("");
  command->add_flag("--child", o->is_child)->group("");
  command->add_flag(
      "--json", o->json,
      "Print one JSON object; rows: name, threads, unit, ours, spread, peers, bounds, "
      "goal, is_met, ratio");
  command->footer(
      examples("bellmetal bench cpu\n"
               "bellmetal bench cpu --only sgemm,softmax --threads 1 --json"));
  command->callback([&run, o] { run = [o] { return run_cpu_bench(*o); }; });
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure this build against a peer in the same run");
  command->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  const auto add_suite = [&](const char* name, const char* what, BenchSuite suite) {
    CLI::App* one = command->add_subcommand(name, what);
    one->add_option("--device", options->device, "Device as in DEV, for example CPU");
    one->add_flag("--json", options->json,
                  "Print one JSON object; rows: name, ours, peer, peer_name, ratio, goal");
    one->footer(examples("bellmetal bench replay\nbellmetal bench overhead --json --device CPU"));
    if (suite == BenchSuite::kBandwidth)
      one->add_option("--mib", options->mib, "MiB of the large copies")->check(CLI::Range(1, 4096));
    if (suite == BenchSuite::kMatmul)
      one->add_option("--size", options->size, "Rows and columns")->check(CLI::Range(16, 32768));
    one->callback([&run, options, suite] {
      options->suite = suite;
      run = [options] { return run_bench(*options); };
    });
  };
  add_suite("replay", "Time of replaying a captured graph", BenchSuite::kReplay);
  add_suite("overhead", "Time the runtime adds to each step of a computation",
            BenchSuite::kOverhead);
  add_suite("latency", "Submission to completion of a small kernel, beside CUDA's stream and graph",
            BenchSuite::kLatency);
  add_suite("bandwidth", "Copies between host and device, beside CUDA's", BenchSuite::kBandwidth);
  add_suite("matmul", "A bfloat16 matmul, beside cuBLAS", BenchSuite::kMatmul);
  add_cpu_bench(*command, run);
  add_gpu_bench(*command, run);
  command->footer(examples("bellmetal bench replay\nbellmetal bench overhead --json --device CPU"));
}

}  // namespace bm::cli
