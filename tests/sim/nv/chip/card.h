#pragma once
// A bare NVIDIA card behind its PCI BARs, without a kernel driver, for drivers that own it.
// Independent of ours: nothing here includes a product table. Constants come from NVIDIA's
// open-gpu-kernel-modules 570.144, whose headers each block names.
//
// Read first: bus.h (registers are declared or refused), then the blocks in the order of a boot:
// falcon.h, secure_boot.h, gsp.h, rm.h, mmu.h. Each lists what it refuses. Of its own the card
// refuses
//   C1  BAR accesses while memory decoding is off, or beyond the BAR: ones.
//   C2  accesses to registers that are not 4 bytes.
//   C3  accesses of the host to the write-protected region; BAR 1 in another mode than physical.
//   C4  doorbells with tokens of no channel (the engines' doorbell page).
//   C5  a CPU sequencer that has written something else than its program says.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/nv/chip/bus.h"
#include "tests/sim/nv/chip/falcon.h"
#include "tests/sim/nv/chip/firmware.h"
#include "tests/sim/nv/chip/gsp.h"
#include "tests/sim/nv/chip/memory.h"
#include "tests/sim/nv/chip/mmu.h"
#include "tests/sim/nv/chip/rm.h"
#include "tests/sim/nv/chip/secure_boot.h"
#include "tests/sim/pci/card.h"

namespace bm::sim::nv::card {

struct CardOptions {
  std::string chip = "ga102";  ///< tu102 ga100 ga102 ad102 gh100 gb100 gb202
  /// What the driver loads is compared with these.
  FirmwareFiles firmware = {};
  uint64_t vram_bytes = uint64_t{4} << 30;
  uint64_t bar1_bytes = uint64_t{256} << 20;  ///< at power-on; resizable up to vram_bytes
  bool has_iommu = true;
  std::vector<std::pair<uint64_t, uint64_t>> reserved = {{0xfee00000, 0x100000}};
  uint64_t physical_base = 0x1'0000'0000;
  bool has_function_reset = true;
  bool has_display = true;   ///< false: fused off, as on cards for computing; not with an FSP
  bool needs_scrub = false;  ///< Ada: memory above the WPR waits for the scrubber
  /// Before it is ready GSP-RM has the host run a program (RUN_CPU_SEQUENCER) that resets its core
  /// and resumes it; not on cards with an FSP.
  bool runs_sequencer = true;
};

struct BusCounts {
  std::atomic<uint64_t> register_reads{0}, register_writes{0}, memory_reads{0}, memory_writes{0},
      memory_read_bytes{0}, memory_written_bytes{0}, doorbells{0}, config{0};
};

/// Thread: any; register accesses are serialised.
class Card final : public PciCard {
 public:
  static constexpr uint32_t kRegisterBar = 0, kMemoryBar = 1, kInstanceBar = 3;
  static constexpr uint64_t kRegisterBytes = 16 << 20, kInstanceBytes = 32 << 20;

  /// Ends the process for a chip there is not: find_card_row() first.
  explicit Card(CardOptions options);
  ~Card() override;
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

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
  bool is_unplugged() const override { return is_unplugged_; }
  void unplug() { is_unplugged_ = true; }
  void plug_in() { is_unplugged_ = false; }
  void on_interrupt(std::function<void()> send) override;
  void set_msi(bool on) override;
  BusMemory& system_memory() override { return bus_memory_; }
  void before_unmap(uint64_t address, uint64_t bytes) override;
  ConfigSpace& config() override { return config_; }

  // The test's side.
  std::vector<std::string> violations() const { return violations_.all(); }
  Violations& violation_list() { return violations_; }
  const CardRow& row() const { return row_; }
  const BusCounts& counts() const { return counts_; }
  const Vbios& vbios() const { return vbios_; }
  VideoMemory& vram() { return video_; }
  GspQueues& gsp_queues() { return queues_; }
  Rm& rm() { return rm_; }
  Gpu& engines() { return rm_.engines(); }
  /// What killed channels, oldest first.
  std::vector<std::string> deaths() { return rm_.engines().faults(); }
  /// How many violations there were when GSP-RM said that it was ready, of each start.
  const std::vector<size_t>& starts() const { return starts_; }
  bool is_gsp_running() const { return queues_.is_running(); }

 private:
  void declare();
  void power_on();
  bool is_config(uint32_t address) const;
  bool move_instance(uint64_t offset, std::span<std::byte> bytes, bool is_write);
  uint32_t read_register(uint32_t address);
  void write_register(uint32_t address, uint32_t value);
  bool check_bar(const char* what, uint32_t bar, uint64_t offset, uint64_t bytes);
  void interrupt();
  std::vector<std::byte> sequencer_program();
  void resume();

  CardOptions options_;
  const CardRow& row_;
  const CardTraits traits_;
  Violations violations_;
  BusCounts counts_;
  mutable std::mutex mutex_;  ///< of registers
  VideoMemory video_;
  BusMemory bus_memory_;
  ConfigSpace config_;
  RegisterFile registers_;
  Memory memory_;
  Vbios vbios_;
  CardFirmware firmware_;
  std::unique_ptr<Falcon> gsp_, sec2_;
  SecureBoot boot_;
  GspQueues queues_;
  Mmu mmu_;
  Rm rm_;
  uint64_t window_ = 0;  ///< of PRAMIN
  uint32_t bar1_block_ = 0;
  std::vector<size_t> starts_;
  std::mutex interrupt_mutex_;
  std::function<void()> send_interrupt_;
  std::atomic<bool> has_msi_{false}, is_unplugged_{false};
};

}  // namespace bm::sim::nv::card
