// Random kernels: every renderer and target gives what the reference says, to the last bit unless
// the kernel allows otherwise. A failure names the seed.
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "compiler/codegen/evaluate.h"
#include "compiler/opt/knobs.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tests/unit/codegen/random_kernel.h"
#include "tests/unit/codegen/runner.h"

namespace bm::test {
namespace {

bool is_nan(DType t, const std::byte* at) {
  const auto load = [&](auto v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (t) {
    case DType::kF16: return (load(uint16_t{}) & 0x7fff) > 0x7c00;
    case DType::kBF16: return (load(uint16_t{}) & 0x7fff) > 0x7f80;
    case DType::kF32: return std::isnan(load(float{}));
    case DType::kF64: return std::isnan(load(double{}));
    default: return false;
  }
}

std::vector<std::vector<std::byte>> reference(const RandomKernel& k) {
  auto buffers = k.buffers;
  std::vector<std::span<std::byte>> spans(buffers.begin(), buffers.end());
  const Status done = compiler::evaluate(k.kernel, spans, k.vars);
  EXPECT_TRUE(done) << done.error().message;
  return buffers;
}

double number(DType t, const std::byte* at) {
  const auto load = [&](auto v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (t) {
    case DType::kF16: return static_cast<double>(f16_to_f32(load(uint16_t{})));
    case DType::kBF16: return static_cast<double>(bf16_to_f32(load(uint16_t{})));
    case DType::kF32: return static_cast<double>(load(float{}));
    case DType::kF64: return load(double{});
    default: return 0;
  }
}

/// Largest finite magnitude, at least 1.
double scale_of(DType t, const std::vector<std::byte>& bytes) {
  double most = 1;
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(item_size(t)))
    if (const double v = std::fabs(number(t, &bytes[i])); std::isfinite(v))
      most = std::max(most, v);
  return most;
}

testing::AssertionResult same(const RandomKernel& k, const std::vector<std::vector<std::byte>>& got,
                              const std::vector<std::vector<std::byte>>& want) {
  for (size_t p = 0; p < want.size(); ++p) {
    const DType t = k.kernel.params[p].dtype;
    const auto size = static_cast<size_t>(item_size(t));
    const double rounding = t == DType::kBF16 ? 0x1p-8 : t == DType::kF16 ? 0x1p-11 : 0;
    const double room =
        is_float(t) && k.tolerance > 0 ? std::max(k.tolerance, rounding) * scale_of(t, want[p]) : 0;
    for (size_t i = 0; i < want[p].size(); i += size) {
      if (std::memcmp(&got[p][i], &want[p][i], size) == 0) continue;
      if (is_nan(t, &got[p][i]) && is_nan(t, &want[p][i])) continue;
      if (room > 0 && std::fabs(number(t, &got[p][i]) - number(t, &want[p][i])) <= room) continue;
      uint64_t g = 0, w = 0;
      std::memcpy(&g, &got[p][i], size);
      std::memcpy(&w, &want[p][i], size);
      return testing::AssertionFailure() << fmt::format(
                 "param {} ({}) element {}: got {:#x} ({}), want {:#x} ({})\n", p, dtype_name(t),
                 i / size, g, number(t, &got[p][i]), w, number(t, &want[p][i]));
    }
  }
  return testing::AssertionSuccess();
}

/// What runs now, for the line that is left if a kernel crashes.
char g_running[160];

void say_what_ran(int number) {
  // Nothing can be done about a failed write here.
  if (write(STDERR_FILENO, g_running, std::strlen(g_running)) < 0) _exit(1);
  signal(number, SIG_DFL);
  raise(number);
}

enum class Kind : uint8_t { kKernel, kPattern, kFacts, kCheckedKernel, kChecked, kKnobs };

struct Case {
  Where where;
  Kind kind;
  uint64_t count;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  static constexpr const char* kNames[] = {
      "Kernels",        "Patterns",        "PatternsOnOddMachines",
      "CheckedKernels", "CheckedPatterns", "PatternsWithAnySchedule"};
  return where_name(info.param.where) + "_" + kNames[static_cast<int>(info.param.kind)];
}

bool is_pattern(Kind kind) { return kind != Kind::kKernel && kind != Kind::kCheckedKernel; }

RandomKernel draw(Kind kind, uint64_t seed) {
  return is_pattern(kind) ? random_pattern(seed) : random_kernel(seed);
}

/// A few steps of a search in directions drawn.
compiler::Knobs any_schedule(const ir::KernelIr& kernel, const hal::Arch& arch, uint64_t seed) {
  std::mt19937_64 random(seed);
  compiler::Knobs knobs;
  for (uint64_t steps = 1 + random() % 4; steps-- > 0;) {
    const auto next = compiler::neighbours(kernel, compiler::target_info(arch), knobs);
    if (!next.empty()) knobs = next[random() % next.size()];
  }
  return knobs;
}

class Random : public testing::TestWithParam<Case> {
 protected:
  void check(uint64_t seed) {
    const Case& c = GetParam();
    const RandomKernel k = draw(c.kind, seed);
    const std::string_view name = is_pattern(c.kind) ? pattern_name(seed) : "kernel";
    const char* only = std::getenv("BM_RANDOM_PATTERN");
    if (only && name != only) return;
    // Work-groups share no running results.
    if (!is_cpu(c.where) && (name == "running" || name == "least")) return;
    const std::string what = fmt::format("seed {} ({})", seed, name);
    std::snprintf(g_running, sizeof g_running, "\n%s: crashed in %s\n", what.c_str(),
                  case_name({c, 0}).c_str());
    hal::Arch arch = arch_of(c.where);
    if (c.kind == Kind::kFacts) arch = varied(arch, seed);
    const bool is_checked = c.kind == Kind::kChecked || c.kind == Kind::kCheckedKernel;
    const ScopedSetting checked("BM_CHECKED", is_checked ? "1" : "0");
    auto buffers = k.buffers;
    compiler::Knobs knobs;
    if (c.kind == Kind::kKnobs) knobs = any_schedule(k.kernel, arch, seed);
    const Status done = is_cpu(c.where)
                            ? run_on_cpu(arch, c.where.renderer, k.kernel, buffers, k.vars, &knobs)
                            : run_on(c.where, k.kernel, buffers, k.vars);
    ASSERT_TRUE(done) << what << ": " << done.error().message;
    const auto result = same(k, buffers, reference(k));
    if (result) return;
    auto text = compiler::explain(k.kernel, arch, renderer_of(c.where));
    FAIL() << what << ", '" << knobs.text() << "', " << arch.key() << ": " << result.message()
           << (text ? text->ir : text.error().message);
  }
};

uint64_t number_from(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

/// BM_RANDOM_PATTERN leaves one kind of patterns, BM_RANDOM_SEED starts elsewhere, BM_RANDOM_COUNT
/// runs so many, BM_RANDOM_SCALE times as many.
TEST_P(Random, AgreesWithTheReference) {
  const Case& c = GetParam();
  if (const std::string reason = why_not(c.where); !reason.empty()) GTEST_SKIP() << reason;
  const uint64_t first = number_from("BM_RANDOM_SEED", 1);
  const uint64_t count =
      number_from("BM_RANDOM_COUNT", c.count * number_from("BM_RANDOM_SCALE", 1));
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) signal(number, say_what_ran);
  for (uint64_t seed = first; seed < first + count && !HasFatalFailure(); ++seed) check(seed);
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) signal(number, SIG_DFL);
  if (count >= 10'000) fmt::print("seeds {} … {} agree\n", first, first + count - 1);
}

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
                    Case{{"LLVM"}, Kind::kCheckedKernel, 60}, Case{{"LLVM"}, Kind::kChecked, 60},
                    Case{{"CLANG"}, Kind::kChecked, 24}, Case{{"CLANG"}, Kind::kCheckedKernel, 12},
                    Case{{"OPENCL"}, Kind::kKernel, 25}, Case{{"OPENCL"}, Kind::kPattern, 12},
                    Case{{"PTX"}, Kind::kKernel, 150}, Case{{"PTX"}, Kind::kPattern, 36},
                    Case{{"NVRTC"}, Kind::kKernel, 25}, Case{{"NVPTX"}, Kind::kKernel, 120},
                    Case{{"NVPTX"}, Kind::kPattern, 24}, Case{{"GFX1100"}, Kind::kKernel, 60},
                    Case{{"GFX1100"}, Kind::kPattern, 24}, Case{{"GFX1201"}, Kind::kKernel, 60},
                    Case{{"GFX1201"}, Kind::kPattern, 24}),
    case_name);

}  // namespace
}  // namespace bm::test
