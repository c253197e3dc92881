// HIP C++ for AMD's code object manager; needs no header and no library.
#include "compiler/render/render.h"
#include "compiler/render/render_cpp_items.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

class HipRenderer final : public CppItems {
 public:
  HipRenderer(const Program& p, const TargetInfo& target)
      : CppItems(p, {"BM_DEVICE ", "bm_word2", "bm_word4"}), target_(target) {}

  std::string run() {
    line("#define BM_DEVICE static __attribute__((device, always_inline))");
    line("typedef unsigned bm_word2 __attribute__((ext_vector_type(2)));");
    line("typedef unsigned bm_word4 __attribute__((ext_vector_type(4)));");
    helpers();
    for (size_t i = 0; i < p_.tables.size(); ++i)
      line("static __attribute__((constant)) const unsigned long {}_table{}[] = {{{}}};", p_.name,
           i, table_items(i));
    for (const Function& f : p_.functions) helper(f, names_.device, false);
    kernel(fmt::format(
               "extern \"C\" __attribute__((global, amdgpu_flat_work_group_size({0}, {0})))\nvoid ",
               p_.block),
           "static __attribute__((shared, aligned(16)))",
           "int item = (int)__builtin_amdgcn_workitem_id_x()");
    return std::move(out_);
  }

 private:
  std::string half_conversion(bool is_widening) const override {
    return is_widening ? "return (float)__builtin_bit_cast(_Float16, a);"
                       : "return __builtin_bit_cast(unsigned short, (_Float16)a);";
  }
  void fill_words(uint32_t, DType) override { line("  __builtin_memcpy(&w, p, sizeof w);"); }

  std::string group_number(uint32_t axis) const override {
    return fmt::format("__builtin_amdgcn_workgroup_id_{}()", "xyz"[axis]);
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

  const TargetInfo& target_;
};

}  // namespace

std::string render_hip(const Program& program, const TargetInfo& target) {
  return HipRenderer(program, target).run();
}

}  // namespace bm::compiler
