#include "tests/sim/amd/kfd/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace bm::sim::amd {
namespace {

// Linux 6.12, include/uapi/linux/kfd_ioctl.h, KFD_IOC_ALLOC_MEM_FLAGS_*.
constexpr uint32_t kVram = 1, kPageMask = 4095;
constexpr uint64_t kArena = uint64_t{8} << 30;

}  // namespace

DeviceMemory::DeviceMemory(uint64_t vram_bytes, uint32_t) : vram_bytes_(vram_bytes) {
  fd_ = memfd_create("bm-sim-amd", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(kArena)) != 0) abort();
  void* const at =
      mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (at == MAP_FAILED) abort();
  base_ = static_cast<std::byte*>(at);
}

DeviceMemory::~DeviceMemory() {
  munmap(base_, kArena);
  close(fd_);
}

int DeviceMemory::allocate(Object object, uint64_t address, Object* out) {
  const std::lock_guard lock(mutex_);
  if (object.bytes == 0 || (object.bytes & kPageMask) != 0 || (object.va & kPageMask) != 0)
    return -EINVAL;
  // Overlapping ranges of one process are refused.
  auto after = by_va_.lower_bound(object.va);
  if (after != by_va_.end() && after->first < object.va + object.bytes) return -EINVAL;
  if (after != by_va_.begin()) {
    const Object& before = objects_.at(std::prev(after)->second);
    if (before.va + before.bytes > object.va) return -EINVAL;
  }
  if (object.is_registered) {
    object.host = reinterpret_cast<std::byte*>(address);
  } else {
    if ((object.flags & kVram) != 0 && used_[object.gpu_id] + object.bytes > vram_bytes_)
      return -ENOMEM;
    if (next_ + object.bytes > kArena) return -ENOMEM;
    if ((object.flags & kVram) != 0) used_[object.gpu_id] += object.bytes;
    object.mmap_offset = next_;
    object.host = base_ + next_;
    next_ += object.bytes;
  }
  object.handle = uint64_t{object.gpu_id} << 32 | next_handle_++;
  objects_[object.handle] = object;
  by_va_[object.va] = object.handle;
  *out = object;
  return 0;
}

int DeviceMemory::free(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(handle);
  if (at == objects_.end()) return -EINVAL;
  Object& object = at->second;
  if (!object.mapped.empty()) return -EBUSY;
  if (!object.is_registered) {
    if ((object.flags & kVram) != 0) used_[object.gpu_id] -= object.bytes;
    fallocate(fd_, 3 /* punch a hole, keep the size */, static_cast<off_t>(object.mmap_offset),
              static_cast<off_t>(object.bytes));
  }
  by_va_.erase(object.va);
  objects_.erase(at);
  return 0;
}

int DeviceMemory::map(uint64_t handle, uint32_t gpu_id) {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(handle);
  if (at == objects_.end()) return -ENOMEM;
  at->second.mapped.insert(gpu_id);
  return 0;
}

int DeviceMemory::unmap(uint64_t handle, uint32_t gpu_id) {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(handle);
  if (at == objects_.end()) return -EINVAL;
  if (at->second.queue_uses != 0) return -EBUSY;
  at->second.mapped.erase(gpu_id);
  return 0;
}

std::optional<Object> DeviceMemory::find(uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(handle);
  return at == objects_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<Object> DeviceMemory::find_offset(uint64_t mmap_offset) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, object] : objects_)
    if (!object.is_registered && object.mmap_offset == mmap_offset) return object;
  return std::nullopt;
}

std::optional<Object> DeviceMemory::mapping_at(uint32_t gpu_id, uint64_t va) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_va_.find(va);
  if (at == by_va_.end()) return std::nullopt;
  const Object& object = objects_.at(at->second);
  return object.mapped.contains(gpu_id) ? std::optional(object) : std::nullopt;
}

void DeviceMemory::use(uint64_t va, int change) {
  const std::lock_guard lock(mutex_);
  const auto at = by_va_.find(va);
  if (at != by_va_.end()) objects_.at(at->second).queue_uses += static_cast<uint32_t>(change);
}

std::byte* DeviceMemory::at(uint32_t gpu_id, uint64_t va, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = by_va_.upper_bound(va);
  if (after == by_va_.begin()) return nullptr;
  const Object& object = objects_.at(std::prev(after)->second);
  if (va - object.va >= object.bytes || bytes > object.bytes - (va - object.va)) return nullptr;
  return object.mapped.contains(gpu_id) ? object.host + (va - object.va) : nullptr;
}

uint64_t DeviceMemory::available(uint32_t gpu_id) const {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(gpu_id);
  return vram_bytes_ - (used == used_.end() ? 0 : used->second);
}

size_t DeviceMemory::objects() const {
  const std::lock_guard lock(mutex_);
  return objects_.size();
}

}  // namespace bm::sim::amd
