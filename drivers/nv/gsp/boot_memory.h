#pragma once
// Memory of the host that the card reads and writes while it boots: images, arguments, queues.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "drivers/memory/iova.h"
#include "drivers/transport/mmio.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

inline constexpr uint64_t kGspPage = 4096;  ///< what the GSP counts in

class BootMemory;

/// Whole pages, zeroed, that the card reaches until the block goes. Outlived by its BootMemory.
class BootBlock {
 public:
  BootBlock() = default;
  BootBlock(BootBlock&&) noexcept;
  BootBlock& operator=(BootBlock&&) noexcept;
  ~BootBlock();

  const HostView& view() const { return memory_->view(); }
  uint64_t bytes() const { return memory_ == nullptr ? 0 : memory_->view().size(); }
  /// Of the first byte, as the card sends it.
  uint64_t address() const { return memory_->ranges().front().address; }
  /// One for each page of kGspPage.
  std::vector<uint64_t> pages() const;
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class BootMemory;
  void give_back();
  BootMemory* owner_ = nullptr;
  std::unique_ptr<DmaMemory> memory_;
  std::optional<uint64_t> iova_;
};

/// Thread: callers serialise.
class BootMemory {
 public:
  /// `address_bits`: of addresses that the card can send. Errors: those of
  /// IovaAllocator::create().
  static Result<std::unique_ptr<BootMemory>> create(PciFunction& pci, uint32_t address_bits);

  /// Rounded up to pages. `is_contiguous`: one range of bus addresses. Errors: kOutOfMemory naming
  /// `what`; kUnsupported (an address beyond what the card can send); of the transport.
  Result<BootBlock> allocate(uint64_t bytes, bool is_contiguous, std::string_view what);
  /// With these bytes in it, contiguous.
  Result<BootBlock> place(std::span<const std::byte> bytes, std::string_view what);
  /// Who gives bus addresses out for this card; nullptr: there is no IOMMU.
  memory::IovaAllocator* iovas() { return iovas_ ? &*iovas_ : nullptr; }

 private:
  friend class BootBlock;
  explicit BootMemory(PciFunction& pci, uint32_t address_bits)
      : pci_(pci), address_bits_(address_bits) {}
  PciFunction& pci_;
  uint32_t address_bits_;
  std::optional<memory::IovaAllocator> iovas_;
};

}  // namespace bm::nv::gsp
