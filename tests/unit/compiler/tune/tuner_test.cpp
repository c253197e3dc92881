// The search for schedules, with a judge whose clock is invented.
#include "compiler/tune/tuner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "compiler/tune/tuned.h"
#include "tests/unit/compiler/cache/temporary_directory.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

using std::chrono::milliseconds;

/// Sum along rows, 64 × 64: loops to vectorise, merge and split.
ir::KernelIr row_sums() {
  ir::KernelIr k;
  k.name = "rows";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const ir::Node *i = g.range(g.index(64)), *j = g.range(g.index(64));
  const ir::Node* x = g.load(0, DType::kF32, g.add(g.mul(i, 64), j));
  k.ranges = {i};
  k.params = {{DType::kF32, 64 * 64, false, true}, {DType::kF32, 64, true, false}};
  k.stores = {{1, i, g.reduce(ir::ReduceOp::kSum, x, std::array{j}), nullptr}};
  return k;
}

using Image = std::vector<std::byte>;

/// Results are taken from folders that nobody else can write only, so not from /tmp itself.
const TemporaryDirectory& folder() {
  static const TemporaryDirectory one;
  return one;
}

TEST(Knobs, TextAndBack) {
  const auto knobs = Knobs::parse("axis=-1 blocks=16 jam0=4 jam12=2 lanes=1 rlanes=0 unroll=8");
  ASSERT_TRUE(knobs);
  EXPECT_EQ(knobs->get("jam12"), 2);
  EXPECT_EQ(knobs->get("jam1"), std::nullopt);
  EXPECT_EQ(knobs->text(), "axis=-1 blocks=16 jam0=4 jam12=2 lanes=1 rlanes=0 unroll=8");
  EXPECT_TRUE(Knobs::parse("")->empty());
  for (const char* bad :
       {"axis", "axis=", "axis=x", "axis=64", "axis=-2", "jam=2", "jam0=33", "jamx=2", "jam-1=2",
        "lanes=0", "lanes=128", "speed=1", "=1", "axis=99999999999999999999", "lanes=4;rm"})
    EXPECT_FALSE(Knobs::parse(bad)) << bad;
}

TEST(Knobs, EveryCandidateIsReadableAndDifferent) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto k = test::random_pattern(seed);
    const TargetInfo target = target_info(test::native_arch());
    for (const Knobs& n : tuning_candidates(k.kernel, target, {})) {
      EXPECT_FALSE(n.empty());
      const auto again = Knobs::parse(n.text());
      ASSERT_TRUE(again) << n.text();
      EXPECT_EQ(*again, n);
    }
  }
}

TEST(Tuner, TheFastestRightCandidateWins) {
  const ir::KernelIr k = row_sums();
  std::map<Image, double> times;
  std::map<Image, int> runs;
  const Judge judge = [&](const hal::CodeObject& code, double) -> Result<double> {
    const size_t n = times.size();
    // Every third is wrong, and the wrong ones would be the fastest.
    const auto [it, is_new] =
        times.emplace(code.image, n % 3 == 2 ? -1 : 100.0 - static_cast<double>(n));
    ++runs[code.image];
    if (it->second < 0) return fail(Code::kInternal, "other results");
    return it->second;
  };
  const auto found =
      tune(k, test::native_arch(), "LLVM", {.beam = 3, .limit = milliseconds(20'000)}, judge);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_FALSE(found->knobs.empty());
  EXPECT_GT(found->tried, 5u);
  EXPECT_GT(found->refused, 0u);
  EXPECT_LT(found->after, found->before);
  const auto winner =
      compile(k, test::native_arch(), "LLVM", {.use_cache = false, .knobs = &found->knobs});
  ASSERT_TRUE(winner);
  EXPECT_EQ(times.at(winner->image), found->after);
  EXPECT_GE(runs.at(winner->image), 2) << "measured again before it won";
}

TEST(Tuner, OneLuckyMeasurementDoesNotWin) {
  std::map<Image, int> runs;
  const Judge judge = [&](const hal::CodeObject& code, double) -> Result<double> {
    // The untuned kernel is steady; everything else is fast once.
    if (runs.empty()) runs[code.image] = 1000;
    return runs[code.image]++ == 0 ? 1.0 : 10.0;
  };
  const auto found = tune(row_sums(), test::native_arch(), "LLVM",
                          {.beam = 2, .limit = milliseconds(3000)}, judge);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->knobs.empty()) << found->knobs.text();
}

TEST(Tuner, ItEndsInTime) {
  const Judge judge = [&](const hal::CodeObject&, double) -> Result<double> {
    std::this_thread::sleep_for(milliseconds(20));
    return 1.0;
  };
  const auto start = std::chrono::steady_clock::now();
  const auto found =
      tune(row_sums(), test::native_arch(), "LLVM", {.beam = 8, .limit = milliseconds(100)}, judge);
  ASSERT_TRUE(found);
  // Begun steps are finished, the winners are measured again; a busy machine stretches all of it.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_LT(found->tried, 12u);
}

TEST(Tuner, AnUntunedKernelThatFailsIsAnError) {
  const Judge judge = [](const hal::CodeObject&, double) -> Result<double> {
    return fail(Code::kOutOfMemory, "no room");
  };
  const auto found = tune(row_sums(), test::native_arch(), "LLVM", {}, judge);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kOutOfMemory);
}

TEST(TunedSchedules, TravelAsAFile) {
  const ir::KernelIr k = row_sums();
  const auto id = schedule_id(k, test::native_arch(), "LLVM");
  ASSERT_TRUE(id);
  TunedSchedule s{.id = *id,
                  .kernel = "rows",
                  .target = "somecpu",
                  .before_ns = 10,
                  .after_ns = 5,
                  .knobs = *Knobs::parse("jam0=2")};
  remember_tuned(s);
  ASSERT_TRUE(find_tuned(*id));
  EXPECT_EQ(find_tuned(*id)->knobs.text(), "jam0=2");
  const std::string path = folder().path() + "/tuned.txt";
  const auto written = export_tuned(path);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_GE(*written, 1u);
  s.knobs = {};
  remember_tuned(s);
  EXPECT_TRUE(find_tuned(*id)->knobs.empty());
  ASSERT_TRUE(import_tuned(path));
  EXPECT_EQ(find_tuned(*id)->knobs.text(), "jam0=2");
  EXPECT_FALSE(find_tuned("00000000000000000000000000000000"));
  // What was found is used without being asked for.
  const auto used = compile(k, test::native_arch(), "LLVM");
  const auto asked = compile(k, test::native_arch(), "LLVM",
                             {.use_cache = false, .knobs = &find_tuned(*id)->knobs});
  ASSERT_TRUE(used && asked);
  EXPECT_EQ(used->image, asked->image);
}

TEST(TunedSchedules, OtherCompilersAndTargetsHaveOtherIds) {
  const ir::KernelIr k = row_sums();
  hal::Arch other = test::native_arch();
  other.l2_bytes += 1;
  EXPECT_NE(*schedule_id(k, test::native_arch(), "LLVM"), *schedule_id(k, other, "LLVM"));
  EXPECT_NE(*schedule_id(k, other, "CLANG"), *schedule_id(k, other, "LLVM"));
}

TEST(TunedSchedules, DamagedFilesAreRefusedWhole) {
  const std::string path = folder().path() + "/bad.txt";
  const std::string id(32, 'a'), good = id + " k t 1 1 jam0=2\n";
  const std::string header = "bellmetal tuned schedules 1\n";
  for (const std::string& text :
       {std::string(), std::string("hello\n"), header + good + id.substr(1) + " k t 1 1\n",
        header + good + "zz\n", header + good + id + " k t x 1\n",
        header + good + id + " k t 1 1 jam0=99\n", header + good + std::string(10'000, 'b')}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(import_tuned(path)) << text;
  }
  EXPECT_FALSE(import_tuned("/nowhere/tuned.txt"));
  EXPECT_FALSE(find_tuned(id));
}

TEST(TunedSchedules, AChoiceThatAnotherVersionHasStoredIsNotFound) {
  TunedSchedule s{.id = std::string(32, 'c'),
                  .kernel = "k",
                  .target = "t",
                  .before_ns = 2,
                  .after_ns = 1,
                  .knobs = {}};
  s.knobs.values["depth"] = 64;  // what kc was called
  remember_tuned(s);
  EXPECT_FALSE(find_tuned(s.id));
  const std::string path = folder().path() + "/others.txt";
  ASSERT_TRUE(export_tuned(path));
  EXPECT_TRUE(import_tuned(path)) << "it is not exported either";
}

TEST(TunedSchedules, AFileThatOthersCouldHaveWrittenIsRefused) {
  const std::string path = folder().path() + "/foreign.txt", id(32, 'b');
  std::ofstream(path) << "bellmetal tuned schedules 1\n" << id << " k t 1 1 jam0=2\n";
  std::filesystem::permissions(path, std::filesystem::perms::group_write,
                               std::filesystem::perm_options::add);
  const auto taken = import_tuned(path);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kPermission);
  EXPECT_NE(taken.error().message.find("chmod g-w"), std::string::npos) << taken.error().message;
  EXPECT_FALSE(find_tuned(id));
}

}  // namespace
}  // namespace bm::compiler
