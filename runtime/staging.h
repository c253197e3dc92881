#pragma once
// Copies between host memory and device memory the CPU cannot reach, through pinned slots.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/buffer.h"

namespace bm::runtime {

class Allocator;
class Stream;

struct StagingOptions {
  uint64_t slot_bytes = 2ull << 20;
  uint32_t in_slots = 8;  ///< most slots of a direction; made when the ones at hand are busy
  uint32_t out_slots = 4;
};

/// Two rings of host-visible slots, one per direction. Host work on one slot overlaps with the
/// device's copies of the others. A slot is free again when the Point of its last copy is reached.
///
/// Thread: safe. `fill` runs with the inbound ring locked and must not use it; `drain` runs with
/// the outbound ring locked and may use any inbound ring (that order is what keeps two devices
/// copying to each other from deadlock).
class Staging {
 public:
  Staging(Allocator& allocator, Stream& stream, StagingOptions options = {});

  /// Writes bytes [offset, offset + chunk.size()) of the copy into `chunk`.
  using Fill = std::function<Status(std::span<std::byte> chunk, uint64_t offset)>;
  /// Takes those bytes out of `chunk`.
  using Drain = std::function<Status(std::span<const std::byte> chunk, uint64_t offset)>;

  /// Queues copies of what `fill` provides, chunk by chunk in order; returns when the last chunk is
  /// queued. Errors: of fill, memory, submission, waiting; chunks before it are copied then.
  Status copy_in(const Buffer& dst, const Fill& fill);
  /// Hands the buffer's bytes to `drain`, chunk by chunk in order. Errors as above.
  Status copy_out(const Buffer& src, const Drain& drain);

 private:
  struct Slot {
    StoragePtr memory;
    Point busy_until;
  };
  struct Ring {
    std::mutex lock;
    std::vector<Slot> slots;
    size_t next = 0;  ///< inbound: the slot used longest ago
  };

  Result<Slot*> acquire_in_slot();
  Status reserve_out_slots(uint64_t wanted);
  Result<Slot> new_slot();
  Status submit_copy(Slot& slot, hal::GpuVa dst, hal::GpuVa src, uint64_t bytes,
                     const Buffer& user);
  uint64_t chunk_at(uint64_t offset, uint64_t total) const;

  Allocator& allocator_;
  Stream& stream_;
  const StagingOptions options_;
  Ring in_, out_;
};

}  // namespace bm::runtime
