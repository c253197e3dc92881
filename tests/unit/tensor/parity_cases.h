#pragma once
// Every operation as a row: inputs to draw, dtypes it exists on, how exact devices must agree.

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace bm::test {

/// How input values are drawn. Ranges keep comparisons meaningful: no overflow, no division near
/// zero, no logarithm of negative numbers.
enum class Draw : uint8_t {
  kAny,        ///< floats in [-3, 3], integers in [-9, 9] (unsigned [0, 9])
  kPositive,   ///< [0.25, 4]; integers [1, 9]
  kUnit,       ///< [-0.95, 0.95]
  kNonZero,    ///< kAny without (-0.25, 0.25)
  kCount,      ///< whole numbers in [0, 3]
  kPositions,  ///< int64 in [-n, n), n = size of input 0 along axis 0
  kFlags,      ///< bool
};

enum class Types : uint8_t { kAll, kNumbers, kFloats, kIntegers, kBits };

struct ParityInput {
  Shape shape;
  Draw draw = Draw::kAny;
};

struct ParityCase {
  std::string name;
  Types types = Types::kAll;
  std::vector<ParityInput> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  /// Allowed error in units of the dtype's rounding, relative to the largest result; 0 = bit-exact.
  double factor = 0;
};

/// Elementwise rows come once per shape of a list that holds 0-d, empty, size-1 and prime axes.
std::vector<ParityCase> parity_cases();

/// Dtypes a row exists on.
std::vector<DType> dtypes_of(Types types);
/// Seeded input of one row.
Tensor draw_input(const ParityInput& input, DType dtype, const ParityCase& row, uint64_t seed,
                  const std::string& device);

}  // namespace bm::test
