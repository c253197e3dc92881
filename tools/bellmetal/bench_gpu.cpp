#include "tools/bellmetal/bench_gpu.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "compiler/compile.h"
#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "tensor/fusion.h"
#include "tensor/jit.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"
#include "tools/bellmetal/bench_cuda.h"
#include "tools/bellmetal/bench_rig.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Work = std::function<void()>;

struct Medians {
  double ours_us = 0, peer_us = 0;
};

/// One after the other in every repetition, the first tenth discarded. `settle` is not timed.
/// `seconds`: after these one repetition has to do, behind one that is discarded.
Medians interleave(int repeats, const Work& ours, const Work& peer, const Work& settle = {},
                   double seconds = HUGE_VAL) {
  std::vector<double> a, b;
  int warm = repeats / 10 + 1;
  const auto start = Clock::now();
  for (int i = 0; i < repeats + warm && !is_interrupted(); ++i) {
    if (i > 0 && std::chrono::duration<double>(Clock::now() - start).count() > seconds) {
      if (!a.empty()) break;
      warm = i;
    }
    const double mine = time_us(ours);
    if (settle) settle();
    const double theirs = peer ? time_us(peer) : 0;
    if (settle) settle();
    if (i < warm) continue;
    a.push_back(mine);
    if (peer) b.push_back(theirs);
  }
  return {median(a), median(b)};
}

/// Does nothing: CUDA C, which nvrtc compiles.
Result<hal::CodeObject> empty_kernel(const hal::Arch& arch) {
  hal::CodeObject code;
  code.entry = "empty";
  code.arch = arch.name;
  code.image = BM_TRY(compiler::nvrtc_compile("extern \"C\" __global__ void empty() {}\n",
                                              arch.name, settings().nv_code == "ptx"));
  return code;
}

/// The smallest kernel our compiler makes: one element, one store.
Result<hal::CodeObject> smallest_kernel(runtime::Device& device, const std::string& name) {
  const Tensor t = Tensor::empty({1}, DType::kF32, name) + 1;
  const NodePtr root = t.node();
  const FusionPlan plan = plan_fusion({&root, 1});
  for (const NodePtr& node : plan.order) {
    if (!plan.stored.count(node.get())) continue;
    const LoweredKernel kernel =
        BM_TRY(lower(*node, nullptr, [&](const Node* x) { return plan.stored.count(x) != 0; }));
    return compiler::compile(kernel.ir, device.hal().arch(), device.renderer());
  }
  return fail(Code::kInternal, "the smallest kernel was fused away");
}

/// The peer, or a note why there is none.
std::unique_ptr<CudaPeer> open_peer(const runtime::Device& device, GpuReport& report,
                                    const std::function<Status(CudaPeer&)>& prepare) {
  auto peer = CudaPeer::open(unit_of(device));
  Status status;
  if (peer) status = prepare(**peer);
  if (peer && status) return std::move(*peer);
  report.notes.push_back("no peer: " + (peer ? status.error() : peer.error()).message);
  return nullptr;
}

Result<GpuReport> bench_latency(runtime::Device& device, const BenchOptions& options) {
  constexpr uint32_t kMany = 100;
  constexpr int kRepeats = 2000;
  GpuReport report;
  const bool is_nv = device.hal().arch().vendor == hal::Vendor::kNv;
  Result<hal::CodeObject> empty;
  if (is_nv) {
    empty = empty_kernel(device.hal().arch());
    if (!empty) report.notes.push_back("no empty kernel: " + empty.error().message);
  }
  const bool is_empty = is_nv && empty;
  const std::string what = is_empty ? "empty kernel" : "smallest kernel";
  const hal::CodeObject code =
      is_empty ? std::move(*empty) : BM_TRY(smallest_kernel(device, options.device));
  auto one = BM_TRY(Rig::open(device, hal::QueueKind::kCompute));
  auto many = BM_TRY(Rig::open(device, hal::QueueKind::kCompute));
  BM_TRY(one->load(code));
  BM_TRY(many->load(code));
  BM_TRY(one->record(1));
  BM_TRY(many->record(kMany));
  const auto peer_with = [&](uint32_t kernels) {
    return is_nv ? open_peer(device, report,
                             [&](CudaPeer& p) { return p.prepare_kernel(code, kernels); })
                 : nullptr;
  };
  const auto peer = peer_with(1), peer_many = peer_with(kMany);
  const auto add = [&](std::string name, const Work& ours, std::string peer_name,
                       const Work& theirs, std::string goal = "", const Work& settle = {}) {
    const Medians m = interleave(kRepeats, ours, peer ? theirs : Work{}, settle);
    report.rows.push_back({std::move(name), "us", m.ours_us, m.peer_us,
                           peer ? std::move(peer_name) : "", std::move(goal)});
  };
  add("signal alone, submit to signal",
      [&] {
        const hal::Command commands[] = {one->next_signal()};
        one->submit(commands);
        one->wait();
      },
      "", {});
  add(
      what + ", submit to signal",
      [&] {
        const hal::Command commands[] = {one->dispatch(), one->next_signal()};
        one->submit(commands);
        one->wait();
      },
      "cuLaunchKernel, cuStreamSynchronize",
      [&] {
        peer->launch();
        peer->wait();
      });
  add(
      what + ", replay to signal",
      [&] {
        one->replay();
        one->wait();
      },
      "cuGraphLaunch, cuStreamSynchronize",
      [&] {
        peer->launch_graph();
        peer->wait();
      },
      "ratio >= 2");
  add(
      "100 kernels in a row, replay to signal",
      [&] {
        many->replay();
        many->wait();
      },
      "cuGraphLaunch of 100 nodes, synchronize",
      [&] {
        peer_many->launch_graph();
        peer_many->wait();
      });
  add(
      "host time of a replay of 100 kernels", [&] { many->replay(); },
      "host time of cuGraphLaunch, 100 nodes", [&] { peer_many->launch_graph(); }, "<= 2 us",
      [&] {
        many->wait();
        if (peer_many) peer_many->wait();
      });
  return report;
}

Result<GpuReport> bench_bandwidth(runtime::Device& device, const BenchOptions& options) {
  GpuReport report;
  const uint64_t large = uint64_t{options.mib} << 20, small = 4096;
  auto rig = BM_TRY(Rig::open(device, hal::QueueKind::kCopy));
  hal::Device& d = device.hal();
  const auto host = BM_TRY(d.allocate({.size = large, .host_visible = true, .host_memory = true}));
  const auto a = BM_TRY(d.allocate({.size = large})), b = BM_TRY(d.allocate({.size = large}));
  std::memset(host->host(), 1, large);
  const auto peer =
      d.arch().vendor == hal::Vendor::kNv
          ? open_peer(device, report, [&](CudaPeer& p) { return p.prepare_copies(large); })
          : nullptr;
  struct Way {
    const char* name;
    CopyKind kind;
    hal::GpuVa dst, src;
  };
  for (const Way& way : {Way{"host to device", CopyKind::kHostToDevice, a->va(), host->va()},
                         Way{"device to host", CopyKind::kDeviceToHost, host->va(), a->va()},
                         Way{"device to device", CopyKind::kDeviceToDevice, b->va(), a->va()}}) {
    for (const uint64_t bytes : {small, large}) {
      const bool is_small = bytes == small;
      const Medians m = interleave(
          is_small ? 1000 : 10,
          [&] {
            const hal::Command commands[] = {hal::Copy{way.dst, way.src, bytes},
                                             rig->next_signal()};
            rig->submit(commands);
            rig->wait();
          },
          peer ? Work([&] {
            peer->copy(way.kind, bytes);
            peer->wait();
          })
               : Work{});
      const auto rate = [&](double us) {
        return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
      };
      report.rows.push_back(
          {fmt::format("{}, {}", way.name, is_small ? "4 KiB" : fmt::format("{} MiB", options.mib)),
           is_small ? "us" : "GB/s", is_small ? m.ours_us : rate(m.ours_us),
           is_small ? m.peer_us : rate(m.peer_us), peer ? "cuMemcpyAsync, pinned" : "", ""});
    }
  }
  return report;
}

Result<GpuReport> bench_matmul(runtime::Device& device, const BenchOptions& options) {
  GpuReport report;
  const hal::Vendor vendor = device.hal().arch().vendor;
  const bool is_gpu = vendor == hal::Vendor::kNv || vendor == hal::Vendor::kAmd;
  const uint32_t size = options.size > 0 ? options.size : is_gpu ? 8192 : 1024;
  const int64_t n = size;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-1, 1);
  const auto matrix = [&] {
    std::vector<float> v(static_cast<size_t>(n * n));
    for (float& x : v) x = values(random);
    return Tensor::from(v, {n, n}, options.device).cast(DType::kBF16).contiguous().realize();
  };
  const Tensor a = matrix(), b = matrix();
  const auto peer =
      vendor == hal::Vendor::kNv
          ? open_peer(device, report, [&](CudaPeer& p) { return p.prepare_matmul(size); })
          : nullptr;
  const double flops =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  const auto rate = [&](double us) { return us > 0 ? flops / us / 1e6 : 0; };
  for (const bool is_b_transposed : {false, true}) {
    const std::string name = fmt::format("bfloat16 matmul of {} x {} x {}{}", n, n, n,
                                         is_b_transposed ? ", B transposed" : "");
    if (::isatty(STDERR_FILENO) != 0)
      print_error(fmt::format("{}: at most {} s, and one run\n", name, options.seconds));
    Jit step([is_b_transposed](const Tensor& x, const Tensor& y) {
      return x.matmul(is_b_transposed ? y.transpose(0, 1) : y).contiguous();
    });
    step.capture(a, b);
    unwrap(device.synchronize());
    const Medians m = interleave(
        20,
        [&] {
          step(a, b);
          unwrap(device.synchronize());
        },
        peer ? Work([&] {
          peer->matmul(is_b_transposed);
          peer->wait();
        })
             : Work{},
        {}, options.seconds);
    report.rows.push_back(
        {name, "TFLOP/s", rate(m.ours_us), rate(m.peer_us), peer ? "cuBLAS" : "", ""});
  }
  return report;
}

}  // namespace

double Measurement::ratio() const {
  if (ours <= 0 || peer <= 0) return 0;
  return unit == "us" ? peer / ours : ours / peer;
}

Result<GpuReport> bench_gpu(runtime::Device& device, const BenchOptions& options) {
  switch (options.suite) {
    case BenchSuite::kLatency: return bench_latency(device, options);
    case BenchSuite::kBandwidth: return bench_bandwidth(device, options);
    case BenchSuite::kMatmul: return bench_matmul(device, options);
    case BenchSuite::kReplay:
    case BenchSuite::kOverhead: break;
  }
  return fail(Code::kInternal, "not a suite of the GPU");
}

}  // namespace bm::cli
