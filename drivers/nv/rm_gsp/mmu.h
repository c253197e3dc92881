#pragma once
// A card's memory management unit: page tables in video memory, TLBs, and address spaces over
// them.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "drivers/memory/page_table.h"
#include "drivers/memory/va_space.h"
#include "drivers/nv/rm_gsp/memory.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// What a TLB invalidation is for.
enum class Invalidation : uint8_t {
  kGrant,   ///< something was mapped
  kRevoke,  ///< something was unmapped: accesses on the way must have ended before this returns
};

/// One card's. Thread: callers serialise.
class Mmu final : public memory::TableMemory {
 public:
  /// `registers` is BAR0.
  Mmu(const Mmio& registers, CardMemory& memory, const memory::PageTableFormat& format)
      : registers_(registers), memory_(memory), format_(format) {}

  const memory::PageTableFormat& format() const { return format_; }
  /// Makes all TLBs forget the space whose root lies at `root`.
  /// Errors: kTimeout, kDeviceLost.
  /// Source: kgmmuCommitTlbInvalidate_TU102(), kgmmuSetPdbToInvalidate_TU102() in
  /// kern_gmmu_tu102.c (570.144); Linux nouveau, vmmtu102.c, tu102_vmm_flush().
  Status invalidate(uint64_t root, Invalidation kind);
  /// Where tables lie in video memory, by physical address; bytes of each.
  const std::map<uint64_t, Block>& tables() const { return tables_; }

  // memory::TableMemory
  memory::Aperture aperture() const override { return memory::Aperture::kVideo; }
  Result<uint64_t> allocate(uint64_t bytes, uint64_t alignment) override;
  void free(uint64_t address, uint64_t bytes) override;
  Status write(uint64_t address, std::span<const uint64_t> words) override;

 private:
  const Mmio registers_;
  CardMemory& memory_;
  const memory::PageTableFormat& format_;
  std::map<uint64_t, Block> tables_;
};

/// One address space. Thread: callers serialise.
class AddressSpace {
 public:
  /// Addresses that allocate() gives out.
  struct Window {
    uint64_t base = 0, bytes = 0;
  };
  static Result<std::unique_ptr<AddressSpace>> create(Mmu& mmu, std::span<const Window> windows);

  uint64_t root() const { return tables_->root_address(); }
  /// Entries of the root directory.
  uint32_t root_entries() const { return mmu_.format().levels.front().entries(); }

  /// Free addresses in window `window`. Errors: kOutOfMemory.
  Result<uint64_t> allocate(size_t window, uint64_t bytes, uint64_t alignment);
  void free(uint64_t va);

  Status map(uint64_t va, std::span<const memory::PhysicalRange> ranges,
             const memory::PageAttributes& attributes);
  Status unmap(uint64_t va, uint64_t bytes);
  const memory::PageTable& tables() const { return *tables_; }

 private:
  explicit AddressSpace(Mmu& mmu) : mmu_(mmu) {}
  Status invalidate(bool is_revoked);
  Mmu& mmu_;
  std::vector<memory::VaSpace> windows_;
  std::unique_ptr<memory::PageTable> tables_;
};

/// How ordinary memory of a block is mapped.
memory::PageAttributes attributes_of(const Block& block);

}  // namespace bm::nv::gsp
