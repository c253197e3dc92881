#pragma once
// Memory of a card that nobody else manages, and memory of the host that it reaches.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "drivers/memory/iova.h"
#include "drivers/memory/page_table.h"
#include "drivers/memory/range_set.h"
#include "drivers/memory/va_space.h"
#include "drivers/nv/rm_gsp/video_window.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// A usable part of video memory, as the GSP tells of it.
struct VideoRegion {
  uint64_t base = 0, bytes = 0;
};

/// Who has which part of video memory. Not thread-safe.
class VideoMemory {
 public:
  /// `visible`: bytes that BAR1 shows from 0 on. Errors: kUnsupported (no region, or nothing of
  /// them visible); kCorrupt (regions overlap).
  static Result<VideoMemory> create(std::span<const VideoRegion> regions, uint64_t visible);

  /// `is_visible`: where the host sees it; otherwise where it does not, as long as there is room.
  Result<uint64_t> allocate(uint64_t bytes, uint64_t alignment, bool is_visible);
  void free(uint64_t address);
  uint64_t free_bytes() const;
  uint64_t bytes() const { return bytes_; }  ///< of all regions

  /// Whether all of it was cleared since this process has the card: it holds nothing of another's.
  bool is_cleared(uint64_t address, uint64_t bytes) const {
    return cleared_.contains(address, bytes);
  }
  void note_cleared(uint64_t address, uint64_t bytes) { cleared_.add(address, bytes); }

 private:
  std::vector<memory::VaSpace> visible_, hidden_;
  memory::RangeSet cleared_;
  uint64_t bytes_ = 0;
};

class CardMemory;

/// One allocation by physical (video) or bus (system) address; given back on destruction, when the
/// card must not use it any more. Must not outlive its CardMemory.
class Block {
 public:
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  bool is_system() const { return is_system_; }
  uint64_t bytes() const { return bytes_; }
  /// In order; one for video memory.
  const std::vector<memory::PhysicalRange>& ranges() const { return ranges_; }
  uint64_t address() const { return ranges_.front().address; }
  /// The host's; empty for video memory that BAR1 does not show.
  const HostView& view() const { return view_; }

 private:
  friend class CardMemory;
  explicit Block(CardMemory& owner) : owner_(&owner) {}
  void swap(Block& other) noexcept;

  CardMemory* owner_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<memory::PhysicalRange> ranges_;
  HostView view_;
  std::unique_ptr<DmaMemory> pinned_;
  std::optional<uint64_t> iova_;
  void* host_ = nullptr;  ///< of the process, mapped for DMA
  bool is_system_ = false, has_video_ = false;
};

/// Not thread-safe. `function` and `iovas` outlive it.
class CardMemory {
 public:
  static Result<std::unique_ptr<CardMemory>> create(PciFunction& function,
                                                    memory::IovaAllocator* iovas,
                                                    VideoWindow window, VideoMemory video);

  /// Whole pages of 4 KiB. Errors: kOutOfMemory.
  Result<Block> take_video(uint64_t bytes, uint64_t alignment, bool is_visible);
  /// The same, zeroed: what engines read before anybody wrote it.
  Result<Block> take_zeroed(uint64_t bytes, uint64_t alignment);
  /// Memory of the transport's own making. Errors: those of PciFunction::dma_allocate().
  Result<Block> take_system(uint64_t bytes, bool is_contiguous);
  /// Memory of the process, whole pages. Errors: kInvalidArgument; those of dma_map().
  Result<Block> pin(void* host, uint64_t bytes);

  /// What the card may still use (a channel that could not be freed, a page table that could not be
  /// written): held until this goes, which is after the card was shut down. Memory of the process
  /// is its owner's, and given back at once.
  void keep(Block block);

  VideoWindow& window() { return window_; }
  VideoMemory& video() { return video_; }

 private:
  friend class Block;
  CardMemory(PciFunction& function, memory::IovaAllocator* iovas, VideoWindow window,
             VideoMemory video)
      : function_(function), iovas_(iovas), window_(std::move(window)), video_(std::move(video)) {}
  Status check_reach(const Block& block) const;
  void give_back(Block& block);

  PciFunction& function_;
  memory::IovaAllocator* const iovas_;  ///< nullptr: bus addresses are physical
  VideoWindow window_;
  VideoMemory video_;
  std::vector<Block> kept_;
};

}  // namespace bm::nv::gsp
