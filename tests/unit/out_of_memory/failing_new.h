#pragma once
// operator new that fails when it is told to, on the thread that told it.

#include <cstdint>

namespace bm::testing {

/// While it lives, the n-th allocation of this thread throws std::bad_alloc, counted from 1;
/// kFromThere: and every later one.
class FailingNew {
 public:
  enum class Which { kOne, kFromThere };
  explicit FailingNew(uint64_t n, Which which = Which::kOne);
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
  bool has_failed() const;
};

}  // namespace bm::testing
