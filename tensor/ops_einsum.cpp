// einsum: letters name axes, "..." stands for axes that broadcast.
#include <map>

#include "tensor/ops_internal.h"

namespace bm {
namespace {

/// Axes of one operand or of the result. Letters are their characters; the axes that "..." stands
/// for are numbers from kEllipsis, counted from the last.
using Labels = std::vector<int>;
constexpr int kEllipsis = 1000;

[[noreturn]] void raise_formula(std::string_view formula, std::string_view why) {
  raise(Code::kInvalidArgument, "einsum \"{}\": {}", formula, why);
}

struct Formula {
  std::vector<std::string> inputs;
  std::optional<std::string> output;
};

Formula split_formula(std::string_view text) {
  std::string plain;
  for (char c : text)
    if (c != ' ') plain += c;
  Formula f;
  const size_t arrow = plain.find("->");
  if (arrow != std::string::npos) f.output = plain.substr(arrow + 2);
  std::string left = plain.substr(0, arrow);
  size_t begin = 0;
  for (size_t comma; (comma = left.find(',', begin)) != std::string::npos; begin = comma + 1)
    f.inputs.push_back(left.substr(begin, comma - begin));
  f.inputs.push_back(left.substr(begin));
  return f;
}

/// "ab..." for an operand with `ellipsis` unnamed axes.
Labels labels_of(const std::string& term, int64_t ellipsis, std::string_view formula) {
  Labels out;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term.compare(i, 3, "...") == 0) {
      for (int64_t k = ellipsis; k-- > 0;) out.push_back(kEllipsis + static_cast<int>(k));
      i += 2;
    } else if ((term[i] >= 'a' && term[i] <= 'z') || (term[i] >= 'A' && term[i] <= 'Z')) {
      out.push_back(term[i]);
    } else {
      raise_formula(formula, fmt::format("'{}' is not a letter", term[i]));
    }
  }
  return out;
}

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

struct Operand {
  Tensor x;
  Labels labels;
};

/// Each label once: repeated ones select the diagonal of their axes.
void take_diagonals(Operand& o, std::string_view formula) {
  for (size_t i = 0; i < o.labels.size(); ++i) {
    for (size_t j = i + 1; j < o.labels.size();) {
      if (o.labels[i] != o.labels[j]) {
        ++j;
        continue;
      }
      const auto a = static_cast<int64_t>(i), b = static_cast<int64_t>(j);
      if (o.x.size(a) != o.x.size(b))
        raise_formula(formula, fmt::format("axes {} and {} of {} share a letter but not a size", a,
                                           b, ops::describe(o.x)));
      Axes order;
      for (int64_t k = 0; k < o.x.rank(); ++k)
        if (k != a && k != b) order.push_back(k);
      order.insert(order.end(), {a, b});
      Tensor d = o.x.permute(order).diagonal();  // the shared axis is last now
      Axes back;
      for (int64_t k = 0; k < d.rank(); ++k)
        back.push_back(k < a ? k : k == a ? d.rank() - 1 : k - 1);
      o.x = d.permute(back);
      o.labels.erase(o.labels.begin() + b);
    }
  }
}

/// x with its axes in the order of `wanted`, size 1 where it has none.
Tensor aligned(const Operand& o, const Labels& wanted) {
  Axes order;
  Shape shape;
  for (int label : wanted) {
    const auto at = std::find(o.labels.begin(), o.labels.end(), label) - o.labels.begin();
    const bool has = static_cast<size_t>(at) < o.labels.size();
    if (has) order.push_back(at);
    shape.push_back(has ? o.x.size(at) : SymInt(1));
  }
  return o.x.permute(order).reshape(shape);
}

/// Sum over the axes that `kept` does not name.
Operand summed(Operand o, const Labels& kept) {
  Axes axes;
  Labels left;
  for (size_t i = 0; i < o.labels.size(); ++i) {
    if (contains(kept, o.labels[i]))
      left.push_back(o.labels[i]);
    else
      axes.push_back(static_cast<int64_t>(i));
  }
  if (axes.empty()) return o;
  return {ops::drop_axes(reduce(ir::ReduceOp::kSum, o.x, axes), axes), left};
}

void check_sizes(const std::vector<Operand>& operands, std::string_view formula) {
  std::map<int, std::pair<SymInt, size_t>> sizes;
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t k = 0; k < operands[i].labels.size(); ++k) {
      const SymInt& n = operands[i].x.size(static_cast<int64_t>(k));
      const int label = operands[i].labels[k];
      if (n.is(1)) continue;
      const auto [it, is_new] = sizes.try_emplace(label, n, i);
      if (is_new || it->second.first == n) continue;
      raise_formula(formula, fmt::format("{} and {} disagree on an axis: {} and {}",
                                         ops::describe(operands[it->second.second].x),
                                         ops::describe(operands[i].x), it->second.first.to_string(),
                                         n.to_string()));
    }
  }
}

/// Without an arrow: unnamed axes, then the letters that occur once, in alphabetical order.
Labels implied_output(const std::vector<Operand>& operands, int64_t ellipsis) {
  std::map<int, int> counts;
  for (const Operand& o : operands)
    for (int label : o.labels) ++counts[label];
  Labels out;
  for (int64_t k = ellipsis; k-- > 0;) out.push_back(kEllipsis + static_cast<int>(k));
  for (const auto& [label, count] : counts)
    if (label < kEllipsis && count == 1) out.push_back(label);
  return out;
}

}  // namespace

// Operands are multiplied from left to right; an axis is summed as soon as no later operand and
// not the result names it, so that chains stay GEMM.
Tensor Tensor::einsum(std::string_view formula, std::span<const Tensor> operands) {
  const Formula f = split_formula(formula);
  if (f.inputs.size() != operands.size())
    raise_formula(formula,
                  fmt::format("names {} operands, {} given", f.inputs.size(), operands.size()));
  std::vector<Operand> list;
  int64_t ellipsis = 0;
  DType common = operands[0].dtype();
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool has_ellipsis = f.inputs[i].find("...") != std::string::npos;
    const int64_t unnamed =
        operands[i].rank() - static_cast<int64_t>(f.inputs[i].size()) + (has_ellipsis ? 3 : 0);
    if (unnamed < 0 || (!has_ellipsis && unnamed != 0))
      raise_formula(formula, fmt::format("\"{}\" does not name the axes of {}", f.inputs[i],
                                         ops::describe(operands[i])));
    ellipsis = std::max(ellipsis, unnamed);
    list.push_back({operands[i], labels_of(f.inputs[i], unnamed, formula)});
    common = promote(common, operands[i].dtype());
  }
  check_sizes(list, formula);
  const Labels output =
      f.output ? labels_of(*f.output, ellipsis, formula) : implied_output(list, ellipsis);
  for (size_t i = 0; i < output.size(); ++i) {
    const bool is_known = std::any_of(
        list.begin(), list.end(), [&](const Operand& o) { return contains(o.labels, output[i]); });
    if (!is_known || std::count(output.begin(), output.end(), output[i]) != 1)
      raise_formula(formula, "each letter of the result must be one of an operand and occur once");
  }
  const DType wide = is_half_like(common) ? DType::kF32 : sum_dtype(common);
  for (Operand& o : list) {
    o.x = o.x.cast(wide);
    take_diagonals(o, formula);
  }
  const auto needed_after = [&](size_t i) {
    Labels kept = output;
    for (size_t k = i + 1; k < list.size(); ++k)
      kept.insert(kept.end(), list[k].labels.begin(), list[k].labels.end());
    return kept;
  };
  Operand result = list[0];
  if (list.size() == 1) result = summed(result, output);
  for (size_t i = 1; i < list.size(); ++i) {
    Labels all = result.labels;
    for (int label : list[i].labels)
      if (!contains(all, label)) all.push_back(label);
    result = summed({aligned(result, all) * aligned(list[i], all), all}, needed_after(i));
  }
  return aligned(result, output).cast(common);
}

}  // namespace bm
