#pragma once
// What a function behind VFIO and one behind a vfio-user server have in common, whose messages are
// VFIO's calls: BARs that are mapped whole, in part or not at all, and interrupts as eventfds.

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/region_window.h"
#include "drivers/transport/system.h"
#include "drivers/transport/vfio_info.h"
#include "runtime/base/result.h"

namespace bm {

class VfioFunction : public PciFunction, protected RegionIo {
 public:
  const std::array<PciBar, kPciBars>& bars() const final { return bars_; }
  Result<Mmio> map_bar(uint32_t index) final;
  /// VFIO maps every BAR uncached (vfio_pci_core_mmap()), whatever is wished.
  Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) final;
  const DmaLimits& dma_limits() const final { return limits_; }
  Result<uint32_t> enable_interrupts(uint32_t wanted) final;
  Result<int> interrupt_fd(uint32_t vector) final;
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) final;

 protected:
  explicit VfioFunction(System& system) : system_(system) { events_.reserve(kMaxVectors); }

  /// In messages.
  virtual std::string name() const = 0;
  virtual Result<VfioRegion> read_region_info(uint32_t index) = 0;
  /// Interrupts of a kind (VFIO_PCI_…_IRQ_INDEX) that can be eventfds; 0: the device has none.
  virtual Result<uint32_t> vectors_of(uint32_t index) = 0;
  /// None: off. kOutOfMemory: fewer may be had.
  virtual Status set_eventfds(uint32_t index, std::span<const int> fds) = 0;
  /// As many vectors as can be set at once.
  virtual uint32_t most_vectors() const { return kMaxVectors; }
  /// The file that region `index` is mapped from, where it is mappable.
  virtual int region_fd(uint32_t index) const = 0;
  /// Whether `bytes` at `offset` of that file are there.
  virtual Status check_file(uint32_t /*index*/, uint64_t /*offset*/, uint64_t /*bytes*/) {
    return {};
  }

  /// Reads regions and BARs (their addresses stay 0) and asks for error and request events.
  Status describe();
  /// Errors: kInvalidArgument (no such memory BAR).
  Result<const VfioRegion*> memory_bar(uint32_t index) const;
  /// BARs go before the device does.
  void unmap_bars();
  Status disable_interrupts();
  bool has_error() const { return is_signalled(error_event_); }
  bool is_asked_for() const { return is_signalled(request_event_); }

  System& system_;
  std::array<VfioRegion, kPciBars> regions_{};
  std::array<PciBar, kPciBars> bars_{};
  DmaLimits limits_;

 private:
  /// More vectors than any GPU has.
  static constexpr uint32_t kMaxVectors = 256;

  Status watch(uint32_t index, SystemFd& fd);
  bool is_signalled(const SystemFd& fd) const;
  Status map_parts(uint32_t index);
  template <class View>
  Result<View> view_bar(uint32_t index, bool is_registers);

  std::array<std::vector<std::unique_ptr<RegionPart>>, kPciBars> parts_;
  std::map<std::pair<uint32_t, bool>, std::unique_ptr<RegionWindow>> windows_;
  SystemFd error_event_, request_event_;
  /// Of every vector that was ever on: wait_interrupt() may be polling one on another thread.
  std::vector<SystemFd> events_;
  std::atomic<uint32_t> enabled_{0};
  uint32_t interrupt_index_ = 0;
};

}  // namespace bm
