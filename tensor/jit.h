#pragma once
// Jit: a function of tensors whose work is captured once and replayed as data.
//
//   Jit step([&](const Tensor& x) { return model(x); });
//   const Tensor& y = step(x);      // call 1 plain, call 2 capture, call 3+ replay
//
// The function body runs only on plain and capture calls: values of C++ scalars and branches are
// frozen into the capture unless they are arguments (then they are part of the key) or Vars (then
// they may change). Outputs are overwritten by the next replay of the same capture.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace bm {

struct JitOptions {
  size_t capacity = 8;  ///< captures kept, one per key (shapes, dtypes, devices, scalar arguments)
  bool is_strict = false;  ///< a second key is an error instead of another capture
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

/// What one argument list looks like to the cache: tensors by value of their description, scalars
/// by value.
struct JitArguments {
  std::vector<Tensor*> tensors;
  std::vector<int64_t> scalars;
  void clear() {
    tensors.clear();
    scalars.clear();
  }
};

/// The part of Jit that does not depend on types.
class JitCore {
 public:
  explicit JitCore(JitOptions options);
  ~JitCore();

  enum class Action { kPlain, kCapture, kReplay };
  /// Chooses by key; after kReplay the outputs of entry() hold the results.
  Action begin(const JitArguments& arguments, bool is_capture_forced);
  /// Runs `body` (which must call the user's function and hand every output to `outputs`) under
  /// capture, builds the graph and runs it once.
  void capture(const JitArguments& arguments,
               const std::function<void(std::vector<Tensor*>&)>& body);
  void reset();
  size_t num_captures() const;
  size_t num_calls() const;  ///< kernels and copies of the capture used last
  bool is_graph() const;     ///< capture used last replays as a graph (not call by call)
  /// Memory of packed copies of operands that the capture used last multiplies with and never
  /// writes; they follow what is assigned to the originals.
  uint64_t packed_bytes() const;
  size_t entry() const { return entry_; }

 private:
  struct Entry;
  JitOptions options_;
  std::vector<std::unique_ptr<Entry>> entries_;
  size_t entry_ = 0;
  bool matches(const Entry& e, const JitArguments& arguments) const;
  void replay(Entry& e, const JitArguments& arguments);
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

}  // namespace detail

/// Thread: one call at a time per object; different objects are independent.
template <class F>
class Jit {
 public:
  explicit Jit(F function, JitOptions options = {})
      : function_(std::move(function)), core_(options) {}

  /// Errors (Exception): overlapping inputs, nothing recorded, data read inside a capture, strict
  /// mode with other shapes, dtypes, devices or scalars than captured; an output read after a later
  /// replay sees the later values.
  template <class... Args>
  const auto& operator()(const Args&... args) {
    return call(false, args...);
  }
  /// Captures now, without the plain first call.
  template <class... Args>
  const auto& capture(const Args&... args) {
    return call(true, args...);
  }
  void reset() {
    core_.reset();
    results_.clear();
  }
  const detail::JitCore& core() const { return core_; }

 private:
  template <class... Args>
  const auto& call(bool is_capture_forced, const Args&... args) {
    using R = std::decay_t<std::invoke_result_t<F&, const Args&...>>;
    arguments_.clear();
    (detail::describe(arguments_, args), ...);
    const auto action = core_.begin(arguments_, is_capture_forced);
    auto& slot = result<R>();
    if (action == detail::JitCore::Action::kPlain) {
      slot = function_(args...);
      std::vector<Tensor*> outputs;
      visit_tensors(slot, [&](Tensor& t) { outputs.push_back(&t); });
      Tensor::realize(outputs);
    } else if (action == detail::JitCore::Action::kCapture) {
      core_.capture(arguments_, [&](std::vector<Tensor*>& outputs) {
        slot = function_(args...);
        visit_tensors(slot, [&](Tensor& t) { outputs.push_back(&t); });
      });
    }
    return slot;
  }
  template <class R>
  R& result() {
    if (core_.entry() >= results_.size()) results_.resize(core_.entry() + 1);
    auto& cell = results_[core_.entry()];
    if (!cell) cell = std::make_shared<R>();
    return *static_cast<R*>(cell.get());
  }

  F function_;
  detail::JitCore core_;
  detail::JitArguments arguments_;
  std::vector<std::shared_ptr<void>> results_;
};

}  // namespace bm
