// OpenCL C 1.2 and later. Scalars only: neighbouring work-items are the device's lanes.
#include <cmath>

#include <fmt/format.h>

#include "compiler/render/render.h"
#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

/// bool is a byte of 0 or 1; 16-bit floats travel as ushort.
std::string_view type_name(DType t) {
  switch (t) {
    case DType::kBool:
    case DType::kU8: return "uchar";
    case DType::kI8: return "char";
    case DType::kI16: return "short";
    case DType::kF16:
    case DType::kBF16:
    case DType::kU16: return "ushort";
    case DType::kI32: return "int";
    case DType::kU32: return "uint";
    case DType::kI64: return "long";
    case DType::kU64: return "ulong";
    case DType::kF32: return "float";
    case DType::kF64: return "double";
  }
  return "?";
}

std::string literal(DType t, int64_t imm) {
  if (!is_float(t)) {
    if (t == DType::kU64) return fmt::format("{}ul", static_cast<uint64_t>(imm));
    if (t == DType::kU32) return fmt::format("{}u", static_cast<uint32_t>(imm));
    if (imm == INT64_MIN) return "(-9223372036854775807l - 1l)";
    if (imm == INT32_MIN) return "(-2147483647 - 1)";
    const std::string text = fmt::format("{}{}", imm, t == DType::kI64 ? "l" : "");
    return imm < 0 ? "(" + text + ")" : text;
  }
  const double v = std::bit_cast<double>(imm);
  if (t == DType::kF16) return fmt::format("{}", f32_to_f16(static_cast<float>(v)));
  if (t == DType::kBF16) return fmt::format("{}", f32_to_bf16(static_cast<float>(v)));
  if (t == DType::kF32)
    return std::isfinite(v)
               ? fmt::format("({:a}f)", v)
               : fmt::format("as_float({}u)", std::bit_cast<uint32_t>(static_cast<float>(v)));
  return std::isfinite(v) ? fmt::format("({:a})", v) : fmt::format("as_double({}ul)", imm);
}

class OpenClRenderer {
 public:
  explicit OpenClRenderer(const Program& p) : p_(p) {}

  std::string run() {
    pragmas();
    for (size_t i = 0; i < p_.tables.size(); ++i) {
      std::string words;
      for (uint64_t w : p_.tables[i]) words += fmt::format("{}{}ul", words.empty() ? "" : ", ", w);
      line("__constant ulong {}_table{}[] = {{{}}};", p_.name, i, words);
    }
    for (const Function& f : p_.functions) helper(f);
    kernel();
    return std::move(out_);
  }

 private:
  template <class... A>
  void line(fmt::format_string<A...> f, A&&... args) {
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(args)...);
    out_ += '\n';
  }

  bool uses(DType t) const {
    for (const Value& v : p_.values)
      if (v.type.dtype == t) return true;
    for (const ir::Param& p : p_.params)
      if (p.dtype == t) return true;
    return false;
  }

  void pragmas() {
    if (uses(DType::kF64)) {
      // An extension before OpenCL C 1.2, an option since.
      line("#ifdef cl_khr_fp64");
      line("#pragma OPENCL EXTENSION cl_khr_fp64 : enable");
      line("#endif");
    }
    bool converts_half = false;
    for (const Value& v : p_.values)
      converts_half = converts_half || (v.op == ValueOp::kConvert && is_half(v));
    if (converts_half) line("#pragma OPENCL EXTENSION cl_khr_fp16 : enable");
    line("#pragma OPENCL FP_CONTRACT OFF");
  }

  bool is_half(const Value& v) const {
    return v.type.dtype == DType::kF16 || p_.type(v.args[0]).dtype == DType::kF16;
  }

  std::string_view type(ValueId v) const { return type_name(p_.type(v).dtype); }

  std::string ref(ValueId id) const {
    const Value& v = p_.at(id);
    BM_CHECK(v.type.lanes == 1);
    switch (v.op) {
      case ValueOp::kConst:
        // Literals of the narrow types do not exist.
        return item_size(v.type.dtype) < 4
                   ? fmt::format("({}){}", type(id), literal(v.type.dtype, v.imm))
                   : literal(v.type.dtype, v.imm);
      case ValueOp::kArgument: return fmt::format("a{}", v.imm);
      case ValueOp::kVar: return fmt::format("var{}", v.imm);
      case ValueOp::kItem: return "item";
      default: return fmt::format("v{}", id);
    }
  }

  void registers(BlockId root) {
    for (size_t i = 0; i < p_.registers.size(); ++i)
      if (p_.register_block[i] == root) line("{} r{};", type_name(p_.registers[i].dtype), i);
  }

  void helper(const Function& f) {
    std::string args;
    for (size_t i = 0; i < f.arguments.size(); ++i)
      args += fmt::format("{}{} a{}", i ? ", " : "", type_name(f.arguments[i].dtype), i);
    // A prototype: compilers warn of functions without one.
    line("{} {}_{}({});", type(f.result), p_.name, f.name, args);
    line("{} {}_{}({}) {{", type(f.result), p_.name, f.name, args);
    ++depth_;
    registers(f.body);
    block(f.body);
    line("return {};", ref(f.result));
    --depth_;
    line("}}");
  }

  void kernel() {
    std::string args;
    for (size_t i = 0; i < p_.params.size(); ++i)
      args +=
          fmt::format("{}__global {}{}* restrict p{}", i ? ", " : "",
                      p_.params[i].is_written ? "" : "const ", type_name(p_.params[i].dtype), i);
    for (uint32_t i = 0; i < p_.num_vars; ++i)
      args += fmt::format("{}long var{}", args.empty() ? "" : ", ", i);
    line("__kernel __attribute__((reqd_work_group_size({}, 1, 1)))", p_.block);
    line("void {}({}) {{", p_.name, args);
    ++depth_;
    for (size_t i = 0; i < p_.locals.size(); ++i)
      line("__local {} local{}[{}];", type_name(p_.locals[i].dtype), i, p_.locals[i].count);
    line("const long item = (long)get_local_id(0);");
    registers(p_.root);
    block(p_.root);
    --depth_;
    line("}}");
  }

  void block(BlockId id) {
    for (const Stmt& s : p_.blocks[id].stmts) statement(s);
  }

  void nested(BlockId body) {
    ++depth_;
    block(body);
    --depth_;
    line("}}");
  }

  void statement(const Stmt& s) {
    switch (s.kind) {
      case StmtKind::kLet: return let(s.value);
      case StmtKind::kLoop: return loop(s);
      case StmtKind::kIf: line("if ({}) {{", ref(s.value)); return nested(s.body);
      case StmtKind::kAssign: return line("r{} = {};", s.target, ref(s.value));
      case StmtKind::kStore:
        return line("{}p{}[{}] = {};",
                    s.end == kNone ? std::string() : fmt::format("if ({}) ", ref(s.end)), s.target,
                    ref(s.begin), ref(s.value));
      case StmtKind::kPrefetch: return;
      case StmtKind::kLocalStore:
        return line("local{}[{}] = {};", s.target, ref(s.begin), ref(s.value));
      case StmtKind::kBarrier: return line("barrier(CLK_LOCAL_MEM_FENCE);");
    }
  }

  void loop(const Stmt& s) {
    switch (s.loop) {
      case LoopKind::kGrid: break;
      case LoopKind::kSerial:
        line("for (long v{} = {}; v{} < {}; v{} += {}) {{", s.value, ref(s.begin), s.value,
             ref(s.end), s.value, s.step);
        return nested(s.body);
      case LoopKind::kGroup:
        line("const long v{} = (long)get_group_id({});", s.value, s.axis);
        return guarded(s);
      case LoopKind::kItem: return items(s);
    }
  }

  /// The body, if the index is below the end.
  void guarded(const Stmt& s) {
    if (s.end == kNone)
      line("{{");
    else
      line("if (v{} < {}) {{", s.value, ref(s.end));
    nested(s.body);
  }

  void items(const Stmt& s) {
    const Value& begin = p_.at(s.begin);
    const bool is_zero = begin.op == ValueOp::kConst && begin.imm == 0;
    const std::string first = is_zero ? "item" : ref(s.begin) + " + item";
    if (s.trips == 1) {
      line("const long v{} = {};", s.value, first);
      return guarded(s);
    }
    if (s.trips == 0) {
      line("for (long v{} = {}; v{} < {}; v{} += {}) {{", s.value, first, s.value, ref(s.end),
           s.value, p_.block);
      return nested(s.body);
    }
    line("for (int t = 0; t < {}; ++t) {{", s.trips);
    line("  const long v{} = {} + (long)t * {};", s.value, first, p_.block);
    if (s.end != kNone) line("  if (v{} >= {}) break;", s.value, ref(s.end));
    nested(s.body);
  }

  void let(ValueId id) {
    const Value& v = p_.at(id);
    const auto set = [&](const std::string& text) {
      line("const {} v{} = {};", type(id), id, text);
    };
    switch (v.op) {
      case ValueOp::kConst:
      case ValueOp::kArgument:
      case ValueOp::kVar:
      case ValueOp::kItem:
      case ValueOp::kIndex: return;
      case ValueOp::kLoad: return set(load(v));
      case ValueOp::kTable:
        return set(fmt::format("{}_table{}[{}]", p_.name, v.imm, ref(v.args[0])));
      case ValueOp::kLocalLoad: return set(fmt::format("local{}[{}]", v.imm, ref(v.args[0])));
      case ValueOp::kRead: return set(fmt::format("r{}", v.imm));
      case ValueOp::kCall: {
        std::string args;
        for (ValueId a : v.args) args += (args.empty() ? "" : ", ") + ref(a);
        return set(
            fmt::format("{}_{}({})", p_.name, p_.functions[static_cast<size_t>(v.imm)].name, args));
      }
      case ValueOp::kConvert: return set(convert(v));
      case ValueOp::kAlu: return set(alu(v));
      case ValueOp::kIota:
      case ValueOp::kSplat:
      case ValueOp::kExtract:
      case ValueOp::kBuild:
      case ValueOp::kInsert:
      case ValueOp::kHalf:
      case ValueOp::kReverse:
      case ValueOp::kInterleave:
      case ValueOp::kAny: break;
    }
    check_failed("vectors are not for work-items", __FILE__, __LINE__);
  }

  std::string load(const Value& v) const {
    const std::string_view not_zero = is_bool(v.type.dtype) ? " != 0" : "";
    const std::string one = fmt::format("p{}[{}]{}", v.imm, ref(v.args[0]), not_zero);
    if (v.args.size() == 1) return one;
    return fmt::format("{} ? ({})({}) : ({})0", ref(v.args[1]), type_name(v.type.dtype), one,
                       type_name(v.type.dtype));
  }

  std::string convert(const Value& v) const {
    const DType from = p_.type(v.args[0]).dtype, to = v.type.dtype;
    const std::string a = ref(v.args[0]);
    if (from == DType::kF16) return fmt::format("convert_float(as_half({}))", a);
    if (to == DType::kF16) return fmt::format("as_ushort(convert_half_rte({}))", a);
    return fmt::format("({}){}", type_name(to), a);
  }

  /// Unsigned type in which an operation of `t` wraps: signed overflow is undefined, and narrow
  /// operands are promoted to int first.
  static std::string_view wrapping_type(DType t) { return item_size(t) == 8 ? "ulong" : "uint"; }

  std::string alu(const Value& v) const {
    const DType in = p_.type(v.args[0]).dtype;
    const std::string_view t = type_name(v.type.dtype);
    const std::string a = ref(v.args[0]);
    const std::string b = v.args.size() > 1 ? ref(v.args[1]) : "";
    const auto binary = [&](std::string_view op) {
      return fmt::format("({})({} {} {})", t, a, op, b);
    };
    const auto wrapping = [&](std::string_view op) {
      if (is_float(in)) return binary(op);
      const std::string_view u = wrapping_type(in);
      return fmt::format("({})(({}){} {} ({}){})", t, u, a, op, u, b);
    };
    switch (v.alu) {
      case Op::kNeg: return fmt::format("-{}", a);
      case Op::kSqrt: return fmt::format("sqrt({})", a);
      case Op::kTrunc: return fmt::format("trunc({})", a);
      case Op::kFma: return fmt::format("fma({}, {}, {})", a, b, ref(v.args[2]));
      case Op::kNot:
        return is_bool(in) ? fmt::format("({})({} ^ 1)", t, a) : fmt::format("({})~{}", t, a);
      case Op::kBitcast: return fmt::format("as_{}({})", t, a);
      case Op::kAdd: return wrapping("+");
      case Op::kSub: return wrapping("-");
      case Op::kMul: return wrapping("*");
      case Op::kShl: return wrapping("<<");
      case Op::kDiv: return binary("/");
      case Op::kMod: return binary("%");
      case Op::kAnd: return binary("&");
      case Op::kOr: return binary("|");
      case Op::kXor: return binary("^");
      case Op::kShr: return binary(">>");
      case Op::kLt: return fmt::format("{} < {}", a, b);
      case Op::kEq: return fmt::format("{} == {}", a, b);
      case Op::kNe: return fmt::format("{} != {}", a, b);
      case Op::kSelect: return fmt::format("{} ? {} : {}", a, b, ref(v.args[2]));
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
  std::string out_;
  int depth_ = 0;
};

}  // namespace

std::string render_opencl(const Program& program) { return OpenClRenderer(program).run(); }

}  // namespace bm::compiler
