#include "drivers/nv/rm_gsp/mmu.h"

#include "drivers/nv/rm_gsp/bounded_wait.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::nv::gsp {
namespace {

// Source: open-gpu-kernel-modules 570.144, turing/tu102/dev_vm.h and blackwell/gb100/dev_vm.h,
// NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE*; the function's registers begin at 0xb80000.
constexpr uint64_t kFunction = 0xb80000;
constexpr uint64_t kPdb = kFunction + 0x30a0, kUpperPdb = kFunction + 0x30a4,
                   kInvalidate = kFunction + 0x30b0;
constexpr uint32_t kAllVa = 1u << 0, kSysMembar = 1u << 6, kAckGlobally = 1u << 7,
                   kTrigger = 1u << 31;
// The address in units of 4 KiB: 28 bits in 31:4 of the first register, the rest in the second.
constexpr uint32_t kPdbUnit = 12, kPdbBits = 28, kPdbShift = 4;
// TIMEOUT: an invalidation takes microseconds; nouveau gives it two seconds.
constexpr uint64_t kInvalidateTimeoutUs = 2'000'000;

// NV_MMU_PTE_KIND_GENERIC_MEMORY: what ordinary memory is mapped as from Turing on, pitch included.
// Source: kernel-open/nvidia-uvm/uvm_turing_mmu.c, make_pte_turing().
constexpr uint8_t kGenericMemory = 6;

}  // namespace

Status Mmu::invalidate(uint64_t root, Invalidation kind) {
  memory_.window().publish();
  const uint64_t unit = root >> kPdbUnit;
  registers_.write32(kPdb, static_cast<uint32_t>(unit << kPdbShift));
  registers_.write32(kUpperPdb, static_cast<uint32_t>(unit >> kPdbBits));
  registers_.write32(
      kInvalidate,
      kTrigger | kAllVa | (kind == Invalidation::kRevoke ? kSysMembar | kAckGlobally : 0));
  return wait_until(registers_, kInvalidate, kTrigger, 0, kInvalidateTimeoutUs,
                    "invalidating the TLBs");
}

Result<uint64_t> Mmu::allocate(uint64_t bytes, uint64_t alignment) {
  Block block = BM_TRY(memory_.take_video(bytes, alignment, true));
  const uint64_t address = block.address();
  tables_.emplace(address, std::move(block));
  return address;
}

void Mmu::free(uint64_t address, uint64_t) { tables_.erase(address); }

Status Mmu::write(uint64_t address, std::span<const uint64_t> words) {
  memory_.window().write(address, std::as_bytes(words));
  return registers_.status();
}

Result<std::unique_ptr<AddressSpace>> AddressSpace::create(Mmu& mmu,
                                                           std::span<const Window> windows) {
  std::unique_ptr<AddressSpace> space(new AddressSpace(mmu));
  for (const Window& window : windows)
    space->windows_.push_back(BM_TRY(memory::VaSpace::create(window.base, window.bytes)));
  space->tables_ = BM_TRY(memory::PageTable::create(mmu.format(), mmu));
  return space;
}

Result<uint64_t> AddressSpace::allocate(size_t window, uint64_t bytes, uint64_t alignment) {
  BM_CHECK(window < windows_.size());
  return windows_[window].allocate(bytes, alignment);
}

void AddressSpace::free(uint64_t va) {
  for (memory::VaSpace& window : windows_)
    if (window.size_of(va)) {
      static_cast<void>(window.free(va));
      return;
    }
}

Status AddressSpace::invalidate(bool is_revoked) {
  return mmu_.invalidate(root(), is_revoked ? Invalidation::kRevoke : Invalidation::kGrant);
}

Status AddressSpace::map(uint64_t va, std::span<const memory::PhysicalRange> ranges,
                         const memory::PageAttributes& attributes) {
  return tables_->map_flushed(va, ranges, attributes,
                              [&](bool is_revoked) { return invalidate(is_revoked); });
}

/// Memory that was freed must not be reached by what TLBs remember.
Status AddressSpace::unmap(uint64_t va, uint64_t bytes) {
  return tables_->unmap_flushed(va, bytes, [&](bool is_revoked) { return invalidate(is_revoked); });
}

memory::PageAttributes attributes_of(const Block& block) {
  return {.aperture = block.is_system() ? memory::Aperture::kSystem : memory::Aperture::kVideo,
          .kind = kGenericMemory};
}

}  // namespace bm::nv::gsp
