// Captured programs against plain execution: two worlds of the same tensors go through the same
// random calls, one with Jit, one without, and must stay equal. Nesting, failing captures, levels
// of JIT, eviction, views as arguments, aliases, in-place updates, kept outputs and lazy tensors.
//
// A failure prints the seed and the calls so far. BM_TEST_LONG=1 runs many more worlds,
// BM_TEST_SEED=N one, BM_TEST_DEVICE=CL those of the CPU elsewhere.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <random>

#include "runtime/base/env.h"
#include "tensor/jit.h"

namespace bm {
namespace {

using Floats = std::vector<float>;
using List = std::vector<Tensor>;

constexpr int64_t kRows = 4, kColumns = 6;

/// One operation on the values a function has: its arguments, then the states, then the lazy
/// tensors of the world, then what it has computed.
struct Step {
  enum class Kind : uint8_t {
    kAdd,
    kMix,
    kMaximum,
    kRowSum,
    kFlip,
    kContiguous,
    kRealize,
    kAssignState,
    kAssignRow,
    kAssignArgument,
    kNested,
  };
  Kind kind = Kind::kAdd;
  size_t a = 0, b = 0;  ///< modulo the number of values
  float number = 0;
};

struct Function {
  std::vector<Step> steps;
  size_t num_outputs = 1;
  bool writes_argument = false;
};

/// Tensors of one side.
struct World {
  std::string device;
  List states, views, lazies, kept;
};

Function random_function(std::mt19937_64& random, bool may_nest) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Function f;
  f.num_outputs = 1 + below(3);
  const size_t count = 2 + below(7);
  for (size_t i = 0; i < count; ++i) {
    Step s;
    s.kind = static_cast<Step::Kind>(below(may_nest ? 11 : 10));
    s.a = below(1000);
    s.b = below(1000);
    s.number = static_cast<float>(below(9)) - 4;
    f.writes_argument |= s.kind == Step::Kind::kAssignArgument;
    f.steps.push_back(s);
  }
  return f;
}

/// Sums stay small, so that they are exact in any order.
Tensor bounded(const Tensor& t) { return t.clip(-512, 512); }

using Inner = std::function<List(const List&)>;

List run_function(const Function& f, const List& arguments, World& w, const Inner& inner) {
  List values = arguments;
  values.insert(values.end(), w.states.begin(), w.states.end());
  values.insert(values.end(), w.lazies.begin(), w.lazies.end());
  const size_t first_made = values.size();
  for (const Step& s : f.steps) {
    const Tensor a = values[s.a % values.size()], b = values[s.b % values.size()];
    switch (s.kind) {
      case Step::Kind::kAdd: values.push_back(bounded(a + b + s.number)); break;
      case Step::Kind::kMix: values.push_back(bounded(a - b * 2)); break;
      case Step::Kind::kMaximum: values.push_back(a.maximum(b)); break;
      case Step::Kind::kRowSum:
        values.push_back(bounded(a.sum({1}, true).expand({kRows, kColumns}) + b));
        break;
      case Step::Kind::kFlip: values.push_back(a.flip({0}).maximum(a) + b); break;
      case Step::Kind::kContiguous: values.push_back(a.contiguous()); break;
      case Step::Kind::kRealize:
        if (values.size() > first_made) values.back().realize();
        break;
      case Step::Kind::kAssignState:
        w.states[s.b % w.states.size()].assign(bounded(a + s.number));
        break;
      case Step::Kind::kAssignRow: {
        const int64_t row = static_cast<int64_t>(s.b % kRows);
        w.states[s.b % w.states.size()]
            .shrink({{row, row + 1}, {0, kColumns}})
            .assign(bounded(a.shrink({{0, 1}, {0, kColumns}}) + s.number));
        break;
      }
      case Step::Kind::kAssignArgument: {
        Tensor target = arguments[s.b % arguments.size()];
        target.assign(bounded(a + s.number));
        break;
      }
      case Step::Kind::kNested: {
        const List got = inner({a + 0, b + 1});
        values.push_back(bounded(got[0]));
        break;
      }
    }
  }
  List outputs;
  for (size_t i = 0; i < f.num_outputs; ++i)
    outputs.push_back(bounded(values[values.size() - 1 - i % values.size()] + 1));
  return outputs;
}

/// How an argument is made; the same in both worlds.
struct Argument {
  enum class Kind : uint8_t {
    kFresh,
    kState,
    kView,
    kColumnsView,
    kLazy,
    kLazyOfState,
    kKept,
  };
  Kind kind = Kind::kFresh;
  size_t index = 0;
  float number = 0;
};

Tensor make_argument(const Argument& a, const World& w) {
  switch (a.kind) {
    case Argument::Kind::kState: return w.states[a.index % w.states.size()];
    case Argument::Kind::kView: return w.views[a.index % w.views.size()];
    // A new view of another tensor's memory: rows in reverse, so no contiguous range.
    case Argument::Kind::kColumnsView: return w.states[a.index % w.states.size()].flip({1});
    case Argument::Kind::kLazyOfState: return w.states[a.index % w.states.size()] * 2 + a.number;
    case Argument::Kind::kKept:
      if (!w.kept.empty()) return w.kept[a.index % w.kept.size()];
      [[fallthrough]];
    case Argument::Kind::kFresh:
    case Argument::Kind::kLazy: break;
  }
  Tensor t =
      Tensor::arange(kRows * kColumns, DType::kF32, w.device).reshape({kRows, kColumns}) + a.number;
  return a.kind == Argument::Kind::kLazy ? t : t.contiguous().realize();
}

class Fuzz {
 public:
  Fuzz(uint64_t seed, const std::string& device) : random_(seed) {
    for (World* w : {&jit_, &plain_}) {
      w->device = device;
      for (int i = 0; i < 3; ++i)
        w->states.push_back((Tensor::arange(2 * kRows * kColumns, DType::kF32, device) - 10 * i)
                                .contiguous()
                                .realize());
      // States are the first half of a larger tensor's rows: views of them have neighbours.
      for (Tensor& s : w->states) s = s.reshape({2 * kRows, kColumns}).contiguous().realize();
      for (Tensor& s : w->states) s = s.shrink({{0, kRows}, {0, kColumns}}).contiguous().realize();
      big(*w) = Tensor::arange(4 * kRows * kColumns, DType::kF32, device)
                    .reshape({2 * kRows, 2 * kColumns})
                    .contiguous()
                    .realize();
      w->views.push_back(big(*w).shrink({{0, kRows}, {0, kColumns}}));
      w->views.push_back(big(*w).shrink({{kRows, 2 * kRows}, {kColumns, 2 * kColumns}}));
      w->views.push_back(
          big(*w).reshape({4 * kRows, kColumns}).shrink({{kRows, 2 * kRows}, {0, kColumns}}));
      w->lazies.push_back(w->states[0] * 2 + 1);
      w->lazies.push_back((w->states[1] + w->states[2]).clip(-100, 100));
    }
    inner_ = random_function(random_, false);
    // An inner function has states of its own world, but writes none: it is called by both kinds.
    std::erase_if(inner_.steps, [](const Step& s) { return s.kind >= Step::Kind::kAssignState; });
    for (size_t i = 0; i < kFunctions; ++i) {
      functions_.push_back(random_function(random_, true));
      const Outputs outputs = below(2) == 0 ? Outputs::kReuse : Outputs::kFresh;
      is_reused_.push_back(outputs == Outputs::kReuse);
      jits_.emplace_back(
          [this, i](const List& in, int) {
            return run_function(functions_[i], in, jit_, [this](const List& x) {
              // A nested capture that fails stops a plain function half way: not the same call.
              const CaptureFaults none([](CaptureStep, size_t) { return Status{}; });
              return nested_(x);
            });
          },
          JitOptions{.capacity = 1 + below(3), .outputs = outputs, .is_checked = true});
    }
  }

  /// "" or what differs.
  std::string run(int steps) {
    for (int i = 0; i < steps; ++i) {
      std::string problem;
      const size_t what = below(10);
      if (what < 7)
        problem = call();
      else if (what == 7)
        update();
      else if (what == 8)
        problem = read_one();
      else
        keep_lazy();
      if (problem.empty()) problem = compare_states();
      if (!problem.empty()) return problem;
    }
    return "";
  }
  const std::string& story() const { return story_; }
  uint64_t num_replays() const {
    uint64_t sum = 0;
    for (const auto& jit : jits_) sum += jit.core().counters().hits;
    return sum;
  }
  uint64_t num_refused() const { return num_refused_; }

  static std::string told(const Function& f) {
    std::string out = fmt::format("{{{} outputs", f.num_outputs);
    for (const Step& s : f.steps)
      out += fmt::format(", {}({}, {}, {})", static_cast<int>(s.kind), s.a, s.b, s.number);
    return out + "}";
  }

 private:
  static constexpr size_t kFunctions = 3;

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  Tensor& big(World& w) { return &w == &jit_ ? big_[0] : big_[1]; }

  std::string call() {
    const size_t f = below(kFunctions);
    std::vector<Argument> arguments(below(4) == 0 ? 2 : 1);
    for (Argument& a : arguments) {
      a.kind = static_cast<Argument::Kind>(below(7));
      a.index = below(1000);
      a.number = static_cast<float>(below(20));
      // What has no storage cannot be assigned to, captured or not.
      const bool is_lazy = a.kind == Argument::Kind::kLazy ||
                           a.kind == Argument::Kind::kLazyOfState ||
                           a.kind == Argument::Kind::kKept;
      if (functions_[f].writes_argument && is_lazy) a.kind = Argument::Kind::kFresh;
    }
    const int scalar = below(5) == 0 ? 1 : 0;  // mostly one key, so that it replays
    const char* const level = std::array{"0", "1", "1", "1", "2"}[below(5)];
    const size_t failing = below(6) == 0 ? below(12) : SIZE_MAX;
    story_ += fmt::format("call {} scalar {} JIT={} failing {}:", f, scalar, level, failing);
    for (const Argument& a : arguments)
      story_ += fmt::format(" {}:{}:{}", static_cast<int>(a.kind), a.index, a.number);
    story_ += '\n';
    List got;
    try {
      const ScopedSetting jit("JIT", level);
      size_t point = 0;
      const CaptureFaults faults([&](CaptureStep, size_t) -> Status {
        if (point++ == failing) return fail(Code::kCancelled, "injected");
        return {};
      });
      List in;
      for (const Argument& a : arguments) in.push_back(make_argument(a, jit_));
      got = jits_[f](in, scalar);
    } catch (const Exception& e) {
      story_ += fmt::format("  refused: {}\n", e.what());
      ++num_refused_;
      const std::string_view text = e.what();
      const bool is_known = e.code() == Code::kCancelled || text.starts_with("Jit: ") ||
                            text.find("earlier run") != std::string_view::npos;
      return is_known ? "" : fmt::format("throws: {}", e.what());
    }
    List in;
    for (const Argument& a : arguments) in.push_back(make_argument(a, plain_));
    List want = run_function(functions_[f], in, plain_, [this](const List& x) {
      List out = run_function(inner_, x, plain_, {});
      for (Tensor& t : out) t.realize();
      return out;
    });
    for (Tensor& t : want) t.realize();
    const detail::JitCounters& counters = jits_[f].core().counters();
    story_ += fmt::format("  so far {} plain, {} captures, {} replays\n", counters.plain,
                          counters.captures, counters.hits);
    for (size_t i = 0; i < want.size(); ++i)
      if (const Floats g = got[i].data<float>(), p = want[i].data<float>(); g != p)
        return fmt::format("output {} of {}: {} instead of {}", i, told(functions_[f]),
                           fmt::join(g, " "), fmt::join(p, " "));
    if (below(3) == 0) {
      jit_.kept.push_back(got[0]);
      plain_.kept.push_back(want[0]);
      limit_kept();
    }
    return "";
  }

  void update() {
    const size_t s = below(jit_.states.size()), kind = below(3), from = below(jit_.views.size());
    story_ += fmt::format("update {} {} {}\n", kind, s, from);
    for (World* w : {&jit_, &plain_}) {
      if (kind == 0)
        w->states[s].assign(bounded(w->states[s] + 3));
      else if (kind == 1)
        w->views[from].assign(bounded(w->states[s] - 1));
      else
        w->states[s]
            .shrink({{1, 2}, {0, kColumns}})
            .assign(Tensor::full({1, kColumns}, 5, DType::kF32, w->device));
    }
  }

  std::string read_one() {
    const size_t kind = below(3), index = below(1000);
    const auto pick = [&](World& w) -> List& {
      return kind == 0 ? w.views : kind == 1 ? w.lazies : w.kept;
    };
    if (pick(jit_).empty()) return "";
    const size_t i = index % pick(jit_).size();
    story_ += fmt::format("read {} {}\n", kind, i);
    Floats got;
    try {
      got = pick(jit_)[i].data<float>();
    } catch (const Exception& e) {
      const bool is_stale =
          std::string_view(e.what()).find("earlier run") != std::string_view::npos;
      return is_stale && kind == 2 ? "" : fmt::format("reading throws: {}", e.what());
    }
    return got == pick(plain_)[i].data<float>() ? "" : fmt::format("kind {} number {}", kind, i);
  }

  void keep_lazy() {
    const size_t s = below(jit_.states.size()), v = below(jit_.views.size());
    story_ += fmt::format("lazy of {} {}\n", s, v);
    for (World* w : {&jit_, &plain_}) {
      w->kept.push_back((w->states[s] + w->views[v]) * 2);
    }
    limit_kept();
  }

  void limit_kept() {
    for (World* w : {&jit_, &plain_})
      if (w->kept.size() > 6) w->kept.erase(w->kept.begin());
  }

  std::string compare_states() {
    for (size_t i = 0; i < jit_.states.size(); ++i)
      if (jit_.states[i].data<float>() != plain_.states[i].data<float>())
        return fmt::format("state {}", i);
    return big_[0].data<float>() == big_[1].data<float>() ? "" : "the tensor that views look at";
  }

  std::mt19937_64 random_;
  World jit_, plain_;
  Tensor big_[2];
  Function inner_;
  std::vector<Function> functions_;
  std::vector<bool> is_reused_;
  std::deque<Jit<std::function<List(const List&, int)>>> jits_;
  Jit<std::function<List(const List&)>> nested_{
      [this](const List& x) { return run_function(inner_, x, jit_, {}); },
      JitOptions{.outputs = Outputs::kFresh}};
  std::string story_;
  uint64_t num_refused_ = 0;
};

class CaptureFuzz : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(CaptureFuzz, EqualsPlainExecution) {
  auto [device, quick] = GetParam();
  // Another device in place of the CPU: "CL", or "NV" under tools/sim-nv.
  if (const char* other = std::getenv("BM_TEST_DEVICE"); other && std::string_view(device) == "CPU")
    device = other;
  const bool is_long = std::getenv("BM_TEST_LONG") != nullptr;
  const char* const only = std::getenv("BM_TEST_SEED");
  const uint64_t first = only ? std::strtoull(only, nullptr, 0) : 1;
  const uint64_t count = only ? 1 : static_cast<uint64_t>(is_long ? quick * 100 : quick);
  uint64_t replays = 0, refused = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Fuzz fuzz(seed, device);
    const std::string problem = fuzz.run(100);
    ASSERT_EQ(problem, "") << "seed " << seed << " on " << device << "\n" << fuzz.story();
    replays += fuzz.num_replays();
    refused += fuzz.num_refused();
  }
  // Of about 70 calls a world.
  RecordProperty("replays", std::to_string(replays));
  RecordProperty("refused", std::to_string(refused));
  if (!only) {
    EXPECT_GT(replays, 5 * count);
    EXPECT_LT(refused, 25 * count);
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, CaptureFuzz,
                         ::testing::Values(std::pair("REF", 60), std::pair("CPU", 25)));

}  // namespace
}  // namespace bm
