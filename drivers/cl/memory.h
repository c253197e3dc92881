#pragma once
// Memory of an OpenCL device. An address is one of three kinds:
//   host  a pointer of this process; kernels reach it through a cl_mem around it
//   SVM   a pointer both sides use, where the device has shared virtual memory
//   cl_mem memory without an address: one from 2^63 up is invented and never used again
// Host and SVM addresses are below 2^63, so an address alone tells what it is.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "drivers/cl/context.h"
#include "drivers/vendor/region_counters.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cl {

enum class Space : uint8_t { kHost, kSvm, kMem };

class Memory;

/// One allocation or wrapped memory. Registered in its Memory until destroyed.
class Region final : public hal::Buffer {
 public:
  struct Parts {
    Space space = Space::kHost;
    OwnedMem mem;                          ///< kMem: always; kHost: made for the first kernel
    std::unique_ptr<hal::Buffer> backing;  ///< kHost: the memory itself
    void* svm = nullptr;                   ///< kSvm: to be freed; null when the caller's
    bool is_fine = false;                  ///< kSvm: host and device may use it without mapping
  };
  Region(std::shared_ptr<Memory> memory, const hal::BufferDesc& desc, hal::GpuVa va,
         std::byte* host, Parts parts);
  ~Region() override;

  Space space() const { return parts_.space; }
  bool is_fine() const { return parts_.is_fine; }
  cl_mem mem() const { return parts_.mem.get(); }
  /// The cl_mem that begins `offset` bytes into this region; a sub-buffer unless 0. kHost: made
  /// around the memory. Errors: kInvalidArgument (alignment), the driver's.
  Result<cl_mem> mem_at(uint64_t offset);

  // Whose turn it is to touch kHost memory that kernels use; changed under the submission lock.
  bool is_mapped = true;    ///< the host's turn
  bool was_mapped = false;  ///< the device has been told of the memory's contents before

 private:
  Status wrap_host();
  const std::shared_ptr<Memory> memory_;
  Parts parts_;
  std::vector<std::pair<uint64_t, OwnedMem>> sub_buffers_;  ///< by offset
};

/// Where a range of addresses leads.
struct Place {
  Space space = Space::kHost;
  Region* region = nullptr;  ///< null: host memory of somebody else
  uint64_t offset = 0;       ///< within the region
  void* pointer = nullptr;   ///< kHost, kSvm
};

/// Thread: safe; a region's mem_at under the submission lock.
class Memory : public std::enable_shared_from_this<Memory>, public vendor::RegionCounters {
 public:
  explicit Memory(ContextPtr context) : context_(std::move(context)) {}

  /// Memory the host must see is fine-grained SVM or host memory, never device memory that would
  /// have to be mapped. Errors: kOutOfMemory with the numbers; kInvalidArgument (size 0, a cl_mem
  /// of another context or too small); kUnsupported (SVM pointer on a device without).
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc);
  /// Errors: kUnsupported when the peer's memory has no host pointer.
  Result<hal::GpuVa> map(const hal::Buffer& peer);

  /// Errors: kInvalidArgument when the bytes leave their region or the address is unknown.
  Result<Place> resolve(hal::GpuVa va, uint64_t bytes);
  /// The word at `va` for the host to read and write. Errors: kInvalidArgument, kUnsupported.
  Result<uint64_t*> host_word(hal::GpuVa va, const char* command);
  /// Sets a kernel's argument to the memory at `va`, null for 0. Returns the region when the kernel
  /// will touch host memory through it, else nullptr.
  Result<Region*> bind(cl_kernel kernel, uint32_t index, hal::GpuVa va);

  hal::MemoryInfo info() const { return {.total = context_->info.memory_bytes, .used = used()}; }
  const Context& context() const { return *context_; }

 private:
  friend class Region;
  Result<std::unique_ptr<hal::Buffer>> wrap(const hal::BufferDesc& desc);
  Result<std::unique_ptr<hal::Buffer>> allocate_svm(const hal::BufferDesc& desc, bool is_fine);
  Result<std::unique_ptr<hal::Buffer>> allocate_mem(const hal::BufferDesc& desc);
  Result<std::unique_ptr<hal::Buffer>> adopt_mem(const hal::BufferDesc& desc);
  std::unique_ptr<hal::Buffer> make_region(const hal::BufferDesc& desc, hal::GpuVa va,
                                           std::byte* host, Region::Parts parts);
  Status check_size(uint64_t bytes) const;
  hal::GpuVa invent_address(uint64_t bytes);
  Status fill_zero(void* svm, cl_mem mem, uint64_t bytes);
  void unmap(cl_mem mem, void* pointer);
  template <class Enqueue>
  Status run_aside(const char* what, const Enqueue& enqueue);
  void add(Region& region);
  void remove(Region& region);

  const ContextPtr context_;
  std::atomic<uint64_t> next_address_{0};
  mutable std::shared_mutex mutex_;
  std::multimap<uint64_t, Region*> by_address_;  ///< the caller's memory may be wrapped twice
};

}  // namespace bm::cl
