#pragma once
// What repeated measurements say.

#include <cstddef>
#include <vector>

namespace bm::cli {

struct Summary {
  size_t count = 0;
  double median = 0;
  double low = 0, high = 0;  ///< quartiles
  double least = 0;

  /// Distance of the quartiles as a share of the median; 0 without samples.
  double spread() const { return median > 0 ? (high - low) / median : 0; }
};

/// Values between two samples are interpolated. No samples: all zero.
Summary summarize(std::vector<double> samples);

}  // namespace bm::cli
