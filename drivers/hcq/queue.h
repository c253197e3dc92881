#pragma once
// Submitting, recording and replaying: what queues of all vendors do around their rings.

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "drivers/hcq/memory_pool.h"
#include "drivers/hcq/encoded_commands.h"
#include "runtime/base/check.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::hcq {

/// Thread: safe, under the GPU's mutex.
///
/// `Derived` has kRecordingDomain, where recordings lie, and, all under the mutex:
///   Status submit_locked(commands), Status replay_locked(Recording&, values),
///   Context recording_context(), auto kept_by_recordings() (what Recording::build() takes last).
template <class Derived, class Gpu, class Context, class EncodedCommands, class Recording>
class QueueBase : public hal::Queue {
 public:
  ~QueueBase() override {
    const std::lock_guard lock(gpu_->mutex);
    words_.reset();
  }

  Status submit(std::span<const hal::Command> commands) final {
    const std::lock_guard lock(gpu_->mutex);
    return self().submit_locked(commands);
  }

  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) final {
    const std::vector<uint8_t> patched = BM_TRY(patched_bits(commands, patches));
    EncodedCommands encoded;
    Allocation memory;
    std::unique_lock lock(gpu_->mutex);
    BM_TRY(gpu_->health_locked());
    // Once to learn the size, once with the address.
    Context where = self().recording_context();
    where.waits_for_copies = where.has_compute;
    BM_TRY(encode(commands, patched, where, encoded));
    memory = BM_TRY(gpu_->pool.allocate(Recording::bytes_for(encoded), Derived::kRecordingDomain));
    where.data_va = memory.va();
    const Status again = encode(commands, patched, where, encoded);
    BM_CHECK(again.has_value());
    auto kept = self().kept_by_recordings();
    lock.unlock();
    auto recording = BM_TRY(Recording::build(gpu_, std::move(memory), std::move(encoded), patches,
                                             rings_, std::move(kept)));
    return std::unique_ptr<hal::Recording>(std::move(recording));
  }

  Status replay(hal::Recording& recording, std::span<const uint64_t> values) final {
    auto* mine = dynamic_cast<Recording*>(&recording);
    if (mine == nullptr || mine->gpu() != gpu_.get())
      return fail(Code::kInvalidArgument, "a recording of another device");
    const std::lock_guard lock(gpu_->mutex);
    return self().replay_locked(*mine, values);
  }

 protected:
  using Ring = typename Gpu::Ring;
  // Words that the rings poll, each in a cache line of its own. A vendor's own follow.
  static constexpr uint64_t kToCopies = 0, kToCompute = 64, kWordBytes = 128;

  /// `compute` may be null: a copy queue. Both rings outlive the queue.
  QueueBase(std::shared_ptr<Gpu> gpu, Ring* compute, Ring* copies)
      : gpu_(std::move(gpu)), rings_{compute, copies} {
    base_.gpu = gpu_.get();
    base_.has_compute = compute != nullptr;
    base_.arguments = [pool = &gpu_->pool](uint64_t va, uint64_t bytes) {
      return pool->readable(va, bytes);
    };
  }
  /// Errors: kOutOfMemory for the words that keep the rings in order.
  Status open(MemoryDomain domain, uint64_t bytes = kWordBytes) {
    const std::lock_guard lock(gpu_->mutex);
    words_ = BM_TRY(gpu_->pool.allocate(bytes, domain));
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t))
      words_.view().store_release<uint64_t>(at, 0);
    base_.to_copies = words_.va() + kToCopies;
    base_.to_compute = words_.va() + kToCompute;
    return {};
  }
  /// Both words at `value`, when no ring is at work.
  void set_cross_releases(uint64_t value) {
    words_.view().store_release(kToCopies, value);
    words_.view().store_release(kToCompute, value);
  }
  /// Whether the copy ring has made the last cross-engine release.
  bool has_caught_up() const { return released_to_compute() >= cross_releases_; }
  /// The last cross-engine release that the copy ring has made. Read from memory.
  uint64_t released_to_compute() const {
    return words_.view().template load_acquire<uint64_t>(kToCompute);
  }
  /// For messages about faults, when the commands were submitted.
  void note(std::span<const hal::Command> commands) {
    gpu_->log.note(commands);
    for (const auto& part : encoded_.launches) gpu_->log.note_kernel(part.program->code().entry);
  }

  std::shared_ptr<Gpu> gpu_;
  std::array<Ring*, kRings> rings_;
  Context base_;
  Allocation words_;  ///< to copies, to compute
  uint64_t cross_releases_ = 0;
  EncodedCommands encoded_;  ///< reused by submit

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
};

}  // namespace bm::hcq
