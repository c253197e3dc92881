#include "drivers/amd/am/gpu.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "drivers/amd/am/memory.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/memory/address_windows.h"
#include "drivers/transport/pci_config.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::amd::am {
namespace {

// SCRATCH_REG7 while the card is in our state: changes with the layout of boot memory and with the
// number here, which goes up when anything else about that state does. tinygrad has 0xa0000008
// there.
constexpr uint32_t kMagic = 0xbe000000, kMagicMask = 0xff000000, kStateVersion = 1;
// SCRATCH_REG6: whether whoever was here last has left in order.
constexpr uint32_t kLeftInOrder = 0, kInUse = 1;

constexpr uint64_t kMemorySize = 0xde3;
// TIMEOUT: mode 1 takes half a second (SMU13_MODE1_RESET_WAIT_TIME_IN_MS); then the card has to
// answer again, which the kernel waits usec_timeout for. Five seconds for slow boards.
constexpr uint64_t kModeOneUs = 500'000, kBackUs = 5'000'000;

// Standard header: registers that a reset may clear (amdgpu_device_cache_pci_state).
constexpr uint32_t kCommand = 0x04, kFirstBar = 0x10, kPastBars = 0x28;

memory::AddressWindows& windows() {
  static memory::AddressWindows of_process(Gmc::kWindows);
  return of_process;
}

}  // namespace

uint32_t AmGpu::magic() const {
  const uint32_t hash = memory_->layout_hash() ^ (kStateVersion * 0x9e3779b9u);
  return kMagic | ((hash ^ hash >> 24) & ~kMagicMask);
}

Result<std::unique_ptr<DriverInterface>> open_am(std::unique_ptr<PciFunction> function,
                                                 const Options& options) {
  return std::unique_ptr<DriverInterface>(BM_TRY(AmGpu::open(std::move(function), options)));
}

Result<std::unique_ptr<AmGpu>> AmGpu::open(std::unique_ptr<PciFunction> function,
                                           const Options& options) {
  Clock& clock = options.clock != nullptr ? *options.clock : real_clock();
  std::unique_ptr<AmGpu> gpu(new AmGpu(std::move(function), options, clock));
  if (Status booted = gpu->boot(); !booted) {
    // A card half up must not write to memory that is about to be freed.
    static_cast<void>(set_bus_master(*gpu->function_, false));
    log("amd", LogLevel::kInfo, "boot of {}:\n{}", to_string(gpu->function_->identity().address),
        gpu->bus_.stages.table());
    return tl::unexpected(std::move(booted.error()));
  }
  log("amd", LogLevel::kInfo, "booted {} ({})", to_string(gpu->function_->identity().address),
      gpu->was_warm_ ? "warm" : "cold");
  log("amd", LogLevel::kTrace, "stages of the boot:\n{}", gpu->bus_.stages.table());
  return gpu;
}

Status AmGpu::run(std::span<const Step> steps) {
  for (const Step& step : steps) BM_TRY(bus_.run(step.name, [&] { return (this->*step.work)(); }));
  return {};
}

Status AmGpu::boot() {
  static constexpr Step kLook[] = {{"map", &AmGpu::map_bars},
                                   {"discovery", &AmGpu::read_discovery},
                                   {"firmware", &AmGpu::load_files},
                                   {"layout", &AmGpu::lay_out},
                                   {"state", &AmGpu::find_state}};
  static constexpr Step kReset[] = {{"reset", &AmGpu::reset_card}};
  static constexpr Step kBase[] = {{"bus master", &AmGpu::start_dma},
                                   {"bus block", &AmGpu::start_bus},
                                   {"page tables", &AmGpu::create_tables},
                                   {"multimedia hub", &AmGpu::start_mmhub},
                                   {"interrupts", &AmGpu::start_interrupts}};
  static constexpr Step kSystem[] = {{"PSP system", &AmGpu::load_psp}};
  static constexpr Step kCold[] = {{"PSP ring", &AmGpu::create_psp_ring},
                                   {"protected memory", &AmGpu::protect_memory},
                                   {"firmware files", &AmGpu::send_files},
                                   {"SMU", &AmGpu::start_smu}};
  static constexpr Step kEngines[] = {{"RLC autoload", &AmGpu::wait_rlc},
                                      {"graphics hub", &AmGpu::start_gfxhub},
                                      {"command processor", &AmGpu::start_compute},
                                      {"copy engines", &AmGpu::start_copies}};
  static constexpr Step kProof[] = {{"RLC autoload proof", &AmGpu::prove_compute}};
  static constexpr Step kEnd[] = {{"mark", &AmGpu::mark}};
  static constexpr Step kBridge[] = {{"bridge copies", &AmGpu::start_bridge_copies}};
  static constexpr Step kLimit[] = {{"power limit", &AmGpu::set_power_limit}};
  BM_TRY(run(kLook));
  // Not in our state, and the PSP runs: whoever has started it has it use his memory.
  const bool needs_reset = !was_warm_ && psp_->is_alive();
  if (needs_reset) BM_TRY(run(kReset));
  BM_TRY(run(kBase));
  if (!was_warm_) {
    if (Status loaded = psp_survived_ ? Status{} : run(kSystem); !loaded) {
      // Whoever was stopped in the middle of this has left a boot loader that goes on where it was.
      if (needs_reset || psp_->has_taken_any() || loaded.error().code != Code::kTimeout)
        return loaded;
      log("amd", LogLevel::kWarning, "{}; the card is reset and asked once more",
          loaded.error().message);
      BM_TRY(run(kReset));
      BM_TRY(run(kBase));
      if (!psp_survived_) BM_TRY(run(kSystem));
    }
    BM_TRY(run(kCold));
  }
  BM_TRY(run(kEngines));
  if (!autoload_problem_.empty()) BM_TRY(run(kProof));
  BM_TRY(run(kEnd));
  if (path_ && function_->staging() != nullptr) BM_TRY(run(kBridge));
  // After the mark: a limit that is refused leaves a card that is up and shut down in order.
  if (options_.power_limit_w != 0) return run(kLimit);
  return {};
}

std::vector<BusRange> AmGpu::page_table_places() const {
  std::vector<BusRange> places;
  if (gmc_)
    for (const auto& [address, bytes] : gmc_->table_places()) places.push_back({address, bytes});
  return places;
}

Status AmGpu::map_bars() {
  BM_TRY(bus_.open());
  bus_.stages.note(fmt::format("{} MiB of video memory are visible", bus_.visible_bytes() >> 20));
  return {};
}

Status AmGpu::read_discovery() {
  card_ = BM_TRY(discover(bus_, options_.experimental));
  const auto& gc = card_.id.gc;
  bus_.stages.note(fmt::format("{}, GC {}.{}.{}, {} MiB, {} blocks", card_.chip->name, gc.major,
                               gc.minor, gc.revision, card_.video_bytes >> 20,
                               card_.discovery.ips.size()));
  return {};
}

Status AmGpu::load_files() {
  firmware_ = BM_TRY(Firmware::load(card_.firmware, options_.firmware));
  bus_.stages.note(fmt::format(
      "{} files",
      std::ranges::count(card_.firmware.files, false, &firmware::amd::SetFile::is_optional)));
  return {};
}

Status AmGpu::start_dma() {
  BM_TRY(set_bus_master(*function_, true));
  const auto vectors = function_->enable_interrupts(1);
  has_msi_ = vectors && *vectors > 0;
  bus_.stages.note(has_msi_ ? "interrupts by MSI" : "no interrupts here: polling");
  return {};
}

Status AmGpu::start_bus() {
  BM_TRY(start_bus_block(bus_, card_));
  return gmc_->init_hdp();
}

Status AmGpu::create_tables() {
  BM_TRY(gmc_->read_location());
  BM_TRY(restore_kept());
  if (!window_) window_ = BM_TRY(windows().take());
  return gmc_->create_tables(card_, *window_);
}

Status AmGpu::start_mmhub() { return gmc_->init_hub(Block::kMmhub); }
Status AmGpu::start_interrupts() { return interrupts_->start(has_msi_); }
Status AmGpu::load_psp() { return psp_->load_system(firmware_); }
Status AmGpu::create_psp_ring() { return psp_->create_ring(); }
Status AmGpu::protect_memory() { return psp_->setup_protected_memory(card_, firmware_); }
Status AmGpu::send_files() { return psp_->load_firmware(card_, firmware_); }
Status AmGpu::start_smu() {
  BM_TRY(smu_->start());
  const uint32_t version = smu_->version();
  bus_.stages.note(fmt::format("SMU {}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff));
  return {};
}
Status AmGpu::wait_rlc() {
  if (card_.generation->processor == ProcessorKind::kF32) {
    bus_.stages.note("the PSP has loaded every processor itself");
    return {};
  }
  const Status done = compute_->wait_autoload();
  if (done || done.error().code != Code::kTimeout) return done;
  // Only the flag may be missing: a packet will tell, once there are queues.
  BM_TRY(compute_->wait_idle());
  autoload_problem_ = done.error().message;
  bus_.stages.note(autoload_problem_ + "; the command processor is idle, so a packet has to tell");
  return {};
}

/// After a boot without BOOTLOAD_COMPLETE: a processor without firmware runs no packet.
Status AmGpu::prove_compute() {
  constexpr uint64_t kTarget = 2048;
  constexpr uint32_t kProof = 0xbe11;
  // TIMEOUT: a packet takes microseconds.
  constexpr uint64_t kProofTimeoutUs = 1'000'000;
  const auto ring = BM_TRY(allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}));
  ring->view.fill(0, 4096, std::byte{0});
  std::vector<uint32_t> words;
  pm4::Writer writer(words, card_.chip->caches);
  writer.put(pm4::ReleaseMem{.caches = pm4::cache_actions(card_.chip->caches).release,
                             .address = ring->va + kTarget,
                             .value = kProof});
  ring->view.copy_in(0, words);
  ring->view.publish();
  const auto queue = BM_TRY(create_queue({.type = QueueType::kPm4, .ring = ring.get()}));
  queue->write_pointer.store_release<uint64_t>(0, words.size());
  queue->write_pointer.publish();
  queue->doorbell.ring(words.size());
  const uint64_t begun = bus_.clock().now_us();
  while (ring->view.load_acquire<uint64_t>(kTarget) != kProof) {
    BM_TRY(bus_.status());
    if (bus_.clock().now_us() - begun > kProofTimeoutUs)
      return fail(Code::kTimeout,
                  "{}; and a packet on a compute queue was not executed within {} ms",
                  autoload_problem_, kProofTimeoutUs / 1000);
    bus_.sleep_us(100);
  }
  log("amd", LogLevel::kWarning,
      "{}; but a compute queue executes packets, so the boot goes on: a model of a card, or "
      "firmware that this release does not know",
      autoload_problem_);
  return {};
}
Status AmGpu::start_gfxhub() { return gmc_->init_hub(Block::kGc); }

Status AmGpu::start_compute() {
  if (was_warm_) return compute_->reset(firmware_);
  BM_TRY(compute_->set_start_addresses(firmware_));
  open_compute_doorbells(bus_);
  BM_TRY(compute_->configure());
  BM_TRY(compute_->set_running(true));
  return card_.xccs > 1 ? psp_->set_partitions(1) : Status{};
}

Status AmGpu::start_copies() {
  if (was_warm_) BM_TRY(copies_->reset());
  return copies_->start();
}

Status AmGpu::mark() {
  bus_.write({Block::kGc, Reg::SCRATCH_REG7}, magic());
  bus_.write({Block::kGc, Reg::SCRATCH_REG6}, kInUse);
  is_up_ = true;
  link_->gpu = this;
  read_facts();
  return bus_.status();
}

/// After the mark, since queues and memory are a running card's.
Status AmGpu::start_bridge_copies() {
  constexpr uint64_t kRingBytes = 16 << 10, kPage = 4096;
  StagingMemory& staging = *function_->staging();
  const auto reach = [this](const BusRange& range) -> Result<uint64_t> {
    const uint64_t bytes = align_up(range.bytes, kPage);
    const uint64_t va = BM_TRY(gmc_->take_addresses(bytes));
    const memory::PhysicalRange place{range.address, bytes};
    BM_TRY(
        gmc_->map(va, {&place, 1}, {.aperture = memory::Aperture::kSystem, .is_uncached = true}));
    return va;
  };
  BridgeCopies::Places places;
  {
    const std::lock_guard lock(mutex_);
    places = {BM_TRY(reach(staging.range())), BM_TRY(reach(staging.release()))};
  }
  const MemoryRequest page{.size = kPage, .domain = MemoryDomain::kSystemUncached};
  auto ring = BM_TRY(allocate({.size = kRingBytes, .domain = MemoryDomain::kSystemUncached}));
  auto fence = BM_TRY(allocate(page));
  // The last of the queues: the others are the device's.
  auto queue = BM_TRY(
      create_queue({.type = QueueType::kSdma, .ring = ring.get(), .sdma_engine = kBridgeQueue}));
  bridge_copies_ =
      std::make_unique<BridgeCopies>(staging, places, bus_.clock(), card_.chip->sdma,
                                     std::move(ring), std::move(fence), std::move(queue));
  if (const Status works = bridge_copies_->start(); !works) {
    drop_bridge_copies();
    BM_TRY(bus_.status());
    log("amd", LogLevel::kWarning,
        "{}: {}; long copies go by requests to the BARs, at a hundredth of the speed",
        to_string(function_->identity().address), works.error().message);
    bus_.stages.note("the engine does not reach the bridge's memory");
    return {};
  }
  path_->use(bridge_copies_.get());
  return {};
}

void AmGpu::drop_bridge_copies() {
  if (path_) path_->use(nullptr);
  bridge_copies_.reset();
}

/// Under the mutex; who copies does not take it.
Status AmGpu::restart_bridge_copies() {
  path_->use(nullptr);
  BM_TRY(static_cast<AmQueue&>(bridge_copies_->queue()).restart_locked());
  bridge_copies_->restart();
  path_->use(bridge_copies_.get());
  return {};
}

/// The order here is the layout.
Status AmGpu::lay_out() {
  memory_ = BM_TRY(
      VideoMemory::create(card_.video_bytes, bus_.visible_bytes(), card_.generation->top_bytes));
  gmc_.emplace(bus_, *memory_);
  psp_.emplace(bus_, *gmc_, *memory_);
  smu_.emplace(bus_, *gmc_, *memory_, card_.generation->smu);
  interrupts_.emplace(bus_, *gmc_, *memory_);
  compute_.emplace(bus_, *gmc_, *memory_, *card_.generation);
  copies_.emplace(bus_, *smu_, card_);
  BM_TRY(gmc_->allocate_boot());
  BM_TRY(interrupts_->allocate_boot());
  BM_TRY(psp_->allocate_boot());
  BM_TRY(smu_->allocate_boot());
  BM_TRY(compute_->allocate_boot());
  kept_place_ = BM_TRY(memory_->allocate_boot(KeptTable::kBytes, 4096, "the table of kept memory"));
  const DmaLimits& limits = function_->dma_limits();
  if (limits.takes_iova)
    iovas_ = BM_TRY(memory::IovaAllocator::create(limits, options_.address_bits));
  if (!limits.reaches_host) path_.emplace(bus_, *gmc_);
  return {};
}

/// Ours, left in order and without a fault that nobody looked at: then firmware runs already.
bool AmGpu::is_left_in_order() {
  return bus_.read({Block::kGc, Reg::SCRATCH_REG7}) == magic() &&
         bus_.read({Block::kGc, Reg::SCRATCH_REG6}) == kLeftInOrder && psp_->is_alive() &&
         gmc_->read_fault(Block::kGc).status == 0;
}

Status AmGpu::find_state() {
  const uint32_t seen = bus_.read({Block::kGc, Reg::SCRATCH_REG7});
  const uint32_t left = bus_.read({Block::kGc, Reg::SCRATCH_REG6});
  BM_TRY(bus_.status());
  was_warm_ = !options_.always_reset && is_left_in_order();
  const bool is_ours = seen == magic();
  bus_.stages.note(fmt::format("{} (SCRATCH_REG7 {:#x}, SCRATCH_REG6 {:#x})",
                               was_warm_                         ? "warm: ours, left in order"
                               : is_ours && left != kLeftInOrder ? "ours, not left in order"
                               : is_ours                         ? "ours, not to be reused"
                                                                 : "not ours",
                               seen, left));
  // A process that ends in the middle of a warm boot leaves nothing in order.
  if (was_warm_) bus_.write({Block::kGc, Reg::SCRATCH_REG6}, kInUse);
  return bus_.status();
}

Status AmGpu::reset_card() {
  std::array<uint32_t, (kPastBars - kFirstBar) / 4> bars{};
  for (size_t i = 0; i < bars.size(); ++i)
    bars[i] = BM_TRY(bus_.read_config(kFirstBar + static_cast<uint32_t>(i) * 4, 4));
  BM_TRY(set_bus_master(*function_, false));
  const uint32_t command = BM_TRY(bus_.read_config(kCommand, 2));
  if (smu_->is_alive()) {
    BM_TRY(smu_->reset_card());
  } else {
    // Its power management firmware is dead: only the slot can reset it, or whatever the transport
    // has for the function.
    BM_TRY(bus_.status());
    const Status slot = function_->reset(PciReset::kBus);
    const Status done = slot ? slot : function_->reset(PciReset::kFunction);
    if (!done)
      return fail(done.error().code,
                  "the card was started by somebody else, its SMU does not answer, and neither the "
                  "bus nor the function can be reset ({}; {}): switch the machine off and on",
                  slot.error().message, done.error().message);
  }
  bus_.sleep_us(kModeOneUs);
  for (size_t i = 0; i < bars.size(); ++i) {
    const uint32_t offset = kFirstBar + static_cast<uint32_t>(i) * 4;
    const uint32_t now = BM_TRY(bus_.read_config(offset, 4));
    if (now != bars[i]) BM_TRY(bus_.write_config(offset, 4, bars[i]));
  }
  BM_TRY(bus_.write_config(kCommand, 2, command));
  const uint64_t begun = bus_.clock().now_us();
  for (;;) {
    const uint32_t size = bus_.probe_dword(kMemorySize);
    if (size != 0 && size != UINT32_MAX) break;
    if (bus_.clock().now_us() - begun > kBackUs)
      return fail(Code::kTimeout,
                  "{} ms after its reset the card still gives {:#x} for its memory size",
                  (kModeOneUs + kBackUs) / 1000, size);
    bus_.sleep_us(1000);
  }
  BM_TRY(psp_->wait_bootloader());
  // The kernel does not look, and loads no system where one runs (psp_v13_0_is_sos_alive()): what
  // it refuses afterwards says more than that it is there.
  psp_survived_ = psp_->is_alive();
  if (psp_survived_)
    log("amd", LogLevel::kWarning,
        "the PSP's system has survived the reset of the card and is not loaded again; if the boot "
        "ends here, switch the machine off and on");
  return bus_.status();
}

void AmGpu::read_facts() {
  const PciIdentity& identity = function_->identity();
  facts_.chip = card_.chip;
  facts_.name = std::string(card_.chip->name);
  const uint32_t smu = smu_->version();
  facts_.driver_version = smu == 0 ? std::string("no kernel driver, warm")
                                   : fmt::format("no kernel driver, SMU {}.{}.{}", smu >> 16,
                                                 smu >> 8 & 0xff, smu & 0xff);
  facts_.gpu_id = uint32_t{identity.address.domain} << 16 | uint32_t{identity.address.bus} << 8 |
                  uint32_t{identity.address.device} << 3 | identity.address.function;
  facts_.xccs = card_.xccs;
  facts_.engines_per_xcc = card_.engines();
  facts_.cus_per_xcc = card_.compute_units();
  facts_.simds_per_cu = card_.chip->simds_per_cu;
  facts_.waves_per_simd = card_.chip->waves_per_simd;
  if (card_.discovery.gc && card_.discovery.gc->gc_max_scratch_slots_per_cu != 0)
    facts_.scratch_slots_per_cu = card_.discovery.gc->gc_max_scratch_slots_per_cu;
  facts_.sdma_engines = card_.sdma_engines;
  facts_.video_memory = memory_->free_bytes() + kept_bytes(false);
  facts_.has_indirect_copies = true;
  facts_.has_fills = !function_->is_served();
  const auto bases = [&](uint16_t hw_id) {
    std::vector<uint32_t> narrow;
    if (const auto* ip = card_.discovery.find(hw_id))
      for (const uint64_t base : ip->base_address) narrow.push_back(static_cast<uint32_t>(base));
    return narrow;
  };
  const auto add = [&](std::span<const RegisterAt> table, uint16_t hw_id) {
    if (const Status added = facts_.registers.add(table, bases(hw_id)); !added)
      bus_.fail_with(added.error());
  };
  add(gc_registers(card_.chip->registers), firmware::amd::kGcHwId);
  if (const auto* nbif = card_.discovery.find(firmware::amd::kNbifHwId))
    add(bus_registers(nbif->major, nbif->minor, nbif->revision), firmware::amd::kNbifHwId);
}

Result<bool> AmGpu::wait_event(uint32_t timeout_ms) {
  // TIMEOUT: another thread may have taken the interrupt, and a card may lose one; whoever waits
  // looks again after so long.
  constexpr uint32_t kLongestMs = 20;
  if (has_msi_) {
    const auto woken =
        function_->wait_interrupt(0, static_cast<int>(std::min(timeout_ms, kLongestMs)));
    if (woken || woken.error().code != Code::kUnsupported) return woken;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(std::min(timeout_ms, 1u)));
  return true;
}

std::optional<GpuFault> AmGpu::take_fault() {
  const std::lock_guard lock(mutex_);
  if (!fault_ && may_look()) fault_ = look();
  return fault_;
}

/// Those who wait ask all the time; where a look takes transfers, they share one.
bool AmGpu::may_look() {
  constexpr uint64_t kBetweenLooksUs = 2000;
  if (!path_ || !bus_.status()) return true;
  const uint64_t now = bus_.clock().now_us();
  if (now < next_look_us_) return false;
  next_look_us_ = now + kBetweenLooksUs;
  return true;
}

std::optional<GpuFault> AmGpu::look() {
  if (const Status fine = bus_.status(); !fine)
    return GpuFault{.kind = GpuFault::Kind::kHardware,
                    .is_whole_reset = true,
                    .is_memory_lost = true,
                    .log = fine.error().message};
  for (const Interrupt& interrupt : interrupts_->drain()) {
    const InterruptMeaning meaning = explain_interrupt(interrupt, card_.generation->interrupts);
    switch (meaning.kind) {
      case InterruptKind::kDone:
      case InterruptKind::kWave: break;
      case InterruptKind::kOther:
        log("amd", LogLevel::kInfo, "interrupt of {}", meaning.text);
        break;
      case InterruptKind::kMemoryFault: {
        const Block hub = interrupt.client == 18 ? Block::kMmhub : Block::kGc;
        const HubFault seen = gmc_->read_fault(hub);
        gmc_->clear_fault(hub);
        if (hub == Block::kGc && seen.status != 0) taken_fault_ = seen;
        has_hang_ = true;
        // PERMISSION_FAULTS: what the entry lacks, valid, read, write, execute from bit 0 on.
        return GpuFault{.kind = GpuFault::Kind::kMemory,
                        .address = meaning.address,
                        .is_not_present = (seen.permissions & 1) != 0 || seen.walker_error != 0 ||
                                          seen.is_mapping_error || seen.status == 0,
                        .is_read_only = (seen.permissions & 4) != 0,
                        .is_no_execute = (seen.permissions & 8) != 0,
                        .log = fmt::format("{}, {} of client {:#x}, status {:#x}", meaning.text,
                                           meaning.is_write || seen.is_write ? "write" : "read",
                                           seen.client, seen.status)};
      }
      case InterruptKind::kError:
        has_hang_ = true;
        return GpuFault{.kind = GpuFault::Kind::kHardware, .log = meaning.text};
    }
  }
  return std::nullopt;
}

Autopsy AmGpu::autopsy(uint64_t limit_us) {
  const std::lock_guard lock(mutex_);
  Bus bus = bus_.anew();
  AutopsyOptions options{
      .taken_fault = taken_fault_, .compute_queues = compute_taken_, .limit_us = limit_us};
  options.read_host = [this](uint64_t va, std::span<std::byte> to) {
    const auto after = host_views_.upper_bound(va);
    if (after == host_views_.begin()) return false;
    const auto& [start, view] = *std::prev(after);
    if (va - start > view.size() || to.size() > view.size() - (va - start)) return false;
    view.copy_out(va - start, to);
    return true;
  };
  return examine(bus, card_, options);
}

PageWalk AmGpu::walk(uint64_t va) {
  const std::lock_guard lock(mutex_);
  Bus bus = bus_.anew();
  return walk_pages(bus, Block::kGc, va, *card_.generation);
}

std::string AmGpu::recent_errors() {
  constexpr size_t kLines = 4;
  constexpr uint64_t kLimitUs = 300'000;
  std::string text = autopsy(kLimitUs).text(kLines);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::ranges::replace(text, '\n', ';');
  return fmt::format("autopsy: {}", text);
}

uint64_t AmGpu::available_memory() {
  const std::lock_guard lock(mutex_);
  return memory_->free_bytes() + kept_bytes(true);
}

/// All are told before any is complained of.
Status AmGpu::stop_all_queues() {
  Status done;
  const auto note = [&](Status one) {
    if (done && !one) done = std::move(one);
  };
  for (uint32_t queue = 0; queue < kComputeQueues; ++queue) note(compute_->stop_queue(queue));
  for (uint32_t queue = 0; queue < copy_queues(); ++queue) note(copies_->stop_queue(queue));
  return done;
}

/// Verified by queues that let go of what they had.
Status AmGpu::reset_compute() {
  BM_TRY(compute_->reset(firmware_));
  for (uint32_t queue = 0; queue < kComputeQueues; ++queue) BM_TRY(compute_->stop_queue(queue));
  return {};
}

Status AmGpu::reset_copies() {
  BM_TRY(copies_->reset());
  return copies_->start();
}

/// Verified by reset_card(): the boot loader waits and the PSP's system is gone.
Status AmGpu::reset_all() {
  if (path_) path_->use(nullptr);
  is_reset_ = true;
  is_up_ = false;
  gmc_->card_is_reset();
  kept_.records.clear();
  BM_TRY(reset_card());
  return set_bus_master(*function_, false);
}

void AmGpu::forget_faults() {
  for (const Block hub : {Block::kGc, Block::kMmhub}) gmc_->clear_fault(hub);
  static_cast<void>(interrupts_->drain());
  fault_.reset();
  has_hang_ = false;
}

Status AmGpu::recover_locked(RecoveryStage stage) {
  struct Row {
    RecoveryStage stage;
    Step step;
  };
  static constexpr Row kRows[] = {
      {RecoveryStage::kQueues, {"recovery: queues", &AmGpu::stop_all_queues}},
      {RecoveryStage::kProcessor, {"recovery: command processor", &AmGpu::reset_compute}},
      {RecoveryStage::kCopyEngines, {"recovery: copy engines", &AmGpu::reset_copies}},
      {RecoveryStage::kCard, {"recovery: card", &AmGpu::reset_all}}};
  BM_TRY(bus_.status());
  const Step& step = std::ranges::find(kRows, stage, &Row::stage)->step;
  const uint64_t begun = bus_.clock().now_us();
  Status done = bus_.run(step.name, [&] { return (this->*step.work)(); });
  log("amd", LogLevel::kWarning, "{}: {} after {} us{}{}", to_string(function_->identity().address),
      step.name, bus_.clock().now_us() - begun, done ? ": obeyed" : ": ",
      done ? "" : done.error().message);
  if (stage != RecoveryStage::kCard) forget_faults();
  if (!done) has_hang_ = true;
  if (done && bridge_copies_ && stage != RecoveryStage::kCard) done = restart_bridge_copies();
  return done;
}

Status AmGpu::recover(RecoveryStage stage) {
  const std::lock_guard lock(mutex_);
  if (is_reset_) return fail(Code::kDeviceLost, "the card was reset: open the device again");
  return recover_locked(stage);
}

/// Each only where the one before was not enough; what still hangs is reset by the next open.
void AmGpu::settle() {
  const std::lock_guard lock(mutex_);
  const bool is_fine =
      recover_locked(RecoveryStage::kQueues) || recover_locked(RecoveryStage::kProcessor);
  has_hang_ = !recover_locked(RecoveryStage::kCopyEngines) || !is_fine;
}

/// In order: nothing of ours runs, nothing interrupts, nothing writes to memory of the host.
Status AmGpu::shut_down() {
  const bool let_go = compute_->stop_queues();
  for (uint32_t queue = 0; queue < copy_queues(); ++queue) BM_TRY(copies_->stop_queue(queue));
  BM_TRY(bus_.status());
  const Status restored = restore_power_limit();
  if (let_go && !has_hang_ && !was_at_work_ && restored)
    bus_.write({Block::kGc, Reg::SCRATCH_REG6}, kLeftInOrder);
  BM_TRY(interrupts_->stop());
  return restored;
}

void AmGpu::leave() {
  {
    const std::lock_guard lock(link_->mutex);
    link_->gpu = nullptr;
  }
  drop_bridge_copies();
  if (!is_up_) return;
  if (has_hang_) settle();
  const std::lock_guard lock(mutex_);
  if (const Status down = bus_.run("shut down", [&] { return shut_down(); }); !down)
    log("amd", LogLevel::kWarning, "{}; the next open resets the card", down.error().message);
  static_cast<void>(set_bus_master(*function_, false));
  is_up_ = false;
  has_left_ = true;
}

AmGpu::~AmGpu() {
  leave();
  abandoned_.clear();
  for (const auto& [va, peer] : peers_) static_cast<void>(function_->dma_unmap(peer.host));
  if (window_) windows().give_back(*window_);
}

}  // namespace bm::amd::am
