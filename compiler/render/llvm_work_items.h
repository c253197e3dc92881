#pragma once
// LLVM IR for one work-item of a group: what NVIDIA's and AMD's targets share. Private to
// render_nvptx.cpp and render_amdgpu.cpp.

#include <string>
#include <vector>

#include "compiler/program/narrow.h"
#include "compiler/render/llvm_text.h"

namespace bm::compiler {

/// Params lie in address space 1, local arrays in 3. Metadata from kFirstBound on are ranges. A
/// value %v1 that fits 32 bits is %v1.n, too, and computed as that.
class LlvmWorkItems : public LlvmText {
 protected:
  LlvmWorkItems(const Program& p, uint32_t stack, NarrowValues narrow)
      : LlvmText(p, stack), narrow_(std::move(narrow)) {}
  static constexpr size_t kFirstBound = 2;

  /// Intrinsics without arguments, i32: number of this group along an axis of the grid, and of this
  /// work-item in its group.
  virtual std::string_view group_number(uint32_t axis) const = 0;
  virtual std::string_view item_number() const = 0;
  virtual void barrier() = 0;
  /// Whether vectors of bytes are stored as words: the back end would divide them otherwise.
  virtual bool stores_words() const { return false; }
  virtual void matrix(const Stmt& s) = 0;
  /// kDot of one word.
  virtual void dot(ValueId id, const Value& v) = 0;
  /// kTable.
  virtual void table(ValueId id, const Value& v);
  /// kCopy, kPipe and kWarpgroupMma; kFragment. Where programs may have them.
  virtual void beside(const Stmt& s);  // but for kOrder, which is nothing here
  virtual void fragment(ValueId id, const Value& v);
  /// kShuffle, kPackHalf2, kDequantise2, kExp2 and kRoundTf32, the same.
  virtual void sub_group(ValueId id, const Value& v);

  /// The kernel, its linkage and calling convention as `define` says, attribute group #0.
  void kernel(std::string_view define, std::string_view metadata = "");
  std::string local_arrays() const;
  std::string bounds() const;

  void let(ValueId id) override;
  void loop(const Stmt& s) override;
  void memory_statement(const Stmt& s) override;
  void memory_value(ValueId id, const Value& v) override;

 private:
  /// The same number in 32 and in 64 bits.
  struct Number {
    std::string narrow, wide;
  };
  Number special(std::string_view intrinsic, int64_t bound);

  bool fits(ValueId v) const { return v < narrow_.fits.size() && narrow_.fits[v]; }
  bool is_natural(ValueId v) const { return fits(v) && narrow_.is_natural[v]; }
  std::string narrow_ref(ValueId v) const;
  /// "i32 %v1.n" where it fits, else "i64 %v1".
  std::string index_type(ValueId v) const { return fits(v) ? "i32" : "i64"; }
  std::string index_ref(ValueId v, bool is_narrow) const {
    return is_narrow ? narrow_ref(v) : ref(v);
  }
  void widen(ValueId v);
  bool narrow_alu(ValueId id);

  void guarded(const Stmt& s);
  void branch_below_end(const Stmt& s, const std::string& body, const std::string& exit);
  void counted(const Stmt& s);
  void items(const Stmt& s);
  std::string address(uint32_t param, ValueId index);
  std::string byte_address(uint32_t param, ValueId index);
  std::string local_address(uint32_t array, ValueId index);
  void store_together(const Stmt& s);
  void words(ValueId id, const Value& v, uint32_t alignment);

  const NarrowValues narrow_;  ///< empty: all is done in 64 bits
  Number item_;
  std::vector<int64_t> bounds_;  ///< of intrinsics, by metadata number
};

}  // namespace bm::compiler
