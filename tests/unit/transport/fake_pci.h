#pragma once
// A PCI Express function in this process that does what hardware does: BARs that size themselves,
// command bits that gate memory accesses and bus mastering, capabilities, resizable BARs, an IOMMU
// or physical addresses, MSI, resets, sleep, and being pulled out. It checks its driver: what real
// hardware would let pass in silence is written to faults().

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drivers/transport/pci.h"

namespace bm::test {

struct FakePciOptions {
  uint16_t vendor = 0x1234, device = 0x5678;
  uint32_t class_code = 0x038000;
  bool has_iommu = true;
  bool has_function_reset = true;
  uint32_t msi_vectors = 4;  ///< 0: no MSI capability
  uint32_t dma_mappings = 0;
  /// BAR0: 64-bit prefetchable and resizable; BAR2: 64-bit; BAR5: 32-bit.
  uint64_t bar0 = 64 << 10, bar2 = 8 << 10, bar5 = 4 << 10;
};

class FakePci final : public PciFunction {
 public:
  explicit FakePci(const FakePciOptions& options = {});
  ~FakePci() override;

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

  // The device's side.

  /// Called for each 32-bit register access; registers are plain memory where they are not set.
  std::function<uint32_t(uint32_t bar, uint64_t offset)> on_read;
  std::function<void(uint32_t bar, uint64_t offset, uint32_t value)> on_write;
  /// DMA by the device. False, and a line in faults(), where bus mastering is off or nothing is
  /// mapped there.
  bool device_read(uint64_t address, std::span<std::byte> to);
  bool device_write(uint64_t address, std::span<const std::byte> from);
  /// False where MSI or bus mastering is off.
  bool device_interrupt(uint32_t vector);
  /// Pulled out: everything reads as ones from now on.
  void unplug() { is_unplugged_ = true; }
  std::vector<std::byte>& memory(uint32_t bar) { return storage_[bar]; }
  const std::vector<std::string>& faults() const { return faults_; }

  /// Raw configuration space, to plant damage.
  std::array<uint8_t, 4096> config{};

 protected:
  uint32_t config_size() const override { return static_cast<uint32_t>(config.size()); }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Window;
  class Memory;
  struct Mapping {
    std::byte* host;
    uint64_t bytes;
    bool is_read_only;
  };

  void put(uint32_t offset, uint32_t width, uint32_t value, uint32_t writable = 0);
  void build_config();
  void power_on();
  uint64_t bar_mask(uint32_t index) const;
  bool decodes() const;
  bool is_master() const;
  std::byte* resolve(uint64_t address, uint64_t bytes, bool is_write);
  void fault(std::string text) { faults_.push_back(std::move(text)); }

  FakePciOptions options_;
  PciIdentity identity_;
  std::array<PciBar, kPciBars> bars_{};
  DmaLimits limits_;
  std::array<uint8_t, 4096> writable_{}, initial_{};
  std::array<std::vector<std::byte>, kPciBars> storage_;
  std::map<uint32_t, std::unique_ptr<Window>> windows_;
  std::map<uint64_t, Mapping> mappings_;           ///< by bus address
  std::map<void*, std::vector<BusRange>> mapped_;  ///< by host address
  std::vector<int> interrupts_;                    ///< eventfds
  std::vector<std::string> faults_;
  uint64_t next_physical_ = 0x1'0000'0000;
  bool is_unplugged_ = false;
};

}  // namespace bm::test
