#pragma once
// The walk over a Program that C and its dialects share: blocks, loops, conditions, helper
// functions and operators on scalars. A dialect derives and says what differs. Private to the
// renderers.

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "compiler/program/program.h"

namespace bm::compiler {

/// Name of the type in OpenCL C; floats of 16 bits go as their bits.
std::string_view opencl_type_name(DType t);

class CLike {
 public:
  virtual ~CLike() = default;

 protected:
  explicit CLike(const Program& p) : p_(p) {}

  template <class... A>
  void line(fmt::format_string<A...> f, A&&... args) {
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(args)...);
    out_ += '\n';
  }

  void block(BlockId id);
  /// A body behind an open brace, and the closing one.
  void nested(BlockId body);
  void registers(BlockId root);
  /// A helper function; `qualifiers` stand in front.
  void helper(const Function& f, std::string_view qualifiers, bool has_prototype);
  /// "f(a, b)" of a kCall.
  std::string call(const Value& v);
  std::string arguments(const Value& v, std::string_view separator = ", ");
  /// Integer constant with the suffix of its type.
  static std::string integer_literal(DType t, int64_t imm);
  /// for (index = begin; index < end; index += step) {
  void open_for(const Stmt& s, const std::string& begin, int64_t step);

  virtual std::string type(Type t) = 0;
  virtual std::string index_type(ValueId) { return "long"; }
  /// A value as operand.
  virtual std::string ref(ValueId v) = 0;
  virtual void let(ValueId v) = 0;
  /// Loops that are not serial.
  virtual void partitioned_loop(const Stmt& s) = 0;
  virtual void store(const Stmt& s) = 0;
  virtual void prefetch(const Stmt& s) = 0;
  virtual void local_store(const Stmt& s) = 0;
  virtual void barrier() = 0;
  virtual void matrix(const Stmt& s) = 0;
  /// kCopy, kPipe and kWarpgroupMma, where programs may have them.
  virtual void beside(const Stmt& s);
  /// Where programs may have checks.
  virtual void fault(const Stmt& s);

  const Program& p_;
  std::string out_;
  int depth_ = 0;

 private:
  void statement(const Stmt& s);
};

}  // namespace bm::compiler
