#include "tests/sim/amd/kfd/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/sim/amd/kfd/machine.h"
#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {
namespace {

// Linux 6.12, include/uapi/linux/kfd_ioctl.h, KFD_IOC_ALLOC_MEM_FLAGS_*.
constexpr uint32_t kVram = 1, kMmioRemap = 1u << 4, kPageMask = 4095;
constexpr uint64_t kFlushRegister = 0;  // KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL
constexpr uint64_t kArena = uint64_t{16} << 30;

}  // namespace

DeviceMemory::DeviceMemory(VideoMemory& video, std::shared_ptr<notify::Process> owner,
                           const std::vector<uint32_t>& gpus, bool crosses_bus)
    : video_(video), owner_(std::move(owner)), crosses_bus_(crosses_bus) {
  for (const uint32_t gpu : gpus) {
    Arena& arena = arenas_[gpu];
    arena.fd = memfd_create("bm-sim-amd", MFD_CLOEXEC);
    if (arena.fd < 0 || ftruncate(arena.fd, static_cast<off_t>(kArena)) != 0)
      sim::give_up_errno("memory of the GPU");
    void* const at =
        mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    if (at == MAP_FAILED) sim::give_up_errno("memory of the GPU");
    arena.base = static_cast<std::byte*>(at);
    arena.free[0] = kArena;
  }
}

DeviceMemory::~DeviceMemory() {
  for (const auto& [handle, object] : objects_)
    if (!object.is_registered && (object.flags & kVram) != 0)
      video_.give_back(object.gpu_id, object.bytes);
  for (const auto& [gpu, arena] : arenas_) {
    munmap(arena.base, kArena);
    close(arena.fd);
  }
}

std::optional<uint64_t> DeviceMemory::take(Arena& arena, uint64_t bytes) {
  for (auto at = arena.free.begin(); at != arena.free.end(); ++at) {
    const auto [offset, room] = *at;
    if (room < bytes) continue;
    arena.free.erase(at);
    if (room > bytes) arena.free[offset + bytes] = room - bytes;
    return offset;
  }
  return std::nullopt;
}

void DeviceMemory::give_back(Arena& arena, uint64_t offset, uint64_t bytes) {
  // What comes next starts empty, as the kernel driver clears memory.
  fallocate(arena.fd, 3 /* punch a hole, keep the size */, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  auto after = arena.free.lower_bound(offset);
  if (after != arena.free.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = arena.free.erase(after);
  }
  if (after != arena.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  arena.free[offset] = bytes;
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
    if ((address & kPageMask) != 0) return -EINVAL;
    object.host = owner_->direct(address);
    if (object.host == nullptr)
      object.remote = std::make_shared<RemotePages>(owner_, address, object.bytes);
  } else {
    const bool is_video = (object.flags & kVram) != 0;
    if (is_video && !video_.take(object.gpu_id, object.bytes)) return -ENOMEM;
    Arena& arena = arenas_.at(object.gpu_id);
    const auto offset = take(arena, object.bytes);
    if (!offset) {
      if (is_video) video_.give_back(object.gpu_id, object.bytes);
      return -ENOMEM;
    }
    object.mmap_offset = *offset;
    object.host = arena.base + *offset;
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
  if (object.is_event_page) return -EPERM;
  if (!object.mapped.empty()) return -EBUSY;
  if (!object.is_registered) {
    if ((object.flags & kVram) != 0) video_.give_back(object.gpu_id, object.bytes);
    give_back(arenas_.at(object.gpu_id), object.mmap_offset, object.bytes);
  }
  std::erase_if(held_[object.gpu_id], [&](const Held& held) { return held.handle == handle; });
  by_va_.erase(object.va);
  objects_.erase(at);
  ++generation_;
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
  ++generation_;
  return 0;
}

std::optional<Object> DeviceMemory::find(uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(handle);
  return at == objects_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<Object> DeviceMemory::find_offset(uint32_t gpu_id, uint64_t mmap_offset) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, object] : objects_)
    if (!object.is_registered && object.gpu_id == gpu_id && object.mmap_offset == mmap_offset)
      return object;
  return std::nullopt;
}

std::optional<Object> DeviceMemory::mapping_at(uint32_t gpu_id, uint64_t va) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_va_.find(va);
  if (at == by_va_.end()) return std::nullopt;
  const Object& object = objects_.at(at->second);
  return object.mapped.contains(gpu_id) ? std::optional(object) : std::nullopt;
}

void DeviceMemory::keep(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  objects_.at(handle).is_event_page = true;
}

void DeviceMemory::use(uint64_t va, int change) {
  const std::lock_guard lock(mutex_);
  const auto at = by_va_.find(va);
  if (at != by_va_.end()) objects_.at(at->second).queue_uses += static_cast<uint32_t>(change);
}

const Object* DeviceMemory::covering(uint32_t gpu_id, uint64_t va) const {
  auto after = by_va_.upper_bound(va);
  if (after == by_va_.begin()) return nullptr;
  const Object& object = objects_.at(std::prev(after)->second);
  return va - object.va < object.bytes && object.mapped.contains(gpu_id) ? &object : nullptr;
}

/// Every page of the kernel driver's model may be written.
std::byte* DeviceMemory::at(uint32_t gpu_id, uint64_t va, uint64_t bytes, bool /*is_write*/) {
  std::shared_ptr<RemotePages> remote;
  uint64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    const Object* const object = covering(gpu_id, va);
    if (object == nullptr || bytes > object->bytes - (va - object->va)) return nullptr;
    offset = va - object->va;
    if (object->host != nullptr) return object->host + offset;
    remote = object->remote;
  }
  if (remote_holder_.load() != std::this_thread::get_id()) {
    remote_mutex_.lock();
    remote_holder_.store(std::this_thread::get_id());
  }
  touched_.insert(remote);
  return remote->at(offset, bytes);
}

bool DeviceMemory::hold_write(uint32_t gpu_id, uint64_t va, const std::byte* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const Object* const object = covering(gpu_id, va);
  if (!crosses_bus_ || object == nullptr || object->gpu_id == gpu_id ||
      (object->flags & kVram) == 0)
    return false;
  held_[object->gpu_id].push_back({object->handle, va - object->va, {data, data + bytes}});
  return true;
}

void DeviceMemory::flush(uint32_t gpu_id) {
  for (const Held& held : std::exchange(held_[gpu_id], {}))
    std::memcpy(objects_.at(held.handle).host + held.offset, held.data.data(), held.data.size());
}

bool DeviceMemory::flush_at(uint32_t gpu_id, uint64_t va) {
  const std::lock_guard lock(mutex_);
  const Object* const object = covering(gpu_id, va);
  if (object == nullptr || (object->flags & kMmioRemap) == 0 || va - object->va != kFlushRegister)
    return false;
  flush(object->gpu_id);
  return true;
}

void DeviceMemory::read_over_bus(uint32_t gpu_id, uint64_t va) {
  const std::lock_guard lock(mutex_);
  const Object* const object = covering(gpu_id, va);
  if (object != nullptr && object->gpu_id != gpu_id && (object->flags & kVram) != 0)
    flush(object->gpu_id);
}

void DeviceMemory::release() {
  if (remote_holder_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return;
  for (const auto& pages : touched_) pages->flush();
  touched_.clear();
  remote_holder_.store({});
  remote_mutex_.unlock();
}

std::optional<GpuMemory::Range> DeviceMemory::local_range(uint32_t gpu_id, uint64_t va) {
  const std::lock_guard lock(mutex_);
  const Object* const object = covering(gpu_id, va);
  if (object == nullptr || object->host == nullptr) return std::nullopt;
  return Range{object->va, object->bytes, object->host};
}

uint64_t DeviceMemory::mapped_elsewhere(uint32_t gpu_id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, object] : objects_)
    if (!object.mapped.empty() && !object.mapped.contains(gpu_id)) return object.va;
  return 0;
}

uint64_t DeviceMemory::available(uint32_t gpu_id) const { return video_.available(gpu_id); }

size_t DeviceMemory::objects() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [handle, object] : objects_) count += object.is_event_page ? 0 : 1;
  return count;
}

}  // namespace bm::sim::amd
