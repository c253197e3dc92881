// Programs on a device, against what the judge says.
#include <cmath>

#include "tensor/interpret_value.h"
#include "tensor/jit.h"
#include "tests/unit/tensor/program.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

Shape shape_of(const std::vector<int64_t>& sizes) { return {sizes.begin(), sizes.end()}; }

std::vector<int64_t> sizes_now(const Shape& shape) {
  std::vector<int64_t> out;
  for (const SymInt& n : shape) out.push_back(n.value());
  return out;
}

/// What the first step sees: inputs cut to the length.
std::vector<Tensor> cut(const Program& p, std::vector<Tensor> inputs, const SymInt& length) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (p.inputs[i].times.empty()) continue;
    std::vector<std::pair<SymInt, SymInt>> ends;
    for (const SymInt& n : extents_of(p, p.inputs[i], length)) ends.emplace_back(0, n);
    inputs[i] = inputs[i].shrink(ends);
  }
  return inputs;
}

/// The program's inputs; with `turn`, their values moved on by so many elements. What lies beyond
/// the length is poison.
std::vector<Tensor> inputs_of(const Program& p, const std::string& device, size_t turn = 0,
                              int64_t length = 0) {
  std::vector<Tensor> out;
  for (const Input& in : p.inputs) {
    std::vector<double> v = in.values;
    if (!v.empty())
      std::rotate(v.begin(), v.begin() + static_cast<int64_t>(turn % v.size()), v.end());
    if (!in.times.empty())
      v = poisoned(v, in.shape, sizes_now(extents_of(p, in, length)), in.dtype);
    out.push_back(tensor_of(v, shape_of(in.shape), in.dtype, device));
  }
  return out;
}

/// Input whose storage a result is: that of assignments. -1: the result is a value of its own.
int root_of(const Program& p, int a) {
  while (a >= 0) {
    const Step& s = p.steps[static_cast<size_t>(a)];
    if (!rows()[s.row].is_assign) return -1;
    a = s.args[0];
  }
  return -1 - a;
}

void run_steps(const Program& p, size_t begin, size_t end, const std::vector<Tensor>& inputs,
               const Target& target, std::vector<Tensor>& results, const SymInt& length = 0) {
  results.resize(p.steps.size());
  for (size_t k = begin; k < end; ++k) {
    const Step& s = p.steps[k];
    Operands o;
    o.n = s.n;
    if (!p.lengths.empty()) o.n.length = length;
    Tensor* const places[] = {&o.x, &o.y, &o.z};
    for (size_t a = 0; a < s.args.size(); ++a) {
      const int arg = s.args[a];
      *places[a] =
          arg < 0 ? inputs[static_cast<size_t>(-1 - arg)] : results[static_cast<size_t>(arg)];
    }
    const Row& row = rows()[s.row];
    const bool is_planted =
        target.planted != nullptr && std::string_view(target.planted->text) == row.text;
    results[k] = is_planted ? target.planted->run(o) : row.run(o);
    if (target.mode == Mode::kSteps) results[k].realize();
  }
}

std::vector<Tensor> outputs_of(const Program& p, const std::vector<Tensor>& results) {
  std::vector<Tensor> out;
  for (const int k : p.outputs) out.push_back(results[static_cast<size_t>(k)].contiguous());
  return out;
}

std::vector<Tensor> run_all(const Program& p, const std::vector<Tensor>& inputs,
                            const Target& target, const SymInt& length = 0) {
  std::vector<Tensor> results;
  run_steps(p, 0, p.steps.size(), cut(p, inputs, length), target, results, length);
  return outputs_of(p, results);
}

/// Bytes and shape of a tensor against a judged value; "" where they agree.
std::string compare(const Tensor& actual, const Judged& wanted, Tally* tally) {
  if (actual.dtype() != wanted.dtype)
    return fmt::format("is {}, not {}", dtype_name(actual.dtype()), dtype_name(wanted.dtype));
  if (sizes_now(actual.shape()) != wanted.shape)
    return fmt::format("has shape {}, not {}", to_string(actual.shape()),
                       to_string(shape_of(wanted.shape)));
  if (tally) tally->compared += static_cast<uint64_t>(count_of(wanted.shape));
  if (!is_float(wanted.dtype)) {
    if (actual.bytes() == wanted.truth.bytes()) return "";
    const std::vector<double> a = numbers(actual), w = numbers(wanted.truth);
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] != w[i])
        return fmt::format("element {} of {} is {}, not {}", i, to_string(actual.shape()), a[i],
                           w[i]);
    return "other bytes for equal values";
  }
  const std::vector<double> a = numbers(actual);
  size_t worst = 0, count = 0;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = std::fabs(a[i] - wanted.values[i]);
    if (apart <= 4 * wanted.error[i]) continue;
    ++count;
    if (std::isnan(apart) || apart > most) most = std::isnan(apart) ? HUGE_VAL : apart, worst = i;
  }
  if (count == 0) return "";
  return fmt::format("{} elements of {} differ; element {} is {}, not {} (bound {:g})", count,
                     to_string(actual.shape()), worst, a[worst], wanted.values[worst],
                     4 * wanted.error[worst]);
}

void count_program(const Program& p, Tally* tally) {
  if (tally == nullptr) return;
  ++tally->programs;
  tally->steps += p.steps.size();
  for (const Input& in : p.inputs)
    if (in.is_mask)
      tally->hidden += static_cast<uint64_t>(std::count(in.values.begin(), in.values.end(), 0.0));
}

/// Outputs, then inputs that were assigned to.
std::string compare_all(const Case& c, const std::vector<Tensor>& inputs,
                        const std::vector<Tensor>& outputs, Tally* tally) {
  const Program& p = c.program;
  for (size_t k = 0; k < p.outputs.size(); ++k)
    if (std::string what = compare(outputs[k], c.results[static_cast<size_t>(p.outputs[k])], tally);
        !what.empty())
      return fmt::format("output {} (s{}) {}", k, p.outputs[k], what);
  std::vector<int> last(p.inputs.size(), -1);
  for (size_t k = 0; k < p.steps.size(); ++k)
    if (const int root = root_of(p, static_cast<int>(k)); root >= 0)
      last[static_cast<size_t>(root)] = static_cast<int>(k);
  for (size_t i = 0; i < last.size(); ++i)
    if (last[i] >= 0)
      if (std::string what = compare(inputs[i], c.results[static_cast<size_t>(last[i])], tally);
          !what.empty())
        return fmt::format("input {}, assigned to, {}", i, what);
  return "";
}

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

void realize_all(std::vector<Tensor>& tensors) {
  std::vector<Tensor*> all;
  for (Tensor& t : tensors) all.push_back(&t);
  Tensor::realize(all);
}

/// Outputs of each program.
std::vector<std::vector<Tensor>> run_together(std::span<const Case* const> cases,
                                              const std::vector<std::vector<Tensor>>& inputs,
                                              const Target& target) {
  Target lazy = target;
  lazy.mode = Mode::kFused;
  const bool has_stops = target.mode == Mode::kSteps;
  std::vector<std::vector<Tensor>> results(cases.size()), outputs;
  size_t most = 0;
  for (const Case* c : cases) most = std::max(most, c->program.steps.size());
  for (size_t k = 0; k < most; ++k) {
    std::vector<Tensor*> made;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Program& p = cases[i]->program;
      if (k >= p.steps.size()) continue;
      run_steps(p, k, k + 1, inputs[i], lazy, results[i]);
      made.push_back(&results[i][k]);
    }
    if (has_stops) Tensor::realize(made);
  }
  std::vector<Tensor> all;
  for (size_t i = 0; i < cases.size(); ++i) {
    outputs.push_back(outputs_of(cases[i]->program, results[i]));
    all.insert(all.end(), outputs.back().begin(), outputs.back().end());
  }
  realize_all(all);
  return outputs;
}

/// The first half as a Jit of its own, called by the rest.
std::vector<Tensor> run_nested(const Program& p, const std::vector<Tensor>& in,
                               Jit<Function>& inner, const Target& target, const SymInt& length) {
  const size_t half = p.steps.size() / 2;
  const std::vector<Tensor>& made = inner(in);
  std::vector<Tensor> results(p.steps.size());
  for (size_t k = 0, next = 0; k < half; ++k) {
    const int root = root_of(p, static_cast<int>(k));
    results[k] = root >= 0 ? in[static_cast<size_t>(root)] : made[next++];
  }
  run_steps(p, half, p.steps.size(), cut(p, in, length), target, results, length);
  return outputs_of(p, results);
}

std::string run_captured(const Case& c, const Target& target, Tally* tally) {
  const Program& p = c.program;
  const bool is_nested = target.mode == Mode::kNested && p.steps.size() > 1;
  std::optional<Var> variable;
  if (!p.lengths.empty()) variable.emplace("n", 1, p.most);
  const SymInt length = variable ? SymInt(*variable) : SymInt(0);
  Jit<Function> inner([&](const std::vector<Tensor>& in) {
    std::vector<Tensor> results, out;
    run_steps(p, 0, p.steps.size() / 2, cut(p, in, length), target, results, length);
    for (size_t k = 0; k < p.steps.size() / 2; ++k)
      if (root_of(p, static_cast<int>(k)) < 0) out.push_back(results[k].contiguous());
    return out;
  });
  Jit<Function> step(is_nested ? Function([&](const std::vector<Tensor>& in) {
    return run_nested(p, in, inner, target, length);
  })
                               : Function([&](const std::vector<Tensor>& in) {
                                   return run_all(p, in, target, length);
                                 }));
  if (variable) {
    // Plain and captured at the first length, then a replay at each.
    for (size_t call = 0; call < p.lengths.size() + 2; ++call) {
      const size_t at = call < 2 ? 0 : call - 2;
      variable->set(p.lengths[at]);
      const std::vector<Tensor> inputs =
          inputs_of(p, target.device, call < 2 ? call + 1 : 0, p.lengths[at]);
      const std::vector<Tensor>& outputs = step(inputs);
      if (call < 2) continue;
      if (std::string what = compare_all(c.fixed[at], inputs, outputs, tally); !what.empty())
        return fmt::format("replay at length {}: {}", p.lengths[at], what);
    }
    return "";
  }
  // Plain, captured, replayed: the replays see other values than the capture.
  for (const size_t turn : {1U, 2U, 0U, 3U, 0U}) {
    const std::vector<Tensor> inputs = inputs_of(p, target.device, turn);
    const std::vector<Tensor>& outputs = step(inputs);
    if (turn != 0) continue;
    if (std::string what = compare_all(c, inputs, outputs, tally); !what.empty())
      return "replay: " + what;
  }
  return "";
}

/// Plainly, fused or step by step, at one length after the other.
std::string run_lengths(const Case& c, const Target& target, Tally* tally) {
  const Program& p = c.program;
  const Var variable("n", 1, p.most);
  for (size_t at = 0; at < p.lengths.size(); ++at) {
    variable.set(p.lengths[at]);
    const std::vector<Tensor> inputs = inputs_of(p, target.device, 0, p.lengths[at]);
    std::vector<Tensor> outputs = run_all(p, inputs, target, variable);
    realize_all(outputs);
    if (std::string what = compare_all(c.fixed[at], inputs, outputs, tally); !what.empty())
      return fmt::format("length {}: {}", p.lengths[at], what);
  }
  return "";
}

}  // namespace

const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::kFused: return "fused";
    case Mode::kSteps: return "steps";
    case Mode::kCaptured: return "captured";
    case Mode::kNested: return "nested";
  }
  return "";
}

std::vector<Tensor> lazy_outputs(const Program& p, const std::string& device) {
  if (p.lengths.empty()) return run_all(p, inputs_of(p, device), {device});
  const Var variable("n", 1, p.most);
  variable.set(p.lengths[0]);
  return run_all(p, inputs_of(p, device, 0, p.lengths[0]), {device}, variable);
}

std::string difference(const Case& c, const Target& target, Tally* tally) {
  const Program& p = c.program;
  count_program(p, tally);
  // A capture of nothing is refused.
  bool has_elements = false;
  for (const int k : p.outputs)
    has_elements = has_elements || count_of(c.results[static_cast<size_t>(k)].shape) > 0;
  try {
    if ((target.mode == Mode::kCaptured || target.mode == Mode::kNested) && has_elements)
      return run_captured(c, target, tally);
    if (!p.lengths.empty()) return run_lengths(c, target, tally);
    const std::vector<Tensor> inputs = inputs_of(p, target.device);
    std::vector<Tensor> outputs = run_all(p, inputs, target);
    realize_all(outputs);
    return compare_all(c, inputs, outputs, tally);
  } catch (const Exception& e) {
    return fmt::format("throws: {}", e.what());
  }
}

std::vector<std::string> differences(std::span<const Case* const> cases, const Target& target,
                                     Tally* tally) {
  std::vector<std::string> out;
  const bool is_captured = target.mode == Mode::kCaptured || target.mode == Mode::kNested;
  const bool has_length = !cases.empty() && !cases[0]->program.lengths.empty();
  try {
    if (cases.size() > 1 && !is_captured && !has_length) {
      std::vector<std::vector<Tensor>> inputs;
      for (const Case* c : cases) inputs.push_back(inputs_of(c->program, target.device));
      const std::vector<std::vector<Tensor>> outputs = run_together(cases, inputs, target);
      for (size_t i = 0; i < cases.size(); ++i) {
        count_program(cases[i]->program, tally);
        out.push_back(compare_all(*cases[i], inputs[i], outputs[i], tally));
      }
      return out;
    }
  } catch (const Exception&) {
    // Of one of them: alone it says what.
  }
  out.clear();
  for (const Case* c : cases) out.push_back(difference(*c, target, tally));
  return out;
}

}  // namespace bm::test
