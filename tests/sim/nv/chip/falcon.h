#pragma once
// A falcon: IMEM, DMEM, their loading, the boot ROM that checks what is started.
// Source: K dev_falcon_v4.h, dev_falcon_second_pri.h, dev_fbif_v4.h, dev_riscv_pri.h; the order is
// gpu/falcon/arch/*, gpu/gsp/arch/*/kernel_gsp_falcon_*.c.
//
// It refuses
//   F1  loading or starting while reset, before the scrub has ended, or before anybody has seen
//   that F2  a core that was not selected, or that runs F3  DMA with FBIF not physical, REQUIRE_CTX
//   set, another size than 256, addresses that are no
//       multiples of it, memory that is not there, base registers written while a transfer runs
//   F4  PIO into IMEM without a tag for the block, or not from the block's beginning
//   F5  a boot vector that no loaded block has
//   F6  blocks that differ from the program's, or that were not loaded as secure
//   F7  data that differs from the program's; the slot of the signature empty or with another one
//   F8  boot ROM parameters that do not match the descriptor

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/sim/nv/chip/bus.h"
#include "tests/sim/nv/chip/firmware.h"
#include "tests/sim/nv/chip/memory.h"

namespace bm::sim::nv::card {

class Falcon {
 public:
  /// Registers at `base`, FBIF at base + 0x600, second page at base + 0x1000.
  Falcon(std::string name, uint32_t base, const CardRow& row, RegisterFile& registers,
         Memory& memory);

  /// Programs that may be started here, and the generic boot loader where the row has one.
  std::vector<const HsProgram*> programs;
  const LoaderImage* loader = nullptr;
  /// A program has passed the boot ROM. Returns whether it has done what it is for.
  std::function<bool(const HsProgram& program, std::span<const std::byte> data)> run;
  /// Reset of the RISC-V core: into it, not started.
  std::function<void()> on_reset;
  std::function<uint32_t()> hwcfg2_bits;  ///< of the lockdown, beside the falcon's own
  /// Registers read so while the core is locked down; 0: they do not.
  std::function<uint32_t()> locked;

  bool is_riscv_selected() const { return core_ == Core::kRiscv; }
  bool is_riscv_active = false;
  uint32_t mailbox[2] = {};
  uint32_t os = 0;
  uint32_t interrupts = 0;  ///< IRQSTAT
  uint32_t interrupt_mask = 0;
  void power_on();
  const std::string& name() const { return name_; }

 private:
  enum class Core : uint8_t { kFalcon, kSwitching, kRiscv };
  static constexpr uint32_t kBlock = 256, kBlocks = 0x100;  ///< 64 KiB
  struct Block {
    std::array<std::byte, kBlock> bytes{};
    uint32_t tag = 0;
    bool is_loaded = false, is_secure = false;
  };

  void declare();
  void declare_memories();
  void declare_boot_rom();
  void reset(bool is_asserted);
  void complain(const std::string& what);
  bool may_work(const char* what);
  void transfer(uint32_t command);
  void start();
  void halt(bool is_done);
  bool check_code(const HsProgram& program, uint32_t first_block, const Blob& code, uint32_t tag,
                  bool is_secure, std::string* why) const;
  bool check_data(const HsProgram& program, std::span<const std::byte> data,
                  std::string* why) const;
  bool check_boot_rom(const HsProgram& program, std::string* why) const;
  void start_by_dma();
  void start_by_pio();
  void start_loader();

  const std::string name_;
  const uint32_t base_;
  const CardRow& row_;
  RegisterFile& registers_;
  Memory& memory_;
  std::vector<Block> imem_{kBlocks};
  Blob dmem_;
  bool is_in_reset_ = false, was_reset_ = false;
  uint32_t scrub_left_ = 0;  ///< reads that still see it
  bool saw_scrub_end_ = false;
  Core core_ = Core::kFalcon;
  bool is_halted_ = true, is_ready_to_halt_ = false;
  uint32_t boot_vector_ = 0, dma_control_ = 1, fbif_control_ = 0;
  std::array<uint32_t, 8> transfer_config_{};
  uint64_t dma_base_ = 0;
  uint32_t dma_memory_ = 0, dma_offset_ = 0, dma_busy_ = 0;
  uint32_t imem_control_ = 0, dmem_control_ = 0;
  bool is_tagged_ = false;  ///< the block that IMEMC points at
  uint32_t brom_address_ = 0, brom_engine_ = 0, brom_ucode_ = 0, brom_algorithm_ = 0;
};

}  // namespace bm::sim::nv::card
