#pragma once
// Jit: a function of tensors whose work is captured once and replayed as data.
//
//   Jit step([&](const Tensor& x) { return model(x); });
//   Tensor y = step(x);      // call 1 plain, call 2 capture, call 3+ replay
//
// The function body runs only on plain and capture calls: values of C++ scalars and branches are
// frozen into the capture unless they are arguments (then they are part of the key) or Vars (then
// they may change). Outputs are overwritten by the next replay of the same capture unless
// JitOptions::outputs says otherwise. docs/captured-programs.md has the rules in full.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/captured_program.h"
#include "tensor/tensor.h"

namespace bm {

struct JitOptions {
  /// Captures kept, one per key (shapes, dtypes, devices, views, scalar arguments); at least 1. The
  /// one used longest ago goes first.
  size_t capacity = 8;
  bool is_strict = false;  ///< a second key is an error instead of another capture
  Outputs outputs = Outputs::kReuse;
  /// Reading an output that a later replay has overwritten is an error, as with BM_CHECKED=1.
  bool is_checked = false;
  /// Memory for intermediates, shared by all captures that have it; nullptr: by those of this Jit.
  std::shared_ptr<ArenaPool> arenas = {};
};

/// Customisation point: calls f(Tensor&) for every tensor inside x. Overload it for your own
/// structs.
template <class F>
void visit_tensors(Tensor& t, F&& f) {
  f(t);
}
template <class F>
void visit_tensors(std::vector<Tensor>& list, F&& f) {
  for (Tensor& t : list) f(t);
}
template <class A, class B, class F>
void visit_tensors(std::pair<A, B>& p, F&& f) {
  visit_tensors(p.first, f);
  visit_tensors(p.second, f);
}
template <class... T, class F>
void visit_tensors(std::tuple<T...>& all, F&& f) {
  std::apply([&](auto&... x) { (visit_tensors(x, f), ...); }, all);
}
template <class T, class F>
  requires std::is_arithmetic_v<T>
void visit_tensors(T&, F&&) {}

namespace detail {

/// What happened to the calls of a Jit.
struct JitCounters {
  uint64_t plain = 0;      ///< ran the function
  uint64_t captures = 0;   ///< ran the function and recorded it
  uint64_t hits = 0;       ///< replayed
  uint64_t evictions = 0;  ///< captures given up for want of capacity
};

/// The part of Jit that does not depend on types.
class JitCore {
 public:
  explicit JitCore(JitOptions options);
  ~JitCore();

  enum class Action { kPlain, kCapture, kReplay };
  /// Chooses by key; after kReplay the outputs of program() hold the results.
  Action begin(const JitArguments& arguments, bool is_capture_forced);
  /// Captures `body` for the key of the last begin() and runs it once.
  void capture(const JitArguments& arguments, const CapturedProgram::Body& body);
  /// Gives the results of a plain call storage.
  static void settle(std::span<Tensor* const> results, const JitArguments& arguments);
  void reset();
  /// The program used last, or nullptr.
  CapturedProgram* program() const;
  size_t num_captures() const;
  size_t num_calls() const;  ///< kernels and copies of the capture used last
  bool is_graph() const;     ///< capture used last replays as a graph (not call by call)
  /// Memory of packed copies of operands that the capture used last multiplies with and never
  /// writes; they follow what is assigned to the originals.
  uint64_t packed_bytes() const;
  /// Runs of the capture used last.
  uint64_t generation() const;
  const JitCounters& counters() const { return counters_; }
  const ArenaPool& arenas() const { return *options_.arenas; }

 private:
  struct Entry;
  Entry* find(const JitArguments& arguments);
  Entry& add(const JitArguments& arguments);
  void make_room(const Entry& for_entry);

  JitOptions options_;
  JitInputs inputs_;
  std::vector<std::unique_ptr<Entry>> entries_;
  Entry* entry_ = nullptr;  ///< used last
  uint64_t now_ = 0;
  JitCounters counters_;
};

template <class T>
void describe(JitArguments& a, const T& x) {
  if constexpr (std::is_floating_point_v<T>)
    a.scalars.push_back(std::bit_cast<int64_t>(static_cast<double>(x)));
  else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>)
    a.scalars.push_back(static_cast<int64_t>(x));
  // Visiting does not change tensors; the customisation point is written once, for non-const.
  else
    visit_tensors(const_cast<T&>(x), [&](Tensor& t) { a.tensors.push_back(&t); });
}

/// Puts the stand-ins from `next` on in place of the tensors of `x`.
template <class T>
void replace_tensors(T& x, Tensor* const*& next) {
  if constexpr (!std::is_arithmetic_v<T> && !std::is_enum_v<T>)
    visit_tensors(x, [&](Tensor& t) { t = **next++; });
}

/// One address per list of argument types.
template <class... Args>
const void* signature_of() {
  static const char address = 0;
  return &address;
}

}  // namespace detail

/// Thread: one call at a time per object; different objects are independent, unless they share
/// arenas and wait for each other.
template <class F>
class Jit {
 public:
  explicit Jit(F function, JitOptions options = {})
      : function_(std::move(function)), core_(std::move(options)) {}

  /// Errors (Exception): overlapping inputs, nothing recorded, data read inside a capture, strict
  /// mode with other shapes, dtypes, devices or scalars than captured; an input that shares memory
  /// with what the function writes by other ways. An output read after a later replay sees the
  /// later values, or is an error (JitOptions::is_checked). What the function throws passes through
  /// and leaves every tensor as it was.
  template <class... Args>
  auto operator()(const Args&... args) {
    return call(false, args...);
  }
  /// Captures now, without the plain first call.
  template <class... Args>
  auto capture(const Args&... args) {
    return call(true, args...);
  }
  void reset() { core_.reset(); }
  const detail::JitCore& core() const { return core_; }

 private:
  template <class... Args>
  auto call(bool is_capture_forced, const Args&... args) {
    using R = std::decay_t<std::invoke_result_t<F&, const Args&...>>;
    arguments_.clear();
    arguments_.signature = detail::signature_of<Args...>();
    (detail::describe(arguments_, args), ...);
    const auto action = core_.begin(arguments_, is_capture_forced);
    if (action == detail::JitCore::Action::kReplay) [[likely]]
      return give<R>();
    // The function may call this object again: what it leaves there is not ours.
    const JitArguments arguments = std::exchange(arguments_, {});
    if (action == detail::JitCore::Action::kPlain) {
      R result = function_(args...);
      std::vector<Tensor*> tensors;
      visit_tensors(result, [&](Tensor& t) { tensors.push_back(&t); });
      core_.settle(tensors, arguments);
      return result;
    }
    core_.capture(arguments, [&](std::span<Tensor* const> stand_ins) {
      auto cell = std::make_shared<R>(run_with(stand_ins, args...));
      CapturedProgram::Results results{cell, {}};
      visit_tensors(*cell, [&](Tensor& t) { results.tensors.push_back(&t); });
      return results;
    });
    return give<R>();
  }

  /// The key holds the types of the arguments, so the cell is of the type they give.
  template <class R>
  R give() {
    return *static_cast<const R*>(core_.program()->owner());
  }

  /// Copies of the arguments, so that the caller's tensors, which the function may know by other
  /// ways, stay what they are.
  template <class... Args>
  auto run_with(std::span<Tensor* const> stand_ins, const Args&... args) {
    std::tuple<Args...> copies(args...);
    Tensor* const* next = stand_ins.data();
    std::apply([&](auto&... x) { (detail::replace_tensors(x, next), ...); }, copies);
    return std::apply([&](const auto&... x) { return function_(x...); }, copies);
  }

  F function_;
  detail::JitCore core_;
  JitArguments arguments_;
};

}  // namespace bm
