#pragma once
// A memory hub: apertures, context 0's page tables, TLBs, faults. A chip has one for the graphics
// core (GC; shaders, command processors and, from gfx11 on, copy engines) and one for the rest
// (MM).
//
// Sources: Linux 6.12, amdgpu/gfxhub_v3_0.c, gfxhub_v12_0.c, mmhub_v3_0.c, mmhub_v4_1_0.c,
// gmc_v11_0.c, gmc_v12_0.c, amdgpu_vm.h (entries), amdgpu_vm_pt.c (levels).
//
// What it refuses, each a violation:
//   G1  a flush of a hub's engine 17 while its address range was never set: it flushes nothing.
//       gfxhub_v3_0_program_invalidation().
//   G2  a request to the MM hub without its semaphore. gmc_v11_0_flush_gpu_tlb().
//   G3  entries with reserved bits, large pages that are not aligned, fragments whose entries
//   differ.
//       amdgpu_vm.h, AMDGPU_PTE_*; amdgpu_vm_pte_fragment().
//   G4  gfx12 leaves without bit 63. AMDGPU_PTE_IS_PTE.
//   G5  system addresses of more than 44 bits. gmc_v11_0_sw_init(), dma_set_mask_and_coherent().
//   G7  gfx9: a block size without translate_further's shape: entries of PDB1 whose block fragment
//       size is not that of the context, of PDB0 with PDE_PTE. gmc_v9_0_get_vm_pde().
//   G6  a page directory base without its valid bit. amdgpu_gmc_pd_addr().
//
// Translations are kept until they are flushed: leaves until L1 and L2 entries are, directory
// entries until those of their level are; the flush is done when the answer is seen, not before.
// Context 0 alone is modelled: other VMIDs fault.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "tests/sim/amd/chip/bus.h"
#include "tests/sim/amd/chip/vram.h"
#include "tests/sim/pci/bus_memory.h"
#include "tests/sim/amd/engine/gpu_memory.h"

namespace bm::sim::amd {

/// Memory behind the hubs, and whether the function may reach the host's.
struct Fabric {
  Vram* vram = nullptr;
  BusMemory* system = nullptr;
  std::function<bool()> is_bus_master;
  uint64_t fb_base = 0;  ///< where video memory is in the GPU's own address space
  std::atomic<uint64_t> table_reads{0};
  std::mutex table_mutex;
  std::set<uint64_t> table_pages;  ///< of video memory, that entries were read from
};

enum class HubKind : uint8_t { kGc, kMm };
enum class HubAccess : uint8_t { kRead, kWrite, kExecute };

class Hub final : public GpuMemory {
 public:
  Hub(HubKind kind, RegisterBus& bus, Fabric& fabric);

  struct Place {
    std::byte* host = nullptr;
    uint64_t bytes = 0;           ///< from the address on
    uint64_t va = 0, length = 0;  ///< of the whole page
    std::byte* start = nullptr;
    bool is_readable = true, is_writable = true, is_executable = true;
  };
  /// Nothing: it faults, and fault registers say why unless they hold an earlier one.
  std::optional<Place> translate(uint64_t va, HubAccess access);
  /// What a block other than a queue reads and writes, over VMID 0.
  bool read(uint64_t va, std::span<std::byte> to);
  bool write(uint64_t va, std::span<const std::byte> from);

  std::byte* at(uint32_t gpu_id, uint64_t va, uint64_t bytes, bool is_write) override;
  uint64_t contiguous(uint32_t gpu_id, uint64_t va, uint64_t bytes) override;
  std::optional<Range> local_range(uint32_t gpu_id, uint64_t va) override;
  uint64_t generation() const override { return generation_.load(std::memory_order_acquire); }

  /// Called once for every fault that is told: page address and whether it was a write.
  std::function<void(uint64_t va, bool is_write)> on_fault;
  /// Raises what a queue died of. The registers have it already when translate() failed.
  /// `client`: as gfxhub_v3_0.c, gfxhub_client_ids[] numbers them.
  void report_fault(uint64_t va, bool is_write, uint32_t client);
  bool is_set_up() const;
  void reset();
  uint64_t walks() const { return walks_; }

 private:
  struct Walk;
  std::string name(std::string_view rest) const { return std::string(prefix_) + std::string(rest); }
  uint32_t& declare(std::string_view rest, Behavior behavior = {});
  void declare_engines();
  void acknowledge(uint32_t engine);
  std::optional<Place> translate_locked(uint64_t va, HubAccess access, const char** why);
  std::optional<Place> walk_further(uint64_t va, uint64_t page, uint64_t root, const char** why);
  std::optional<Place> aperture(uint64_t va);
  std::optional<uint64_t> entry(uint32_t level, uint64_t table, uint64_t index, uint64_t key);
  bool read_table(uint64_t address, bool is_system, uint64_t* value);
  void check_entry(uint64_t value, uint32_t level, bool is_leaf);
  void check_fragment(uint64_t table, bool is_system, uint64_t index, uint64_t value);
  std::optional<Place> place(uint64_t va, uint64_t page_va, uint64_t page_bytes, uint64_t value,
                             const char** why);
  void latch(uint64_t va, HubAccess access, const char* why);
  void violation(std::string text);

  const HubKind kind_;
  const std::string_view prefix_;
  const Ip ip_;
  RegisterBus& bus_;
  Fabric& fabric_;
  std::mutex mutex_;
  std::atomic<uint64_t> generation_{1}, walks_{0};

  uint32_t *context0_ = nullptr, *base_lo_ = nullptr, *base_hi_ = nullptr, *start_lo_ = nullptr,
           *start_hi_ = nullptr, *end_lo_ = nullptr, *end_hi_ = nullptr, *aperture_low_ = nullptr,
           *aperture_high_ = nullptr, *l1_ = nullptr, *fault_status_ = nullptr,
           *fault_lo_ = nullptr, *fault_hi_ = nullptr, *fault_cntl_ = nullptr;
  Field enable_, depth_, block_size_, tells_, system_mode_, enable_l1_;
  struct Engine {
    uint32_t request = 0, answered = 0;
    int polls = 0;  ///< until the answer
    uint32_t *range_lo = nullptr, *range_hi = nullptr;
    bool is_held = false;
  };
  std::map<uint32_t, Engine> engines_;
  struct Leaf {
    uint64_t bytes = 0, value = 0;
  };
  std::map<uint64_t, Leaf> leaves_;                                ///< TLB, by page address
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> directories_;  ///< by level and prefix
  /// Where the tables of leaves begin, to know whether two hubs have the same.
 public:
  uint64_t root() const { return uint64_t{*base_hi_} << 32 | *base_lo_; }

 private:
  std::map<std::string, uint64_t> told_;
};

}  // namespace bm::sim::amd
