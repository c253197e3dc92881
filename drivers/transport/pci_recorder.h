#pragma once
// A PCI function in front of another one that counts every access and, where somebody wants it,
// writes each down (pci_trace.h). Registers are behind windows of its own, so that nothing goes
// past it.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "drivers/transport/pci.h"
#include "drivers/transport/pci_trace.h"

namespace bm {

/// Accesses to one BAR. A burst is what one call asked for, however the transport cuts it.
struct BarCounts {
  uint64_t reads = 0, writes = 0;              ///< single ones
  uint64_t read_bursts = 0, write_bursts = 0;  ///< of any length
  uint64_t burst_bytes_read = 0, burst_bytes_written = 0;
};

struct PciCounts {
  std::array<BarCounts, kPciBars> bars{};
  uint64_t config_reads = 0, config_writes = 0, calls = 0;
};

/// What was seen of a function, for those who outlive it. Thread: any.
class PciRecord {
 public:
  /// Gets the lines of the trace, each with its end. Writes and calls are given before they happen,
  /// so that one that takes the machine with it is the last line.
  using Sink = std::function<void(std::string_view)>;

  explicit PciRecord(Sink sink = {});

  /// A line of the driver's own: which stage begins.
  void mark(std::string_view text);
  PciCounts counts() const;
  /// Single accesses and bursts that began in these bytes of a BAR.
  struct Uses {
    uint64_t reads = 0, writes = 0;
  };
  Uses uses(uint32_t bar, std::span<const BusRange> ranges) const;
  /// Writes what is kept back: reads in a row with one answer are one line, ten times a second.
  void flush();

 private:
  friend class PciRecorder;
  void begin(const PciFunction& function);
  void add(PciAccess access);
  void flush_locked();

  mutable std::mutex mutex_;
  const Sink sink_;
  const uint64_t begun_us_;
  PciCounts counts_;
  std::map<uint64_t, Uses> pages_[kPciBars];  ///< of 4 KiB, by number
  PciAccess pending_;
  bool has_pending_ = false;
};

/// Thread: as PciFunction.
class PciRecorder final : public PciFunction {
 public:
  PciRecorder(std::unique_ptr<PciFunction> function, std::shared_ptr<PciRecord> record);
  ~PciRecorder() override;

  const PciIdentity& identity() const override { return function_->identity(); }
  const std::array<PciBar, kPciBars>& bars() const override { return function_->bars(); }
  Result<Mmio> map_bar(uint32_t index) override;
  Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) override;
  Status resize_bar(uint32_t index, uint64_t bytes) override;
  const DmaLimits& dma_limits() const override { return function_->dma_limits(); }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override;
  Status dma_unmap(void* host) override;
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override;
  Result<uint32_t> enable_interrupts(uint32_t wanted) override;
  Result<int> interrupt_fd(uint32_t vector) override { return function_->interrupt_fd(vector); }
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) override {
    return function_->wait_interrupt(vector, timeout_ms);
  }
  Status reset(PciReset kind) override;
  Status status() const override { return function_->status(); }

 protected:
  uint32_t config_size() const override { return 4096; }  ///< the other one checks
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override;
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override;

 private:
  class Window;
  void record_call(std::string text, std::string answer);

  std::unique_ptr<PciFunction> function_;
  std::shared_ptr<PciRecord> record_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace bm
