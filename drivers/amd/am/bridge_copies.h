#pragma once
// Bytes between the host and a card behind a USB bridge through the memory of the bridge that both
// reach (StagingMemory): hundreds of megabytes a second, where requests to the BARs carry four.
// A queue of the copy engine that is nobody else's moves them on.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/amd/chips.h"
#include "drivers/amd/driver_interface.h"
#include "drivers/transport/clock.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// Thread: callers serialise.
class BridgeCopies {
 public:
  /// Below it requests to the BAR are quicker: a copy takes some ten transfers whatever its size.
  static constexpr uint64_t kLeastBytes = 16 << 10;

  /// Addresses on the GPU of the bridge's memory and of what lets reads go.
  struct Places {
    uint64_t memory = 0, release = 0;
  };
  /// `queue` of kind SDMA over `ring`; `fence`: a page. All are the copies' from here on.
  BridgeCopies(StagingMemory& staging, const Places& places, Clock& clock, SdmaForm form,
               std::unique_ptr<Memory> ring, std::unique_ptr<Memory> fence,
               std::unique_ptr<HardwareQueue> queue);

  /// No sentinel of somebody who was here before is in the bridge's memory afterwards.
  /// Errors: kTimeout (the engine does not answer); of the transport.
  Status start();
  /// After a reset of the copy engines, with the queue at its beginning.
  void restart() { written_ = 0; }

  /// Seen by the GPU when it returns. Errors: kTimeout; of the transport.
  Status write(uint64_t va, std::span<const std::byte> from);
  Status read(uint64_t va, std::span<std::byte> to);

  HardwareQueue& queue() { return *queue_; }

 private:
  struct Piece {
    uint64_t va = 0;
    std::span<const std::byte> bytes;
    uint64_t window = 0;  ///< 0 or 1
    uint32_t sequence = 0;
  };
  Status send(const Piece& piece);
  void submit(std::span<const uint32_t> words);
  /// Until the engine has passed a fence.
  Status wait(uint32_t sequence, uint64_t longest_us);
  uint64_t sentinel(uint64_t window) const;
  uint64_t place(const Piece& piece) const;

  StagingMemory& staging_;
  const Places places_;
  Clock& clock_;
  const SdmaForm form_;
  std::unique_ptr<Memory> ring_, fence_;
  std::unique_ptr<HardwareQueue> queue_;
  uint64_t window_bytes_ = 0;
  uint64_t written_ = 0;   ///< bytes of the ring, since the queue began
  uint32_t sequence_ = 0;  ///< of the last fence submitted
  uint32_t passed_ = 0;    ///< the last one seen
  std::vector<std::byte> buffer_;
};

}  // namespace bm::amd::am
