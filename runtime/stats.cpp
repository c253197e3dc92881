#include "runtime/stats.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <unordered_set>

#include <fmt/format.h>

#include "runtime/allocator.h"
#include "runtime/base/env.h"
#include "runtime/device.h"
#include "runtime/profiler.h"

namespace bm::runtime {
namespace {

/// Counters change on every launch from any thread: relaxed is enough, nothing is published by
/// them.
struct State {
  std::atomic<uint64_t> kernels{0}, operations{0}, bytes{0}, timed_ns{0};
  std::mutex counters_mutex;
  std::unordered_set<LaunchCounter*> counters;  // whose launches are not in the numbers above
  std::mutex mutex;                             // the rest is only touched when DEBUG >= 2
  std::unordered_set<std::string> seen;
};

State& state() {
  // Process-wide by nature and never destroyed: devices report work until the very end.
  static State* const instance = new State;
  return *instance;
}

uint64_t to_count(double estimate) { return estimate > 0 ? static_cast<uint64_t>(estimate) : 0; }

uint64_t memory_used() {
  uint64_t used = 0;
  for (Device* device : opened_devices()) used += device->allocator().stats().used;
  return used;
}

const char* color_of(Launch::Kind kind, bool is_first) {
  switch (kind) {
    case Launch::Kind::kKernel:
      return is_first ? "\033[32m" : "\033[37m";  // green once, then white
    case Launch::Kind::kCopy: return "\033[33m";
    case Launch::Kind::kGraph: return "\033[36m";
    case Launch::Kind::kHost: return "\033[35m";
  }
  return "";
}

void print(const Launch& launch, uint64_t sequence, int64_t total_ns) {
  State& s = state();
  const bool use_color = !settings().no_color && isatty(STDERR_FILENO) != 0;
  const uint64_t used = memory_used();
  const std::lock_guard lock(s.mutex);
  const bool is_first = s.seen.emplace(launch.name).second;
  const std::string line =
      format_launch(launch, sequence, total_ns, used, is_first, use_color) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

bool is_timing() { return settings().debug >= 2 || profiler().is_on(); }

void LaunchCounter::start(const Launch& launch) {
  each_ = {.kernels = launch.calls,
           .operations = to_count(launch.flops),
           .bytes = to_count(launch.bytes)};
  State& s = state();
  const std::lock_guard lock(s.counters_mutex);
  s.counters.insert(this);
}

LaunchCounter::~LaunchCounter() {
  State& s = state();
  const std::lock_guard lock(s.counters_mutex);
  if (s.counters.erase(this) == 0) return;
  const Counters all = sum();
  s.kernels.fetch_add(all.kernels, std::memory_order_relaxed);
  s.operations.fetch_add(all.operations, std::memory_order_relaxed);
  s.bytes.fetch_add(all.bytes, std::memory_order_relaxed);
}

/// Since the last reset.
Counters LaunchCounter::sum() const {
  const uint64_t n = count_.load(std::memory_order_relaxed) - counted_;
  return {
      .kernels = n * each_.kernels, .operations = n * each_.operations, .bytes = n * each_.bytes};
}

void update_stats(const Launch& launch) {
  State& s = state();
  const uint64_t sequence =
      s.kernels.fetch_add(launch.calls, std::memory_order_relaxed) + launch.calls;
  s.operations.fetch_add(to_count(launch.flops), std::memory_order_relaxed);
  s.bytes.fetch_add(to_count(launch.bytes), std::memory_order_relaxed);
  if (launch.duration_ns > 0)
    s.timed_ns.fetch_add(static_cast<uint64_t>(launch.duration_ns), std::memory_order_relaxed);
  if (settings().debug >= 2) [[unlikely]] {
    uint64_t replayed = 0;
    {
      const std::lock_guard lock(s.counters_mutex);
      for (const LaunchCounter* c : s.counters) replayed += c->sum().kernels;
    }
    print(launch, sequence + replayed,
          static_cast<int64_t>(s.timed_ns.load(std::memory_order_relaxed)));
  }
}

std::string format_launch(const Launch& launch, uint64_t sequence, int64_t total_ns,
                          uint64_t memory_used_bytes, bool is_first, bool use_color) {
  constexpr size_t kNameColumns = 40;
  // Padding is computed from the plain name: escape sequences take no columns.
  const std::string padding(kNameColumns - std::min(kNameColumns, launch.name.size()), ' ');
  std::string line = fmt::format(
      "*** {:<8} {:>6} {}{}{}{} arg {:>3} mem {:>7.3f} GB", launch.device, sequence,
      use_color ? color_of(launch.kind, is_first) : "", launch.name, use_color ? "\033[0m" : "",
      padding, launch.num_args, static_cast<double>(memory_used_bytes) * 1e-9);
  if (launch.duration_ns < 0) return line;
  const double ns = static_cast<double>(std::max<int64_t>(launch.duration_ns, 1));
  line += fmt::format(" tm {:>10.2f}us/{:>9.2f}ms ({:>9.2f} GFLOPS {:>8.2f} GB/s)", ns * 1e-3,
                      static_cast<double>(total_ns) * 1e-6, launch.flops / ns, launch.bytes / ns);
  if (launch.calls > 1) line += fmt::format(" {} calls", launch.calls);
  return line;
}

Counters counters() {
  State& s = state();
  Counters all{.memory_used = memory_used(),
               .seconds = static_cast<double>(s.timed_ns.load(std::memory_order_relaxed)) * 1e-9};
  const std::lock_guard lock(s.counters_mutex);
  for (const LaunchCounter* c : s.counters) {
    const Counters one = c->sum();
    all.kernels += one.kernels;
    all.operations += one.operations;
    all.bytes += one.bytes;
  }
  all.kernels += s.kernels.load(std::memory_order_relaxed);
  all.operations += s.operations.load(std::memory_order_relaxed);
  all.bytes += s.bytes.load(std::memory_order_relaxed);
  return all;
}

void reset_counters() {
  State& s = state();
  const std::lock_guard lock(s.counters_mutex);
  for (LaunchCounter* c : s.counters) c->counted_ = c->count_.load(std::memory_order_relaxed);
  for (auto* counter : {&s.kernels, &s.operations, &s.bytes, &s.timed_ns})
    counter->store(0, std::memory_order_relaxed);
}

}  // namespace bm::runtime
