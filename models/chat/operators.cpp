// Arithmetic and comparison, as Python has them; integers are of 64 bits and say so when they do
// not suffice.

#include <cmath>

#include "models/chat/interpreter.h"

namespace bm::models::jinja {
namespace {

constexpr std::string_view symbol(ExpressionType type) {
  switch (type) {
    case ExpressionType::kAdd: return "+";
    case ExpressionType::kSubtract: return "-";
    case ExpressionType::kMultiply: return "*";
    case ExpressionType::kDivide: return "/";
    case ExpressionType::kFloorDivide: return "//";
    case ExpressionType::kModulo: return "%";
    default: return "**";
  }
}

/// Python's float modulo: the sign of the divisor.
double float_modulo(double a, double b) {
  double out = std::fmod(a, b);
  if (out != 0 && (out < 0) != (b < 0)) out += b;
  return out == 0 ? std::copysign(0.0, b) : out;
}

double float_floor_divide(double a, double b) {
  const double rest = float_modulo(a, b);
  double quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

}  // namespace

tl::unexpected<Error> Interpreter::operand_error(std::string_view op, const Value& a,
                                                 const Value& b) const {
  if (a.is_undefined()) return undefined_error(a);
  if (b.is_undefined()) return undefined_error(b);
  return error("{} does not work on {} and {}", op, type_name(a), type_name(b));
}

Result<Value> Interpreter::binary(ExpressionType type, const Value& a, const Value& b) {
  if (a.is_numeric() && b.is_numeric()) return arithmetic(type, a, b);
  switch (type) {
    case ExpressionType::kAdd: return add(a, b);
    case ExpressionType::kModulo: return modulo(a, b);
    case ExpressionType::kMultiply:
      if (b.is_integral()) return repeat(a, b.as_int());
      if (a.is_integral()) return repeat(b, a.as_int());
      break;
    default: break;
  }
  return operand_error(symbol(type), a, b);
}

Result<Value> Interpreter::add(const Value& a, const Value& b) {
  if (a.is_numeric() && b.is_numeric()) return arithmetic(ExpressionType::kAdd, a, b);
  if (a.is_string() && b.is_string()) {
    std::string out;
    out.reserve(a.text().size() + b.text().size());
    out += a.text();
    out += b.text();
    return string(std::move(out));
  }
  if (a.is_sequence() && b.is_sequence() && a.sequence->type == b.sequence->type &&
      (a.sequence->type == SequenceType::kList || a.sequence->type == SequenceType::kTuple)) {
    std::vector<Value> out = a.sequence->items;
    out.insert(out.end(), b.sequence->items.begin(), b.sequence->items.end());
    return list(std::move(out), a.sequence->type);
  }
  return operand_error("+", a, b);
}

Result<Value> Interpreter::modulo(const Value& a, const Value& b) {
  if (a.is_numeric() && b.is_numeric()) return arithmetic(ExpressionType::kModulo, a, b);
  if (a.is_string() && !b.is_undefined()) return format_percent(a.text(), b);
  return operand_error("%", a, b);
}

Result<Value> Interpreter::repeat(const Value& value, int64_t times) {
  if (times < 0) times = 0;
  const auto count = static_cast<uint64_t>(times);
  if (value.is_string()) {
    const uint64_t size = value.text().size();
    if (size != 0 && count > limits_.heap_bytes / size)
      return error("this string would be too long");
    std::string out;
    out.reserve(size * count);
    for (uint64_t i = 0; size != 0 && i < count; ++i) out += value.text();
    return string(std::move(out));
  }
  const bool is_list = value.is_sequence() && (value.sequence->type == SequenceType::kList ||
                                               value.sequence->type == SequenceType::kTuple);
  if (!is_list) return operand_error("*", value, Value::of(times));
  const auto& all = value.sequence->items;
  if (!all.empty() && count > limits_.heap_bytes / sizeof(Value) / all.size())
    return error("this list would be too long");
  std::vector<Value> out;
  out.reserve(all.size() * count);
  for (uint64_t i = 0; !all.empty() && i < count; ++i)
    out.insert(out.end(), all.begin(), all.end());
  return list(std::move(out), value.sequence->type);
}

Result<Value> Interpreter::negate(const Value& value) {
  if (value.kind == Kind::kFloat) return Value::of(-value.number);
  return integer_arithmetic(ExpressionType::kSubtract, 0, value.as_int());
}

Result<Value> Interpreter::arithmetic(ExpressionType type, const Value& a, const Value& b) {
  if (type == ExpressionType::kPower) return power(a, b);
  const bool divides = type == ExpressionType::kDivide || type == ExpressionType::kFloorDivide ||
                       type == ExpressionType::kModulo;
  if (divides && b.as_double() == 0) return error("division by zero");
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(type, a.as_int(), b.as_int());
  const double x = a.as_double();
  const double y = b.as_double();
  switch (type) {
    case ExpressionType::kAdd: return Value::of(x + y);
    case ExpressionType::kSubtract: return Value::of(x - y);
    case ExpressionType::kMultiply: return Value::of(x * y);
    case ExpressionType::kDivide: return Value::of(x / y);
    case ExpressionType::kFloorDivide: return Value::of(float_floor_divide(x, y));
    default: return Value::of(float_modulo(x, y));
  }
}

Result<Value> Interpreter::integer_arithmetic(ExpressionType type, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflows = false;
  switch (type) {
    case ExpressionType::kAdd: overflows = __builtin_add_overflow(a, b, &out); break;
    case ExpressionType::kSubtract: overflows = __builtin_sub_overflow(a, b, &out); break;
    case ExpressionType::kMultiply: overflows = __builtin_mul_overflow(a, b, &out); break;
    case ExpressionType::kDivide: return Value::of(static_cast<double>(a) / static_cast<double>(b));
    default: {
      if (b == -1) {
        if (type == ExpressionType::kModulo) return Value::of(int64_t{0});
        overflows = __builtin_sub_overflow(int64_t{0}, a, &out);
        break;
      }
      int64_t quotient = a / b;
      int64_t rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        --quotient;
      }
      out = type == ExpressionType::kModulo ? rest : quotient;
    }
  }
  if (overflows) return unsupported("{} {} {} is beyond 64 bits", a, symbol(type), b);
  return Value::of(out);
}

Result<Value> Interpreter::power(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    int64_t out = 1;
    const int64_t base = a.as_int();
    const int64_t exponent = b.as_int();
    if (base == 0 || base == 1) return Value::of(exponent == 0 ? int64_t{1} : base);
    if (base == -1) return Value::of(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
    for (int64_t i = 0; i < exponent; ++i)
      if (__builtin_mul_overflow(out, base, &out))
        return unsupported("{} ** {} is beyond 64 bits", base, exponent);
    return Value::of(out);
  }
  const double x = a.as_double();
  const double y = b.as_double();
  if (x == 0 && y < 0) return error("zero to a negative power");
  if (x < 0 && y != std::floor(y)) return unsupported("a root of a negative number");
  const double out = std::pow(x, y);
  if (std::isinf(out) && std::isfinite(x) && std::isfinite(y))
    return error("{} ** {} is too large", x, y);
  return Value::of(out);
}

Result<bool> Interpreter::less(const Value& a, const Value& b) {
  BM_TRY(spend(1));
  const Level level(*this);
  if (level.is_too_deep()) return error("these lists are nested too deeply to compare");
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
  if (a.is_numeric() && b.is_numeric()) return a.as_double() < b.as_double();
  // Bytes of UTF-8 have the order of their code points.
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.is_sequence() && b.is_sequence() && a.sequence->type == b.sequence->type &&
      (a.sequence->type == SequenceType::kList || a.sequence->type == SequenceType::kTuple)) {
    const auto& x = a.sequence->items;
    const auto& y = b.sequence->items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equals(x[i], y[i], budget_)) return less(x[i], y[i]);
    return x.size() < y.size();
  }
  return operand_error("<", a, b);
}

Result<bool> Interpreter::contains(const Value& container, const Value& value) {
  switch (container.kind) {
    case Kind::kString: {
      const std::string_view wanted = BM_TRY(string_of(value, "what is looked for in a string"));
      BM_TRY(spend(1 + container.text().size() / 16));
      return container.text().find(wanted) != std::string_view::npos;
    }
    case Kind::kDict:
      if (!is_hashable(value)) {
        const bool is_tuple = value.is_sequence() && value.sequence->type == SequenceType::kTuple;
        if (!is_tuple && (value.is_sequence() || value.is_dict()))
          return error("a value of type {} is no key of a dict", type_name(value));
        return false;
      }
      return container.dict->find(value) != nullptr;
    default: break;
  }
  for (const Value& item : BM_TRY(items(container)))
    if (equals(item, value, budget_)) return true;
  BM_TRY(spend(1));
  return false;
}

Result<bool> Interpreter::compare(Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::kEqual:
    case Comparison::kNotEqual: {
      const bool are_equal = equals(a, b, budget_);
      BM_TRY(spend(1));
      return are_equal == (comparison == Comparison::kEqual);
    }
    case Comparison::kLess: return less(a, b);
    case Comparison::kGreater: return less(b, a);
    case Comparison::kLessEqual:
    case Comparison::kGreaterEqual: {
      const bool is_less =
          comparison == Comparison::kLessEqual ? BM_TRY(less(a, b)) : BM_TRY(less(b, a));
      return is_less || equals(a, b, budget_);
    }
    case Comparison::kIn: return contains(b, a);
    case Comparison::kNotIn: return !BM_TRY(contains(b, a));
  }
  return false;
}

}  // namespace bm::models::jinja
