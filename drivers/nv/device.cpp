#include "drivers/nv/device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "drivers/nv/fault.h"
#include "drivers/nv/foreign_memory.h"
#include "drivers/nv/gpu.h"
#include "drivers/nv/loaded_program.h"
#include "drivers/nv/local_memory.h"
#include "drivers/hcq/mapped.h"
#include "drivers/nv/queue.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/hal/waiting.h"

namespace bm::nv {
namespace {

class NvBuffer final : public hal::Buffer {
 public:
  NvBuffer(const hal::BufferDesc& desc, std::shared_ptr<Gpu> gpu, Allocation allocation,
           std::byte* host)
      : Buffer(desc, hal::GpuVa{allocation.va()}, host),
        gpu_(std::move(gpu)),
        allocation_(std::move(allocation)) {}
  ~NvBuffer() override {
    const std::lock_guard lock(gpu_->mutex);
    allocation_.reset();
  }
  Gpu& gpu() const { return *gpu_; }
  Memory& memory() const { return allocation_.memory(); }

 private:
  std::shared_ptr<Gpu> gpu_;
  Allocation allocation_;
};

hal::Arch make_arch(const Gpu& gpu) {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kNv;
  arch.name = fmt::format("sm_{}", gpu.kernel->facts().sm_version);
  arch.units = gpu.sm_count();
  arch.max_block = 1024;
  arch.local_memory_bytes = gpu.chip().static_shared_limit;
  // A model that executes text: then a machine without NVRTC still has kernels.
  if (settings().nv_code == "ptx") arch.features = "ptx";
  return arch;
}

/// Who holds the mutex may be waiting for the GPU itself, as long as BM_WAIT_TIMEOUT_MS.
bool lock_soon(std::unique_lock<std::mutex>& lock) {
  constexpr auto kLimit = std::chrono::milliseconds(20);
  const auto start = std::chrono::steady_clock::now();
  while (!lock.try_lock()) {
    if (std::chrono::steady_clock::now() - start > kLimit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

/// Asks all channels at once how far they are, and waits shortly for the answers.
/// TIMEOUT: a channel that reads its ring at all takes an entry within microseconds; a simulated
/// one on a busy machine has taken some milliseconds.
void probe(std::span<const std::unique_ptr<Lane>> lanes) {
  constexpr auto kLimit = std::chrono::milliseconds(40);
  for (const auto& lane : lanes) lane->begin_probe();
  const auto start = std::chrono::steady_clock::now();
  const auto is_told = [](const auto& lane) { return lane->is_all_taken(); };
  while (!std::ranges::all_of(lanes, is_told) && std::chrono::steady_clock::now() - start < kLimit)
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

class NvDevice final : public hal::Device, public hal::Waiting {
 public:
  explicit NvDevice(std::shared_ptr<Gpu> gpu)
      : gpu_(std::move(gpu)), arch_(make_arch(*gpu_)), takes_ptx_(settings().nv_code == "ptx") {}
  ~NvDevice() override;
  Status open(const DeviceOptions& options);

  const hal::Arch& arch() const override { return arch_; }
  std::string description() const override;
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override;
  Result<hal::GpuVa> map(hal::Buffer& peer) override;
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override;
  hal::Queue& queue(hal::QueueKind kind) override {
    return kind == hal::QueueKind::kCompute ? *compute_ : *copies_;
  }
  Status status() override { return gpu_->health(); }
  void lose(const Error& cause) override { gpu_->lose(cause); }
  Status recover() override;
  bool stop() override;
  bool sleep_until_event(uint64_t longest_ns) override;
  std::string activity() override;
  hal::MemoryInfo memory() const override;
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported, "kernel '{}': disassemble with nvdisasm of the CUDA toolkit",
                code.entry);
  }

 private:
  Status rebuild();
  Result<std::unique_ptr<Lane>> make_lane(Engine engine, uint32_t copy_index,
                                          const DeviceOptions& options);
  Result<std::unique_ptr<hal::Buffer>> wrap(const hal::BufferDesc& desc);
  Status zero(const Allocation& allocation);
  Result<hal::GpuVa> map_foreign(const hal::Buffer& peer);
  Result<ProgramImage> read_image(const hal::CodeObject& code) const;
  Lane& compute_lane() { return *gpu_->lanes[0]; }

  std::shared_ptr<Gpu> gpu_;
  const hal::Arch arch_;
  const bool takes_ptx_;  ///< a model of a GPU: programs may be PTX text
  std::unique_ptr<NvQueue> compute_, copies_;
  LocalMemory local_memory_;
  LaunchForm form_{};
  bool has_events_ = true;  ///< until the driver says otherwise; under the mutex
  ForeignMemory foreign_;
};

Status NvDevice::open(const DeviceOptions& options) {
  form_ = BM_TRY(parse_launch_form(
      gpu_->chip(), options.launch_form.empty() ? settings().nv_launch : options.launch_form));
  {
    const std::lock_guard lock(gpu_->mutex);
    gpu_->lanes.push_back(BM_TRY(make_lane(Engine::kCompute, 0, options)));
    gpu_->lanes.push_back(BM_TRY(make_lane(Engine::kCopy, 0, options)));
    gpu_->lanes.push_back(BM_TRY(make_lane(Engine::kCopy, 1, options)));
  }
  compute_ = BM_TRY(NvQueue::create(gpu_, gpu_->lanes[0].get(), gpu_->lanes[2].get()));
  copies_ = BM_TRY(NvQueue::create(gpu_, nullptr, gpu_->lanes[1].get()));
  return {};
}

Result<std::unique_ptr<Lane>> NvDevice::make_lane(Engine engine, uint32_t copy_index,
                                                  const DeviceOptions& options) {
  return Lane::create(*gpu_->kernel, gpu_->pool,
                      {.engine = engine,
                       .copy_index = copy_index,
                       .entries = options.ring_entries,
                       .command_bytes = options.command_bytes,
                       .is_given_up = &gpu_->is_given_up});
}

NvDevice::~NvDevice() {
  {
    const std::lock_guard lock(gpu_->mutex);
    // Work that nobody waited for still reads command memory; a dead channel reads nothing.
    if (gpu_->health_locked()) {
      for (const auto& lane : gpu_->lanes)
        if (const Status done = lane->drain(); !done)
          log("nv", LogLevel::kWarning, "closing the device: {}", done.error().message);
    }
  }
  compute_.reset();
  copies_.reset();
  const std::lock_guard lock(gpu_->mutex);
  gpu_->lanes.clear();
  local_memory_.reset();
  foreign_.clear();
  gpu_->pool.trim();
}

std::string NvDevice::description() const {
  const GpuFacts& facts = gpu_->kernel->facts();
  return fmt::format("{} ({}, {}, {} SMs, driver {})",
                     facts.name.empty() ? "NVIDIA GPU" : facts.name, gpu_->chip().name, arch_.name,
                     arch_.units, facts.driver_version);
}

hal::MemoryInfo NvDevice::memory() const {
  const std::lock_guard lock(gpu_->mutex);
  const uint64_t total = gpu_->kernel->facts().video_memory;
  return {.total = total, .used = std::min(gpu_->pool.video_bytes(), total)};
}

/// Interrupts are asked for only here, by somebody about to sleep: launches pay nothing for them.
bool NvDevice::sleep_until_event(uint64_t longest_ns) {
  constexpr uint64_t kNsPerMs = 1'000'000;
  if (longest_ns < kNsPerMs) return false;
  Channel* channel = nullptr;
  std::shared_lock sleeping(gpu_->channels, std::defer_lock);
  {
    const std::unique_lock lock(gpu_->mutex, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    if (!has_events_ || !gpu_->health_locked()) return false;
    for (const auto& lane : gpu_->lanes) {
      if (!lane->is_busy()) continue;
      has_events_ = gpu_->kernel->event_fd(lane->channel()).has_value() &&
                    lane->request_interrupt().has_value();
      if (!has_events_) return false;
      channel = &lane->channel();
      sleeping.lock();
      break;
    }
  }
  if (channel == nullptr) return false;
  const auto woken = gpu_->kernel->wait_event(*channel, static_cast<int>(longest_ns / kNsPerMs));
  return woken.has_value();
}

/// Engines are not told apart: a lane that lives may be waiting for one that died.
Status NvDevice::recover() {
  const std::lock_guard lock(gpu_->mutex);
  const Status health = gpu_->health_locked();
  if (!health && health.error().code == Code::kDeviceLost) return health;
  // Until the channels are there again nothing may wait on them as on those given up.
  gpu_->is_given_up.store(false, std::memory_order_release);
  if (Status rebuilt = rebuild(); !rebuilt) {
    // Without all its channels the device is of no use.
    if (!gpu_->fault) gpu_->fault = rebuilt.error();
    gpu_->has_fault.store(true, std::memory_order_release);
    return rebuilt;
  }
  log("nv", LogLevel::kWarning, "channels were rebuilt after: {}",
      health ? "work that did not end" : health.error().message);
  gpu_->fault.reset();
  {
    const std::lock_guard given_up(gpu_->given_up_mutex);
    gpu_->given_up.reset();
  }
  gpu_->has_fault.store(false, std::memory_order_release);
  return {};
}

/// A channel that is freed touches nothing any more, whatever it waits for.
bool NvDevice::stop() {
  const std::lock_guard lock(gpu_->mutex);
  if (gpu_->health_locked()) gpu_->fault = Error{Code::kDeviceLost, "the device is closed"};
  gpu_->has_fault.store(true, std::memory_order_release);
  const std::lock_guard replacing(gpu_->channels);
  gpu_->lanes.clear();
  return true;
}

Status NvDevice::rebuild() {
  const std::lock_guard replacing(gpu_->channels);
  for (const auto& lane : gpu_->lanes) lane->stop();
  compute_->restart();
  copies_->restart();
  for (const auto& lane : gpu_->lanes) BM_TRY(lane->restart());
  return local_memory_.restore(*gpu_, compute_lane());
}

std::string NvDevice::activity() {
  std::unique_lock lock(gpu_->mutex, std::defer_lock);
  if (!lock_soon(lock)) return "another thread waits for the GPU to take more work";
  std::string text = fmt::format("last kernels: {}", gpu_->launches.text());
  text += gpu_->waits.unmet(gpu_->pool);
  probe(gpu_->lanes);
  for (const auto& lane : gpu_->lanes) text += fmt::format("; {}", lane->state());
  return text;
}

Result<std::unique_ptr<hal::Buffer>> NvDevice::allocate(const hal::BufferDesc& desc) {
  BM_TRY(status());
  if (desc.external != nullptr) return wrap(desc);
  // What the CPU sees is system memory: it reads there as often as it writes, and reads through the
  // BAR take a microsecond each.
  const bool is_system = desc.host_visible || desc.host_memory || desc.uncached;
  Allocation allocation;
  {
    const std::lock_guard lock(gpu_->mutex);
    allocation = BM_TRY(
        gpu_->pool.allocate(desc.size, is_system ? MemoryDomain::kSystem : MemoryDomain::kVideo));
    if (desc.zero) {
      if (const Status zeroed = zero(allocation); !zeroed) {
        allocation.reset();
        return tl::unexpected(zeroed.error());
      }
    }
  }
  std::byte* host = allocation.host();
  return std::make_unique<NvBuffer>(desc, gpu_, std::move(allocation), host);
}

Status NvDevice::zero(const Allocation& allocation) {
  if (allocation.host() != nullptr) {
    std::memset(allocation.host(), 0, allocation.size());
    return {};
  }
  return copies_->fill(allocation.va(), align_up(allocation.size(), 4), 0);
}

Result<std::unique_ptr<hal::Buffer>> NvDevice::wrap(const hal::BufferDesc& desc) {
  if (desc.external_kind != hal::ExternalKind::kHostPointer)
    return fail(Code::kUnsupported, "DEV=NV wraps host pointers only");
  const std::lock_guard lock(gpu_->mutex);
  Allocation allocation = BM_TRY(gpu_->pool.wrap(desc.external, desc.size));
  return std::make_unique<NvBuffer>(desc, gpu_, std::move(allocation),
                                    static_cast<std::byte*>(desc.external));
}

Result<hal::GpuVa> NvDevice::map(hal::Buffer& peer) {
  BM_TRY(status());
  const auto* other = dynamic_cast<const NvBuffer*>(&peer);
  if (other == nullptr) return map_foreign(peer);
  if (&other->gpu() == gpu_.get()) return peer.va();
  const std::scoped_lock locks(gpu_->mutex, other->gpu().mutex);
  BM_TRY(gpu_->kernel->map_peer(other->memory(), *other->gpu().kernel));
  return peer.va();
}

Result<hal::GpuVa> NvDevice::map_foreign(const hal::Buffer& peer) {
  if (peer.host() == nullptr)
    return fail(Code::kUnsupported,
                "DEV=NV reaches other devices' memory only where the host does");
  const std::lock_guard lock(gpu_->mutex);
  return hal::GpuVa{BM_TRY(foreign_.map(*gpu_, peer.host(), peer.size()))};
}

Result<ProgramImage> NvDevice::read_image(const hal::CodeObject& code) const {
  const uint32_t sm = gpu_->kernel->facts().sm_version;
  if (takes_ptx_ && !code.image.empty() && code.image.front() != std::byte{0x7f})
    return load_ptx(code.image, code.entry, sm);
  return load_cubin(code.image, code.entry, sm);
}

Result<std::unique_ptr<hal::Program>> NvDevice::load(const hal::CodeObject& code) {
  if (code.arch != arch_.name)
    return fail(Code::kInvalidArgument, "kernel '{}' was made for {}, this device is {}",
                code.entry, code.arch, arch_.name);
  BM_TRY(status());
  ProgramImage image = BM_TRY(read_image(code));
  const GpuFacts& facts = gpu_->kernel->facts();
  LaunchPlan plan = BM_TRY(plan_launch(
      gpu_->chip(),
      {.sm = facts.sm_version, .warps_per_sm = std::max(facts.warps_per_sm, 1u), .form = form_},
      image.kernel(), code));
  Allocation memory;
  {
    const std::lock_guard lock(gpu_->mutex);
    BM_TRY(local_memory_.ensure(*gpu_, compute_lane(), plan.shape.local_bytes));
    memory = BM_TRY(gpu_->pool.allocate(image.bytes().size(), MemoryDomain::kVideoMapped));
    if (const Status relocated = image.relocate(memory.va()); !relocated) {
      memory.reset();
      return tl::unexpected(relocated.error());
    }
    std::memcpy(memory.host(), image.bytes().data(), image.bytes().size());
    hcq::store_fence();
  }
  return std::make_unique<NvProgram>(gpu_, code, std::move(plan), std::move(memory));
}

}  // namespace

NvProgram::NvProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, LaunchPlan plan,
                     Allocation image)
    : Program(std::move(code)),
      gpu_(std::move(gpu)),
      plan_(std::move(plan)),
      image_(std::move(image)) {
  plan_.shape.program += image_.va();
  for (BankRange& bank : plan_.shape.banks)
    if (bank.bytes != 0) bank.address += image_.va();
  const std::lock_guard lock(gpu_->mutex);
  gpu_->programs.push_back(this);
}

NvProgram::~NvProgram() {
  const std::lock_guard lock(gpu_->mutex);
  std::erase(gpu_->programs, this);
  image_.reset();
}

Result<std::unique_ptr<hal::Device>> make_device(std::unique_ptr<DriverInterface> kernel,
                                                 const DeviceOptions& options) {
  auto device =
      std::make_unique<NvDevice>(std::make_shared<Gpu>(std::move(kernel), options.slab_bytes));
  BM_TRY(device->open(options));
  return std::unique_ptr<hal::Device>(std::move(device));
}

}  // namespace bm::nv
