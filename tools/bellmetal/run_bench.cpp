// Host cost of the runtime, beside a hand-written loop over the same work, interleaved in one run.
#include <algorithm>
#include <chrono>
#include <functional>

#include <nlohmann/json.hpp>

#include "runtime/buffer.h"
#include "runtime/device.h"
#include "tensor/jit.h"
#include "tools/bellmetal/bench_gpu.h"
#include "tools/bellmetal/cuda_loop.h"
#include "tools/bellmetal/bench_opencl.h"
#include "tools/bellmetal/bench_rig.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/progress.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Row {
  std::string name;
  double ours_us = 0;
  double peer_us = 0;  ///< 0: no peer for this row
  std::string peer_name, goal;
};

/// Times of both sides. A peer that fails drops out; ours go on.
struct Samples {
  std::vector<double> ours, theirs;
  std::string failure;  ///< of the peer

  template <class Work>
  void guarded(Work&& work) {
    if (!failure.empty()) return;
    try {
      work();
    } catch (const std::exception& e) {
      failure = *e.what() != 0 ? e.what() : "it failed";
    }
  }

  Row row(std::string name, std::string peer_name, std::string goal) {
    if (!failure.empty()) {
      theirs.clear();
      peer_name += " failed: " + failure;
    }
    return {std::move(name), ours.empty() ? 0 : median(ours), theirs.empty() ? 0 : median(theirs),
            std::move(peer_name), std::move(goal)};
  }
};

/// Medians of both sides, one after the other in every repetition.
Row compare(std::string name, int repeats, const std::function<void()>& ours, std::string peer_name,
            const std::function<void()>& peer, std::string goal) {
  Samples samples;
  for (int i = 0; i < repeats / 10 + 2 && !is_interrupted(); ++i) {  // warm caches and pools
    ours();
    if (peer) samples.guarded(peer);
  }
  for (int i = 0; i < repeats && !is_interrupted(); ++i) {
    samples.ours.push_back(time_us(ours));
    if (peer) samples.guarded([&] { samples.theirs.push_back(time_us(peer)); });
  }
  return samples.row(std::move(name), std::move(peer_name), std::move(goal));
}

constexpr size_t kWidth = 16;

/// The peer's kernel: what a C programmer would call in a loop.
__attribute__((noinline)) void add16(const float* a, const float* b, float* out) {
  for (size_t i = 0; i < kWidth; ++i) out[i] = a[i] + b[i];
}

class HandWritten {
 public:
  explicit HandWritten(size_t kernels) : storage_(kernels + 1, std::vector<float>(kWidth, 1.0F)) {}
  void run(const float* input) {
    auto* volatile kernel = &add16;  // a real indirect call, as any runtime makes
    for (size_t i = 0; i + 1 < storage_.size(); ++i)
      kernel(storage_[i].data(), input, storage_[i + 1].data());
  }

 private:
  std::vector<std::vector<float>> storage_;
};

auto chain(int kernels) {
  return [kernels](const Tensor& x, const Tensor& y) {
    Tensor t = x;
    for (int i = 0; i < kernels; ++i) t = (t + y).contiguous();
    return t;
  };
}

std::vector<Row> bench_replay(const std::string& device) {
  std::vector<Row> rows;
  const auto make = [&](float v) {
    return Tensor::from(std::vector<float>(kWidth, v), {kWidth}, device);
  };
  std::vector<Tensor> inputs;
  for (int i = 0; i < 8; ++i) inputs.push_back(make(static_cast<float>(i)));
  std::vector<std::vector<float>> host(8, std::vector<float>(kWidth, 1.0F));
  runtime::Device& opened = inputs[0].device();
  const auto wait = [&] { unwrap(opened.synchronize()); };
  for (int kernels : {1, 10, 100, 1000}) {
    if (is_interrupted()) break;
    Jit step(chain(kernels));
    step.capture(inputs[0], inputs[1]);
    HandWritten peer(static_cast<size_t>(kernels));
    const std::string peer_name = "hand-written loop over function pointers";
    const int repeats = kernels == 1000 ? 500 : 3000;
    rows.push_back(compare(
        fmt::format("replay {} kernels of 16 floats", kernels), repeats,
        [&] {
          step(inputs[0], inputs[1]);
          wait();
        },
        peer_name, [&] { peer.run(host[0].data()); }, kernels == 100 ? "<= 20 us" : ""));
    size_t turn = 0;
    rows.push_back(compare(
        fmt::format("replay {} kernels, all inputs new", kernels), repeats,
        [&] {
          ++turn;
          step(inputs[turn % 8], inputs[(turn + 3) % 8]);
          wait();
        },
        peer_name, [&] { peer.run(host[turn % 8].data()); }, kernels == 100 ? "<= 25 us" : ""));
  }
  return rows;
}

/// Host time of handing the work over, for devices with queues; completion is awaited untimed.
Row compare_submission(std::string name, int repeats, const std::function<void()>& ours,
                       const std::function<void()>& ours_wait, std::string peer_name,
                       const std::function<void()>& peer, const std::function<void()>& peer_wait,
                       std::string goal) {
  Samples samples;
  for (int i = 0; i < repeats + repeats / 10 && !is_interrupted(); ++i) {
    const bool is_warm = i >= repeats / 10;
    const double mine = time_us(ours);
    ours_wait();
    if (is_warm) samples.ours.push_back(mine);
    if (peer)
      samples.guarded([&] {
        const double theirs = time_us(peer);
        peer_wait();
        if (is_warm) samples.theirs.push_back(theirs);
      });
  }
  return samples.row(std::move(name), std::move(peer_name), std::move(goal));
}

/// Devices whose queues are ours: the host's part of a replay. Nobody else's loop reaches them.
std::vector<Row> bench_replay_queues(const std::string& device) {
  std::vector<Row> rows;
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i)
    inputs.push_back(
        Tensor::from(std::vector<float>(kWidth, static_cast<float>(i)), {kWidth}, device));
  runtime::Device& opened = inputs[0].device();
  const auto wait = [&] { unwrap(opened.synchronize()); };
  for (const int kernels : {1, 10, 100}) {
    if (is_interrupted()) break;
    Jit step(chain(kernels));
    step.capture(inputs[0], inputs[1]);
    wait();
    size_t turn = 0;
    for (const bool is_new : {false, true}) {
      const char* const goal = is_new && kernels == 100 ? "<= 2 us" : "";
      rows.push_back(compare_submission(
          fmt::format("host time of {} kernels{}", kernels, is_new ? ", the input of all new" : ""),
          500,
          [&] {
            turn += is_new ? 1 : 0;
            step(inputs[0], inputs[1 + turn % 3]);
          },
          wait, "", {}, {}, goal));
    }
  }
  return rows;
}

std::vector<Row> bench_replay_opencl(const std::string& device) {
  std::vector<Row> rows;
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i)
    inputs.push_back(
        Tensor::from(std::vector<float>(kWidth, static_cast<float>(i)), {kWidth}, device));
  runtime::Device& opened = inputs[0].device();
  const auto wait = [&] { unwrap(opened.synchronize()); };
  for (uint32_t kernels : {10U, 100U}) {
    if (is_interrupted()) break;
    Jit step(chain(static_cast<int>(kernels)));
    step.capture(inputs[0], inputs[1]);
    wait();
    // Made when first used, where its failure is the peer's.
    std::unique_ptr<OpenClLoop> made;
    const auto peer = [&] {
      if (!made) made = unwrap(OpenClLoop::create(unit_of(opened), kernels));
      return made.get();
    };
    size_t turn = 0;
    for (bool is_new : {false, true}) {
      Row row = compare_submission(
          fmt::format("host time per kernel, {} kernels{}", kernels, is_new ? ", new input" : ""),
          300,
          [&] {
            turn += is_new ? 1 : 0;
            step(inputs[0], inputs[1 + turn % 3]);
          },
          wait, "hand-written clEnqueueNDRangeKernel loop", [&] { peer()->submit(is_new); },
          [&] { peer()->wait(); }, "ratio >= 0.91");
      row.ours_us /= kernels;
      row.peer_us /= kernels;
      rows.push_back(std::move(row));
    }
    rows.push_back(compare(
        fmt::format("submit and complete {} kernels", kernels), 300,
        [&] {
          step(inputs[0], inputs[1]);
          wait();
        },
        "hand-written loop and clFinish",
        [&] {
          peer()->submit(false);
          peer()->wait();
        },
        ""));
  }
  return rows;
}

std::vector<Row> bench_replay_cuda(const std::string& device) {
  std::vector<Row> rows;
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i)
    inputs.push_back(
        Tensor::from(std::vector<float>(kWidth, static_cast<float>(i)), {kWidth}, device));
  runtime::Device& opened = inputs[0].device();
  const auto wait = [&] { unwrap(opened.synchronize()); };
  for (const uint32_t kernels : {10U, 100U}) {
    if (is_interrupted()) break;
    Jit step(chain(static_cast<int>(kernels)));
    step.capture(inputs[0], inputs[1]);
    wait();
    std::unique_ptr<CudaLoop> made;
    const auto peer = [&] {
      if (!made) made = unwrap(CudaLoop::create(unit_of(opened), kernels));
      return made.get();
    };
    size_t turn = 0;
    for (const bool is_new : {false, true}) {
      const auto ours = [&] {
        turn += is_new ? 1 : 0;
        step(inputs[0], inputs[1 + turn % 3]);
      };
      const std::string name =
          fmt::format("host time of {} kernels{}", kernels, is_new ? ", new input" : "");
      const auto peer_wait = [&] { peer()->wait(); };
      rows.push_back(compare_submission(
          name, 300, ours, wait, is_new ? "graph by hand, every node set" : "graph by hand",
          [&] { peer()->launch_graph(is_new); }, peer_wait, ""));
      rows.push_back(compare_submission(
          name, 300, ours, wait, "hand-written cuLaunchKernel loop",
          [&] { peer()->launch(is_new); }, peer_wait, ""));
    }
    rows.push_back(compare(
        fmt::format("submit and complete {} kernels", kernels), 300,
        [&] {
          step(inputs[0], inputs[1]);
          wait();
        },
        "graph by hand and cuStreamSynchronize",
        [&] {
          peer()->launch_graph(false);
          peer()->wait();
        },
        ""));
  }
  return rows;
}

std::vector<Row> bench_overhead(const std::string& device) {
  std::vector<Row> rows;
  Tensor x = Tensor::from(std::vector<float>(kWidth, 1.0F), {kWidth}, device);
  runtime::Device& opened = x.device();
  std::vector<float> a(kWidth, 1.0F), b(kWidth);
  rows.push_back(compare(
      "eager (x + 1).realize()", 2000, [&] { (x + 1).realize(); }, "the same loop in C++",
      [&] { add16(a.data(), a.data(), b.data()); }, ""));
  rows.push_back(compare(
      "allocate and free 1 MiB", 5000,
      [&] { unwrap(runtime::allocate(opened, {.size = 1 << 20})); }, "malloc and free",
      [] {
        void* volatile p = std::malloc(1 << 20);
        std::free(p);
      },
      ""));
  std::vector<std::byte> bytes(64);
  runtime::Buffer small = unwrap(runtime::allocate(opened, {.size = 64}));
  small.size = 64;
  std::vector<std::byte> target(64);
  rows.push_back(compare(
      "copy 64 bytes to the device", 5000, [&] { unwrap(runtime::copy_in(small, bytes)); },
      "memcpy", [&] { std::memcpy(target.data(), bytes.data(), 64); }, ""));
  std::vector<std::byte> big(64 << 20), big_target(64 << 20);
  runtime::Buffer large = unwrap(runtime::allocate(opened, {.size = 64 << 20}));
  large.size = 64 << 20;
  rows.push_back(compare(
      "read back 64 MiB", 10, [&] { unwrap(runtime::copy_out(big, large)); }, "memcpy",
      [&] { std::memcpy(big_target.data(), big.data(), big.size()); }, ">= 0.9x"));
  rows.push_back(compare(
      "synchronize an idle device", 5000, [&] { unwrap(opened.synchronize()); }, "", {}, ""));
  rows.push_back(compare(
      "capture 100 kernels (compiled before)", 20,
      [&] {
        Jit step(chain(100));
        step.capture(x, x + 0.5);
      },
      "", {}, ""));
  return rows;
}

constexpr const char* kSimulated =
    " (simulated: times are the host's, the simulator's work among them, and no goal is shown)";

/// Whether the machine below the driver is a program: tests/sim/*/sim_*_main.cpp say so to those
/// they start. What is measured then is this host at work as both driver and GPU.
bool is_simulated(const runtime::Device& device) {
  const char* machine = std::getenv("SIM_MACHINE");
  return machine != nullptr && device.name().starts_with(machine);
}

int print(const std::vector<Row>& rows, const runtime::Device& device,
          const BenchOptions& options) {
  const bool is_judged = !is_simulated(device);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Table table({{"NAME"},
               {"OURS", Table::Align::kRight},
               {"PEER", Table::Align::kRight},
               {"RATIO", Table::Align::kRight},
               {"GOAL"},
               {"PEER IS"}});
  for (const Row& r : rows) {
    const bool has_peer = r.peer_us > 0 && r.ours_us > 0;
    nlohmann::ordered_json row = {{"name", r.name},   {"ours", r.ours_us},
                                  {"peer", nullptr},  {"peer_name", r.peer_name},
                                  {"ratio", nullptr}, {"goal", is_judged ? r.goal : ""},
                                  {"unit", "us"},     {"clock", "host"}};
    if (has_peer) {
      row["peer"] = r.peer_us;
      row["ratio"] = r.peer_us / r.ours_us;
    }
    list.push_back(std::move(row));
    table.add({r.name, fmt::format("{:.2f} us", r.ours_us),
               has_peer ? fmt::format("{:.2f} us", r.peer_us) : "-",
               has_peer ? fmt::format("{:.2f}", r.peer_us / r.ours_us) : "-",
               is_judged ? r.goal : "", r.peer_name});
  }
  if (options.json)
    print_json({{"suite", options.suite == BenchSuite::kReplay ? "replay" : "overhead"},
                {"device", device.name()},
                {"simulated", !is_judged},
                {"rows", list}});
  else
    fmt::print("{} on {}{}; medians of host time; ratio above 1: ours is faster\n{}",
               options.suite == BenchSuite::kReplay ? "replay" : "overhead", device.name(),
               is_judged ? "" : kSimulated, table.text());
  return is_interrupted() ? kInterrupted : kOk;
}

int print_gpu(const GpuReport& report, const runtime::Device& device, const BenchOptions& options) {
  const char* suite = options.suite == BenchSuite::kLatency     ? "latency"
                      : options.suite == BenchSuite::kBandwidth ? "bandwidth"
                                                                : "matmul";
  const bool is_judged = !is_simulated(device);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Table table({{"NAME"},
               {"OURS", Table::Align::kRight},
               {"PEER", Table::Align::kRight},
               {"RATIO", Table::Align::kRight},
               {"GOAL"},
               {"PEER IS"}});
  for (const Measurement& m : report.rows) {
    const bool has_peer = m.ratio() > 0;
    nlohmann::ordered_json row = {{"name", m.name},   {"ours", m.ours},
                                  {"peer", nullptr},  {"peer_name", m.peer_name},
                                  {"ratio", nullptr}, {"goal", is_judged ? m.goal : ""},
                                  {"unit", m.unit}};
    if (has_peer) {
      row["peer"] = m.peer;
      row["ratio"] = m.ratio();
    }
    list.push_back(std::move(row));
    table.add({m.name, fmt::format("{:.2f} {}", m.ours, m.unit),
               has_peer ? fmt::format("{:.2f} {}", m.peer, m.unit) : "-",
               has_peer ? fmt::format("{:.2f}", m.ratio()) : "-", is_judged ? m.goal : "",
               m.peer_name});
  }
  if (options.json) {
    print_json({{"suite", suite},
                {"device", device.name()},
                {"simulated", !is_judged},
                {"rows", list},
                {"notes", report.notes}});
  } else {
    fmt::print("{} on {}{}; medians; ratio above 1: ours is better\n{}", suite, device.name(),
               is_judged ? "" : kSimulated, table.text());
    for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  }
  return is_interrupted() ? kInterrupted : kOk;
}

}  // namespace

int run_bench(const BenchOptions& options) {
  auto device =
      options.device.empty() ? runtime::default_device() : runtime::open_device(options.device);
  if (!device) return report(device.error(), options.json);
  InterruptScope interrupt;
  try {
    if (options.suite != BenchSuite::kReplay && options.suite != BenchSuite::kOverhead) {
      const auto measured = bench_gpu(**device, options);
      return measured ? print_gpu(*measured, **device, options)
                      : report(measured.error(), options.json);
    }
    const bool is_opencl = (*device)->hal().arch().vendor == hal::Vendor::kOpenCl;
    const bool is_cuda = (*device)->name().starts_with("CUDA");
    const bool has_queues = (*device)->hal().arch().vendor == hal::Vendor::kAmd;
    const std::vector<Row> rows = options.suite == BenchSuite::kOverhead
                                      ? bench_overhead(options.device)
                                  : is_opencl  ? bench_replay_opencl(options.device)
                                  : is_cuda    ? bench_replay_cuda(options.device)
                                  : has_queues ? bench_replay_queues(options.device)
                                               : bench_replay(options.device);
    return print(rows, **device, options);
  } catch (const Exception& e) {
    return report(e.error(), options.json);
  }
}

}  // namespace bm::cli
