#include "compiler/render/render_cpp_items.h"

#include <set>

#include "compiler/program/narrow.h"

namespace bm::compiler {

CppItems::CppItems(const Program& p, const Names& names)
    : WorkItemC(p), names_(names), narrow_(narrow_values(p)) {}

std::string_view CppItems::type_name(DType t) const {
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

std::string CppItems::pointer(size_t param) const {
  return fmt::format("{}{}* __restrict__", p_.params[param].is_written ? "" : "const ",
                     type_name(p_.params[param].dtype));
}

std::string CppItems::half_to_float(const std::string& bits) const {
  return fmt::format("bm_half_to_float({})", bits);
}

std::string CppItems::float_to_half(const std::string& value) const {
  return fmt::format("bm_float_to_half({})", value);
}

std::string_view CppItems::vector_name(uint32_t words) const {
  return words == 1 ? type_name(DType::kU32) : words == 2 ? names_.word2 : names_.word4;
}

std::string CppItems::words(const Value& v) {
  if (v.op == ValueOp::kIsAligned) return fmt::format("((unsigned long)p{} & 15) == 0", v.imm);
  const std::string at = fmt::format("p{} + {}", v.imm, ref(v.args[0]));
  if (v.op == ValueOp::kWords)
    return fmt::format("*(const {}*)({})", vector_name(v.type.lanes), at);
  return fmt::format("bm_words{}({})", v.type.lanes, at);
}

void CppItems::helpers() {
  half_conversions();
  word_loads();
}

/// Without the headers that have a type for them.
void CppItems::half_conversions() {
  bool widens = false, narrows = false;
  for (const Value& v : p_.values) {
    if (v.op != ValueOp::kConvert) continue;
    widens = widens || p_.type(v.args[0]).dtype == DType::kF16;
    narrows = narrows || v.type.dtype == DType::kF16;
  }
  if (widens)
    line("{}float bm_half_to_float(unsigned short a) {{ {} }}", names_.device,
         half_conversion(true));
  if (narrows)
    line("{}unsigned short bm_float_to_half(float a) {{ {} }}", names_.device,
         half_conversion(false));
}

void CppItems::word_loads() {
  std::set<std::pair<uint32_t, DType>> wanted;
  for (const Value& v : p_.values)
    if (v.op == ValueOp::kUnalignedWords)
      wanted.insert({v.type.lanes, p_.params[static_cast<size_t>(v.imm)].dtype});
  for (const Block& block : p_.blocks)
    for (const Stmt& s : block.stmts)
      if (s.kind == StmtKind::kCopy && s.copy == CopyKind::kUnalignedWords)
        wanted.insert({4, p_.params[s.param].dtype});
  for (const auto& [lanes, t] : wanted) {
    line("{}{} bm_words{}(const {}* p) {{", names_.device, vector_name(lanes), lanes, type_name(t));
    line("  {} w;", vector_name(lanes));
    fill_words(lanes, t);
    line("  return w;");
    line("}}");
  }
}

}  // namespace bm::compiler
