#include "compiler/render/c_like.h"

#include "runtime/base/check.h"

namespace bm::compiler {

std::string_view opencl_type_name(DType t) {
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

void CLike::fault(const Stmt&) { check_failed("checks are for CPUs", __FILE__, __LINE__); }

void CLike::beside(const Stmt& s) {
  if (s.kind == StmtKind::kPipe && s.pipe == PipeOp::kOrder)
    return;  // compilers order by themselves
  check_failed("asynchronous copies and MMAs are for CUDA", __FILE__, __LINE__);
}

void CLike::block(BlockId id) {
  for (const Stmt& s : p_.blocks[id].stmts) statement(s);
}

void CLike::nested(BlockId body) {
  ++depth_;
  block(body);
  --depth_;
  line("}}");
}

void CLike::registers(BlockId root) {
  for (size_t i = 0; i < p_.registers.size(); ++i)
    if (p_.register_block[i] == root) line("{} r{};", type(p_.registers[i]), i);
}

void CLike::helper(const Function& f, std::string_view qualifiers, bool has_prototype) {
  std::string args;
  for (size_t i = 0; i < f.arguments.size(); ++i)
    args += fmt::format("{}{} a{}", i ? ", " : "", type(f.arguments[i]), i);
  const std::string head =
      fmt::format("{}{} {}_{}({})", qualifiers, type(p_.type(f.result)), p_.name, f.name, args);
  if (has_prototype) line("{};", head);
  line("{} {{", head);
  ++depth_;
  registers(f.body);
  block(f.body);
  line("return {};", ref(f.result));
  --depth_;
  line("}}");
}

std::string CLike::arguments(const Value& v, std::string_view separator) {
  std::string s;
  for (size_t i = 0; i < v.args.size(); ++i) s += std::string(i ? separator : "") + ref(v.args[i]);
  return s;
}

std::string CLike::call(const Value& v) {
  return fmt::format("{}_{}({})", p_.name, p_.functions[static_cast<size_t>(v.imm)].name,
                     arguments(v));
}

std::string CLike::integer_literal(DType t, int64_t imm) {
  if (t == DType::kU64) return fmt::format("{}ul", static_cast<uint64_t>(imm));
  if (t == DType::kU32) return fmt::format("{}u", static_cast<uint32_t>(imm));
  if (imm == INT64_MIN) return "(-9223372036854775807l - 1l)";
  if (imm == INT32_MIN) return "(-2147483647 - 1)";
  const std::string text = fmt::format("{}{}", imm, t == DType::kI64 ? "l" : "");
  return imm < 0 ? "(" + text + ")" : text;
}

void CLike::open_for(const Stmt& s, const std::string& begin, int64_t step) {
  line("for ({} v{} = {}; v{} < {}; v{} += {}) {{", index_type(s.value), s.value, begin, s.value,
       ref(s.end), s.value, step);
}

void CLike::statement(const Stmt& s) {
  switch (s.kind) {
    case StmtKind::kLet: return let(s.value);
    case StmtKind::kLoop:
      if (s.loop != LoopKind::kSerial && s.loop != LoopKind::kGrid) return partitioned_loop(s);
      open_for(s, ref(s.begin), s.step);
      return nested(s.body);
    case StmtKind::kIf: line("if ({}) {{", ref(s.value)); return nested(s.body);
    case StmtKind::kAssign: return line("r{} = {};", s.target, ref(s.value));
    case StmtKind::kStore: return store(s);
    case StmtKind::kPrefetch: return prefetch(s);
    case StmtKind::kLocalStore: return local_store(s);
    case StmtKind::kFault: return fault(s);
    case StmtKind::kMma: return matrix(s);
    case StmtKind::kCopy:
    case StmtKind::kPipe:
    case StmtKind::kTensor:
    case StmtKind::kWarpgroupMma: return beside(s);
    case StmtKind::kBarrier: return barrier();
  }
}

}  // namespace bm::compiler
