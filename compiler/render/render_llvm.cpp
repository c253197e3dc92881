#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "compiler/render/render.h"
#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

/// 16-bit floats travel as i16; bool is i1 in values and i8 in memory.
std::string_view scalar_name(DType t) {
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

std::string with_lanes(std::string_view scalar, uint32_t lanes) {
  return lanes == 1 ? std::string(scalar) : fmt::format("<{} x {}>", lanes, scalar);
}

std::string type_name(Type t) { return with_lanes(scalar_name(t.dtype), t.lanes); }
std::string memory_type(Type t) {
  return with_lanes(is_bool(t.dtype) ? "i8" : scalar_name(t.dtype), t.lanes);
}

/// Suffix of intrinsic names: f32, v16f32, v8i1.
std::string suffix(Type t) {
  const std::string scalar = t.dtype == DType::kF32   ? "f32"
                             : t.dtype == DType::kF64 ? "f64"
                                                      : std::string(scalar_name(t.dtype));
  return t.lanes == 1 ? scalar : fmt::format("v{}{}", t.lanes, scalar);
}

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

class LlvmRenderer {
 public:
  explicit LlvmRenderer(const Program& p) : p_(p) {}

  std::string run() {
    for (const Function& f : p_.functions) helper(f);
    kernel();
    entry();
    std::string text;
    for (size_t i = 0; i < p_.tables.size(); ++i) text += table(i);
    for (const std::string& d : declarations_) text += d + "\n";
    return text + out_ +
           "attributes #0 = { nounwind nofree nosync \"no-trapping-math\"=\"true\" "
           "\"prefer-vector-width\"=\"512\" }\n"
           "attributes #1 = { noinline nounwind nofree nosync }\n";
  }

 private:
  template <class... A>
  void line(fmt::format_string<A...> f, A&&... args) {
    out_ += "  ";
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(args)...);
    out_ += '\n';
  }

  void label(std::string_view name) {
    out_ += fmt::format("{}:\n", name);
    current_ = name;
  }

  std::string fresh(std::string_view stem) { return fmt::format("{}{}", stem, next_++); }

  std::string table(size_t i) const {
    std::string items;
    for (uint64_t w : p_.tables[i])
      items += fmt::format("{}i64 {}", items.empty() ? "" : ", ", static_cast<int64_t>(w));
    return fmt::format("@{}.table{} = private unnamed_addr constant [{} x i64] [{}]\n", p_.name, i,
                       p_.tables[i].size(), items);
  }

  /// Operand without its type.
  std::string ref(ValueId id) const {
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

  static std::string literal(Type t, int64_t imm) {
    const std::string one = scalar_literal(t.dtype, imm);
    if (t.lanes == 1) return one;
    if (imm == 0) return "zeroinitializer";
    std::string s;
    for (uint32_t i = 0; i < t.lanes; ++i)
      s += fmt::format("{}{} {}", i ? ", " : "<", scalar_name(t.dtype), one);
    return s + ">";
  }

  std::string typed(ValueId id) const { return type_name(p_.type(id)) + " " + ref(id); }

  void registers(BlockId root) {
    for (size_t i = 0; i < p_.registers.size(); ++i)
      if (p_.register_block[i] == root) line("%r{} = alloca {}", i, type_name(p_.registers[i]));
  }

  void helper(const Function& f) {
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

  void kernel() {
    std::string args;
    for (size_t i = 0; i < p_.params.size(); ++i) args += fmt::format("ptr noalias %p{}, ", i);
    for (uint32_t i = 0; i < p_.num_vars; ++i) args += fmt::format("i64 %var{}, ", i);
    for (size_t i = 0; i < p_.locals.size(); ++i)
      args += fmt::format("ptr noalias align 64 %local{}, ", i);
    out_ +=
        fmt::format("define internal void @{}.blocks({}i64 %block_begin, i64 %block_end) #0 {{\n",
                    p_.name, args);
    label("entry");
    registers(p_.root);
    block(p_.root);
    out_ += "  ret void\n}\n";
  }

  void entry() {
    out_ += fmt::format(
        "define void @{}(ptr %args, i64 %block_begin, i64 %block_end, ptr %scratch) #0 {{\n",
        p_.name);
    std::string pass;
    const auto load = [&](std::string_view type, std::string_view name, size_t i, size_t slot) {
      line("%{}{}.at = getelementptr i64, ptr %args, i64 {}", name, i, slot);
      line("%{}{} = load {}, ptr %{}{}.at, align 8", name, i, type, name, i);
      pass += fmt::format("{} %{}{}, ", type, name, i);
    };
    for (size_t i = 0; i < p_.params.size(); ++i) load("ptr", "p", i, i);
    for (uint32_t i = 0; i < p_.num_vars; ++i) load("i64", "var", i, p_.params.size() + i);
    for (size_t i = 0; i < p_.locals.size(); ++i) {
      line("%local{} = getelementptr i8, ptr %scratch, i64 {}", i, scratch_offset(p_, i));
      pass += fmt::format("ptr %local{}, ", i);
    }
    line("call void @{}.blocks({}i64 %block_begin, i64 %block_end)", p_.name, pass);
    out_ += "  ret void\n}\n";
  }

  void block(BlockId id) {
    for (const Stmt& s : p_.blocks[id].stmts) statement(s);
  }

  void statement(const Stmt& s) {
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
      case StmtKind::kAssign: line("store {}, ptr %r{}", typed(s.value), s.target); break;
      case StmtKind::kStore: store(s); break;
      case StmtKind::kPrefetch:
        declarations_.insert("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)");
        line("call void @llvm.prefetch.p0(ptr {}, i32 0, i32 3, i32 1)",
             address(s.target, s.begin));
        break;
      case StmtKind::kLocalStore: local_store(s); break;
      case StmtKind::kMatrix:
      case StmtKind::kBarrier: check_failed("no work-groups on a CPU", __FILE__, __LINE__);
    }
  }

  void loop(const Stmt& s) {
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

  std::string address(uint32_t param, ValueId index) {
    const std::string at = fresh("%at");
    line("{} = getelementptr {}, ptr %p{}, i64 {}", at, memory_type({p_.params[param].dtype, 1}),
         param, ref(index));
    return at;
  }

  std::string local_address(size_t array, ValueId index) {
    const std::string at = fresh("%at");
    line("{} = getelementptr {}, ptr %local{}, i64 {}", at,
         memory_type({p_.locals[array].dtype, 1}), array, ref(index));
    return at;
  }

  void local_store(const Stmt& s) {
    const Type t = p_.type(s.value);
    line("store {} {}, ptr {}, align {}", memory_type(t), in_memory(s.value),
         local_address(s.target, s.begin), item_size(t.dtype));
  }

  void local_load(ValueId id, const Value& v) {
    const bool is_byte = is_bool(v.type.dtype);
    const std::string memory = memory_type(v.type),
                      raw = fmt::format("%v{}{}", id, is_byte ? ".byte" : "");
    line("{} = load {}, ptr {}, align {}", raw, memory,
         local_address(static_cast<size_t>(v.imm), v.args[0]), item_size(v.type.dtype));
    if (is_byte)
      line("%v{} = icmp ne {} {}, {}", id, memory, raw, v.type.lanes > 1 ? "zeroinitializer" : "0");
  }

  /// A value as it is stored.
  std::string in_memory(ValueId v) {
    if (!is_bool(p_.type(v).dtype)) return ref(v);
    const std::string byte = fresh("%b");
    line("{} = zext {} to {}", byte, typed(v), memory_type(p_.type(v)));
    return byte;
  }

  void store(const Stmt& s) {
    const Type t = p_.type(s.value);
    const std::string value = in_memory(s.value);
    const std::string memory = memory_type(t);
    const auto plain = [&] {
      line("store {} {}, ptr {}, align {}", memory, value, address(s.target, s.begin),
           item_size(t.dtype));
    };
    if (s.end == kNone) return plain();
    if (p_.type(s.end).lanes > 1) {
      const std::string name = fmt::format("llvm.masked.store.{}.p0", memory_suffix(t));
      declarations_.insert(
          fmt::format("declare void @{}({}, ptr, i32, <{} x i1>)", name, memory, t.lanes));
      line("call void @{}({} {}, ptr {}, i32 {}, {})", name, memory, value,
           address(s.target, s.begin), item_size(t.dtype), typed(s.end));
      return;
    }
    const std::string then = fresh("then"), join = fresh("join");
    line("br i1 {}, label %{}, label %{}", ref(s.end), then, join);
    label(then);
    plain();
    line("br label %{}", join);
    label(join);
  }

  static std::string memory_suffix(Type t) {
    return suffix({is_bool(t.dtype) ? DType::kI8 : t.dtype, t.lanes});
  }

  void load(ValueId id, const Value& v) {
    const auto param = static_cast<uint32_t>(v.imm);
    const std::string memory = memory_type(v.type);
    const std::string raw =
        is_bool(v.type.dtype) ? fmt::format("%v{}.byte", id) : fmt::format("%v{}", id);
    const auto align = item_size(v.type.dtype);
    const std::string zero =
        v.type.lanes > 1 ? "zeroinitializer"
                         : literal({is_bool(v.type.dtype) ? DType::kI8 : v.type.dtype, 1}, 0);
    if (v.args.size() == 1) {
      line("{} = load {}, ptr {}, align {}", raw, memory, address(param, v.args[0]), align);
    } else if (p_.type(v.args[1]).lanes > 1) {
      const std::string name = fmt::format("llvm.masked.load.{}.p0", memory_suffix(v.type));
      declarations_.insert(fmt::format("declare {} @{}(ptr, i32, <{} x i1>, {})", memory, name,
                                       v.type.lanes, memory));
      line("{} = call {} @{}(ptr {}, i32 {}, {}, {} zeroinitializer)", raw, memory, name,
           address(param, v.args[0]), align, typed(v.args[1]), memory);
    } else {
      const std::string then = fresh("then"), join = fresh("join"), loaded = fresh("%g"),
                        from = current_;
      line("br i1 {}, label %{}, label %{}", ref(v.args[1]), then, join);
      label(then);
      line("{} = load {}, ptr {}, align {}", loaded, memory, address(param, v.args[0]), align);
      line("br label %{}", join);
      label(join);
      line("{} = phi {} [ {}, %{} ], [ {}, %{} ]", raw, memory, loaded, then, zero, from);
    }
    if (is_bool(v.type.dtype))
      line("%v{} = icmp ne {} {}, {}", id, memory, raw, v.type.lanes > 1 ? "zeroinitializer" : "0");
  }

  void let(ValueId id) {
    const Value& v = p_.at(id);
    const std::string type = type_name(v.type);
    switch (v.op) {
      case ValueOp::kConst:
      case ValueOp::kArgument:
      case ValueOp::kVar:
      case ValueOp::kIndex:
      case ValueOp::kIota: return;
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
          lanes += fmt::format("{}i32 {}", i ? ", " : "",
                               static_cast<int64_t>(i) + v.imm * v.type.lanes);
        if (v.type.lanes == 1)
          return line("%v{} = extractelement {}, i64 {}", id, typed(v.args[0]), v.imm);
        const std::string in = type_name(p_.type(v.args[0]));
        return line("%v{} = shufflevector {} {}, {} poison, <{} x i32> <{}>", id, in,
                    ref(v.args[0]), in, v.type.lanes, lanes);
      }
      case ValueOp::kReverse: {
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i)
          lanes += fmt::format("{}i32 {}", i ? ", " : "", v.type.lanes - 1 - i);
        return line("%v{} = shufflevector {}, {} poison, <{} x i32> <{}>", id, typed(v.args[0]),
                    type, v.type.lanes, lanes);
      }
      case ValueOp::kInterleave: {
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i)
          lanes += fmt::format("{}i32 {}", i ? ", " : "",
                               i / 2 + (v.imm ? v.type.lanes / 2 : 0) + (i % 2 ? v.type.lanes : 0));
        return line("%v{} = shufflevector {}, {}, <{} x i32> <{}>", id, typed(v.args[0]),
                    typed(v.args[1]), v.type.lanes, lanes);
      }
      case ValueOp::kLoad: return load(id, v);
      case ValueOp::kLocalLoad: return local_load(id, v);
      case ValueOp::kTable: {
        const std::string at = fresh("%at");
        line("{} = getelementptr i64, ptr @{}.table{}, i64 {}", at, p_.name, v.imm, ref(v.args[0]));
        return line("%v{} = load i64, ptr {}, align 8", id, at);
      }
      case ValueOp::kWords:
      case ValueOp::kAnyWords:
        return line("%v{} = load {}, ptr {}, align {}", id, type,
                    address(static_cast<uint32_t>(v.imm), v.args[0]),
                    v.op == ValueOp::kWords ? 4 * v.type.lanes : 1);
      case ValueOp::kDot: return dot(id, v);
      case ValueOp::kIsAligned:
      case ValueOp::kItem: check_failed("no work-groups on a CPU", __FILE__, __LINE__);
      case ValueOp::kRead: return line("%v{} = load {}, ptr %r{}", id, type, v.imm);
      case ValueOp::kCall: {
        std::string args;
        for (ValueId a : v.args) args += (args.empty() ? "" : ", ") + typed(a);
        return line("%v{} = call {} @{}.{}({})", id, type, p_.name,
                    p_.functions[static_cast<size_t>(v.imm)].name, args);
      }
      case ValueOp::kAny: {
        const std::string name = "llvm.vector.reduce.or." + suffix(p_.type(v.args[0]));
        declarations_.insert(
            fmt::format("declare i1 @{}({})", name, type_name(p_.type(v.args[0]))));
        return line("%v{} = call i1 @{}({})", id, name, typed(v.args[0]));
      }
      case ValueOp::kConvert: return convert(id, v);
      case ValueOp::kAlu: return alu(id, v);
    }
  }

  void dot(ValueId id, const Value& v) {
    const auto kind = static_cast<DotKind>(v.imm);
    const uint32_t bits = v.type.lanes * 32;
    const std::string sum = type_name(v.type);
    // Operands in the type that the intrinsic names; its own type does not matter to the machine.
    std::string name, operand;
    switch (kind) {
      case DotKind::kU8S8:
        name = fmt::format("llvm.x86.avx512.vpdpbusd.{}", bits);
        operand = type_name({DType::kU32, v.type.lanes});
        break;
      case DotKind::kS16S16:
        name = bits == 512   ? "llvm.x86.avx512.pmaddw.d.512"
               : bits == 256 ? "llvm.x86.avx2.pmadd.wd"
                             : "llvm.x86.sse2.pmadd.wd";
        operand = with_lanes("i16", bits / 16);
        break;
      case DotKind::kBF16BF16:
        name = fmt::format("llvm.x86.avx512bf16.dpbf16ps.{}", bits);
        operand = with_lanes("bfloat", bits / 16);
        break;
    }
    const std::string a = fresh("%d"), b = fresh("%d");
    line("{} = bitcast {} to {}", a, typed(v.args[1]), operand);
    line("{} = bitcast {} to {}", b, typed(v.args[2]), operand);
    const bool takes_sum = kind != DotKind::kS16S16;
    const std::string first = takes_sum ? sum + ", " : "";
    declarations_.insert(
        fmt::format("declare {} @{}({}{}, {})", sum, name, first, operand, operand));
    const std::string call =
        fmt::format("call {} @{}({}{} {}, {} {})", sum, name,
                    takes_sum ? typed(v.args[0]) + ", " : "", operand, a, operand, b);
    if (takes_sum) return line("%v{} = {}", id, call);
    const std::string products = fresh("%d");
    line("{} = {}", products, call);
    line("%v{} = add {}, {}", id, typed(v.args[0]), products);
  }

  void build(ValueId id, const Value& v) {
    const std::string type = type_name(v.type);
    std::string previous = "poison";
    for (size_t i = 0; i < v.args.size(); ++i) {
      const std::string next = i + 1 == v.args.size() ? fmt::format("%v{}", id) : fresh("%s");
      line("{} = insertelement {} {}, {}, i64 {}", next, type, previous, typed(v.args[i]), i);
      previous = next;
    }
  }

  void convert(ValueId id, const Value& v) {
    const DType from = p_.type(v.args[0]).dtype, to = v.type.dtype;
    const std::string type = type_name(v.type), half = with_lanes("half", v.type.lanes);
    if (from == DType::kF16) {
      line("%v{}.half = bitcast {} to {}", id, typed(v.args[0]), half);
      return line("%v{} = fpext {} %v{}.half to {}", id, half, id, type);
    }
    if (to == DType::kF16) {
      line("%v{}.half = fptrunc {} to {}", id, typed(v.args[0]), half);
      return line("%v{} = bitcast {} %v{}.half to {}", id, half, id, type);
    }
    return line("%v{} = {} {} to {}", id, conversion(from, to), typed(v.args[0]), type);
  }

  static std::string_view conversion(DType from, DType to) {
    if (is_float(from) && is_float(to))
      return item_size(to) > item_size(from) ? "fpext" : "fptrunc";
    if (is_float(from)) return is_signed(to) ? "fptosi" : "fptoui";
    if (is_float(to)) return is_signed(from) ? "sitofp" : "uitofp";
    if (is_bool(from)) return "zext";
    if (item_size(to) == item_size(from)) return "bitcast";
    if (item_size(to) < item_size(from)) return "trunc";
    return is_signed(from) ? "sext" : "zext";
  }

  void intrinsic(ValueId id, const Value& v, std::string_view stem) {
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

  void alu(ValueId id, const Value& v) {
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
      case Op::kConst:
      case Op::kVar:
      case Op::kRange:
      case Op::kLoad:
      case Op::kReduce:
      case Op::kRecip:
      case Op::kExp2:
      case Op::kLog2:
      case Op::kSin:
      case Op::kCast:
      case Op::kMax:
      case Op::kMin: break;
    }
    check_failed("operation was not legalised", __FILE__, __LINE__);
  }

  const Program& p_;
  std::string out_, current_;
  std::set<std::string> declarations_;
  uint32_t next_ = 0;
};

}  // namespace

std::string render_llvm(const Program& program, const TargetInfo&) {
  return LlvmRenderer(program).run();
}

}  // namespace bm::compiler
