#include "tests/sim/nv/gpu.h"

#include "tests/sim/nv/engine.h"
#include "tests/sim/nv/method_ranges.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace bm::sim::nv {
namespace {

// Source: open-gpu-kernel-modules 580.142, class/clc361.h, NVC361_*.
constexpr uint64_t kUsermodeBytes = 65536, kTime = 0x80, kDoorbell = 0x90;
/// What the page holds while nobody rang: no token has these bits.
constexpr uint32_t kNobody = 0xffffffff;

// Source: swref/published/turing/tu102/dev_ctrl.h, ampere/ga100/dev_ctrl.h and
// blackwell/gb202/dev_vm.h of the same tag:
// VECTOR 11:0, RUNLIST_ID 22:16, RUNLIST_DOORBELL 30.
uint32_t make_token(TokenForm form, uint32_t channel, uint32_t runlist) {
  switch (form) {
    case TokenForm::kRunlistChannel: return runlist << 16 | channel;
    case TokenForm::kRunlistChannelRing: return 1u << 30 | runlist << 16 | channel;
  }
  return channel;
}

}  // namespace

Gpu::Gpu(const Chip& chip, uint32_t index, Knobs& knobs, std::function<void(std::string)> complain)
    : chip_(chip),
      index_(index),
      knobs_(knobs),
      complain_(std::move(complain)),
      usermode_(create_shared_backing(kUsermodeBytes, "fake-nvidia-usermode")) {
  const uint32_t nobody = kNobody;
  usermode_->write(kDoorbell, &nobody, sizeof nobody);
  tick();
  thread_ = std::thread([this] { run(); });
}

Gpu::~Gpu() {
  is_stopping_ = true;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& channel : channels_) channel->is_stopping = true;
  }
  thread_.join();
}

uint64_t Gpu::tick() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const uint64_t now =
      static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  usermode_->write(kTime, &now, sizeof now);
  return now;
}

void Gpu::attach(const std::shared_ptr<Channel>& channel) {
  const std::lock_guard lock(mutex_);
  if (!channel->has_id) channel->id = next_channel_++;
  // One runlist for graphics, compute and the copy engines in step with them, one for each other.
  const uint32_t engine = channel->group->engine;
  const uint32_t runlist = engine == 1 || is_graphics_copy(chip_, engine) ? 0 : engine - 8;
  channel->token = make_token(chip_.token, channel->id, runlist);
  channels_.push_back(channel);
}

void Gpu::detach(Channel& channel) {
  channel.is_stopping = true;
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return running_ != &channel; });
  std::erase_if(channels_, [&](const auto& entry) { return entry.get() == &channel; });
  // Rung while the channel was there, heard only now because a kernel ran until just before.
  uint32_t token = channel.token;
  std::atomic_ref(*reinterpret_cast<uint32_t*>(usermode_->at(kDoorbell, 4)))
      .compare_exchange_strong(token, kNobody);
}

void Gpu::add_object(Channel& channel, uint32_t object_class) {
  const std::lock_guard lock(mutex_);
  channel.objects.push_back(object_class);
}

bool Gpu::has_object(Channel& channel, uint32_t object_class) {
  const std::lock_guard lock(mutex_);
  return std::find(channel.objects.begin(), channel.objects.end(), object_class) !=
         channel.objects.end();
}

bool Gpu::has_compute_object(Channel& channel) {
  const std::lock_guard lock(mutex_);
  return std::any_of(channel.objects.begin(), channel.objects.end(), [](uint32_t object_class) {
    return engine_kind(object_class) == EngineKind::kCompute;
  });
}

void Gpu::add_listener(const Listener& listener) {
  const std::lock_guard lock(mutex_);
  listeners_.push_back(listener);
}

void Gpu::remove_listener(uint32_t object) {
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [&](const Listener& listener) { return listener.object == object; });
}

void Gpu::set_host_kernel(uint64_t program_address, HostKernel kernel) {
  const std::lock_guard lock(mutex_);
  host_kernels_[program_address] = std::move(kernel);
}

HostKernel Gpu::host_kernel(uint64_t program_address) {
  const std::lock_guard lock(mutex_);
  const auto found = host_kernels_.find(program_address);
  return found == host_kernels_.end() ? HostKernel{} : found->second;
}

std::shared_ptr<const ptx::Module> Gpu::cached_module(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto found = modules_.find(text);
  return found == modules_.end() ? nullptr : found->second;
}

void Gpu::cache_module(const std::string& text, std::shared_ptr<const ptx::Module> module) {
  const std::lock_guard lock(mutex_);
  modules_.emplace(text, std::move(module));
}

void Gpu::interrupt(uint32_t notify_index) {
  ++counts_.interrupts;
  const std::lock_guard lock(mutex_);
  for (const Listener& listener : listeners_)
    if (listener.index == notify_index)
      listener.queue->post({.object = listener.object, .index = listener.index});
}

void Gpu::report_fault(std::string what) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(what));
}

std::vector<std::string> Gpu::faults() {
  const std::lock_guard lock(mutex_);
  return faults_;
}

void Gpu::kill(Channel& channel, uint32_t code) {
  ++counts_.faults;
  channel.group->is_dead = true;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& other : channels_)
      // 45: another channel of the group has failed (nverror.h, PREEMPTIVE_REMOVAL).
      if (other->group == channel.group)
        write_notifier(*other, other.get() == &channel ? code : 45);
  }
  if (on_death) on_death(channel, code);
}

void Gpu::fault_another() {
  std::shared_ptr<Channel> other;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& channel : channels_)
      if (!channel->group->is_dead) other = channel;
  }
  if (other != nullptr) copy_from_nowhere(*this, *other);
}

/// Robust-channel code 79: the GPU has fallen off the bus; every channel hears of it.
void Gpu::lose() {
  is_lost_ = true;
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    channels = channels_;
  }
  for (const auto& channel : channels) {
    channel->group->is_dead = true;
    write_notifier(*channel, 79);
  }
}

// Source: nvgputypes.h, NvNotification: nanoseconds, info32, info16, status.
void Gpu::write_notifier(const Channel& channel, uint32_t code) {
  if (channel.notifier == nullptr) return;
  const uint64_t now = tick();
  const uint32_t last = channel.group->engine | 0xffffu << 16;
  channel.notifier->write(0, &now, sizeof now);
  channel.notifier->write(8, &code, sizeof code);
  // Last: the status is what clients poll.
  channel.notifier->write(12, &last, sizeof last);
}

bool Gpu::take_doorbell() {
  auto* const word = reinterpret_cast<uint32_t*>(usermode_->at(kDoorbell, 4));
  if (std::atomic_ref(*word).load(std::memory_order_relaxed) == kNobody) return false;
  const std::lock_guard lock(mutex_);
  const uint32_t token = std::atomic_ref(*word).exchange(kNobody, std::memory_order_acquire);
  if (token == kNobody) return false;
  ++counts_.doorbells;
  bool is_known = false;
  for (const auto& channel : channels_) {
    is_known |= channel->token == token;
    // Two stores between two looks leave only the later token, so one ring is heard by all; a
    // channel nobody rang since is still caught by tests that use it alone.
    channel->is_rung = true;
  }
  if (!is_known) {
    std::string known;
    for (const auto& channel : channels_) known += fmt::format(" {:#x}", channel->token);
    complain_(fmt::format("doorbell rung with a token of no channel: {:#x}, there are{}", token,
                          known.empty() ? " none" : known));
  }
  return true;
}

bool Gpu::step_all() {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    channels = channels_;
  }
  bool is_busy = false;
  for (const auto& channel : channels) {
    if (!channel->group->is_scheduled || channel->group->is_dead || !channel->is_rung) continue;
    {
      const std::lock_guard lock(mutex_);
      if (channel->is_stopping) continue;
      running_ = channel.get();
    }
    is_busy |= run_channel(*this, *channel);
    {
      const std::lock_guard lock(mutex_);
      running_ = nullptr;
    }
    idle_.notify_all();
  }
  return is_busy;
}

void Gpu::run() {
  auto last_work = std::chrono::steady_clock::now();
  while (!is_stopping_) {
    tick();
    if (knobs_.is_lost && !is_lost_) lose();
    bool is_busy = take_doorbell();
    if (!knobs_.is_stalled && !knobs_.is_lost) is_busy |= step_all();
    const auto time = std::chrono::steady_clock::now();
    if (is_busy) last_work = time;
    // Clients poll with two processors to share: spin briefly after work, then sleep longer.
    const auto idle = time - last_work;
    if (idle > std::chrono::milliseconds(20))
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    else if (idle > std::chrono::microseconds(200))
      std::this_thread::sleep_for(std::chrono::microseconds(30));
    else if (!is_busy)
      std::this_thread::yield();
  }
}

}  // namespace bm::sim::nv
