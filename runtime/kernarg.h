#pragma once
// Argument blocks of eager launches: a ring of host-visible memory that is never overwritten while
// the device may still read it.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/timeline.h"

namespace bm::runtime {

/// The ring is divided into segments. A segment is refilled only when every block reserved in it
/// was committed and the Points they were committed with have passed; otherwise reserve() waits.
/// Thread: safe. A thread must not hold one block while it reserves another.
class KernargRing {
 public:
  struct Options {
    uint64_t segment_bytes = 64 * 1024;
    uint32_t segments = 16;
  };

  static Result<std::unique_ptr<KernargRing>> create(hal::Device& device, Options options);
  static Result<std::unique_ptr<KernargRing>> create(hal::Device& device) {
    return create(device, Options());
  }

  /// Words the caller may write until commit(). Destroying it uncommitted gives the space back.
  class Block {
   public:
    Block(Block&& other) noexcept;
    Block& operator=(Block&&) = delete;
    ~Block();
    hal::GpuVa va() const { return va_; }
    std::span<uint64_t> words() const { return words_; }
    /// The device reads the block until `point`.
    void commit(Point point);

   private:
    friend class KernargRing;
    Block(KernargRing* ring, size_t segment, hal::GpuVa va, std::span<uint64_t> words)
        : ring_(ring), segment_(segment), va_(va), words_(words) {}
    KernargRing* ring_;
    size_t segment_;
    hal::GpuVa va_;
    std::span<uint64_t> words_;
  };

  /// 16-byte aligned. Errors: kInvalidArgument when larger than a segment; what waiting for the
  /// device's earlier work returns.
  Result<Block> reserve(size_t words);

 private:
  struct Segment {
    uint64_t used = 0;     ///< bytes
    uint32_t pending = 0;  ///< blocks reserved and not committed
    Point last_user;
  };
  KernargRing(std::unique_ptr<hal::Buffer> memory, Options options);
  Status recycle(std::unique_lock<std::mutex>& lock, size_t segment);
  void release(size_t segment, Point point);

  const Options options_;
  std::unique_ptr<hal::Buffer> memory_;
  std::mutex mutex_;
  std::condition_variable committed_;
  std::vector<Segment> segments_;
  size_t current_ = 0;
};

}  // namespace bm::runtime
