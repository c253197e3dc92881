#include "tensor/tune_kernel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>

#include "compiler/compile.h"
#include "compiler/ir/number.h"
#include "compiler/tune/tuned.h"
#include "compiler/tune/tuner.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "runtime/base/log.h"
#include "runtime/graph.h"
#include "tensor/shared_kernel.h"

namespace bm {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

/// Runs per measurement: at least so many, and until so much time has passed.
constexpr int kLeastRuns = 3;
constexpr double kMeasureSeconds = 0.01;

/// Differences allowed relative to the largest value of a buffer: what another order of additions
/// explains.
double tolerance(DType t) {
  switch (t) {
    case DType::kF16: return 0x1p-9;
    case DType::kBF16: return 0x1p-6;
    case DType::kF32: return 2e-5;
    case DType::kF64: return 1e-12;
    default: return 0;
  }
}

/// Small integers: sums of products of them are exact, so a missing term shows.
Bytes draw(const ir::Param& p, std::mt19937_64& random) {
  const auto size = static_cast<size_t>(item_size(p.dtype));
  Bytes bytes(static_cast<size_t>(std::max<int64_t>(p.elements, 1)) * size);
  for (size_t i = 0; i < bytes.size(); i += size) {
    const int64_t whole = static_cast<int64_t>(random() % 7) - (is_unsigned(p.dtype) ? 0 : 3);
    const auto f = static_cast<float>(whole);
    const uint64_t bits = is_bool(p.dtype)          ? static_cast<uint64_t>(whole & 1)
                          : p.dtype == DType::kF64  ? std::bit_cast<uint64_t>(double{f})
                          : p.dtype == DType::kF32  ? std::bit_cast<uint32_t>(f)
                          : p.dtype == DType::kF16  ? f32_to_f16(f)
                          : p.dtype == DType::kBF16 ? f32_to_bf16(f)
                                                    : static_cast<uint64_t>(whole);
    std::memcpy(&bytes[i], &bits, size);
  }
  return bytes;
}

bool are_same(DType t, const Bytes& a, const Bytes& b) {
  if (a == b) return true;
  if (!is_float(t)) return false;
  const auto size = static_cast<size_t>(item_size(t));
  double most = 0;
  for (size_t i = 0; i < a.size(); i += size)
    if (const double v = std::fabs(number_at(t, &a[i])); std::isfinite(v)) most = std::max(most, v);
  for (size_t i = 0; i < a.size(); i += size) {
    const double x = number_at(t, &a[i]), y = number_at(t, &b[i]);
    const bool is_close = std::fabs(x - y) <= tolerance(t) * most;
    if (!is_close && !(x == y) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

/// The kernel's buffers on the device, and what the untuned kernel makes of them.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> make(runtime::Device& device, const ir::KernelIr& kernel) {
    auto bench = std::unique_ptr<Bench>(new Bench(device, kernel));
    std::mt19937_64 random(1);
    for (const ir::Param& p : kernel.params) {
      bench->contents_.push_back(draw(p, random));
      bench->buffers_.push_back(
          BM_TRY(runtime::allocate(device, {.size = bench->contents_.back().size()})));
      BM_TRY(runtime::copy_in(bench->buffers_.back(), bench->contents_.back()));
    }
    return bench;
  }

  /// The first candidate is the untuned kernel: its results are kept.
  Result<double> operator()(const hal::CodeObject& candidate, double enough) {
    const runtime::Call call = BM_TRY(call_of(candidate));
    const bool is_first = expected_.empty();
    size_t at = 0;
    for (const std::vector<int64_t>& values : sizes())
      for (size_t p = 0; p < kernel_.params.size(); ++p) {
        if (p == 0) BM_TRY(run_fresh(call, values));
        if (!kernel_.params[p].is_written) continue;
        Bytes got(contents_[p].size());
        BM_TRY(runtime::copy_out(got, buffers_[p]));
        if (is_first)
          expected_.push_back(std::move(got));
        else if (!are_same(kernel_.params[p].dtype, expected_[at++], got))
          return fail(Code::kInternal, "kernel {}: param {} is not what the untuned kernel gives",
                      kernel_.name, p);
      }
    return measure(call, enough);
  }

 private:
  Bench(runtime::Device& device, const ir::KernelIr& kernel) : device_(device), kernel_(kernel) {}

  /// Values of the variables: large first, which is what is measured; then small and odd.
  std::vector<std::vector<int64_t>> sizes() const {
    std::vector<std::vector<int64_t>> all(1);
    for (const ir::VarDecl& v : kernel_.vars) all[0].push_back(v.max);
    if (kernel_.vars.empty()) return all;
    all.emplace_back();
    for (const ir::VarDecl& v : kernel_.vars) all[1].push_back(v.min);
    for (const int64_t part : {2, 3}) {
      all.emplace_back();
      for (const ir::VarDecl& v : kernel_.vars)
        all.back().push_back(v.min + (v.max - v.min) / part + (v.max - v.min > 4 ? 1 : 0));
    }
    // Whole numbers, so that sums stay exact.
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t v = 0; v < kernel_.vars.size(); ++v)
        if (kernel_.vars[v].name == kConstantName)
          all[i][v] = std::bit_cast<int32_t>(static_cast<float>(2 + i + v));
    return all;
  }

  Result<runtime::Call> call_of(const hal::CodeObject& code) {
    runtime::KernelCall launch;
    auto loaded = device_.hal().load(code);
    if (!loaded) return tl::unexpected<Error>(device_.first_cause(std::move(loaded.error())));
    launch.program = std::move(*loaded);
    launch.device = &device_;
    for (uint32_t i = 0; i < kernel_.vars.size(); ++i) launch.vars.push_back(i);
    runtime::Call call{kernel_.name, std::move(launch), {}};
    for (size_t p = 0; p < kernel_.params.size(); ++p)
      call.args.push_back({.buffer = buffers_[p],
                           .is_written = kernel_.params[p].is_written,
                           .is_read = kernel_.params[p].is_read});
    return call;
  }

  Status run_fresh(const runtime::Call& call, const std::vector<int64_t>& values) {
    for (size_t p = 0; p < kernel_.params.size(); ++p)
      if (kernel_.params[p].is_written) BM_TRY(runtime::copy_in(buffers_[p], contents_[p]));
    BM_TRY(runtime::execute(call, values));
    return device_.synchronize();
  }

  Result<double> measure(const runtime::Call& call, double enough) {
    const std::vector<int64_t> values = sizes()[0];
    double best = INFINITY, total = 0;
    for (int run = 0; run < kLeastRuns || total < kMeasureSeconds; ++run) {
      const Clock::time_point start = Clock::now();
      BM_TRY(runtime::execute(call, values));
      BM_TRY(device_.synchronize());
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      best = std::min(best, seconds);
      total += seconds;
      if (run > 0 && best > enough) break;
    }
    return best;
  }

  runtime::Device& device_;
  const ir::KernelIr& kernel_;
  std::vector<Bytes> contents_;
  std::vector<runtime::Buffer> buffers_;
  std::vector<Bytes> expected_;  ///< by size, then written param
};

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

}  // namespace

Status tune_kernel(runtime::Device& device, const ir::KernelIr& kernel) {
  const hal::Arch& arch = device.hal().arch();
  if (arch.vendor == hal::Vendor::kNull || arch.vendor == hal::Vendor::kRef) return {};
  const std::string id = BM_TRY(compiler::schedule_id(kernel, arch, device.renderer()));
  // One search at a time: two would measure each other.
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  if (compiler::find_tuned(id)) return {};
  auto bench = Bench::make(device, kernel);
  if (!bench && bench.error().code == Code::kOutOfMemory) return {};
  if (!bench) return tl::unexpected(std::move(bench.error()));
  const compiler::TuneOptions options{.beam = settings().tune,
                                      .limit = std::chrono::milliseconds(settings().tune_ms)};
  const compiler::TuneResult found = BM_TRY(compiler::tune(
      kernel, arch, device.renderer(), options,
      [&](const hal::CodeObject& code, double enough) { return (**bench)(code, enough); }));
  log("compiler", LogLevel::kInfo, "tuned {}: {:.1f} to {:.1f} us, {} tried, {} refused, '{}'",
      kernel.name, found.before * 1e6, found.after * 1e6, found.tried, found.refused,
      found.knobs.text());
  std::string target = arch.cpu.empty() ? arch.name : arch.cpu;
  std::replace(target.begin(), target.end(), ' ', '_');
  compiler::remember_tuned({.id = id,
                            .kernel = kernel.name,
                            .target = target,
                            .before_ns = nanoseconds(found.before),
                            .after_ns = nanoseconds(found.after),
                            .knobs = found.knobs});
  return {};
}

}  // namespace bm
