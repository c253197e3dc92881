// The table of strategies: every row is reached, says what it does, and can be tuned.
#include "compiler/schedules/strategy.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "compiler/compile.h"
#include "compiler/lowering/lower.h"
#include "compiler/tune/tuner.h"
#include "models/llama_matrix.h"
#include "runtime/base/env.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

hal::Arch card(const char* name) {
  hal::Arch arch = test::ptx_arch();
  arch.name = name;
  arch.units = 132;
  return arch;
}

struct Sample {
  ir::KernelIr kernel;
  hal::Arch arch;
};

Schedule schedule_of(const Sample& s) {
  return make_schedule(s.kernel, target_info(s.arch), s.arch.units);
}

/// 128 vectors by a matrix of Q8_0 blocks, as prompts of models have them.
ir::KernelIr prompt_kernel(const char* device) {
  constexpr int64_t kRows = 512, kColumns = 1024;
  const std::vector<std::byte> data(kRows * kColumns / 32 * 34);
  const auto matrix = models::Matrix::pack(models::GgmlType::kQ8_0, data, kRows, kColumns, device);
  const Tensor in = Tensor::empty({128, kColumns}, DType::kF32, device);
  const NodePtr root = matrix.linear(models::QuantisedActivations(in)).node();
  const FusionPlan plan = plan_fusion(std::array{root});
  return std::move(lower(*root, nullptr, [&](const Node* n) {
                     return n != root.get() && plan.stored.contains(n);
                   })->ir);
}

/// A kernel that the row takes and those before it do not; nothing: none was drawn.
std::optional<Sample> sample_of(const Strategy& row) {
  const auto is_of = [&](const Sample& s) { return strategy_of(schedule_of(s)).name == row.name; };
  std::vector<Sample> fixed;
  for (const int64_t n : {64, 512, 2048}) {
    fixed.push_back({test::product_kernel({.m = n, .n = n, .k = n}), card("sm_90")});
    fixed.push_back({test::product_kernel({.m = n, .n = n, .k = 32}), card("sm_80")});
    fixed.push_back({test::matmul_kernel(n, n, n, DType::kF32), card("sm_90")});
    fixed.push_back({test::transpose_kernel(n, n, DType::kF32), card("sm_90")});
    fixed.push_back({test::matmul_kernel(n, n, 16384, DType::kF32), card("sm_90")});
  }
  fixed.push_back(
      {test::dot_sum_kernel({.vectors = 128, .rows = 1024, .blocks = 32}), card("sm_80")});
  fixed.push_back({prompt_kernel("NULL:PTX::sm_80"), card("sm_80")});
  if (auto parts = test::decode_attention_kernel(card("sm_80")))
    fixed.push_back({std::move(*parts), card("sm_80")});
  for (Sample& s : fixed)
    if (is_of(s)) return std::move(s);
  for (uint64_t seed = 1; seed < 600; ++seed) {
    const bool is_attention = row.folder == "attention";
    const hal::Arch arch = row.has_groups ? card("sm_80") : test::native_arch();
    Sample s{
        (is_attention ? test::random_tiled_attention(seed) : test::random_pattern(seed)).kernel,
        arch};
    s.arch.units = row.has_groups && is_attention ? 4 : s.arch.units;
    if (!is_of(s)) continue;
    // A program that became too long is made another way; which one does depends on the processor.
    const auto made = explain(s.kernel, s.arch, row.has_groups ? "PTX" : "LLVM");
    if (made && made->schedule.starts_with(fmt::format("strategy: {} ", row.name))) return s;
  }
  return std::nullopt;
}

/// Rows for instructions that this processor lacks.
bool is_missing(const Strategy& row) {
  return row.name == "dot.int8" && target_info(test::native_arch()).dots.empty();
}

TEST(Strategies, EveryRowIsReachedAndSaysWhatItDoes) {
  std::set<std::string_view> names;
  for (const Strategy& row : strategies()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(std::filesystem::is_directory("compiler/schedules/" + std::string(row.folder)));
    ASSERT_TRUE(row.match && row.is_of && row.lower && row.describe && row.candidates);
    if (is_missing(row)) continue;
    const auto sample = sample_of(row);
    ASSERT_TRUE(sample) << row.name;
    // What `bellmetal explain` prints.
    const auto shown = explain(sample->kernel, sample->arch, row.has_groups ? "PTX" : "LLVM");
    ASSERT_TRUE(shown) << row.name << ": " << shown.error().message;
    const std::string &text = shown->schedule, said = row.describe(schedule_of(*sample));
    EXPECT_TRUE(text.starts_with("strategy: " + std::string(row.name))) << text;
    EXPECT_NE(text.find(said), std::string::npos) << text;
    EXPECT_NE(text.find("\nblocks: "), std::string::npos) << text;
    // Of plain loops there is no more to say than the loops themselves.
    const bool is_plain = row.folder == "loops" || row.name == "groups";
    EXPECT_NE(is_plain ? text.find("\nloop 0: ") : said.find_first_not_of('\n'), std::string::npos)
        << row.name << ": " << text;
  }
}

TEST(Strategies, TilesOfSimtGemmAreDescribed) {
  const Sample s{test::matmul_kernel(2048, 2048, 2048, DType::kF32), card("sm_90")};
  EXPECT_NE(to_string(schedule_of(s)).find("GEMM: tiles of "), std::string::npos);
}

/// 512³: enough tiles for every multiprocessor of a large card.
TEST(Strategies, MediumGemmGoesThroughSharedMemory) {
  const Sample medium{test::matmul_kernel(512, 512, 512, DType::kF32), card("sm_90")};
  EXPECT_EQ(strategy_of(schedule_of(medium)).name, "gemm.simt");
  // Extents that no tile divides, and tiles of work-items that leave a unit few of these.
  for (const int64_t size : {1000, 1023, 2048}) {
    const Sample large{test::matmul_kernel(size, size, size, DType::kF32), card("sm_90")};
    ASSERT_EQ(strategy_of(schedule_of(large)).name, "gemm.simt") << size;
    const uint32_t per_item = schedule_of(large).staged()->left.per_item;
    EXPECT_EQ(per_item, size == 2048 ? 8u : per_item);
  }
  // Fewer results than a card runs work-items: tiles where they take fewer cycles all the same.
  for (const auto& [chip, units, size] :
       {std::tuple("gfx1100", 96, 250), std::tuple("gfx1201", 64, 250),
        std::tuple("gfx942", 304, 500), std::tuple("gfx1100", 96, 1023)}) {
    Sample s{test::matmul_kernel(size, size, size, DType::kF32), test::amd_arch(chip)};
    s.arch.units = static_cast<uint32_t>(units);
    EXPECT_EQ(strategy_of(schedule_of(s)).name, "gemm.simt") << chip << " " << size;
  }
  // Sixteen tiles for 132 multiprocessors: loops spread the work better.
  const Sample small{test::matmul_kernel(128, 128, 128, DType::kF32), card("sm_90")};
  EXPECT_EQ(strategy_of(schedule_of(small)).name, "groups");
}

/// Of a first step of the tuner, by what it changes.
struct Reached {
  size_t others = 0;  ///< programs or grids that are not those of no knobs
  size_t own = 0;     ///< of these, of the same row
};

Reached reach(const Sample& s) {
  const TargetInfo target = target_info(s.arch);
  const auto text_of = [&](const Schedule& schedule) {
    const auto program = lower(s.kernel, schedule, target);
    EXPECT_TRUE(program) << (program ? "" : program.error().message);
    return to_string(schedule) + (program ? to_string(*program) : "");
  };
  const Schedule plain = schedule_of(s);
  const std::string before = text_of(plain);
  Reached out;
  for (const Knobs& knobs : tuning_candidates(s.kernel, target, {}, s.arch.units)) {
    EXPECT_TRUE(Knobs::parse(knobs.text())) << knobs.text();
    const Schedule schedule = make_schedule(s.kernel, target, s.arch.units, {.knobs = &knobs});
    if (text_of(schedule) == before) continue;
    ++out.others;
    out.own += strategy_of(schedule).name == strategy_of(plain).name;
  }
  return out;
}

/// A plan without knobs would be measured again and again as it is.
TEST(Strategies, TheTunerReachesEveryPlan) {
  for (const Strategy& row : strategies()) {
    if (is_missing(row)) continue;
    const auto sample = sample_of(row);
    ASSERT_TRUE(sample) << row.name;
    const Reached reached = reach(*sample);
    EXPECT_GT(reached.others, 0u) << row.name;
    // Transposes have one shape of tile: the other choice is a kernel without.
    if (row.name != "transpose") {
      EXPECT_GT(reached.own, 0u) << row.name;
    }
  }
}

/// How many different programs the tuner's first step makes of a kernel.
size_t count_codes(const Sample& s) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  std::set<std::vector<std::byte>> images;
  const auto add = [&](const Knobs& knobs) {
    const auto code = compile(s.kernel, s.arch, "PTX", {.use_cache = false, .knobs = &knobs});
    EXPECT_TRUE(code) << knobs.text() << (code ? "" : code.error().message);
    if (code) images.insert(code->image);
  };
  add({});
  for (const Knobs& k : tuning_candidates(s.kernel, target_info(s.arch), {}, s.arch.units)) {
    EXPECT_TRUE(Knobs::parse(k.text())) << k.text();
    add(k);
  }
  return images.size();
}

TEST(Strategies, KnobsChangeGpuGemmAndAttention) {
  EXPECT_GT(count_codes({test::matmul_kernel(512, 512, 512, DType::kF32), card("sm_90")}), 5u);
  EXPECT_GT(count_codes({test::product_kernel({.m = 512, .n = 512, .k = 512}), card("sm_80")}), 5u);
  for (const Strategy& row : strategies()) {
    if (row.name != "attention.mma") continue;
    const auto sample = sample_of(row);
    ASSERT_TRUE(sample);
    EXPECT_GT(count_codes(*sample), 1u);
  }
}

/// Whatever tile is asked for, the product is what it is.
TEST(Strategies, GpuGemmWithKnobsIsRight) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  for (const bool is_half : {false, true}) {
    const ir::KernelIr kernel = is_half ? test::product_kernel({.m = 128, .n = 128, .k = 128})
                                        : test::matmul_kernel(128, 128, 64, DType::kF32);
    hal::Arch arch = card("sm_80");
    arch.units = 4;
    const test::Buffers start = test::small_numbers(kernel);
    for (const Knobs& k : tuning_candidates(kernel, target_info(arch), {}, arch.units)) {
      const auto code = compile(kernel, arch, "PTX", {.use_cache = false, .knobs = &k});
      ASSERT_TRUE(code) << k.text() << code.error().message;
      test::Buffers got = start;
      const auto done = test::run_on_ptx(*code, got, {}, 0);
      ASSERT_TRUE(done) << k.text() << done.error().message;
      EXPECT_LE(test::difference_from_cpu(kernel, got, start), test::tolerance(kernel)) << k.text();
    }
  }
}

}  // namespace
}  // namespace bm::compiler
