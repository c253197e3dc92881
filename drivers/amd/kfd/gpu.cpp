#include "drivers/amd/kfd/gpu.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "drivers/amd/chips.h"
#include "drivers/amd/kfd/smi_log.h"
#include "runtime/base/log.h"

namespace bm::amd::kfd {
namespace {

constexpr uint64_t kDoorbellBytes = 0x2000;

/// On the clock of the kernel's log.
int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Result<uint32_t> count_gpus(System& system) {
  auto nodes = read_nodes(system);
  if (nodes) return static_cast<uint32_t>(nodes->size());
  if (nodes.error().code == Code::kNotFound) return 0u;
  return tl::unexpected(std::move(nodes.error()));
}

Result<std::unique_ptr<DriverInterface>> open_gpu(System& system, const Options& options) {
  std::vector<Node> nodes = BM_TRY(read_nodes(system));
  if (options.index >= nodes.size())
    return fail(Code::kNotFound, "GPU {} of {}: {}", options.index, nodes.size(),
                nodes.empty() ? "the amdgpu driver shows none to this process (no supported card, "
                                "or a control group hides it)"
                              : "there are no more");
  const Node& node = nodes[options.index];
  BM_TRY(require_chip(node.target_version()));
  std::vector<uint32_t> near;
  for (const Node& other : nodes)
    if (std::ranges::find(node.near_nodes, other.number) != node.near_nodes.end())
      near.push_back(other.gpu_id);
  auto session = BM_TRY(Session::share(system, options.window));
  return std::unique_ptr<DriverInterface>(
      BM_TRY(KfdGpu::open(std::move(session), node, std::move(near))));
}

Result<std::unique_ptr<KfdGpu>> KfdGpu::open(std::shared_ptr<Session> session, Node node,
                                             std::vector<uint32_t> near_gpu_ids) {
  std::unique_ptr<KfdGpu> gpu(new KfdGpu(std::move(session), std::move(node)));
  BM_TRY(gpu->read_facts(std::move(near_gpu_ids)));
  BM_TRY(gpu->start());
  return gpu;
}

Status KfdGpu::read_facts(std::vector<uint32_t> near_gpu_ids) {
  System& system = session_->system();
  facts_.chip = BM_TRY(require_chip(node_.target_version()));
  facts_.name = node_.name;
  facts_.driver_version = fmt::format("KFD 1.{}", session_->minor());
  facts_.gpu_id = node_.gpu_id;
  facts_.xccs = node_.xccs();
  facts_.engines_per_xcc = node_.engines_per_xcc();
  facts_.cus_per_xcc = node_.cus_per_xcc();
  facts_.simds_per_cu = static_cast<uint32_t>(node_.get("simd_per_cu", 2));
  facts_.waves_per_simd = static_cast<uint32_t>(node_.get("max_waves_per_simd", 16));
  facts_.scratch_slots_per_cu = static_cast<uint32_t>(node_.get("max_slots_scratch_cu", 32));
  facts_.lds_bytes = static_cast<uint32_t>(node_.get("lds_size_in_kb", 64)) << 10;
  facts_.sdma_engines = static_cast<uint32_t>(node_.get("num_sdma_engines"));
  facts_.video_memory = node_.video_memory;
  facts_.near_gpu_ids = std::move(near_gpu_ids);
  save_ = save_sizes(node_, *facts_.chip);
  const IpBlock graphics = BM_TRY(read_block(system, node_.render_minor(), kGraphicsBlock));
  BM_TRY(facts_.registers.add(gc_registers(facts_.chip->registers), graphics.bases));
  const auto bus = read_block(system, node_.render_minor(), kBusBlock);
  const auto table =
      bus ? bus_registers(bus->major, bus->minor, bus->revision) : std::span<const RegisterAt>{};
  // Without them writes through the BAR cannot be flushed by the queue; then there are none.
  if (!table.empty() && !facts_.registers.add(table, bus->bases))
    log("amd", LogLevel::kInfo, "the bus block {}.{}.{} is described incompletely", bus->major,
        bus->minor, bus->revision);
  return {};
}

/// The order is the kernel's: a VM before memory, the event page before events and queues.
Status KfdGpu::start() {
  BM_TRY(session_->check_eviction(node_.gpu_id));
  render_ = BM_TRY(session_->render_node(node_.render_minor()));
  AcquireVm acquire{static_cast<uint32_t>(render_), node_.gpu_id};
  BM_TRY(session_->call(acquire, "ACQUIRE_VM", fmt::format("renderD{}", node_.render_minor()),
                        "EBUSY: this process has opened the GPU by another render node already"));
  BM_TRY(session_->share_event_page(node_.gpu_id, render_));
  shares_page_ = true;
  memory_event_ = BM_TRY(session_->create_event(kEventMemory, false));
  hardware_event_ = BM_TRY(session_->create_event(kEventHardware, false));
  watch_log();
  opened_ns_ = now_ns();
  return {};
}

KfdGpu::~KfdGpu() {
  for (const Event& event : {hardware_event_, memory_event_})
    if (event.id != 0) session_->destroy_event(event);
  if (doorbells_) session_->system().munmap(doorbells_.host(), kDoorbellBytes);
  if (shares_page_) session_->leave_event_page(node_.gpu_id);
}

/// A text log of faults and resets; kernels without it are as usable.
void KfdGpu::watch_log() {
  SmiEvents events{node_.gpu_id, 0};
  if (session_->try_call(SmiEvents::kRequest, &events) < 0) return;
  log_ = Descriptor(session_->system(), static_cast<int>(events.fd));
  const uint64_t mask = kSmiFault | kSmiPreReset | kSmiPostReset;
  session_->system().write(log_.get(), &mask, sizeof mask);
}

std::string KfdGpu::read_log() {
  if (!log_.is_open()) return "";
  pollfd ready{log_.get(), POLLIN, 0};
  std::string text;
  constexpr int kMostReads = 64;  // the kernel hands out a few bytes each time
  for (int i = 0; i < kMostReads; ++i) {
    std::array<char, 1024> chunk;
    if (session_->system().poll(&ready, 1, 0) <= 0) break;
    const ssize_t got = session_->system().read(log_.get(), chunk.data(), chunk.size());
    if (got <= 0) break;
    text.append(chunk.data(), static_cast<size_t>(got));
  }
  return log_in_words(text);
}

std::string KfdGpu::recent_errors() {
  std::string log;
  return session_->system().kernel_log(&log) < 0 ? "" : errors_in_words(log, opened_ns_);
}

Result<Doorbell<uint64_t>> KfdGpu::doorbell(uint64_t offset) {
  if (!doorbells_) {
    void* at = nullptr;
    const int failed = session_->system().mmap(
        nullptr, kDoorbellBytes, PROT_READ | PROT_WRITE, MAP_SHARED, session_->kfd(),
        static_cast<off_t>(offset & ~(kDoorbellBytes - 1)), &at);
    if (failed < 0)
      return fail(code_from_errno(-failed), "mmap of the doorbells: {}", errno_text(-failed));
    doorbells_ = BM_TRY(Mmio::mapped(at, kDoorbellBytes));
  }
  return Doorbell<uint64_t>::at(doorbells_, offset & (kDoorbellBytes - 1));
}

void KfdGpu::add_event(uint32_t id) {
  const std::lock_guard lock(mutex_);
  events_.push_back(id);
}
void KfdGpu::remove_event(uint32_t id) {
  const std::lock_guard lock(mutex_);
  std::erase(events_, id);
}

uint64_t KfdGpu::available_memory() {
  AvailableMemory memory{0, node_.gpu_id, 0};
  if (session_->try_call(AvailableMemory::kRequest, &memory) < 0) return node_.video_memory;
  return memory.available;
}

Result<bool> KfdGpu::wait_event(uint32_t timeout_ms) {
  constexpr size_t kMostEvents = 32;
  std::array<EventData, kMostEvents> records{};
  size_t count = 2;
  {
    const std::lock_guard lock(mutex_);
    records[0].event_id = memory_event_.id;
    records[1].event_id = hardware_event_.id;
    for (const uint32_t id : events_)
      if (count < kMostEvents) records[count++].event_id = id;
  }
  WaitEvents wait{reinterpret_cast<uint64_t>(records.data()), static_cast<uint32_t>(count), 0,
                  timeout_ms, 0};
  BM_TRY(session_->call(wait, "WAIT_EVENTS"));
  if (wait.result == kWaitFail)
    return fail(Code::kDeviceLost, "KFD WAIT_EVENTS failed: an event was destroyed");
  note_faults(records.data(), false);
  return wait.result == kWaitComplete;
}

std::optional<GpuFault> KfdGpu::take_fault() {
  {
    const std::lock_guard lock(mutex_);
    if (fault_) return fault_;
  }
  std::array<EventData, 2> records{};
  {
    const std::lock_guard lock(mutex_);
    records[0].event_id = memory_event_.id;
    records[1].event_id = hardware_event_.id;
  }
  WaitEvents wait{reinterpret_cast<uint64_t>(records.data()), 2, 0, 0, 0};
  const int result = session_->try_call(WaitEvents::kRequest, &wait);
  if (result == -EIO || result == -ENODEV) {
    const std::lock_guard lock(mutex_);
    fault_ = GpuFault{.kind = GpuFault::Kind::kHardware, .is_whole_reset = true};
    return fault_;
  }
  if (result < 0) return std::nullopt;
  // Kernels before 2025 do not say what a reset was: something happened, and it was no memory
  // fault.
  note_faults(records.data(), wait.result == kWaitComplete);
  const std::lock_guard lock(mutex_);
  return fault_;
}

/// An event told about another GPU of the process would be told at once in every later wait.
void KfdGpu::renew(Event& event, uint32_t type) {
  const auto made = session_->create_event(type, false);
  if (!made) return;
  Event old = *made;
  {
    const std::lock_guard lock(mutex_);
    std::swap(event, old);
  }
  session_->destroy_event(old);
}

void KfdGpu::note_faults(const EventData* records, bool is_certain) {
  const MemoryException& memory = records[0].memory;
  const HardwareException& hardware = records[1].hardware;
  std::optional<GpuFault> fault;
  // A record whose event did not fire stays zero, and no GPU has id 0.
  if (memory.gpu_id == node_.gpu_id) {
    fault = GpuFault{.kind = GpuFault::Kind::kMemory,
                     .address = memory.address,
                     .is_not_present = memory.not_present != 0,
                     .is_read_only = memory.read_only != 0,
                     .is_no_execute = memory.no_execute != 0,
                     .is_imprecise = memory.imprecise != 0};
  } else if (hardware.gpu_id == node_.gpu_id) {
    fault = GpuFault{.kind = GpuFault::Kind::kHardware,
                     .is_whole_reset = hardware.reset_type == kResetWholeGpu,
                     .is_ecc = hardware.reset_cause == kCauseEcc,
                     .is_memory_lost = hardware.memory_lost != 0};
  } else if (hardware.gpu_id != 0 && hardware.reset_type == kResetWholeGpu) {
    fault = GpuFault{
        .kind = GpuFault::Kind::kHardware, .is_whole_reset = true, .reset_gpu_id = hardware.gpu_id};
  } else if (is_certain && memory.gpu_id == 0 && hardware.gpu_id == 0) {
    fault = GpuFault{.kind = GpuFault::Kind::kHardware, .is_whole_reset = true};
  }
  if (fault) {
    keep_fault(std::move(*fault));
    return;
  }
  if (memory.gpu_id != 0) renew(memory_event_, kEventMemory);
  if (hardware.gpu_id != 0) renew(hardware_event_, kEventHardware);
}

/// The first one stays, here and for whoever opens the GPU later in this process.
void KfdGpu::keep_fault(GpuFault fault) {
  const std::lock_guard lock(mutex_);
  if (fault_) return;
  const uint32_t reset_gpu = fault.reset_gpu_id != 0 ? fault.reset_gpu_id : node_.gpu_id;
  if (fault.kind == GpuFault::Kind::kMemory)
    session_->note_eviction(node_.gpu_id, fmt::format("memory fault at {:#x}", fault.address));
  else if (fault.is_whole_reset)
    session_->note_eviction(0, fmt::format("GPU {} was reset", reset_gpu));
  else if (fault.is_ecc)
    session_->note_eviction(node_.gpu_id, "uncorrectable memory error");
  fault.log = read_log();
  if (const std::string errors = recent_errors(); !errors.empty())
    fault.log += (fault.log.empty() ? "" : "; ") + errors;
  fault_ = std::move(fault);
}

}  // namespace bm::amd::kfd
