// HIP C++ for AMD's code object manager; needs no header and no library.
#include <bit>
#include <cmath>
#include <set>

#include "compiler/codegen/narrow.h"
#include "compiler/render/render.h"
#include "compiler/render/render_work_items.h"
#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::compiler {
namespace {

class HipRenderer final : public WorkItemC {
 public:
  HipRenderer(const Program& p, const TargetInfo& target)
      : WorkItemC(p), target_(target), narrow_(narrow_values(p)) {}

  std::string run() {
    line("#define BM_DEVICE static __attribute__((device, always_inline))");
    line("typedef unsigned bm_word2 __attribute__((ext_vector_type(2)));");
    line("typedef unsigned bm_word4 __attribute__((ext_vector_type(4)));");
    line("BM_DEVICE float bm_half_to_float(unsigned short a) {{");
    line("  return (float)__builtin_bit_cast(_Float16, a);");
    line("}}");
    line("BM_DEVICE unsigned short bm_float_to_half(float a) {{");
    line("  return __builtin_bit_cast(unsigned short, (_Float16)a);");
    line("}}");
    word_loads();
    for (size_t i = 0; i < p_.tables.size(); ++i) table(i);
    for (const Function& f : p_.functions) helper(f, "BM_DEVICE ", false);
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
                              : fmt::format("__builtin_bit_cast(float, {}u)",
                                            std::bit_cast<uint32_t>(static_cast<float>(v)));
    return std::isfinite(v) ? fmt::format("({:a})", v)
                            : fmt::format("__builtin_bit_cast(double, {}l)", imm);
  }

  std::string pointer(size_t param) const override {
    return fmt::format("{}{}* __restrict__", p_.params[param].is_written ? "" : "const ",
                       type_name(p_.params[param].dtype));
  }
  std::string group_number(uint32_t axis) const override {
    return fmt::format("__builtin_amdgcn_workgroup_id_{}()", "xyz"[axis]);
  }
  std::string half_to_float(const std::string& bits) const override {
    return fmt::format("bm_half_to_float({})", bits);
  }
  std::string float_to_half(const std::string& value) const override {
    return fmt::format("bm_float_to_half({})", value);
  }
  std::string reinterpret(DType to, DType from, const std::string& a) const override {
    if (is_float(to) == is_float(from) || item_size(to) == 2)
      return fmt::format("({}){}", type_name(to), a);
    return fmt::format("__builtin_bit_cast({}, {})", type_name(to), a);
  }
  std::string function(std::string_view name, DType t) const override {
    return fmt::format("__builtin_{}{}", name, t == DType::kF32 ? "f" : "");
  }
  void barrier() override {
    line("__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"workgroup\");");
    line("__builtin_amdgcn_s_barrier();");
    line("__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"workgroup\");");
  }
  /// As render_amdgpu does.
  std::string dot(const Value& v) override {
    const std::string acc = ref(v.args[0]), a = ref(v.args[1]), b = ref(v.args[2]);
    if (!target_.has_dot(DotKind::kU8S8, 1))
      return fmt::format("__builtin_amdgcn_sdot4((int){}, (int){}, {}, false)", a, b, acc);
    return fmt::format("__builtin_amdgcn_sudot4({}, (int){}, true, (int){}, {}, false)",
                       static_cast<DotKind>(v.imm) == DotKind::kS8S8, a, b, acc);
  }
  void matrix(const Stmt&) override {
    check_failed("matrix instructions are not written as HIP", __FILE__, __LINE__);
  }

  static std::string_view vector_name(uint32_t words) {
    return words == 1 ? "unsigned" : words == 2 ? "bm_word2" : "bm_word4";
  }
  std::string_view vector_type(Type t) const override { return vector_name(t.lanes); }

  std::string words(const Value& v) override {
    if (v.op == ValueOp::kIsAligned) return fmt::format("((unsigned long)p{} & 15) == 0", v.imm);
    const std::string at = fmt::format("p{} + {}", v.imm, ref(v.args[0]));
    if (v.op == ValueOp::kWords)
      return fmt::format("*(const {}*)({})", vector_name(v.type.lanes), at);
    return fmt::format("bm_words{}({})", v.type.lanes, at);
  }

  void word_loads() {
    std::set<std::pair<uint32_t, DType>> wanted;
    for (const Value& v : p_.values)
      if (v.op == ValueOp::kAnyWords)
        wanted.insert({v.type.lanes, p_.params[static_cast<size_t>(v.imm)].dtype});
    for (const auto& [lanes, t] : wanted) {
      line("BM_DEVICE {} bm_words{}(const {}* p) {{", vector_name(lanes), lanes, type_name(t));
      line("  {} w;", vector_name(lanes));
      line("  __builtin_memcpy(&w, p, sizeof w);");
      line("  return w;");
      line("}}");
    }
  }

  void table(size_t number) {
    std::string items;
    for (const uint64_t word : p_.tables[number])
      items += fmt::format("{}{}ul", items.empty() ? "" : ", ", word);
    line("static __attribute__((constant)) const unsigned long {}_table{}[] = {{{}}};", p_.name,
         number, items);
  }
  std::string entry(size_t table, const std::string& index) const override {
    return fmt::format("{}_table{}[{}]", p_.name, table, index);
  }

  void kernel() {
    line("extern \"C\" __attribute__((global, amdgpu_flat_work_group_size({0}, {0})))", p_.block);
    line("void {}({}) {{", p_.name, parameters());
    ++depth_;
    local_arrays("static __attribute__((shared, aligned(16)))");
    line("const int item = (int)__builtin_amdgcn_workitem_id_x();");
    registers(p_.root);
    block(p_.root);
    --depth_;
    line("}}");
  }

  const TargetInfo& target_;
  const std::vector<bool> narrow_;
};

}  // namespace

std::string render_hip(const Program& program, const TargetInfo& target) {
  return HipRenderer(program, target).run();
}

}  // namespace bm::compiler
