#include "tools/bellmetal/explain.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/device.h"
#include "tensor/capture_scope.h"
#include "tensor/exception.h"
#include "tools/bellmetal/cpu_bench/stats.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Current values of a schedule's variables.
std::vector<int64_t> values_of(const std::vector<Var>& vars) {
  std::vector<int64_t> out;
  for (const Var& v : vars) out.push_back(v.value());
  return out;
}

const runtime::KernelCall* kernel_of(const runtime::Call& call) {
  return std::get_if<runtime::KernelCall>(&call.what);
}

}  // namespace

std::vector<std::string> explain_stages() {
  return {"ir", "schedule", "program", "source", "assembly"};
}

Result<std::unique_ptr<Recorded>> Recorded::record(const std::function<void()>& work) {
  auto out = std::make_unique<Recorded>();
  try {
    const KernelRecorder kernels;
    CaptureScope capture;
    work();
    out->schedule_ = capture.take();
    out->irs_ = kernels.programs();
  } catch (const Exception& e) {
    return tl::unexpected(e.error());
  }
  for (const runtime::Call& call : out->schedule_.calls) {
    const runtime::KernelCall* kernel = kernel_of(call);
    if (!kernel) continue;
    const auto known = std::find_if(
        out->kernels_.begin(), out->kernels_.end(),
        [&](const ExplainedKernel& k) { return kernel_of(k.call)->program == kernel->program; });
    if (known != out->kernels_.end())
      ++known->launches;
    else
      out->kernels_.push_back({call, 1, kernel->flops, kernel->bytes});
  }
  return out;
}

const ir::KernelIr* Recorded::ir(const ExplainedKernel& kernel) const {
  const auto found = irs_.find(kernel_of(kernel.call)->program.get());
  return found == irs_.end() ? nullptr : found->second.get();
}

std::vector<int64_t> Recorded::variables(const ExplainedKernel& kernel) const {
  const runtime::KernelCall& call = *kernel_of(kernel.call);
  const std::vector<int64_t> all = values_of(schedule_.vars);
  std::vector<int64_t> out;
  for (const uint32_t number : call.vars) out.push_back(all[number]);
  out.insert(out.end(), call.constants.begin(), call.constants.end());
  return out;
}

Result<double> Recorded::measure(const ExplainedKernel& kernel) const {
  constexpr double kSeconds = 0.05, kLongSeconds = 1;  // of several launches, of one
  const std::vector<int64_t> vars = values_of(schedule_.vars);
  runtime::Device& device = *kernel_of(kernel.call)->device;
  std::vector<double> samples;
  const auto start = Clock::now();
  for (int i = 0; i < 200; ++i) {
    const auto before = Clock::now();
    BM_TRY(runtime::execute(kernel.call, vars));
    BM_TRY(device.synchronize());
    const auto after = Clock::now();
    if (i > 0) samples.push_back(std::chrono::duration<double>(after - before).count());
    const double spent = std::chrono::duration<double>(after - start).count();
    if (spent > kLongSeconds && i == 0) samples.push_back(spent);
    if (spent > (i > 3 ? kSeconds : kLongSeconds)) break;
  }
  return summarize(std::move(samples)).median;
}

double Roofline::rate(const Contender& limit, double amount) {
  std::vector<double> samples;
  limit.seconds(1);
  for (int i = 0; i < 20; ++i) samples.push_back(limit.seconds(1));
  return amount / summarize(std::move(samples)).least;
}

double Roofline::flops_per_second() {
  if (flops_ == 0) {
    double amount = 0;
    const Contender limit = fma_limit(team_, &amount);
    flops_ = rate(limit, amount);
  }
  return flops_;
}

double Roofline::bytes_per_second(double bytes) {
  // From what every core's first cache holds to what no cache does.
  const int size =
      std::clamp(static_cast<int>(std::lround(std::log2(std::max(bytes, 1.0)))), 14, 29);
  double& known = bytes_[size];
  if (known == 0) {
    // Small arrays often enough for the clock.
    const int times = std::max(1, (1 << 24) >> std::min(size, 24));
    known = rate(read_limit(team_, size_t{1} << size, times), std::exp2(size) * times);
  }
  return known;
}

Roof Roofline::roof(double flops, double bytes) {
  const double arithmetic = flops / flops_per_second();
  const double memory = bytes / bytes_per_second(bytes);
  return {std::max(arithmetic, memory), memory >= arithmetic};
}

}  // namespace bm::cli
