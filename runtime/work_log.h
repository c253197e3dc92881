#pragma once
// What was submitted last to one device, so that its loss can be told by name.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::runtime {

/// Names of the last submissions by their timeline values. Noting costs no allocation and no lock;
/// names are copied, since programs may be gone by then. Thread: one notes at a time; any reads.
class WorkLog {
 public:
  /// A kernel, or bytes that are copied, or anything else by name.
  struct What {
    std::string_view kernel = {}, name = {};
    uint64_t copied_bytes = 0;
  };
  /// `queue`: "compute", "copy" or both; a literal.
  void note(uint64_t value, const What& what, const char* queue);
  /// Error of a device that was lost for `cause`: the device, queue, work it stands at and what it
  /// completed last stand before the cause. `completed` and `last`: of the timeline.
  Error lost(const std::string& device, Error cause, uint64_t completed, uint64_t last) const;

 private:
  static constexpr size_t kKept = 64, kWords = 25, kNameBytes = kWords * sizeof(uint64_t);
  /// Every submission writes one, and only a wait that gives up reads it: `value` is 0 while the
  /// rest changes, and a reader that sees the same value before and after has all of it.
  struct Work {
    std::atomic<uint64_t> value{0}, copied_bytes{0}, length{0};
    std::atomic<const char*> queue{""};
    std::atomic<bool> is_kernel{false};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };
  struct Kept {
    std::string name;
    const char* queue = "a";
  };
  Kept read(uint64_t value) const;

  std::array<Work, kKept> work_{};  ///< by value modulo
};

/// Whether `error` was made by WorkLog::lost: it names its device, and nobody puts more before it.
bool is_loss(const Error& error);

}  // namespace bm::runtime
