// Random programs over the public API mean the same everywhere: on the reference device, compiled
// fused and step by step, captured and nested. docs/verification.md says how to run many of them.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <cstdlib>
#include <cstring>
#include <map>

#include "compiler/schedules/schedule.h"
#include "compiler/schedules/strategy.h"
#include "compiler/targets/target.h"
#include "runtime/device.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tests/unit/compiler/random_progress.h"
#include "tests/unit/tensor/program.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

constexpr uint64_t kSaveEvery = 50;

/// Fresh memory is full of NaN in these tests. Before anything has read the settings.
[[maybe_unused]] const int kPoison = setenv("BM_POISON", "1", 0);

struct Share {
  const char* name;
  const char* device;
  uint64_t first, count;
  Size size = Size::kSmall;
};

void PrintTo(const Share& share, std::ostream* out) { *out << share.device; }

uint64_t number_from(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

/// Whole run of this process; file, if any, that says where the next one goes on.
class Progress {
 public:
  Progress() {
    if (const char* path = std::getenv("BM_RANDOM_PROGRESS")) path_ = path;
    if (path_.empty()) return;
    auto before = RandomProgress::load(path_);
    if (!before)
      ADD_FAILURE() << before.error().message;
    else
      progress_ = std::move(*before);
  }
  uint64_t first(const std::string& name, uint64_t fallback) const {
    const auto it = progress_.next.find(name);
    return it == progress_.next.end() ? fallback : std::max(it->second, fallback);
  }
  void reach(const std::string& name, uint64_t next) {
    if (path_.empty()) return;
    progress_.next[name] = next;
    const Status saved = progress_.save(path_);
    if (!saved) ADD_FAILURE() << saved.error().message;
  }

 private:
  std::string path_;
  RandomProgress progress_;
};

/// Programs of several seeds and what differs in each. `together` > 1: those of one mode run at
/// once.
struct Group {
  std::vector<Case> cases;
  std::vector<Target> targets;
  std::vector<std::string> found;

  Group(const Share& share, uint64_t first, uint64_t count, uint64_t only) : found(count) {
    for (uint64_t seed = first; seed < first + count; ++seed) {
      cases.push_back(draw_case(seed, share.size));
      targets.push_back({share.device, static_cast<Mode>(only < 4 ? only : seed % 4)});
    }
  }
  void run(Tally* tally) {
    for (const Mode mode : {Mode::kFused, Mode::kSteps, Mode::kCaptured, Mode::kNested}) {
      std::vector<const Case*> some;
      std::vector<std::string*> places;
      for (size_t i = 0; i < cases.size(); ++i) {
        if (targets[i].mode != mode) continue;
        some.push_back(&cases[i]);
        places.push_back(&found[i]);
      }
      if (some.empty()) continue;
      std::vector<std::string> differ = differences(some, {targets[0].device, mode}, tally);
      for (size_t i = 0; i < differ.size(); ++i) *places[i] = std::move(differ[i]);
    }
  }
};

/// What runs now, for the line that is left if a kernel crashes.
char g_running[200];
void say_what_ran(int number) {
  if (write(STDERR_FILENO, g_running, std::strlen(g_running)) < 0) _exit(1);
  signal(number, SIG_DFL);
  ::raise(number);
}

class RandomProgram : public ::testing::TestWithParam<Share> {};

std::vector<Share> shares() {
  std::vector<Share> out{{"REF", "REF", 1, 40},
                         {"CPU_LLVM", "CPU:LLVM", 1, 175},
                         {"CPU_LLVM_2", "CPU:LLVM", 176, 175},
                         {"CPU_CLANG", "CPU:CLANG", 1001, 12},
                         {"CL", "CL", 2001, 12},
                         {"CPU_LLVM_LARGE", "CPU:LLVM", 1, 40, Size::kLarge},
                         {"CPU_CLANG_LARGE", "CPU:CLANG", 1001, 4, Size::kLarge},
                         {"CL_LARGE", "CL", 2001, 4, Size::kLarge},
                         {"REF_LENGTHS", "REF", 1, 20, Size::kLengths},
                         {"CPU_LLVM_LENGTHS", "CPU:LLVM", 1, 60, Size::kLengths},
                         {"CPU_CLANG_LENGTHS", "CPU:CLANG", 1001, 4, Size::kLengths},
                         {"CL_LENGTHS", "CL", 2001, 4, Size::kLengths}};
  // Simulated GPUs, by name.
  for (const char* device : devices_and({})) {
    static std::deque<std::string> names;
    std::string& name = names.emplace_back(device);
    for (char& c : name)
      if (c == ':') c = '_';
    out.push_back({name.c_str(), device, 3001, 30});
    out.push_back({names.emplace_back(name + "_LARGE").c_str(), device, 3001, 4, Size::kLarge});
    out.push_back(
        {names.emplace_back(name + "_PRODUCTS").c_str(), device, 3001, 8, Size::kProducts});
    out.push_back({names.emplace_back(name + "_LENGTHS").c_str(), device, 3001, 8, Size::kLengths});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Everywhere, RandomProgram, ::testing::ValuesIn(shares()),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// BM_RANDOM_SEED starts elsewhere, BM_RANDOM_COUNT runs so many, BM_RANDOM_PERCENT so many of a
/// hundred, BM_RANDOM_MODE in one of the four ways only, BM_RANDOM_FAILURES goes on after so many,
/// BM_RANDOM_TOGETHER runs so many of a mode at once, BM_RANDOM_MINUTES ends a run, which goes on
/// where BM_RANDOM_PROGRESS, a file, says.
TEST_P(RandomProgram, AgreesWithTheReference) {
  const Share& share = GetParam();
  for (const char* name : {"REF", share.device})
    if (const std::string reason = why_not(name); !reason.empty()) GTEST_SKIP() << reason;
  Progress progress;
  const uint64_t first = number_from("BM_RANDOM_SEED", share.first),
                 usual = share.count * number_from("BM_RANDOM_PERCENT", 100) / 100,
                 end = first + number_from("BM_RANDOM_COUNT", std::max<uint64_t>(usual, 4)),
                 minutes = number_from("BM_RANDOM_MINUTES", 0),
                 only = number_from("BM_RANDOM_MODE", 4),
                 together = number_from("BM_RANDOM_TOGETHER", 1),
                 group = together > 1 ? together * (only < 4 ? 1 : 4) : 1,
                 most_failures = number_from("BM_RANDOM_FAILURES", 3);
  const auto start = std::chrono::steady_clock::now();
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) signal(number, say_what_ran);
  Tally tally;
  uint64_t failures = 0;
  uint64_t seed = progress.first(share.name, first);
  const uint64_t from = seed;
  std::optional<Group> now;
  uint64_t place = group;  // of this seed in `now`
  for (; seed < end && failures < most_failures; ++seed) {
    if (place >= group) {
      const auto spent = std::chrono::steady_clock::now() - start;
      if (minutes != 0 && spent > std::chrono::minutes(minutes)) break;
      snprintf(g_running, sizeof g_running,
               "random program: seed %llu on %s, or one of %llu more\n",
               static_cast<unsigned long long>(seed), share.device,
               static_cast<unsigned long long>(group - 1));
      now.emplace(share, seed, std::min(group, end - seed), only);
      now->run(&tally);
      place = 0;
    }
    const Case& c = now->cases[place];
    const Target& target = now->targets[place];
    const std::string what = now->found[place++];
    if (seed % kSaveEvery == 0 && failures == 0) progress.reach(share.name, seed + 1);
    if (what.empty()) continue;
    ++failures;
    std::string why;
    const bool is_alone = group == 1 || !difference(c, target, nullptr).empty();
    const Case small = is_alone ? shrunk(c, target, &why) : Case{};
    if (!is_alone) why = "alone it agrees: only BM_RANDOM_TOGETHER shows it";
    ADD_FAILURE() << "seed " << seed << " on " << share.device << ", " << mode_name(target.mode)
                  << ": " << what << "\nshrunk: " << why << "\n"
                  << source_of(small.program, target) << "again: BM_RANDOM_SEED=" << seed
                  << " BM_RANDOM_COUNT=1 tensor_program_test --gtest_filter='*/" << share.name
                  << "'";
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) signal(number, SIG_DFL);
  if (failures == 0) progress.reach(share.name, seed);
  fmt::print(
      "{}: seeds {} to {}, {} programs of {:.1f} steps, {} elements compared, {} hidden\n",
      share.name, from, seed, tally.programs,
      static_cast<double>(tally.steps) / std::max<double>(1, static_cast<double>(tally.programs)),
      tally.compared, tally.hidden);
  if (tally.programs >= 20) {
    EXPECT_LT(tally.hidden * 50, tally.compared) << "too much is hidden to be worth something";
    EXPECT_GE(tally.steps, tally.programs * (share.size == Size::kSmall ? 10 : 6))
        << "programs are too short";
  }
}

using Counts = std::map<std::string_view, uint64_t>;

/// Adds how often kernels of the program have each strategy on a card that is not here.
void count_strategies(const Program& program, const std::string& device, Counts* counts,
                      bool only_variable = false) {
  const hal::Arch& arch = runtime::open_device(device).value()->hal().arch();
  const std::vector<Tensor> outputs = lazy_outputs(program, device);
  std::vector<NodePtr> roots;
  for (const Tensor& t : outputs) roots.push_back(t.node());
  const FusionPlan plan = plan_fusion(roots);
  for (const NodePtr& n : plan.order) {
    if (!plan.stored.contains(n.get())) continue;
    const auto kernel =
        lower(*n, nullptr, [&](const Node* other) { return plan.stored.contains(other); });
    if (!kernel || (only_variable && kernel->vars.empty())) continue;
    const auto schedule =
        compiler::make_schedule(kernel->ir, compiler::target_info(arch), arch.units);
    ++(*counts)[compiler::strategy_of(schedule).name];
  }
}

/// What is never drawn is never tested.
TEST(RandomProgramCensus, EveryOperationIsDrawn) {
  std::vector<int> counts(rows().size());
  const auto is_missing = [&] {
    return std::find(counts.begin() + kHideRow + 2, counts.end(), 0) != counts.end();
  };
  uint64_t seed = 1;
  for (; seed <= 1500 && is_missing(); ++seed) {
    for (const Step& step : draw_case(seed).program.steps) ++counts[step.row];
    // Some are for programs with a length alone, which take longer to draw.
    if (seed % 20 != 1) continue;
    for (const Step& step : draw_case(seed, Size::kLengths).program.steps) ++counts[step.row];
  }
  fmt::print("{} operations in {} programs\n", counts.size(), seed - 1);
  for (size_t row = kHideRow + 2; row < counts.size(); ++row)
    EXPECT_GT(counts[row], 0) << rows()[row].text;
}

/// No operation of the tensor API makes quantised blocks. Decode attention is for a variable number
/// of keys (decode_attention_test.cpp). Copies of tiles are NVIDIA's; what they do not take there,
/// AMD's gather.
bool is_elsewhere(const compiler::Strategy& row, bool is_amd) {
  return !row.has_groups || row.name == "gemm.quantised" || row.name == "gemm.dequantised" ||
         row.name == "attention.decode" ||
         row.name == (is_amd ? "gemm.pipelined" : "gemm.implicit");
}

/// Simulated cards run programs drawn the same way.
TEST(RandomProgramCensus, ProgramsHaveTheStrategiesOfGpus) {
  const std::array devices{"NULL:PTX::sm_80,2", "NULL:PTX::sm_75,2", "NULL:LLVM::gfx1100,4"};
  std::array<Counts, devices.size()> counts;
  const auto missing = [&](size_t i) {
    std::string out;
    for (const compiler::Strategy& row : compiler::strategies()) {
      if (!is_elsewhere(row, i == 2) && !counts[i].contains(row.name))
        out += fmt::format(" {}", row.name);
    }
    return out;
  };
  const auto is_complete = [&] { return (missing(0) + missing(1) + missing(2)).empty(); };
  for (const auto& [size, most] : {std::pair{Size::kProducts, 300}, {Size::kLarge, 10}})
    for (int seed = 1; seed <= most && !is_complete(); ++seed) {
      const Case c = draw_case(static_cast<uint64_t>(seed), size);
      for (size_t i = 0; i < devices.size(); ++i)
        count_strategies(c.program, devices[i], &counts[i]);
    }
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const auto& [name, count] : counts[i]) fmt::print("{}: {} {}\n", devices[i], count, name);
    EXPECT_EQ(missing(i), "") << devices[i] << ": what no program has";
  }
}

/// Those with a length bring kernels over a variable to the same cards.
TEST(RandomProgramCensus, LengthsHaveTheStrategiesOfGpus) {
  const std::array devices{"NULL:PTX::sm_80,2", "NULL:LLVM::gfx1100,4"};
  std::array<Counts, devices.size()> counts;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Case c = draw_case(seed, Size::kLengths);
    for (size_t i = 0; i < devices.size(); ++i) {
      Counts all;
      count_strategies(c.program, devices[i], &all, true);
      for (const auto& [name, count] : all) counts[i][name] += count;
    }
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const auto& [name, count] : counts[i])
      fmt::print("{}: {} {} over a variable\n", devices[i], count, name);
    EXPECT_FALSE(counts[i].empty());
  }
}

}  // namespace
}  // namespace bm::test
