#include "tests/sim/amd/kfd/process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "tests/sim/amd/kfd/bytes.h"
#include "tests/sim/amd/kfd/sysfs.h"
#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {
namespace {

// include/uapi/linux/kfd_ioctl.h, 6.12: numbers, and bytes the kernel's structures have.
struct CallRow {
  const char* name = nullptr;
  uint32_t bytes = 0, since = 0;  ///< minor version of the interface
};
constexpr uint32_t kCalls = 0x27;
constexpr std::array<CallRow, kCalls> kRows = [] {
  std::array<CallRow, kCalls> rows{};
  rows[0x01] = {"GET_VERSION", 8};
  rows[0x02] = {"CREATE_QUEUE", 96};
  rows[0x03] = {"DESTROY_QUEUE", 8};
  rows[0x04] = {"SET_MEMORY_POLICY", 40};
  rows[0x05] = {"GET_CLOCK_COUNTERS", 40};
  rows[0x06] = {"GET_PROCESS_APERTURES", 400};
  rows[0x07] = {"UPDATE_QUEUE", 24};
  rows[0x08] = {"CREATE_EVENT", 32};
  rows[0x09] = {"DESTROY_EVENT", 8};
  rows[0x0a] = {"SET_EVENT", 8};
  rows[0x0b] = {"RESET_EVENT", 8};
  rows[0x0c] = {"WAIT_EVENTS", 24};
  rows[0x11] = {"SET_SCRATCH_BACKING_VA", 16};
  rows[0x14] = {"GET_PROCESS_APERTURES_NEW", 16};
  rows[0x15] = {"ACQUIRE_VM", 8};
  rows[0x16] = {"ALLOC_MEMORY_OF_GPU", 40};
  rows[0x17] = {"FREE_MEMORY_OF_GPU", 8};
  rows[0x18] = {"MAP_MEMORY_TO_GPU", 24};
  rows[0x19] = {"UNMAP_MEMORY_FROM_GPU", 24};
  rows[0x1f] = {"SMI_EVENTS", 8};
  rows[0x23] = {"AVAILABLE_MEMORY", 16};
  rows[0x24] = {"EXPORT_DMABUF", 16, 12};
  rows[0x25] = {"RUNTIME_ENABLE", 16, 14};
  rows[0x26] = {"DBG_TRAP", 32, 13};
  return rows;
}();

constexpr uint32_t kVram = 1, kGtt = 2, kUserPointer = 4, kMmioRemap = 1u << 4, kPublic = 1u << 29;
constexpr uint64_t kPage = 4096;
constexpr uint32_t kSdmaQueue = 1, kAqlQueue = 2, kLastQueueType = 4;
constexpr uint32_t kLeastRing = 1024;  // KFD_MIN_QUEUE_RING_SIZE
constexpr int kNotSupported = 524;     // ENOTSUPP, of the kernel alone

std::vector<uint32_t> gpu_ids(uint32_t count) {
  std::vector<uint32_t> ids;
  for (uint32_t gpu = 0; gpu < count; ++gpu) ids.push_back(gpu_id_of(gpu));
  return ids;
}

}  // namespace

const char* call_name(uint32_t number) { return number < kCalls ? kRows[number].name : nullptr; }

Machine::Machine(Options the_options)
    : options(std::move(the_options)), sysfs(sysfs_of(options)), video(options.vram_bytes) {
  for (uint32_t gpu = 0; gpu < options.gpus; ++gpu) video.take(gpu_id_of(gpu), options.vram_taken);
}

int Machine::gpu_of(uint32_t gpu_id) const {
  for (uint32_t gpu = 0; gpu < options.gpus; ++gpu)
    if (gpu_id_of(gpu) == gpu_id) return static_cast<int>(gpu);
  return -1;
}

int open_node(const Machine& machine, const std::string& path, File* file) {
  constexpr std::string_view kRender = "/dev/dri/renderD";
  const Options& options = machine.options;
  file->serial = ++machine.opened;
  if (path == "/dev/kfd") return -options.kfd_error;
  if (!path.starts_with(kRender)) return -ENOENT;
  if (options.render_error != 0) return -options.render_error;
  file->kind = File::Kind::kRender;
  file->gpu = static_cast<uint32_t>(std::atoi(path.c_str() + kRender.size())) - render_minor_of(0);
  return file->gpu < options.gpus ? 0 : -ENOENT;
}

Process::Process(Machine& machine, std::shared_ptr<notify::Process> client)
    : machine_(machine),
      client_(std::move(client)),
      memory_(machine.video, client_, gpu_ids(machine.options.gpus),
              !machine.options.has_direct_links) {
  doorbell_fd_ = memfd_create("bm-sim-doorbells", MFD_CLOEXEC);
  const uint64_t bytes = kDoorbellBytes * std::max(machine.options.gpus, 1u);
  if (doorbell_fd_ < 0 || ftruncate(doorbell_fd_, static_cast<off_t>(bytes)) != 0)
    sim::give_up_errno("doorbells");
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, doorbell_fd_, 0);
  if (at == MAP_FAILED) sim::give_up_errno("doorbells");
  doorbells_ = static_cast<uint64_t*>(at);
}

Process::~Process() {
  close();
  queues_.clear();
  for (const Log& log : logs_) ::close(log.fd);
  ::munmap(doorbells_, kDoorbellBytes * std::max(machine_.options.gpus, 1u));
  ::close(doorbell_fd_);
}

void Process::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (auto& [id, open] : queues_)
    if (open.queue != nullptr) open.queue->evict();
  changed_.notify_all();
}

bool Process::is_planted(const char* name) {
  const Options& options = machine_.options;
  if (options.failing_call < 0 || !std::string_view(name).starts_with(options.failing_name))
    return false;
  const int call = planted_calls_.fetch_add(1);
  return call >= options.failing_call && call < options.failing_call + options.failing_times;
}

bool Process::may_block(unsigned long request, uint64_t argument) const {
  std::array<std::byte, 24> a{};
  return (request & 0xff) == 0x0c && client_->read(argument, a.data(), a.size()) &&
         get32(a.data(), 16) != 0;
}

int Process::call(unsigned long request, uint64_t argument, const Caller& caller) {
  const uint32_t number = request & 0xff;
  ++calls_;
  // The kernel looks at the number only, not at the type.
  if (number >= kCalls || kRows[number].name == nullptr) return -ENOTTY;
  const CallRow& row = kRows[number];
  machine_.count(row.name);
  if (is_planted(row.name)) return -machine_.options.failing_error;
  if (machine_.options.minor < row.since) return -ENOTTY;  // older kernels do not know it
  if (machine_.knobs.is_lost) return -EIO;
  // The kernel takes structures of any length; what it does not get is zero.
  std::vector<std::byte> copy(512);
  const size_t bytes = std::min<size_t>(request >> 16 & 0x3fff, row.bytes);
  if (!client_->read(argument, copy.data(), bytes)) return -EFAULT;
  const int result = dispatch(number, copy.data(), caller);
  // Its answer goes back whatever the result is, where the direction says so.
  if ((request >> 30 & 2) != 0 && !client_->write(argument, copy.data(), bytes)) return -EFAULT;
  return result;
}

int Process::dispatch(uint32_t number, std::byte* a, const Caller& caller) {
  switch (number) {
    case 0x01:
      put32(a, 0, machine_.options.major);
      put32(a, 4, machine_.options.minor);
      return 0;
    case 0x02: return create_queue(a);
    case 0x03: return destroy_queue(get32(a, 0));
    case 0x07: return update_queue(a);
    case 0x08: return create_event(a);
    case 0x09: return destroy_event(get32(a, 0));
    case 0x0a: return set_event(get32(a, 0), true);
    case 0x0b: return set_event(get32(a, 0), false);
    case 0x0c: return wait_events(a);
    case 0x14: return apertures(a);
    case 0x15: return acquire_vm(a, caller);
    case 0x16: return alloc_memory(a);
    case 0x17: return memory_.free(get64(a, 0));
    case 0x18: return map_memory(a, true);
    case 0x19: return map_memory(a, false);
    case 0x1f: return open_log(a, caller);
    case 0x23:
      if (machine_.gpu_of(get32(a, 8)) < 0) return -EINVAL;
      put64(a, 0, memory_.available(get32(a, 8)));
      return 0;
    case 0x25: return runtime_enable(a);
    default: return -EINVAL;
  }
}

/// kfd_ioctl_get_process_apertures_new(); values: kfd_flat_memory.c, kfd_init_apertures_v9(), and
/// amdgpu_amdkfd.c, amdgpu_amdkfd_device_init(), for 48 bits.
int Process::apertures(std::byte* a) {
  const uint32_t room = get32(a, 8), there = machine_.options.gpus;
  if (room == 0) {
    put32(a, 8, there);
    return 0;
  }
  if (room > there + 1) return -EINVAL;  // more than nodes, of which one is the CPU's
  constexpr size_t kRecord = 56;
  const uint32_t count = std::min(room, there);
  std::vector<std::byte> records(count * kRecord);
  for (uint32_t gpu = 0; gpu < count; ++gpu) {
    std::byte* const at = records.data() + gpu * kRecord;
    put64(at, 0, uint64_t{1} << 48);
    put64(at, 8, uint64_t{1} << 48 | UINT32_MAX);
    put64(at, 16, uint64_t{2} << 48);
    put64(at, 24, uint64_t{2} << 48 | UINT32_MAX);
    put64(at, 32, uint64_t{1} << 16);
    put64(at, 40, (uint64_t{1} << 47) - 1);
    put32(at, 48, gpu_id_of(gpu));
  }
  put32(a, 8, count);
  return client_->write(get64(a, 0), records.data(), records.size()) ? 0 : -EFAULT;
}

/// kfd_ioctl_runtime_enable(): bit 0 of the mode enables, a mode without it disables.
int Process::runtime_enable(const std::byte* a) {
  const std::lock_guard lock(mutex_);
  if ((get32(a, 8) & 1) == 0) {
    is_runtime_enabled_ = false;
    return 0;
  }
  if (is_runtime_enabled_) return -EBUSY;
  if (!queues_.empty()) return -EEXIST;
  is_runtime_enabled_ = true;
  return 0;
}

bool Process::is_runtime_enabled() const {
  const std::lock_guard lock(mutex_);
  return is_runtime_enabled_;
}

bool Process::has_vm(uint32_t gpu_id) const {
  const std::lock_guard lock(mutex_);
  return has_vm_.contains(gpu_id);
}

int Process::acquire_vm(const std::byte* a, const Caller& caller) {
  const uint32_t gpu_id = get32(a, 4);
  const int gpu = machine_.gpu_of(gpu_id);
  if (gpu < 0) return -EINVAL;
  const File* const file = caller.file(static_cast<int>(get32(a, 0)));
  if (file == nullptr || file->kind != File::Kind::kRender ||
      file->gpu != static_cast<uint32_t>(gpu))
    return -EINVAL;
  const std::lock_guard lock(mutex_);
  // The first file is the GPU's as long as the process lives, whoever closes it.
  const auto [known, is_new] = has_vm_.try_emplace(gpu_id, file->serial);
  return is_new || known->second == file->serial ? 0 : -EBUSY;
}

int Process::alloc_memory(std::byte* a) {
  Object object;
  object.va = get64(a, 0);
  object.bytes = get64(a, 8);
  object.gpu_id = get32(a, 32);
  object.flags = get32(a, 36);
  object.is_registered = (object.flags & kUserPointer) != 0;
  if (object.bytes == 0 || machine_.gpu_of(object.gpu_id) < 0) return -EINVAL;
  if ((object.flags & kPublic) != 0 && (object.flags & kVram) != 0 &&
      !machine_.options.has_large_bar)
    return -EINVAL;
  if (!has_vm(object.gpu_id)) return -ENODEV;
  const uint32_t places = object.flags & (kVram | kGtt | kUserPointer | kMmioRemap);
  if (places == 0 || (places & (places - 1)) != 0 || object.va == 0) return -EINVAL;
  if (object.bytes % kPage != 0) return -EINVAL;
  if ((object.flags & kMmioRemap) != 0) {
    if (object.bytes != kPage) return -EINVAL;
    if (!machine_.options.has_flush_page) return -ENOMEM;
  }
  Object made;
  const int result = memory_.allocate(object, get64(a, 24), &made);
  if (result < 0) return result;
  if ((object.flags & (kVram | kPublic)) == (kVram | kPublic)) ++machine_.bar_objects;
  put64(a, 16, made.handle);
  put64(a, 24, made.mmap_offset);
  return 0;
}

int Process::map_memory(std::byte* a, bool maps) {
  const uint64_t ids = get64(a, 8);
  const uint32_t count = get32(a, 16);
  uint32_t done = get32(a, 20);
  if (ids == 0 || count == 0 || done > count) return -EINVAL;
  for (; done < count; ++done) {
    uint32_t id = 0;
    if (!client_->read(ids + uint64_t{done} * 4, &id, sizeof id)) return -EFAULT;
    if (machine_.gpu_of(id) < 0) return -EINVAL;
    if (!has_vm(id)) return -ENODEV;
    const auto object = memory_.find(get64(a, 0));
    const bool is_peer =
        object && object->gpu_id != id && (object->flags & (kVram | kMmioRemap)) != 0;
    if (maps && is_peer && !machine_.options.has_peers) return -EINVAL;
    const int result = maps ? memory_.map(get64(a, 0), id) : memory_.unmap(get64(a, 0), id);
    if (result < 0) return result;
    put32(a, 20, done + 1);
  }
  return 0;
}

/// 0 or -errno; *used: the mappings it stands on.
int Process::check_queue(const std::byte* a, std::vector<uint64_t>* used) {
  const uint64_t ring = get64(a, 0);
  const uint64_t ring_bytes = std::max(get32(a, 32), kLeastRing);
  const uint32_t gpu_id = get32(a, 36), type = get32(a, 40), xccs = machine_.options.xccs;
  // set_queue_properties_from_user(): more than this, in this order.
  if ((get32(a, 44) & 0xff) > 100 || get32(a, 48) > 15) return -EINVAL;
  if ((ring_bytes & (ring_bytes - 1)) != 0) return -EINVAL;
  if (type > kLastQueueType) return -kNotSupported;
  if (machine_.gpu_of(gpu_id) < 0) return -EINVAL;
  if (!has_vm(gpu_id)) return -ESRCH;
  if (type > kAqlQueue) return -EINVAL;  // XGMI and queues of one engine: not modelled
  // kfd_queue_buffer_get(): each is the start of a mapping, and of less than a page nothing more is
  // asked.
  const auto is_mapping = [&](uint64_t va, uint64_t bytes) {
    used->push_back(va & ~(kPage - 1));
    const auto object = memory_.mapping_at(gpu_id, used->back());
    return object && (bytes < kPage || object->bytes == bytes / kPage * kPage);
  };
  if (!is_mapping(get64(a, 8), kPage) || !is_mapping(get64(a, 16), kPage) ||
      !is_mapping(ring, ring_bytes))
    return -EINVAL;
  if (type == kSdmaQueue) return 0;
  const Sizes sizes = sizes_of(card_of(machine_.options.chip), xccs);
  const uint64_t eop_bytes = get64(a, 64) & UINT32_MAX;
  if (get64(a, 56) != 0 &&
      (eop_bytes < kPage || !is_mapping(get64(a, 56), (eop_bytes + kPage - 1) / kPage * kPage)))
    return -EINVAL;
  if (get32(a, 84) != sizes.control_stack || get32(a, 80) < sizes.save) return -EINVAL;
  const uint64_t total =
      ((uint64_t{get32(a, 80)} + sizes.debug) * xccs + kPage - 1) / kPage * kPage;
  return is_mapping(get64(a, 72), total) ? 0 : -EINVAL;
}

int Process::create_queue(std::byte* a) {
  OpenQueue made;
  if (const int refused = check_queue(a, &made.memory); refused != 0) return refused;
  const auto gpu = static_cast<uint32_t>(machine_.gpu_of(get32(a, 36)));
  QueueSetup setup;
  setup.gpu = made.gpu = gpu;
  setup.ring = get64(a, 0);
  setup.write_pointer = get64(a, 8);
  setup.read_pointer = get64(a, 16);
  setup.ring_bytes = std::max(get32(a, 32), kLeastRing);
  setup.gpu_id = get32(a, 36);
  setup.type = get32(a, 40);
  setup.priority = made.priority = get32(a, 48);
  setup.xccs = machine_.options.xccs;
  setup.generation = card_of(machine_.options.chip).target_version / 10000;
  setup.target_xcc = (get32(a, 44) >> 8 & 0xff) % setup.xccs;
  setup.interrupt = [this](uint32_t context) { interrupt(context); };
  setup.die = [this, gpu](const Death& death) { die(gpu, death); };
  const std::lock_guard lock(mutex_);
  const uint32_t id = next_queue_++;
  const uint64_t index = id % (kDoorbellBytes / 8);
  uint64_t* const doorbell = doorbells_ + gpu * (kDoorbellBytes / 8) + index;
  uint64_t* const dead = &dead_doorbells_[setup.type == kAqlQueue ? 1 : 0];
  *doorbell = *dead;
  setup.doorbell = machine_.options.has_lost_doorbell ? dead : doorbell;
  setup.is_evicted = evicted_.contains(gpu);
  for (const uint64_t va : made.memory) memory_.use(va, 1);
  made.queue = std::make_unique<Queue>(memory_, machine_, std::move(setup));
  queues_[id] = std::move(made);
  put32(a, 52, id);
  put64(a, 24, uint64_t{gpu} * kDoorbellBytes + index * 8);
  return 0;
}

int Process::update_queue(const std::byte* a) {
  if ((get32(a, 16) & 0xff) > 100 || get32(a, 20) > 15) return -EINVAL;
  const std::lock_guard lock(mutex_);
  const auto at = queues_.find(get32(a, 8));
  if (at == queues_.end()) return -EINVAL;
  at->second.priority = get32(a, 20);
  return 0;
}

int Process::destroy_queue(uint32_t id) {
  OpenQueue queue;
  {
    const std::lock_guard lock(mutex_);
    const auto at = queues_.find(id);
    if (at == queues_.end()) return -EINVAL;
    queue = std::move(at->second);
    queues_.erase(at);
  }
  queue.queue.reset();  // its thread ends here; it may be in the middle of an interrupt
  for (const uint64_t va : queue.memory) memory_.use(va, -1);
  return 0;
}

std::vector<uint32_t> Process::priorities() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> all;
  for (const auto& [id, queue] : queues_) all.push_back(queue.priority);
  return all;
}

size_t Process::queues() const {
  const std::lock_guard lock(mutex_);
  return queues_.size();
}

}  // namespace bm::sim::amd
