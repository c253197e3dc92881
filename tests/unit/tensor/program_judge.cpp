// What every value of a program has to be, and how far a device may be from it.
//
// Values are computed in float64 on the reference device. The bound of a step is measured, not
// derived: the step runs again with its operands moved by their bounds, all up, all down and twice
// at random (sums: also neighbors apart, and more often at random, since only elements moved apart
// move a variance; norms: also at their dtype), and what that does to the result is added to the
// rounding of the step itself. A result that jumps within those bounds has no bound: it is hidden
// (the program replaces it by 0) or the step is not made.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/interpret_value.h"
#include "tests/unit/tensor/program.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

/// Half the distance of neighbors near 1.
double unit_of(DType t) {
  switch (t) {
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    case DType::kF32: return 0x1p-24;
    case DType::kF64: return 0x1p-53;
    default: return 0;
  }
}
/// Below this a device may give 0.
double least_of(DType t) {
  switch (t) {
    case DType::kF16: return 0x1p-23;
    case DType::kF64: return 0x1p-1000;
    default: return 0x1p-120;
  }
}
/// Larger values are not made: sums and squares of them stay finite.
double limit_of(DType t) {
  if (t == DType::kF16) return 250;
  return 1e5;
}
/// Largest bound, as a share of the largest value, that a comparison is worth something with.
double share_of(DType t) {
  switch (t) {
    case DType::kBF16: return 0x1p-4;
    case DType::kF16: return 0x1p-6;
    default: return 0x1p-10;
  }
}

struct Factors {
  double in = 0, out = 0, all = 0, spread = 1;
};
Factors factors_of(Noise noise) {
  switch (noise) {
    case Noise::kExact: return {};
    case Noise::kRounded: return {0, 1.5, 0, 1};
    case Noise::kMath: return {4, 4, 4, 1.25};
    case Noise::kSum:
    case Noise::kNorm: return {6, 4, 8, 2};
    case Noise::kStep: return {};
    case Noise::kOrder: return {};
  }
  return {};
}

double rounded_to(DType t, double v) {
  switch (t) {
    case DType::kF16: return reference::round_to_spacing(v, 10, -14);
    case DType::kBF16: return reference::round_to_spacing(v, 7, -126);
    case DType::kF32: return static_cast<double>(static_cast<float>(v));
    default: return v;
  }
}

std::vector<int64_t> sizes_of(const Tensor& x) {
  std::vector<int64_t> out;
  for (const SymInt& n : x.shape()) out.push_back(n.constant());
  return out;
}
Shape shape_of(const std::vector<int64_t>& sizes) { return {sizes.begin(), sizes.end()}; }

/// Runs the row at the dtypes of its operands.
Tensor run_row(const Step& s, const std::vector<Tensor>& args, bool is_wide) {
  Operands o;
  o.x = args[0];
  if (args.size() > 1) o.y = args[1];
  if (args.size() > 2) o.z = args[2];
  o.n = s.n;
  if (is_wide && is_float(o.n.t)) o.n.t = DType::kF64;
  Tensor out = rows()[s.row].run(o);
  return is_wide && is_float(out.dtype()) ? out.cast(DType::kF64) : out;
}

/// The step with the place that an assignment writes as j and k; k = 0: everywhere.
Step placed(Step s) {
  const Row& row = rows()[s.row];
  if (row.part == nullptr) return s;
  const auto [begin, end] = row.part(s.n);
  s.n.j = begin.constant();
  s.n.k = end.constant();
  return s;
}

/// An assignment as a value: on the host, so that it is not judged by what it tests.
Tensor assigned_value(const Step& s, const Tensor& old, const Tensor& value) {
  std::vector<std::byte> raw = old.bytes();
  const std::vector<std::byte> fresh = value.bytes();
  const std::vector<int64_t> sizes = sizes_of(old);
  Tensor places = counting(old.shape(), DType::kI64, "REF");
  if (value.shape() != old.shape() || s.n.k != 0) places = places.slice(s.n.i, {s.n.j, s.n.k, 1});
  const std::vector<int64_t> at = places.data<int64_t>();
  const auto item = static_cast<size_t>(item_size(old.dtype()));
  for (size_t k = 0; k < at.size(); ++k)
    std::copy_n(fresh.begin() + static_cast<int64_t>(k * item), item,
                raw.begin() + at[k] * static_cast<int64_t>(item));
  return Tensor::from_bytes(raw, old.shape(), old.dtype(), "REF");
}

std::vector<double> assigned_error(const Step& s, const Judged& old, const Judged& value) {
  const auto as_tensor = [](const Judged& j) {
    return tensor_of(j.error, shape_of(j.shape), DType::kF64, "REF");
  };
  return numbers(assigned_value(s, as_tensor(old), as_tensor(value)));
}

/// Whether elements that lie next to each other in order along the axis are told apart by their
/// bounds, or equal on every device.
bool is_ordered(const Judged& x, int64_t axis) {
  if (x.is_exact()) return true;
  const auto a = static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(x.shape.size()) : axis);
  const int64_t n = x.shape[a];
  int64_t inner = 1;
  for (size_t k = a + 1; k < x.shape.size(); ++k) inner *= x.shape[k];
  const int64_t lines = n == 0 ? 0 : count_of(x.shape) / n;
  for (int64_t line = 0; line < lines; ++line) {
    std::vector<size_t> at;
    for (int64_t k = 0; k < n; ++k)
      at.push_back(static_cast<size_t>((line / inner * n + k) * inner + line % inner));
    std::sort(at.begin(), at.end(), [&](size_t p, size_t q) { return x.values[p] < x.values[q]; });
    for (size_t k = 0; k + 1 < at.size(); ++k) {
      const double bounds = x.error[at[k]] + x.error[at[k + 1]];
      if (bounds != 0 && x.values[at[k + 1]] - x.values[at[k]] <= 4 * bounds) return false;
    }
  }
  return true;
}

/// Signs of a move; the others are 1 and -1.
constexpr int kRandom = 0, kApart = 2;

Tensor moved(const Judged& x, double more, int sign, uint64_t salt) {
  if (!is_float(x.dtype)) return x.truth;
  std::vector<double> v = x.values;
  uint64_t state = salt * 0x9e3779b97f4a7c15ULL + 77;
  for (size_t k = 0; k < v.size(); ++k) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const bool is_up = sign == kApart ? k % 2 == 0 : (state >> 62 & 1) != 0;
    const double s = sign == 1 || sign == -1 ? sign : is_up ? 1 : -1;
    v[k] += s * (x.error[k] + more * std::fabs(v[k]));
  }
  return tensor_of(v, shape_of(x.shape), DType::kF64, "REF");
}

}  // namespace

int64_t count_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Shape extents_of(const Program& p, const Input& in, const SymInt& length) {
  Shape out = shape_of(in.shape);
  for (size_t a = 0; a < in.times.size(); ++a)
    if (const int64_t times = in.times[a]; times != 0)
      out[a] = length * times + (in.shape[a] - times * (times > 0 ? p.most : 1));
  return out;
}

std::vector<double> poisoned(std::vector<double> values, const std::vector<int64_t>& shape,
                             const std::vector<int64_t>& extents, DType t) {
  const double poison = is_float(t) ? std::nan("") : is_bool(t) ? 1 : 99;
  for (size_t k = 0; k < values.size(); ++k) {
    auto rest = static_cast<int64_t>(k);
    for (size_t a = shape.size(); a-- > 0; rest /= shape[a])
      if (rest % shape[a] >= extents[a]) values[k] = poison;
  }
  return values;
}

Input at_length(const Program& p, const Input& in, int64_t length) {
  if (in.times.empty()) return in;
  Input out{in.dtype, {}, {}, in.is_mask};
  for (const SymInt& n : extents_of(p, in, length)) out.shape.push_back(n.constant());
  for (size_t k = 0; k < in.values.size(); ++k) {
    auto rest = static_cast<int64_t>(k);
    bool is_inside = true;
    for (size_t a = in.shape.size(); a-- > 0; rest /= in.shape[a])
      is_inside = is_inside && rest % in.shape[a] < out.shape[a];
    if (is_inside) out.values.push_back(in.values[k]);
  }
  return out;
}

Program at_length(const Program& p, int64_t length) {
  Program out = p;
  out.lengths.clear();
  for (size_t i = 0; i < p.inputs.size(); ++i) out.inputs[i] = at_length(p, p.inputs[i], length);
  for (Step& s : out.steps) s.n.length = length;
  return out;
}

bool Judged::is_exact() const {
  return std::all_of(error.begin(), error.end(), [](double e) { return e == 0; });
}

Judged judge_input(const Input& input) {
  Judged out;
  out.dtype = input.dtype;
  out.shape = input.shape;
  const Shape shape = shape_of(input.shape);
  out.nominal = tensor_of(input.values, shape, input.dtype, "REF");
  if (!is_float(input.dtype)) {
    out.truth = out.nominal;
    return out;
  }
  out.truth = tensor_of(input.values, shape, DType::kF64, "REF");
  out.values = input.values;
  out.error.assign(input.values.size(), 0);
  return out;
}

std::optional<Judged> judge_step(const Step& given, const std::vector<const Judged*>& args,
                                 std::vector<bool>* hidden, std::string* reason) {
  const Step step = placed(given);
  const Row& row = rows()[step.row];
  const auto refuse = [&](std::string why) -> std::optional<Judged> {
    *reason = std::move(why);
    return std::nullopt;
  };
  Judged out;
  hidden->clear();
  std::vector<Tensor> nominal, exact;
  bool is_exact = true;
  for (const Judged* a : args) {
    nominal.push_back(a->nominal);
    exact.push_back(a->truth);
    is_exact = is_exact && a->is_exact();
  }
  if (row.is_assign) {
    if (args[1]->dtype != args[0]->dtype) return refuse("dtypes differ");
    const Numbers& n = step.n;
    std::vector<int64_t> part = args[0]->shape;
    if (n.k != 0) {
      const auto axis = static_cast<size_t>(n.i);
      if (axis >= part.size() || n.k > part[axis]) return refuse("the part leaves the tensor");
      part[axis] = n.k - n.j;
    }
    if (args[1]->shape != part) return refuse("shapes differ");
    out = *args[0];
    out.nominal = Tensor::empty(out.nominal.shape(), out.dtype, "REF");
    out.truth = assigned_value(step, args[0]->truth, args[1]->truth);
    if (!is_float(out.dtype)) return out;
    out.error = assigned_error(step, *args[0], *args[1]);
    out.values = numbers(out.truth);
    return out;
  }
  try {
    out.nominal = run_row(step, nominal, false);
    out.dtype = out.nominal.dtype();
    out.shape = sizes_of(out.nominal);
    out.truth = run_row(step, exact, true);
    out.truth.realize();
  } catch (const Exception& e) {
    return refuse(e.what());
  }
  const bool is_real = is_float(out.dtype);
  if (row.noise == Noise::kOrder && !is_ordered(*args[0], step.n.i))
    return refuse("order within the bounds");
  if (step.n.t != DType::kF32 || !is_real) {
    // A conversion to integers wraps or saturates as the device likes outside their range.
    if (is_float(args[0]->dtype) && is_int(out.dtype) && row.noise == Noise::kRounded) {
      const double high = std::ldexp(1.0, std::min<int>(static_cast<int>(item_size(out.dtype)) * 8 -
                                                            (is_signed(out.dtype) ? 1 : 0),
                                                        52)),
                   low = is_signed(out.dtype) ? -high : 0;
      for (const double v : args[0]->values)
        if (v < low || v > high - 1) return refuse("out of the integers' range");
    }
  }
  std::vector<double> value;
  if (is_real) value = numbers(out.truth);
  for (const double v : value)
    if (!std::isfinite(v) || std::fabs(v) > limit_of(out.dtype)) return refuse("too large");
  if (!is_real && row.noise == Noise::kOrder) return out;
  if (!is_real && is_exact) return out;
  if (!is_real) value = numbers(out.truth);

  const Factors f = factors_of(row.noise);
  std::vector<double> most(value.size(), 0);
  const auto has_floats =
      std::any_of(args.begin(), args.end(), [](const Judged* a) { return is_float(a->dtype); });
  const bool is_sum = row.noise == Noise::kSum || row.noise == Noise::kNorm;
  const int samples = is_sum ? 9 : 4;
  for (int sample = 0; sample < samples && has_floats && (!is_exact || f.in != 0); ++sample) {
    std::vector<Tensor> near;
    for (size_t k = 0; k < args.size(); ++k) {
      // Two operands: every combination of up and down.
      const bool is_pair = args.size() == 2 || row.noise == Noise::kRounded;
      const int sign = sample < 2 ? 1 - 2 * sample
                       : is_pair  ? (k == 0) == (sample == 2) ? 1 : -1
                                  : 0;
      const bool is_random = sample >= 2 && (!is_pair || is_sum);
      const int direction = !is_random ? sign : sample == 4 ? kApart : kRandom;
      near.push_back(moved(*args[k], f.in * unit_of(args[k]->dtype), direction,
                           static_cast<uint64_t>(sample) * 8 + k));
    }
    const std::vector<double> other = numbers(run_row(step, near, true));
    for (size_t i = 0; i < most.size(); ++i) {
      const double apart = std::fabs(other[i] - value[i]);
      most[i] = std::max(most[i], std::isnan(apart) ? HUGE_VAL : apart);
    }
  }
  if (is_float(out.dtype) && (row.noise == Noise::kNorm || out.dtype == DType::kF16)) {
    // The mean, rounded, is off for all elements alike; of two that are far from 0 and close to
    // each other no move shows that. Runs of the step alone at its dtype do, each where its mean is
    // not a number of the dtype. One run says where a value inside the step leaves float16's range.
    const int runs = row.noise == Noise::kNorm ? 16 : 1;
    for (int run = 0; run < runs; ++run) {
      std::vector<Tensor> at_dtype, widened;
      for (size_t k = 0; k < args.size(); ++k) {
        const Judged& a = *args[k];
        if (!is_float(a.dtype)) {
          at_dtype.push_back(a.truth);
        } else {
          const Tensor near = run == 0 ? a.truth
                                       : moved(a, f.in * unit_of(a.dtype), kRandom,
                                               static_cast<uint64_t>(100 + run) * 8 + k);
          at_dtype.push_back(tensor_of(numbers(near), shape_of(a.shape), a.dtype, "REF"));
        }
        widened.push_back(is_float(a.dtype) ? at_dtype.back().cast(DType::kF64) : a.truth);
      }
      const std::vector<double> rounded = numbers(run_row(step, at_dtype, false));
      for (const double v : rounded)
        if (!std::isfinite(v)) return refuse("too large inside the step");
      if (row.noise != Noise::kNorm) continue;
      const std::vector<double> exactly = numbers(run_row(step, widened, true));
      for (size_t i = 0; i < most.size(); ++i)
        most[i] = std::max(most[i], std::fabs(rounded[i] - exactly[i]));
    }
  }
  // No move of one makes two numbers equal that could be: == and != jump there all the same.
  std::vector<double> may_be_equal;
  if (row.noise == Noise::kStep && args.size() == 2 && is_float(args[0]->dtype) &&
      is_float(args[1]->dtype)) {
    const auto errors = [](const Judged& j) {
      return tensor_of(j.error, shape_of(j.shape), DType::kF64, "REF");
    };
    const Tensor apart = (args[0]->truth - args[1]->truth).abs();
    const Tensor room = errors(*args[0]) + errors(*args[1]);
    may_be_equal = numbers(((apart <= room) & (room > 0.0)).cast(DType::kF64));
    if (may_be_equal.size() != value.size()) may_be_equal.clear();
  }
  // Nor does one make a number 0 that could be: as a bool it is another there.
  if (out.dtype == DType::kBool && row.noise == Noise::kRounded && is_float(args[0]->dtype)) {
    may_be_equal.assign(value.size(), 0);
    for (size_t i = 0; i < value.size(); ++i)
      may_be_equal[i] =
          args[0]->error[i] != 0 && std::fabs(args[0]->values[i]) <= args[0]->error[i];
  }
  double largest = 0;
  for (const double v : value) largest = std::max(largest, std::fabs(v));
  // Sums with a constant, as in log(1 + x²), round at the constant however small the result.
  const double scale = row.noise == Noise::kMath ? std::max(largest, 1.0) : largest;
  const double unit = unit_of(out.dtype), share = share_of(out.dtype) * std::max(largest, 1e-3);
  // In float64 the truth rounds like a device, one term after the other: equal terms all the same
  // way.
  size_t terms = 0;
  if (is_sum && out.dtype == DType::kF64)
    for (const Judged* a : args) terms = std::max(terms, a->values.size());
  const double own = unit * static_cast<double>(terms) * scale;
  const bool is_correctly_rounded = is_exact && row.noise == Noise::kRounded;
  hidden->assign(value.size(), false);
  for (size_t i = 0; i < value.size(); ++i) {
    if (!is_real || row.noise == Noise::kStep) {
      (*hidden)[i] = most[i] != 0 || (!may_be_equal.empty() && may_be_equal[i] != 0);
      most[i] = 0;
      continue;
    }
    const bool is_representable =
        is_correctly_rounded && rounded_to(out.dtype, value[i]) == value[i];
    most[i] *= f.spread;
    if (!is_representable && row.noise != Noise::kExact)
      most[i] +=
          f.out * unit * std::fabs(value[i]) + f.all * unit * scale + own + least_of(out.dtype);
    // What is left after hiding stays.
    (*hidden)[i] = !(most[i] <= share) && step.row > kHideRow + 1;
    if ((*hidden)[i]) most[i] = 0;
  }
  if (!is_real) return out;
  out.values = std::move(value);
  out.error = std::move(most);
  return out;
}

bool reads_are_current(const Program& p, const std::vector<Judged>& inputs,
                       const std::vector<Judged>& results) {
  std::vector<bool> is_stale(results.size()), is_stale_input(inputs.size());
  const auto is_good = [&](int a) {
    return a >= 0 ? !is_stale[static_cast<size_t>(a)]
                  : !is_stale_input[static_cast<size_t>(-1 - a)];
  };
  const auto of = [&](int a) -> const Judged& {
    return a >= 0 ? results[static_cast<size_t>(a)] : inputs[static_cast<size_t>(-1 - a)];
  };
  for (size_t k = 0; k < p.steps.size(); ++k) {
    const Step& s = p.steps[k];
    if (!std::all_of(s.args.begin(), s.args.end(), is_good)) return false;
    if (!rows()[s.row].is_assign) continue;
    const int target = s.args[0];
    if (target >= 0 && !rows()[p.steps[static_cast<size_t>(target)].row].is_assign) return false;
    const Node* node = of(target).nominal.node().get();
    for (size_t i = 0; i < k; ++i)
      is_stale[i] = is_stale[i] || results[i].nominal.node().get() == node;
    for (size_t i = 0; i < inputs.size(); ++i)
      is_stale_input[i] = is_stale_input[i] || inputs[i].nominal.node().get() == node;
  }
  return std::all_of(p.outputs.begin(), p.outputs.end(), is_good);
}

std::optional<Case> case_of(Program p) {
  if (!p.lengths.empty()) {
    std::vector<Case> fixed;
    for (const int64_t n : p.lengths) {
      std::optional<Case> one = case_of(at_length(p, n));
      if (!one) return std::nullopt;
      fixed.push_back(std::move(*one));
    }
    std::vector<Judged> results = fixed[0].results;
    return Case{std::move(p), std::move(results), std::move(fixed)};
  }
  std::vector<Judged> inputs, out;
  for (const Input& in : p.inputs) inputs.push_back(judge_input(in));
  for (size_t k = 0; k < p.steps.size(); ++k) {
    std::vector<const Judged*> args;
    for (const int a : p.steps[k].args)
      args.push_back(a >= 0 ? &out[static_cast<size_t>(a)] : &inputs[static_cast<size_t>(-1 - a)]);
    std::vector<bool> hidden;
    std::string reason;
    std::optional<Judged> made = judge_step(p.steps[k], args, &hidden, &reason);
    if (!made) return std::nullopt;
    // Only a value that the next step hides may be unknown somewhere.
    const Step* next = k + 1 < p.steps.size() ? &p.steps[k + 1] : nullptr;
    const std::vector<double>* shown = nullptr;
    if (next != nullptr && next->row <= kHideRow + 1 && next->args[0] == static_cast<int>(k) &&
        next->args[1] < 0)
      shown = &p.inputs[static_cast<size_t>(-1 - next->args[1])].values;
    // Nobody else sees what is hidden.
    int uses =
        static_cast<int>(std::count(p.outputs.begin(), p.outputs.end(), static_cast<int>(k)));
    for (const Step& s : p.steps)
      uses += static_cast<int>(std::count(s.args.begin(), s.args.end(), static_cast<int>(k)));
    if (uses > 1) shown = nullptr;
    for (size_t i = 0; i < hidden.size(); ++i)
      if (hidden[i] && (shown == nullptr || shown->size() != hidden.size() || (*shown)[i] != 0))
        return std::nullopt;
    out.push_back(std::move(*made));
  }
  if (!reads_are_current(p, inputs, out)) return std::nullopt;
  return Case{std::move(p), std::move(out), {}};
}

}  // namespace bm::test
