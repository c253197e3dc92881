#pragma once
// How far a long run of random kernels has come: kept in a file, so that it can go on another time.

#include <cstdint>
#include <map>
#include <string>

#include "tests/unit/compiler/census.h"

namespace bm::test {

struct RandomProgress {
  std::map<std::string, uint64_t> next;  ///< by case: the first seed that is not done
  Census census;

  /// Nothing where there is no such file. Errors: kCorrupt naming the line.
  static Result<RandomProgress> load(const std::string& path);
  /// Errors: kIo.
  Status save(const std::string& path) const;
};

}  // namespace bm::test
