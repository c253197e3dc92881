#include "drivers/nv/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "drivers/hcq/device.h"
#include "drivers/nv/fault.h"
#include "drivers/nv/imported_memory.h"
#include "drivers/nv/gpu.h"
#include "drivers/nv/loaded_program.h"
#include "drivers/nv/local_memory.h"
#include "drivers/nv/queue.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/hal/waiting.h"

namespace bm::nv {
namespace {

hal::Arch make_arch(const Gpu& gpu) {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kNv;
  arch.name = fmt::format("sm_{}", gpu.driver->facts().sm_version);
  arch.units = gpu.sm_count();
  arch.max_block = 1024;
  arch.shared_memory_bytes = gpu.chip().static_shared_limit;
  // A model that executes text: then a machine without NVRTC still has kernels.
  if (settings().nv_code == "ptx") arch.features = "ptx";
  return arch;
}

/// Asks all channels at once how far they are, and waits shortly for the answers.
/// TIMEOUT: a channel that reads its ring at all takes an entry within microseconds; a simulated
/// one on a busy machine has taken some milliseconds.
void probe(std::span<const std::unique_ptr<HardwareRing>> rings) {
  constexpr auto kLimit = std::chrono::milliseconds(40);
  for (const auto& ring : rings) ring->begin_probe();
  const auto start = std::chrono::steady_clock::now();
  const auto is_told = [](const auto& ring) { return ring->is_all_taken(); };
  while (!std::ranges::all_of(rings, is_told) && std::chrono::steady_clock::now() - start < kLimit)
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

class NvDevice final : public hcq::DeviceBase<Gpu, NvQueue> {
 public:
  explicit NvDevice(const std::shared_ptr<Gpu>& gpu)
      : DeviceBase(gpu, make_arch(*gpu),
                   {.name = "NV", .log = "nv", .uncached = MemoryDomain::kSystem}),
        takes_ptx_(settings().nv_code == "ptx") {}
  ~NvDevice() override;
  Status open(const DeviceOptions& options);

  std::string description() const override;
  Status recover() override;
  bool stop() override;
  bool sleep_until_event(uint64_t longest_ns) override;
  hal::MemoryInfo memory() const override;
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported, "kernel '{}': disassemble with nvdisasm of the CUDA toolkit",
                code.entry);
  }

 private:
  Status rebuild();
  void clear_foreign_memory();
  Result<std::unique_ptr<HardwareRing>> make_ring(Engine engine, uint32_t copy_index,
                                                  const DeviceOptions& options);
  Result<std::unique_ptr<hal::Program>> load_program(const hal::CodeObject& code) override;
  Status fill_zero(uint64_t va, uint64_t bytes) override { return copies_->fill(va, bytes, 0); }
  Result<uint64_t> map_host(std::byte* host, uint64_t size) override {
    return imported_.map(*gpu_, host, size);
  }
  std::string kernels_text() const override { return gpu_->log.kernels(); }
  void begin_activity() override { probe(gpu_->rings); }
  Result<ProgramImage> read_image(const hal::CodeObject& code) const;
  const bool takes_ptx_;  ///< a model of a GPU: programs may be PTX text
  LocalMemory local_memory_;
  LaunchForm form_{};
  bool has_events_ = true;  ///< until the driver says otherwise; under the mutex
  ImportedMemory imported_;
  std::unique_ptr<NvQueue> clearing_;  ///< of video memory that another process has left
};

Status NvDevice::open(const DeviceOptions& options) {
  form_ = BM_TRY(parse_launch_form(
      gpu_->chip(), options.launch_form.empty() ? settings().nv_launch : options.launch_form));
  {
    const std::lock_guard lock(gpu_->mutex);
    gpu_->rings.push_back(BM_TRY(make_ring(Engine::kCompute, 0, options)));
    gpu_->rings.push_back(BM_TRY(make_ring(Engine::kCopy, 0, options)));
    gpu_->rings.push_back(BM_TRY(make_ring(Engine::kCopy, 1, options)));
    // Of its own: memory is asked for, too, while other queues stand at a wait.
    if (gpu_->driver->wants_clearing())
      gpu_->rings.push_back(BM_TRY(make_ring(Engine::kCopy, 1, options)));
  }
  BM_TRY(make_queues());
  constexpr size_t kClearing = 3;
  if (gpu_->rings.size() > kClearing)
    clearing_ = BM_TRY(NvQueue::create(gpu_, nullptr, gpu_->rings[kClearing].get()));
  // What was allocated so far, rings and their fences, is written before the GPU reads it.
  clear_foreign_memory();
  return {};
}

void NvDevice::clear_foreign_memory() {
  if (!clearing_) return;
  gpu_->driver->clear_with([this](uint64_t va, uint64_t bytes) -> Status {
    // In pieces: a wait ends where nothing gets on for long.
    constexpr uint64_t kPiece = 4 << 20;
    for (uint64_t at = 0; at < bytes; at += kPiece)
      BM_TRY(clearing_->fill(va + at, std::min(bytes - at, kPiece), 0));
    return {};
  });
}

Result<std::unique_ptr<HardwareRing>> NvDevice::make_ring(Engine engine, uint32_t copy_index,
                                                          const DeviceOptions& options) {
  return hcq::make_ring<HardwareRing>(*gpu_->driver, gpu_->pool,
                                      RingOptions{.engine = engine,
                                                  .copy_index = copy_index,
                                                  .entries = options.ring_entries,
                                                  .command_bytes = options.command_bytes,
                                                  .is_given_up = &gpu_->is_given_up});
}

NvDevice::~NvDevice() {
  gpu_->driver->clear_with(nullptr);
  clearing_.reset();
  close([this] { return gpu_->health_locked(); },
        [this] {
          local_memory_.reset();
          imported_.clear();
        });
}

std::string NvDevice::description() const {
  const GpuFacts& facts = gpu_->driver->facts();
  return fmt::format("{} ({}, {}, {} SMs, driver {})",
                     facts.name.empty() ? "NVIDIA GPU" : facts.name, gpu_->chip().name, arch_.name,
                     arch_.units, facts.driver_version);
}

hal::MemoryInfo NvDevice::memory() const {
  const std::lock_guard lock(gpu_->mutex);
  const uint64_t total = gpu_->driver->facts().video_memory;
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
    for (const auto& ring : gpu_->rings) {
      if (!ring->is_busy()) continue;
      has_events_ = gpu_->driver->event_fd(ring->channel()).has_value() &&
                    ring->request_interrupt().has_value();
      if (!has_events_) return false;
      channel = &ring->channel();
      sleeping.lock();
      break;
    }
  }
  if (channel == nullptr) return false;
  const auto woken = gpu_->driver->wait_event(*channel, static_cast<int>(longest_ns / kNsPerMs));
  return woken.has_value();
}

/// Engines are not distinguished: a ring that lives may be waiting for one that died.
Status NvDevice::recover() {
  const std::lock_guard lock(gpu_->mutex);
  return recover_with(gpu_->health_locked(), "channels", [this] { return rebuild(); });
}

/// A channel that is freed touches nothing any more, whatever it waits for.
bool NvDevice::stop() {
  const std::lock_guard lock(gpu_->mutex);
  static_cast<void>(gpu_->health_locked());
  gpu_->close();
  const std::lock_guard replacing(gpu_->channels);
  gpu_->rings.clear();
  return true;
}

Status NvDevice::rebuild() {
  const std::lock_guard replacing(gpu_->channels);
  gpu_->driver->clear_with(nullptr);  // what rings take while there is none to clear with
  for (const auto& ring : gpu_->rings) ring->stop();
  compute_->restart();
  copies_->restart();
  if (clearing_) clearing_->restart();
  for (const auto& ring : gpu_->rings) BM_TRY(ring->restart());
  clear_foreign_memory();
  return local_memory_.restore(*gpu_, compute_ring());
}

Result<ProgramImage> NvDevice::read_image(const hal::CodeObject& code) const {
  const uint32_t sm = gpu_->driver->facts().sm_version;
  if (takes_ptx_ && !code.image.empty() && code.image.front() != std::byte{0x7f})
    return load_ptx(code.image, code.entry, sm);
  return load_cubin(code.image, code.entry, sm);
}

Result<std::unique_ptr<hal::Program>> NvDevice::load_program(const hal::CodeObject& code) {
  ProgramImage image = BM_TRY(read_image(code));
  const GpuFacts& facts = gpu_->driver->facts();
  LaunchPlan plan = BM_TRY(plan_launch(
      gpu_->chip(),
      {.sm = facts.sm_version, .warps_per_sm = std::max(facts.warps_per_sm, 1u), .form = form_},
      image.kernel(), code));
  Allocation memory;
  {
    const std::lock_guard lock(gpu_->mutex);
    BM_TRY(local_memory_.ensure(*gpu_, compute_ring(), plan.shape.local_bytes));
    memory = BM_TRY(gpu_->pool.allocate(image.bytes().size(), MemoryDomain::kVideoMapped));
    if (const Status relocated = image.relocate(memory.va()); !relocated) {
      memory.reset();
      return tl::unexpected(relocated.error());
    }
    memory.view().copy_in(0, image.bytes());
    memory.view().publish();
  }
  return std::make_unique<NvProgram>(gpu_, code, std::move(plan), std::move(memory));
}

}  // namespace

NvProgram::NvProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, LaunchPlan plan,
                     Allocation image)
    : GpuProgram(std::move(gpu), std::move(code), std::move(image)), plan_(std::move(plan)) {
  plan_.shape.program += image_.va();
  for (BankRange& bank : plan_.shape.banks)
    if (bank.bytes != 0) bank.address += image_.va();
  enlist();
}

NvProgram::~NvProgram() { retire(); }

hal::OpenedDevice make_device(std::unique_ptr<DriverInterface> driver,
                              const DeviceOptions& options) {
  auto device =
      std::make_unique<NvDevice>(std::make_shared<Gpu>(std::move(driver), options.slab_bytes));
  BM_TRY(device->open(options));
  return std::unique_ptr<hal::Device>(std::move(device));
}

}  // namespace bm::nv
