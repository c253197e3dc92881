#pragma once
// Storage: one allocation on one device. Buffer: a byte range of it, a value.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/timeline.h"

namespace bm::runtime {

class Device;

/// Owner of one allocation; destroying it returns the block to its device's allocator after the
/// last Point that uses it. Destruction never blocks.
class Storage {
 public:
  virtual ~Storage() = default;
  virtual Device& device() const = 0;
  virtual hal::GpuVa va() const = 0;
  virtual uint64_t size() const = 0;
  /// Host pointer or nullptr when the CPU cannot reach it.
  virtual std::byte* host() const = 0;
  /// Address of this storage on another device, mapped there on first use.
  /// Errors: kUnsupported, or the driver's, when that device cannot reach it.
  virtual Result<hal::GpuVa> va_on(Device& other) {
    if (&other == &device()) return va();
    return fail(Code::kUnsupported, "this memory cannot be mapped on another device");
  }
  /// Work that touches this storage completes at `point`.
  virtual void used_until(Point point) = 0;
  /// The use recorded last. With work of several devices outstanding this is only one of them:
  /// wait_idle() and uses() know all.
  virtual Point last_use() const = 0;
  /// Points not reached yet, at most one per timeline.
  virtual std::vector<Point> uses() const { return {last_use()}; }
  /// Blocks until no queued work touches this storage. Errors: those of Timeline::wait.
  virtual Status wait_idle() { return wait(last_use()); }

  /// Changes with every write by calls, replays and the functions below, so that what was derived
  /// from the contents can tell whether it still holds. Whoever writes through host() calls
  /// note_write() when he is done. Thread: any.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  void note_write() { version_.fetch_add(1, std::memory_order_release); }
  /// Memory of somebody else, who may write to it at any time.
  bool is_imported() const { return is_imported_; }
  void set_imported() { is_imported_ = true; }

 private:
  std::atomic<uint64_t> version_{0};
  bool is_imported_ = false;
};
using StoragePtr = std::shared_ptr<Storage>;

/// Value type: a view is just another Buffer on the same Storage.
struct Buffer {
  StoragePtr storage;
  uint64_t offset = 0;  ///< bytes
  uint64_t size = 0;    ///< bytes

  bool has_storage() const { return storage != nullptr; }
  hal::GpuVa va() const { return hal::offset(storage->va(), offset); }
  std::byte* host() const { return storage->host() ? storage->host() + offset : nullptr; }
  Device& device() const { return storage->device(); }
  /// Errors: kInvalidArgument when the range leaves this buffer.
  Result<Buffer> view(uint64_t byte_offset, uint64_t byte_size) const;
};

/// Fresh memory on a device. `desc.size` in bytes; size 0 is rounded up to one granule.
Result<Buffer> allocate(Device& device, const hal::BufferDesc& desc);
/// Wraps caller memory; `release` (may be empty) runs once after the last use completed.
Result<Buffer> wrap(Device& device, void* pointer, uint64_t bytes, std::function<void()> release,
                    hal::ExternalKind kind = hal::ExternalKind::kHostPointer);

/// Host → device and device → host of exactly the given bytes; staged and double-buffered where the
/// memory is not host visible. Both return when the host memory may be reused / holds the data.
Status copy_in(const Buffer& dst, std::span<const std::byte> src);
Status copy_out(std::span<std::byte> dst, const Buffer& src);
/// Device → device, same or different devices; sizes must match. Ordered after earlier work on
/// both.
Status copy(const Buffer& dst, const Buffer& src);
/// Streams file bytes [file_offset, file_offset + dst.size) into a buffer. Short file: kIo with the
/// offset.
Status copy_from_file(const Buffer& dst, const std::string& path, uint64_t file_offset);

}  // namespace bm::runtime
