// LLVM IR for AMD's GPUs: one work-item is one lane of a wave. Nothing but the arguments of the
// program is asked for at the start: no dispatch packet, no queue, no implicit arguments. Float
// operations carry no fast-math flags, so each rounds once and subnormals are kept.
//
// Source: LLVM 19, docs/AMDGPUUsage.rst: "LLVM IR Intrinsics", "LLVM IR Attributes", "Address
// Spaces".
#include <array>

#include "compiler/render/llvm_work_items.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

constexpr uint32_t kStackSpace = 5;

class AmdgpuRenderer final : public LlvmWorkItems {
 public:
  explicit AmdgpuRenderer(const Program& p)
      : LlvmWorkItems(p, kStackSpace, narrow_and_natural_values(p)) {}

  std::string run() {
    for (const Function& f : p_.functions) helper(f);
    kernel("define amdgpu_kernel", " !reqd_work_group_size !1");
    std::string text = local_arrays();
    for (size_t i = 0; i < p_.tables.size(); ++i) text += constant_table(i);
    for (const std::string& d : declarations_) text += d + "\n";
    text += out_;
    text += fmt::format("attributes #0 = {{ convergent nounwind {}}}\n", kernel_attributes());
    text += "attributes #1 = { alwaysinline nounwind }\n";
    // Code objects of version 5, which every loader of these chips takes.
    text += "!llvm.module.flags = !{!0}\n";
    text += "!0 = !{i32 1, !\"amdhsa_code_object_version\", i32 500}\n";
    text += fmt::format("!1 = !{{i32 {}, i32 1, i32 1}}\n", p_.block);
    return text + bounds();
  }

 private:
  std::string kernel_attributes() const {
    std::string text = fmt::format("\"amdgpu-flat-work-group-size\"=\"{0},{0}\" ", p_.block);
    for (const std::string_view what :
         {"dispatch-ptr", "queue-ptr", "dispatch-id", "implicitarg-ptr", "hostcall-ptr", "heap-ptr",
          "multigrid-sync-arg", "default-queue", "completion-action", "lds-kernel-id",
          "workitem-id-y", "workitem-id-z"})
      text += fmt::format("\"amdgpu-no-{}\" ", what);
    for (uint32_t axis = 0; axis < 3; ++axis)
      if (!uses_axis(axis)) text += fmt::format("\"amdgpu-no-workgroup-id-{}\" ", "xyz"[axis]);
    return text + "\"uniform-work-group-size\"=\"true\" ";
  }
  bool uses_axis(uint32_t axis) const {
    for (const Block& block : p_.blocks)
      for (const Stmt& s : block.stmts)
        if (s.kind == StmtKind::kLoop && s.loop == LoopKind::kGroup && s.axis == axis) return true;
    return false;
  }

  std::string_view group_number(uint32_t axis) const override {
    static constexpr std::array<std::string_view, 3> kAxes = {
        "llvm.amdgcn.workgroup.id.x", "llvm.amdgcn.workgroup.id.y", "llvm.amdgcn.workgroup.id.z"};
    return kAxes[axis];
  }
  std::string_view item_number() const override { return "llvm.amdgcn.workitem.id.x"; }

  void barrier() override {
    declarations_.insert("declare void @llvm.amdgcn.s.barrier()");
    line("fence syncscope(\"workgroup\") release");
    line("call void @llvm.amdgcn.s.barrier()");
    line("fence syncscope(\"workgroup\") acquire");
  }

  void matrix(const Stmt&) override {
    check_failed("no matrix instructions for this target", __FILE__, __LINE__);
  }

  std::string constant_table(size_t number) const {
    const std::vector<uint64_t>& entries = p_.tables[number];
    std::string items;
    for (const uint64_t word : entries)
      items += fmt::format("{}i64 {}", items.empty() ? "" : ", ", static_cast<int64_t>(word));
    return fmt::format(
        "@table{} = private unnamed_addr addrspace(4) constant [{} x i64] [{}], align 8\n", number,
        entries.size(), items);
  }
  void table(ValueId id, const Value& v) override {
    const std::string at = fresh("%at");
    line("{} = getelementptr i64, ptr addrspace(4) @table{}, i64 {}", at, v.imm, ref(v.args[0]));
    line("%v{} = load i64, ptr addrspace(4) {}, align 8", id, at);
  }
};

}  // namespace

std::string render_amdgpu(const Program& program) { return AmdgpuRenderer(program).run(); }

}  // namespace bm::compiler
