// Smaller programs that fail all the same, and their text.
#include <algorithm>
#include <cctype>
#include <set>

#include "tensor/interpret_value.h"
#include "tests/unit/tensor/program.h"
#include "tests/unit/tensor/program_helpers.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

/// Runs of a candidate on the device; the search ends where it is.
constexpr int kMostRuns = 400;

/// Without steps and inputs that no output and no assignment needs.
Program compacted(const Program& p) {
  std::vector<bool> keep(p.steps.size()), keep_input(p.inputs.size());
  const auto use = [&](int a) {
    if (a >= 0)
      keep[static_cast<size_t>(a)] = true;
    else
      keep_input[static_cast<size_t>(-1 - a)] = true;
  };
  for (const int k : p.outputs) use(k);
  for (size_t k = p.steps.size(); k-- > 0;) {
    if (!keep[k] && !rows()[p.steps[k].row].is_assign) continue;
    keep[k] = true;
    for (const int a : p.steps[k].args) use(a);
  }
  Program out;
  out.seed = p.seed;
  out.lengths = p.lengths;
  out.most = p.most;
  std::vector<int> at(p.steps.size()), at_input(p.inputs.size());
  const auto moved = [&](int a) {
    return a >= 0 ? at[static_cast<size_t>(a)] : at_input[static_cast<size_t>(-1 - a)];
  };
  for (size_t i = 0; i < p.inputs.size(); ++i)
    if (keep_input[i]) {
      out.inputs.push_back(p.inputs[i]);
      at_input[i] = -static_cast<int>(out.inputs.size());
    }
  for (size_t k = 0; k < p.steps.size(); ++k)
    if (keep[k]) {
      at[k] = static_cast<int>(out.steps.size());
      out.steps.push_back(p.steps[k]);
      for (int& a : out.steps.back().args) a = moved(a);
    }
  for (const int k : p.outputs) out.outputs.push_back(moved(k));
  return out;
}

/// Uses of step k become uses of `other`.
Program with_step_replaced(Program p, int k, int other) {
  for (Step& s : p.steps)
    for (int& a : s.args)
      if (a == k) a = other;
  return p;
}

class Shrinker {
 public:
  Shrinker(Case c, const Target& target)
      : best_(std::move(c)), target_(target), why_(difference(best_, target, nullptr)) {}

  Case run(std::string* why) {
    while (fewer_outputs() || fewer_steps() || fewer_lengths() || smaller_shapes() ||
           simpler_values()) {}
    *why = why_;
    return std::move(best_);
  }

 private:
  Case best_;
  const Target& target_;
  std::string why_;
  int runs_ = 0;

  bool try_program(Program p) {
    if (runs_ >= kMostRuns) return false;
    std::optional<Case> c = case_of(compacted(p));
    if (!c || c->program.steps.empty() || c->program.outputs.empty()) return false;
    ++runs_;
    std::string what = difference(*c, target_, nullptr);
    // An exception is another failure than a wrong value.
    const auto throws = [](const std::string& text) { return text.starts_with("throws"); };
    if (what.empty() || throws(what) != throws(why_)) return false;
    best_ = std::move(*c);
    why_ = std::move(what);
    return true;
  }

  bool fewer_outputs() {
    if (best_.program.outputs.size() < 2) return false;
    for (const int k : std::vector<int>(best_.program.outputs)) {
      Program p = best_.program;
      p.outputs = {k};
      if (try_program(std::move(p))) return true;
    }
    return false;
  }

  bool fewer_lengths() {
    for (size_t k = 0; k < best_.program.lengths.size() && best_.program.lengths.size() > 1; ++k) {
      Program p = best_.program;
      p.lengths.erase(p.lengths.begin() + static_cast<int64_t>(k));
      if (try_program(std::move(p))) return true;
    }
    return false;
  }

  /// Times that each axis of a step's result has the length; nothing where that is not known.
  std::optional<std::vector<int64_t>> times_of(size_t k) const {
    const std::vector<int64_t>& lengths = best_.program.lengths;
    if (lengths.size() < 2) return std::nullopt;
    const std::vector<int64_t>&a = best_.fixed[0].results[k].shape,
          &b = best_.fixed[1].results[k].shape;
    std::vector<int64_t> out;
    for (size_t axis = 0; axis < a.size(); ++axis)
      out.push_back((a[axis] - b[axis]) / (lengths[0] - lengths[1]));
    return out;
  }

  bool fewer_steps() {
    bool has_shrunk = false;
    // An output further up.
    const int first = *std::min_element(best_.program.outputs.begin(), best_.program.outputs.end());
    for (int k = 0; k < first; ++k) {
      Program p = best_.program;
      if (rows()[p.steps[static_cast<size_t>(k)].row].is_assign) continue;
      p.outputs = {k};
      if (try_program(std::move(p))) return true;
    }
    for (int k = static_cast<int>(best_.program.steps.size()); k-- > 0;) {
      if (k >= static_cast<int>(best_.program.steps.size())) continue;
      has_shrunk = try_as_input(k) || try_bypass(k) || has_shrunk;
    }
    return has_shrunk;
  }

  /// Its value as an input.
  bool try_as_input(int k) {
    const Program& p = best_.program;
    const auto& step = p.steps[static_cast<size_t>(k)];
    if (std::count(p.outputs.begin(), p.outputs.end(), k) != 0 || rows()[step.row].is_assign)
      return false;
    const Judged& v = best_.results[static_cast<size_t>(k)];
    Input in{v.dtype, v.shape, numbers(v.truth)};
    if (!p.lengths.empty()) {
      const auto times = times_of(static_cast<size_t>(k));
      if (!times) return false;
      in.times = *times;
      for (size_t a = 0; a < in.shape.size(); ++a) {
        const int64_t widest = in.times[a] > 0 ? p.most : 1;
        in.shape[a] += in.times[a] * (widest - p.lengths[0]);
      }
      const size_t count = in.values.size();
      in.values.resize(static_cast<size_t>(count_of(in.shape)));
      for (size_t i = count; i < in.values.size(); ++i) in.values[i] = in.values[i % count];
      if (std::ranges::all_of(in.times, [](int64_t t) { return t == 0; })) in.times.clear();
    }
    for (double& x : in.values)
      if (v.dtype == DType::kF32)
        x = static_cast<double>(static_cast<float>(x));
      else if (v.dtype == DType::kF16)
        x = reference::round_to_spacing(x, 10, -14);
      else if (v.dtype == DType::kBF16)
        x = reference::round_to_spacing(x, 7, -126);
    Program next = with_step_replaced(p, k, -1 - static_cast<int>(p.inputs.size()));
    next.inputs.push_back(std::move(in));
    return try_program(std::move(next));
  }
  bool try_bypass(int k) {
    const Step step = best_.program.steps[static_cast<size_t>(k)];
    for (const int a : step.args) {
      Program next = best_.program;
      if (a < 0 && std::count(next.outputs.begin(), next.outputs.end(), k) != 0) continue;
      for (Step& s : next.steps)
        for (int& b : s.args)
          if (b == k) b = a;
      for (int& o : next.outputs)
        if (o == k) o = a;
      // Without its effect, too: something that nobody uses.
      if (rows()[step.row].is_assign) next.steps[static_cast<size_t>(k)] = {kHideRow, {}, {}};
      if (try_program(std::move(next))) return true;
    }
    return false;
  }

  bool smaller_shapes() {
    std::set<int64_t> sizes;
    for (const Input& in : best_.program.inputs) sizes.insert(in.shape.begin(), in.shape.end());
    for (auto it = sizes.rbegin(); it != sizes.rend(); ++it)
      for (const int64_t to : {int64_t{1}, int64_t{2}, int64_t{3}, *it / 2, *it - 1})
        if (to >= 1 && to < *it && try_program(resized(*it, to))) return true;
    // One axis of one input after the other.
    for (size_t i = 0; i < best_.program.inputs.size(); ++i)
      if (best_.program.inputs[i].shape.size() > 1 && best_.program.inputs[i].shape[0] == 1) {
        Program p = best_.program;
        p.inputs[i].shape.erase(p.inputs[i].shape.begin());
        if (!p.inputs[i].times.empty()) p.inputs[i].times.erase(p.inputs[i].times.begin());
        if (try_program(std::move(p))) return true;
      }
    return false;
  }
  Program resized(int64_t from, int64_t to) const {
    Program p = best_.program;
    for (Input& in : p.inputs) {
      for (size_t a = 0; a < in.shape.size(); ++a)
        if (in.shape[a] == from && (in.times.empty() || in.times[a] == 0)) in.shape[a] = to;
      in.values.resize(static_cast<size_t>(count_of(in.shape)));
    }
    for (Step& s : p.steps)
      for (int64_t& n : s.n.dims)
        if (n == from) n = to;
    return p;
  }

  bool simpler_values() {
    for (size_t i = 0; i < best_.program.inputs.size(); ++i) {
      const std::vector<double>& old = best_.program.inputs[i].values;
      if (best_.program.inputs[i].is_mask) continue;
      std::vector<std::vector<double>> tries(3, old);
      std::fill(tries[0].begin(), tries[0].end(), 0.0);
      std::fill(tries[1].begin(), tries[1].end(), 1.0);
      for (double& v : tries[2]) v = std::round(v);
      for (std::vector<double>& v : tries) {
        if (v == best_.program.inputs[i].values) break;
        Program p = best_.program;
        p.inputs[i].values = v;
        if (try_program(std::move(p))) return true;
      }
    }
    return false;
  }
};

std::string list(const std::vector<int64_t>& v) {
  return fmt::format("{{{}}}", fmt::join(v, ", "));
}

/// times · name + constant, over one variable at most.
std::string text_of(const SymInt& n) {
  if (n.is_const()) return std::to_string(n.constant());
  const SymInt::Term& term = n.terms()[0];
  return fmt::format("SymInt({}) * {} + {}", term.var.name(), term.coefficient, n.constant());
}

const char* dtype_text(DType t) {
  switch (t) {
    case DType::kBool: return "DType::kBool";
    case DType::kI8: return "DType::kI8";
    case DType::kU8: return "DType::kU8";
    case DType::kI16: return "DType::kI16";
    case DType::kU16: return "DType::kU16";
    case DType::kI32: return "DType::kI32";
    case DType::kU32: return "DType::kU32";
    case DType::kI64: return "DType::kI64";
    case DType::kU64: return "DType::kU64";
    case DType::kF16: return "DType::kF16";
    case DType::kBF16: return "DType::kBF16";
    case DType::kF32: return "DType::kF32";
    case DType::kF64: return "DType::kF64";
  }
  return "";
}

std::string name_of(int a) {
  return a >= 0 ? fmt::format("s{}", a) : fmt::format("in[{}]", -1 - a);
}

/// The row's text with names and numbers put in.
std::string expression(const Step& s) {
  const auto meaning = [&](const std::string& word) -> std::optional<std::string> {
    const auto arg = [&](size_t k) {
      return k < s.args.size() ? std::optional(name_of(s.args[k])) : std::nullopt;
    };
    if (word == "x") return arg(0);
    if (word == "y") return arg(1);
    if (word == "z") return arg(2);
    if (word == "i") return std::to_string(s.n.i);
    if (word == "j") return std::to_string(s.n.j);
    if (word == "k") return std::to_string(s.n.k);
    if (word == "keep") return std::string(s.n.keep ? "true" : "false");
    if (word == "t") return std::string(dtype_text(s.n.t));
    if (word == "axes") return list(s.n.axes);
    if (word == "length") return std::string("length");
    if (word == "dims") return list(s.n.dims);
    if (word == "pads") {
      std::vector<std::string> pairs;
      for (const auto& [before, after] : s.n.pads)
        pairs.push_back(fmt::format("{{{}, {}}}", before, after));
      return fmt::format("{{{}}}", fmt::join(pairs, ", "));
    }
    return std::nullopt;
  };
  const std::string text = rows()[s.row].text;
  std::string out, word;
  bool is_quoted = false;
  for (size_t at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ' ';
    if (!is_quoted && (std::isalnum(static_cast<unsigned char>(c)) || c == '_')) {
      word += c;
      continue;
    }
    out += meaning(word).value_or(word);
    word.clear();
    if (c == '"') is_quoted = !is_quoted;
    if (at < text.size()) out += c;
  }
  return out;
}

}  // namespace

Case shrunk(Case c, const Target& target, std::string* why) {
  return Shrinker(std::move(c), target).run(why);
}

std::string source_of(const Program& p, const Target& target) {
  const auto& [device, mode, planted] = target;
  const bool has_length = !p.lengths.empty();
  std::string out = fmt::format(
      "// Seed {}, {}, {}.\n#include <array>\n#include <cmath>\n#include <cstdio>\n#include "
      "<string>\n\n#include \"tensor/jit.h\"\n"
      "#include \"tensor/tensor.h\"\n\nusing namespace bm;\n\n"
      "Shape shape_of(const std::vector<int64_t>& dims) {{ return {{dims.begin(), dims.end()}}; "
      "}}\n"
      "std::vector<std::pair<SymInt, SymInt>> room(\n"
      "    const std::vector<std::pair<int64_t, int64_t>>& pads) {{\n"
      "  return {{pads.begin(), pads.end()}};\n}}\n\n",
      p.seed, device, mode_name(mode));
  for (const char* helper : kHelpers) out += fmt::format("{}\n", helper);
  if (has_length)
    out += fmt::format(
        "const Var n(\"n\", 1, {});\nSymInt length = n;  // on REF its value\n"
        "std::vector<double> poisoned(std::vector<double> v, std::vector<int64_t> shape,\n"
        "                             std::vector<int64_t> ends, double poison) {{\n"
        "  for (size_t k = 0; k < v.size(); ++k) {{\n    int64_t rest = k;\n"
        "    for (size_t a = shape.size(); a-- > 0; rest /= shape[a])\n"
        "      if (rest % shape[a] >= ends[a]) v[k] = poison;\n  }}\n  return v;\n}}\n\n",
        p.most);
  out += "std::vector<Tensor> inputs(const char* device) {\n  std::vector<Tensor> in;\n";
  for (const Input& in : p.inputs) {
    std::string values = fmt::format("std::vector<double>{{{}}}", fmt::join(in.values, ", "));
    if (!in.times.empty()) {
      std::vector<std::string> ends;
      for (const SymInt& n : extents_of(p, in, Var("n", 1, p.most)))
        ends.push_back(n.is_const() ? n.to_string() : fmt::format("({}).value()", text_of(n)));
      values =
          fmt::format("poisoned({}, {}, {{{}}}, {})", values, list(in.shape), fmt::join(ends, ", "),
                      is_float(in.dtype)  ? "NAN"
                      : is_bool(in.dtype) ? "1"
                                          : "99");
    }
    out += fmt::format(
        "  in.push_back(Tensor::from<double>({}, shape_of({}), device)\n"
        "                   .cast({}).realize());\n",
        values, list(in.shape), dtype_text(in.dtype));
  }
  out +=
      "  return in;\n}\n\nstd::vector<Tensor> program(const std::vector<Tensor>& inputs) {\n"
      "  std::vector<Tensor> in = inputs;\n";
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    if (p.inputs[i].times.empty()) continue;
    std::vector<std::string> ends;
    for (const SymInt& n : extents_of(p, p.inputs[i], Var("length", 1, p.most)))
      ends.push_back(fmt::format("{{0, {}}}", text_of(n)));
    out += fmt::format("  in[{}] = in[{}].shrink({{{}}});\n", i, i, fmt::join(ends, ", "));
  }
  for (size_t k = 0; k < p.steps.size(); ++k)
    out += fmt::format("  Tensor s{} = {};{}\n", k, expression(p.steps[k]),
                       mode == Mode::kSteps ? fmt::format(" s{}.realize();", k) : "");
  std::vector<std::string> contiguous;
  for (const int k : p.outputs) contiguous.push_back(fmt::format("s{}.contiguous()", k));
  out += fmt::format("  return {{{}}};\n}}\n\n", fmt::join(contiguous, ", "));
  out += "int main() {\n";
  const bool is_captured = mode == Mode::kCaptured || mode == Mode::kNested;
  if (is_captured)
    out += fmt::format(
        "  Jit step([](const std::vector<Tensor>& in) {{ return program(in); }});  // {}\n",
        mode == Mode::kNested ? "its first half was a Jit of its own" : "the third call replays");
  if (has_length) {
    std::vector<int64_t> calls = p.lengths;
    if (is_captured) calls.insert(calls.begin(), 2, p.lengths[0]);
    out += fmt::format("  for (const int64_t value : {}) {{\n  n.set(value), length = value;\n",
                       list(calls));
  }
  out += "  std::vector<Tensor> a = inputs(\"REF\"), x = program(a);\n";
  if (has_length)
    out += fmt::format(
        "  length = n;\n  std::vector<Tensor> b = inputs(\"{}\"), y = {}(b);\n"
        "  std::printf(\"length %d\\n\", static_cast<int>(value));\n",
        device, is_captured ? "step" : "program");
  else if (is_captured)
    out += fmt::format(
        "  std::vector<Tensor> b, y;\n"
        "  for (int call = 0; call < 3; ++call) b = inputs(\"{}\"), y = step(b);\n",
        device);
  else
    out += fmt::format("  std::vector<Tensor> b = inputs(\"{}\"), y = program(b);\n", device);
  out +=
      "  x.insert(x.end(), a.begin(), a.end()), y.insert(y.end(), b.begin(), b.end());\n"
      "  for (size_t k = 0; k < x.size(); ++k) {\n"
      "    const auto p = x[k].to(\"REF\").cast(DType::kF64).data<double>(),\n"
      "               q = y[k].to(\"REF\").cast(DType::kF64).data<double>();\n"
      "    for (size_t i = 0; i < p.size(); ++i)\n"
      "      if (p[i] != q[i]POISON) std::printf(\"%zu[%zu]: REF %.17g, device %.17g\\n\", k, i, "
      "p[i], "
      "q[i]);\n"
      "  }\n";
  out += has_length ? "  }\n}\n" : "}\n";
  const std::string_view both = "POISON";
  out.replace(out.find(both), both.size(), has_length ? " && p[i] == p[i]" : "");
  return out;
}

}  // namespace bm::test
