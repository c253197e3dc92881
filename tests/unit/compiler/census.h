#pragma once
// Counts which schedules kernels were given, so that a generator of random kernels can be held to
// reaching all of them.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/compile.h"

namespace bm::test {

/// Names of what a kernel was made with: "packed GEMM", "attention, masked keys", …
std::vector<std::string_view> schedules_of(const compiler::Schedule& schedule,
                                           const compiler::Program& program);
/// All names that kernels for `target` can have.
std::vector<std::string_view> schedules_for(const compiler::TargetInfo& target);

/// Thread: one at a time.
class Census final : public compiler::CompileWatcher {
 public:
  void see(const compiler::Schedule& schedule, const compiler::Program& program) override;
  void add(std::string_view name, uint64_t count) { counts_[std::string(name)] += count; }
  void add(const Census& other);
  uint64_t count(std::string_view name) const;
  const std::map<std::string, uint64_t, std::less<>>& counts() const { return counts_; }
  /// "name: count", most frequent first.
  std::string text() const;

 private:
  std::map<std::string, uint64_t, std::less<>> counts_;
};

}  // namespace bm::test
