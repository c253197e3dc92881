// Events, faults and the log of the modelled driver. Source: Linux 6.12, amdkfd/kfd_events.c,
// kfd_smi_events.c; texts of the log: include/uapi/linux/kfd_ioctl.h, KFD_EVENT_FMT_*.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include "tests/sim/amd/kfd/bytes.h"
#include "tests/sim/amd/kfd/process.h"
#include "tests/sim/amd/kfd/sysfs.h"

namespace bm::sim::amd {
namespace {

constexpr uint32_t kSignalEvent = 0, kHardwareEvent = 3, kMemoryEvent = 8;
constexpr uint32_t kSlots = 4096, kSlotsOfOwnPage = 256, kFirstOther = 0x40000000;
constexpr uint64_t kUnsignaled = UINT64_MAX, kMapEvents = uint64_t{2} << 62;  // offset of mmap
constexpr size_t kRecord = 48;
constexpr uint32_t kSmiFault = 1, kSmiPreReset = 3, kSmiPostReset = 4;

}  // namespace

void Machine::log(const std::string& text) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const std::lock_guard lock(mutex);
  log_lines += fmt::format("<4>[{:5}.{:06}] {}\n", micros / 1'000'000, micros % 1'000'000, text);
}

/// Without a page from the process the kernel has one of its own.
uint64_t* Process::slot_of(uint32_t slot) {
  if (event_page_ == 0) return slot < own_slots_.size() ? &own_slots_[slot] : nullptr;
  const auto page = memory_.find(event_page_);
  return page ? reinterpret_cast<uint64_t*>(page->host) + slot : nullptr;
}

int Process::set_event_page(uint64_t handle) {
  const auto page = memory_.find(handle);
  // The page may be set once, and must have room for every slot.
  if (event_page_ != 0 || !own_slots_.empty() || !page || page->bytes < kSlots * 8) return -EINVAL;
  event_page_ = handle;
  memory_.keep(handle);
  std::fill_n(reinterpret_cast<uint64_t*>(page->host), kSlots, kUnsignaled);
  return 0;
}

/// Signal events are numbered by their slots, of which the first is never used; all others lie far
/// beyond.
int Process::create_event(std::byte* a) {
  const std::lock_guard lock(mutex_);
  if (const uint64_t page = get64(a, 0); page != 0)
    if (const int refused = set_event_page(page); refused != 0) return refused;
  put64(a, 0, 0);
  Event event;
  event.type = get32(a, 12);
  event.resets = get32(a, 16) != 0;
  uint32_t id = 0;
  if (event.type == kSignalEvent) {
    if (event_page_ == 0) own_slots_.resize(kSlotsOfOwnPage, kUnsignaled);
    const uint32_t slots = event_page_ == 0 ? kSlotsOfOwnPage : kSlots;
    id = machine_.options.gives_event_zero ? 0 : 1;
    while (id < slots && events_.contains(id)) ++id;
    if (id == slots) return -ENOSPC;
    event.slot = id;
    put64(a, 0, kMapEvents);
    if (uint64_t* const word = slot_of(id); word != nullptr)
      std::atomic_ref<uint64_t>(*word).store(kUnsignaled);
  } else {
    for (id = kFirstOther; events_.contains(id);) ++id;
  }
  put32(a, 8, id);
  put32(a, 24, id);
  put32(a, 28, event.slot);
  events_[id] = std::move(event);
  return 0;
}

int Process::destroy_event(uint32_t id) {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  return events_.erase(id) != 0 ? 0 : -EINVAL;
}

int Process::set_event(uint32_t id, bool is_set) {
  const std::lock_guard lock(mutex_);
  const auto at = events_.find(id);
  if (at == events_.end() || at->second.type != kSignalEvent) return -EINVAL;
  at->second.is_set = is_set;
  changed_.notify_all();
  return 0;
}

/// An interrupt means an event only when its slot was written first.
void Process::interrupt(uint32_t event_id) {
  ++machine_.interrupts;
  const std::lock_guard lock(mutex_);
  const auto at = events_.find(event_id);
  if (at == events_.end() || at->second.type != kSignalEvent) return;
  uint64_t* const word = slot_of(at->second.slot);
  if (word == nullptr || std::atomic_ref<uint64_t>(*word).exchange(kUnsignaled) == kUnsignaled)
    return;
  at->second.is_set = true;
  changed_.notify_all();
}

int Process::wait_events(std::byte* a) {
  const uint64_t address = get64(a, 0);
  const uint32_t count = get32(a, 8), timeout = get32(a, 16);
  const bool needs_all = get32(a, 12) != 0;
  if (count > kSlots) return -EINVAL;
  std::vector<std::byte> records(count * kRecord);
  if (!client_->read(address, records.data(), records.size())) return -EFAULT;
  const auto event_at = [&](uint32_t i) {
    return events_.find(get32(records.data() + i * kRecord, 40));
  };
  std::unique_lock lock(mutex_);
  for (uint32_t i = 0; i < count; ++i)
    if (event_at(i) == events_.end()) {
      put32(a, 20, 2);
      return -EINVAL;
    }
  bool is_lost = false;
  const auto is_done = [&] {
    uint32_t set = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const auto at = event_at(i);
      is_lost = is_lost || at == events_.end();
      if (at != events_.end() && at->second.is_set) ++set;
    }
    return is_closed_ || is_lost || set == count || (set != 0 && !needs_all);
  };
  const auto longest = std::chrono::milliseconds(timeout);
  const bool done = timeout == 0 ? is_done() : changed_.wait_for(lock, longest, is_done);
  put32(a, 20, is_lost ? 2 : done ? 0 : 1);
  if (is_lost) return -EIO;
  if (!done || is_closed_) return 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto at = event_at(i);
    if (!at->second.is_set) continue;
    const uint32_t type = at->second.type;
    if (type == kMemoryEvent || (type == kHardwareEvent && machine_.options.tells_resets))
      std::memcpy(records.data() + i * kRecord, at->second.data.data(), 32);
    if (at->second.resets) at->second.is_set = false;
  }
  return client_->write(address, records.data(), records.size()) ? 0 : -EFAULT;
}

/// Queues stop, and those made later never run: evictions are counted, and nobody takes these back
/// (kfd_dqm_evict_pasid(), create_queue_cpsch()). The caller holds the lock.
void Process::evict(uint32_t gpu) {
  evicted_.insert(gpu);
  for (auto& [id, open] : queues_)
    if (open.gpu == gpu && open.queue != nullptr) open.queue->evict();
}

void Process::raise_memory_fault(uint32_t gpu, uint64_t address, bool is_write) {
  const std::lock_guard lock(mutex_);
  evict(gpu);
  write_log(gpu, kSmiFault, fmt::format("{:x}:{}", client_->id(), "program"));
  for (auto& [id, event] : events_) {
    if (event.type != kMemoryEvent) continue;
    put32(event.data.data(), 0, 1);
    put32(event.data.data(), 4, is_write ? 1 : 0);
    put64(event.data.data(), 16, address & ~uint64_t{4095});
    put32(event.data.data(), 24, gpu_id_of(gpu));
    event.is_set = true;
  }
  changed_.notify_all();
}

void Process::raise_reset(uint32_t gpu, bool is_whole) {
  const std::lock_guard lock(mutex_);
  if (is_whole) {
    // kgd2kfd_pre_reset() evicts every process from every GPU; kgd2kfd_post_reset() leaves it so.
    for (uint32_t each = 0; each < machine_.options.gpus; ++each) evict(each);
    write_log(gpu, kSmiPreReset, fmt::format("{:x} the compute ring hung", ++resets_));
    write_log(gpu, kSmiPostReset, fmt::format("{:x}", resets_));
  }
  for (auto& [id, event] : events_) {
    if (event.type != kHardwareEvent) continue;
    put32(event.data.data(), 0, is_whole ? 0 : 1);
    put32(event.data.data(), 8, is_whole ? 1 : 0);
    put32(event.data.data(), 12, gpu_id_of(gpu));
    event.is_set = true;
  }
  changed_.notify_all();
}

/// All queues of the process on that GPU stop, then it is told.
void Process::die(uint32_t gpu, const Death& death) {
  {
    const std::lock_guard lock(mutex_);
    last_death_ = death.text;
    for (auto& [id, open] : queues_)
      if (open.gpu == gpu && open.queue != nullptr) open.queue->evict();
  }
  machine_.note(death.kind == Death::Kind::kMemory
                    ? fmt::format("{} at {:#x}", death.text, death.address)
                    : death.text);
  // Source: amdkfd/kfd_int_process_v11.c, print_sq_intr_info_error().
  if (death.wave_error >= 0)
    machine_.log(fmt::format(
        "amdgpu 0000:03:00.0: amdgpu: sq_intr: error, detail 0x00000000, type {}, sh 0, "
        "priv 0, wave_id 3, simd_id 1, wgp_id 2",
        death.wave_error));
  if (death.kind == Death::Kind::kException && !machine_.options.resets_on_exception) return;
  if (death.kind == Death::Kind::kMemory)
    raise_memory_fault(gpu, death.address, death.is_write);
  else
    raise_reset(gpu, death.kind != Death::Kind::kBadPacket);
}

int Process::open_log(std::byte* a, const Caller& caller) {
  const int gpu = machine_.gpu_of(get32(a, 0));
  if (gpu < 0) return -EINVAL;
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return -errno;
  const int given = caller.give(ends[1], {File::Kind::kLog, static_cast<uint32_t>(gpu)});
  if (given < 0) {
    ::close(ends[0]);
    return given;
  }
  const std::lock_guard lock(mutex_);
  logs_.push_back({static_cast<uint32_t>(gpu), ends[0], 0});
  put32(a, 4, static_cast<uint32_t>(given));
  return 0;
}

/// What the reader's mask, written before, lets through.
void Process::write_log(uint32_t gpu, uint32_t number, const std::string& text) {
  for (Log& log : logs_) {
    if (log.gpu != gpu) continue;
    for (uint64_t mask = 0; ::read(log.fd, &mask, sizeof mask) == sizeof mask;) log.mask = mask;
    if ((log.mask >> (number - 1) & 1) == 0) continue;
    const std::string line = fmt::format("{:x} {}\n", number, text);
    static_cast<void>(::send(log.fd, line.data(), line.size(), MSG_NOSIGNAL));
  }
}

size_t Process::events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}
std::string Process::last_death() const {
  const std::lock_guard lock(mutex_);
  return last_death_;
}

}  // namespace bm::sim::amd
