#include "tensor/symint.h"

#include <atomic>
#include <limits>
#include <optional>

#include "tensor/exception.h"

namespace bm {

struct Var::State {
  std::string name;
  int64_t min, max;
  uint64_t id;
  std::atomic<int64_t> value;
};

Var::Var(std::string name, int64_t min, int64_t max) : state_(std::make_shared<State>()) {
  if (min > max)
    raise(Code::kInvalidArgument, "variable {}: minimum {} exceeds maximum {}", name, min, max);
  static std::atomic<uint64_t> next_id{1};  // identity only, never read back
  state_->name = std::move(name);
  state_->min = min;
  state_->max = max;
  state_->id = next_id.fetch_add(1);
  state_->value = min;
}

const std::string& Var::name() const { return state_->name; }
int64_t Var::min() const { return state_->min; }
int64_t Var::max() const { return state_->max; }
int64_t Var::value() const { return state_->value.load(std::memory_order_relaxed); }
uint64_t Var::id() const { return state_->id; }

void Var::set(int64_t value) const {
  if (value < state_->min || value > state_->max)
    raise(Code::kInvalidArgument, "variable {} is declared in [{}, {}] and cannot be {}",
          state_->name, state_->min, state_->max, value);
  state_->value.store(value, std::memory_order_relaxed);
}

namespace {

/// constant + Σ coefficient·pick(term), where int64 holds the sum; terms of both signs may pass
/// beyond it in between.
template <class Pick>
std::optional<int64_t> evaluate(int64_t constant, const std::vector<SymInt::Term>& terms,
                                Pick&& pick) {
  __extension__ typedef __int128 Wide;
  Wide v = constant;
  for (const SymInt::Term& t : terms) {
    // A product has at most 126 bits: a sum that leaves 128 must have left 64 for good.
    if (__builtin_add_overflow(v, Wide{t.coefficient} * pick(t), &v)) return std::nullopt;
  }
  if (v < std::numeric_limits<int64_t>::min() || v > std::numeric_limits<int64_t>::max())
    return std::nullopt;
  return static_cast<int64_t>(v);
}

int64_t checked(std::optional<int64_t> v, const SymInt& of, std::string_view what) {
  if (!v)
    raise(Code::kInvalidArgument, "the {} of {} does not fit 64 bits: narrow its variables' bounds",
          what, of.to_string());
  return *v;
}

[[noreturn]] void raise_overflow(const SymInt& a, char op, const std::string& b) {
  raise(Code::kInvalidArgument, "{} {} {} does not fit 64 bits", a.to_string(), op, b);
}

}  // namespace

int64_t SymInt::min() const {
  if (terms_.empty()) return constant_;
  const auto lowest = [](const Term& t) { return t.coefficient > 0 ? t.var.min() : t.var.max(); };
  return checked(evaluate(constant_, terms_, lowest), *this, "smallest value");
}
int64_t SymInt::max() const {
  if (terms_.empty()) return constant_;
  const auto highest = [](const Term& t) { return t.coefficient > 0 ? t.var.max() : t.var.min(); };
  return checked(evaluate(constant_, terms_, highest), *this, "largest value");
}
int64_t SymInt::value() const {
  if (terms_.empty()) return constant_;
  return checked(evaluate(constant_, terms_, [](const Term& t) { return t.var.value(); }), *this,
                 "value");
}

std::string SymInt::to_string() const {
  std::string out;
  for (const Term& t : terms_) {
    if (!out.empty()) out += '+';
    if (t.coefficient != 1) out += fmt::format("{}*", t.coefficient);
    out += t.var.name();
  }
  if (constant_ != 0 || out.empty())
    out += fmt::format("{}{}", out.empty() || constant_ < 0 ? "" : "+", constant_);
  return out;
}

SymInt operator+(const SymInt& a, const SymInt& b) {
  SymInt out = a;
  if (__builtin_add_overflow(out.constant_, b.constant_, &out.constant_))
    raise_overflow(a, '+', b.to_string());
  for (const SymInt::Term& t : b.terms_) {
    auto it = out.terms_.begin();
    while (it != out.terms_.end() && it->var.id() < t.var.id()) ++it;
    if (it == out.terms_.end() || !(it->var == t.var)) {
      out.terms_.insert(it, t);
    } else if (__builtin_add_overflow(it->coefficient, t.coefficient, &it->coefficient)) {
      raise_overflow(a, '+', b.to_string());
    } else if (it->coefficient == 0) {
      out.terms_.erase(it);
    }
  }
  return out;
}

SymInt operator*(const SymInt& a, int64_t b) {
  if (b == 0) return 0;
  SymInt out = a;
  bool overflows = __builtin_mul_overflow(out.constant_, b, &out.constant_);
  for (SymInt::Term& t : out.terms_)
    overflows |= __builtin_mul_overflow(t.coefficient, b, &t.coefficient);
  if (overflows) raise_overflow(a, '*', std::to_string(b));
  return out;
}

SymInt operator-(const SymInt& a, const SymInt& b) { return a + b * -1; }

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + shape[i].to_string();
  return out + "]";
}

int64_t max_elements(const Shape& shape) {
  int64_t n = 1;
  for (const SymInt& d : shape) {
    if (d.max() < 0)
      raise(Code::kInvalidArgument, "shape {} has a negative dimension", to_string(shape));
    if (__builtin_mul_overflow(n, d.max(), &n) || n > (int64_t{1} << 62))
      raise(Code::kInvalidArgument, "shape {} has more than 2^62 elements", to_string(shape));
  }
  return n;
}

int64_t elements_now(const Shape& shape) {
  int64_t n = 1;
  for (const SymInt& d : shape)
    if (__builtin_mul_overflow(n, d.value(), &n))
      raise(Code::kInvalidArgument, "the number of elements of {} does not fit 64 bits",
            to_string(shape));
  return n;
}

bool is_static(const Shape& shape) {
  for (const SymInt& d : shape)
    if (!d.is_const()) return false;
  return true;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    // Past the largest array there may be: a zero elsewhere in the shape leaves no elements.
    if (__builtin_mul_overflow(step, shape[i].max(), &step)) step = 0;
  }
  return strides;
}

Shape broadcast(const Shape& a, const Shape& b, std::string_view what) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t skip = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    if (out[skip + i] == shorter[i] || shorter[i].is(1)) continue;
    if (!out[skip + i].is(1))
      raise(Code::kInvalidArgument,
            "{}: shapes {} and {} do not broadcast (axis {} from the end: {} and {})", what,
            to_string(a), to_string(b), shorter.size() - i, out[skip + i].to_string(),
            shorter[i].to_string());
    out[skip + i] = shorter[i];
  }
  return out;
}

}  // namespace bm
