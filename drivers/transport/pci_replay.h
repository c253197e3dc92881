#pragma once
// A PCI function that exists in a trace alone (pci_trace.h): it answers what the real one answered,
// as long as its driver asks what was asked then. A boot of a card that is on file is a test that
// needs no card.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/pci_trace.h"

namespace bm {

/// Accesses must come in the order of the trace, but for two things that depend on time: a register
/// that was just read may be read again and gives the same, and a register that was polled may be
/// left sooner. Anything else is the end: status() names what the trace has and what was done
/// instead, reads give ones. What the device wrote to memory of the host is not in a trace.
/// Thread: as PciFunction.
class PciReplay final : public PciFunction {
 public:
  explicit PciReplay(PciTrace trace);
  ~PciReplay() override;

  /// Whether all of the trace was used. Errors: kCorrupt naming what was not, or where it ended.
  Status finish();

  const PciIdentity& identity() const override { return trace_.identity; }
  const std::array<PciBar, kPciBars>& bars() const override { return trace_.bars; }
  Result<Mmio> map_bar(uint32_t index) override;
  Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) override;
  Status resize_bar(uint32_t index, uint64_t bytes) override;
  const DmaLimits& dma_limits() const override { return trace_.limits; }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override;
  Status dma_unmap(void* host) override;
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;
  Result<uint32_t> enable_interrupts(uint32_t wanted) override;
  Result<int> interrupt_fd(uint32_t vector) override;
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) override;
  Status reset(PciReset kind) override;
  Status status() const override { return first_error_; }

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Window;
  class Memory;
  /// What the trace has next, or nullptr after a difference.
  const PciAccess* take(const PciAccess& wanted);
  bool is_polled(const PciAccess& access) const;
  void skip_marks();
  Result<RemoteWindow*> window(uint32_t index);
  /// What a call was answered. Errors: the recorded one; of the replay.
  Result<std::string> call(const std::string& text);

  PciTrace trace_;
  size_t at_ = 0;
  uint64_t used_ = 0;  ///< of the repeats at at_
  PciAccess last_read_;
  bool has_read_ = false;
  Status first_error_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace bm
