#pragma once
// C for one work-item of a group: what OpenCL C, CUDA and HIP share. Scalars only: consecutive
// work-items are the device's lanes. Private to render_opencl.cpp and render_cpp_items.h.

#include <vector>

#include "compiler/render/c_like.h"

namespace bm::compiler {

class WorkItemC : public CLike {
 protected:
  explicit WorkItemC(const Program& p) : CLike(p) {}

  /// bool is a byte of 0 or 1; 16-bit floats travel as their bits.
  virtual std::string_view type_name(DType t) const = 0;
  /// Pointer to a param's elements.
  virtual std::string pointer(size_t param) const = 0;
  virtual std::string group_number(uint32_t axis) const = 0;
  virtual std::string half_to_float(const std::string& bits) const = 0;
  virtual std::string float_to_half(const std::string& value) const = 0;
  /// Where targets have an instruction for it.
  virtual std::string float_to_bf16(const std::string&) const { return "?"; }
  virtual std::string half_arithmetic(Op, DType, const std::string&, const std::string&) const {
    return "?";
  }
  /// Bits of a value of type `from` as `to`.
  virtual std::string reinterpret(DType to, DType from, const std::string& a) const = 0;
  /// sqrt, trunc, fma of `t`.
  virtual std::string function(std::string_view name, DType t) const = 0;
  /// An entry of a constant table.
  virtual std::string entry(size_t table, const std::string& index) const;
  /// Of kWords and kUnalignedWords.
  virtual std::string_view vector_type(Type) const { return "?"; }
  /// kWords, kUnalignedWords and kIsAligned.
  virtual std::string words(const Value& v) = 0;
  /// Declares v…_0 to v…_3 of a kFragment, where programs may have them.
  virtual void fragment(ValueId id);
  /// Declares a kShuffle, kPackHalf2, kDequantise2, kExp2 or kRoundTf32, where programs may have
  /// them.
  virtual void sub_group(ValueId id);
  /// kDot of one word.
  virtual std::string dot(const Value& v) = 0;
  /// A 64-bit integer that is computed in 32 bits.
  virtual bool is_narrow(ValueId) const { return false; }

  /// "T* p0, …, long var0, …".
  std::string parameters() const;
  /// The kernel: `head` is all before its name, `local` stands before local arrays, `item` declares
  /// the local id of the work-item.
  void kernel(std::string_view head, std::string_view local, std::string_view item);
  /// "1ul, 2ul": the entries of a constant table.
  std::string table_items(size_t table) const;
  /// A constant; floats with all digits or, where there is no such text, by their bits.
  std::string literal(DType t, int64_t imm) const;

  std::string type(Type t) override { return std::string(type_name(t.dtype)); }
  std::string index_type(ValueId v) override { return std::string(value_type(v)); }
  std::string ref(ValueId id) override;
  void let(ValueId id) override;
  void partitioned_loop(const Stmt& s) override;
  void store(const Stmt& s) override;
  void prefetch(const Stmt&) override {}
  void local_store(const Stmt& s) override;

  std::string_view value_type(ValueId v) const;
  std::string load(const Value& v);
  std::string convert(ValueId id);
  std::string alu(ValueId id);

 private:
  void guarded(const Stmt& s);
  void items(const Stmt& s);
  std::string_view wrapping_type(ValueId id) const;
};

}  // namespace bm::compiler
