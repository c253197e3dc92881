#include "drivers/amd/device.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "drivers/amd/gpu.h"
#include "drivers/hcq/device.h"
#include "drivers/amd/kept_video_memory.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/program/code_object.h"
#include "drivers/amd/queue.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/base/fork.h"
#include "runtime/base/keep_forever.h"
#include "runtime/base/log.h"
#include "runtime/base/output_file.h"
#include "runtime/hal/kept_memory.h"
#include "runtime/hal/leaving.h"

namespace bm::amd {
namespace {

/// Bytes of zeros that a card without fills copies from.
constexpr uint64_t kZeros = 256 << 10;

hal::Arch make_arch(const GpuFacts& facts, bool cumode) {
  const ChipRow& chip = *facts.chip;
  hal::Arch arch;
  arch.vendor = hal::Vendor::kAmd;
  arch.name = std::string(chip.name);
  arch.cpu = arch.name;
  if (chip.has_wave32) arch.features = cumode ? "+cumode" : "-cumode";
  arch.units = facts.cus_per_xcc * facts.xccs;
  arch.max_block = 1024;
  arch.shared_memory_bytes = std::min(chip.lds_bytes, facts.lds_bytes);
  arch.l2_bytes = facts.l2_bytes;
  arch.clock_hz = facts.clock_hz;
  return arch;
}

bool wants_aql(const GpuFacts& facts, PacketMode mode) {
  return mode == PacketMode::kAql || (mode == PacketMode::kAutomatic && facts.xccs > 1);
}

/// Memory with pages of its own, past the pool, so that it can stay when all else is given back.
class KeptBuffer final : public hal::Buffer {
 public:
  KeptBuffer(std::shared_ptr<Gpu> gpu, std::unique_ptr<Memory> memory, uint64_t bytes)
      : Buffer({.size = bytes, .no_cache = true}, hal::GpuVa{memory->va}, nullptr),
        gpu_(std::move(gpu)),
        memory_(std::move(memory)) {}
  ~KeptBuffer() override {
    // The parent's memory; and the mutex may be held by a thread that is not here.
    if (gpu_->fork.is_parents()) {
      keep_forever(std::move(memory_));
      return;
    }
    const std::lock_guard lock(gpu_->mutex);
    memory_.reset();
  }
  const Gpu& gpu() const { return *gpu_; }
  Memory& memory() const { return *memory_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<Memory> memory_;
};

class AmdDevice final : public hcq::DeviceBase<Gpu, AmdQueue>,
                        public hal::KeptMemory,
                        public hal::Leaving {
 public:
  AmdDevice(const std::shared_ptr<Gpu>& gpu, const DeviceOptions& options)
      : DeviceBase(gpu, make_arch(gpu->driver->facts(), options.cumode),
                   {.name = "AMD", .log = "amd", .uncached = MemoryDomain::kSystemUncached}) {}
  ~AmdDevice() override;
  Status open(const DeviceOptions& options);

  std::string description() const override;
  Status recover() override;
  bool stop() override;
  void leave() override;
  bool sleep_until_event(uint64_t longest_ns) override;
  hal::MemoryInfo memory() const override;
  bool can_keep() const override { return kept() != nullptr; }
  Result<std::optional<Found>> attach(const hal::KeptKey& key, uint64_t bytes) override;
  Result<std::unique_ptr<hal::Buffer>> allocate_to_keep(uint64_t bytes) override;
  Status keep(hal::Buffer& buffer, const hal::KeptKey& key, uint64_t checksum) override;
  Result<uint64_t> forget_all_but(std::span<const hal::KeptKey> keys) override;
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported,
                "kernel '{}': write it to a folder (BM_AMD_DUMP) and use llvm-objdump -d",
                code.entry);
  }

 private:
  /// nullptr: whoever owns the GPU frees memory with the process.
  KeptVideoMemory* kept() const { return dynamic_cast<KeptVideoMemory*>(gpu_->driver.get()); }
  Result<std::unique_ptr<hal::Program>> load_program(const hal::CodeObject& code) override;
  Status fill_zero(uint64_t va, uint64_t bytes) override;
  Status zero_by_copies(uint64_t va, uint64_t bytes);
  Result<uint64_t> map_host(std::byte* host, uint64_t size) override;
  void keep_flush(std::shared_ptr<Memory> flush) override;
  std::string kernels_text() const override { return gpu_->log.kernels(true); }
  std::string more_activity() override;
  Result<Allocation> upload(std::span<const std::byte> bytes, ProgramImage& image);
  Status grow_scratch(const LaunchPlan& plan);
  void write_queue_object();
  Status request_interrupt(HardwareRing& ring);
  Status enqueue_compute(HardwareRing& ring, std::span<const uint32_t> words);
  Status recover_by_stages();
  Status restart(HardwareRing& ring);
  void dump(const hal::CodeObject& code) const;
  /// Host memory of other devices, registered once; the kernel follows its pages.
  std::map<std::pair<std::byte*, uint64_t>, Allocation> imported_;
  Allocation zeros_;                                     ///< what zero_by_copies() copies from
  std::map<const HardwareRing*, uint64_t> interrupted_;  ///< entries published when last asked
};

Status AmdDevice::open(const DeviceOptions& options) {
  const uint32_t xccs = gpu_->driver->facts().xccs;
  const bool is_aql = wants_aql(gpu_->driver->facts(), options.packets);
  // Source: Linux, kfd_mqd_manager_v9.c, init_mqd_v9_4_3(): pm4_target_xcc_in_xcp.
  if (!is_aql && xccs > 1)
    return fail(
        Code::kUnsupported,
        "PM4 queues on a GPU of {} chiplets (XCCs): each runs on one of them only; use AQL "
        "(BM_AMD_QUEUE unset or aql), or split the GPU into partitions of one chiplet (CPX)",
        xccs);
  {
    const std::lock_guard lock(gpu_->mutex);
    // Launches are entries of an AQL ring, so it is longer.
    const RingOptions compute{.type = is_aql ? QueueType::kAql : QueueType::kPm4,
                              .entries = options.ring_entries * (is_aql ? 8 : 1),
                              .command_bytes = options.command_bytes,
                              .readers = xccs,
                              .priority = options.priority,
                              .is_given_up = &gpu_->is_given_up};
    gpu_->rings.push_back(BM_TRY(hcq::make_ring<HardwareRing>(*gpu_->driver, gpu_->pool, compute)));
    for (const uint32_t engine : {0u, 1u})
      gpu_->rings.push_back(
          BM_TRY(hcq::make_ring<HardwareRing>(*gpu_->driver, gpu_->pool,
                                              RingOptions{.type = QueueType::kSdma,
                                                          .entries = options.copy_ring_bytes / 4,
                                                          .sdma_engine = engine,
                                                          .is_given_up = &gpu_->is_given_up})));
    write_queue_object();
  }
  BM_TRY(make_queues());
  if (!gpu_->driver->facts().has_fills) {
    // Now: who clears memory holds the pool already.
    zeros_ = BM_TRY(gpu_->pool.allocate(kZeros, MemoryDomain::kSystemUncached));
    zeros_.view().fill(0, kZeros, std::byte{0});
    zeros_.view().publish();
  }
  // What was allocated so far, rings and their fences, is written before the GPU reads it.
  gpu_->driver->clear_with([this](uint64_t va, uint64_t bytes) { return fill_zero(va, bytes); });
  return {};
}

AmdDevice::~AmdDevice() {
  gpu_->driver->clear_with(nullptr);
  close([this] { return gpu_->look_for_fault(); },
        [this] {
          gpu_->peer_flushes.clear();
          gpu_->scratch.reset();
          imported_.clear();
          zeros_ = {};
        });
}

/// The kernel stops a queue when it is destroyed, whatever it runs or waits for.
bool AmdDevice::stop() {
  const std::lock_guard lock(gpu_->mutex);
  static_cast<void>(gpu_->look_for_fault());
  gpu_->close();
  gpu_->rings.clear();
  return true;
}

void AmdDevice::leave() {
  gpu_->driver->clear_with(nullptr);
  stop();
  gpu_->driver->leave();
}

/// Kernel drivers stop a process's queues for good after a fault; only cards of our own come back.
Status AmdDevice::recover() {
  const std::lock_guard lock(gpu_->mutex);
  if (!gpu_->driver->can_recover()) return hal::Device::recover();
  if (gpu_->rings.empty()) return fail(Code::kDeviceLost, "the device is closed");
  return recover_with(gpu_->look_for_fault(), "queues", [this] { return recover_by_stages(); });
}

/// Each stage is followed by work on the queues it was for: registers of a processor that hangs can
/// say anything.
Status AmdDevice::recover_by_stages() {
  DriverInterface& driver = *gpu_->driver;
  const auto restart_of = [&](bool is_copy) -> Status {
    for (const auto& ring : gpu_->rings)
      if ((ring->type() == QueueType::kSdma) == is_copy) BM_TRY(restart(*ring));
    return {};
  };
  Status compute = driver.recover(RecoveryStage::kQueues);
  if (compute) compute = restart_of(false);
  Status copies = restart_of(true);
  if (!compute) {
    compute = driver.recover(RecoveryStage::kProcessor);
    if (compute) compute = restart_of(false);
  }
  if (!copies) {
    copies = driver.recover(RecoveryStage::kCopyEngines);
    if (copies) copies = restart_of(true);
  }
  if (compute && copies) {
    compute_->restart();
    copies_->restart();
    return {};
  }
  const std::string cause = (compute ? copies : compute).error().message;
  const Status card = driver.recover(RecoveryStage::kCard);
  return fail(Code::kDeviceLost,
              "the device cannot be recovered ({}); {}: open the device again, what was in its "
              "memory is lost",
              cause, card ? "the card was reset" : card.error().message);
}

/// The queue anew, and a fence through it.
Status AmdDevice::restart(HardwareRing& ring) {
  // TIMEOUT: a fence on an idle queue takes microseconds; a busy machine may keep a thread waiting.
  constexpr std::chrono::milliseconds kLimit{1000};
  BM_TRY(ring.restart());
  const bool is_copy = ring.type() == QueueType::kSdma;
  std::vector<uint32_t> words;
  if (is_copy) {
    sdma::Writer writer(words, gpu_->chip().sdma);
    writer.put(sdma::Fence{ring.fence_va(), lo32(ring.next_fence())});
    writer.put(sdma::Fence{ring.fence_va() + 4, hi32(ring.next_fence())});
    ring.enqueue(words);
  } else {
    pm4::Writer writer(words, gpu_->chip().caches);
    for (uint32_t reader = 0; reader < ring.readers(); ++reader)
      pm4::release_once(writer,
                        {.caches = pm4::cache_actions(gpu_->chip().caches).release,
                         .address = ring.fence_va() + reader * HardwareRing::kFenceBytes,
                         .value = ring.next_fence()},
                        ring.readers(), reader);
    BM_TRY(enqueue_compute(ring, words));
  }
  ring.finish();
  if (ring.drains_within(kLimit)) return {};
  return fail(Code::kTimeout, "a {} queue does not run after its reset ({})",
              is_copy ? "copy" : "compute", ring.state());
}

/// Everything but the two indices, which the queue uses.
void AmdDevice::write_queue_object() {
  HardwareRing& ring = compute_ring();
  const GpuFacts& facts = gpu_->driver->facts();
  aql::QueueObject object{.max_cu_id = facts.cus_per_xcc - 1,
                          .max_wave_id = facts.waves_per_simd * facts.simds_per_cu - 1};
  if (const ScratchArea* area = gpu_->scratch.area().get()) {
    object.tmpring = area->size.tmpring;
    object.scratch = area->memory.va();
    object.scratch_bytes = area->size.xcc_bytes;
    object.scratch_lane_bytes = static_cast<uint32_t>(area->size.wave_bytes / 64);
  }
  const aql::QueueWords words = aql::encode_queue(object, facts.chip->registers);
  const auto is_index = [](size_t byte) {
    return (byte >= aql::kWriteIndexOffset && byte < aql::kWriteIndexOffset + 8) ||
           (byte >= aql::kReadIndexOffset && byte < aql::kReadIndexOffset + 8);
  };
  for (size_t i = 0; i < words.size(); ++i)
    if (!is_index(i * 4)) ring.queue().object.store(i * 4, words[i]);
  ring.queue().object.publish();
}

/// The old area goes when nothing uses it any more; recordings keep theirs.
Status AmdDevice::grow_scratch(const LaunchPlan& plan) {
  const uint64_t wave_bytes = uint64_t{plan.private_bytes} * (plan.kernel.is_wave32 ? 32 : 64);
  if (gpu_->scratch.holds(wave_bytes)) return {};
  BM_TRY(gpu_->with_cause(compute_ring().drain()));
  BM_TRY(gpu_->scratch.grow(gpu_->driver->facts(), gpu_->pool, wave_bytes));
  write_queue_object();
  return {};
}

std::string AmdDevice::description() const {
  const GpuFacts& facts = gpu_->driver->facts();
  return fmt::format("{} ({}, {} compute units, {})",
                     facts.name.empty() ? "AMD GPU" : "AMD " + facts.name, arch_.name, arch_.units,
                     facts.driver_version);
}

hal::MemoryInfo AmdDevice::memory() const {
  const std::lock_guard lock(gpu_->mutex);
  const uint64_t total = gpu_->driver->facts().video_memory;
  const uint64_t free = std::min(gpu_->driver->available_memory(), total);
  return {.total = total, .used = total - free};
}

tl::unexpected<Error> cannot_keep() {
  return fail(Code::kUnsupported, "the kernel driver frees this GPU's memory with the process");
}

Result<std::optional<hal::KeptMemory::Found>> AmdDevice::attach(const hal::KeptKey& key,
                                                                uint64_t bytes) {
  if (kept() == nullptr) return cannot_keep();
  BM_TRY(status());
  const std::lock_guard lock(gpu_->mutex);
  KeptVideoMemory::Found found = BM_TRY(kept()->attach(key, bytes));
  if (found.memory == nullptr) return std::optional<Found>();
  return Found{std::make_unique<KeptBuffer>(gpu_, std::move(found.memory), bytes), found.checksum};
}

Result<std::unique_ptr<hal::Buffer>> AmdDevice::allocate_to_keep(uint64_t bytes) {
  if (kept() == nullptr) return cannot_keep();
  BM_TRY(status());
  const std::lock_guard lock(gpu_->mutex);
  const MemoryRequest request{.size = bytes, .domain = MemoryDomain::kVideo};
  auto memory = gpu_->driver->allocate(request);
  if (!memory && memory.error().code == Code::kOutOfMemory) {
    gpu_->pool.trim();
    memory = gpu_->driver->allocate(request);
  }
  if (!memory) return tl::unexpected(std::move(memory.error()));
  return std::make_unique<KeptBuffer>(gpu_, std::move(*memory), bytes);
}

Status AmdDevice::keep(hal::Buffer& buffer, const hal::KeptKey& key, uint64_t checksum) {
  if (kept() == nullptr) return cannot_keep();
  BM_TRY(status());
  const auto* mine = dynamic_cast<const KeptBuffer*>(&buffer);
  if (mine == nullptr || &mine->gpu() != gpu_.get())
    return fail(Code::kInvalidArgument, "only memory of allocate_to_keep() and attach() is kept");
  const std::lock_guard lock(gpu_->mutex);
  return kept()->keep(mine->memory(), buffer.size(), key, checksum);
}

Result<uint64_t> AmdDevice::forget_all_but(std::span<const hal::KeptKey> keys) {
  if (kept() == nullptr) return cannot_keep();
  BM_TRY(status());
  const std::lock_guard lock(gpu_->mutex);
  return kept()->forget_all_but(keys);
}

/// One buffer of the compute ring, after has_room() and has_space().
Status AmdDevice::enqueue_compute(HardwareRing& ring, std::span<const uint32_t> words) {
  const CommandSpace space = BM_TRY(ring.reserve(words.size() * 4));
  space.view.copy_in(0, words);
  ring.enqueue(space.va, static_cast<uint32_t>(words.size()));
  return {};
}

/// Asked for only here, by somebody about to sleep: launches pay nothing for interrupts.
Status AmdDevice::request_interrupt(HardwareRing& ring) {
  if (interrupted_[&ring] == ring.published() + 1) return {};
  HardwareQueue& queue = ring.queue();
  const bool is_copy = ring.type() == QueueType::kSdma;
  std::vector<uint32_t> words;
  if (is_copy) {
    sdma::Writer writer(words, gpu_->chip().sdma);
    writer.put(sdma::Fence{queue.mailbox, queue.event_id});
    writer.put(sdma::Trap{queue.event_id});
    if (!ring.has_room(HardwareRing::room_of(words.size()))) return {};  // then it is not idle
    ring.enqueue(words);
  } else {
    pm4::Writer writer(words, gpu_->chip().caches);
    pm4::release_once(writer,
                      {.caches = pm4::cache_actions(gpu_->chip().caches).release,
                       .interrupts = true,
                       .address = queue.mailbox,
                       .value = queue.event_id,
                       .context = queue.event_id},
                      ring.readers());
    if (!ring.has_room(1) || !ring.has_space(words.size() * 4)) return {};
    BM_TRY(enqueue_compute(ring, words));
  }
  ring.publish();
  interrupted_[&ring] = ring.published() + 1;
  return {};
}

bool AmdDevice::sleep_until_event(uint64_t longest_ns) {
  constexpr uint64_t kNsPerMs = 1'000'000;
  if (longest_ns < kNsPerMs) return false;
  bool is_busy = false;
  {
    const std::unique_lock lock(gpu_->mutex, std::try_to_lock);
    if (!lock.owns_lock() || !gpu_->health_locked()) return false;
    for (const auto& ring : gpu_->rings) {
      if (!ring->is_busy()) continue;
      is_busy = true;
      if (!request_interrupt(*ring)) return false;
    }
  }
  if (!is_busy) return false;
  const auto woken = gpu_->driver->wait_event(static_cast<uint32_t>(longest_ns / kNsPerMs));
  if (!woken) return false;
  if (const std::unique_lock lock(gpu_->mutex, std::try_to_lock); lock.owns_lock())
    (void)gpu_->look_for_fault();
  return true;
}

std::string AmdDevice::more_activity() {
  std::string text;
  if (const std::string kernel = gpu_->kernel_at_read_index(); !kernel.empty())
    text += fmt::format("; the compute ring is at kernel '{}'", kernel);
  if (const std::string errors = gpu_->driver->recent_errors(); !errors.empty())
    text += fmt::format("; driver's log: {}", errors);
  return text;
}

/// From memory of zeros that nobody writes, so that no copy waits for another.
Status AmdDevice::zero_by_copies(uint64_t va, uint64_t bytes) {
  return copies_->run_copies([&](sdma::Writer& writer) {
    for (uint64_t at = 0; at < bytes; at += kZeros)
      writer.put(sdma::Copy{zeros_.va(), va + at, std::min(bytes - at, kZeros)});
  });
}

Status AmdDevice::fill_zero(uint64_t va, uint64_t bytes) {
  if (!gpu_->driver->facts().has_fills) return zero_by_copies(va, bytes);
  return copies_->run_copies([&](sdma::Writer& writer) {
    const uint64_t most = sdma::max_piece(writer.form());
    for (uint64_t at = 0; at < bytes; at += most)
      writer.put(sdma::Fill{va + at, std::min(bytes - at, most)});
  });
}

void AmdDevice::keep_flush(std::shared_ptr<Memory> flush) {
  if (flush != nullptr && std::ranges::find(gpu_->peer_flushes, flush) == gpu_->peer_flushes.end())
    gpu_->peer_flushes.push_back(std::move(flush));
}

Result<uint64_t> AmdDevice::map_host(std::byte* host, uint64_t size) {
  Allocation& known = imported_[{host, size}];
  if (!known) {
    auto made = gpu_->pool.wrap(host, size);
    if (!made) {
      imported_.erase({host, size});
      return tl::unexpected(std::move(made.error()));
    }
    known = std::move(*made);
  }
  return known.va();
}

/// Code lies in video memory, where no CPU need see it, so it works behind a small BAR, too.
Result<Allocation> AmdDevice::upload(std::span<const std::byte> bytes, ProgramImage& image) {
  Allocation memory =
      BM_TRY(gpu_->pool.allocate(bytes.size(), MemoryDomain::kVideo, ProgramImage::kAlignment));
  auto staged = gpu_->pool.allocate(bytes.size(), MemoryDomain::kSystem);
  Status done = staged ? image.relocate(memory.va()) : tl::unexpected(staged.error());
  if (done) {
    staged->view().copy_in(0, bytes);
    done = copies_->run_copies([&](sdma::Writer& writer) {
      const uint64_t most = sdma::max_piece(writer.form());
      for (uint64_t at = 0; at < bytes.size(); at += most)
        writer.put(sdma::Copy{staged->va() + at, memory.va() + at,
                              std::min<uint64_t>(bytes.size() - at, most)});
    });
  }
  if (!done) return tl::unexpected(std::move(done.error()));
  return memory;
}

void AmdDevice::dump(const hal::CodeObject& code) const {
  const std::string& folder = settings().amd_dump;
  if (folder.empty()) return;
  const std::string path = fmt::format("{}/{}.{}.o", folder, code.entry, arch_.name);
  if (const Status written = replace_file(path, code.image); !written)
    log("amd", LogLevel::kWarning, "cannot write (BM_AMD_DUMP) {}", written.error().message);
}

Result<std::unique_ptr<hal::Program>> AmdDevice::load_program(const hal::CodeObject& code) {
  dump(code);
  ProgramImage image = BM_TRY(load_code_object(code.image, code.entry, gpu_->chip()));
  LaunchPlan plan =
      BM_TRY(plan_launch(gpu_->chip(), gpu_->driver->facts().lds_bytes, image.kernel(), code));
  Allocation memory;
  {
    const std::lock_guard lock(gpu_->mutex);
    BM_TRY(grow_scratch(plan));
    memory = BM_TRY(upload(image.bytes(), image));
  }
  return std::make_unique<AmdProgram>(gpu_, code, std::move(plan), std::move(memory));
}

}  // namespace

AmdProgram::AmdProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, LaunchPlan plan,
                       Allocation image)
    : GpuProgram(std::move(gpu), std::move(code), std::move(image)), plan_(std::move(plan)) {
  enlist();
}

AmdProgram::~AmdProgram() { retire(); }

hal::OpenedDevice make_device(std::unique_ptr<DriverInterface> driver,
                              const DeviceOptions& options) {
  auto device = std::make_unique<AmdDevice>(
      std::make_shared<Gpu>(std::move(driver), options.slab_bytes), options);
  BM_TRY(device->open(options));
  return std::unique_ptr<hal::Device>(std::move(device));
}

}  // namespace bm::amd
