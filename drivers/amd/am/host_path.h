#pragma once
// How bytes go between the host and a card that reaches no memory of the host (behind a USB
// bridge): through the card's BARs, or much of them at once through the bridge's memory.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "drivers/amd/am/bridge_copies.h"
#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/hcq/host_shadow.h"
#include "drivers/memory/visible_places.h"
#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// Thread: any, beside whatever else touches the card; the transport must take calls of any thread.
class HostPath final : public hcq::HostPath {
 public:
  HostPath(Bus& bus, Gmc& gmc) : bus_(bus), gmc_(gmc) {}

  Status write(uint64_t va, std::span<const std::byte> from) override;
  Status read(uint64_t va, std::span<std::byte> to) override;
  void publish() override;
  /// Addresses that write() and read() serve.
  memory::VisiblePlaces& places() { return places_; }
  /// What moves long ranges from here on; nullptr: the BAR. Waits for a range on its way. Outlives
  /// the path or the next call.
  void use(BridgeCopies* copies);

  /// Video memory that the BAR shows, as a view for those who write it word by word: neighbouring
  /// writes become one, and flush() makes them seen by the card. Outlived by the path.
  std::unique_ptr<RemoteWindow> window(uint64_t physical, uint64_t bytes);

 private:
  class Window;
  void put(uint64_t physical, std::span<const std::byte> from);
  void get(uint64_t physical, std::span<std::byte> to);
  void send_run();

  Bus& bus_;
  Gmc& gmc_;
  std::mutex copies_mutex_;  ///< of a whole range; before the other one
  BridgeCopies* copies_ = nullptr;
  std::recursive_mutex
      mutex_;            ///< before the transport's, which a read of the bridge's memory holds
  uint64_t run_at_ = 0;  ///< physical
  std::vector<std::byte> run_;  ///< written, not sent yet
  memory::VisiblePlaces places_;
  bool is_unpublished_ = false;  ///< sent, and perhaps still in the host data path
};

}  // namespace bm::amd::am
