#pragma once
// One hardware queue as a stream of submissions: a ring with tracked consumption, and the doorbell.
//
// Copies are packets in the ring itself: the kernel driver leaves IB_ENABLE of its copy queues
// clear, so that they run no indirect buffers. Source: Linux, kfd_mqd_manager_v11.c (v9, v10, v12
// alike), init_mqd_sdma() and update_mqd_sdma(), which never write sdmax_rlcx_ib_cntl.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/driver_interface.h"
#include "drivers/amd/sdma/packets.h"
#include "drivers/hcq/ring.h"
#include "runtime/base/result.h"

namespace bm::amd {

struct RingOptions {
  QueueType type = QueueType::kPm4;
  uint32_t entries = 1024;           ///< of the ring; power of two
  uint64_t command_bytes = 4 << 20;  ///< space for submissions in flight; copy rings have none
  uint32_t readers = 1;              ///< chiplets that each run every buffer of the ring
  uint32_t sdma_engine = 0;
  uint32_t priority = 7;
  const std::atomic<bool>* is_given_up = nullptr;  ///< ends waits once it is true
};

/// Entries of a compute ring as they go into it. What makes AQL packets valid, their first words,
/// is kept apart: a block is copied in invalid, and becomes valid when all of it is there.
struct RingBlock {
  std::vector<uint32_t> words, headers;  ///< headers: of AQL packets, one each

  void add(const aql::Words& packet);
  void add(std::span<const uint32_t> entry) {
    words.insert(words.end(), entry.begin(), entry.end());
  }
  void replace(uint32_t place, const aql::Words& packet);
};

/// The ring holds entries of one size: PM4 rings buffers to run, AQL rings packets, SDMA rings the
/// dwords of packets, none of which passes the ring's end. No entry is written before the GPU has
/// read the one that was there. Thread: callers serialise.
class HardwareRing final : public hcq::Ring {
 public:
  /// For hcq::make_ring().
  HardwareRing(DriverInterface& driver, hcq::MemoryPool& pool, const RingOptions& options);
  Status open();
  QueueType type() const { return options_.type; }
  uint32_t entries() const { return options_.entries; }
  HardwareQueue& queue() { return *queue_; }

  /// Value the next submission's words must write to fence_va() at their end, and the k-th reader
  /// of several kFenceBytes * k further on: what one has passed others may still be reading.
  uint64_t next_fence() const { return fence_value_ + 1; }
  uint64_t fence_va() const { return fence_.va(); }
  uint32_t readers() const { return options_.readers; }
  static constexpr uint64_t kFenceBytes = 64;
  /// To be called once per submission whose words hold next_fence().
  void finish();

  bool has_room(uint32_t count) {
    if (fits(count)) [[likely]]
      return true;
    read_ = read_entries();
    return fits(count);
  }
  /// Waits, bounded, until the ring has room for `count` entries. Errors: kTimeout when the GPU
  /// takes nothing.
  Status wait_room(uint32_t count);
  /// Puts a buffer into the compute ring, after has_room(). The GPU does not look before publish().
  void enqueue(uint64_t va, uint32_t dwords);
  /// The same for a packet of an AQL ring.
  void enqueue(const aql::Words& packet);
  /// The same for entries of a block, after has_room(count).
  void enqueue(const RingBlock& block, uint32_t first, uint32_t count);
  /// Adds to a block what enqueue(va, dwords) puts into the ring.
  void add_to(RingBlock& block, uint64_t va, uint32_t dwords) const;
  /// The same for packets of a copy ring: all of next_part(), after has_room(room_of()).
  void enqueue(std::span<const uint32_t> packets);
  /// As many of these packets as may be enqueued at once.
  std::span<const uint32_t> next_part(std::span<const uint32_t> packets) const;
  /// Entries for packets of `dwords`, with what is filled up at the ring's end.
  static uint32_t room_of(size_t dwords) { return static_cast<uint32_t>(dwords) + kMostFill; }
  void publish();

  /// Whether every reader has.
  bool has_passed(uint64_t fence) const { return passed() >= fence; }
  /// Waits, bounded, until every reader has.
  Status wait_passed(uint64_t fence) const;
  bool is_busy() const { return !has_passed(fence_value_); }
  /// Waits, bounded, until everything finished so far has been executed.
  Status drain();
  /// After a recovery of the GPU, which reads nothing of the ring any more: what was in flight
  /// counts as passed, and the queue begins with an empty ring.
  Status restart();
  /// Whether everything finished so far is executed within `limit`, without a fault.
  bool drains_within(std::chrono::milliseconds limit);
  uint64_t published() const { return put_; }
  /// Kernel descriptor of the first launch the GPU has not read past, of an AQL ring; 0: none.
  uint64_t descriptor_at_read_index() const;
  /// "compute ring: 7 written, 5 read of 1024; fence 3 of 4", for messages about hangs.
  std::string state() const override;

 private:
  uint32_t entry_bytes() const;
  uint64_t ring_bytes() const { return uint64_t{options_.entries} * entry_bytes(); }
  void clear_ring();
  uint64_t read_entries() const;
  bool fits(uint32_t count) const {
    return ((put_ - read_) & (options_.entries - 1)) + count < options_.entries;
  }
  uint64_t passed() const override;
  const char* failure(bool may_ask) const override;
  uint64_t slot() const { return (put_ & (options_.entries - 1)) * entry_bytes(); }

  DriverInterface& gpu_;
  const RingOptions options_;
  std::unique_ptr<Memory> ring_;
  std::unique_ptr<HardwareQueue> queue_;
  uint64_t put_ = 0, published_ = 0;  ///< entries
  uint64_t read_ = 0;  ///< modulo the ring; the GPU is past it. Read anew when the ring seems full
  static constexpr uint32_t kMostFill = sdma::kLongestDwords - 1;
};

}  // namespace bm::amd
