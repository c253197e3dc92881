#pragma once
// Video memory of a modelled chip, and the host data path (HDP) between it and BAR 0.
//
// What was never written reads as poison. What the host writes through the BAR waits in the HDP:
// the host itself sees it, engines see it after a flush. Real hardware may write it back earlier,
// whenever it likes; a driver must not count on that (amdgpu_device_flush_hdp()).

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "tests/sim/notify/first_touch.h"

namespace bm::sim::amd {

/// Thread: any. Host pointers that at() gave out stay valid.
class Vram {
 public:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint32_t kPoison = 0xdeadc0de;

  explicit Vram(uint64_t bytes);
  ~Vram();
  Vram(const Vram&) = delete;
  Vram& operator=(const Vram&) = delete;

  uint64_t size() const { return bytes_; }
  /// As engines see it; nullptr beyond the end. Pages that nobody wrote are poisoned first.
  std::byte* at(uint64_t offset, uint64_t bytes);
  bool read(uint64_t offset, std::span<std::byte> to);
  bool write(uint64_t offset, std::span<const std::byte> from);

  // Through the BAR.
  void host_read(uint64_t offset, std::span<std::byte> to);
  void host_write(uint64_t offset, std::span<const std::byte> from);
  void flush();
  uint64_t held_bytes() const;
  /// Whether the HDP holds bytes of that range: an engine reads what the host believes written.
  bool holds(uint64_t offset, uint64_t bytes) const;

  /// For drivers that are not ours: what waits is seen by engines all the same, and still counts as
  /// held for those who ask.
  std::atomic<bool> writes_through{false};

  /// Everything is lost, what waits included.
  void lose();

 private:
  struct Line {
    std::array<std::byte, kPage> bytes;
    std::array<uint8_t, kPage> is_dirty{};
  };
  void touch(uint64_t page);
  void flush_locked();

  const uint64_t bytes_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  mutable std::mutex mutex_;
  FirstTouch first_touch_;
  std::vector<bool> is_written_;  ///< by page
  std::map<uint64_t, Line> held_;
  uint64_t held_bytes_ = 0;
};

}  // namespace bm::sim::amd
