#pragma once
// Memory for intermediates of captured programs, shared by programs that never run at once.

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/buffer.h"

namespace bm {

/// Intermediates of a program are dead between its runs, so programs that take turns can keep them
/// in the same memory. Programs of one pool run one at a time: each holds run_lock() while it is
/// handed to the devices, and devices run what they are handed in order. Outputs and state never
/// lie here.
///
/// A program gets the smallest block that is large enough, or a new one: blocks never move.
/// Thread: safe.
class ArenaPool {
 public:
  /// `takes_turns` false: whoever owns the pool runs its programs one at a time anyway.
  explicit ArenaPool(bool takes_turns = true) : takes_turns_(takes_turns) {}
  ArenaPool(const ArenaPool&) = delete;
  ArenaPool& operator=(const ArenaPool&) = delete;

  /// At least `bytes` on `device`, freed when the last program that was given them is gone.
  /// Errors: of allocating.
  Result<runtime::Buffer> take(runtime::Device& device, uint64_t bytes);
  /// Bytes of all blocks in use.
  uint64_t bytes() const;
  std::unique_lock<std::mutex> run_lock() {
    return takes_turns_ ? std::unique_lock(running_) : std::unique_lock<std::mutex>();
  }

 private:
  struct Block {
    runtime::Device* device = nullptr;
    std::weak_ptr<runtime::Storage> storage;
    uint64_t size = 0;
  };
  const bool takes_turns_;
  mutable std::mutex mutex_;
  std::mutex running_;
  std::vector<Block> blocks_;
};

}  // namespace bm
