#include "drivers/amd/device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "drivers/amd/gpu.h"
#include "drivers/hcq/mapped.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/program/code_object.h"
#include "drivers/amd/queue.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/base/output_file.h"
#include "runtime/hal/waiting.h"

namespace bm::amd {
namespace {

class AmdBuffer final : public hal::Buffer {
 public:
  AmdBuffer(const hal::BufferDesc& desc, std::shared_ptr<Gpu> gpu, Allocation allocation,
            std::byte* host)
      : Buffer(desc, hal::GpuVa{allocation.va()}, host),
        gpu_(std::move(gpu)),
        allocation_(std::move(allocation)) {}
  ~AmdBuffer() override {
    const std::lock_guard lock(gpu_->mutex);
    allocation_.reset();
  }
  Gpu& gpu() const { return *gpu_; }
  Memory& memory() const { return allocation_.memory(); }

 private:
  std::shared_ptr<Gpu> gpu_;
  Allocation allocation_;
};

hal::Arch make_arch(const GpuFacts& facts, bool cumode) {
  const ChipRow& chip = *facts.chip;
  hal::Arch arch;
  arch.vendor = hal::Vendor::kAmd;
  arch.name = std::string(chip.name);
  arch.cpu = arch.name;
  if (chip.has_wave32) arch.features = cumode ? "+cumode" : "-cumode";
  arch.units = facts.cus_per_xcc * facts.xccs;
  arch.max_block = 1024;
  arch.local_memory_bytes = std::min(chip.lds_bytes, facts.lds_bytes);
  arch.cache_bytes = facts.l2_bytes;
  arch.clock_hz = facts.clock_hz;
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

bool wants_aql(const GpuFacts& facts, PacketMode mode) {
  return mode == PacketMode::kAql || (mode == PacketMode::kAutomatic && facts.xccs > 1);
}

class AmdDevice final : public hal::Device, public hal::Waiting {
 public:
  AmdDevice(std::shared_ptr<Gpu> gpu, const DeviceOptions& options)
      : gpu_(std::move(gpu)), arch_(make_arch(gpu_->kernel->facts(), options.cumode)) {}
  ~AmdDevice() override;
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
  bool stop() override;
  bool sleep_until_event(uint64_t longest_ns) override;
  std::string activity() override;
  hal::MemoryInfo memory() const override;
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported,
                "kernel '{}': write it to a folder (BM_AMD_DUMP) and use llvm-objdump -d",
                code.entry);
  }

 private:
  Result<std::unique_ptr<hal::Buffer>> wrap(const hal::BufferDesc& desc);
  Status zero(const Allocation& allocation);
  Result<hal::GpuVa> map_foreign(const hal::Buffer& peer);
  Result<Allocation> upload(std::span<const std::byte> bytes, ProgramImage& image);
  Status grow_scratch(const LaunchPlan& plan);
  void write_queue_object();
  Status request_interrupt(Lane& lane);
  void dump(const hal::CodeObject& code) const;
  Lane& compute_lane() { return *gpu_->lanes[0]; }

  std::shared_ptr<Gpu> gpu_;
  const hal::Arch arch_;
  std::unique_ptr<AmdQueue> compute_, copies_;
  /// Host memory of other devices, registered once; the kernel follows its pages.
  std::map<std::pair<std::byte*, uint64_t>, Allocation> foreign_;
  std::map<const Lane*, uint64_t> interrupted_;  ///< entries published when last asked
};

Status AmdDevice::open(const DeviceOptions& options) {
  const uint32_t xccs = gpu_->kernel->facts().xccs;
  const bool is_aql = wants_aql(gpu_->kernel->facts(), options.packets);
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
    const LaneOptions compute{.type = is_aql ? QueueType::kAql : QueueType::kPm4,
                              .entries = options.ring_entries * (is_aql ? 8 : 1),
                              .command_bytes = options.command_bytes,
                              .readers = xccs,
                              .priority = options.priority,
                              .is_given_up = &gpu_->is_given_up};
    gpu_->lanes.push_back(BM_TRY(Lane::create(*gpu_->kernel, gpu_->pool, compute)));
    for (const uint32_t engine : {0u, 1u})
      gpu_->lanes.push_back(BM_TRY(Lane::create(*gpu_->kernel, gpu_->pool,
                                                {.type = QueueType::kSdma,
                                                 .entries = options.copy_ring_bytes / 4,
                                                 .sdma_engine = engine,
                                                 .is_given_up = &gpu_->is_given_up})));
    write_queue_object();
  }
  compute_ = BM_TRY(AmdQueue::create(gpu_, gpu_->lanes[0].get(), gpu_->lanes[2].get()));
  copies_ = BM_TRY(AmdQueue::create(gpu_, nullptr, gpu_->lanes[1].get()));
  return {};
}

AmdDevice::~AmdDevice() {
  {
    const std::lock_guard lock(gpu_->mutex);
    // Work that nobody waited for still reads command memory; a dead queue reads nothing.
    if (gpu_->look_for_fault()) {
      for (const auto& lane : gpu_->lanes)
        if (const Status done = lane->drain(); !done)
          log("amd", LogLevel::kWarning, "closing the device: {}", done.error().message);
    }
  }
  compute_.reset();
  copies_.reset();
  const std::lock_guard lock(gpu_->mutex);
  gpu_->lanes.clear();  // queues stop before anything they use is freed
  gpu_->peer_flushes.clear();
  gpu_->scratch.reset();
  foreign_.clear();
  gpu_->pool.trim();
}

/// The kernel stops a queue when it is destroyed, whatever it runs or waits for.
bool AmdDevice::stop() {
  const std::lock_guard lock(gpu_->mutex);
  static_cast<void>(gpu_->look_for_fault());
  if (!gpu_->fault) gpu_->fault = Error{Code::kDeviceLost, "the device is closed"};
  gpu_->has_fault.store(true, std::memory_order_release);
  gpu_->lanes.clear();
  return true;
}

/// Everything but the two indices, which the queue uses.
void AmdDevice::write_queue_object() {
  Lane& lane = compute_lane();
  const GpuFacts& facts = gpu_->kernel->facts();
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
    if (!is_index(i * 4)) hcq::store32(lane.queue().object + i * 4, words[i]);
  hcq::store_fence();
}

/// The old area goes when nothing uses it any more; recordings keep theirs.
Status AmdDevice::grow_scratch(const LaunchPlan& plan) {
  const uint64_t wave_bytes = uint64_t{plan.private_bytes} * (plan.kernel.is_wave32 ? 32 : 64);
  if (gpu_->scratch.holds(wave_bytes)) return {};
  BM_TRY(gpu_->with_cause(compute_lane().drain()));
  BM_TRY(gpu_->scratch.grow(gpu_->kernel->facts(), gpu_->pool, wave_bytes));
  write_queue_object();
  return {};
}

std::string AmdDevice::description() const {
  const GpuFacts& facts = gpu_->kernel->facts();
  return fmt::format("{} ({}, {} compute units, {})",
                     facts.name.empty() ? "AMD GPU" : "AMD " + facts.name, arch_.name, arch_.units,
                     facts.driver_version);
}

hal::MemoryInfo AmdDevice::memory() const {
  const std::lock_guard lock(gpu_->mutex);
  const uint64_t total = gpu_->kernel->facts().video_memory;
  const uint64_t free = std::min(gpu_->kernel->available_memory(), total);
  return {.total = total, .used = total - free};
}

/// Asked for only here, by somebody about to sleep: launches pay nothing for interrupts.
Status AmdDevice::request_interrupt(Lane& lane) {
  if (interrupted_[&lane] == lane.published() + 1) return {};
  HardwareQueue& queue = lane.queue();
  const bool is_copy = lane.type() == QueueType::kSdma;
  std::vector<uint32_t> words;
  if (is_copy) {
    sdma::Writer writer(words, gpu_->chip().sdma);
    writer.put(sdma::Fence{queue.mailbox, queue.event_id});
    writer.put(sdma::Trap{queue.event_id});
    if (!lane.has_room(Lane::room_of(words.size()))) return {};  // then it is not idle
    lane.enqueue(words);
  } else {
    pm4::Writer writer(words, gpu_->chip().caches);
    pm4::release_once(writer,
                      {.caches = pm4::cache_actions(gpu_->chip().caches).release,
                       .interrupts = true,
                       .address = queue.mailbox,
                       .value = queue.event_id,
                       .context = queue.event_id},
                      lane.readers());
    if (!lane.has_room(1) || !lane.has_space(words.size() * 4)) return {};
    const CommandSpace space = BM_TRY(lane.reserve(words.size() * 4));
    hcq::store_words(space.host, words);
    const auto dwords = static_cast<uint32_t>(words.size());
    if (lane.type() == QueueType::kAql)
      lane.enqueue(aql::encode(aql::Pm4Indirect{.address = space.va, .dwords = dwords}));
    else
      lane.enqueue(space.va, dwords);
  }
  lane.publish();
  interrupted_[&lane] = lane.published() + 1;
  return {};
}

bool AmdDevice::sleep_until_event(uint64_t longest_ns) {
  constexpr uint64_t kNsPerMs = 1'000'000;
  if (longest_ns < kNsPerMs) return false;
  bool is_busy = false;
  {
    const std::unique_lock lock(gpu_->mutex, std::try_to_lock);
    if (!lock.owns_lock() || !gpu_->health_locked()) return false;
    for (const auto& lane : gpu_->lanes) {
      if (!lane->is_busy()) continue;
      is_busy = true;
      if (!request_interrupt(*lane)) return false;
    }
  }
  if (!is_busy) return false;
  const auto woken = gpu_->kernel->wait_event(static_cast<uint32_t>(longest_ns / kNsPerMs));
  if (!woken) return false;
  if (const std::unique_lock lock(gpu_->mutex, std::try_to_lock); lock.owns_lock())
    (void)gpu_->look_for_fault();
  return true;
}

std::string AmdDevice::activity() {
  std::unique_lock lock(gpu_->mutex, std::defer_lock);
  if (!lock_soon(lock)) return "another thread waits for the GPU to take more work";
  std::string text = fmt::format("last kernels: {}", gpu_->log.kernels());
  text += gpu_->log.unmet(gpu_->pool);
  for (const auto& lane : gpu_->lanes) text += fmt::format("; {}", lane->state());
  if (const std::string kernel = gpu_->kernel_at_read_index(); !kernel.empty())
    text += fmt::format("; the compute ring is at kernel '{}'", kernel);
  if (const std::string errors = gpu_->kernel->recent_errors(); !errors.empty())
    text += fmt::format("; driver's log: {}", errors);
  return text;
}

Result<std::unique_ptr<hal::Buffer>> AmdDevice::allocate(const hal::BufferDesc& desc) {
  BM_TRY(status());
  if (desc.external != nullptr) return wrap(desc);
  // What the CPU sees is system memory: it reads there as often as it writes, and reads through the
  // BAR take a microsecond each.
  MemoryDomain domain = MemoryDomain::kVideo;
  if (desc.uncached)
    domain = MemoryDomain::kSystemUncached;
  else if (desc.host_visible || desc.host_memory)
    domain = MemoryDomain::kSystem;
  Allocation allocation;
  {
    const std::lock_guard lock(gpu_->mutex);
    allocation = BM_TRY(gpu_->pool.allocate(desc.size, domain));
    if (desc.zero) {
      if (const Status zeroed = zero(allocation); !zeroed) {
        allocation.reset();
        return tl::unexpected(zeroed.error());
      }
    }
  }
  std::byte* host = allocation.host();
  return std::make_unique<AmdBuffer>(desc, gpu_, std::move(allocation), host);
}

Status AmdDevice::zero(const Allocation& allocation) {
  if (allocation.host() != nullptr) {
    std::memset(allocation.host(), 0, allocation.size());
    return {};
  }
  return copies_->run_copies([&](sdma::Writer& writer) {
    const uint64_t end = align_up(allocation.size(), 4), most = sdma::max_piece(writer.form());
    for (uint64_t at = 0; at < end; at += most)
      writer.put(sdma::Fill{allocation.va() + at, std::min(end - at, most)});
  });
}

Result<std::unique_ptr<hal::Buffer>> AmdDevice::wrap(const hal::BufferDesc& desc) {
  if (desc.external_kind != hal::ExternalKind::kHostPointer)
    return fail(Code::kUnsupported, "DEV=AMD wraps host pointers only");
  const std::lock_guard lock(gpu_->mutex);
  Allocation allocation = BM_TRY(gpu_->pool.wrap(desc.external, desc.size));
  return std::make_unique<AmdBuffer>(desc, gpu_, std::move(allocation),
                                     static_cast<std::byte*>(desc.external));
}

Result<hal::GpuVa> AmdDevice::map(hal::Buffer& peer) {
  BM_TRY(status());
  const auto* other = dynamic_cast<const AmdBuffer*>(&peer);
  if (other == nullptr) return map_foreign(peer);
  if (&other->gpu() == gpu_.get()) return peer.va();
  const std::scoped_lock locks(gpu_->mutex, other->gpu().mutex);
  std::shared_ptr<Memory> flush =
      BM_TRY(gpu_->kernel->map_peer(other->memory(), *other->gpu().kernel));
  if (flush != nullptr && std::ranges::find(gpu_->peer_flushes, flush) == gpu_->peer_flushes.end())
    gpu_->peer_flushes.push_back(std::move(flush));
  return peer.va();
}

Result<hal::GpuVa> AmdDevice::map_foreign(const hal::Buffer& peer) {
  if (peer.host() == nullptr)
    return fail(Code::kUnsupported,
                "DEV=AMD reaches other devices' memory only where the host does");
  const std::lock_guard lock(gpu_->mutex);
  Allocation& known = foreign_[{peer.host(), peer.size()}];
  if (!known) {
    auto made = gpu_->pool.wrap(peer.host(), peer.size());
    if (!made) {
      foreign_.erase({peer.host(), peer.size()});
      return tl::unexpected(std::move(made.error()));
    }
    known = std::move(*made);
  }
  return hal::GpuVa{known.va()};
}

/// Code lies in video memory, where no CPU need see it, so it works behind a small BAR, too.
Result<Allocation> AmdDevice::upload(std::span<const std::byte> bytes, ProgramImage& image) {
  Allocation memory =
      BM_TRY(gpu_->pool.allocate(bytes.size(), MemoryDomain::kVideo, ProgramImage::kAlignment));
  auto staged = gpu_->pool.allocate(bytes.size(), MemoryDomain::kSystem);
  Status done = staged ? image.relocate(memory.va()) : tl::unexpected(staged.error());
  if (done) {
    std::memcpy(staged->host(), bytes.data(), bytes.size());
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

Result<std::unique_ptr<hal::Program>> AmdDevice::load(const hal::CodeObject& code) {
  if (code.arch != arch_.name)
    return fail(Code::kInvalidArgument, "kernel '{}' was made for {}, this device is {}",
                code.entry, code.arch, arch_.name);
  BM_TRY(status());
  dump(code);
  ProgramImage image = BM_TRY(load_code_object(code.image, code.entry, gpu_->chip()));
  LaunchPlan plan =
      BM_TRY(plan_launch(gpu_->chip(), gpu_->kernel->facts().lds_bytes, image.kernel(), code));
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
    : Program(std::move(code)),
      gpu_(std::move(gpu)),
      plan_(std::move(plan)),
      image_(std::move(image)) {
  const std::lock_guard lock(gpu_->mutex);
  gpu_->programs.push_back(this);
}

AmdProgram::~AmdProgram() {
  const std::lock_guard lock(gpu_->mutex);
  std::erase(gpu_->programs, this);
  image_.reset();
}

Result<std::unique_ptr<hal::Device>> make_device(std::unique_ptr<DriverInterface> kernel,
                                                 const DeviceOptions& options) {
  auto device = std::make_unique<AmdDevice>(
      std::make_shared<Gpu>(std::move(kernel), options.slab_bytes), options);
  BM_TRY(device->open(options));
  return std::unique_ptr<hal::Device>(std::move(device));
}

}  // namespace bm::amd
