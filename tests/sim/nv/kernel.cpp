#include "tests/sim/nv/kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "tests/sim/nv/rm.h"
#include "tests/sim/nv/uvm.h"

namespace bm::sim::nv {
namespace {

constexpr uint32_t kGpuIdBase =
    0x100;  ///< bus numbers of the fake PCI tree, as GPU ids encode them

bool starts_with_device(std::string_view path) { return path.starts_with("/dev/nvidia"); }

}  // namespace

Result<std::unique_ptr<Kernel>> Kernel::create(const Options& options) {
  std::unique_ptr<Kernel> kernel(new Kernel(options));
  kernel->chip_ = find_chip(options.chip);
  if (kernel->chip_ == nullptr)
    return fail(Code::kInvalidArgument, "no simulated chip is called '{}'", options.chip);
  kernel->release_ = find_release(options.release);
  if (kernel->release_ == nullptr)
    return fail(Code::kInvalidArgument, "no simulated driver release '{}'", options.release);
  kernel->video_used_.resize(options.gpus);
  for (uint32_t i = 0; i < options.gpus; ++i)
    kernel->gpus_.push_back(
        std::make_unique<Gpu>(*kernel->chip_, i, kernel->knobs_,
                              [self = kernel.get()](std::string what) { self->complain(what); }));
  return kernel;
}

Kernel::~Kernel() {
  while (!files_.empty()) close(files_.back());
}

std::string Kernel::version() const {
  return options_.version.empty() ? std::string(release_->version) : options_.version;
}

std::string Kernel::proc_version() const {
  return fmt::format(
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (simulated)\n"
      "GCC version:  none\n",
      version());
}

bool Kernel::owns(std::string_view path) {
  return starts_with_device(path) || path.starts_with("/proc/driver/nvidia");
}

int Kernel::open(std::string_view path, std::shared_ptr<File>* out) {
  if (const auto failure = count(fmt::format("open:{}", path)))
    return failure->error != 0 ? -failure->error : -EIO;
  if (!options_.has_nodes) return -ENOENT;
  auto file = std::make_shared<File>();
  if (path == "/dev/nvidiactl") {
    file->kind = FileKind::kControl;
  } else if (path == "/dev/nvidia-uvm") {
    file->kind = FileKind::kUvm;
  } else {
    // Nodes are numbered by minor, which here is the index.
    const std::string_view digits = path.substr(std::min<size_t>(path.size(), 11));
    if (digits.size() != 1 || digits[0] < '0' || digits[0] >= '0' + static_cast<int>(gpus_.size()))
      return -ENOENT;
    file->kind = FileKind::kDevice;
    file->gpu = static_cast<uint32_t>(digits[0] - '0');
  }
  if (!options_.is_permitted) return -EACCES;
  if (file->kind == FileKind::kDevice && (knobs_.is_lost || !options_.is_bootable)) return -EIO;
  const std::lock_guard lock(mutex_);
  files_.push_back(file);
  *out = std::move(file);
  return 0;
}

void Kernel::close(const std::shared_ptr<File>& file) {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> owned;
  for (auto& [handle, client] : clients_)
    if (client.owner == file.get()) owned.push_back(handle);
  for (const uint32_t handle : owned) {
    free_tree(clients_[handle], handle, true);
    clients_.erase(handle);
  }
  if (file->uvm != nullptr) {
    for (const auto& [base, range] : file->uvm->ranges) {
      if (!range.is_channel) leaks_.push_back(fmt::format("range at {:#x} was never freed", base));
      for (const uint32_t gpu : range.mapped)
        if (auto& space = file->uvm->gpus[gpu].space) space->unmap(base, range.size);
    }
    for (const auto& channel : file->uvm->channels) channel.channel->is_bound = false;
  }
  for (const auto& other : files_)
    if (other->control == file.get()) other->control = nullptr;
  std::erase(files_, file);
}

int Kernel::ioctl(File& file, unsigned long request, uint64_t argument, const Caller& caller,
                  Effect* effect) {
  if (file.kind == FileKind::kUvm) {
    UvmCalls calls(*this, file, caller);
    return calls.ioctl(request, argument);
  }
  RmCalls calls(*this, file, caller, effect);
  return calls.ioctl(request, argument);
}

// Source: kernel-open/nvidia/nv-mmap.c, nvidia_mmap_helper().
int Kernel::map(File& file, uint64_t bytes, uint64_t offset, bool wants_write,
                File::PendingMap* out) {
  if (const auto failure = count("mmap")) return failure->error != 0 ? -failure->error : -ENOMEM;
  const std::lock_guard lock(mutex_);
  if (!file.pending) return -EINVAL;
  if (offset != 0) return -EINVAL;
  const uint64_t whole = (file.pending->size + 4095) & ~uint64_t{4095};
  if (file.pending->must_be_whole && ((bytes + 4095) & ~uint64_t{4095}) != whole) return -ENXIO;
  if (bytes > whole) return -ERANGE;
  if (wants_write && !file.pending->is_writable) return -EACCES;
  *out = *file.pending;
  return 0;
}

std::optional<Failure> Kernel::count(const std::string& name) {
  const std::lock_guard lock(count_mutex_);
  ++calls_[name];
  std::optional<Failure> hit;
  for (auto& [failure, seen] : plans_) {
    if (!name.starts_with(failure.call)) continue;
    ++seen;
    if (!hit && seen >= failure.nth && seen < failure.nth + failure.times) hit = failure;
  }
  return hit;
}

void Kernel::plan(const Failure& failure) {
  const std::lock_guard lock(count_mutex_);
  plans_.emplace_back(failure, 0);
}

void Kernel::clear_plans() {
  const std::lock_guard lock(count_mutex_);
  plans_.clear();
}

uint64_t Kernel::calls(std::string_view prefix) const {
  const std::lock_guard lock(count_mutex_);
  uint64_t total = 0;
  for (const auto& [name, count] : calls_)
    if (name.starts_with(prefix)) total += count;
  return total;
}

std::map<std::string, uint64_t> Kernel::all_calls() const {
  const std::lock_guard lock(count_mutex_);
  return calls_;
}

void Kernel::complain(std::string what) {
  const std::lock_guard lock(count_mutex_);
  if (complaints_.size() < 100) complaints_.push_back(std::move(what));
}

Report Kernel::report() const {
  Report report;
  {
    const std::lock_guard lock(mutex_);
    report.leaks = leaks_;
  }
  const std::lock_guard lock(count_mutex_);
  report.complaints = complaints_;
  return report;
}

uint64_t Kernel::live_objects() const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& [handle, client] : clients_) total += client.objects.size() - 1;
  return total;
}

uint64_t Kernel::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& [handle, client] : clients_)
    for (const auto& [name, object] : client.objects)
      if (object->kind == ObjectKind::kMemory)
        total += static_cast<const MemoryObject&>(*object).pinned_bytes;
  return total;
}

uint64_t Kernel::video_memory_used(uint32_t gpu) const {
  const std::lock_guard lock(mutex_);
  return video_used_[gpu];
}

bool Kernel::is_open(uint32_t gpu) const {
  const uint32_t id = kGpuIdBase * (gpu + 1);
  return std::any_of(files_.begin(), files_.end(), [&](const auto& file) {
    return (file->kind == FileKind::kDevice && file->gpu == gpu) ||
           std::find(file->attached.begin(), file->attached.end(), id) != file->attached.end();
  });
}

std::array<uint8_t, 16> Kernel::uuid(uint32_t gpu) const {
  std::array<uint8_t, 16> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(0x40 + 7 * i);
  bytes[15] = static_cast<uint8_t>(gpu);
  return bytes;
}

Client* Kernel::find_client(uint32_t handle) {
  const auto found = clients_.find(handle);
  return found == clients_.end() ? nullptr : &found->second;
}

void Kernel::free_tree(Client& client, uint32_t handle, bool is_leak) {
  Object* const object = client.find(handle);
  if (object == nullptr) return;
  // Children first, the youngest first, as the resource server does.
  std::vector<uint32_t> children;
  for (const auto& [name, child] : client.objects)
    if (child->parent == object) children.push_back(name);
  for (auto child = children.rbegin(); child != children.rend(); ++child)
    free_tree(client, *child, is_leak);
  if (is_leak && object->kind != ObjectKind::kClient)
    leaks_.push_back(
        fmt::format("object {:#x} of class {:#x} was never freed", handle, object->object_class));
  switch (object->kind) {
    case ObjectKind::kChannel: {
      auto& channel = *static_cast<ChannelObject*>(object)->channel;
      gpus_[object->gpu]->detach(channel);
      break;
    }
    case ObjectKind::kMemory: {
      const auto& memory = *static_cast<MemoryObject*>(object);
      if (memory.is_video) video_used_[object->gpu] -= memory.size;
      break;
    }
    case ObjectKind::kEvent: {
      if (static_cast<EventObject*>(object)->is_listening)
        gpus_[object->gpu]->remove_listener(handle);
      break;
    }
    case ObjectKind::kClient:
    case ObjectKind::kDevice:
    case ObjectKind::kSubdevice:
    case ObjectKind::kVirtualMemory:
    case ObjectKind::kVaSpace:
    case ObjectKind::kGroup:
    case ObjectKind::kContextShare:
    case ObjectKind::kEngineObject:
    case ObjectKind::kUsermode:
    case ObjectKind::kDebugger: break;
  }
  client.objects.erase(handle);
}

}  // namespace bm::sim::nv
