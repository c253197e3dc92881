#include "drivers/nv/rm_gsp/memory.h"

#include <algorithm>
#include <utility>

#include "runtime/base/bits.h"

namespace bm::nv::gsp {
namespace {

constexpr uint64_t kPage = 4096;
// Bus addresses that every generation sends and the older page tables can name: Linux nouveau,
// nvkm/subdev/mmu (dma_bits 47).
constexpr uint32_t kBusBits = 47;

Result<uint64_t> allocate_in(std::vector<memory::VaSpace>& spaces, uint64_t bytes,
                             uint64_t alignment) {
  Error last{Code::kOutOfMemory, "there is no video memory of this kind"};
  for (memory::VaSpace& space : spaces) {
    Result<uint64_t> address = space.allocate(bytes, alignment);
    if (address) return address;
    last = std::move(address.error());
  }
  return tl::unexpected(std::move(last));
}

}  // namespace

// --- Video memory

Result<VideoMemory> VideoMemory::create(std::span<const VideoRegion> regions, uint64_t visible) {
  std::vector<VideoRegion> sorted(regions.begin(), regions.end());
  std::ranges::sort(sorted, {}, &VideoRegion::base);
  VideoMemory memory;
  uint64_t done = 0;
  for (const VideoRegion& region : sorted) {
    const std::optional<uint64_t> limit = checked_add(region.base, region.bytes);
    if (!limit || region.base < done)
      return fail(Code::kCorrupt, "the regions of video memory overlap at {:#x}", region.base);
    done = *limit;
    // Address 0 means "none" in too many structures.
    const uint64_t first = align_up(std::max(region.base, kPage), kPage);
    const uint64_t end = align_down(*limit, kPage);
    const uint64_t seen = std::clamp(align_down(visible, kPage), first, std::max(first, end));
    if (end <= first) continue;
    if (seen > first)
      memory.visible_.push_back(BM_TRY(memory::VaSpace::create(first, seen - first)));
    if (seen < end) memory.hidden_.push_back(BM_TRY(memory::VaSpace::create(seen, end - seen)));
    memory.bytes_ += end - first;
  }
  if (memory.visible_.empty())
    return fail(Code::kUnsupported,
                "{} regions of video memory, {} MiB visible through BAR1: nothing the host sees is "
                "usable",
                regions.size(), visible >> 20);
  return memory;
}

Result<uint64_t> VideoMemory::allocate(uint64_t bytes, uint64_t alignment, bool is_visible) {
  if (!is_visible)
    if (auto address = allocate_in(hidden_, bytes, alignment)) return address;
  return allocate_in(visible_, bytes, alignment);
}

void VideoMemory::free(uint64_t address) {
  for (std::vector<memory::VaSpace>* spaces : {&visible_, &hidden_})
    for (memory::VaSpace& space : *spaces)
      if (space.size_of(address)) {
        static_cast<void>(space.free(address));
        return;
      }
}

uint64_t VideoMemory::free_bytes() const {
  uint64_t bytes = 0;
  for (const std::vector<memory::VaSpace>* spaces : {&visible_, &hidden_})
    for (const memory::VaSpace& space : *spaces) bytes += space.free_bytes();
  return bytes;
}

// --- Blocks

void Block::swap(Block& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(bytes_, other.bytes_);
  std::swap(ranges_, other.ranges_);
  std::swap(view_, other.view_);
  std::swap(pinned_, other.pinned_);
  std::swap(iova_, other.iova_);
  std::swap(host_, other.host_);
  std::swap(is_system_, other.is_system_);
  std::swap(has_video_, other.has_video_);
}

Block::~Block() {
  if (owner_ != nullptr) owner_->give_back(*this);
}

Result<std::unique_ptr<CardMemory>> CardMemory::create(PciFunction& function,
                                                       memory::IovaAllocator* iovas,
                                                       VideoWindow window, VideoMemory video) {
  return std::unique_ptr<CardMemory>(
      new CardMemory(function, iovas, std::move(window), std::move(video)));
}

Result<Block> CardMemory::take_video(uint64_t bytes, uint64_t alignment, bool is_visible) {
  Block block(*this);
  block.bytes_ = align_up(bytes, kPage);
  const uint64_t address =
      BM_TRY(video_.allocate(block.bytes_, std::max(alignment, kPage), is_visible));
  block.has_video_ = true;
  block.ranges_.push_back({address, block.bytes_});
  if (address + block.bytes_ <= window_.visible_bytes())
    block.view_ = window_.view(address, block.bytes_);
  return block;
}

Result<Block> CardMemory::take_zeroed(uint64_t bytes, uint64_t alignment) {
  Block block = BM_TRY(take_video(bytes, alignment, true));
  window_.fill_zero(block.address(), block.bytes());
  window_.publish();
  return block;
}

Result<Block> CardMemory::take_system(uint64_t bytes, bool is_contiguous) {
  Block block(*this);
  block.is_system_ = true;
  const DmaLimits& limits = function_.dma_limits();
  block.bytes_ = align_up(bytes, std::max(kPage, iovas_ != nullptr ? limits.page_bytes : kPage));
  if (iovas_ != nullptr) block.iova_ = BM_TRY(iovas_->allocate(block.bytes_));
  block.pinned_ = BM_TRY(function_.dma_allocate(block.bytes_, is_contiguous, block.iova_));
  block.view_ = block.pinned_->view();
  if (block.view_.size() > block.bytes_) block.view_ = block.view_.slice(0, block.bytes_);
  uint64_t left = block.bytes_;
  for (const BusRange& range : block.pinned_->ranges()) {
    if (left == 0) break;
    const uint64_t part = std::min(left, range.bytes);
    block.ranges_.push_back({range.address, part});
    left -= part;
  }
  if (left != 0 || block.view_.size() < block.bytes_)
    return fail(Code::kIo, "the transport gave {} of {} bytes of memory for DMA",
                block.bytes_ - left, block.bytes_);
  BM_TRY(check_reach(block));
  return block;
}

Result<Block> CardMemory::pin(void* host, uint64_t bytes) {
  if (reinterpret_cast<uint64_t>(host) % kPage != 0 || bytes % kPage != 0 || bytes == 0)
    return fail(Code::kInvalidArgument, "{} bytes at {} are not whole pages", bytes, host);
  Block block(*this);
  block.is_system_ = true;
  block.bytes_ = bytes;
  DmaRequest request{.host = host, .bytes = bytes};
  if (iovas_ != nullptr) request.iova = block.iova_ = BM_TRY(iovas_->allocate(bytes));
  for (const BusRange& range : BM_TRY(function_.dma_map(request)))
    block.ranges_.push_back({range.address, range.bytes});
  block.host_ = host;
  block.view_ = BM_TRY(HostView::mapped(host, bytes));
  BM_TRY(check_reach(block));
  return block;
}

Status CardMemory::check_reach(const Block& block) const {
  for (const memory::PhysicalRange& range : block.ranges_)
    if (range.address + range.bytes > uint64_t{1} << kBusBits)
      return fail(Code::kUnsupported,
                  "memory at bus address {:#x} is beyond the card's {} bits: use the IOMMU (VFIO)",
                  range.address, kBusBits);
  return {};
}

void CardMemory::keep(Block block) {
  if (block.host_ == nullptr) kept_.push_back(std::move(block));
}

void CardMemory::give_back(Block& block) {
  if (block.has_video_) video_.free(block.address());
  if (block.host_ != nullptr) static_cast<void>(function_.dma_unmap(block.host_));
  block.pinned_.reset();
  if (block.iova_) static_cast<void>(iovas_->free(*block.iova_));
  block.owner_ = nullptr;
}

}  // namespace bm::nv::gsp
