// LLVM IR for CPUs.
#include "compiler/render/llvm_text.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

class CpuRenderer final : public LlvmText {
 public:
  using LlvmText::LlvmText;

  std::string run() {
    for (const Function& f : p_.functions) helper(f);
    kernel();
    entry();
    std::string text;
    for (size_t i = 0; i < p_.tables.size(); ++i) text += table(i);
    for (const std::string& d : declarations_) text += d + "\n";
    return text + out_ +
           fmt::format(
               "attributes #0 = {{ nounwind nofree {}\"no-trapping-math\"=\"true\" "
               "\"prefer-vector-width\"=\"512\" }}\n",
               has_streams_ ? "" : "nosync ") +
           (has_streams_ ? "!0 = !{i32 1}\n" : "") +
           "attributes #1 = { noinline nounwind nofree nosync }\n";
  }

 private:
  std::string table(size_t i) const {
    std::string items;
    for (uint64_t w : p_.tables[i])
      items += fmt::format("{}i64 {}", items.empty() ? "" : ", ", static_cast<int64_t>(w));
    return fmt::format("@{}.table{} = private unnamed_addr constant [{} x i64] [{}]\n", p_.name, i,
                       p_.tables[i].size(), items);
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
    // Streamed stores are ordered by nothing else.
    if (has_streams_) {
      declarations_.insert("declare void @llvm.x86.sse.sfence()");
      line("call void @llvm.x86.sse.sfence()");
    }
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

  void memory_statement(const Stmt& s) override {
    switch (s.kind) {
      case StmtKind::kStore: return store_lanes(s);
      case StmtKind::kLocalStore:
        return store(s.value, kNone, [&] { return local_address(s.target, s.begin); });
      case StmtKind::kPrefetch:
        declarations_.insert("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)");
        return line("call void @llvm.prefetch.p0({}, i32 0, i32 {}, i32 1)",
                    s.is_local ? local_address(s.target, s.begin) : address(s.target, s.begin),
                    s.is_streamed ? 2 : 3);
      case StmtKind::kFault: return fault(s);
      case StmtKind::kLet:
      case StmtKind::kLoop:
      case StmtKind::kIf:
      case StmtKind::kAssign:
      case StmtKind::kMma:
      case StmtKind::kCopy:
      case StmtKind::kPipe:
      case StmtKind::kWarpgroupMma:
      case StmtKind::kTensor:
      case StmtKind::kBarrier: check_failed("no work-groups on a CPU", __FILE__, __LINE__);
    }
  }

  /// LLVM would compare float16 values as such. Without instructions for that it does so one by
  /// one; with them, LLVM 19 turns v < c, v in memory and under a mask, into c < v (AVX512-FP16).
  bool fences_halves() const override { return true; }

  void memory_value(ValueId id, const Value& v) override {
    if (v.op == ValueOp::kLoad) return load_lanes(id, v);
    if (v.op == ValueOp::kLocalLoad)
      return load(id, kNone, [&] { return local_address(static_cast<size_t>(v.imm), v.args[0]); });
    if (v.op == ValueOp::kWords || v.op == ValueOp::kUnalignedWords) {
      const std::string at = address(static_cast<uint32_t>(v.imm), v.args[0]);
      return line("%v{} = load {}, {}, align {}", id, type_name(v.type), at,
                  v.op == ValueOp::kWords ? 4 * v.type.lanes : 1);
    }
    if (v.op == ValueOp::kDot) return dot(id, v);
    if (v.op == ValueOp::kLdexp) return scale(id, v);
    if (v.op == ValueOp::kLookup) return lookup(id, v);
    BM_CHECK(v.op == ValueOp::kTable);
    const std::string at = fresh("%at");
    line("{} = getelementptr i64, ptr @{}.table{}, i64 {}", at, p_.name, v.imm, ref(v.args[0]));
    line("%v{} = load i64, ptr {}, align 8", id, at);
  }

  std::string address(uint32_t param, ValueId index) {
    const std::string at = fresh("%at");
    line("{} = getelementptr {}, ptr %p{}, i64 {}", at, memory_type({p_.params[param].dtype, 1}),
         param, ref(index));
    return "ptr " + at;
  }

  void fault(const Stmt& s) {
    declarations_.insert("declare void @bm_kernel_fault(ptr, i64) noreturn nounwind");
    const std::string& text = p_.faults[s.target];
    declarations_.insert(
        fmt::format("@{}.fault{} = private unnamed_addr constant [{} x i8] c\"{}\\00\"", p_.name,
                    s.target, text.size() + 1, text));
    line("call void @bm_kernel_fault(ptr @{}.fault{}, i64 {})", p_.name, s.target, ref(s.begin));
  }

  std::string local_address(size_t array, ValueId index) {
    const std::string at = fresh("%at");
    line("{} = getelementptr {}, ptr %local{}, i64 {}", at,
         memory_type({p_.locals[array].dtype, 1}), array, ref(index));
    return "ptr " + at;
  }

  static std::string memory_suffix(Type t) {
    return suffix({is_bool(t.dtype) ? DType::kI8 : t.dtype, t.lanes});
  }

  void stream(const Stmt& s) {
    const Type t = p_.type(s.value);
    const auto bytes = static_cast<int64_t>(t.lanes) * item_size(t.dtype);
    const std::string at = address(s.target, s.begin), number = fresh("%n"), low = fresh("%n"),
                      is_aligned = fresh("%c"), then = fresh("then"), other = fresh("other"),
                      join = fresh("join");
    has_streams_ = true;
    line("{} = ptrtoint {} to i64", number, at);
    line("{} = and i64 {}, {}", low, number, bytes - 1);
    line("{} = icmp eq i64 {}, 0", is_aligned, low);
    line("br i1 {}, label %{}, label %{}", is_aligned, then, other);
    label(then);
    line("store {}, {}, align {}, !nontemporal !0", typed(s.value), at, bytes);
    line("br label %{}", join);
    label(other);
    line("store {}, {}, align {}", typed(s.value), at, item_size(t.dtype));
    line("br label %{}", join);
    label(join);
  }

  void store_lanes(const Stmt& s) {
    if (s.is_streamed) return stream(s);
    if (s.end == kNone || p_.type(s.end).lanes == 1)
      return store(s.value, s.end, [&] { return address(s.target, s.begin); });
    const Type t = p_.type(s.value);
    const std::string value = in_memory(s.value);
    const std::string memory = memory_type(t);
    const std::string name = fmt::format("llvm.masked.store.{}.p0", memory_suffix(t));
    declarations_.insert(
        fmt::format("declare void @{}({}, ptr, i32, <{} x i1>)", name, memory, t.lanes));
    const std::string at = address(s.target, s.begin);
    line("call void @{}({} {}, {}, i32 {}, {})", name, memory, value, at, item_size(t.dtype),
         typed(s.end));
  }

  void load_lanes(ValueId id, const Value& v) {
    const auto param = static_cast<uint32_t>(v.imm);
    const ValueId gate = v.args.size() > 1 ? v.args[1] : kNone;
    if (gate == kNone || p_.type(gate).lanes == 1)
      return load(id, gate, [&] { return address(param, v.args[0]); });
    const std::string memory = memory_type(v.type);
    const std::string raw = fmt::format("%v{}{}", id, is_bool(v.type.dtype) ? ".byte" : "");
    const std::string name = fmt::format("llvm.masked.load.{}.p0", memory_suffix(v.type));
    declarations_.insert(
        fmt::format("declare {} @{}(ptr, i32, <{} x i1>, {})", memory, name, v.type.lanes, memory));
    const std::string at = address(param, v.args[0]);
    line("{} = call {} @{}({}, i32 {}, {}, {} zeroinitializer)", raw, memory, name, at,
         item_size(v.type.dtype), typed(gate), memory);
    if (is_bool(v.type.dtype)) line("%v{} = icmp ne {} {}, zeroinitializer", id, memory, raw);
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
      case DotKind::kS8S8: check_failed("no such dot product", __FILE__, __LINE__);
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

  /// The masked form with all lanes: there is no other. Rounding 4: as everything else.
  void scale(ValueId id, const Value& v) {
    const bool is_single = v.type.dtype == DType::kF32;
    const auto bits = v.type.lanes * static_cast<uint32_t>(item_size(v.type.dtype)) * 8;
    const std::string type = type_name(v.type),
                      mask = fmt::format("i{}", std::max(v.type.lanes, 8U)),
                      name = fmt::format("llvm.x86.avx512.mask.scalef.p{}.{}",
                                         is_single ? "s" : "d", bits);
    const std::string_view rounding = bits == 512 ? ", i32" : "",
                           mode = bits == 512 ? ", i32 4" : "";
    declarations_.insert(
        fmt::format("declare {0} @{1}({0}, {0}, {0}, {2}{3})", type, name, mask, rounding));
    line("%v{} = call {} @{}({}, {}, {} zeroinitializer, {} -1{})", id, type, name,
         typed(v.args[0]), typed(v.args[1]), type, mask, mode);
  }

  void lookup(ValueId id, const Value& v) {
    const uint32_t bits = v.type.lanes * 32;
    const std::string bytes = with_lanes("i8", bits / 8), words = type_name(v.type),
                      index = fresh("%d"), found = fresh("%d");
    const std::string_view name = bits == 512   ? "llvm.x86.avx512.pshuf.b.512"
                                  : bits == 256 ? "llvm.x86.avx2.pshuf.b"
                                                : "llvm.x86.ssse3.pshuf.b.128";
    declarations_.insert(fmt::format("declare {0} @{1}({0}, {0})", bytes, name));
    std::string table;
    for (uint32_t i = 0; i < bits / 8; ++i)
      table += fmt::format("{}i8 {}", i ? ", " : "",
                           p_.tables[static_cast<size_t>(v.imm)][i % 16 / 8] >> 8 * (i % 8) & 255);
    line("{} = bitcast {} to {}", index, typed(v.args[0]), bytes);
    line("{0} = call {1} @{2}({1} <{3}>, {1} {4})", found, bytes, name, table, index);
    line("%v{} = bitcast {} {} to {}", id, bytes, found, words);
  }

  bool has_streams_ = false;
};

}  // namespace

std::string render_llvm(const Program& program, const TargetInfo&) {
  return CpuRenderer(program).run();
}

}  // namespace bm::compiler
