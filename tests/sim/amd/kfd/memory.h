#pragma once
// Memory objects of one process and the GPU page tables over them.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/sim/amd/engine/gpu_memory.h"
#include "tests/sim/amd/kfd/remote_pages.h"
#include "tests/sim/notify/process.h"

namespace bm::sim::amd {

class VideoMemory;

struct Object {
  uint64_t handle = 0, va = 0, bytes = 0, mmap_offset = 0;
  uint32_t gpu_id = 0, flags = 0;
  std::byte* host = nullptr;  ///< our own view; for registered memory the owner's
  bool is_registered = false;
  std::shared_ptr<RemotePages> remote;  ///< registered memory of another process: no `host`
  std::set<uint32_t> mapped;            ///< GPUs
  uint32_t queue_uses = 0;              ///< by queues that run
  bool is_event_page = false;           ///< stays while the process does
};

/// Thread: any. Registered memory of another process is worked on in copies of its pages: a thread
/// that got one through at() has them alone until its release().
class DeviceMemory final : public GpuMemory {
 public:
  /// `gpus`: ids of the GPUs, each with a file that its render node maps. `crosses_bus`: between
  /// them.
  DeviceMemory(VideoMemory& video, std::shared_ptr<notify::Process> owner,
               const std::vector<uint32_t>& gpus, bool crosses_bus);
  ~DeviceMemory() override;
  /// 0 and *out, or -errno. `address`: of registered memory.
  int allocate(Object object, uint64_t address, Object* out);
  int free(uint64_t handle);
  int map(uint64_t handle, uint32_t gpu_id);
  int unmap(uint64_t handle, uint32_t gpu_id);
  std::optional<Object> find(uint64_t handle) const;
  std::optional<Object> find_offset(uint32_t gpu_id, uint64_t mmap_offset) const;
  /// The object mapped for a GPU that starts at `va`; nothing when none does.
  std::optional<Object> mapping_at(uint32_t gpu_id, uint64_t va) const;
  /// The kernel signals on it from now on: it is not freed any more.
  void keep(uint64_t handle);
  /// Marks objects that a queue uses: they cannot be unmapped meanwhile.
  void use(uint64_t va, int change);

  std::byte* at(uint32_t gpu_id, uint64_t va, uint64_t bytes, bool is_write) override;
  std::byte* at(uint32_t gpu_id, uint64_t va, uint64_t bytes) {
    return at(gpu_id, va, bytes, true);
  }
  bool hold_write(uint32_t gpu_id, uint64_t va, const std::byte* data, uint64_t bytes) override;
  bool flush_at(uint32_t gpu_id, uint64_t va) override;
  void read_over_bus(uint32_t gpu_id, uint64_t va) override;
  std::optional<Range> local_range(uint32_t gpu_id, uint64_t va) override;
  uint64_t mapped_elsewhere(uint32_t gpu_id) const override;
  uint64_t generation() const override { return generation_.load(std::memory_order_acquire); }
  /// Writes what this thread changed in other processes back.
  void release() override;

  int descriptor(uint32_t gpu_id) const { return arenas_.at(gpu_id).fd; }
  uint64_t available(uint32_t gpu_id) const;
  size_t objects() const;  ///< the event page is not counted

 private:
  /// Bytes of a sparse file, given out first fit.
  struct Arena {
    int fd = -1;
    std::byte* base = nullptr;
    std::map<uint64_t, uint64_t> free;  ///< offset → bytes
  };
  static std::optional<uint64_t> take(Arena& arena, uint64_t bytes);
  static void give_back(Arena& arena, uint64_t offset, uint64_t bytes);
  const Object* covering(uint32_t gpu_id, uint64_t va) const;
  void flush(uint32_t gpu_id);

  VideoMemory& video_;
  std::shared_ptr<notify::Process> owner_;
  const bool crosses_bus_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Arena> arenas_;
  std::map<uint64_t, Object> objects_;
  std::map<uint64_t, uint64_t> by_va_;  ///< handles
  struct Held {
    uint64_t handle = 0, offset = 0;
    std::vector<std::byte> data;
  };
  std::map<uint32_t, std::vector<Held>> held_;  ///< by the GPU whose memory it is for
  uint64_t next_handle_ = 1;
  std::atomic<uint64_t> generation_{0};
  std::mutex remote_mutex_;  ///< held from at() to release()
  std::atomic<std::thread::id> remote_holder_{};
  std::set<std::shared_ptr<RemotePages>> touched_;  ///< under remote_mutex_
};

}  // namespace bm::sim::amd
