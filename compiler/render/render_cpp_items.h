#pragma once
// C++ for one work-item of a group: what CUDA and HIP share. Private to render_cuda.cpp and
// render_hip.cpp.

#include <string>
#include <string_view>
#include <vector>

#include "compiler/render/render_work_items.h"

namespace bm::compiler {

class CppItems : public WorkItemC {
 protected:
  struct Names {
    std::string_view device;        ///< in front of helper functions
    std::string_view word2, word4;  ///< vectors of 32-bit words
  };
  CppItems(const Program& p, const Names& names);

  bool is_narrow(ValueId v) const override { return narrow_[v]; }
  std::string_view type_name(DType t) const override;
  std::string pointer(size_t param) const override;
  std::string half_to_float(const std::string& bits) const override;
  std::string float_to_half(const std::string& value) const override;
  std::string_view vector_type(Type t) const override { return vector_name(t.lanes); }
  std::string words(const Value& v) override;

  /// Helpers that the program wants: bm_half_to_float and bm_float_to_half, and bm_words1, 2 and 4,
  /// words at any address.
  void helpers();
  /// Statement of bm_half_to_float(unsigned short a) or bm_float_to_half(float a).
  virtual std::string half_conversion(bool is_widening) const = 0;
  /// Statements that fill w, so many words, from the elements at p.
  virtual void fill_words(uint32_t lanes, DType t) = 0;

  const Names names_;

 private:
  std::string_view vector_name(uint32_t words) const;
  void half_conversions();
  void word_loads();

  const std::vector<bool> narrow_;
};

}  // namespace bm::compiler
