#include "compiler/render/ptx_values.h"

#include "compiler/program/narrow.h"
#include "runtime/base/check.h"

namespace bm::compiler::ptx {

Values::Values(const Program& program, Writer& out)
    : p_(program), out_(out), narrow_(narrow_values(program)) {}

File Values::file(ValueId v) const { return narrow_[v] ? File::kB32 : file_of(p_.type(v).dtype); }

std::string Values::define(ValueId v) {
  BM_CHECK(p_.type(v).lanes == 1);
  return names_[v] = out_.fresh(file(v));
}

std::string Values::operand(ValueId id) {
  const Value& v = p_.at(id);
  if (v.op != ValueOp::kConst) return names_.at(id);
  if (!is_bool(v.type.dtype)) return literal(v.type.dtype, v.imm);
  const std::string reg = out_.fresh(File::kPred);
  out_.line("setp.ne.s32 {}, {}, 0;", reg, v.imm);
  return reg;
}

void Values::move(File to_file, std::string_view to, std::string_view from) {
  if (to_file == File::kPred)
    out_.line("or.pred {}, {}, {};", to, from, from);
  else
    out_.line("mov.{} {}, {};", info(to_file).type, to, from);
}

std::string Values::in_register(ValueId v) {
  std::string text = operand(v);
  if (text[0] == '%') return text;
  const std::string reg = out_.fresh(file(v));
  move(file(v), reg, text);
  return reg;
}

std::string Values::wide(ValueId v) {
  std::string text = operand(v);
  if (!narrow_[v] || text[0] != '%') return text;
  const std::string reg = out_.fresh(File::kB64);
  out_.line("cvt.s64.s32 {}, {};", reg, text);
  return reg;
}

std::string Values::low(ValueId v) {
  std::string text = operand(v);
  if (file(v) != File::kB64 || text[0] != '%') return text;
  const std::string reg = out_.fresh(File::kB32);
  out_.line("cvt.u32.u64 {}, {};", reg, text);
  return reg;
}

std::string Values::in_range(DType t, const std::string& from) {
  const int64_t bits = item_size(t) * 8;
  if (bits >= 32) return from;
  const std::string out = out_.fresh(File::kB32);
  if (!is_signed(t) || is_float(t)) {
    out_.line("and.b32 {}, {}, {};", out, from, (int64_t{1} << bits) - 1);
    return out;
  }
  const std::string left = out_.fresh(File::kB32);
  out_.line("shl.b32 {}, {}, {};", left, from, 32 - bits);
  out_.line("shr.s32 {}, {}, {};", out, left, 32 - bits);
  return out;
}

void Values::emit(ValueId v) {
  if (p_.at(v).op == ValueOp::kConvert)
    convert(v);
  else
    alu(v);
}

void Values::convert(ValueId id) {
  const ValueId a = p_.at(id).args[0];
  const DType from = p_.type(a).dtype, to = p_.type(id).dtype;
  if (is_int(from) && is_int(to)) return convert_integer(id);
  if (is_bool(from)) {
    const std::string p = operand(a), d = define(id);
    const std::string_view t = arithmetic_type(to, narrow_[id]);
    return out_.line("selp.{} {}, {}, {}, {};", t, d,
                     literal(to, is_float(to) ? std::bit_cast<int64_t>(1.0) : 1), literal(to, 0),
                     p);
  }
  if (to == DType::kBF16) {
    const std::string x = in_register(a), half = out_.fresh(File::kB16), d = define(id);
    out_.line("cvt.rn.bf16.f32 {}, {};", half, x);
    return out_.line("cvt.u32.u16 {}, {};", d, half);
  }
  const std::string x = in_register(a), d = define(id);
  const std::string_view f = from == DType::kF16 ? "f16" : arithmetic_type(from, narrow_[a]);
  const std::string_view t = to == DType::kF16 ? "f16" : arithmetic_type(to, narrow_[id]);
  const bool is_exact = is_float(from) && is_float(to) && item_size(from) < item_size(to);
  out_.line("cvt.{}{}.{} {}, {};", is_int(to) ? "rzi." : is_exact ? "" : "rn.", t, f, d, x);
}

void Values::convert_integer(ValueId id) {
  const ValueId a = p_.at(id).args[0];
  const DType from = p_.type(a).dtype, to = p_.type(id).dtype;
  const bool is_from_wide = file(a) == File::kB64, is_to_wide = file(id) == File::kB64;
  if (is_to_wide && is_from_wide) return alias(id, operand(a));
  if (is_to_wide) {
    const std::string x = in_register(a), d = define(id);
    const bool keeps_sign = narrow_[a] || is_signed(from);
    return out_.line("cvt.{} {}, {};", keeps_sign ? "s64.s32" : "u64.u32", d, x);
  }
  const std::string x = is_from_wide ? low(a) : operand(a);
  const bool is_inside =
      item_size(from) < 4 && int_min(from) >= int_min(to) && int_max(from) <= int_max(to);
  alias(id, is_inside ? x : in_range(to, x));
}

void Values::bitcast(ValueId id) {
  const ValueId a = p_.at(id).args[0];
  const int64_t bytes = item_size(p_.type(id).dtype);
  const File from = file(a), to = file(id);
  if (bytes <= 2) return bitcast_small(id);
  if (bytes == 4 ? from == to : is_int(p_.type(a).dtype) && is_int(p_.type(id).dtype))
    return alias(id, to == File::kB64 ? wide(a) : operand(a));
  std::string x = in_register(a);
  if (bytes == 8 && from == File::kB32) x = wide(a);
  const std::string d = define(id);
  out_.line("mov.b{} {}, {};", bytes * 8, d, x);
}

void Values::bitcast_small(ValueId id) {
  const ValueId a = p_.at(id).args[0];
  const DType to = p_.type(id).dtype;
  const File from = file(a);
  std::string bits = operand(a);
  if (from == file(id) && from != File::kB32) return alias(id, bits);
  if (from == File::kPred || from == File::kB16) {
    const std::string x = from == File::kPred ? bits : in_register(a);
    bits = out_.fresh(File::kB32);
    if (from == File::kPred)
      out_.line("selp.u32 {}, 1, 0, {};", bits, x);
    else
      out_.line("cvt.u32.u16 {}, {};", bits, x);
  }
  if (file(id) == File::kB32) return alias(id, in_range(to, bits));
  if (bits[0] != '%') {
    const std::string reg = out_.fresh(File::kB32);
    move(File::kB32, reg, bits);
    bits = reg;
  }
  const std::string d = define(id);
  if (file(id) == File::kPred)
    out_.line("setp.ne.s32 {}, {}, 0;", d, bits);
  else
    out_.line("cvt.u16.u32 {}, {};", d, bits);
}

void Values::compare(ValueId id, std::string_view relation) {
  const ValueId a = p_.at(id).args[0], b = p_.at(id).args[1];
  const DType t = p_.type(a).dtype;
  if (is_float(t)) {
    const std::string x = operand(a), y = operand(b), d = define(id);
    // Comparisons with NaN are false, "not equal" is true.
    return out_.line("setp.{}{}.{} {}, {}, {};", relation, relation == "ne" ? "u" : "",
                     arithmetic_type(t, false), d, x, y);
  }
  const auto is_small = [&](ValueId v) { return file(v) == File::kB32 || narrow_[v]; };
  const bool is_wide = !is_small(a) || !is_small(b);
  const std::string x = sized(a, is_wide), y = sized(b, is_wide), d = define(id);
  std::string_view type = arithmetic_type(t, !is_wide && item_size(t) == 8);
  if (relation != "lt") type = is_wide ? "s64" : "s32";
  out_.line("setp.{}.{} {}, {}, {};", relation, type, d, x, y);
}

void Values::select(ValueId id) {
  const Value& v = p_.at(id);
  const std::string c = operand(v.args[0]);
  const bool is_wide = file(id) == File::kB64;
  const auto side = [&](ValueId a) { return is_wide ? wide(a) : operand(a); };
  const std::string x = side(v.args[1]), y = side(v.args[2]), d = define(id);
  if (!is_bool(v.type.dtype))
    return out_.line("selp.{} {}, {}, {}, {};", info(file(id)).type, d, x, y, c);
  const std::string yes = out_.fresh(File::kPred), other = out_.fresh(File::kPred),
                    no = out_.fresh(File::kPred);
  out_.line("and.pred {}, {}, {};", yes, c, x);
  out_.line("not.pred {}, {};", other, c);
  out_.line("and.pred {}, {}, {};", no, other, y);
  out_.line("or.pred {}, {}, {};", d, yes, no);
}

void Values::logic(ValueId id, std::string_view op) {
  const Value& v = p_.at(id);
  const bool is_wide = file(id) == File::kB64;
  const auto side = [&](ValueId a) { return is_wide ? wide(a) : operand(a); };
  const std::string x = side(v.args[0]);
  const std::string y = v.args.size() > 1 ? ", " + side(v.args[1]) : "";
  const std::string_view type = info(file(id)).type;
  if (op != "not" || item_size(v.type.dtype) >= 4 || is_bool(v.type.dtype))
    return out_.line("{}.{} {}, {}{};", op, type, define(id), x, y);
  const std::string all = out_.fresh(File::kB32);
  out_.line("not.b32 {}, {};", all, x);
  alias(id, in_range(v.type.dtype, all));
}

void Values::shift(ValueId id, std::string_view op) {
  const Value& v = p_.at(id);
  const bool is_wide = file(id) == File::kB64, is_left = op == "shl";
  const std::string x = sized(v.args[0], is_wide), n = low(v.args[1]);
  const std::string type =
      is_left ? is_wide ? "b64" : "b32" : std::string(arithmetic_type(v.type.dtype, narrow_[id]));
  const bool must_wrap = is_left && item_size(v.type.dtype) < 4;
  const std::string d = must_wrap ? out_.fresh(File::kB32) : define(id);
  out_.line("{}.{} {}, {}, {};", op, type, d, x, n);
  if (must_wrap) alias(id, in_range(v.type.dtype, d));
}

void Values::arithmetic(ValueId id, std::string_view integer_op, std::string_view float_op) {
  const Value& v = p_.at(id);
  const DType t = v.type.dtype;
  const std::string_view op = is_float(t) ? float_op : integer_op;
  const bool is_wide = file(id) == File::kB64;
  // Sums and products wrap alike with and without a sign.
  const bool has_sign = integer_op == "div" || integer_op == "rem";
  const std::string_view type = is_float(t) || has_sign ? arithmetic_type(t, narrow_[id])
                                : is_wide               ? "s64"
                                                        : "s32";
  std::string sources;
  for (ValueId a : v.args) sources += ", " + (is_float(t) ? operand(a) : sized(a, is_wide));
  const bool must_wrap = !is_float(t) && item_size(t) < 4;
  const std::string d = must_wrap ? out_.fresh(File::kB32) : define(id);
  out_.line("{}.{} {}{};", op, type, d, sources);
  if (must_wrap) alias(id, in_range(t, d));
}

/// An operation that says how it rounds is never fused with another.
void Values::half_arithmetic(ValueId id, std::string_view op) {
  const bool is_bf16 = p_.type(id).dtype == DType::kBF16;
  std::string sources;
  for (const ValueId a : p_.at(id).args) {
    std::string x = in_register(a);
    if (is_bf16) {
      const std::string half = out_.fresh(File::kB16);
      out_.line("cvt.u16.u32 {}, {};", half, x);
      x = half;
    }
    sources += ", " + x;
  }
  const std::string d = define(id), half = is_bf16 ? out_.fresh(File::kB16) : d;
  out_.line("{}.rn.{} {}{};", op, is_bf16 ? "bf16" : "f16", half, sources);
  if (is_bf16) out_.line("cvt.u32.u16 {}, {};", d, half);
}

void Values::unary_float(ValueId id, std::string_view op) {
  const std::string x = in_register(p_.at(id).args[0]), d = define(id);
  out_.line("{} {}, {};", op, d, x);
}

void Values::alu(ValueId id) {
  const Value& v = p_.at(id);
  const bool is_f32 = v.type.dtype == DType::kF32;
  if (is_half_like(v.type.dtype) && is_half_arithmetic(v.alu))
    return half_arithmetic(id, v.alu == Op::kAdd ? "add" : v.alu == Op::kSub ? "sub" : "mul");
  switch (v.alu) {
    case Op::kNeg: return unary_float(id, is_f32 ? "neg.f32" : "neg.f64");
    case Op::kSqrt: return unary_float(id, is_f32 ? "sqrt.rn.f32" : "sqrt.rn.f64");
    case Op::kTrunc: return unary_float(id, is_f32 ? "cvt.rzi.f32.f32" : "cvt.rzi.f64.f64");
    case Op::kFma: return arithmetic(id, "", "fma.rn");
    case Op::kBitcast: return bitcast(id);
    case Op::kAdd: return arithmetic(id, "add", "add");
    case Op::kSub: return arithmetic(id, "sub", "sub");
    // A product that says how it rounds is never fused with a sum.
    case Op::kMul: return arithmetic(id, "mul.lo", "mul.rn");
    case Op::kMax: return arithmetic(id, "", "max.NaN");
    case Op::kMin: return arithmetic(id, "", "min.NaN");
    case Op::kDiv: return arithmetic(id, "div", "div.rn");
    case Op::kMod: return arithmetic(id, "rem", "");
    case Op::kNot: return logic(id, "not");
    case Op::kAnd: return logic(id, "and");
    case Op::kOr: return logic(id, "or");
    case Op::kXor: return logic(id, "xor");
    case Op::kShl: return shift(id, "shl");
    case Op::kShr: return shift(id, "shr");
    case Op::kLt: return compare(id, "lt");
    case Op::kEq: return compare(id, "eq");
    case Op::kNe: return compare(id, "ne");
    case Op::kSelect: return select(id);
    default: break;  // legalize() leaves no other
  }
  check_failed("operation was not legalised", __FILE__, __LINE__);
}

}  // namespace bm::compiler::ptx
