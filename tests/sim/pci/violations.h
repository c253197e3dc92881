#pragma once
// What a model holds against its driver.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace bm::sim {

/// What a driver did that hardware would not stand, in the order in which it happened. Thread: any.
class Violations {
 public:
  void add(std::string text);
  std::vector<std::string> all() const;
  /// Texts that begin so are counted apart and not kept: for runs of drivers that are not ours,
  /// whose list is printed.
  void tolerate(std::string prefix);
  std::vector<std::string> tolerated() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
  std::vector<std::string> prefixes_;
  std::map<std::string, uint64_t> tolerated_;
};

}  // namespace bm::sim
