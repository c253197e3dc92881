// CUDA C++ for NVRTC; needs no header.
#include <cmath>
#include <set>

#include "compiler/codegen/narrow.h"
#include "compiler/render/render.h"
#include "compiler/render/render_work_items.h"
#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

class CudaRenderer final : public WorkItemC {
 public:
  explicit CudaRenderer(const Program& p) : WorkItemC(p), narrow_(narrow_values(p)) {}

  std::string run() {
    half_conversions();
    word_loads();
    dots();
    for (size_t i = 0; i < p_.tables.size(); ++i) table(i);
    // Calls would need a stack.
    for (const Function& f : p_.functions) helper(f, "static __device__ __forceinline__ ", false);
    kernel();
    return std::move(out_);
  }

 private:
  bool is_narrow(ValueId v) const override { return narrow_[v]; }

  std::string_view type_name(DType t) const override {
    switch (t) {
      case DType::kBool:
      case DType::kU8: return "unsigned char";
      case DType::kI8: return "signed char";
      case DType::kI16: return "short";
      case DType::kF16:
      case DType::kBF16:
      case DType::kU16: return "unsigned short";
      case DType::kI32: return "int";
      case DType::kU32: return "unsigned";
      case DType::kI64: return "long";
      case DType::kU64: return "unsigned long";
      case DType::kF32: return "float";
      case DType::kF64: return "double";
    }
    return "?";
  }

  std::string literal(DType t, int64_t imm) const override {
    if (!is_float(t)) return integer_literal(t, imm);
    const double v = std::bit_cast<double>(imm);
    if (t == DType::kF16) return fmt::format("{}", f32_to_f16(static_cast<float>(v)));
    if (t == DType::kBF16) return fmt::format("{}", f32_to_bf16(static_cast<float>(v)));
    if (t == DType::kF32)
      return std::isfinite(v) ? fmt::format("({:a}f)", v)
                              : fmt::format("__uint_as_float({}u)",
                                            std::bit_cast<uint32_t>(static_cast<float>(v)));
    return std::isfinite(v) ? fmt::format("({:a})", v)
                            : fmt::format("__longlong_as_double({}l)", imm);
  }

  std::string pointer(size_t param) const override {
    return fmt::format("{}{}* __restrict__", p_.params[param].is_written ? "" : "const ",
                       type_name(p_.params[param].dtype));
  }
  std::string group_number(uint32_t axis) const override {
    return fmt::format("blockIdx.{}", "xyz"[axis]);
  }
  std::string half_to_float(const std::string& bits) const override {
    return fmt::format("bm_half_to_float({})", bits);
  }
  std::string float_to_half(const std::string& value) const override {
    return fmt::format("bm_float_to_half({})", value);
  }
  std::string reinterpret(DType to, DType from, const std::string& a) const override {
    const std::string_view t = type_name(to);
    if (from == DType::kF32) return fmt::format("({})__float_as_uint({})", t, a);
    if (to == DType::kF32) return fmt::format("__uint_as_float((unsigned){})", a);
    if (from == DType::kF64) return fmt::format("({})__double_as_longlong({})", t, a);
    if (to == DType::kF64) return fmt::format("__longlong_as_double((long){})", a);
    return fmt::format("({}){}", t, a);
  }
  std::string function(std::string_view name, DType t) const override {
    const bool is_f32 = t == DType::kF32;
    if (name == "sqrt") return is_f32 ? "__fsqrt_rn" : "__dsqrt_rn";
    if (name == "fma") return is_f32 ? "__fmaf_rn" : "__fma_rn";
    return is_f32 ? "truncf" : "trunc";
  }
  void barrier() override { line("__syncthreads();"); }

  static std::string_view vector_name(uint32_t words) {
    return words == 1 ? "unsigned" : words == 2 ? "uint2" : "uint4";
  }
  std::string_view vector_type(Type t) const override { return vector_name(t.lanes); }

  std::string words(const Value& v) override {
    if (v.op == ValueOp::kIsAligned) return fmt::format("((unsigned long)p{} & 15) == 0", v.imm);
    const std::string at = fmt::format("p{} + {}", v.imm, ref(v.args[0]));
    if (v.op == ValueOp::kWords)
      return fmt::format("*(const {}*)({})", vector_name(v.type.lanes), at);
    return fmt::format("bm_words{}({})", v.type.lanes, at);
  }

  /// The toolkit's function has no operands of different signs.
  void dots() {
    std::set<DotKind> wanted;
    for (const Value& v : p_.values)
      if (v.op == ValueOp::kDot && wanted.insert(static_cast<DotKind>(v.imm)).second) {
        line("static __device__ __forceinline__ int {}(int sum, unsigned a, unsigned b) {{",
             dot_name(v));
        line("  int out;");
        line("  asm(\"{} %0, %1, %2, %3;\" : \"=r\"(out) : \"r\"(a), \"r\"(b), \"r\"(sum));",
             dp4a_name(v));
        line("  return out;");
        line("}}");
      }
  }
  static std::string_view dot_name(const Value& v) {
    return static_cast<DotKind>(v.imm) == DotKind::kS8S8 ? "bm_dot_s8s8" : "bm_dot_u8s8";
  }
  std::string dot(const Value& v) override {
    return fmt::format("{}({})", dot_name(v), arguments(v));
  }

  /// Words at any address are put together from elements.
  void word_loads() {
    std::set<std::pair<uint32_t, DType>> wanted;
    for (const Value& v : p_.values)
      if (v.op == ValueOp::kAnyWords)
        wanted.insert({v.type.lanes, p_.params[static_cast<size_t>(v.imm)].dtype});
    for (const auto& [lanes, t] : wanted) {
      const int64_t size = item_size(t), per_word = 4 / size;
      const std::string_view vector = vector_name(lanes);
      line("static __device__ __forceinline__ {} bm_words{}(const {}* p) {{", vector, lanes,
           type_name(t));
      line("  {} w;", vector);
      for (uint32_t l = 0; l < lanes; ++l) {
        std::string word;
        for (int64_t i = 0; i < per_word; ++i) {
          const auto at = static_cast<int64_t>(l) * per_word + i;
          const std::string bits = t == DType::kF32
                                       ? fmt::format("__float_as_uint(p[{}])", at)
                                       : fmt::format("((unsigned)(p[{}] & {}) << {})", at,
                                                     (1 << (8 * size)) - 1, 8 * size * i);
          word += (word.empty() ? "" : " | ") + bits;
        }
        line("  w{}{} = {};", lanes > 1 ? "." : "", lanes > 1 ? std::string(1, "xyzw"[l]) : "",
             word);
      }
      line("  return w;");
      line("}}");
    }
  }

  void matrix(const Stmt& s) override {
    const bool is_float_sum = is_float(s.matrix);
    std::string text = fmt::format("asm volatile(\"{} {{%0, %1, %2, %3}}, ", mma_name(s));
    const size_t a = s.operands.size() * 2 / 3;
    const auto list = [](size_t first, size_t count) {
      std::string out;
      for (size_t i = first; i < first + count; ++i)
        out += fmt::format("{}%{}", out.empty() ? "" : ", ", i);
      return "{" + out + "}";
    };
    text += list(4, a) + ", " + list(4 + a, s.operands.size() - a) + ", {%0, %1, %2, %3};\" : ";
    for (uint32_t r = 0; r < 4; ++r)
      text += fmt::format("{}\"+{}\"(r{})", r ? ", " : "", is_float_sum ? "f" : "r", s.target + r);
    text += " : ";
    for (size_t i = 0; i < s.operands.size(); ++i)
      text += fmt::format("{}\"r\"({})", i ? ", " : "", ref(s.operands[i]));
    line("{});", text);
  }

  /// The types of cuda_fp16.h are not needed for two conversions.
  void half_conversions() {
    bool widens = false, narrows = false;
    for (const Value& v : p_.values) {
      if (v.op != ValueOp::kConvert) continue;
      widens = widens || p_.type(v.args[0]).dtype == DType::kF16;
      narrows = narrows || v.type.dtype == DType::kF16;
    }
    if (widens) {
      line("static __device__ __forceinline__ float bm_half_to_float(unsigned short a) {{");
      line("  float f;");
      line("  asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(a));");
      line("  return f;");
      line("}}");
    }
    if (narrows) {
      line("static __device__ __forceinline__ unsigned short bm_float_to_half(float a) {{");
      line("  unsigned short h;");
      line("  asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(a));");
      line("  return h;");
      line("}}");
    }
  }

  /// A table is short: its entries are chosen among, so that the kernel needs no data of its own.
  void table(size_t number) {
    line("static __device__ __forceinline__ unsigned long {}_table{}(long i) {{", p_.name, number);
    const std::vector<uint64_t>& words = p_.tables[number];
    line("  unsigned long w = {}ul;", words[0]);
    for (size_t i = 1; i < words.size(); ++i) line("  w = i == {} ? {}ul : w;", i, words[i]);
    line("  return w;");
    line("}}");
  }
  std::string entry(size_t table, const std::string& index) const override {
    return fmt::format("{}_table{}({})", p_.name, table, index);
  }

  void kernel() {
    line("extern \"C\" __global__ void __launch_bounds__({})", p_.block);
    line("{}({}) {{", p_.name, parameters());
    ++depth_;
    local_arrays("__shared__ __align__(16)");
    line("const int item = (int)threadIdx.x;");
    registers(p_.root);
    block(p_.root);
    --depth_;
    line("}}");
  }

  const std::vector<bool> narrow_;
};

}  // namespace

std::string render_cuda(const Program& program) { return CudaRenderer(program).run(); }

}  // namespace bm::compiler
