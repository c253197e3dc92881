#include "drivers/nv/gsp/boot_memory.h"

#include <utility>

#include "runtime/base/bits.h"

namespace bm::nv::gsp {

BootBlock::BootBlock(BootBlock&& from) noexcept
    : owner_(std::exchange(from.owner_, nullptr)),
      memory_(std::move(from.memory_)),
      iova_(std::exchange(from.iova_, std::nullopt)) {}

BootBlock& BootBlock::operator=(BootBlock&& from) noexcept {
  if (this == &from) return *this;
  give_back();
  owner_ = std::exchange(from.owner_, nullptr);
  memory_ = std::move(from.memory_);
  iova_ = std::exchange(from.iova_, std::nullopt);
  return *this;
}

BootBlock::~BootBlock() { give_back(); }

void BootBlock::give_back() {
  memory_.reset();
  if (owner_ != nullptr && iova_) static_cast<void>(owner_->iovas_->free(*iova_));
  iova_.reset();
}

std::vector<uint64_t> BootBlock::pages() const {
  std::vector<uint64_t> list;
  for (const BusRange& range : memory_->ranges())
    for (uint64_t at = 0; at < range.bytes; at += kGspPage) list.push_back(range.address + at);
  list.resize(bytes() / kGspPage);
  return list;
}

Result<std::unique_ptr<BootMemory>> BootMemory::create(PciFunction& pci, uint32_t address_bits) {
  const DmaLimits& limits = pci.dma_limits();
  std::unique_ptr<BootMemory> made(new BootMemory(pci, address_bits));
  if (limits.takes_iova) made->iovas_ = BM_TRY(memory::IovaAllocator::create(limits, address_bits));
  return made;
}

Result<BootBlock> BootMemory::allocate(uint64_t bytes, bool is_contiguous, std::string_view what) {
  const uint64_t page = std::max(pci_.dma_limits().page_bytes, kGspPage);
  const uint64_t size = align_up(bytes, iovas_ ? page : kGspPage);
  BootBlock block;
  if (iovas_) {
    auto iova = iovas_->allocate(size);
    if (!iova) return tl::unexpected(std::move(iova.error()).within(what));
    block.owner_ = this;
    block.iova_ = *iova;
  }
  auto memory = pci_.dma_allocate(size, is_contiguous, block.iova_);
  if (!memory) return tl::unexpected(std::move(memory.error()).within(what));
  block.memory_ = std::move(*memory);
  for (const BusRange& range : block.memory_->ranges())
    if (range.address % kGspPage != 0 || range.bytes % kGspPage != 0 ||
        (range.address + range.bytes - 1) >> address_bits_ != 0)
      return fail(Code::kUnsupported, "{}: {:#x} bytes at {:#x} for a card that sends {} bits",
                  what, range.bytes, range.address, address_bits_);
  if (is_contiguous && block.memory_->ranges().size() != 1)
    return fail(Code::kOutOfMemory, "{}: {:#x} bytes came in {} pieces, and they have to be one",
                what, size, block.memory_->ranges().size());
  return block;
}

Result<BootBlock> BootMemory::place(std::span<const std::byte> bytes, std::string_view what) {
  BootBlock block = BM_TRY(allocate(bytes.size(), true, what));
  block.view().copy_in(0, bytes);
  block.view().publish();
  return block;
}

}  // namespace bm::nv::gsp
