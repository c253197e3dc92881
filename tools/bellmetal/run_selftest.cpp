// Self-test: a fixed list of checks that takes seconds and is the first thing to run on a new
// device.
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include <nlohmann/json.hpp>

#include "runtime/allocator.h"
#include "runtime/base/env.h"
#include "runtime/base/thread.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/stream.h"
#include "tensor/jit.h"
#include "tensor/primitives.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

constexpr uint32_t kSeed = 20240607;

struct Context {
  runtime::Device& device;
  std::string name;
  std::mt19937 random{kSeed};

  std::vector<float> floats(size_t n, float low = -1, float high = 1) {
    std::uniform_real_distribution<float> d(low, high);
    std::vector<float> v(n);
    for (float& x : v) x = d(random);
    return v;
  }
  std::vector<std::byte> bytes(size_t n) {
    std::vector<std::byte> v(n);
    for (std::byte& b : v) b = static_cast<std::byte>(random());
    return v;
  }
  Tensor tensor(const std::vector<float>& v, const Shape& shape) {
    return Tensor::from(v, shape, name);
  }
};

[[noreturn]] void wrong(std::string what) {
  throw Exception(Error{Code::kInternal, std::move(what)});
}

void expect_close(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                  std::string_view what) {
  if (got.size() != want.size())
    wrong(fmt::format("{}: {} values instead of {}", what, got.size(), want.size()));
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(static_cast<double>(got[i]) - want[i]) <= tolerance * (1 + std::abs(want[i]))))
      wrong(fmt::format("{}: element {} is {}, expected {}", what, i, got[i], want[i]));
}

// --- checks --------------------------------------------------------------------------------------

void check_allocate(Context& c) {
  std::vector<runtime::Buffer> held;
  for (uint64_t size : {1ULL, 255ULL, 4096ULL, 65537ULL, 3ULL << 20, 64ULL << 20}) {
    runtime::Buffer b = unwrap(runtime::allocate(c.device, {.size = size}));
    if (b.size < size) wrong(fmt::format("asked for {} bytes, got {}", size, b.size));
    for (const runtime::Buffer& other : held) {
      const uint64_t a0 = hal::raw(b.va()), b0 = hal::raw(other.va());
      if (a0 < b0 + other.size && b0 < a0 + b.size) wrong("two live allocations overlap");
    }
    held.push_back(std::move(b));
  }
  const runtime::Buffer zero = unwrap(runtime::allocate(c.device, {.size = 100'000, .zero = true}));
  std::vector<std::byte> data(100'000, std::byte{1});
  runtime::Buffer view = zero;
  view.size = data.size();
  unwrap(runtime::copy_out(data, view));
  for (std::byte b : data)
    if (b != std::byte{0}) wrong("zeroed memory is not zero");
  for (int i = 0; i < 1000; ++i)
    unwrap(runtime::allocate(c.device, {.size = static_cast<uint64_t>(1 + i * 37)}));
}

void check_copy(Context& c) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{4096}, (size_t{5} << 20) + 123}) {
    const std::vector<std::byte> data = c.bytes(size);
    runtime::Buffer a = unwrap(runtime::allocate(c.device, {.size = size})),
                    b = unwrap(runtime::allocate(c.device, {.size = size}));
    a.size = b.size = size;
    unwrap(runtime::copy_in(a, data));
    unwrap(runtime::copy(b, a));
    std::vector<std::byte> back(size);
    unwrap(runtime::copy_out(back, b));
    if (back != data) wrong(fmt::format("{} bytes came back changed", size));
  }
  const std::vector<std::byte> data = c.bytes(10'000);
  runtime::Buffer whole = unwrap(runtime::allocate(c.device, {.size = 10'000}));
  whole.size = 10'000;
  unwrap(runtime::copy_in(whole, data));
  std::vector<std::byte> part(777);
  unwrap(runtime::copy_out(part, unwrap(whole.view(1234, 777))));
  if (!std::equal(part.begin(), part.end(), data.begin() + 1234))
    wrong("a view of a buffer reads other bytes");
}

void check_dispatch(Context& c) {
  for (int64_t n : {1, 7, 1000, 100'003}) {
    const auto a = c.floats(static_cast<size_t>(n)), b = c.floats(static_cast<size_t>(n));
    std::vector<double> want;
    for (size_t i = 0; i < a.size(); ++i) want.push_back(static_cast<double>(a[i] * b[i] + a[i]));
    expect_close(((c.tensor(a, {n}) * c.tensor(b, {n})) + c.tensor(a, {n})).data<float>(), want,
                 1e-6, "a*b+a");
  }
}

void check_integers(Context& c) {
  std::vector<int64_t> a;
  for (int i = 0; i < 4096; ++i) a.push_back(static_cast<int64_t>(c.random()) * (i % 2 ? 1 : -1));
  const Tensor t = Tensor::from(a, {4096}, c.name);
  const auto got = ((t * 3 - 7) ^ (t >> 5)).data<int64_t>();
  for (size_t i = 0; i < a.size(); ++i)
    if (got[i] != ((a[i] * 3 - 7) ^ (a[i] >> 5))) wrong(fmt::format("int64 element {} differs", i));
  const auto bytes = t.cast(DType::kU8).data<uint8_t>();
  for (size_t i = 0; i < a.size(); ++i)
    if (bytes[i] != static_cast<uint8_t>(a[i]))
      wrong(fmt::format("cast to uint8 of element {} differs", i));
}

void check_matmul(Context& c) {
  constexpr int64_t m = 33, k = 70, n = 45;
  const auto a = c.floats(m * k), b = c.floats(k * n);
  std::vector<double> want(m * n, 0.0);
  for (size_t i = 0; i < m; ++i)
    for (size_t p = 0; p < k; ++p)
      for (size_t j = 0; j < n; ++j)
        want[i * n + j] += static_cast<double>(a[i * k + p]) * static_cast<double>(b[p * n + j]);
  expect_close(c.tensor(a, {m, k}).matmul(c.tensor(b, {k, n})).data<float>(), want, 1e-5, "matmul");
}

void check_math(Context& c) {
  const auto x = c.floats(5000, -4, 4);
  const Tensor t = c.tensor(x, {5000});
  const auto against = [&](const Tensor& got, auto&& f, std::string_view what) {
    std::vector<double> want;
    for (float v : x) want.push_back(f(static_cast<double>(v)));
    expect_close(got.data<float>(), want, 2e-6, what);
  };
  against(t.exp(), [](double v) { return std::exp(v); }, "exp");
  against(t.sin(), [](double v) { return std::sin(v); }, "sin");
  against((t * t + 1).log(), [](double v) { return std::log(v * v + 1); }, "log");
  against((t * t + 1).sqrt(), [](double v) { return std::sqrt(v * v + 1); }, "sqrt");
  double sum = 0;
  float largest = x[0];
  for (float v : x) {
    sum += static_cast<double>(v);
    largest = std::max(largest, v);
  }
  expect_close({t.sum().item<float>()}, {sum}, 1e-4, "sum");
  if (t.max().item<float>() != largest) wrong("max differs");
}

void check_movement(Context& c) {
  const auto v = c.floats(60);
  const Tensor t = c.tensor(v, {3, 4, 5});
  const auto got =
      t.permute({2, 0, 1}).flip({1}).pad({{1, 0}, {0, 0}, {0, 2}}, 9).contiguous().data<float>();
  size_t at = 0;
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 6; ++k, ++at) {
        const float want =
            i == 0 || k >= 4 ? 9.0F : v[static_cast<size_t>((2 - j) * 20 + k * 5 + (i - 1))];
        if (got[at] != want)
          wrong(
              fmt::format("permute, flip, pad: element {} is {}, expected {}", at, got[at], want));
      }
}

void check_graph_replay(Context& c) {
  Var n("n", 1, 8);
  Jit step([&](const Tensor& a, const Tensor& b) {
    const Tensor sum = (a + b).contiguous();
    return (sum * a).contiguous().shrink({{0, SymInt(n)}}).sum();
  });
  for (int i = 0; i < 20; ++i) {
    n.set(1 + i % 8);
    const auto a = c.floats(8), b = c.floats(8);
    double want = 0;
    for (size_t k = 0; k < static_cast<size_t>(n.value()); ++k)
      want += static_cast<double>((a[k] + b[k]) * a[k]);
    expect_close({step(c.tensor(a, {8}), c.tensor(b, {8})).item<float>()}, {want}, 1e-5,
                 fmt::format("replay {}", i));
  }
}

void check_state(Context& c) {
  Tensor counter = Tensor::zeros({4}, DType::kI32, c.name).contiguous().realize();
  Jit step([&](const Tensor& by) {
    counter.assign(counter + by);
    return counter + 0;
  });
  const Tensor one = Tensor::from<int32_t>({1, 2, 3, 4}, c.name);
  for (int i = 1; i <= 50; ++i) {
    if (is_interrupted()) return;
    const auto got = step(one).data<int32_t>();
    for (int k = 0; k < 4; ++k)
      if (got[static_cast<size_t>(k)] != i * (k + 1))
        wrong(fmt::format("after {} steps element {} is {}", i, k, got[static_cast<size_t>(k)]));
  }
}

/// A copy queue waits for a value only the compute queue (or the host) publishes.
void check_queues(Context& c) {
  hal::Device& device = c.device.hal();
  auto memory = unwrap(device.allocate({.size = 4096, .host_visible = true, .uncached = true}));
  if (!memory->host()) wrong("host-visible memory has no host address");
  std::memset(memory->host(), 0, 4096);
  const hal::GpuVa signal = memory->va(), a = hal::offset(memory->va(), 1024),
                   b = hal::offset(memory->va(), 2048);
  const uint64_t pattern = 0x0123456789abcdefULL;
  const hal::Command first[] = {hal::Write{a, pattern}, hal::Timestamp{hal::offset(signal, 8)},
                                hal::Signal{signal, 1}};
  unwrap(device.queue(hal::QueueKind::kCompute).submit(first));
  const hal::Command second[] = {hal::Wait{signal, 1}, hal::Barrier{}, hal::Copy{b, a, 8},
                                 hal::Timestamp{hal::offset(signal, 16)}, hal::Signal{signal, 2}};
  unwrap(device.queue(hal::QueueKind::kCopy).submit(second));
  const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(memory->host());
  const auto limit = std::chrono::milliseconds(settings().wait_timeout_ms);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (words[0].load() < 2) {
    if (is_interrupted()) return;
    unwrap(device.status());
    if (std::chrono::steady_clock::now() > deadline)
      throw Exception(c.device.first_cause(
          {Code::kTimeout, fmt::format("no progress for {} ms: a signal between the queues is {}, "
                                       "expected 2",
                                       limit.count(), words[0].load())}));
    std::this_thread::yield();
  }
  if (words[256].load() != pattern) wrong("queues: the copy ran before the write it waits for");
  if (words[2].load() < words[1].load()) wrong("queues: timestamps run backwards");
}

void check_pressure(Context& c) {
  Tensor t = Tensor::zeros({16}, DType::kF32, c.name).contiguous().realize();
  for (int i = 0; i < 2000; ++i) {
    if (is_interrupted()) return;
    t = (t + 1).realize();
  }
  for (float v : t.data<float>())
    if (v != 2000.0F) wrong(fmt::format("2000 launches in a row gave {}", v));
}

void check_threads(Context& c) {
  std::vector<std::string> problems(3);
  std::vector<Thread> threads;  // joined before the problems go
  for (size_t k = 0; k < problems.size(); ++k)
    threads.push_back(unwrap(Thread::start([&, k] {
      try {
        guard_call("threads", [&] {
          Tensor t = Tensor::full({1000}, static_cast<double>(k), DType::kF32, c.name)
                         .contiguous()
                         .realize();
          for (int i = 0; i < 50; ++i) {
            if (is_interrupted()) return;
            t = (t * 1 + 2).realize();
          }
          for (float v : t.data<float>())
            if (v != static_cast<float>(k + 100))
              problems[k] = fmt::format("thread {} got {}", k, v);
        });
      } catch (const Exception& e) {
        problems[k] = e.what();
      }
    })));
  for (Thread& t : threads) t.join();
  for (const std::string& p : problems)
    if (!p.empty()) wrong(p);
}

struct Check {
  const char* name;
  void (*run)(Context&);
  bool needs_results;  ///< compares numbers: pointless where nothing is computed
};

constexpr Check kChecks[] = {
    {"allocation", check_allocate, false},   {"copy", check_copy, true},
    {"dispatch", check_dispatch, true},      {"integers", check_integers, true},
    {"matmul", check_matmul, true},          {"math", check_math, true},
    {"movement", check_movement, true},      {"graph_replay", check_graph_replay, true},
    {"state_in_replay", check_state, true},  {"multi_queue", check_queues, true},
    {"many_launches", check_pressure, true}, {"threads", check_threads, true},
};

/// What became of one device.
struct Outcome {
  int failed = 0, passed = 0, not_run = 0;
  std::optional<Error> lost;
  bool is_interrupted = false;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
};

class SelfTest {
 public:
  SelfTest(runtime::Device& device, const std::string& name, bool is_json)
      : context_{device, name}, is_json_(is_json) {}

  Outcome run() {
    for (const Check& check : kChecks) {
      if (!out_.is_interrupted) run_one(check);
    }
    if (out_.is_interrupted) return std::move(out_);
    if (!is_json_) {
      fmt::print("{} passed, {} failed", out_.passed, out_.failed);
      fmt::print("{}\n", out_.not_run != 0 ? fmt::format(", {} not run", out_.not_run) : "");
    }
    return std::move(out_);
  }

 private:
  void run_one(const Check& check) {
    const auto start = std::chrono::steady_clock::now();
    std::string status = "pass", detail;
    if (out_.lost) {
      status = "not_run";
      detail = "the device is lost";
      ++out_.not_run;
    } else if (check.needs_results && context_.device.hal().arch().vendor == hal::Vendor::kNull) {
      status = "skip";
      detail = "this device computes nothing";
    } else {
      std::tie(status, detail) = judge(check);
    }
    if (is_interrupted()) {
      out_.is_interrupted = true;
      return;
    }
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    out_.rows.push_back({{"name", check.name}, {"status", status}, {"ms", ms}, {"detail", detail}});
    if (is_json_) return;
    const Style style = status == "pass"   ? Style::kGreen
                        : status == "fail" ? Style::kRed
                                           : Style::kYellow;
    fmt::print("{} {:<16} {:>8.1f} ms  {}\n", styled(status, style, has_color(stdout)), check.name,
               ms, detail);
  }

  std::pair<std::string, std::string> judge(const Check& check) {
    std::optional<Error> error;
    try {
      guard_call(check.name, [&] { check.run(context_); });
      // Work that nobody waited for is this check's, too.
      if (Status done = context_.device.synchronize(); !done) error = std::move(done.error());
    } catch (const Exception& e) {
      error = e.error();
    }
    if (!error) {
      ++out_.passed;
      return {"pass", ""};
    }
    ++out_.failed;
    // A check may have met the loss in a thread and told it in its own words.
    if (const Status alive = context_.device.lost(); !alive) {
      out_.lost = error = alive.error();
    } else if (is_device_error(error->code)) {
      out_.lost = error;
    }
    return {"fail", error->message};
  }

  Context context_;
  const bool is_json_;
  Outcome out_;
};

}  // namespace

int run_selftest(const SelftestOptions& options) {
  InterruptScope interrupt;
  std::vector<std::string> names = options.devices;
  if (names.empty()) names.emplace_back();
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  int exit = kOk;
  // A device that failed says more than one with a wrong result, or than one that is not there.
  const auto note = [&](int code) { exit = code == kDeviceFailed || exit == kOk ? code : exit; };
  for (const std::string& name : names) {
    auto device = name.empty() ? runtime::default_device() : runtime::open_device(name);
    if (!device) {
      if (names.size() == 1) return report(device.error(), options.json);
      note(exit_code(device.error().code));
      if (!options.json) report(device.error(), false);
      devices.push_back({{"device", name}, {"ok", false}, {"error", json_of(device.error())}});
      continue;
    }
    if (!options.json) fmt::print("{}: {}\n", (*device)->name(), (*device)->hal().description());
    Outcome outcome = SelfTest(**device, name, options.json).run();
    if (outcome.is_interrupted) return kInterrupted;
    nlohmann::ordered_json row = {
        {"device", (*device)->name()},      {"description", (*device)->hal().description()},
        {"passed", outcome.passed},         {"failed", outcome.failed},
        {"not_run", outcome.not_run},       {"ok", outcome.failed == 0},
        {"checks", std::move(outcome.rows)}};
    if (outcome.failed != 0) note(kFailure);
    if (outcome.lost) {
      note(exit_code(outcome.lost->code));
      row["error"] = json_of(*outcome.lost);
      std::fflush(stdout);
      if (!options.json) report(*outcome.lost, false);
    }
    devices.push_back(std::move(row));
  }
  if (options.json && names.size() == 1)
    print_json(devices.front());
  else if (options.json)
    print_json({{"devices", devices}, {"ok", exit == kOk}});
  return exit;
}

}  // namespace bm::cli
