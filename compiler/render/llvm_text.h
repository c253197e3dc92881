#pragma once
// LLVM IR of a Program's values, conditions and helpers: what the renderers for CPUs and for GPUs
// share. Private to render_llvm*.cpp.

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "compiler/program/program.h"

namespace bm::compiler {

/// 16-bit floats travel as i16; bool is i1 in values and i8 in memory.
class LlvmText {
 public:
  /// `stack`: address space of the target's stack, where registers begin.
  explicit LlvmText(const Program& p, uint32_t stack = 0)
      : p_(p),
        stack_(stack == 0 ? "" : fmt::format(", addrspace({})", stack)),
        register_type_(stack == 0 ? "ptr" : fmt::format("ptr addrspace({})", stack)) {}
  virtual ~LlvmText() = default;

 protected:
  static std::string_view scalar_name(DType t);
  static std::string with_lanes(std::string_view scalar, uint32_t lanes);
  static std::string type_name(Type t);
  static std::string memory_type(Type t);
  /// Suffix of intrinsic names: f32, v16f32, v8i1.
  static std::string suffix(Type t);
  static std::string literal(Type t, int64_t imm);

  template <class... A>
  void line(fmt::format_string<A...> f, A&&... args) {
    out_ += "  ";
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(args)...);
    out_ += '\n';
  }
  void label(std::string_view name) {
    out_ += fmt::format("{}:\n", name);
    current_ = name;
  }
  std::string fresh(std::string_view stem) { return fmt::format("{}{}", stem, next_++); }
  /// Operand without its type.
  std::string ref(ValueId id) const;
  std::string typed(ValueId id) const { return type_name(p_.type(id)) + " " + ref(id); }

  void registers(BlockId root);
  /// A helper function as a definition with attribute group #1.
  void helper(const Function& f);
  void block(BlockId id);
  void serial_loop(const Stmt& s);
  virtual void let(ValueId id);
  /// Whether float16 values, once widened, stay so: nothing is computed in float16.
  virtual bool fences_halves() const { return false; }
  /// Whether the target's selection of a product that is rounded to float16 loses the sign of zero.
  virtual bool loses_zero_signs() const { return false; }
  /// Writes what computes an address and returns it as "ptr %at1".
  using Address = std::function<std::string()>;
  /// A value as it is stored.
  std::string in_memory(ValueId v);
  /// `gate`: a scalar, or kNone.
  void store(ValueId value, ValueId gate, const Address& address);
  void load(ValueId id, ValueId gate, const Address& address);

  virtual void loop(const Stmt& s) { serial_loop(s); }
  /// Statements that touch memory or other work-items.
  virtual void memory_statement(const Stmt& s) = 0;
  /// Values that come from memory or from where the code runs.
  virtual void memory_value(ValueId id, const Value& v) = 0;

  /// Register as an operand: "ptr %r1".
  std::string register_at(uint32_t number) const {
    return fmt::format("{} %r{}", register_type_, number);
  }

  const Program& p_;
  std::string out_, current_;
  std::set<std::string> declarations_;

 private:
  void statement(const Stmt& s);
  void build(ValueId id, const Value& v);
  void convert(ValueId id, const Value& v);
  void intrinsic(ValueId id, const Value& v, std::string_view stem);
  void alu(ValueId id, const Value& v);

  const std::string stack_, register_type_;
  uint32_t next_ = 0;
};

}  // namespace bm::compiler
