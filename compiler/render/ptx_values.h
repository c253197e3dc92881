#pragma once
// Values of a Program as PTX operands and instructions. Private to render_ptx.cpp.

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "compiler/program/program.h"
#include "compiler/render/ptx_text.h"

namespace bm::compiler::ptx {

class Values {
 public:
  Values(const Program& program, Writer& out);

  /// 64-bit integer that lives in a 32-bit register (signed).
  bool is_narrow(ValueId v) const { return narrow_[v]; }
  File file(ValueId v) const;
  /// Immediate or register.
  std::string operand(ValueId v);
  /// A register, also for constants.
  std::string in_register(ValueId v);
  /// An integer as 64-bit or 32-bit operand.
  std::string wide(ValueId v);
  std::string low(ValueId v);
  /// A new register for a value; the last one is what operand() gives.
  std::string define(ValueId v);
  void alias(ValueId v, std::string operand) { names_[v] = std::move(operand); }

  /// kConvert and kAlu.
  void emit(ValueId v);
  /// Copies between registers of one file.
  void move(File file, std::string_view to, std::string_view from);

 private:
  void convert(ValueId id);
  void convert_integer(ValueId id);
  void bitcast(ValueId id);
  void bitcast_small(ValueId id);
  void alu(ValueId id);
  void compare(ValueId id, std::string_view relation);
  void select(ValueId id);
  void logic(ValueId id, std::string_view op);
  void shift(ValueId id, std::string_view op);
  void arithmetic(ValueId id, std::string_view integer_op, std::string_view float_op);
  void half_arithmetic(ValueId id, std::string_view op);
  void unary_float(ValueId id, std::string_view op);
  /// Puts a 32-bit result that may exceed `t` back into its range.
  std::string in_range(DType t, const std::string& from);
  std::string sized(ValueId v, bool is_wide) { return is_wide ? wide(v) : low(v); }

  const Program& p_;
  Writer& out_;
  std::vector<bool> narrow_;
  std::unordered_map<ValueId, std::string> names_;
};

}  // namespace bm::compiler::ptx
