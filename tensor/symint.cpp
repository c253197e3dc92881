#include "tensor/symint.h"

#include <atomic>

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

int64_t SymInt::min() const {
  int64_t v = constant_;
  for (const Term& t : terms_) v += t.coefficient * (t.coefficient > 0 ? t.var.min() : t.var.max());
  return v;
}
int64_t SymInt::max() const {
  int64_t v = constant_;
  for (const Term& t : terms_) v += t.coefficient * (t.coefficient > 0 ? t.var.max() : t.var.min());
  return v;
}
int64_t SymInt::value() const {
  int64_t v = constant_;
  for (const Term& t : terms_) v += t.coefficient * t.var.value();
  return v;
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
  out.constant_ += b.constant_;
  for (const SymInt::Term& t : b.terms_) {
    auto it = out.terms_.begin();
    while (it != out.terms_.end() && it->var.id() < t.var.id()) ++it;
    if (it == out.terms_.end() || !(it->var == t.var)) {
      out.terms_.insert(it, t);
    } else if ((it->coefficient += t.coefficient) == 0) {
      out.terms_.erase(it);
    }
  }
  return out;
}

SymInt operator*(const SymInt& a, int64_t b) {
  if (b == 0) return 0;
  SymInt out = a;
  out.constant_ *= b;
  for (SymInt::Term& t : out.terms_) t.coefficient *= b;
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
  for (const SymInt& d : shape) n *= d.value();
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
    step *= shape[i].max();
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
