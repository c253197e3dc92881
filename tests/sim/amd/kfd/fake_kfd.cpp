#include "tests/sim/amd/kfd/fake_kfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/sim/amd/kfd/sysfs.h"

namespace bm::sim::amd {
namespace {

// include/uapi/linux/kfd_ioctl.h, 6.12: numbers, and bytes the kernel's structures have.
constexpr uint32_t kSizes[] = {0, 8, 96, 8,  24, 40, 0,  24, 32, 8,  8,  8,  24,
                               0, 0, 0,  0,  16, 40, 24, 16, 8,  40, 8,  24, 24,
                               8, 8, 32, 24, 16, 8,  24, 16, 8,  16, 16, 16};
constexpr uint32_t kVram = 1, kGtt = 2, kUserPointer = 4, kPublic = 1u << 29;
constexpr uint32_t kSignalEvent = 0, kHardwareEvent = 3, kMemoryEvent = 8;
constexpr uint64_t kPage = 4096, kDoorbellBytes = 0x2000;

template <class T>
T& field(void* argument, size_t offset) {
  return *reinterpret_cast<T*>(static_cast<std::byte*>(argument) + offset);
}
uint32_t& u32(void* argument, size_t offset) { return field<uint32_t>(argument, offset); }
uint64_t& u64(void* argument, size_t offset) { return field<uint64_t>(argument, offset); }

}  // namespace

FakeKfd::FakeKfd(Options options)
    : options_(std::move(options)),
      sysfs_(sysfs_of(options_)),
      memory_(options_.vram_bytes, options_.gpus) {
  doorbell_fd_ = memfd_create("bm-sim-doorbells", MFD_CLOEXEC);
  const uint64_t bytes = kDoorbellBytes * options_.gpus;
  if (doorbell_fd_ < 0 || ftruncate(doorbell_fd_, static_cast<off_t>(bytes)) != 0) abort();
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, doorbell_fd_, 0);
  if (at == MAP_FAILED) abort();
  doorbells_ = static_cast<uint64_t*>(at);
}

FakeKfd::~FakeKfd() {
  queues_.clear();
  ::munmap(doorbells_, kDoorbellBytes * options_.gpus);
  ::close(doorbell_fd_);
  for (const auto& [fd, file] : files_) ::close(fd);
}

int FakeKfd::open(const std::string& path, int flags) {
  File file;
  if (path == "/dev/kfd") {
    if (options_.kfd_error != 0) return -options_.kfd_error;
  } else if (path.starts_with("/dev/dri/renderD")) {
    if (options_.render_error != 0) return -options_.render_error;
    file.kind = File::Kind::kRender;
    file.gpu = static_cast<uint32_t>(std::atoi(path.c_str() + 16)) - render_minor_of(0);
    if (file.gpu >= options_.gpus) return -ENOENT;
  } else {
    return System::open(path, flags);
  }
  const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd < 0) return -errno;
  const std::lock_guard lock(mutex_);
  files_[fd] = file;
  return fd;
}

int FakeKfd::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    files_.erase(fd);
  }
  return System::close(fd);
}

int FakeKfd::read_file(const std::string& path, std::string* out) {
  const auto at = sysfs_.find(path);
  if (at != sysfs_.end()) {
    *out = at->second;
    return 0;
  }
  return path.starts_with("/sys/") ? -ENOENT : System::read_file(path, out);
}

int FakeKfd::list(const std::string& path, std::vector<std::string>* out) {
  if (!path.starts_with("/sys/")) return System::list(path, out);
  out->clear();
  const std::string prefix = path + "/";
  for (auto at = sysfs_.lower_bound(prefix); at != sysfs_.end() && at->first.starts_with(prefix);
       ++at) {
    std::string name = at->first.substr(prefix.size());
    name.resize(std::min(name.find('/'), name.size()));
    if (out->empty() || out->back() != name) out->push_back(name);
  }
  return out->empty() ? -ENOENT : 0;
}

int FakeKfd::mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                  void** out) {
  File::Kind kind{};
  {
    const std::lock_guard lock(mutex_);
    const auto file = files_.find(fd);
    if (fd < 0 || file == files_.end())
      return System::mmap(address, bytes, protection, flags, fd, offset, out);
    kind = file->second.kind;
  }
  if (kind == File::Kind::kKfd) {
    // Doorbells: type and GPU in the upper bits of the offset.
    const auto gpu = static_cast<uint64_t>(offset) >> 40;
    if (bytes != kDoorbellBytes || gpu == 0 || gpu > options_.gpus) return -EINVAL;
    return System::mmap(address, bytes, protection, flags, doorbell_fd_,
                        static_cast<off_t>((gpu - 1) * kDoorbellBytes), out);
  }
  const auto object = memory_.find_offset(static_cast<uint64_t>(offset));
  if (!object || bytes != object->bytes) return -EINVAL;
  return System::mmap(address, bytes, protection, flags, memory_.descriptor(), offset, out);
}

int FakeKfd::ioctl(int fd, unsigned long request, void* argument) {
  {
    const std::lock_guard lock(mutex_);
    const auto file = files_.find(fd);
    if (file == files_.end()) return System::ioctl(fd, request, argument);
    if (file->second.kind != File::Kind::kKfd) return -ENOTTY;
  }
  const uint64_t call = calls_.fetch_add(1);
  if (options_.failing_call >= 0 && call == static_cast<uint64_t>(options_.failing_call))
    return -options_.failing_error;
  const uint32_t number = request & 0xff;
  if ((request >> 8 & 0xff) != 'K' || number >= std::size(kSizes) || kSizes[number] == 0)
    return -ENOTTY;
  // Older kernels do not know the later calls.
  if ((number == 0x24 && options_.minor < 12) || (number == 0x25 && options_.minor < 14))
    return -ENOTTY;
  // The kernel takes structures of any length; what it does not get is zero.
  std::vector<std::byte> copy(128);
  const size_t bytes = request >> 16 & 0x3fff;
  std::memcpy(copy.data(), argument, std::min<size_t>(bytes, kSizes[number]));
  const int result = dispatch(number, copy.data());
  std::memcpy(argument, copy.data(), std::min<size_t>(bytes, kSizes[number]));
  return result;
}

int FakeKfd::gpu_of(uint32_t gpu_id) const {
  for (uint32_t gpu = 0; gpu < options_.gpus; ++gpu)
    if (gpu_id_of(gpu) == gpu_id) return static_cast<int>(gpu);
  return -1;
}

int FakeKfd::dispatch(uint32_t number, void* a) {
  switch (number) {
    case 0x01:
      u32(a, 0) = 1;
      u32(a, 4) = options_.minor;
      return 0;
    case 0x02: return create_queue(a);
    case 0x03: return destroy_queue(a);
    case 0x08: return create_event(a);
    case 0x09: {
      const std::lock_guard lock(mutex_);
      return events_.erase(u32(a, 0)) != 0 ? 0 : -EINVAL;
    }
    case 0x0a: signal(u32(a, 0)); return 0;
    case 0x0c: return wait_events(a);
    case 0x15: {  // ACQUIRE_VM
      const int gpu = gpu_of(u32(a, 4));
      const std::lock_guard lock(mutex_);
      const auto file = files_.find(static_cast<int>(u32(a, 0)));
      if (gpu < 0 || file == files_.end() || file->second.kind != File::Kind::kRender ||
          file->second.gpu != static_cast<uint32_t>(gpu))
        return -EINVAL;
      has_vm_[u32(a, 4)] = true;
      return 0;
    }
    case 0x16: return alloc_memory(a);
    case 0x17: {
      const int result = memory_.free(u64(a, 0));
      return u64(a, 0) == event_page_ && result == 0 && !events_.empty() ? -EBUSY : result;
    }
    case 0x18: return map_memory(a, true);
    case 0x19: return map_memory(a, false);
    case 0x1f: {  // SMI_EVENTS
      const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      if (fd < 0) return -errno;
      const std::lock_guard lock(mutex_);
      files_[fd] = {File::Kind::kLog, 0};
      u32(a, 4) = static_cast<uint32_t>(fd);
      return 0;
    }
    case 0x23:
      if (gpu_of(u32(a, 8)) < 0) return -EINVAL;
      u64(a, 0) = memory_.available(u32(a, 8));
      return 0;
    case 0x25: return 0;
    default: return -EINVAL;
  }
}

int FakeKfd::alloc_memory(void* a) {
  Object object;
  object.va = u64(a, 0);
  object.bytes = u64(a, 8);
  object.gpu_id = u32(a, 32);
  object.flags = u32(a, 36);
  object.is_registered = (object.flags & kUserPointer) != 0;
  if (gpu_of(object.gpu_id) < 0 || !has_vm_[object.gpu_id]) return -EINVAL;
  const uint32_t places = object.flags & (kVram | kGtt | kUserPointer);
  if (places == 0 || (places & (places - 1)) != 0 || object.va == 0) return -EINVAL;
  if (object.bytes % kPage != 0) return -EINVAL;
  if ((object.flags & kPublic) != 0 && (object.flags & kVram) != 0 && !options_.has_large_bar)
    return -EINVAL;
  Object made;
  const int result = memory_.allocate(object, u64(a, 24), &made);
  if (result < 0) return result;
  u64(a, 16) = made.handle;
  u64(a, 24) = made.mmap_offset;
  return 0;
}

int FakeKfd::map_memory(void* a, bool maps) {
  const auto* ids = reinterpret_cast<const uint32_t*>(u64(a, 8));
  if (ids == nullptr || u32(a, 16) == 0 || u32(a, 20) > u32(a, 16)) return -EINVAL;
  for (; u32(a, 20) < u32(a, 16); ++u32(a, 20)) {
    const uint32_t id = ids[u32(a, 20)];
    if (gpu_of(id) < 0 || !has_vm_[id]) return -EINVAL;
    const int result = maps ? memory_.map(u64(a, 0), id) : memory_.unmap(u64(a, 0), id);
    if (result < 0) return result;
  }
  return 0;
}

int FakeKfd::create_queue(void* a) {
  QueueSetup setup;
  setup.ring = u64(a, 0);
  setup.write_pointer = u64(a, 8);
  setup.read_pointer = u64(a, 16);
  setup.ring_bytes = u32(a, 32);
  setup.gpu_id = u32(a, 36);
  setup.type = u32(a, 40);
  const int gpu = gpu_of(setup.gpu_id);
  const Card& card = card_of(options_.chip);
  const Sizes sizes = sizes_of(card, options_.xccs);
  if (gpu < 0 || !has_vm_[setup.gpu_id] || setup.type > 2) return -EINVAL;
  if ((u32(a, 44) & 0xff) > 100 || u32(a, 48) > 15) return -EINVAL;
  if (setup.ring == 0 || (setup.ring_bytes & (setup.ring_bytes - 1)) != 0 || setup.ring_bytes < 256)
    return -EINVAL;
  std::vector<uint64_t> used;
  // Each buffer must be a mapping of its own, of exactly the size the kernel expects.
  const auto is_mapping = [&](uint64_t va, uint64_t bytes) {
    used.push_back(va & ~(kPage - 1));
    const auto object = memory_.mapping_at(setup.gpu_id, used.back());
    return object && object->bytes == bytes;
  };
  if (!is_mapping(setup.write_pointer, kPage) || !is_mapping(setup.read_pointer, kPage) ||
      !is_mapping(setup.ring, (setup.ring_bytes + kPage - 1) / kPage * kPage))
    return -EINVAL;
  if (setup.type != 1) {
    if (u64(a, 56) != 0 && (u64(a, 64) != kPage || !is_mapping(u64(a, 56), kPage))) return -EINVAL;
    if (u32(a, 84) != sizes.control_stack || u32(a, 80) < sizes.save) return -EINVAL;
    const uint64_t total =
        ((uint64_t{u32(a, 80)} + sizes.debug) * options_.xccs + kPage - 1) / kPage * kPage;
    if (!is_mapping(u64(a, 72), total)) return -EINVAL;
  }
  const std::lock_guard lock(mutex_);
  const uint32_t id = next_queue_++;
  const auto index = static_cast<uint32_t>(gpu);
  uint64_t* const doorbell = doorbells_ + index * (kDoorbellBytes / 8) + id % (kDoorbellBytes / 8);
  *doorbell = setup.type == 2 ? UINT64_MAX : 0;
  setup.gpu = index;
  setup.doorbell = doorbell;
  setup.xccs = options_.xccs;
  setup.is_gfx9 = card.target_version < 100000;
  setup.interrupt = [this](uint32_t context) { signal(context); };
  setup.die = [this, index](const Death& death) { die(index, death); };
  for (const uint64_t va : used) memory_.use(va, 1);
  queue_memory_[id] = used;
  queues_[id] = std::make_unique<Queue>(memory_, options_, std::move(setup));
  u32(a, 52) = id;
  u64(a, 24) = (uint64_t{index} + 1) << 40 | uint64_t{id % (kDoorbellBytes / 8)} * 8;
  return 0;
}

int FakeKfd::destroy_queue(void* a) {
  std::unique_ptr<Queue> queue;
  {
    const std::lock_guard lock(mutex_);
    const auto at = queues_.find(u32(a, 0));
    if (at == queues_.end()) return -EINVAL;
    queue = std::move(at->second);
    queues_.erase(at);
    for (const uint64_t va : queue_memory_[u32(a, 0)]) memory_.use(va, -1);
    queue_memory_.erase(u32(a, 0));
  }
  return 0;
}

int FakeKfd::create_event(void* a) {
  const std::lock_guard lock(mutex_);
  const uint32_t type = u32(a, 12);
  if (u64(a, 0) != 0) {
    const auto page = memory_.find(u64(a, 0));
    // The page may be set once, and must have room for every slot.
    if (event_page_ != 0 || !page || page->bytes < 4096 * 8) return -EINVAL;
    event_page_ = u64(a, 0);
  }
  if (type != kSignalEvent && type != kHardwareEvent && type != kMemoryEvent) return -EINVAL;
  if (type == kSignalEvent && event_page_ == 0) return -EINVAL;
  Event event;
  event.type = type;
  event.resets = u32(a, 16) != 0;
  const uint32_t id = next_event_++;
  event.slot = type == kSignalEvent ? id % 4096 : 0;
  u32(a, 8) = id;
  u32(a, 24) = id;
  u32(a, 28) = event.slot;
  events_[id] = std::move(event);
  return 0;
}

void FakeKfd::signal(uint32_t event_id) {
  const std::lock_guard lock(mutex_);
  const auto at = events_.find(event_id);
  if (at == events_.end()) return;
  at->second.is_set = true;
  changed_.notify_all();
}

int FakeKfd::wait_events(void* a) {
  constexpr size_t kRecord = 48;
  auto* const records = reinterpret_cast<std::byte*>(u64(a, 0));
  const uint32_t count = u32(a, 8), timeout = u32(a, 16);
  std::unique_lock lock(mutex_);
  for (uint32_t i = 0; i < count; ++i)
    if (!events_.contains(u32(records + i * kRecord, 40))) return -EINVAL;
  const auto is_done = [&] {
    for (uint32_t i = 0; i < count; ++i) {
      const auto at = events_.find(u32(records + i * kRecord, 40));
      if (at != events_.end() && at->second.is_set) return true;
    }
    return false;
  };
  const bool done = changed_.wait_for(lock, std::chrono::milliseconds(timeout), is_done);
  for (uint32_t i = 0; i < count; ++i) {
    const auto at = events_.find(u32(records + i * kRecord, 40));
    if (at == events_.end() || !at->second.is_set) continue;
    if (at->second.type != kSignalEvent)
      std::memcpy(records + i * kRecord, at->second.data.data(), 32);
    if (at->second.resets) at->second.is_set = false;
  }
  u32(a, 20) = done ? 0 : 1;
  return 0;
}

void FakeKfd::raise_memory_fault(uint32_t gpu, uint64_t address, bool is_write) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, event] : events_) {
    if (event.type != kMemoryEvent) continue;
    u32(event.data.data(), 0) = 1;
    u32(event.data.data(), 4) = is_write ? 1 : 0;
    u64(event.data.data(), 16) = address & ~(kPage - 1);
    u32(event.data.data(), 24) = gpu_id_of(gpu);
    event.is_set = true;
  }
  changed_.notify_all();
}

void FakeKfd::raise_reset(uint32_t gpu, bool is_whole) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, event] : events_) {
    if (event.type != kHardwareEvent) continue;
    u32(event.data.data(), 0) = is_whole ? 0 : 1;
    u32(event.data.data(), 8) = is_whole ? 1 : 0;
    u32(event.data.data(), 12) = gpu_id_of(gpu);
    event.is_set = true;
  }
  changed_.notify_all();
}

void FakeKfd::die(uint32_t gpu, const Death& death) {
  {
    const std::lock_guard lock(mutex_);
    last_death_ = death.text;
  }
  if (death.kind == Death::Kind::kMemory)
    raise_memory_fault(gpu, death.address, death.is_write);
  else
    raise_reset(gpu, death.kind == Death::Kind::kException);
}

size_t FakeKfd::open_files() const {
  const std::lock_guard lock(mutex_);
  return files_.size();
}
size_t FakeKfd::queues() const {
  const std::lock_guard lock(mutex_);
  return queues_.size();
}
size_t FakeKfd::events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}
std::string FakeKfd::last_death() const {
  const std::lock_guard lock(mutex_);
  return last_death_;
}

}  // namespace bm::sim::amd
