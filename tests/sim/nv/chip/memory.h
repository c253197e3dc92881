#pragma once
// Memory as the card reaches it: its own, and the host's by bus addresses.
//
// Video memory that nobody wrote reads as poison. The card's own BAR 1 is system memory like any
// other to its engines: a bus address inside of it is video memory again (drivers that have no
// memory for DMA give such).
// Writes of the host are remembered until the next TLB invalidate: an entry of a page table among
// them has not reached the MMU (mmu.h).

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/sim/notify/first_touch.h"
#include "tests/sim/pci/bus_memory.h"
#include "tests/sim/pci/config_space.h"
#include "tests/sim/pci/violations.h"

namespace bm::sim::nv::card {

/// Thread: any. Pointers stay valid.
class VideoMemory {
 public:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint32_t kPoison = 0xdeadc0de;

  explicit VideoMemory(uint64_t bytes);
  ~VideoMemory();
  VideoMemory(const VideoMemory&) = delete;
  VideoMemory& operator=(const VideoMemory&) = delete;

  uint64_t size() const { return bytes_; }
  /// nullptr beyond the end.
  std::byte* at(uint64_t offset, uint64_t bytes);
  void host_read(uint64_t offset, std::span<std::byte> to);
  void host_write(uint64_t offset, std::span<const std::byte> from);
  /// Whether the host has written any of these 8 bytes since the last settle().
  bool is_unsettled(uint64_t offset) const;
  void settle();
  void lose();
  /// Addresses of the pages that anybody has touched, ascending.
  std::vector<uint64_t> written_pages() const;

 private:
  void touch(uint64_t page);

  const uint64_t bytes_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  mutable std::mutex mutex_;
  FirstTouch first_touch_;
  std::vector<bool> is_written_;                                   ///< by page
  std::unordered_map<uint64_t, std::array<uint64_t, 8>> written_;  ///< by page, a bit for 8 bytes
};

enum class Aperture : uint8_t { kVideo, kSystem };

/// Thread: any.
class Memory {
 public:
  Memory(VideoMemory& video, BusMemory& bus, ConfigSpace& config, uint32_t memory_bar,
         Violations& violations)
      : video_(video), bus_(bus), config_(config), bar_(memory_bar), violations_(violations) {}

  VideoMemory& video() { return video_; }
  /// Pointer to all of it; nullptr where nothing is mapped for DMA, in more than one piece, or the
  /// function may not be bus master. `who`: held against the driver then; empty: nobody.
  std::byte* system_at(uint64_t address, uint64_t bytes, bool is_write, const std::string& who);
  /// As far as it goes in one piece.
  std::byte* piece_at(uint64_t address, uint64_t bytes, bool is_write, uint64_t* contiguous);
  bool read(Aperture aperture, uint64_t address, std::span<std::byte> to, const std::string& who);
  bool write(Aperture aperture, uint64_t address, std::span<const std::byte> from,
             const std::string& who);

 private:
  VideoMemory& video_;
  BusMemory& bus_;
  ConfigSpace& config_;
  uint32_t bar_;
  Violations& violations_;
};

}  // namespace bm::sim::nv::card
