#pragma once
// One hardware channel as a stream of push buffers: a ring that is reused only after a semaphore
// release says that the GPU has passed its entries, and the doorbell.
//
// The ring's own read pointer is never read: from Blackwell on a channel has none (clc96f.h,
// Nvc96fControl), before it may lag or be switched off (open-gpu-doc, dev_ram.ref, RAMUSERD).

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/hcq/ring.h"
#include "drivers/nv/driver_interface.h"
#include "drivers/nv/methods/push.h"
#include "runtime/base/result.h"

namespace bm::nv {

struct RingOptions {
  Engine engine = Engine::kCompute;
  uint32_t copy_index = 0;
  uint32_t entries = 1024;                         ///< of the ring; power of two
  uint64_t command_bytes = 4 << 20;                ///< space for submissions in flight
  const std::atomic<bool>* is_given_up = nullptr;  ///< ends waits once it is true
};

/// Words of a fence that follows the ring itself, see HardwareRing::enqueue().
inline constexpr size_t kRingFenceWords = 6;

/// Thread: callers serialise.
class HardwareRing final : public hcq::Ring {
 public:
  /// For hcq::make_ring().
  HardwareRing(DriverInterface& driver, hcq::MemoryPool& pool, const RingOptions& options);
  Status open();

  const ChannelClasses& classes() const { return classes_; }
  Channel& channel() { return *channel_; }

  /// To be called once per submission after its last word: adds a fence when one is due.
  void finish(Push& push);
  /// Waits, bounded, until the ring has room for one entry and the fence that may follow it.
  /// Errors: kTimeout when the GPU takes nothing; the channel's fault.
  Status make_room();
  /// Puts `words` dwords at `va` into the ring, after make_room(), and a fence behind them each
  /// quarter of the ring. The GPU does not look before ring_doorbell().
  void enqueue(uint64_t va, uint32_t words);
  /// Publishes everything enqueued.
  void ring_doorbell();
  /// Submits `words` at once, with a fence behind them; returns its value for has_passed().
  Result<uint64_t> submit(std::span<const uint32_t> words);
  bool has_passed(uint64_t fence) const;
  /// Waits, bounded, until everything enqueued so far has been executed.
  Status drain();

  /// Gives the channel back; what it has not done is dropped. Then only restart() is allowed.
  void stop() { channel_.reset(); }
  /// A new channel on the same memory, everything so far counted as done.
  Status restart();

  bool has_error() const { return channel_ != nullptr && channel_->has_error(); }
  /// True unless everything enqueued is known to be done.
  bool is_busy() const;
  /// Appends an interrupt behind all work in flight, unless it is there already.
  Status request_interrupt();
  /// Asks the channel how far it is, for state(): a fence of its own, whose arrival is_all_taken()
  /// tells.
  void begin_probe();
  /// Whether all entries are known to be taken, or nothing more can be learned.
  bool is_all_taken() const;
  /// "compute ring: 5 entries put, 3 or more taken, of 1024; fence 2 of 4", for messages about
  /// hangs.
  std::string state() const override;

 private:
  Status start();
  uint64_t userd_offset() const;
  uint64_t passed() const override;
  uint64_t taken_now() const;
  const char* failure(bool may_ask) const override;
  bool has_room();
  uint64_t ring_fences_offset() const { return userd_offset() + kUserdBytes; }
  void put_entry(uint64_t va, uint32_t words);
  void put_ring_fence();
  uint64_t add_fence(Push& push);
  bool is_fence_due() const;
  /// Command space taken so far is free again once the GPU has passed `fence`.
  void mark_due(uint64_t fence);

  DriverInterface& gpu_;
  const RingOptions options_;
  ChannelClasses classes_;

  std::unique_ptr<Memory> ring_;
  std::unique_ptr<Channel> channel_;
  Doorbell<uint32_t> doorbell_;
  // In entries since the channel was made; an entry's place is its number modulo the ring's size.
  uint64_t put_ = 0;
  uint64_t taken_ = 0;       ///< the GPU is past these; read again only when the ring seems full
  uint64_t ring_fence_ = 0;  ///< put_ behind the last fence of the ring
  uint64_t ring_fences_ = 0;
  uint64_t covered_ = 0;  ///< put_ behind the last words that end in a fence of work
  std::array<uint32_t, kRingFenceWords> ring_fence_words_{};
  bool is_published_ = true;

  uint64_t fenced_ = 0;       ///< next_ when the last fence was due
  uint64_t interrupted_ = 0;  ///< put_ behind the last interrupt
  std::vector<uint32_t> scratch_;
};

}  // namespace bm::nv
