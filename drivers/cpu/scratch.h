#pragma once
// Working memory of kernels: one block for every thread that executes one.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/base/result.h"

namespace bm::cpu {

/// A fixed number of equal blocks. Memory is made by reserve() only: running a kernel takes a block
/// and gives it back, and waits in the rare case that more threads than blocks are at work.
class Scratch {
 public:
  explicit Scratch(uint32_t blocks);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Every block has at least `bytes` afterwards; waits for those in use if they are smaller.
  /// Thread: any, except one that holds a lease. Errors: kOutOfMemory.
  Status reserve(uint64_t bytes);

  /// The use of one block, aligned to 64 bytes; none for 0 bytes.
  class Lease {
   public:
    /// `preferred`: the block taken if it is free, so that a thread finds its caches warm. `bytes`
    /// were reserved before.
    Lease(Scratch& scratch, uint32_t preferred, uint64_t bytes);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    void* memory() const;

   private:
    Scratch& scratch_;
    uint32_t block_;
  };

 private:
  static constexpr uint32_t kNoBlock = ~0u;
  struct alignas(64) Block {
    std::atomic<bool> is_taken{false};
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
  };
  bool take(Block& block) {
    return !block.is_taken.load(std::memory_order_relaxed) &&
           !block.is_taken.exchange(true, std::memory_order_acquire);
  }
  static Status grow(Block& block, uint64_t bytes);

  const uint32_t count_;
  const bool is_poisoned_;  ///< BM_POISON: every lease begins with a block full of ones
  std::unique_ptr<Block[]> blocks_;
  std::mutex mutex_;
  std::atomic<uint64_t> reserved_{0};
};

}  // namespace bm::cpu
