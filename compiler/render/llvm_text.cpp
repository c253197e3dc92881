#include "compiler/render/llvm_text.h"

#include <bit>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

std::string scalar_literal(DType t, int64_t imm) {
  if (t == DType::kBool) return imm ? "true" : "false";
  if (!is_float(t)) {
    const int64_t v = item_size(t) == 8   ? imm
                      : item_size(t) == 4 ? static_cast<int32_t>(imm)
                      : item_size(t) == 2 ? static_cast<int16_t>(imm)
                                          : static_cast<int8_t>(imm);
    return fmt::format("{}", v);
  }
  const double v = std::bit_cast<double>(imm);
  if (t == DType::kF16) return fmt::format("{}", f32_to_f16(static_cast<float>(v)));
  if (t == DType::kBF16) return fmt::format("{}", f32_to_bf16(static_cast<float>(v)));
  // LLVM writes float constants as the double of the same value.
  if (std::isnan(v)) return "0x7FF8000000000000";
  return fmt::format("0x{:016X}", std::bit_cast<uint64_t>(v));
}

std::string_view conversion(DType from, DType to) {
  if (is_float(from) && is_float(to)) return item_size(to) > item_size(from) ? "fpext" : "fptrunc";
  if (is_float(from)) return is_signed(to) ? "fptosi" : "fptoui";
  if (is_float(to)) return is_signed(from) ? "sitofp" : "uitofp";
  if (is_bool(from)) return "zext";
  if (item_size(to) == item_size(from)) return "bitcast";
  if (item_size(to) < item_size(from)) return "trunc";
  return is_signed(from) ? "sext" : "zext";
}

}  // namespace

std::string_view LlvmText::scalar_name(DType t) {
  switch (t) {
    case DType::kBool: return "i1";
    case DType::kI8:
    case DType::kU8: return "i8";
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16: return "i16";
    case DType::kI32:
    case DType::kU32: return "i32";
    case DType::kI64:
    case DType::kU64: return "i64";
    case DType::kF32: return "float";
    case DType::kF64: return "double";
  }
  return "?";
}

std::string LlvmText::with_lanes(std::string_view scalar, uint32_t lanes) {
  return lanes == 1 ? std::string(scalar) : fmt::format("<{} x {}>", lanes, scalar);
}

std::string LlvmText::type_name(Type t) { return with_lanes(scalar_name(t.dtype), t.lanes); }

std::string LlvmText::memory_type(Type t) {
  return with_lanes(is_bool(t.dtype) ? "i8" : scalar_name(t.dtype), t.lanes);
}

std::string LlvmText::suffix(Type t) {
  const std::string scalar = t.dtype == DType::kF32   ? "f32"
                             : t.dtype == DType::kF64 ? "f64"
                                                      : std::string(scalar_name(t.dtype));
  return t.lanes == 1 ? scalar : fmt::format("v{}{}", t.lanes, scalar);
}

std::string LlvmText::literal(Type t, int64_t imm) {
  const std::string one = scalar_literal(t.dtype, imm);
  if (t.lanes == 1) return one;
  if (imm == 0) return "zeroinitializer";
  std::string s;
  for (uint32_t i = 0; i < t.lanes; ++i)
    s += fmt::format("{}{} {}", i ? ", " : "<", scalar_name(t.dtype), one);
  return s + ">";
}

std::string LlvmText::ref(ValueId id) const {
  const Value& v = p_.at(id);
  if (v.op == ValueOp::kConst) return literal(v.type, v.imm);
  if (v.op == ValueOp::kArgument)
    return v.imm == -2 ? "%block_begin" : v.imm == -1 ? "%block_end" : fmt::format("%a{}", v.imm);
  if (v.op == ValueOp::kVar) return fmt::format("%var{}", v.imm);
  if (v.op == ValueOp::kIota) {
    std::string s;
    for (uint32_t i = 0; i < v.type.lanes; ++i)
      s += fmt::format("{}i64 {}", i ? ", " : "<", v.imm * i);
    return s + ">";
  }
  return fmt::format("%v{}", id);
}

void LlvmText::registers(BlockId root) {
  for (size_t i = 0; i < p_.registers.size(); ++i)
    if (p_.register_block[i] == root)
      line("%r{} = alloca {}{}", i, type_name(p_.registers[i]), stack_);
}

void LlvmText::helper(const Function& f) {
  std::string args;
  for (size_t i = 0; i < f.arguments.size(); ++i)
    args += fmt::format("{}{} %a{}", i ? ", " : "", type_name(f.arguments[i]), i);
  const std::string result = type_name(p_.type(f.result));
  out_ += fmt::format("define internal {} @{}.{}({}) #1 {{\n", result, p_.name, f.name, args);
  label("entry");
  registers(f.body);
  block(f.body);
  line("ret {} {}", result, ref(f.result));
  out_ += "}\n";
}

void LlvmText::block(BlockId id) {
  for (const Stmt& s : p_.blocks[id].stmts) statement(s);
}

void LlvmText::statement(const Stmt& s) {
  switch (s.kind) {
    case StmtKind::kLet: let(s.value); break;
    case StmtKind::kLoop: loop(s); break;
    case StmtKind::kIf: {
      const std::string then = fresh("then"), join = fresh("join");
      line("br i1 {}, label %{}, label %{}", ref(s.value), then, join);
      label(then);
      block(s.body);
      line("br label %{}", join);
      label(join);
      break;
    }
    case StmtKind::kAssign: line("store {}, {}", typed(s.value), register_at(s.target)); break;
    case StmtKind::kStore:
    case StmtKind::kPrefetch:
    case StmtKind::kLocalStore:
    case StmtKind::kMma:
    case StmtKind::kCopy:
    case StmtKind::kPipe:
    case StmtKind::kWarpgroupMma:
    case StmtKind::kTensor:
    case StmtKind::kFault:
    case StmtKind::kBarrier: return memory_statement(s);
  }
}

void LlvmText::serial_loop(const Stmt& s) {
  const std::string body = fresh("body"), latch = fresh("latch"), exit = fresh("exit"),
                    from = current_;
  const std::string guard = fresh("%c");
  line("{} = icmp slt i64 {}, {}", guard, ref(s.begin), ref(s.end));
  line("br i1 {}, label %{}, label %{}", guard, body, exit);
  label(body);
  line("%v{} = phi i64 [ {}, %{} ], [ %v{}.next, %{} ]", s.value, ref(s.begin), from, s.value,
       latch);
  block(s.body);
  line("br label %{}", latch);
  label(latch);
  line("%v{}.next = add nsw i64 %v{}, {}", s.value, s.value, s.step);
  const std::string again = fresh("%c");
  line("{} = icmp slt i64 %v{}.next, {}", again, s.value, ref(s.end));
  line("br i1 {}, label %{}, label %{}", again, body, exit);
  label(exit);
}

std::string LlvmText::in_memory(ValueId v) {
  if (!is_bool(p_.type(v).dtype)) return ref(v);
  const std::string byte = fresh("%b");
  line("{} = zext {} to {}", byte, typed(v), memory_type(p_.type(v)));
  return byte;
}

void LlvmText::store(ValueId v, ValueId gate, const Address& address) {
  const Type t = p_.type(v);
  const std::string value = in_memory(v);
  const auto plain = [&] {
    const std::string at = address();
    line("store {} {}, {}, align {}", memory_type(t), value, at, item_size(t.dtype));
  };
  if (gate == kNone) return plain();
  const std::string then = fresh("then"), join = fresh("join");
  line("br i1 {}, label %{}, label %{}", ref(gate), then, join);
  label(then);
  plain();
  line("br label %{}", join);
  label(join);
}

void LlvmText::load(ValueId id, ValueId gate, const Address& address) {
  const Type t = p_.type(id);
  const std::string memory = memory_type(t);
  const std::string raw = fmt::format("%v{}{}", id, is_bool(t.dtype) ? ".byte" : "");
  const auto align = item_size(t.dtype);
  if (gate == kNone) {
    const std::string at = address();
    line("{} = load {}, {}, align {}", raw, memory, at, align);
  } else {
    const std::string zero =
        t.lanes > 1 ? "zeroinitializer" : literal({is_bool(t.dtype) ? DType::kI8 : t.dtype, 1}, 0);
    const std::string then = fresh("then"), join = fresh("join"), loaded = fresh("%g"),
                      from = current_;
    line("br i1 {}, label %{}, label %{}", ref(gate), then, join);
    label(then);
    const std::string at = address();
    line("{} = load {}, {}, align {}", loaded, memory, at, align);
    line("br label %{}", join);
    label(join);
    line("{} = phi {} [ {}, %{} ], [ {}, %{} ]", raw, memory, loaded, then, zero, from);
  }
  if (is_bool(t.dtype))
    line("%v{} = icmp ne {} {}, {}", id, memory, raw, t.lanes > 1 ? "zeroinitializer" : "0");
}

void LlvmText::let(ValueId id) {
  const Value& v = p_.at(id);
  const std::string type = type_name(v.type);
  switch (v.op) {
    case ValueOp::kSplat: {
      const std::string one = fresh("%s");
      line("{} = insertelement {} poison, {}, i64 0", one, type, typed(v.args[0]));
      return line("%v{} = shufflevector {} {}, {} poison, <{} x i32> zeroinitializer", id, type,
                  one, type, v.type.lanes);
    }
    case ValueOp::kExtract:
      return line("%v{} = extractelement {}, i64 {}", id, typed(v.args[0]), v.imm);
    case ValueOp::kInsert:
      return line("%v{} = insertelement {}, {}, i64 {}", id, typed(v.args[0]), typed(v.args[1]),
                  v.imm);
    case ValueOp::kBuild: return build(id, v);
    case ValueOp::kHalf: {
      std::string lanes;
      for (uint32_t i = 0; i < v.type.lanes; ++i)
        lanes +=
            fmt::format("{}i32 {}", i ? ", " : "", static_cast<int64_t>(i) + v.imm * v.type.lanes);
      if (v.type.lanes == 1)
        return line("%v{} = extractelement {}, i64 {}", id, typed(v.args[0]), v.imm);
      const std::string in = type_name(p_.type(v.args[0]));
      return line("%v{} = shufflevector {} {}, {} poison, <{} x i32> <{}>", id, in, ref(v.args[0]),
                  in, v.type.lanes, lanes);
    }
    case ValueOp::kReverse: {
      std::string lanes;
      for (uint32_t i = 0; i < v.type.lanes; ++i)
        lanes += fmt::format("{}i32 {}", i ? ", " : "", v.type.lanes - 1 - i);
      return line("%v{} = shufflevector {}, {} poison, <{} x i32> <{}>", id, typed(v.args[0]), type,
                  v.type.lanes, lanes);
    }
    case ValueOp::kDeinterleave: {
      std::string lanes;
      for (uint32_t i = 0; i < v.type.lanes; ++i)
        lanes += fmt::format("{}i32 {}", i ? ", " : "", 2 * i + v.imm);
      return line("%v{} = shufflevector {}, {}, <{} x i32> <{}>", id, typed(v.args[0]),
                  typed(v.args[1]), v.type.lanes, lanes);
    }
    case ValueOp::kConcatShift: {
      std::string lanes;
      for (uint32_t i = 0; i < v.type.lanes; ++i)
        lanes += fmt::format("{}i32 {}", i ? ", " : "", i + v.imm);
      return line("%v{} = shufflevector {}, {}, <{} x i32> <{}>", id, typed(v.args[0]),
                  typed(v.args[1]), v.type.lanes, lanes);
    }
    case ValueOp::kInterleave: {
      std::string lanes;
      for (uint32_t i = 0; i < v.type.lanes; ++i)
        lanes += fmt::format("{}i32 {}", i ? ", " : "",
                             i / 2 + (v.imm ? v.type.lanes / 2 : 0) + (i % 2 ? v.type.lanes : 0));
      return line("%v{} = shufflevector {}, {}, <{} x i32> <{}>", id, typed(v.args[0]),
                  typed(v.args[1]), v.type.lanes, lanes);
    }
    case ValueOp::kLoad:
    case ValueOp::kTable:
    case ValueOp::kWords:
    case ValueOp::kUnalignedWords:
    case ValueOp::kFragment:
    case ValueOp::kShuffle:
    case ValueOp::kPackHalf2:
    case ValueOp::kDequantise2:
    case ValueOp::kExp2:
    case ValueOp::kRoundTf32:
    case ValueOp::kDot:
    case ValueOp::kLdexp:
    case ValueOp::kLookup:
    case ValueOp::kIsAligned:
    case ValueOp::kItem:
    case ValueOp::kLocalLoad: return memory_value(id, v);
    case ValueOp::kRead:
      return line("%v{} = load {}, {}", id, type, register_at(static_cast<uint32_t>(v.imm)));
    case ValueOp::kCall: {
      std::string args;
      for (ValueId a : v.args) args += (args.empty() ? "" : ", ") + typed(a);
      return line("%v{} = call {} @{}.{}({})", id, type, p_.name,
                  p_.functions[static_cast<size_t>(v.imm)].name, args);
    }
    case ValueOp::kAny: {
      const std::string name = "llvm.vector.reduce.or." + suffix(p_.type(v.args[0]));
      declarations_.insert(fmt::format("declare i1 @{}({})", name, type_name(p_.type(v.args[0]))));
      return line("%v{} = call i1 @{}({})", id, name, typed(v.args[0]));
    }
    case ValueOp::kConvert: return convert(id, v);
    case ValueOp::kAlu: return alu(id, v);
    // ref() writes these where they are used.
    case ValueOp::kConst:
    case ValueOp::kArgument:
    case ValueOp::kVar:
    case ValueOp::kIndex:
    case ValueOp::kIota: break;
  }
}

void LlvmText::build(ValueId id, const Value& v) {
  const std::string type = type_name(v.type);
  std::string previous = "poison";
  for (size_t i = 0; i < v.args.size(); ++i) {
    const std::string next = i + 1 == v.args.size() ? fmt::format("%v{}", id) : fresh("%s");
    line("{} = insertelement {} {}, {}, i64 {}", next, type, previous, typed(v.args[i]), i);
    previous = next;
  }
}

void LlvmText::convert(ValueId id, const Value& v) {
  const DType from = p_.type(v.args[0]).dtype, to = v.type.dtype;
  const std::string type = type_name(v.type), half = with_lanes("half", v.type.lanes);
  if (from == DType::kF16) {
    line("%v{}.half = bitcast {} to {}", id, typed(v.args[0]), half);
    if (!fences_halves()) return line("%v{} = fpext {} %v{}.half to {}", id, half, id, type);
    const std::string fence = "llvm.arithmetic.fence." + suffix(v.type);
    declarations_.insert(fmt::format("declare {0} @{1}({0})", type, fence));
    line("%v{}.wide = fpext {} %v{}.half to {}", id, half, id, type);
    return line("%v{} = call {} @{}({} %v{}.wide)", id, type, fence, type, id);
  }
  if (to == DType::kF16) {
    const Value& source = p_.at(v.args[0]);
    if (loses_zero_signs() && source.op == ValueOp::kAlu && from == DType::kF32 &&
        (source.alu == Op::kMul || source.alu == Op::kDiv)) {
      const std::string wide = type_name(source.type),
                        name = "llvm.canonicalize." + suffix(source.type);
      declarations_.insert(fmt::format("declare {0} @{1}({0})", wide, name));
      line("%v{}.product = call {} @{}({})", id, wide, name, typed(v.args[0]));
      line("%v{}.half = fptrunc {} %v{}.product to {}", id, wide, id, half);
      return line("%v{} = bitcast {} %v{}.half to {}", id, half, id, type);
    }
    line("%v{}.half = fptrunc {} to {}", id, typed(v.args[0]), half);
    return line("%v{} = bitcast {} %v{}.half to {}", id, half, id, type);
  }
  return line("%v{} = {} {} to {}", id, conversion(from, to), typed(v.args[0]), type);
}

void LlvmText::intrinsic(ValueId id, const Value& v, std::string_view stem) {
  const std::string type = type_name(v.type),
                    name = fmt::format("llvm.{}.{}", stem, suffix(v.type));
  std::string types, args;
  for (ValueId a : v.args) {
    types += (types.empty() ? "" : ", ") + type;
    args += (args.empty() ? "" : ", ") + typed(a);
  }
  declarations_.insert(fmt::format("declare {} @{}({})", type, name, types));
  line("%v{} = call {} @{}({})", id, type, name, args);
}

void LlvmText::alu(ValueId id, const Value& v) {
  const Type in = p_.type(v.args[0]);
  const bool is_f = is_float(in.dtype), is_s = is_signed(in.dtype);
  const auto binary = [&](std::string_view op) {
    line("%v{} = {} {}, {}", id, op, typed(v.args[0]), ref(v.args[1]));
  };
  switch (v.alu) {
    case Op::kNeg: return line("%v{} = fneg {}", id, typed(v.args[0]));
    case Op::kSqrt: return intrinsic(id, v, "sqrt");
    case Op::kTrunc: return intrinsic(id, v, "trunc");
    case Op::kFma: return intrinsic(id, v, "fma");
    case Op::kNot:
      return line("%v{} = xor {}, {}", id, typed(v.args[0]),
                  literal(in, is_bool(in.dtype) ? 1 : -1));
    case Op::kBitcast:
      return line("%v{} = bitcast {} to {}", id, typed(v.args[0]), type_name(v.type));
    case Op::kAdd: return binary(is_f ? "fadd" : "add");
    case Op::kSub: return binary(is_f ? "fsub" : "sub");
    case Op::kMul: return binary(is_f ? "fmul" : "mul");
    case Op::kDiv: return binary(is_f ? "fdiv" : is_s ? "sdiv" : "udiv");
    case Op::kMod: return binary(is_s ? "srem" : "urem");
    case Op::kAnd: return binary("and");
    case Op::kOr: return binary("or");
    case Op::kXor: return binary("xor");
    case Op::kShl: return binary("shl");
    case Op::kShr: return binary(is_s ? "ashr" : "lshr");
    case Op::kLt: return binary(is_f ? "fcmp olt" : is_s ? "icmp slt" : "icmp ult");
    case Op::kEq: return binary(is_f ? "fcmp oeq" : "icmp eq");
    case Op::kNe: return binary(is_f ? "fcmp une" : "icmp ne");
    case Op::kSelect:
      return line("%v{} = select {}, {}, {}", id, typed(v.args[0]), typed(v.args[1]),
                  typed(v.args[2]));
    default: break;  // legalize() leaves no other
  }
  check_failed("operation was not legalised", __FILE__, __LINE__);
}

}  // namespace bm::compiler
