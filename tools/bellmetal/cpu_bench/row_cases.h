#pragma once
// Work on an n × n matrix that reads or writes every number once, in Python and in float64 as well.

#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace bm::cli {

struct RowCase {
  const char* name;
  const char* expression;  ///< the same in Python, over x, w and b
  Tensor (*work)(const std::vector<Tensor>&);
  /// Line `i` of the result from the n × n matrix x and the vectors w and b, in float64.
  std::vector<double> (*line)(const std::vector<float>& x, const std::vector<float>& w,
                              const std::vector<float>& b, int64_t n, int64_t i);
  bool is_read_only = false;  ///< what is written does not count
  bool is_ordered = false;    ///< results depend on those before them, or on an order of values
};

/// All of them; they live as long as the program.
std::span<const RowCase> row_work();

/// Relative error of the result `got` of work on `in` (x, w, b), on at most 16 lines.
double line_error(const RowCase& row, const std::vector<float>& got,
                  const std::vector<std::vector<float>>& in, int64_t n);

}  // namespace bm::cli
