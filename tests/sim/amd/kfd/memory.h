#pragma once
// DeviceMemory objects of the modelled driver and the GPU page tables over them.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

namespace bm::sim::amd {

struct Object {
  uint64_t handle = 0, va = 0, bytes = 0, mmap_offset = 0;
  uint32_t gpu_id = 0, flags = 0;
  std::byte* host = nullptr;  ///< our own view; for registered memory the owner's
  bool is_registered = false;
  std::set<uint32_t> mapped;  ///< GPUs
  uint32_t queue_uses = 0;    ///< by queues that run
};

/// Thread: any.
class DeviceMemory {
 public:
  explicit DeviceMemory(uint64_t vram_bytes, uint32_t gpus);
  ~DeviceMemory();
  /// 0 and *out, or -errno. `address`: of registered memory.
  int allocate(Object object, uint64_t address, Object* out);
  int free(uint64_t handle);
  int map(uint64_t handle, uint32_t gpu_id);
  int unmap(uint64_t handle, uint32_t gpu_id);
  std::optional<Object> find(uint64_t handle) const;
  std::optional<Object> find_offset(uint64_t mmap_offset) const;
  /// The object mapped for a GPU that starts at `va`; nothing when none does.
  std::optional<Object> mapping_at(uint32_t gpu_id, uint64_t va) const;
  /// Marks objects that a queue uses: they cannot be unmapped meanwhile.
  void use(uint64_t va, int change);

  /// Host view of GPU memory, or nullptr where the GPU's page tables have nothing.
  std::byte* at(uint32_t gpu_id, uint64_t va, uint64_t bytes) const;
  int descriptor() const { return fd_; }
  uint64_t available(uint32_t gpu_id) const;
  size_t objects() const;

 private:
  mutable std::mutex mutex_;
  int fd_ = -1;
  std::byte* base_ = nullptr;  ///< all of our memory, sparsely backed
  uint64_t next_ = 0;
  uint64_t vram_bytes_;
  std::map<uint32_t, uint64_t> used_;  ///< video memory by GPU
  std::map<uint64_t, Object> objects_;
  std::map<uint64_t, uint64_t> by_va_;  ///< handles
  uint64_t next_handle_ = 1;
};

}  // namespace bm::sim::amd
