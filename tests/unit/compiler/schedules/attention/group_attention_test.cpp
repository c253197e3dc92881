// Attention by matrix instructions on NVIDIA's targets, on the PTX interpreter, against sums in
// float64 with fresh random input.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "compiler/analysis/static_roofline.h"
#include "compiler/compile.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/targets/card.h"
#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/schedules/attention/attention_problem.h"

namespace bm::test {
namespace {

/// A card and what its kernels are made of; ptxas is told its name and what only it has.
struct Way {
  const char *card, *instruction, *assembled_for;
};
constexpr Way kFragments{"sm_80", "mma.sync", "sm_80"}, kGroups{"sm_90", "wgmma", "sm_90a"};

PtxRun expect_right_by(const Case& c, const Way& way, const char* renderer) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  SCOPED_TRACE(text_of(c));
  static std::mt19937_64 random(std::random_device{}());
  Problem problem(c);
  EXPECT_EQ(problem.kernels(), 1u);
  const LoweredKernel kernel = problem.kernel();
  const auto code = compiler::compile(kernel.ir, card_of(c), renderer, {.use_cache = false});
  EXPECT_TRUE(code) << (code ? "" : code.error().message);
  if (!code) return {};
  const char* image = reinterpret_cast<const char*>(code->image.data());
  EXPECT_NE(std::string_view(image).find(way.instruction), std::string_view::npos);
  Buffers buffers = problem.fill(kernel, random);
  const auto done = run_on_ptx(*code, buffers, problem.vars(kernel), c.shift);
  EXPECT_TRUE(done) << (done ? "" : done.error().message);
  if (!done) return {};
  EXPECT_LE(problem.worst_excess(buffers), 0);
  EXPECT_EQ(done->traffic.shared_conflicts, 0u);
  EXPECT_EQ(done->traffic.group_products != 0, way.card == kGroups.card && c.key_count != kNoKeys);
  return *done;
}

void expect_right(Case c, const char* renderer) {
  for (const Way& way : {kFragments, kGroups}) {
    c.card = way.card;
    expect_right_by(c, way, renderer);
  }
}

class GroupAttention : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string_view("NVRTC")) return;
    if (const auto v = compiler::nvrtc_version(); !v) GTEST_SKIP() << v.error().message;
  }
};
INSTANTIATE_TEST_SUITE_P(Nv, GroupAttention, testing::Values("PTX", "NVRTC"),
                         [](const auto& given) { return std::string(given.param); });

TEST_P(GroupAttention, WholeBlocks) {
  expect_right({}, GetParam());
  expect_right({.type = DType::kBF16, .queries = 64, .head_dim = 128, .width = 128}, GetParam());
  expect_right(
      {.heads = 1, .shared_heads = 1, .keys = 192, .head_dim = 128, .units = 1, .spread = 8},
      GetParam());
}

TEST_P(GroupAttention, AnyNumberOfQueriesAndKeys) {
  expect_right({.queries = 77, .keys = 101, .head_dim = 80, .width = 48}, GetParam());
  expect_right({.heads = 1,
                .shared_heads = 1,
                .queries = 150,
                .keys = 37,
                .head_dim = 16,
                .width = 112,
                .units = 1},
               GetParam());
}

TEST_P(GroupAttention, LaterKeysAreMasked) {
  expect_right({.queries = 200, .keys = 200, .is_causal = true}, GetParam());
  // Blocks of queries in the order 3 2 0 1 and 2 1 0.
  expect_right({.queries = 200, .keys = 200, .is_causal = true, .units = 4}, GetParam());
  expect_right(
      {.heads = 3, .shared_heads = 3, .queries = 150, .keys = 150, .is_causal = true, .units = 5},
      GetParam());
  expect_right({.type = DType::kBF16, .queries = 130, .keys = 260, .is_causal = true, .units = 1},
               GetParam());
}

TEST_P(GroupAttention, Masks) {
  expect_right({.queries = 70, .keys = 90, .mask = Mask::kFloat}, GetParam());
  expect_right({.queries = 128, .keys = 128, .is_causal = true, .mask = Mask::kFloat}, GetParam());
  expect_right({.queries = 100, .keys = 128, .mask = Mask::kBool}, GetParam());
}

TEST_P(GroupAttention, HeadsShareKeys) {
  expect_right({.heads = 6, .shared_heads = 2, .queries = 40, .keys = 70}, GetParam());
  expect_right({.heads = 4,
                .shared_heads = 2,
                .queries = 66,
                .keys = 70,
                .is_causal = true,
                .is_by_token = true},
               GetParam());
}

TEST_P(GroupAttention, LengthsGivenAtLaunch) {
  for (const int64_t n : {1, 63, 64, 65, 128})
    expect_right({.heads = 1,
                  .shared_heads = 1,
                  .queries = 80,
                  .keys = 128,
                  .is_causal = true,
                  .key_count = n,
                  .query_count = std::min<int64_t>(n, 77)},
                 GetParam());
  expect_right({.queries = 80, .keys = 128, .key_count = kNoKeys}, GetParam());
  expect_right(
      {.queries = 80, .keys = 150, .mask = Mask::kFloat, .key_count = 100, .query_count = 33},
      GetParam());
}

TEST_P(GroupAttention, ParamsStartAtAnyAddress) {
  expect_right({.queries = 64, .keys = 70, .shift = 2}, GetParam());
  expect_right(
      {.queries = 70, .keys = 64, .head_dim = 48, .width = 80, .is_causal = true, .shift = 8},
      GetParam());
}

// --- where it is taken --------------------------------------------------------------------------

size_t kernels_of(const Tensor& t) {
  const NodePtr root = t.node();
  return plan_fusion({&root, 1}).stored.size();
}

struct Inputs {
  DType type = DType::kF16;
  int64_t queries = 64, keys = 64, head_dim = 64, width = 64;
  const char* device = "NULL::sm_90";
  Tensor q() const { return Tensor::empty({2, queries, head_dim}, type, device); }
  Tensor k() const { return Tensor::empty({2, keys, head_dim}, type, device); }
  Tensor v() const { return Tensor::empty({2, keys, width}, type, device); }
  size_t kernels() const { return kernels_of(Tensor::attention(q(), k(), v())); }
};

TEST(GroupAttentionPlans, OneKernelWhereTilesFit) {
  for (const char* device : {"NULL::sm_80", "NULL::sm_86", "NULL::sm_90", "NULL::sm_120",
                             "NULL::gfx1100", "NULL::gfx1201", "NULL::gfx942"})
    for (const DType t : {DType::kF16, DType::kBF16})
      EXPECT_EQ((Inputs{.type = t, .device = device}.kernels()), 1u) << device;
  EXPECT_EQ((Inputs{.device = "NULL::sm_75"}.kernels()), 1u);
  for (const char* device : {"NULL::sm_75", "NULL::sm_80", "NULL::gfx1100"})
    for (const int64_t width : {144, 192, 256})
      EXPECT_EQ((Inputs{.head_dim = width, .width = width, .device = device}.kernels()), 1u)
          << device << ' ' << width;
  EXPECT_EQ((Inputs{.queries = 16, .keys = 5, .head_dim = 16, .width = 128}.kernels()), 1u);
}

/// Elsewhere kernels are what they would be without it.
TEST(GroupAttentionPlans, SeveralKernelsElsewhere) {
  const size_t others = Inputs{.device = "NULL::gfx1030"}.kernels();
  EXPECT_GT(others, 2u);
  EXPECT_GT((Inputs{.type = DType::kF32}.kernels()), 1u);
  for (const Inputs& i : {Inputs{.head_dim = 72}, Inputs{.head_dim = 272}, Inputs{.width = 40},
                          Inputs{.width = 272}, Inputs{.queries = 15}})
    EXPECT_EQ(i.kernels(), others) << i.head_dim << " " << i.width << " " << i.queries;
  const Inputs i;
  // Keys that lie the other way round; values that are computed are stored first.
  const Tensor keys = Tensor::empty({2, 64, 64}, DType::kF16, i.device).transpose(-2, -1);
  EXPECT_GE(kernels_of(Tensor::attention(i.q(), keys, i.v())), others);
  EXPECT_GT(kernels_of(Tensor::attention(i.q(), i.k(), i.v() * 2.0)), 1u);
  // Weights that the formula does not round.
  const Tensor scores = i.q().matmul(i.k().transpose(), DType::kF32) * 0.125;
  const Tensor weights = scores.softmax(-1);
  EXPECT_GT(kernels_of(weights.matmul(i.v().cast(DType::kF32))), 1u);
  EXPECT_EQ(kernels_of(weights.cast(DType::kF16).matmul(i.v())), 1u);
}

/// As the prompt of a language model does it: queries of a group side by side, keys in a cache.
TEST(GroupAttentionPlans, PromptsAtAnyPosition) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  constexpr int64_t kMost = 40, kGroup = 2, kHeads = 2, kWidth = 32, kRoom = 2 * kMost;
  const char* device = "NULL::sm_80";
  const Tensor q = Tensor::empty({kMost, kHeads, kGroup, kWidth}, DType::kF16, device),
               k = Tensor::empty({kHeads, kRoom, kWidth}, DType::kF16, device),
               v = Tensor::empty({kHeads, kRoom, kWidth}, DType::kF16, device);
  Var count("count", 1, kMost), position("position", 0, kMost);
  const SymInt end = SymInt(position) + SymInt(count);
  const auto rows = [&](const Tensor& t) {
    return t.shrink({{0, kHeads}, {0, end}, {0, kWidth}}).unsqueeze(1);
  };
  const Tensor grouped =
      q.shrink({{0, SymInt(count)}, {0, kHeads}, {0, kGroup}, {0, kWidth}}).permute({1, 2, 0, 3});
  Tensor scores = grouped.matmul(rows(k).transpose(), DType::kF32) * 0.25;
  const Tensor at =
      (Tensor::arange(count, DType::kI64, device) + Tensor::value_of(position, device))
          .unsqueeze(1);
  scores = (Tensor::arange(end, DType::kI64, device).unsqueeze(0) <= at).where(scores, -kInf);
  const Tensor mixed = scores.softmax(-1).cast(DType::kF16).matmul(rows(v));
  ASSERT_EQ(kernels_of(mixed), 1u);
  const NodePtr root = mixed.node();
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<double> normal;
  const LoweredKernel kernel =
      *lower(*root, nullptr, [&](const Node* n) { return n == root.get(); });
  const auto code = compiler::compile(kernel.ir, card_of({}), "PTX", {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  for (const auto& [n, from] : {std::pair<int64_t, int64_t>{kMost, 0}, {1, 5}, {33, 31}}) {
    count.set(n);
    position.set(from);
    Buffers buffers;
    std::vector<std::vector<double>> numbers(3);
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      std::vector<std::byte>& bytes =
          buffers.emplace_back(static_cast<size_t>(kernel.ir.params[i].elements) * 2);
      for (size_t j = 0; j < bytes.size(); j += 2) put(DType::kF16, normal(random), &bytes[j]);
      const std::array<const Node*, 3> inputs{q.node().get(), k.node().get(), v.node().get()};
      for (size_t which = 0; which < 3; ++which)
        if (kernel.params[i] == inputs[which]) numbers[which] = values_of(DType::kF16, bytes);
    }
    std::vector<int64_t> vars;
    for (const Var& var : kernel.vars) vars.push_back(var.value());
    const auto done = run_on_ptx(*code, buffers, vars);
    ASSERT_TRUE(done) << done.error().message;
    const std::vector<double> got = values_of(DType::kF16, buffers[0]);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t g = 0; g < kGroup; ++g)
        for (int64_t i = 0; i < n; ++i) {
          std::vector<double> sums(kWidth);
          double total = 0;
          for (int64_t p = 0; p <= i + from; ++p) {
            double score = 0;
            for (int64_t d = 0; d < kWidth; ++d)
              score +=
                  numbers[0][static_cast<size_t>(((i * kHeads + h) * kGroup + g) * kWidth + d)] *
                  numbers[1][static_cast<size_t>((h * kRoom + p) * kWidth + d)];
            const double power = std::exp(score * 0.25);
            total += power;
            for (int64_t d = 0; d < kWidth; ++d)
              sums[static_cast<size_t>(d)] +=
                  power * numbers[2][static_cast<size_t>((h * kRoom + p) * kWidth + d)];
          }
          for (int64_t d = 0; d < kWidth; ++d)
            ASSERT_NEAR(got[static_cast<size_t>(((h * kGroup + g) * kMost + i) * kWidth + d)],
                        sums[static_cast<size_t>(d)] / total, 4e-3)
                << n << " queries from " << from << ", query " << i;
        }
  }
}

/// Long rows of scores in few groups would leave most of a card without work.
TEST(GroupAttentionPlans, FewGroupsAreForShortRows) {
  const auto is_taken = [](int64_t keys, uint32_t units) {
    const Case c{.heads = 1, .shared_heads = 1, .queries = 64, .keys = keys};
    return compiler::make_group_attention_schedule(Problem(c).kernel_of_all().ir,
                                                   compiler::target_info(card_of(c)), units)
        .has_value();
  };
  EXPECT_TRUE(is_taken(1024, 132));
  EXPECT_FALSE(is_taken(8192, 132));
  EXPECT_TRUE(is_taken(8192, 8));
}

// --- the same with a mistake ---------------------------------------------------------------------

struct Mistake {
  const char *from, *to;
  int which = 0;  ///< of several places
};

std::string replaced(std::string text, const Mistake& m) {
  size_t at = text.find(m.from);
  for (int i = 0; i < m.which && at != std::string::npos; ++i) at = text.find(m.from, at + 1);
  EXPECT_NE(at, std::string::npos) << m.from;
  if (at == std::string::npos) return text;
  return text.replace(at, std::strlen(m.from), m.to);
}

/// Whether the interpreter or the result shows it.
bool is_noticed(const Mistake& m, const char* card = "sm_80") {
  const ScopedSetting setting("BM_NV_CODE", "ptx");
  const Case c{.queries = 70, .keys = 200, .is_causal = true, .card = card};
  Problem problem(c);
  const LoweredKernel kernel = problem.kernel();
  auto code = compiler::compile(kernel.ir, card_of(c), "PTX", {.use_cache = false});
  EXPECT_TRUE(code);
  const std::string text = replaced(reinterpret_cast<const char*>(code->image.data()), m);
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code->image.assign(bytes.begin(), bytes.end());
  std::mt19937_64 random(7);
  Buffers buffers = problem.fill(kernel, random);
  const auto done = run_on_ptx(*code, buffers, {});
  return !done || problem.worst_excess(buffers) > 0 || done->traffic.shared_conflicts != 0;
}

TEST(GroupAttentionPlans, MistakesAreNoticed) {
  ASSERT_FALSE(is_noticed({"ldmatrix", "ldmatrix"}));
  for (const Mistake& m :
       {Mistake{"cp.async.wait_group 0;", "", 1}, Mistake{"bar.sync 0;", ""},
        Mistake{"bar.sync 0;", "", 1}, Mistake{"cp.async.commit_group;", "", 1},
        Mistake{".trans", ""}, Mistake{"1, 31, -1", "4, 31, -1"}, Mistake{"2, 31, -1", "1, 31, -1"},
        Mistake{"xor.b32", "and.b32"}, Mistake{"cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"}})
    EXPECT_TRUE(is_noticed(m)) << m.from << " → " << m.to;
}

TEST(GroupAttentionPlans, MistakesOfWarpgroupsAreNoticed) {
  ASSERT_FALSE(is_noticed({"wgmma.fence", "wgmma.fence"}, "sm_90"));
  for (const Mistake& m :
       {Mistake{"cp.async.wait_group 0;", "", 1}, Mistake{"bar.sync 0;", "", 1},
        Mistake{"fence.proxy.async.shared::cta;", ""}, Mistake{"wgmma.fence.sync.aligned;", ""},
        Mistake{"wgmma.fence.sync.aligned;", "", 1},
        Mistake{"wgmma.wait_group.sync.aligned 0;", ""},
        Mistake{"wgmma.wait_group.sync.aligned 0;", "", 1},
        Mistake{"wgmma.commit_group.sync.aligned;", "", 1}, Mistake{", 1, 1, 1;", ", 1, 1, 0;"},
        Mistake{", 1, 1, 0;", ", 1, 1, 1;"}, Mistake{"cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"}})
    EXPECT_TRUE(is_noticed(m, "sm_90")) << m.from << " → " << m.to << ' ' << m.which;
}

/// What the toolkit's assembler says of the kernel's text.
std::string assembler_says(const Case& c, const Way& way, const char* renderer) {
  const ScopedSetting setting("BM_NV_CODE", "ptx");
  const auto code =
      compiler::compile(Problem(c).kernel().ir, card_of(c), renderer, {.use_cache = false});
  if (!code) return code.error().message;
  const std::string path = fmt::format("{}bm_attention_{}.ptx", testing::TempDir(), getpid());
  std::ofstream(path) << reinterpret_cast<const char*>(code->image.data());
  const std::string command =
      fmt::format("ptxas -v -arch={} -o /dev/null {} 2>&1", way.assembled_for, path);
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 256> line;
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr)
    out += line.data();
  if (pipe != nullptr) pclose(pipe);
  std::filesystem::remove(path);
  return out;
}

TEST(GroupAttentionPlans, RegistersSuffice) {
  if (std::system("ptxas --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no ptxas";
  struct Row {
    Way way;
    const char* renderer;
  };
  for (const Row& row : {Row{kFragments, "PTX"}, Row{{"sm_120", "mma.sync", "sm_120"}, "PTX"},
                         Row{kGroups, "PTX"}, Row{kGroups, "NVRTC"}}) {
    if (row.renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    Case c{.queries = 1024, .keys = 1000, .head_dim = 128, .width = 128, .card = row.way.card};
    for (const Mask mask : {Mask::kNone, Mask::kFloat}) {
      c.mask = mask;
      c.is_causal = mask == Mask::kNone;
      const std::string said = assembler_says(c, row.way, row.renderer);
      EXPECT_NE(said.find("Used "), std::string::npos) << said;
      EXPECT_EQ(said.find("(C75"), std::string::npos) << "products one after the other: " << said;
      EXPECT_NE(said.find(" 0 bytes spill stores"), std::string::npos) << text_of(c) << said;
    }
  }
}

/// docs/hw/nvidia/compiler.md has them.
TEST(GroupAttentionPlans, LogitsTakeFewInstructions) {
  for (const int64_t width : {64, 128})
    for (const auto& [way, renderer] : {std::pair{kFragments, "PTX"},
                                        {kFragments, "NVRTC"},
                                        {kGroups, "PTX"},
                                        {kGroups, "NVRTC"}}) {
      if (renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
      const Case c{.heads = 1,
                   .shared_heads = 1,
                   .keys = 512,
                   .head_dim = width,
                   .width = width,
                   .card = way.card,
                   .units = 1};
      const PtxRun run = expect_right_by(c, way, renderer);
      const auto scores = static_cast<double>(c.queries * c.keys);
      const double instructions = static_cast<double>(run.lane_instructions) / scores;
      const double bytes = static_cast<double>(run.traffic.global_load_bytes) / scores;
      std::printf("%s, %s, %ld elements: %.1f instructions, %.2f bytes loaded for each score\n",
                  way.instruction, renderer, static_cast<long>(width), instructions, bytes);
      EXPECT_LT(instructions, way.card == kGroups.card ? 17 : 28);
    }
}

/// Groups of a causal bound count with all keys that the longest has, in whatever order they come.
TEST(GroupAttentionPlans, PairedBlocksCountWithTheirKeys) {
  const auto operations = [](uint32_t units, bool is_causal) {
    const Case c{.heads = 8,
                 .shared_heads = 8,
                 .queries = 2048,
                 .keys = 2048,
                 .is_causal = is_causal,
                 .units = units};
    const auto explained = compiler::explain(Problem(c).kernel().ir, card_of(c), "PTX");
    EXPECT_TRUE(explained) << (explained ? "" : explained.error().message);
    if (!explained) return 0.0;
    const bool is_paired = explained->schedule.find("long and short") != std::string::npos;
    EXPECT_EQ(is_paired, is_causal && units == 132) << explained->schedule;
    return explained->count.groups * explained->count.sub_groups * explained->count.mma_ops;
  };
  const double all = 4.0 * 8 * 2048 * 2048 * 64;
  EXPECT_EQ(operations(132, false), all);
  EXPECT_EQ(operations(132, true), all);
  EXPECT_EQ(operations(16, true), all);
}

/// docs/hw/nvidia/code.md has them: of what the card could do in the time that issuing takes.
TEST(GroupAttentionPlans, LongPromptsAreMostOfTheRoofline) {
  for (const int64_t width : {64, 128})
    for (const Way& way : {kGroups, kFragments}) {
      const ScopedSetting setting("BM_NV_WGMMA", way.card == kGroups.card ? "1" : "0");
      const Case c{.heads = 8,
                   .shared_heads = 8,
                   .queries = 4096,
                   .keys = 4096,
                   .head_dim = width,
                   .width = width,
                   .card = "sm_90",
                   .units = 132};
      const auto explained = compiler::explain(Problem(c).kernel().ir, card_of(c), "PTX");
      ASSERT_TRUE(explained) << explained.error().message;
      const auto flops = static_cast<double>(4 * c.heads * c.queries * c.keys * width);
      const auto bytes = static_cast<double>(8 * c.heads * c.queries * width);
      const compiler::StaticRoof roof = compiler::static_roof(
          explained->count, *compiler::find_card("sm_90"), c.units, flops, bytes);
      std::printf("%s, %ld elements: %.2f of the roofline, bound by %s\n", way.instruction,
                  static_cast<long>(width), roof.of_roof, roof.bound_by);
      EXPECT_GE(roof.of_roof, way.card == kFragments.card ? 0 : 0.6);
    }
}

}  // namespace
}  // namespace bm::test
