#pragma once
// A modelled card as buses see it: what a function of this process, the remote-PCI server and the
// vfio-user server are made of. The models behind it are of one vendor each.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/sim/pci/bus_memory.h"
#include "tests/sim/pci/config_space.h"

namespace bm::sim {

/// Where firmware puts a BAR.
struct CardBar {
  uint32_t index = 0;
  uint64_t address = 0;
  bool is_64_bit = false, is_prefetchable = false;
};

/// What servers and functions must know of a card before they touch it.
struct CardTraits {
  std::vector<CardBar> bars;
  uint32_t memory_bar = 0;    ///< the resizable one
  uint32_t register_bar = 0;  ///< taken in words of 4 bytes
  uint64_t largest_memory_bar = 0;
  bool has_iommu = true, has_function_reset = true;
  /// Bus addresses that cannot be IOVAs, start and bytes.
  std::vector<std::pair<uint64_t, uint64_t>> reserved = {};
  uint64_t physical_base = 0;  ///< where memory for DMA lies without an IOMMU
};

/// Thread: any; cards serialise accesses themselves.
class PciCard {
 public:
  virtual ~PciCard() = default;
  virtual const CardTraits& traits() const = 0;

  // Reads of a function that is gone give ones.
  virtual uint64_t read(uint32_t bar, uint64_t offset, uint32_t width) = 0;
  virtual void write(uint32_t bar, uint64_t offset, uint32_t width, uint64_t value) = 0;
  virtual void read_block(uint32_t bar, uint64_t offset, std::span<std::byte> to) = 0;
  virtual void write_block(uint32_t bar, uint64_t offset, std::span<const std::byte> from) = 0;
  virtual uint32_t read_config(uint32_t offset, uint32_t width) = 0;
  virtual void write_config(uint32_t offset, uint32_t width, uint32_t value) = 0;
  virtual uint64_t bar_bytes(uint32_t bar) const = 0;
  /// False: the size is not offered.
  virtual bool resize_memory_bar(uint64_t bytes) = 0;
  virtual void function_reset() = 0;
  virtual bool is_unplugged() const = 0;
  /// Called when the function sends an interrupt; MSI is on and it is a bus master. On any thread.
  virtual void on_interrupt(std::function<void()> send) = 0;
  virtual void set_msi(bool on) = 0;

  virtual BusMemory& system_memory() = 0;
  /// The driver is about to unmap this for DMA; nothing when its process ends. A strict card says
  /// what it still uses there.
  virtual void before_unmap(uint64_t /*address*/, uint64_t /*bytes*/) {}
  virtual ConfigSpace& config() = 0;

  /// BARs and command register as firmware leaves them.
  void place_bars();
};

}  // namespace bm::sim
