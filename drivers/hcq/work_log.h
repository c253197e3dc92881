#pragma once
// What was submitted last, for messages about faults and hangs.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "drivers/hcq/memory_pool.h"
#include "runtime/hal/command.h"

namespace bm::hcq {

/// Noting costs no allocation. Copies and waits of replays are not noted.
class WorkLog {
 public:
  void note_kernel(std::string_view name);
  /// `names` of a whole recording: kept by reference.
  void note_replay(std::shared_ptr<const std::string> names);
  /// The copies and waits among the commands of a submission: nothing tells which address a copy
  /// engine missed, or which wait a queue stands at.
  void note(std::span<const hal::Command> commands);

  /// "a, b, c", latest last; "none yet". `has_count`: with " (dispatch 17)".
  std::string kernels(bool has_count = false) const;
  /// Copies that touch what is no memory of the pool, oldest first: "; copy of 64 bytes from 0x… to
  /// 0x… touches 0x… (12 bytes past …)"; empty when there is none.
  std::string suspects(const MemoryPool& pool) const;
  /// Waits whose word is the host's to read and still too small, oldest first: "; a queue may wait
  /// at 0x… for value 7, it is 0"; empty when there is none.
  std::string unmet(const MemoryPool& pool) const;

 private:
  static constexpr size_t kNames = 4, kBytes = 64;
  std::array<std::array<char, kBytes>, kNames> names_{};
  uint64_t dispatches_ = 0;
  std::shared_ptr<const std::string> replayed_;
  bool is_replay_last_ = false;
  std::array<hal::Copy, 8> copies_{};
  size_t next_copy_ = 0;
  std::array<hal::Wait, 4> waits_{};
  size_t next_wait_ = 0;
};

}  // namespace bm::hcq
