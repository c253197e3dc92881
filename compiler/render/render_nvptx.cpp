// LLVM IR for NVIDIA's GPUs: one work-item is one thread. Helper functions are inlined, tables are
// chosen from, so that the PTX which LLVM makes of it has no calls and no data of its own.
#include <array>

#include "compiler/render/llvm_work_items.h"
#include "compiler/render/render.h"

namespace bm::compiler {
namespace {

class NvptxRenderer final : public LlvmWorkItems {
 public:
  explicit NvptxRenderer(const Program& p) : LlvmWorkItems(p, 0, {}) {}

  std::string run() {
    for (const Function& f : p_.functions) helper(f);
    kernel("define");
    std::string text = local_arrays();
    for (const std::string& d : declarations_) text += d + "\n";
    text += out_;
    text += "attributes #0 = { convergent nounwind }\n";
    text += "attributes #1 = { alwaysinline nounwind }\n";
    text += "attributes #2 = { convergent nounwind memory(none) }\n";
    text += "attributes #3 = { nounwind memory(none) }\n";
    // As metadata, which older releases read and newer ones turn into attributes.
    text += "!nvvm.annotations = !{!0, !1}\n";
    text += fmt::format("!0 = !{{ptr @{}, !\"kernel\", i32 1}}\n", p_.name);
    text += fmt::format("!1 = !{{ptr @{}, !\"maxntidx\", i32 {}}}\n", p_.name, p_.block);
    return text + bounds();
  }

 private:
  std::string_view group_number(uint32_t axis) const override {
    static constexpr std::array<std::string_view, 3> kAxes = {"llvm.nvvm.read.ptx.sreg.ctaid.x",
                                                              "llvm.nvvm.read.ptx.sreg.ctaid.y",
                                                              "llvm.nvvm.read.ptx.sreg.ctaid.z"};
    return kAxes[axis];
  }
  std::string_view item_number() const override { return "llvm.nvvm.read.ptx.sreg.tid.x"; }
  bool stores_words() const override { return true; }

  void barrier() override {
    declarations_.insert("declare void @llvm.nvvm.barrier0()");
    line("call void @llvm.nvvm.barrier0()");
  }

  /// The instruction itself: only newer releases have an intrinsic.
  void dot(ValueId id, const Value& v) override {
    line("%v{} = call i32 asm \"{} $0, $1, $2, $3;\", \"=r,r,r,r\"({}, {}, {}) #3", id,
         dp4a_name(v), typed(v.args[1]), typed(v.args[2]), typed(v.args[0]));
  }

  void sub_group(ValueId id, const Value& v) override {
    if (v.op == ValueOp::kPackHalf2)
      return line("%v{} = call i32 asm \"{} $0, $1, $2;\", \"=r,f,f\"({}, {}) #3", id,
                  pack_half2_name(v), typed(v.args[1]), typed(v.args[0]));
    if (v.op == ValueOp::kDequantise2)
      return line("%v{} = call i32 asm \"{}\", \"=r,r,r\"({}, {}) #3", id,
                  dequantise2_asm("$0", "$1", "$2", v), typed(v.args[0]), typed(v.args[1]));
    if (v.op == ValueOp::kExp2)
      return line("%v{} = call float asm \"{} $0, $1;\", \"=f,f\"({}) #3", id, kExp2Name,
                  typed(v.args[0]));
    if (v.op == ValueOp::kRoundTf32)
      return line("%v{} = call i32 asm \"{} $0, $1;\", \"=r,r\"({}) #3", id, kRoundTf32Name,
                  typed(v.args[0]));
    const std::string_view kind = is_float(v.type.dtype) ? "f" : "r";
    line("%v{} = call {} asm sideeffect \"{}\", \"={},{}\"({}) #0", id, type_name(v.type),
         shuffle_text("$0", "$1", v), kind, kind, typed(v.args[0]));
  }

  /// The instruction itself: names of intrinsics differ by operand type and release.
  void matrix(const Stmt& s) override {
    const std::string_view sum = is_float(s.matrix) ? "float" : "i32";
    const std::string_view constraint = is_float(s.matrix) ? "f" : "r";
    const size_t left = mma_left_words(s), num = s.operands.size();
    const uint32_t sums = s.accumulators;
    const auto braced = [](size_t first, size_t count) {
      std::string text;
      for (size_t i = 0; i < count; ++i) text += fmt::format("{}${}", i ? ", " : "{", first + i);
      return text + "}";
    };
    std::string constraints, args;
    for (uint32_t i = 0; i < sums; ++i) constraints += fmt::format("={},", constraint);
    for (const ValueId operand : s.operands) {
      constraints += "r,";
      args += fmt::format("i32 {}, ", ref(operand));
    }
    std::string types;
    for (uint32_t i = 0; i < sums; ++i) {
      const std::string accumulator = fresh("%s"), comma = i ? ", " : "";
      line("{} = load {}, {}", accumulator, sum, register_at(s.target + i));
      args += fmt::format("{}{} {}", comma, sum, accumulator);
      constraints += fmt::format("{}{}", i ? "," : "", i);
      types += fmt::format("{}{}", comma, sum);
    }
    const std::string result = fresh("%m"), type = fmt::format("{{ {} }}", types);
    line("{} = call {} asm \"{} {}, {}, {}, {};\", \"{}\"({}) #2", result, type, mma_name(s),
         braced(0, sums), braced(sums, left), braced(sums + left, num - left), braced(0, sums),
         constraints, args);
    for (uint32_t i = 0; i < sums; ++i) {
      const std::string one = fresh("%s");
      line("{} = extractvalue {} {}, {}", one, type, result, i);
      line("store {} {}, {}", sum, one, register_at(s.target + i));
    }
  }
};

}  // namespace

std::string render_nvptx(const Program& program) { return NvptxRenderer(program).run(); }

}  // namespace bm::compiler
