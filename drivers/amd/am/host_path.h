#pragma once
// How bytes go between the host and a card that reaches no memory of the host (behind a USB
// bridge): through the card's BARs.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// Thread: any, beside whatever else touches the card; the transport must take calls of any thread.
class HostPath {
 public:
  HostPath(Bus& bus, Gmc& gmc) : bus_(bus), gmc_(gmc) {}

  /// Video memory that the BAR shows, as a view for those who write it word by word: neighbouring
  /// writes become one, and flush() makes them seen by the card. Outlived by the path.
  std::unique_ptr<RemoteWindow> window(uint64_t physical, uint64_t bytes);

 private:
  class Window;
  void write(uint64_t physical, std::span<const std::byte> from);
  void read(uint64_t physical, std::span<std::byte> to);
  /// What was written reaches the card's engines before whatever is written next.
  void publish();
  void send_run();

  Bus& bus_;
  Gmc& gmc_;
  std::mutex mutex_;
  uint64_t run_at_ = 0;          ///< physical
  std::vector<std::byte> run_;   ///< written, not sent yet
  bool is_unpublished_ = false;  ///< sent, and perhaps still in the host data path
};

}  // namespace bm::amd::am
