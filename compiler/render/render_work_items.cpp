#include "compiler/render/render_work_items.h"

#include <bit>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::compiler {

std::string_view WorkItemC::value_type(ValueId v) const {
  if (p_.type(v).lanes > 1) return vector_type(p_.type(v));
  return is_narrow(v) ? type_name(DType::kI32) : type_name(p_.type(v).dtype);
}

std::string WorkItemC::parameters() const {
  std::string args;
  for (size_t i = 0; i < p_.params.size(); ++i)
    args += fmt::format("{}{} p{}", i ? ", " : "", pointer(i), i);
  for (uint32_t i = 0; i < p_.num_vars; ++i)
    args += fmt::format("{}{} var{}", args.empty() ? "" : ", ", type_name(DType::kI64), i);
  return args;
}

void WorkItemC::kernel(std::string_view head, std::string_view local, std::string_view item) {
  line("{}{}({}) {{", head, p_.name, parameters());
  ++depth_;
  for (size_t i = 0; i < p_.locals.size(); ++i)
    if (p_.has_dynamic_shared)
      line("extern {} {} local{}[];", local, type_name(p_.locals[i].dtype), i);
    else
      line("{} {} local{}[{}];", local, type_name(p_.locals[i].dtype), i, p_.locals[i].count);
  line("const {};", item);
  registers(p_.root);
  block(p_.root);
  --depth_;
  line("}}");
}

std::string WorkItemC::table_items(size_t table) const {
  std::string items;
  for (const uint64_t word : p_.tables[table])
    items += fmt::format("{}{}ul", items.empty() ? "" : ", ", word);
  return items;
}

std::string WorkItemC::entry(size_t table, const std::string& index) const {
  return fmt::format("{}_table{}[{}]", p_.name, table, index);
}

std::string WorkItemC::literal(DType t, int64_t imm) const {
  if (!is_float(t)) return integer_literal(t, imm);
  const double v = std::bit_cast<double>(imm);
  if (t == DType::kF16) return fmt::format("{}", f32_to_f16(static_cast<float>(v)));
  if (t == DType::kBF16) return fmt::format("{}", f32_to_bf16(static_cast<float>(v)));
  if (std::isfinite(v)) return fmt::format("({:a}{})", v, t == DType::kF32 ? "f" : "");
  if (t == DType::kF32)
    return reinterpret(t, DType::kU32,
                       fmt::format("{}u", std::bit_cast<uint32_t>(static_cast<float>(v))));
  return reinterpret(t, DType::kU64, fmt::format("{}ul", static_cast<uint64_t>(imm)));
}

std::string WorkItemC::ref(ValueId id) {
  const Value& v = p_.at(id);
  BM_CHECK(v.type.lanes == 1);
  switch (v.op) {
    case ValueOp::kConst:
      if (is_narrow(id)) return literal(DType::kI32, v.imm);
      // Literals of the narrow types do not exist.
      return item_size(v.type.dtype) < 4
                 ? fmt::format("({}){}", type_name(v.type.dtype), literal(v.type.dtype, v.imm))
                 : literal(v.type.dtype, v.imm);
    case ValueOp::kArgument: return fmt::format("a{}", v.imm);
    case ValueOp::kVar:
      return is_narrow(id) ? fmt::format("({})var{}", type_name(DType::kI32), v.imm)
                           : fmt::format("var{}", v.imm);
    case ValueOp::kItem: return "item";
    default: return fmt::format("v{}", id);
  }
}

void WorkItemC::store(const Stmt& s) {
  const std::string when = s.end == kNone ? "" : fmt::format("if ({}) ", ref(s.end));
  line("{}p{}[{}] = {};", when, s.target, ref(s.begin), ref(s.value));
}

void WorkItemC::local_store(const Stmt& s) {
  if (s.operands.empty()) return line("local{}[{}] = {};", s.target, ref(s.begin), ref(s.value));
  for (size_t i = 0; i <= s.operands.size(); ++i)
    line("local{}[{} + {}] = {};", s.target, ref(s.begin), i,
         ref(i == 0 ? s.value : s.operands[i - 1]));
}

void WorkItemC::partitioned_loop(const Stmt& s) {
  if (s.loop == LoopKind::kItem) return items(s);
  const std::string_view t = value_type(s.value);
  line("const {} v{} = ({}){};", t, s.value, t, group_number(s.axis));
  guarded(s);
}

/// The body, if the index is below the end.
void WorkItemC::guarded(const Stmt& s) {
  if (s.end == kNone)
    line("{{");
  else
    line("if (v{} < {}) {{", s.value, ref(s.end));
  nested(s.body);
}

void WorkItemC::items(const Stmt& s) {
  const Value& begin = p_.at(s.begin);
  const bool is_zero = begin.op == ValueOp::kConst && begin.imm == 0;
  const std::string first = is_zero ? "item" : ref(s.begin) + " + item";
  const std::string_view t = value_type(s.value);
  if (s.trip_count == 1) {
    line("const {} v{} = {};", t, s.value, first);
    return guarded(s);
  }
  if (s.trip_count == 0) {
    open_for(s, first, p_.block);
    return nested(s.body);
  }
  line("for (int t = 0; t < {}; ++t) {{", s.trip_count);
  line("  const {} v{} = {} + ({})t * {};", t, s.value, first, t, p_.block);
  if (s.end != kNone) line("  if (v{} >= {}) break;", s.value, ref(s.end));
  nested(s.body);
}

void WorkItemC::fragment(ValueId) {
  check_failed("fragments of shared memory are for CUDA", __FILE__, __LINE__);
}

void WorkItemC::sub_group(ValueId) {
  check_failed("exchanges within a sub-group are for CUDA", __FILE__, __LINE__);
}

void WorkItemC::let(ValueId id) {
  const Value& v = p_.at(id);
  const auto set = [&](const std::string& text) {
    line("const {} v{} = {};", value_type(id), id, text);
  };
  switch (v.op) {
    case ValueOp::kConst:
    case ValueOp::kArgument:
    case ValueOp::kVar:
    case ValueOp::kItem:
    case ValueOp::kIndex: return;
    case ValueOp::kLoad: return set(load(v));
    case ValueOp::kWords:
    case ValueOp::kUnalignedWords:
    case ValueOp::kIsAligned: return set(words(v));
    case ValueOp::kExtract:
      if (p_.at(v.args[0]).op == ValueOp::kLocalLoad || p_.at(v.args[0]).op == ValueOp::kFragment)
        return set(fmt::format("v{}_{}", v.args[0], v.imm));
      return set(fmt::format("v{}.{}", v.args[0], "xyzw"[v.imm]));
    case ValueOp::kFragment: return fragment(id);
    case ValueOp::kShuffle:
    case ValueOp::kPackHalf2:
    case ValueOp::kDequantise2:
    case ValueOp::kExp2:
    case ValueOp::kRoundTf32: return sub_group(id);
    case ValueOp::kTable: return set(entry(static_cast<size_t>(v.imm), ref(v.args[0])));
    case ValueOp::kLocalLoad:
      // One by one: compilers see that they are contiguous.
      for (uint32_t i = 0; i < v.type.lanes && v.type.lanes > 1; ++i)
        line("const {} v{}_{} = local{}[{} + {}];", type_name(v.type.dtype), id, i, v.imm,
             ref(v.args[0]), i);
      if (v.type.lanes > 1) return;
      return set(fmt::format("local{}[{}]", v.imm, ref(v.args[0])));
    case ValueOp::kRead: return set(fmt::format("r{}", v.imm));
    case ValueOp::kCall: return set(call(v));
    case ValueOp::kDot: return set(dot(v));
    case ValueOp::kConvert: return set(convert(id));
    case ValueOp::kAlu: return set(alu(id));
    default: break;
  }
  check_failed("vectors are not for work-items", __FILE__, __LINE__);
}

std::string WorkItemC::load(const Value& v) {
  const std::string_view not_zero = is_bool(v.type.dtype) ? " != 0" : "";
  const std::string one = fmt::format("p{}[{}]{}", v.imm, ref(v.args[0]), not_zero);
  if (v.args.size() == 1) return one;
  const std::string_view t = type_name(v.type.dtype);
  return fmt::format("{} ? ({})({}) : ({})0", ref(v.args[1]), t, one, t);
}

std::string WorkItemC::convert(ValueId id) {
  const Value& v = p_.at(id);
  const std::string a = ref(v.args[0]);
  if (p_.type(v.args[0]).dtype == DType::kF16) return half_to_float(a);
  if (v.type.dtype == DType::kF16) return float_to_half(a);
  if (v.type.dtype == DType::kBF16) return float_to_bf16(a);
  return fmt::format("({}){}", value_type(id), a);
}

/// Unsigned type in which an operation wraps: signed overflow is undefined, and narrow operands
/// are promoted to int first.
std::string_view WorkItemC::wrapping_type(ValueId id) const {
  const bool is_wide = item_size(p_.type(id).dtype) == 8 && !is_narrow(id);
  return type_name(is_wide ? DType::kU64 : DType::kU32);
}

std::string WorkItemC::alu(ValueId id) {
  const Value& v = p_.at(id);
  const DType in = p_.type(v.args[0]).dtype;
  const std::string_view t = value_type(id);
  const std::string a = ref(v.args[0]);
  const std::string b = v.args.size() > 1 ? ref(v.args[1]) : "";
  const auto binary = [&](std::string_view op) {
    // A narrow operand of an unsigned 64-bit operation is not negative.
    return fmt::format("({})({} {} {})", t, a, op, b);
  };
  const auto wrapping = [&](std::string_view op) {
    // What is exact in 32 bits does not overflow.
    if (is_float(in) || is_narrow(id)) return binary(op);
    const std::string_view u = wrapping_type(id);
    return fmt::format("({})(({}){} {} ({}){})", t, u, a, op, u, b);
  };
  const auto compare = [&](std::string_view op) { return fmt::format("{} {} {}", a, op, b); };
  const auto call_of = [&](std::string_view name) {
    return fmt::format("{}({})", function(name, in), arguments(v));
  };
  if (is_half_like(in) && is_half_arithmetic(v.alu)) return half_arithmetic(v.alu, in, a, b);
  switch (v.alu) {
    case Op::kNeg: return fmt::format("-{}", a);
    case Op::kSqrt: return call_of("sqrt");
    case Op::kTrunc: return call_of("trunc");
    case Op::kFma: return call_of("fma");
    case Op::kNot:
      return is_bool(in) ? fmt::format("({})({} ^ 1)", t, a) : fmt::format("({})~{}", t, a);
    case Op::kBitcast:
      // A number that was narrowed still counts with its own width.
      if (item_size(in) == 8 && is_int(in) && is_int(v.type.dtype))
        return fmt::format("({}){}", t, a);
      if (is_narrow(v.args[0]))
        return reinterpret(v.type.dtype, in, fmt::format("({}){}", type_name(in), a));
      return reinterpret(v.type.dtype, in, a);
    case Op::kAdd: return wrapping("+");
    case Op::kSub: return wrapping("-");
    case Op::kMul: return wrapping("*");
    case Op::kShl: return wrapping("<<");
    case Op::kMax: return call_of("max");
    case Op::kMin: return call_of("min");
    case Op::kDiv: return binary("/");
    case Op::kMod: return binary("%");
    case Op::kAnd: return binary("&");
    case Op::kOr: return binary("|");
    case Op::kXor: return binary("^");
    // The amount may be one of the full width although the number is narrow.
    case Op::kShr: return fmt::format("({})(({}){} >> {})", t, t, a, b);
    case Op::kLt: return compare("<");
    case Op::kEq: return compare("==");
    case Op::kNe: return compare("!=");
    case Op::kSelect: return fmt::format("{} ? {} : {}", a, b, ref(v.args[2]));
    default: break;  // legalize() leaves no other
  }
  check_failed("operation was not legalised", __FILE__, __LINE__);
}

}  // namespace bm::compiler
