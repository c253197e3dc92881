// LLVM IR for NVIDIA's GPUs: one work-item is one thread. Helper functions are inlined, tables are
// chosen from, so that the PTX which LLVM makes of it has no calls and no data of its own.
#include "compiler/render/llvm_text.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

class NvptxRenderer final : public LlvmText {
 public:
  using LlvmText::LlvmText;

  std::string run() {
    for (const Function& f : p_.functions) helper(f);
    kernel();
    std::string text;
    for (size_t i = 0; i < p_.locals.size(); ++i)
      text += fmt::format("@local{} = internal addrspace(3) global [{} x {}] undef, align 16\n", i,
                          p_.locals[i].count, memory_type({p_.locals[i].dtype, 1}));
    for (const std::string& d : declarations_) text += d + "\n";
    text += out_;
    text += "attributes #0 = { convergent nounwind }\n";
    text += "attributes #1 = { alwaysinline nounwind }\n";
    text += "attributes #2 = { convergent nounwind memory(none) }\n";
    // As metadata, which older releases read and newer ones turn into attributes.
    text += "!nvvm.annotations = !{!0, !1}\n";
    text += fmt::format("!0 = !{{ptr @{}, !\"kernel\", i32 1}}\n", p_.name);
    text += fmt::format("!1 = !{{ptr @{}, !\"maxntidx\", i32 {}}}\n", p_.name, p_.block);
    for (size_t i = 0; i < bounds_.size(); ++i)
      text += fmt::format("!{} = !{{i32 0, i32 {}}}\n", i + kFirstBound, bounds_[i]);
    return text;
  }

 private:
  static constexpr size_t kFirstBound = 2;

  void kernel() {
    std::string args;
    for (size_t i = 0; i < p_.params.size(); ++i)
      args += fmt::format("{}ptr addrspace(1) noalias %p{}", i ? ", " : "", i);
    for (uint32_t i = 0; i < p_.num_vars; ++i)
      args += fmt::format("{}i64 %var{}", args.empty() ? "" : ", ", i);
    out_ += fmt::format("define void @{}({}) #0 {{\n", p_.name, args);
    label("entry");
    item_ = special("tid.x", p_.block);
    registers(p_.root);
    block(p_.root);
    out_ += "  ret void\n}\n";
  }

  /// A special register, known to be below `bound`, in 64 bits.
  std::string special(std::string_view name, int64_t bound) {
    const std::string intrinsic = fmt::format("llvm.nvvm.read.ptx.sreg.{}", name);
    declarations_.insert(fmt::format("declare i32 @{}()", intrinsic));
    const std::string narrow = fresh("%s"), wide = fresh("%s");
    line("{} = call i32 @{}(), !range !{}", narrow, intrinsic, bounds_.size() + kFirstBound);
    bounds_.push_back(bound);
    line("{} = zext i32 {} to i64", wide, narrow);
    return wide;
  }

  // Loops.

  void loop(const Stmt& s) override {
    switch (s.loop) {
      case LoopKind::kGrid: break;
      case LoopKind::kSerial: return serial_loop(s);
      case LoopKind::kGroup: {
        static constexpr std::array kAxes = {"ctaid.x", "ctaid.y", "ctaid.z"};
        const std::string number = special(kAxes[s.axis], p_.max_groups[s.axis]);
        line("%v{} = add nsw i64 {}, 0", s.value, number);
        return guarded(s);
      }
      case LoopKind::kItem: return items(s);
    }
  }

  void guarded(const Stmt& s) {
    if (s.end == kNone) return block(s.body);
    const std::string body = fresh("body"), exit = fresh("exit");
    branch_below_end(s, fmt::format("%v{}", s.value), body, exit);
    label(body);
    block(s.body);
    line("br label %{}", exit);
    label(exit);
  }

  void branch_below_end(const Stmt& s, const std::string& index, const std::string& body,
                        const std::string& exit) {
    const std::string is_below = fresh("%c");
    line("{} = icmp slt i64 {}, {}", is_below, index, ref(s.end));
    line("br i1 {}, label %{}, label %{}", is_below, body, exit);
  }

  void items(const Stmt& s) {
    if (s.trips == 1) {
      line("%v{} = add nsw i64 {}, {}", s.value, ref(s.begin), item_);
      return guarded(s);
    }
    const std::string first = fresh("%first"), head = fresh("head"), body = fresh("body"),
                      latch = fresh("latch"), exit = fresh("exit"), from = current_;
    line("{} = add nsw i64 {}, {}", first, ref(s.begin), item_);
    line("br label %{}", head);
    label(head);
    line("%v{} = phi i64 [ {}, %{} ], [ %v{}.next, %{} ]", s.value, first, from, s.value, latch);
    line("%v{}.trip = phi i32 [ 0, %{} ], [ %v{}.again, %{} ]", s.value, from, s.value, latch);
    if (s.end == kNone)
      line("br label %{}", body);
    else
      branch_below_end(s, fmt::format("%v{}", s.value), body, exit);
    label(body);
    block(s.body);
    line("br label %{}", latch);
    label(latch);
    line("%v{}.next = add nsw i64 %v{}, {}", s.value, s.value, p_.block);
    line("%v{}.again = add i32 %v{}.trip, 1", s.value, s.value);
    if (s.trips == 0) {
      line("br label %{}", head);
    } else {
      const std::string has_more = fresh("%c");
      line("{} = icmp slt i32 %v{}.again, {}", has_more, s.value, s.trips);
      line("br i1 {}, label %{}, label %{}", has_more, head, exit);
    }
    label(exit);
  }

  // Memory.

  std::string address(uint32_t param, ValueId index) {
    const std::string at = fresh("%at");
    line("{} = getelementptr {}, ptr addrspace(1) %p{}, i64 {}", at,
         memory_type({p_.params[param].dtype, 1}), param, ref(index));
    return "ptr addrspace(1) " + at;
  }

  std::string local_address(uint32_t array, ValueId index) {
    const std::string at = fresh("%at");
    line("{} = getelementptr {}, ptr addrspace(3) @local{}, i64 {}", at,
         memory_type({p_.locals[array].dtype, 1}), array, ref(index));
    return "ptr addrspace(3) " + at;
  }

  void memory_statement(const Stmt& s) override {
    switch (s.kind) {
      case StmtKind::kStore:
        return store(s.value, s.end, [&] { return address(s.target, s.begin); });
      case StmtKind::kLocalStore:
        return store(s.value, kNone, [&] { return local_address(s.target, s.begin); });
      case StmtKind::kMatrix: return matrix(s);
      case StmtKind::kBarrier:
        declarations_.insert("declare void @llvm.nvvm.barrier0()");
        return line("call void @llvm.nvvm.barrier0()");
      case StmtKind::kPrefetch: return;
      case StmtKind::kLet:
      case StmtKind::kLoop:
      case StmtKind::kIf:
      case StmtKind::kFault:
      case StmtKind::kAssign: break;
    }
    check_failed("no statement that touches memory", __FILE__, __LINE__);
  }

  void memory_value(ValueId id, const Value& v) override {
    const auto number = static_cast<uint32_t>(v.imm);
    switch (v.op) {
      case ValueOp::kLoad:
        return load(id, v.args.size() > 1 ? v.args[1] : kNone,
                    [&] { return address(number, v.args[0]); });
      case ValueOp::kLocalLoad:
        if (v.type.lanes > 1) {
          const std::string at = local_address(number, v.args[0]);
          return line("%v{} = load {}, {}, align {}", id, type_name(v.type), at,
                      v.type.lanes * item_size(v.type.dtype));
        }
        return load(id, kNone, [&] { return local_address(number, v.args[0]); });
      case ValueOp::kItem: return line("%v{} = add nsw i64 {}, 0", id, item_);
      case ValueOp::kWords: return words(id, v, 4 * v.type.lanes);
      case ValueOp::kAnyWords:
        return words(id, v, static_cast<uint32_t>(item_size(p_.params[number].dtype)));
      case ValueOp::kIsAligned: {
        const std::string bits = fresh("%s"), rest = fresh("%s");
        line("{} = ptrtoint ptr addrspace(1) %p{} to i64", bits, number);
        line("{} = and i64 {}, 15", rest, bits);
        return line("%v{} = icmp eq i64 {}, 0", id, rest);
      }
      case ValueOp::kTable: return table(id, v);
      default: check_failed("no value from memory", __FILE__, __LINE__);
    }
  }

  void words(ValueId id, const Value& v, uint32_t alignment) {
    const std::string at = address(static_cast<uint32_t>(v.imm), v.args[0]);
    line("%v{} = load {}, {}, align {}", id, type_name(v.type), at, alignment);
  }

  void table(ValueId id, const Value& v) {
    const std::vector<uint64_t>& entries = p_.tables[static_cast<size_t>(v.imm)];
    std::string chosen = fmt::format("{}", static_cast<int64_t>(entries[0]));
    for (size_t i = 1; i < entries.size(); ++i) {
      const std::string is_it = fresh("%c");
      const std::string next = i + 1 == entries.size() ? fmt::format("%v{}", id) : fresh("%s");
      line("{} = icmp eq {}, {}", is_it, typed(v.args[0]), i);
      line("{} = select i1 {}, i64 {}, i64 {}", next, is_it, static_cast<int64_t>(entries[i]),
           chosen);
      chosen = next;
    }
    if (entries.size() == 1) line("%v{} = add i64 {}, 0", id, chosen);
  }

  /// The instruction itself: names of intrinsics differ by operand type and release.
  void matrix(const Stmt& s) {
    const std::string_view sum = is_float(s.matrix) ? "float" : "i32";
    const std::string_view constraint = is_float(s.matrix) ? "f" : "r";
    const size_t left = s.operands.size() * 2 / 3, num = s.operands.size();
    const auto braced = [](size_t first, size_t count) {
      std::string text;
      for (size_t i = 0; i < count; ++i) text += fmt::format("{}${}", i ? ", " : "{", first + i);
      return text + "}";
    };
    std::string constraints, args;
    for (int i = 0; i < 4; ++i) constraints += fmt::format("={},", constraint);
    for (const ValueId operand : s.operands) {
      constraints += "r,";
      args += fmt::format("i32 {}, ", ref(operand));
    }
    constraints += "0,1,2,3";
    std::array<std::string, 4> sums;
    for (uint32_t i = 0; i < 4; ++i) {
      sums[i] = fresh("%s");
      line("{} = load {}, ptr %r{}", sums[i], sum, s.target + i);
      args += fmt::format("{}{} {}", i ? ", " : "", sum, sums[i]);
    }
    const std::string result = fresh("%m"), type = fmt::format("{{ {0}, {0}, {0}, {0} }}", sum);
    line("{} = call {} asm \"{} {}, {}, {}, {};\", \"{}\"({}) #2", result, type, mma_name(s),
         braced(0, 4), braced(4, left), braced(4 + left, num - left), braced(0, 4), constraints,
         args);
    for (uint32_t i = 0; i < 4; ++i) {
      const std::string one = fresh("%s");
      line("{} = extractvalue {} {}, {}", one, type, result, i);
      line("store {} {}, ptr %r{}", sum, one, s.target + i);
    }
  }

  std::string item_;
  std::vector<int64_t> bounds_;  ///< of special registers, by metadata number
};

}  // namespace

std::string render_nvptx(const Program& program) { return NvptxRenderer(program).run(); }

}  // namespace bm::compiler
