#pragma once
// 16-byte signals (value at +0, timestamp at +8) out of shared host-visible pages.

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/timeline.h"

namespace bm::runtime {

/// Thread: safe. Must outlive its signals, and be outlived by the device.
class SignalPool {
 public:
  static constexpr uint64_t kSignalBytes = 16;
  /// `page_bytes`: 4 KiB; 256 B behind links where every byte is a transfer.
  explicit SignalPool(hal::Device& device, uint64_t page_bytes = 4096);

  /// One slot; goes back to the pool when destroyed.
  class Signal {
   public:
    Signal() = default;
    Signal(Signal&& other) noexcept { swap(other); }
    Signal& operator=(Signal&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Signal();

    bool is_valid() const { return pool_ != nullptr; }
    hal::GpuVa va() const { return va_; }
    hal::GpuVa timestamp_va() const { return hal::offset(va_, 8); }
    std::byte* host() const { return host_; }
    /// Device ticks of Arch::clock_hz written at timestamp_va().
    uint64_t timestamp() const;
    uint64_t value() const;
    void set_value(uint64_t value);
    /// The device may write the slot until `point`: it is not handed out again before.
    void used_until(Point point) { last_use_ = point; }

   private:
    friend class SignalPool;
    void swap(Signal& other) noexcept;
    SignalPool* pool_ = nullptr;
    hal::GpuVa va_{};
    std::byte* host_ = nullptr;
    Point last_use_;
  };

  /// A signal with value 0. Errors: the device's, when a new page is needed and cannot be had.
  Result<Signal> allocate();
  /// Slots that exist, free or not.
  size_t capacity() const;
  /// Slots that can be handed out now without a new page.
  size_t available() const;

 private:
  struct Slot {
    hal::GpuVa va{};
    std::byte* host = nullptr;
    Point last_use;
  };
  void give_back(const Slot& slot);
  Status add_page();
  void collect();

  hal::Device& device_;
  const uint64_t page_bytes_;
  mutable std::mutex lock_;
  std::vector<std::unique_ptr<hal::Buffer>> pages_;
  std::vector<Slot> free_;
  std::vector<Slot> in_flight_;  ///< given back, device not yet done
};

}  // namespace bm::runtime
