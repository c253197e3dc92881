#pragma once
// An AMD GPU behind its PCI BARs, for drivers that own the card. Independent of ours: nothing here
// includes a product table, and upstream drivers boot on it (docs/hw/amd/chip-model.md).
//
// Read first: bus.h (registers are declared or refused), then the blocks in the order of a boot:
// nbio.h, discovery.h, gmc.h, psp.h, smu.h, ih.h, gfx.h, sdma.h. Each lists what it refuses.
// Of its own the chip refuses
//   C1  BAR accesses while memory decoding is off, or beyond the BAR: ones.
//   C2  accesses to BAR 5 that are not 4 bytes, to doorbells that are not 8 bytes wide, reads of
//       doorbells.
//   C3  doorbells that nobody listens to.
// Mode 1 and function level reset lose video memory, registers, firmware and queues; mode 1 leaves
// the configuration space.

#include <array>
#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/amd/chip/gfx.h"
#include "tests/sim/amd/chip/options.h"
#include "tests/sim/amd/chip/sdma.h"
#include "tests/sim/amd/chip/smu.h"
#include "tests/sim/pci/card.h"

namespace bm::sim::amd {

/// What a driver cost, for its tests.
struct BusCounts {
  std::atomic<uint64_t> register_reads{0}, register_writes{0}, memory_reads{0}, memory_writes{0},
      memory_read_bytes{0}, memory_written_bytes{0}, doorbells{0}, config{0};
};

/// Thread: any; register accesses are serialised.
class Chip final : public PciCard {
 public:
  static constexpr uint32_t kMemoryBar = 0, kDoorbellBar = 2, kRegisterBar = 5;
  static constexpr uint64_t kDoorbellBytes = 2 << 20, kRegisterBytes = 1 << 20;

  /// Ends the process for a chip there is not: find_chip_row() first.
  explicit Chip(ChipOptions options);
  ~Chip() override;
  Chip(const Chip&) = delete;
  Chip& operator=(const Chip&) = delete;

  // The bus's side.
  const CardTraits& traits() const override { return traits_; }
  uint64_t read(uint32_t bar, uint64_t offset, uint32_t width) override;
  void write(uint32_t bar, uint64_t offset, uint32_t width, uint64_t value) override;
  void read_block(uint32_t bar, uint64_t offset, std::span<std::byte> to) override;
  void write_block(uint32_t bar, uint64_t offset, std::span<const std::byte> from) override;
  uint32_t read_config(uint32_t offset, uint32_t width) override;
  void write_config(uint32_t offset, uint32_t width, uint32_t value) override;
  uint64_t bar_bytes(uint32_t bar) const override;
  bool resize_memory_bar(uint64_t bytes) override;
  void function_reset() override;
  void unplug() { is_unplugged_ = true; }
  /// As it was when it was pulled out: what a driver did meanwhile never reached it.
  void plug_in() { is_unplugged_ = false; }
  bool is_unplugged() const override { return is_unplugged_; }
  BusMemory& system_memory() override { return system_; }
  ConfigSpace& config() override { return config_; }
  void on_interrupt(std::function<void()> send) override;
  void set_msi(bool on) override;

  // The test's side.
  std::vector<std::string> violations() const { return violations_.all(); }
  Violations& violation_list() { return violations_; }
  /// What queues died of, in order.
  std::vector<std::string> deaths() const;
  const ChipRow& row() const { return row_; }
  const BusCounts& counts() const { return counts_; }
  uint64_t table_reads() const { return fabric_.table_reads; }
  /// How often the host has read and written pages through BAR 0 that the card has walked as page
  /// tables; a block counts once.
  struct TableAccesses {
    uint64_t reads = 0, writes = 0;
  };
  TableAccesses host_table_accesses();
  uint64_t accesses() const { return accesses_; }
  /// When the fault of the bus came, by the steady clock; 0: not yet.
  int64_t take_fault_ns() { return fault_ns_.exchange(0); }
  Vram& vram() { return vram_; }
  Hub& hub(HubKind kind) { return kind == HubKind::kGc ? gc_hub_ : mm_hub_; }
  Psp& psp() { return psp_; }
  Smu& smu() { return smu_; }
  InterruptHandler& interrupts() { return interrupts_; }
  EngineState& engines() { return *state_; }
  RegisterBus& registers() { return bus_; }
  /// What an AQL queue of all chiplets is, is one.
  size_t active_queues() const { return gfx_.active_queues() + sdma_.active_queues(); }
  ChipOptions& options() { return options_; }

 private:
  class State;
  void make_chiplets();
  /// False: the access is not made, its value is in *value.
  bool meets_fault(uint64_t* value);
  bool is_resetting() const;
  bool is_gated(uint32_t dword) const;
  uint64_t read_plain(uint32_t bar, uint64_t offset, uint32_t width);
  void ring(uint64_t offset, uint64_t value);
  void ring_half(uint64_t offset, uint32_t value);
  void mode1();
  void power_on();
  void lose_everything();
  void leave_as_driver();
  void died(const char* engine, const Death& death);
  void note_access(uint64_t offset, uint64_t bytes, bool is_write);

  ChipOptions options_;
  const ChipRow& row_;
  const CardTraits traits_;
  Violations violations_;
  BusCounts counts_;
  mutable std::mutex mutex_;  ///< of registers
  mutable std::mutex deaths_mutex_;
  std::vector<std::string> deaths_;
  Vram vram_;
  BusMemory system_;
  ConfigSpace config_;
  std::atomic<bool> is_bus_master_{false}, has_msi_{false};
  std::mutex interrupt_mutex_;
  std::function<void()> send_interrupt_;
  Fabric fabric_;
  RegisterBus bus_;
  std::vector<uint64_t> doorbells_;
  std::unique_ptr<EngineState> state_;
  Nbio nbio_;
  Hub gc_hub_, mm_hub_;
  std::vector<std::unique_ptr<Hub>> more_hubs_;  ///< of further chiplets, then dies
  InterruptHandler interrupts_;
  Psp psp_;
  Smu smu_;
  EngineRoom room_;
  Gfx gfx_;
  std::vector<std::unique_ptr<EngineRoom>> more_rooms_;
  std::vector<std::unique_ptr<Gfx>> more_gfx_;  ///< of further chiplets
  Sdma sdma_;
  struct Accesses {
    uint64_t first = 0, last = 0;  ///< pages
    bool is_write = false;
    auto operator<=>(const Accesses&) const = default;
  };
  std::mutex host_accesses_mutex_;
  std::map<Accesses, uint64_t> host_accesses_;  ///< to video memory
  std::atomic<uint64_t> accesses_{0};
  std::atomic<int64_t> fault_ns_{0};
  std::atomic<bool> is_unplugged_{false};
  std::chrono::steady_clock::time_point reset_until_{};
};

}  // namespace bm::sim::amd
