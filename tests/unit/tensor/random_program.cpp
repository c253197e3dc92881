#include "tests/unit/tensor/random_program.h"

#include <random>

#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

constexpr int64_t kMaxElements = 600;

bool is_real(const Tensor& x) { return is_float(x.dtype()); }

/// Keeps floats small without amplifying differences.
Tensor tamed(const Tensor& x) { return is_real(x) ? x.clip(-4, 4) : x; }

bool is_broadcastable(const Tensor& a, const Tensor& b) {
  int64_t elements = 1;
  for (int64_t i = 1; i <= std::max(a.rank(), b.rank()); ++i) {
    const int64_t m = i <= a.rank() ? a.size(-i).constant() : 1,
                  n = i <= b.rank() ? b.size(-i).constant() : 1;
    if (m != n && m != 1 && n != 1) return false;
    elements *= std::max(m, n);
  }
  return elements <= kMaxElements;
}

struct Builder {
  std::vector<Slot>& slots;
  const Step& s;
  std::string what;

  const Slot& left() const { return slots[s.left % slots.size()]; }
  const Slot& right() const { return slots[s.right % slots.size()]; }
  int64_t pick(int which, int64_t n) const {
    return n <= 0 ? 0 : static_cast<int64_t>(s.choice[which]) % n;
  }
  int64_t axis(const Tensor& x) const { return pick(0, x.rank()); }

  Slot named(std::string name, Tensor x, bool is_exact) {
    what = std::move(name);
    return {std::move(x), is_exact};
  }

  /// Second operand: same category as the first, its largest element where shapes do not fit.
  Slot partner() const {
    Slot b = right();
    if (is_real(left().x) != is_real(b.x)) b = {left().x.flip({}), left().is_exact};
    if (!is_broadcastable(left().x, b.x)) b.x = b.x.max();
    return b;
  }

  Slot binary() {
    const Slot a = left(), b = partner();
    const bool exact = a.is_exact && b.is_exact;
    if (is_real(a.x)) {
      switch (pick(2, 5)) {
        case 0: return named("half sum", (a.x + b.x) * 0.5, exact);
        case 1: return named("difference", tamed((a.x - b.x) * 0.5), exact);
        case 2: return named("product", a.x * b.x * 0.25, exact);
        case 3: return named("maximum", a.x.maximum(b.x), exact);
        default: return named("quotient", a.x / (b.x.abs() + 2), exact);
      }
    }
    switch (pick(2, 7)) {
      case 0: return named("int sum", a.x + b.x, exact);
      case 1: return named("int product", a.x * b.x, exact);
      case 2: return named("and", a.x & b.x, exact);
      case 3: return named("xor", a.x ^ b.x, exact);
      case 4: return named("mod", a.x.mod((b.x & 15) - 3), exact);
      case 5: return named("floor_div", a.x.floor_div((b.x & 15) - 3), exact);
      default: return named("minimum", a.x.minimum(b.x), exact);
    }
  }

  Slot unary() {
    const Slot a = left();
    if (!is_real(a.x)) {
      switch (pick(2, 4)) {
        case 0: return named("negate", -a.x, a.is_exact);
        case 1: return named("shift", a.x >> 2, a.is_exact);
        case 2: return named("to float", (a.x & 63).cast(DType::kF32) * 0.0625, a.is_exact);
        default: return named("not", ~a.x, a.is_exact);
      }
    }
    switch (pick(2, 6)) {
      case 0: return named("sin", a.x.sin(), false);
      case 1: return named("tanh", a.x.tanh(), false);
      case 2: return named("exp2", (-a.x.abs()).exp2(), false);
      case 3: return named("root", (a.x.abs() + 1).sqrt(), a.is_exact);
      case 4: return named("negate", -a.x, a.is_exact);
      default: return named("sigmoid", a.x.sigmoid(), false);
    }
  }

  Slot jumping() {
    const Slot a = left(), b = partner();
    if (!a.is_exact || !b.is_exact) return unary();
    switch (pick(2, 4)) {
      case 0: return named("where", (a.x < b.x).where(a.x, b.x), true);
      case 1: return named("round", is_real(a.x) ? a.x.round() : a.x.abs(), true);
      case 2:
        return named("to int",
                     is_real(a.x) ? (a.x * 8).cast(DType::kI32) : (a.x == b.x).cast(DType::kI32),
                     true);
      default: return named("clip", a.x.clip(-2, 1), true);
    }
  }

  Slot movement() {
    const Slot a = left();
    if (a.x.rank() == 0) return named("unsqueeze", a.x.unsqueeze(0), a.is_exact);
    const int64_t k = axis(a.x), n = a.x.size(k).constant();
    const auto keep = [&](std::string name, Tensor x) {
      return named(std::move(name), std::move(x), a.is_exact);
    };
    const bool may_grow = a.x.elements() * 3 <= kMaxElements;
    switch (pick(2, 12)) {
      case 0: return keep("transpose", a.x.transpose(0, k));
      case 1: return keep("flip", a.x.flip({k}));
      case 2: return keep("flatten", a.x.flatten());
      case 3:
        return keep("split axis", n % 2 == 0 ? a.x.unflatten(k, {2, n / 2}) : a.x.unsqueeze(k));
      case 4: return keep("slice", a.x.slice(k, {pick(1, n), n, 1}));
      case 5: return keep("step", a.x.slice(k, {{}, {}, -1 - pick(1, 2)}));
      case 6: return keep("roll", a.x.roll(pick(1, n), k));
      case 7: return keep("triangle", a.x.rank() >= 2 ? a.x.tril(pick(1, 2)) : a.x.contiguous());
      case 8:
        return may_grow ? keep("repeat", a.x.repeat_interleave(2, k))
                        : keep("contiguous", a.x.contiguous());
      case 9: {
        if (!may_grow) return keep("squeeze", a.x.squeeze());
        std::vector<std::pair<SymInt, SymInt>> room(static_cast<size_t>(a.x.rank()), {0, 0});
        room[static_cast<size_t>(k)] = {pick(1, 2), 1};
        return keep("pad", a.x.pad(room, 1));
      }
      case 10:
        return may_grow ? keep("cat", Tensor::cat(std::array{a.x, a.x.flip({k})}, k))
                        : keep("contiguous", a.x.contiguous());
      default:
        return may_grow ? keep("expand", expanded(a.x)) : keep("contiguous", a.x.contiguous());
    }
  }
  static Tensor expanded(const Tensor& x) {
    Shape shape = x.shape();
    shape.insert(shape.begin(), SymInt(2));
    return x.expand(shape);
  }

  Slot reduction() {
    const Slot a = left();
    if (a.x.rank() == 0) return unary();
    const int64_t k = axis(a.x);
    const bool keep = pick(1, 2) == 0;
    switch (pick(2, 7)) {
      case 0:
        return is_real(a.x) ? named("mean", a.x.mean({k}, keep), false)
                            : named("sum", a.x.sum({k}, keep), a.is_exact);
      case 1: return named("max", a.x.max({k}, keep), a.is_exact);
      case 2: return named("min all", a.x.min(), a.is_exact);
      case 3:
        return is_real(a.x) ? named("softmax", a.x.softmax(k), false)
                            : named("cumsum", a.x.cumsum(k), a.is_exact);
      case 4:
        return a.is_exact ? named("argmax", a.x.argmax(k, keep).cast(DType::kI32), true) : unary();
      case 5: return a.is_exact ? named("sort", a.x.sort(k).first, true) : unary();
      default:
        return is_real(a.x) ? named("norm", a.x.rms_norm({}, 1), false)
                            : named("any", a.x.any({k}, keep).cast(DType::kI32), a.is_exact);
    }
  }

  Slot indexing() {
    const Slot a = left(), b = right();
    if (a.x.rank() == 0 || is_real(b.x) || !b.is_exact ||
        b.x.elements() * a.x.elements() > kMaxElements)
      return movement();
    const int64_t k = axis(a.x);
    const Tensor at = b.x.mod(a.x.size(k).constant());
    if (pick(2, 2) == 0) return named("take", a.x.take(at, k), a.is_exact);
    const Tensor flat = a.x.flatten();
    const Tensor where = b.x.flatten().mod(flat.size(0).constant());
    return named("scatter", flat.scatter(0, where, where.cast(a.x.dtype())), a.is_exact);
  }

  Slot run() {
    switch (s.op % 12) {
      case 0:
      case 1:
      case 2: return binary();
      case 3:
      case 4: return unary();
      case 5: return jumping();
      case 6:
      case 7:
      case 8: return movement();
      case 9:
      case 10: return reduction();
      default: return indexing();
    }
  }
};

}  // namespace

Program draw_program(uint64_t seed, size_t num_steps) {
  std::mt19937_64 random(seed);
  Program p{seed, {}};
  const auto next = [&] { return static_cast<uint32_t>(random() >> 32); };
  for (size_t i = 0; i < num_steps; ++i) {
    Step s{next(), next(), next(), {next(), next(), next()}};
    // Half of the steps continue from the newest value, so that chains grow long enough to be
    // fused.
    if (next() % 2 == 0) s.left = static_cast<uint32_t>(i + 3);
    p.steps.push_back(s);
  }
  return p;
}

std::vector<Tensor> program_inputs(uint64_t seed, const std::string& device) {
  std::mt19937_64 random(seed);
  const auto draw = [&](Shape shape, DType t) {
    std::vector<double> v(static_cast<size_t>(max_elements(shape)));
    for (double& x : v)
      x = is_float(t) ? static_cast<double>(random() >> 11) * 0x1p-51 - 2
                      : static_cast<double>(random() % 201) - 100;
    return tensor_of(v, shape, t, device);
  };
  return {draw({3, 4}, DType::kF32), draw({5}, DType::kF32), draw({3, 4}, DType::kI32),
          draw({2, 1, 4}, DType::kI32)};
}

std::vector<Slot> run_program(const Program& p, const std::vector<Tensor>& inputs, bool is_eager,
                              std::string* log) {
  std::vector<Slot> slots;
  for (const Tensor& x : inputs) slots.push_back({x, true});
  for (const Step& s : p.steps) {
    Builder b{slots, s, {}};
    Slot made = b.run();
    if (log)
      *log += fmt::format("  {} = {}({}, {}; {} {})  # {} {}\n", slots.size(), b.what,
                          s.left % slots.size(), s.right % slots.size(), s.choice[0] % 8,
                          s.choice[1] % 8, dtype_name(made.x.dtype()), to_string(made.x.shape()));
    if (is_eager) made.x.realize();
    slots.push_back(std::move(made));
  }
  return slots;
}

}  // namespace bm::test
