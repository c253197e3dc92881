#pragma once
// A modelled card as a PCI function of this process: what a driver opens in tests.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drivers/transport/pci.h"
#include "tests/sim/pci/card.h"

namespace bm::sim {

/// BARs are windows without mappings, so that every access is seen. Memory decoding is on and bus
/// mastering off, as after an open through VFIO. Thread: as PciFunction.
class CardFunction : public PciFunction {
 public:
  /// On a card that somebody else may keep: what one driver leaves the next one finds.
  explicit CardFunction(std::shared_ptr<PciCard> card);
  ~CardFunction() override;

  const PciIdentity& identity() const override { return identity_; }
  const std::array<PciBar, kPciBars>& bars() const override { return bars_; }
  Result<Mmio> map_bar(uint32_t index) override;
  Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) override;
  Status resize_bar(uint32_t index, uint64_t bytes) override;
  const DmaLimits& dma_limits() const override { return limits_; }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override;
  Status dma_unmap(void* host) override;
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;
  Result<uint32_t> enable_interrupts(uint32_t wanted) override;
  Result<int> interrupt_fd(uint32_t vector) override;
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) override;
  Status reset(PciReset kind) override;
  Status status() const override;

 protected:
  uint32_t config_size() const override { return ConfigSpace::kSize; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Window;
  class Memory;
  Result<RemoteWindow*> window(uint32_t index);

  std::shared_ptr<PciCard> card_;
  PciIdentity identity_;
  std::array<PciBar, kPciBars> bars_{};
  DmaLimits limits_;
  std::map<uint32_t, std::unique_ptr<Window>> windows_;
  std::map<void*, std::vector<BusRange>> mapped_;
  uint64_t next_physical_ = 0;
  int interrupt_ = -1;
};

}  // namespace bm::sim
