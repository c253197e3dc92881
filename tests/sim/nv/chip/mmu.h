#pragma once
// The MMU: page tables of drivers, in video or system memory, versions 2 and 3.
// Source: K dev_mmu.h of turing/tu102 and hopper/gh100 (NV_MMU_VER2_*, NV_MMU_VER3_*), dev_vm.h.
//
// It refuses
//   M1  entries with reserved bits, apertures or kinds that the card has not
//   M2  pages whose address is no multiple of their size, that lie beyond video memory or in the
//       write-protected region, or in system memory that was never mapped for DMA
//   M3  entries that the host has written since the last TLB invalidate
//   M4  an invalidate without the trigger's target: of no page directory and not of all

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "tests/sim/nv/address_space.h"
#include "tests/sim/nv/chip/bus.h"
#include "tests/sim/nv/chip/memory.h"
#include "tests/sim/nv/chip/rows.h"

namespace bm::sim::nv::card {

/// What a walk shares with all others. Thread: any.
class Mmu {
 public:
  Mmu(const CardRow& row, RegisterFile& registers, Memory& memory);

  std::function<bool(uint64_t offset, uint64_t bytes)> is_protected;
  void power_on();
  const CardRow& row() const { return row_; }
  Memory& memory() { return memory_; }
  Violations& violations() { return registers_.violations(); }
  const std::shared_ptr<Backing>& video() const { return video_; }
  const std::shared_ptr<Backing>& system() const { return system_; }
  uint64_t invalidates() const { return invalidates_; }

 private:
  const CardRow& row_;
  RegisterFile& registers_;
  Memory& memory_;
  std::shared_ptr<Backing> video_, system_;
  uint64_t invalidates_ = 0;
  uint32_t pdb_[2] = {};
};

/// An address space of the driver's. Thread: any.
class WalkedSpace final : public AddressSpace {
 public:
  explicit WalkedSpace(Mmu& mmu) : mmu_(mmu) {}
  std::unique_ptr<PageWalk> walk() const override;
  void set_root(Aperture aperture, uint64_t address);
  bool has_root() const;

 private:
  Mmu& mmu_;
  mutable std::mutex mutex_;
  bool has_root_ = false;
  Aperture aperture_ = Aperture::kVideo;
  uint64_t root_ = 0;
};

/// Memory of the card, or the host's by bus addresses, as what channels are described by.
std::shared_ptr<Backing> make_video_backing(VideoMemory& video);
std::shared_ptr<Backing> make_system_backing(Memory& memory);
/// `bytes` of another from `offset` on.
std::shared_ptr<Backing> make_part(std::shared_ptr<Backing> whole, uint64_t offset, uint64_t bytes);

}  // namespace bm::sim::nv::card
