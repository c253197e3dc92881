#pragma once
// What every ring of a hardware queue has beside the ring itself: command space that is reused only
// after a fence says that the GPU has passed it, and waits with a bound.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/hcq/memory_pool.h"
#include "runtime/base/result.h"

namespace bm::hcq {

/// Where one submission's words or data lie until the ring's fence passes them.
struct CommandSpace {
  uint64_t va = 0;
  HostView view;  ///< of kVideoMapped: only write, in order
};

/// Thread: callers serialise.
class Ring {
 public:
  virtual ~Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// `bytes` of command space, 256-byte aligned, valid until the fence of the submission it is for.
  /// Waits, bounded, for the GPU when all is in use: what is enqueued must be published then.
  /// Errors: what the wait returns; kOutOfMemory.
  Result<CommandSpace> reserve(uint64_t bytes);
  /// Whether reserve() would not wait.
  bool has_space(uint64_t bytes);
  /// "compute ring: …; fence 2 of 4", for messages about hangs.
  virtual std::string state() const = 0;

 protected:
  struct CommandOptions {
    uint64_t bytes = 0;  ///< of all command space; 0: none
    MemoryDomain domain = MemoryDomain::kSystem;
    size_t marks = 0;  ///< fences that may give space back at once, at least 1
    const std::atomic<bool>* is_given_up = nullptr;  ///< ends waits once it is true
  };
  Ring(MemoryPool& pool, const CommandOptions& options);
  /// Takes command space and `fence_bytes` of memory for fences.
  Status open(uint64_t fence_bytes, MemoryDomain fence_domain);

  /// A word of the fence memory as it is now. A device that is gone reads as all ones, which would
  /// be past every fence: 0 then.
  uint64_t fence_word(uint64_t offset) const {
    const auto word = fence_.view().load_acquire<uint64_t>(offset);
    return word == ~uint64_t{0} ? 0 : word;
  }
  /// The fence that all readers have passed. Read from memory.
  virtual uint64_t passed() const = 0;
  /// What ended all progress, "the channel died", or nullptr. `may_ask`: a system call is in order.
  virtual const char* failure(bool may_ask) const = 0;

  /// Polls with the CPU, then yields. Errors: kTimeout; kDeviceFault with what failure() says;
  /// kDeviceLost with what ended the transport. TIMEOUT: BM_WAIT_TIMEOUT_MS, the bound of every
  /// wait for a device; a healthy ring moves within microseconds of the work before it.
  template <class IsDone>
  Status wait_until(const IsDone& is_done, const char* what) const {
    return wait(
        &is_done, [](const void* callable) { return (*static_cast<const IsDone*>(callable))(); },
        what);
  }

  /// What was reserved so far is free again once the GPU has passed `fence`.
  void mark(uint64_t fence) {
    // When all are taken, space is given back a little later.
    if (!is_marks_full()) ++num_marks_;
    size_t last = first_mark_ + num_marks_ - 1;
    if (last >= marks_.size()) last -= marks_.size();
    marks_[last] = {next_, fence};
  }
  bool is_marks_full() const { return num_marks_ == marks_.size(); }
  /// Counts everything reserved as passed.
  void forget_space();

  MemoryPool& pool_;
  Allocation fence_;          ///< words the GPU writes
  uint64_t fence_value_ = 0;  ///< of the last fence
  // Command space: positions only grow, an address is position modulo size.
  uint64_t next_ = 0;
  bool has_oversized_ = false;  ///< the submission being built has memory of its own

 private:
  struct Mark {
    uint64_t position, fence;
  };
  struct Oversized {
    Allocation memory;
    uint64_t fence;
  };
  Status wait(const void* callable, bool (*is_done)(const void*), const char* what) const;
  bool fits(uint64_t bytes) const { return next_ + bytes - begin_ <= options_.bytes; }
  void collect();
  Result<CommandSpace> reserve_oversized(uint64_t bytes);

  const CommandOptions options_;
  Allocation commands_;
  uint64_t begin_ = 0;
  std::vector<Mark> marks_;  ///< circular
  size_t first_mark_ = 0, num_marks_ = 0;
  std::vector<Oversized> oversized_;  ///< submissions too large for the command space
};

/// A ring that is ready for use, or why not.
template <class RingType, class... Arguments>
Result<std::unique_ptr<RingType>> make_ring(Arguments&&... arguments) {
  auto ring = std::make_unique<RingType>(std::forward<Arguments>(arguments)...);
  BM_TRY(ring->open());
  return ring;
}

}  // namespace bm::hcq
