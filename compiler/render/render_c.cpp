#include <cmath>
#include <set>

#include "compiler/render/c_like.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

/// bool is a byte of 0 or 1, also in vectors; 16-bit floats travel as unsigned short.
struct CType {
  std::string_view tag, name;
};
CType c_type(DType t) {
  switch (t) {
    case DType::kBool: return {"b8", "unsigned char"};
    case DType::kI8: return {"i8", "signed char"};
    case DType::kU8: return {"u8", "unsigned char"};
    case DType::kI16: return {"i16", "short"};
    case DType::kU16: return {"u16", "unsigned short"};
    case DType::kI32: return {"i32", "int"};
    case DType::kU32: return {"u32", "unsigned"};
    case DType::kI64: return {"i64", "long"};
    case DType::kU64: return {"u64", "unsigned long"};
    case DType::kF16:
    case DType::kBF16: return {"h16", "unsigned short"};
    case DType::kF32: return {"f32", "float"};
    case DType::kF64: return {"f64", "double"};
  }
  return {"?", "?"};
}

/// Signed integer as wide as `t`, for masks.
DType mask_type(DType t) {
  switch (item_size(t)) {
    case 1: return DType::kI8;
    case 2: return DType::kI16;
    case 4: return DType::kI32;
    default: return DType::kI64;
  }
}

class CRenderer final : public CLike {
 public:
  explicit CRenderer(const Program& p) : CLike(p) {}

  std::string run() {
    for (const Function& f : p_.functions) helper(f, "static __attribute__((noinline)) ", false);
    kernel();
    entry();
    // As the LLVM renderer: once widened, float16 values stay so.
    std::string text =
        "typedef _Float16 half;\n#if defined(__x86_64__)\n#define BM_WIDE(v) "
        "__arithmetic_fence(v)\n#else\n#define BM_WIDE(v) (v)\n#endif\n";
    for (const auto& [lanes, tag, name] : vectors_)
      text += fmt::format("typedef {} {}x{} __attribute__((vector_size(sizeof({}) * {})));\n", name,
                          tag, lanes, name, lanes);
    for (size_t i = 0; i < p_.tables.size(); ++i) {
      text += fmt::format("static const unsigned long {}_table{}[] = {{", p_.name, i);
      for (uint64_t w : p_.tables[i]) text += fmt::format("{}ul, ", w);
      text += "};\n";
    }
    if (!p_.faults.empty()) text += "_Noreturn void bm_kernel_fault(const char*, long);\n";
    return text + out_;
  }

 private:
  std::string type(Type t) override {
    const CType c = c_type(t.dtype);
    if (t.lanes == 1) return std::string(c.name);
    return vector(c, t.lanes);
  }
  std::string vector(CType c, uint32_t lanes) {
    vectors_.insert({lanes, std::string(c.tag), std::string(c.name)});
    return fmt::format("{}x{}", c.tag, lanes);
  }
  std::string half_vector(uint32_t lanes) { return vector({"half", "half"}, lanes); }

  static std::string scalar_literal(DType t, int64_t imm) {
    if (!is_float(t)) return integer_literal(t, imm);
    const double v = std::bit_cast<double>(imm);
    if (t == DType::kF16) return fmt::format("{}", f32_to_f16(static_cast<float>(v)));
    if (t == DType::kBF16) return fmt::format("{}", f32_to_bf16(static_cast<float>(v)));
    const std::string_view f = t == DType::kF32 ? "f" : "";
    if (std::isnan(v)) return fmt::format("__builtin_nan{}(\"\")", f);
    if (std::isinf(v)) return fmt::format("({}__builtin_inf{}())", v < 0 ? "-" : "", f);
    return fmt::format("{:a}{}", v, f);
  }

  std::string list(Type t, const std::string& item) {
    std::string s = fmt::format("({}){{", type(t));
    for (uint32_t i = 0; i < t.lanes; ++i) s += (i ? ", " : "") + item;
    return s + "}";
  }

  std::string ref(ValueId id) override {
    const Value& v = p_.at(id);
    if (v.op == ValueOp::kConst) {
      const std::string one = scalar_literal(v.type.dtype, v.imm);
      return v.type.lanes == 1 ? fmt::format("({}){}", type(v.type), one) : list(v.type, one);
    }
    if (v.op == ValueOp::kArgument)
      return v.imm == -2 ? "block_begin" : v.imm == -1 ? "block_end" : fmt::format("a{}", v.imm);
    if (v.op == ValueOp::kVar) return fmt::format("var{}", v.imm);
    if (v.op == ValueOp::kIota) {
      std::string s = fmt::format("({}){{", type(v.type));
      for (uint32_t i = 0; i < v.type.lanes; ++i)
        s += fmt::format("{}{}l", i ? ", " : "", v.imm * i);
      return s + "}";
    }
    return fmt::format("v{}", id);
  }

  void kernel() {
    std::string args;
    for (size_t i = 0; i < p_.params.size(); ++i)
      args += fmt::format("{}{}* restrict p{}, ", p_.params[i].is_written ? "" : "const ",
                          c_type(p_.params[i].dtype).name, i);
    for (uint32_t i = 0; i < p_.num_vars; ++i) args += fmt::format("long var{}, ", i);
    for (size_t i = 0; i < p_.locals.size(); ++i)
      args += fmt::format("{}* restrict local{}, ", c_type(p_.locals[i].dtype).name, i);
    line("static void {}_blocks({}unsigned long block_begin, unsigned long block_end) {{", p_.name,
         args);
    ++depth_;
    registers(p_.root);
    block(p_.root);
    if (has_streams_) line("__builtin_ia32_sfence();");
    --depth_;
    line("}}");
  }

  void entry() {
    line(
        "void {}(const unsigned long* args, unsigned long block_begin, unsigned long block_end, "
        "void* scratch) {{",
        p_.name);
    std::string pass;
    for (size_t i = 0; i < p_.params.size(); ++i)
      pass += fmt::format("({}{}*)args[{}], ", p_.params[i].is_written ? "" : "const ",
                          c_type(p_.params[i].dtype).name, i);
    for (uint32_t i = 0; i < p_.num_vars; ++i)
      pass += fmt::format("(long)args[{}], ", p_.params.size() + i);
    for (size_t i = 0; i < p_.locals.size(); ++i)
      pass += fmt::format("({}*)((char*)scratch + {}), ", c_type(p_.locals[i].dtype).name,
                          scratch_offset(p_, i));
    line("  {}_blocks({}block_begin, block_end);", p_.name, pass);
    line("}}");
  }

  void partitioned_loop(const Stmt&) override { no_groups(); }
  void local_store(const Stmt& s) override {
    const Type t = p_.type(s.value);
    if (t.lanes == 1) return line("local{}[{}] = {};", s.target, ref(s.begin), ref(s.value));
    line("{{ {} t = {}; __builtin_memcpy(local{} + {}, &t, sizeof t); }}", type(t), ref(s.value),
         s.target, ref(s.begin));
  }
  void barrier() override { no_groups(); }
  void matrix(const Stmt&) override { no_groups(); }
  void fault(const Stmt& s) override {
    line("bm_kernel_fault(\"{}\", {});", p_.faults[s.target], ref(s.begin));
  }
  [[noreturn]] static void no_groups() {
    check_failed("no work-groups on a CPU", __FILE__, __LINE__);
  }

  void prefetch(const Stmt& s) override {
    line("__builtin_prefetch({}{} + {}, 0, {});", s.is_local ? "local" : "p", s.target,
         ref(s.begin), s.is_streamed ? 2 : 3);
  }

  void store(const Stmt& s) override {
    const Type t = p_.type(s.value);
    const bool has_mask = s.end != kNone && p_.type(s.end).lanes > 1;
    std::string text;
    if (t.lanes == 1)
      text = fmt::format("p{}[{}] = {};", s.target, ref(s.begin), ref(s.value));
    else
      text = fmt::format("{{ {} t = {}; __builtin_memcpy(p{} + {}, &t, sizeof t); }}", type(t),
                         ref(s.value), s.target, ref(s.begin));
    if (s.is_streamed) {
      has_streams_ = true;
      return line(
          "{{ {0} t = {1}; if (((unsigned long)(p{2} + {3}) & {4}) == 0) "
          "__builtin_nontemporal_store(t, ({0}*)(p{2} + {3})); else "
          "__builtin_memcpy(p{2} + {3}, &t, sizeof t); }}",
          type(t), ref(s.value), s.target, ref(s.begin), t.lanes * item_size(t.dtype) - 1);
    }
    if (s.end == kNone) return line("{}", text);
    if (!has_mask) return line("if ({}) {}", ref(s.end), text);
    line("if (__builtin_reduce_and({})) {}", ref(s.end), text);
    line("else for (int l = 0; l < {}; ++l) if ({}[l]) p{}[{} + l] = {}[l];", t.lanes, ref(s.end),
         s.target, ref(s.begin), ref(s.value));
  }

  void load(ValueId id, const Value& v) {
    const std::string t = type(v.type), at = ref(v.args[0]);
    const bool is_bool_type = is_bool(v.type.dtype);
    if (v.type.lanes == 1) {
      const std::string one = fmt::format("p{}[{}]{}", v.imm, at, is_bool_type ? " != 0" : "");
      if (v.args.size() == 1) return line("{} v{} = {};", t, id, one);
      return line("{} v{} = {} ? ({}){} : 0;", t, id, ref(v.args[1]), t, one);
    }
    const std::string copy =
        fmt::format("__builtin_memcpy(&v{}, p{} + {}, sizeof v{});", id, v.imm, at, id);
    if (v.args.size() == 1) {
      line("{} v{}; {}", t, id, copy);
    } else if (p_.type(v.args[1]).lanes == 1) {
      line("{} v{} = {{0}}; if ({}) {}", t, id, ref(v.args[1]), copy);
    } else {
      line("{} v{} = {{0}}; if (__builtin_reduce_and({})) {}", t, id, ref(v.args[1]), copy);
      line("else for (int l = 0; l < {}; ++l) if ({}[l]) v{}[l] = p{}[{} + l];", v.type.lanes,
           ref(v.args[1]), id, v.imm, at);
    }
    if (is_bool_type) line("v{} = ({})(v{} != 0) & 1;", id, t, id);
  }

  void let(ValueId id) override {
    const Value& v = p_.at(id);
    const auto set = [&](const std::string& text) { line("{} v{} = {};", type(v.type), id, text); };
    switch (v.op) {
      case ValueOp::kConst:
      case ValueOp::kArgument:
      case ValueOp::kVar:
      case ValueOp::kIndex:
      case ValueOp::kIota: return;
      case ValueOp::kSplat: return set(list(v.type, ref(v.args[0])));
      case ValueOp::kExtract: return set(fmt::format("{}[{}]", ref(v.args[0]), v.imm));
      case ValueOp::kInsert:
        set(ref(v.args[0]));
        return line("v{}[{}] = {};", id, v.imm, ref(v.args[1]));
      case ValueOp::kBuild: return set(fmt::format("({}){{{}}}", type(v.type), arguments(v)));
      case ValueOp::kHalf: {
        if (v.type.lanes == 1) return set(fmt::format("{}[{}]", ref(v.args[0]), v.imm));
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i)
          lanes += fmt::format(", {}", static_cast<int64_t>(i) + v.imm * v.type.lanes);
        return set(fmt::format("__builtin_shufflevector({}, {}{})", ref(v.args[0]), ref(v.args[0]),
                               lanes));
      }
      case ValueOp::kReverse: {
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i)
          lanes += fmt::format(", {}", v.type.lanes - 1 - i);
        return set(fmt::format("__builtin_shufflevector({}, {}{})", ref(v.args[0]), ref(v.args[0]),
                               lanes));
      }
      case ValueOp::kDeinterleave: {
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i) lanes += fmt::format(", {}", 2 * i + v.imm);
        return set(fmt::format("__builtin_shufflevector({}{})", arguments(v), lanes));
      }
      case ValueOp::kConcatShift: {
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i) lanes += fmt::format(", {}", i + v.imm);
        return set(fmt::format("__builtin_shufflevector({}{})", arguments(v), lanes));
      }
      case ValueOp::kInterleave: {
        std::string lanes;
        for (uint32_t i = 0; i < v.type.lanes; ++i)
          lanes += fmt::format(", {}",
                               i / 2 + (v.imm ? v.type.lanes / 2 : 0) + (i % 2 ? v.type.lanes : 0));
        return set(fmt::format("__builtin_shufflevector({}{})", arguments(v), lanes));
      }
      case ValueOp::kLoad: return load(id, v);
      case ValueOp::kTable:
        return set(fmt::format("{}_table{}[{}]", p_.name, v.imm, ref(v.args[0])));
      case ValueOp::kWords:
      case ValueOp::kUnalignedWords:
        return line("{} v{}; __builtin_memcpy(&v{}, p{} + {}, sizeof v{});", type(v.type), id, id,
                    v.imm, ref(v.args[0]), id);
      case ValueOp::kDot: return set(dot(v));
      case ValueOp::kFragment:
      case ValueOp::kShuffle:
      case ValueOp::kPackHalf2:
      case ValueOp::kDequantise2:
      case ValueOp::kExp2:
      case ValueOp::kRoundTf32:
      case ValueOp::kIsAligned:
      case ValueOp::kItem: no_groups();
      case ValueOp::kLocalLoad:
        if (v.type == Type{p_.locals[static_cast<size_t>(v.imm)].dtype, 1})
          return set(fmt::format("local{}[{}]", v.imm, ref(v.args[0])));
        return line("{} v{}; __builtin_memcpy(&v{}, local{} + {}, sizeof v{});", type(v.type), id,
                    id, v.imm, ref(v.args[0]), id);
      case ValueOp::kRead: return set(fmt::format("r{}", v.imm));
      case ValueOp::kCall: return set(call(v));
      case ValueOp::kLdexp: return set(scale(v));
      case ValueOp::kLookup: return set(lookup(v));
      case ValueOp::kAny: return set(fmt::format("__builtin_reduce_or({}) != 0", ref(v.args[0])));
      case ValueOp::kConvert: return set(convert(v));
      case ValueOp::kAlu: return set(alu(v));
    }
  }

  /// Builtins of clang; operands in the types they ask for.
  std::string dot(const Value& v) {
    const uint32_t bits = v.type.lanes * 32;
    const std::string acc = ref(v.args[0]), a = ref(v.args[1]), b = ref(v.args[2]),
                      t = type(v.type);
    switch (static_cast<DotKind>(v.imm)) {
      case DotKind::kU8S8:
        return fmt::format("__builtin_ia32_vpdpbusd{}({}, ({}){}, ({}){})", bits, acc, t, a, t, b);
      case DotKind::kS8S8: break;
      case DotKind::kS16S16: {
        const std::string w = type({DType::kI16, bits / 16});
        return fmt::format("{} + __builtin_ia32_pmaddwd{}(({}){}, ({}){})", acc, bits, w, a, w, b);
      }
      case DotKind::kBF16BF16: {
        const std::string w = vector({"brain", "__bf16"}, bits / 16);
        return fmt::format("__builtin_ia32_dpbf16ps_{}({}, ({}){}, ({}){})", bits, acc, w, a, w, b);
      }
    }
    check_failed("no such dot product", __FILE__, __LINE__);
  }

  std::string scale(const Value& v) {
    const auto bits = v.type.lanes * static_cast<uint32_t>(item_size(v.type.dtype)) * 8;
    return fmt::format("__builtin_ia32_scalefp{}{}_mask({}, {}, ({}){{0}}, -1{})",
                       v.type.dtype == DType::kF32 ? "s" : "d", bits, ref(v.args[0]),
                       ref(v.args[1]), type(v.type), bits == 512 ? ", 4" : "");
  }

  std::string lookup(const Value& v) {
    const uint32_t bits = v.type.lanes * 32;
    const std::string bytes = type({DType::kI8, bits / 8});
    std::string table;
    for (uint32_t i = 0; i < bits / 8; ++i)
      table += fmt::format(
          "{}, ",
          static_cast<int8_t>(p_.tables[static_cast<size_t>(v.imm)][i % 16 / 8] >> 8 * (i % 8)));
    return fmt::format("({})__builtin_ia32_pshufb{}(({}){{{}}}, ({}){})", type(v.type), bits, bytes,
                       table, bytes, ref(v.args[0]));
  }

  std::string convert(const Value& v) {
    const DType from = p_.type(v.args[0]).dtype, to = v.type.dtype;
    const std::string a = ref(v.args[0]), t = type(v.type);
    const uint32_t lanes = v.type.lanes;
    if (lanes == 1) {
      if (from == DType::kF16)
        return fmt::format("BM_WIDE((float)((union {{ unsigned short a; half b; }}){{.a = {}}}).b)",
                           a);
      if (to == DType::kF16)
        return fmt::format("((union {{ half a; unsigned short b; }}){{.a = (half){}}}).b", a);
      return fmt::format("({}){}", t, a);
    }
    if (from == DType::kF16)
      return fmt::format("BM_WIDE(__builtin_convertvector(({}){}, {}))", half_vector(lanes), a, t);
    if (to == DType::kF16)
      return fmt::format("({})__builtin_convertvector({}, {})", t, a, half_vector(lanes));
    return fmt::format("__builtin_convertvector({}, {})", a, t);
  }

  std::string alu(const Value& v) {
    const Type in = p_.type(v.args[0]);
    const bool is_vector = v.type.lanes > 1;
    const std::string t = type(v.type), a = ref(v.args[0]);
    const std::string b = v.args.size() > 1 ? ref(v.args[1]) : "";
    const auto binary = [&](std::string_view op) {
      return fmt::format("({})({} {} {})", t, a, op, b);
    };
    const auto compare = [&](std::string_view op) {
      if (!is_vector) return fmt::format("{} {} {}", a, op, b);
      return fmt::format("__builtin_convertvector({} {} {}, {}) & 1", a, op, b, t);
    };
    const auto builtin = [&](std::string_view name) {
      std::string args = a;
      for (size_t i = 1; i < v.args.size(); ++i) args += ", " + ref(v.args[i]);
      if (is_vector) return fmt::format("__builtin_elementwise_{}({})", name, args);
      return fmt::format("__builtin_{}{}({})", name, v.type.dtype == DType::kF32 ? "f" : "", args);
    };
    switch (v.alu) {
      case Op::kNeg: return fmt::format("-{}", a);
      case Op::kSqrt: return builtin("sqrt");
      case Op::kTrunc: return builtin("trunc");
      case Op::kFma: return builtin("fma");
      case Op::kNot:
        return is_bool(in.dtype) ? fmt::format("({})({} ^ 1)", t, a) : fmt::format("({})~{}", t, a);
      case Op::kBitcast:
        if (is_vector) return fmt::format("({}){}", t, a);
        return fmt::format("((union {{ {} a; {} b; }}){{.a = {}}}).b", type(in), t, a);
      case Op::kAdd: return binary("+");
      case Op::kSub: return binary("-");
      case Op::kMul: return binary("*");
      case Op::kDiv: return binary("/");
      case Op::kMod: return binary("%");
      case Op::kAnd: return binary("&");
      case Op::kOr: return binary("|");
      case Op::kXor: return binary("^");
      case Op::kShl: return binary("<<");
      case Op::kShr: return binary(">>");
      case Op::kLt: return compare("<");
      case Op::kEq: return compare("==");
      case Op::kNe: return compare("!=");
      case Op::kSelect: {
        const std::string c = ref(v.args[2]);
        if (!is_vector) return fmt::format("{} ? {} : {}", a, b, c);
        const std::string m = type({mask_type(v.type.dtype), v.type.lanes});
        const std::string mask = fmt::format("(-__builtin_convertvector({}, {}))", a, m);
        return fmt::format("({})((({}){} & {}) | (({}){} & ~{}))", t, m, b, mask, m, c, mask);
      }
      default: break;  // legalize() leaves no other
    }
    check_failed("operation was not legalised", __FILE__, __LINE__);
  }

  std::set<std::tuple<uint32_t, std::string, std::string>> vectors_;
  bool has_streams_ = false;
};

}  // namespace

std::string render_c(const Program& program, const TargetInfo&) { return CRenderer(program).run(); }

}  // namespace bm::compiler
