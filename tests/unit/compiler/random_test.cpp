// Random kernels: every renderer and target gives what the reference says, to the last bit unless
// the kernel allows otherwise. A failure names the seed.
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "compiler/tune/knobs.h"
#include "compiler/analysis/unify.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/census.h"
#include "tests/unit/compiler/random_compare.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/random_progress.h"
#include "tests/unit/compiler/random_split.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

/// Kernels from which on a run is long: it takes all processors and must reach every schedule.
constexpr uint64_t kLong = 10'000;
/// Kernels of a case that every run compares, however few it is asked for.
constexpr uint64_t kFewest = 4;
constexpr uint64_t kMostFailures = 5;
constexpr uint64_t kSaveEvery = 256;

/// What this thread runs now, for the line that is left if a kernel crashes.
thread_local char t_running[200];
constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

void say_what_ran(int number) {
  // Nothing can be done about a failed write here.
  if (write(STDERR_FILENO, t_running, std::strlen(t_running)) < 0) _exit(1);
  signal(number, SIG_DFL);
  raise(number);
}

enum class Kind : uint8_t {
  kKernel,
  kPattern,
  kFacts,
  kCheckedKernel,
  kChecked,
  kKnobs,
  kPacked,
  kShared
};

struct Case {
  Where where;
  Kind kind;
  uint64_t count;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  static constexpr const char* kNames[] = {
      "Kernels",        "Patterns",        "PatternsOnOddMachines",
      "CheckedKernels", "CheckedPatterns", "PatternsWithAnySchedule",
      "PackedOperands", "SharedConstants"};
  return where_name(info.param.where) + "_" + kNames[static_cast<int>(info.param.kind)];
}

bool is_pattern(Kind kind) { return kind != Kind::kKernel && kind != Kind::kCheckedKernel; }
bool is_checked(Kind kind) { return kind == Kind::kChecked || kind == Kind::kCheckedKernel; }

/// A few steps of a search in directions drawn.
compiler::Knobs any_schedule(const ir::KernelIr& kernel, const hal::Arch& arch, uint64_t seed) {
  std::mt19937_64 random(seed);
  compiler::Knobs knobs;
  // Few kernels are made for it, and one of many choices would rarely ask for it.
  if (random() % 2) knobs.values["transposed"] = 1;
  for (uint64_t steps = 1 + random() % 4; steps-- > 0;) {
    const auto next = compiler::tuning_candidates(kernel, compiler::target_info(arch), knobs);
    if (!next.empty()) knobs = next[random() % next.size()];
  }
  return knobs;
}

uint64_t number_from(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

using Clock = std::chrono::steady_clock;

/// The whole run, over all cases. Thread: any.
class Tally final : public compiler::CompileWatcher {
 public:
  static Tally& instance() {
    static Tally tally;
    return tally;
  }

  void see(const compiler::Schedule& schedule, const compiler::Program& program) override {
    const std::lock_guard lock(mutex_);
    progress_.census.see(schedule, program);
  }
  void add(std::string_view name) {
    const std::lock_guard lock(mutex_);
    progress_.census.add(name, 1);
  }
  uint64_t first(const std::string& name, uint64_t fallback) const {
    const auto it = progress_.next.find(name);
    return it == progress_.next.end() ? fallback : std::max(it->second, fallback);
  }
  /// Everything of the case before seed `next` is done.
  void reach(const std::string& name, uint64_t next) {
    const std::lock_guard lock(mutex_);
    if (path_.empty()) return;
    progress_.next[name] = std::max(progress_.next[name], next);
    const Status saved = progress_.save(path_);
    if (!saved) ADD_FAILURE() << saved.error().message;
  }
  bool is_over() const {
    return minutes_ > 0 && Clock::now() - start_ > minutes_ * std::chrono::minutes(1);
  }
  Census census() const { return progress_.census; }

 private:
  Tally() : minutes_(static_cast<int64_t>(number_from("BM_RANDOM_MINUTES", 0))) {
    if (const char* path = std::getenv("BM_RANDOM_PROGRESS")) path_ = path;
    if (path_.empty()) return;
    auto before = RandomProgress::load(path_);
    if (before)
      progress_ = std::move(*before);
    else
      ADD_FAILURE() << before.error().message;
  }

  std::mutex mutex_;
  RandomProgress progress_;
  std::string path_;
  int64_t minutes_;
  Clock::time_point start_ = Clock::now();
};

/// One kernel of a case.
class Trial {
 public:
  Trial(const Case& c, hal::Arch arch, uint64_t seed)
      : c_(c), arch_(std::move(arch)), seed_(seed) {}

  /// Whether there was anything to compare. Errors: what went wrong, the seed included.
  Result<bool> run() {
    const std::string_view name = is_pattern(c_.kind) ? pattern_name(seed_) : "kernel";
    const char* only = std::getenv("BM_RANDOM_PATTERN");
    if ((only && name != only) || !suits(name)) return false;
    const std::string what = fmt::format("seed {} ({})", seed_, name);
    std::snprintf(t_running, sizeof t_running, "\n%s: crashed in %s\n", what.c_str(),
                  case_name({c_, 0}).c_str());
    k_ = is_pattern(c_.kind) ? random_pattern(seed_) : random_kernel(seed_);
    if (c_.kind == Kind::kFacts) arch_ = varied(arch_, seed_);
    if (c_.kind == Kind::kKnobs) knobs_ = any_schedule(k_.kernel, arch_, seed_);
    auto buffers = k_.buffers;
    std::vector<std::vector<std::byte>> want;
    const bool is_split = c_.kind == Kind::kPacked || c_.kind == Kind::kShared;
    if (!is_split) want = BM_TRY(reference(k_));
    // As kernels come from tensors; the reference has one index per loop.
    const bool is_unified = !is_split && is_pattern(c_.kind) && std::mt19937_64(seed_)() % 2;
    if (is_unified) compiler::unify_ranges(&k_.kernel);
    const auto done = execute(&buffers);
    if (!done) return fail(done.error().code, "{}: {}", what, done.error().message);
    if (!*done) return false;
    if (is_split) want = BM_TRY(reference(k_));
    const auto result = same(k_, buffers, want);
    if (result) return true;
    auto text = compiler::explain(k_.kernel, arch_, renderer_of(c_.where));
    return fail(Code::kInternal, "{}{}, '{}', {}: {}{}", what, k_.text, knobs_.text(), arch_.key(),
                result.message(), text ? text->ir : text.error().message);
  }

 private:
  bool suits(std::string_view name) const {
    // Work-groups share no running results.
    if (!is_cpu(c_.where)) return name != "running" && name != "least";
    return c_.kind != Kind::kPacked || name == "matmul" || name == "convolution" ||
           name.starts_with("panels");
  }

  Result<bool> execute(std::vector<std::vector<std::byte>>* buffers) {
    const ScopedSetting checked("BM_CHECKED", is_checked(c_.kind) ? "1" : "0");
    const compiler::CompileOptions options{.knobs = &knobs_, .watcher = &Tally::instance()};
    const char* renderer = c_.where.renderer;
    if (c_.kind == Kind::kPacked) return run_packed(arch_, renderer, k_, buffers, options);
    if (c_.kind == Kind::kShared) return run_shared(arch_, renderer, k_, buffers, options);
    if (is_cpu(c_.where))
      BM_TRY(run_on_cpu(arch_, renderer, k_.kernel, *buffers, k_.vars, options));
    else
      BM_TRY(run_on(c_.where, k_.kernel, *buffers, k_.vars, options));
    return true;
  }

  const Case& c_;
  hal::Arch arch_;
  uint64_t seed_;
  RandomKernel k_;
  compiler::Knobs knobs_;
};

class Random : public testing::TestWithParam<Case> {
 protected:
  /// Seeds are dealt to threads one at a time.
  void work() {
    const Case& c = GetParam();
    const std::string name = case_name({c, 0});
    for (uint64_t seed = next_++; seed < end_; seed = next_++) {
      if (failures_ >= kMostFailures || Tally::instance().is_over()) break;
      const Result<bool> result = Trial(c, arch_, seed).run();
      if (!result) {
        ++failures_;
        ADD_FAILURE() << result.error().message << "\nagain: BM_RANDOM_SEED=" << seed
                      << " BM_RANDOM_COUNT=1 codegen_test --gtest_filter='All/Random.*/" << name
                      << "'";
      } else if (*result) {
        ++compared_;
        Tally::instance().add(is_cpu(c.where) ? "kernels on CPUs" : "kernels on GPUs");
      }
      if (seed % kSaveEvery == 0) Tally::instance().reach(name, seed - std::min(seed, threads_));
    }
  }

  hal::Arch arch_;
  std::atomic<uint64_t> next_{0}, compared_{0}, failures_{0};
  uint64_t end_ = 0, threads_ = 1;
};

/// BM_RANDOM_PATTERN leaves one kind of patterns, BM_RANDOM_SEED starts elsewhere, BM_RANDOM_COUNT
/// runs so many, BM_RANDOM_SCALE times as many, BM_RANDOM_PERCENT so many of a hundred (the default
/// test run, not the one that continuous integration does), BM_RANDOM_THREADS at a time. A run that
/// BM_RANDOM_MINUTES or anything else has stopped goes on where BM_RANDOM_PROGRESS, a file, says.
TEST_P(Random, AgreesWithTheReference) {
  const Case& c = GetParam();
  if (const std::string reason = why_not(c.where); !reason.empty()) GTEST_SKIP() << reason;
  const uint64_t first = number_from("BM_RANDOM_SEED", 1);
  const uint64_t usual = c.count * number_from("BM_RANDOM_SCALE", 1);
  const uint64_t count =
      number_from("BM_RANDOM_COUNT",
                  std::max<uint64_t>(usual * number_from("BM_RANDOM_PERCENT", 100) / 100, kFewest));
  const std::string name = case_name({c, 0});
  const auto start = Clock::now();
  arch_ = arch_of(c.where);
  end_ = first + count;
  next_ = Tally::instance().first(name, first);
  const uint64_t from = next_;
  const bool is_long = is_cpu(c.where) && number_from("BM_RANDOM_SCALE", 1) > 1;
  const uint64_t processors = std::max(std::thread::hardware_concurrency(), 1u);
  threads_ = number_from("BM_RANDOM_THREADS", is_long ? processors : 1);
  for (const int number : kCrashes) signal(number, say_what_ran);
  std::vector<std::thread> others;
  for (uint64_t i = 1; i < threads_; ++i) others.emplace_back([this] { work(); });
  work();
  for (std::thread& t : others) t.join();
  for (const int number : kCrashes) signal(number, SIG_DFL);
  const uint64_t to = std::min<uint64_t>(next_, end_);
  if (failures_ == 0)
    Tally::instance().reach(name, to == end_ ? end_ : std::max(from, to - std::min(to, threads_)));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  fmt::print("{}: seeds {} … {}{}, {} kernels compared, {:.1f} a second\n", name, from,
             to - std::min<uint64_t>(to, 1), to < end_ ? " (stopped)" : "", compared_.load(),
             static_cast<double>(compared_) / std::max(seconds, 1e-3));
}

/// Says at the end what the kernels were made with.
class Summary final : public testing::Environment {
  void TearDown() override {
    const Census census = Tally::instance().census();
    if (census.counts().empty()) return;
    fmt::print("random kernels by schedule:\n{}", census.text());
    say_missing("kernels on CPUs", native_arch(), census);
    say_missing("kernels on GPUs", arch_of({"PTX"}), census);
  }

  static void say_missing(std::string_view kernels, const hal::Arch& arch, const Census& census) {
    const uint64_t count = census.count(kernels);
    for (const std::string_view name : schedules_for(compiler::target_info(arch))) {
      if (count == 0 || census.count(name) > 0) continue;
      fmt::print("       0 {}\n", name);
      if (count >= kLong) ADD_FAILURE() << "none of " << count << " " << kernels << ": " << name;
    }
  }
};
const testing::Environment* const kSummary = testing::AddGlobalTestEnvironment(new Summary);

constexpr Where kAvx2{"LLVM", true, "-avx512f"}, kSse{"LLVM", true, "-avx"};
INSTANTIATE_TEST_SUITE_P(
    All, Random,
    testing::Values(Case{{"LLVM"}, Kind::kKernel, 250}, Case{{"LLVM"}, Kind::kPattern, 300},
                    Case{{"LLVM"}, Kind::kFacts, 150}, Case{kAvx2, Kind::kKernel, 60},
                    Case{kAvx2, Kind::kPattern, 120}, Case{kSse, Kind::kKernel, 40},
                    Case{kSse, Kind::kPattern, 60}, Case{{"LLVM", false}, Kind::kKernel, 60},
                    Case{{"LLVM", false}, Kind::kPattern, 60}, Case{{"CLANG"}, Kind::kKernel, 25},
                    Case{{"CLANG"}, Kind::kPattern, 36}, Case{{"CLANG", false}, Kind::kKernel, 10},
                    Case{{"LLVM"}, Kind::kKnobs, 150}, Case{kSse, Kind::kKnobs, 40},
                    Case{{"LLVM"}, Kind::kPacked, 500}, Case{kAvx2, Kind::kPacked, 250},
                    Case{{"LLVM"}, Kind::kShared, 150}, Case{kSse, Kind::kShared, 60},
                    Case{{"LLVM"}, Kind::kCheckedKernel, 60}, Case{{"LLVM"}, Kind::kChecked, 60},
                    Case{{"CLANG"}, Kind::kChecked, 24}, Case{{"CLANG"}, Kind::kCheckedKernel, 12},
                    Case{{"OPENCL"}, Kind::kKernel, 25}, Case{{"OPENCL"}, Kind::kPattern, 12},
                    Case{{"PTX"}, Kind::kKernel, 150}, Case{{"PTX"}, Kind::kPattern, 36},
                    Case{{"NVRTC"}, Kind::kKernel, 25}, Case{{"NVPTX"}, Kind::kKernel, 120},
                    Case{{"NVPTX"}, Kind::kPattern, 24}, Case{{"GFX1100"}, Kind::kKernel, 60},
                    Case{{"GFX1100"}, Kind::kPattern, 24}, Case{{"GFX1201"}, Kind::kKernel, 60},
                    Case{{"GFX1201"}, Kind::kPattern, 24}, Case{{"GFX1030"}, Kind::kKernel, 60},
                    Case{{"GFX1030"}, Kind::kPattern, 24}, Case{{"GFX942"}, Kind::kKernel, 60},
                    Case{{"GFX942"}, Kind::kPattern, 24}),
    case_name);

}  // namespace
}  // namespace bm::test
