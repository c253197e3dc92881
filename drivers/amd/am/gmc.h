#pragma once
// The memory controller: both hubs (graphics, multimedia), their TLBs, the host data path, and the
// one address space (context 0, VMID 0) in which everything of ours runs.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/video_memory.h"
#include "drivers/memory/page_table.h"
#include "drivers/memory/va_space.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// What the GPU says of an access that its page tables refuse.
/// Source: VM_L2_PROTECTION_FAULT_STATUS and _ADDR of the gc and mmhub headers;
/// gmc_v11_0_process_interrupt().
struct HubFault {
  uint64_t address = 0;  ///< of the page
  uint32_t status = 0;   ///< the register; 0: nothing is recorded
  uint32_t permissions = 0, walker_error = 0, client = 0;
  bool is_write = false, is_mapping_error = false;
};

/// What a hub's registers hold of the first fault since they were cleared; of several instances the
/// first that has one.
HubFault read_hub_fault(Bus& bus, Block hub);

/// Thread: callers serialise.
class Gmc final : public memory::TableMemory {
 public:
  /// Addresses that our memory gets on GPUs, a window for each of the process: what one maps of
  /// another's keeps its address. Bus addresses end at 2^44, so the two can never be taken for each
  /// other; video memory's own aperture lies below as well.
  static constexpr uint64_t kWindowBase = uint64_t{1} << 45;
  static constexpr uint64_t kWindowBytes = uint64_t{512} << 30;
  static constexpr uint32_t kWindows = 32;

  Gmc(Bus& bus, VideoMemory& memory) : bus_(bus), memory_(memory) {}

  /// Takes boot memory: the same calls in the same order in every process.
  Status allocate_boot();
  /// Empty page tables. `window`: which of the process's. Errors: kOutOfMemory; of the bus.
  Status create_tables(const Card& card, uint32_t window);

  /// Where the memory controller shows video memory: what engines without page tables (PSP, SMU,
  /// IH, MQDs) are told is this plus the physical address.
  Status read_location();
  uint64_t controller_address(uint64_t physical) const { return base_ + physical; }

  /// Programs apertures, TLB, L2 and context 0 of a hub.
  /// Source: *_init_system_aperture_regs() to *_program_invalidation() in gfxhub_v3_0.c,
  /// gfxhub_v12_0.c, mmhub_v3_0.c, mmhub_v4_1_0.c. They keep context 0 for a flat table and give
  /// programs contexts 1 to 15; here context 0 has the four levels that those give context 1.
  Status init_hub(Block hub);
  /// Tables are gone with the rest of video memory: what is unmapped from now on is only forgotten.
  void card_is_reset() { is_card_reset_ = true; }

  /// Which register, written with 0, lets writes through BAR0 arrive: read once, kept.
  /// Source: nbio_v4_3_remap_hdp_registers(), hdp_v6_0_flush_hdp().
  Status init_hdp();
  void flush_hdp();
  uint64_t hdp_flush_dword() const { return flush_dword_; }

  /// After any change of tables. Source: gmc_v11_0_flush_gpu_tlb().
  Status flush_tlbs();

  /// Maps `ranges` at `va` and makes TLBs forget what was there.
  Status map(uint64_t va, std::span<const memory::PhysicalRange> ranges,
             const memory::PageAttributes& attributes);
  Status unmap(uint64_t va, uint64_t bytes);
  Result<uint64_t> take_addresses(uint64_t bytes);
  void give_back(uint64_t va);
  const memory::PageTable& tables() const { return *tables_; }
  /// Where tables lie in video memory, by physical address; bytes of each.
  const std::map<uint64_t, uint64_t>& table_places() const { return places_; }

  HubFault read_fault(Block hub) { return read_hub_fault(bus_, hub); }
  void clear_fault(Block hub);

  // memory::TableMemory
  memory::Aperture aperture() const override { return memory::Aperture::kVideo; }
  Result<uint64_t> allocate(uint64_t bytes, uint64_t alignment) override;
  void free(uint64_t address, uint64_t bytes) override;
  Status write(uint64_t address, std::span<const uint64_t> words) override;

 private:
  Status init_instance(Block hub);
  Status flush_tlb(Block hub);
  Status flush_instance(Block hub);

  Bus& bus_;
  VideoMemory& memory_;
  const Generation* generation_ = nullptr;
  std::map<uint64_t, uint64_t> places_;  ///< outlives the tree, which gives its tables back
  std::unique_ptr<memory::PageTable> tables_;
  std::unique_ptr<memory::VaSpace> window_;
  uint64_t base_ = 0, end_ = 0;  ///< of video memory as the memory controller shows it
  uint64_t scratch_page_ = 0, dummy_page_ = 0;
  uint64_t flush_dword_ = 0;
  bool is_gc_up_ = false, is_mm_up_ = false, is_card_reset_ = false;
};

}  // namespace bm::amd::am
