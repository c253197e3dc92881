// LLVM IR for AMD's GPUs: one work-item is one lane of a wave. Nothing but the arguments of the
// program is asked for at the start: no dispatch packet, no queue, no implicit arguments. Float
// operations carry no fast-math flags, so each rounds once and subnormals are kept.
//
// Source: LLVM 19, docs/AMDGPUUsage.rst: "LLVM IR Intrinsics", "LLVM IR Attributes", "Address
// Spaces".
#include <algorithm>
#include <array>
#include <optional>

#include "compiler/render/llvm_work_items.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

constexpr uint32_t kStackSpace = 5;

class AmdgpuRenderer final : public LlvmWorkItems {
 public:
  AmdgpuRenderer(const Program& p, const TargetInfo& target)
      : LlvmWorkItems(p, kStackSpace, narrow_and_natural_values(p)), target_(target) {}

  std::string run() {
    for (const Function& f : p_.functions) helper(f);
    kernel("define amdgpu_kernel", " !reqd_work_group_size !1");
    std::string text = local_arrays();
    for (size_t i = 0; i < p_.tables.size(); ++i) text += constant_table(i);
    for (const std::string& d : declarations_) text += d + "\n";
    text += out_;
    text += fmt::format("attributes #0 = {{ convergent nounwind {}}}\n", kernel_attributes());
    text += "attributes #1 = { alwaysinline nounwind }\n";
    text += "attributes #2 = { convergent nounwind }\n";
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
  /// v_fma_mixlo_f16 with +0 as addend until LLVM 23 (llvm-project pull request 214544). A product
  /// is canonical, so that nothing is computed for it.
  bool loses_zero_signs() const override { return true; }
  std::string_view item_number() const override { return "llvm.amdgcn.workitem.id.x"; }

  void barrier() override {
    declarations_.insert("declare void @llvm.amdgcn.s.barrier()");
    line("fence syncscope(\"workgroup\") release");
    line("call void @llvm.amdgcn.s.barrier()");
    line("fence syncscope(\"workgroup\") acquire");
  }

  void dot(ValueId id, const Value& v) override {
    const std::string acc = typed(v.args[0]), a = typed(v.args[1]), b = typed(v.args[2]);
    // The instruction that takes a number without a sign lets both operands say.
    if (!target_.has_dot(DotKind::kU8S8, 1)) {
      declarations_.insert("declare i32 @llvm.amdgcn.sdot4(i32, i32, i32, i1)");
      return line("%v{} = call i32 @llvm.amdgcn.sdot4({}, {}, {}, i1 false)", id, a, b, acc);
    }
    declarations_.insert("declare i32 @llvm.amdgcn.sudot4(i1, i32, i1, i32, i32, i1)");
    line("%v{} = call i32 @llvm.amdgcn.sudot4(i1 {}, {}, i1 true, {}, {}, i1 false)", id,
         static_cast<DotKind>(v.imm) == DotKind::kS8S8, a, b, acc);
  }

  /// Within a row of 16 lanes by DPP, which LLVM folds into the operation that takes the result;
  /// between the rows of 32 lanes by v_permlanex16 on RDNA. The rest goes through the crossbar of
  /// LDS, which takes a wait: within 32 lanes by a mask, else by the addresses of lanes.
  void sub_group(ValueId id, const Value& v) override {
    if (v.op == ValueOp::kDequantise2) return dequantise2(id, v);
    if (v.op != ValueOp::kShuffle) return LlvmWorkItems::sub_group(id, v);
    const bool is_word = !is_float(v.type.dtype);
    std::string from = ref(v.args[0]), made = fmt::format("%v{}", id);
    if (!is_word) {
      from = fresh("%x");
      made = fresh("%x");
      line("{} = bitcast {} to i32", from, typed(v.args[0]));
    }
    const auto with = static_cast<uint32_t>(v.imm);
    if (const auto control = dpp_control(with)) {
      declarations_.insert(
          "declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32 immarg, i32 immarg, i32 immarg, "
          "i1 immarg)");
      line(
          "{} = call i32 @llvm.amdgcn.update.dpp.i32(i32 undef, i32 {}, i32 {}, i32 15, i32 15, "
          "i1 true)",
          made, from, *control);
    } else if (is_rdna() && with < 32) {
      exchange_rows(made, from, with);
    } else if (with < 32) {
      declarations_.insert("declare i32 @llvm.amdgcn.ds.swizzle(i32, i32 immarg)");
      line("{} = call i32 @llvm.amdgcn.ds.swizzle(i32 {}, i32 {})", made, from, with << 10 | 0x1f);
    } else {
      const std::string low = fresh("%x"), lane = fresh("%x"), at = fresh("%x"), to = fresh("%x");
      for (const std::string_view half : {"lo", "hi"})
        declarations_.insert(fmt::format("declare i32 @llvm.amdgcn.mbcnt.{}(i32, i32)", half));
      declarations_.insert("declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)");
      line("{} = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)", low);
      line("{} = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 {})", lane, low);
      line("{} = xor i32 {}, {}", to, lane, with);
      line("{} = shl i32 {}, 2", at, to);
      line("{} = call i32 @llvm.amdgcn.ds.bpermute(i32 {}, i32 {})", made, at, from);
    }
    if (!is_word) line("%v{} = bitcast i32 {} to {}", id, made, type_name(v.type));
  }

  /// As of NVIDIA's (dequantise2_text), by v_perm_b32, v_pk_add_f16 and v_pk_mul_f16.
  void dequantise2(ValueId id, const Value& v) {
    declarations_.insert("declare i32 @llvm.amdgcn.perm(i32, i32, i32)");
    std::array<std::string, 5> made;
    for (std::string& name : made) name = fresh("%x");
    line("{} = call i32 @llvm.amdgcn.perm(i32 {}, i32 {}, i32 {})", made[0], 0x64646464,
         ref(v.args[0]), v.imm == 0 ? 0x04010400 : 0x04030402);
    line("{} = bitcast i32 {} to <2 x half>", made[1], made[0]);
    line("{} = fsub <2 x half> {}, <half 1152.0, half 1152.0>", made[2], made[1]);
    line("{} = bitcast i32 {} to <2 x half>", made[3], ref(v.args[1]));
    line("{} = fmul <2 x half> {}, {}", made[4], made[2], made[3]);
    line("%v{} = bitcast <2 x half> {} to i32", id, made[4]);
  }

  /// GFX10 and later, whose waves have 32 lanes here.
  bool is_rdna() const { return target_.sub_group == 32; }

  /// DPP_CTRL of lane ^ `with`, where there is one. Source: AMD RDNA2, RDNA3, RDNA4 and CDNA3 ISA
  /// guides, "DPP16", "DPP": quad_perm, row_ror, row_mirror, row_half_mirror and, of RDNA,
  /// row_xmask.
  std::optional<uint32_t> dpp_control(uint32_t with) const {
    constexpr uint32_t kRowXmask = 0x160, kRowRor = 0x120, kRowMirror = 0x140,
                       kRowHalfMirror = 0x141;
    if (with < 4) {
      uint32_t lanes = 0;  // quad_perm: two bits for each lane of four
      for (uint32_t lane = 0; lane < 4; ++lane) lanes |= (lane ^ with) << (2 * lane);
      return lanes;
    }
    if (is_rdna()) return with < 16 ? std::optional(kRowXmask | with) : std::nullopt;
    switch (with) {
      case 7: return kRowHalfMirror;
      case 8: return kRowRor | 8;
      case 15: return kRowMirror;
      default: return std::nullopt;
    }
  }

  /// Lane ^ `with` of 16 … 31: from the other row of 16 lanes, a selector of four bits for each.
  /// LLVM up to 20 does not mark the instruction convergent (llvm/llvm-project pull request 142962)
  /// and sinks it into blocks where the lanes it reads from are off: an empty asm keeps it in its
  /// own.
  void exchange_rows(std::string_view made, std::string_view from, uint32_t with) {
    std::array<uint32_t, 2> selectors = {};
    for (uint32_t lane = 0; lane < 16; ++lane)
      selectors[lane / 8] |= (lane ^ (with & 15)) << (4 * (lane % 8));
    declarations_.insert(
        "declare i32 @llvm.amdgcn.permlanex16(i32, i32, i32, i32, i1 immarg, i1 immarg)");
    const std::string read = fresh("%x");
    line(
        "{} = call i32 @llvm.amdgcn.permlanex16(i32 undef, i32 {}, i32 {}, i32 {}, i1 false, "
        "i1 true)",
        read, from, static_cast<int32_t>(selectors[0]), static_cast<int32_t>(selectors[1]));
    line("{} = call i32 asm sideeffect \"\", \"=v,0\"(i32 {})", made, read);
  }

  /// Eight sums: WMMA, whose shape the words of an operand tell; four: MFMA.
  struct MatrixRow {
    uint32_t accumulators;
    DType in;
    std::string_view name;     ///< of the intrinsic; {} the operands' numbers
    std::string_view element;  ///< of the operands, in `per_word` to a word; empty: one i64
    uint32_t per_word;
    std::string_view before;  ///< arguments before each operand
    std::string_view after;   ///< arguments behind the sums
  };
  static constexpr std::string_view kUnsigned = "i1 false, ", kSigned = "i1 true, ";
  static const MatrixRow& matrix_row(const Stmt& s) {
    static constexpr std::array kRows = {
        MatrixRow{8, DType::kF16, "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v{}f16", "half", 2, "",
                  ""},
        MatrixRow{8, DType::kBF16, "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v{}i16", "i16", 2, "",
                  ""},
        MatrixRow{8, DType::kI8, "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v{}i32", "i32", 1,
                  "i1 true, ", ", i1 false"},
        MatrixRow{8, DType::kU8, "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v{}i32", "i32", 1,
                  kUnsigned, ", i1 false"},
        MatrixRow{4, DType::kF16, "llvm.amdgcn.mfma.f32.16x16x16f16", "half", 2, "",
                  ", i32 0, i32 0, i32 0"},
        MatrixRow{4, DType::kBF16, "llvm.amdgcn.mfma.f32.16x16x16bf16.1k", "i16", 2, "",
                  ", i32 0, i32 0, i32 0"},
        MatrixRow{4, DType::kI8, "llvm.amdgcn.mfma.i32.16x16x32.i8", "", 0, "",
                  ", i32 0, i32 0, i32 0"}};
    for (const MatrixRow& row : kRows)
      if (row.accumulators == s.accumulators && row.in == s.matrix) return row;
    check_failed("no such matrix instruction", __FILE__, __LINE__);
  }

  void matrix(const Stmt& s) override {
    const MatrixRow& row = matrix_row(s);
    const size_t words = s.operands.size() / 2, count = words * row.per_word;
    const std::string name = fmt::format(fmt::runtime(row.name), count),
                      in = row.element.empty() ? "i64"
                                               : fmt::format("<{} x {}>", count, row.element),
                      sum = fmt::format("<{} x {}>", s.accumulators,
                                        is_float(s.matrix) ? "float" : "i32");
    const auto bare = [](std::string_view arguments) {
      std::string types;
      for (size_t at = 0; at < arguments.size();) {
        const size_t end = std::min(arguments.find(", ", at), arguments.size());
        const std::string_view one = arguments.substr(at, end - at);
        types += std::string(one.substr(0, one.find(' '))) + (end < arguments.size() ? ", " : "");
        at = end + 2;
      }
      return types;
    };
    declarations_.insert(fmt::format("declare {0} @{1}({2}{3}, {2}{3}, {0}{4})", sum, name,
                                     bare(row.before), in, bare(row.after)));
    const std::string left = matrix_operand(s, 0, words, in),
                      right = matrix_operand(s, words, words, in);
    const std::string accumulators = gather(s, sum), made = fresh("%m");
    // All lanes are on here, and may not be where the results are stored.
    line("{0} = call {1} @{2}({3}{4} {5}, {9}{4} {6}, {1} {7}{8}) #2", made, sum, name, row.before,
         in, left, right, accumulators, row.after, s.has_signed_right ? kSigned : row.before);
    for (uint32_t i = 0; i < s.accumulators; ++i) {
      const std::string one = fresh("%s");
      line("{} = extractelement {} {}, i64 {}", one, sum, made, i);
      line("store {} {}, {}", is_float(s.matrix) ? "float" : "i32", one, register_at(s.target + i));
    }
  }

  /// The sums pass through an instruction of no bytes that stays where it is: WMMA and MFMA are not
  /// known to LLVM as work of all lanes, and would go behind a branch with their only users.
  void beside(const Stmt& s) override {
    if (s.kind == StmtKind::kPipe && s.pipe == PipeOp::kOrder) {
      declarations_.insert("declare void @llvm.amdgcn.sched.barrier(i32 immarg)");
      return line("call void @llvm.amdgcn.sched.barrier(i32 0)");
    }
    if (s.kind != StmtKind::kPipe || s.pipe != PipeOp::kSettle) return LlvmWorkItems::beside(s);
    for (uint32_t r = s.target; r < s.target + s.accumulators; ++r) {
      const std::string type = type_name(p_.registers[r]), from = fresh("%s"), to = fresh("%s");
      line("{} = load {}, {}", from, type, register_at(r));
      line("{} = call {} asm sideeffect \"\", \"=v,0\"({} {}) #2", to, type, type, from);
      line("store {} {}, {}", type, to, register_at(r));
    }
  }

  /// Words of an operand as what the intrinsic takes.
  std::string matrix_operand(const Stmt& s, size_t first, size_t words, std::string_view type) {
    std::string vector = "poison";
    for (size_t i = 0; i < words; ++i) {
      const std::string next = fresh("%w");
      line("{} = insertelement <{} x i32> {}, i32 {}, i64 {}", next, words, vector,
           ref(s.operands[first + i]), i);
      vector = next;
    }
    const std::string out = fresh("%w");
    line("{} = bitcast <{} x i32> {} to {}", out, words, vector, type);
    return out;
  }
  std::string gather(const Stmt& s, std::string_view type) {
    const std::string_view scalar = is_float(s.matrix) ? "float" : "i32";
    std::string vector = "poison";
    for (uint32_t i = 0; i < s.accumulators; ++i) {
      const std::string one = fresh("%s"), next = fresh("%s");
      line("{} = load {}, {}", one, scalar, register_at(s.target + i));
      line("{} = insertelement {} {}, {} {}, i64 {}", next, type, vector, scalar, one, i);
      vector = next;
    }
    return vector;
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

  const TargetInfo& target_;
};

}  // namespace

std::string render_amdgpu(const Program& program, const TargetInfo& target) {
  return AmdgpuRenderer(program, target).run();
}

}  // namespace bm::compiler
