#include "tests/sim/amd/chip/chip.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "tests/sim/amd/chip/discovery.h"
#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {
namespace {

constexpr uint64_t kFbBase = 0x80'0000'0000;

const ChipRow& row_of(const std::string& name) {
  const ChipRow* const row = find_chip_row(name);
  if (row == nullptr) sim::give_up("no chip " + name + " is modelled");
  return *row;
}

uint64_t ones(uint32_t width) { return width == 8 ? UINT64_MAX : (uint64_t{1} << width * 8) - 1; }

}  // namespace

class Chip::State final : public EngineState {
 public:
  explicit State(const ChipOptions& options) : options_(options) {}
  bool is_stalled() const override { return false; }
  uint32_t delay_us() const override { return 0; }
  const Execute& execute() const override { return options_.execute; }

 private:
  const ChipOptions& options_;
};

Chip::Chip(ChipOptions options)
    : options_(std::move(options)),
      row_(row_of(options_.chip)),
      traits_{.bars = {{kMemoryBar, 0x60'0000'0000, true, true},
                       {kDoorbellBar, 0x70'0000'0000, true, true},
                       {kRegisterBar, 0xf000'0000, false, false}},
              .memory_bar = kMemoryBar,
              .register_bar = kRegisterBar,
              .largest_memory_bar = options_.vram_bytes,
              .has_iommu = options_.has_iommu,
              .has_function_reset = options_.has_function_reset,
              .reserved = options_.reserved,
              .physical_base = options_.physical_base},
      vram_(options_.vram_bytes),
      config_({.vendor = 0x1002,
               .device = options_.device_id != 0 ? options_.device_id : row_.device_ids.front(),
               .subsystem_vendor = 0x1002,
               .subsystem_device = 0x0e3b,
               .revision = row_.revision,
               .bars = {BarLayout{options_.bar0_bytes, true, true}, BarLayout{},
                        BarLayout{kDoorbellBytes, true, true}, BarLayout{}, BarLayout{},
                        BarLayout{kRegisterBytes, false, false}},
               .largest_bar = options_.vram_bytes,
               .has_function_reset = options_.has_function_reset}),
      bus_(row_, violations_),
      doorbells_(kDoorbellBytes / 8),
      state_(std::make_unique<State>(options_)),
      nbio_(bus_, vram_),
      gc_hub_(
          HubKind::kGc, bus_,
          (fabric_.vram = &vram_, fabric_.system = &system_, fabric_.fb_base = kFbBase, fabric_)),
      mm_hub_(HubKind::kMm, bus_, fabric_),
      interrupts_(bus_, fabric_, mm_hub_),
      psp_(bus_, fabric_, mm_hub_),
      smu_(bus_, mm_hub_),
      room_{options_,
            bus_,
            fabric_,
            gc_hub_,
            mm_hub_,
            interrupts_,
            nbio_,
            psp_,
            *state_,
            doorbells_.data(),
            [this](const char* engine, const Death& death) { died(engine, death); }},
      gfx_(room_, 0),
      sdma_(room_) {
  make_chiplets();
  if (row_.has_direct_load)
    bus_.declare_at(Ip::kMp1, 0x3b10090 / 4, "MP1_PUB_SCRATCH0", "psp_v13_0.c",
                    {.reset = options_.pmfw_version, .is_read_only = true});
  fabric_.is_bus_master = [this] { return is_bus_master_.load(); };
  psp_.on_smu_loaded = [this] { smu_.start(); };
  psp_.on_autoload = [this] {
    gfx_.boot();
    for (const auto& gfx : more_gfx_) gfx->boot();
    if (row_.has_direct_load) sdma_.let_go();
  };
  vram_.writes_through = !options_.holds_writes;
  psp_.planted_status = options_.psp_status;
  psp_.hangs = options_.hangs_psp;
  smu_.planted_answer = options_.smu_answer;
  smu_.on_mode1 = [this] { mode1(); };
  smu_.packets = [this] { return state_->packets.load(); };
  smu_.on_reset_copies = [this](uint32_t engines) { return sdma_.reset_engines(engines); };
  smu_.version = options_.pmfw_version;
  smu_.edge_c = options_.edge_c;
  smu_.board_limit_watts = smu_.power_limit_watts = options_.board_limit_watts;
  gfx_.on_soft_reset([this](uint32_t engine) { sdma_.soft_reset(engine); });
  interrupts_.is_silent = options_.loses_interrupts;
  interrupts_.send = [this] {
    const std::lock_guard lock(interrupt_mutex_);
    if (is_bus_master_ && has_msi_ && send_interrupt_) send_interrupt_();
  };
  const auto fault = [this](uint8_t client) {
    return [this, client](uint64_t va, bool /*is_write*/) {
      // gmc_v11_0_process_interrupt(): page number in two words.
      interrupts_.post(
          {client,
           ih_source::kUtcl2Fault,
           0,
           0,
           0,
           {static_cast<uint32_t>(va >> 12), static_cast<uint32_t>(va >> 44) & 0xf, 0, 0}});
    };
  };
  gc_hub_.on_fault = fault(row_.generation == 9 ? ih_client::kUtcl2 : ih_client::kGfx);
  mm_hub_.on_fault = fault(ih_client::kVmc);
  power_on();
  if (options_.start == ChipOptions::Start::kDriverWasHere) leave_as_driver();
}

void Chip::make_chiplets() {
  std::vector<Gfx*> chiplets = {&gfx_};
  for (uint32_t xcc = 1; xcc < row_.xccs(); ++xcc) {
    bus_.select_instance(Ip::kGc, xcc);
    more_hubs_.push_back(std::make_unique<Hub>(HubKind::kGc, bus_, fabric_));
    more_rooms_.push_back(std::make_unique<EngineRoom>(
        EngineRoom{options_, bus_, fabric_, *more_hubs_.back(), mm_hub_, interrupts_, nbio_, psp_,
                   *state_, doorbells_.data(), room_.died}));
    more_gfx_.push_back(std::make_unique<Gfx>(*more_rooms_.back(), xcc));
    chiplets.push_back(more_gfx_.back().get());
  }
  bus_.select_instance(Ip::kGc, 0);
  for (Gfx* const gfx : chiplets) gfx->set_chiplets(chiplets);
  for (uint32_t die = 1; die < row_.ip(Ip::kMmhub).instances; ++die) {
    bus_.select_instance(Ip::kMmhub, die);
    more_hubs_.push_back(std::make_unique<Hub>(HubKind::kMm, bus_, fabric_));
  }
  bus_.select_instance(Ip::kMmhub, 0);
}

Chip::~Chip() {
  for (const auto& gfx : more_gfx_) gfx->reset();
  gfx_.reset();
  sdma_.reset();
}

void Chip::power_on() {
  const auto table = make_discovery(row_, options_.discovery_version, !options_.has_no_sums);
  vram_.write(vram_.size() - kDiscoveryFromEnd, table);
}

void Chip::leave_as_driver() {
  psp_.leave_running();
  smu_.start();
  // Video memory is full of what it left.
  const std::vector<std::byte> left(1 << 20, std::byte{0x5a});
  vram_.write(0, left);
}

void Chip::lose_everything() {
  gfx_.reset();
  for (const auto& gfx : more_gfx_) gfx->reset();
  sdma_.reset();
  vram_.lose();
  bus_.reset();
  gc_hub_.reset();
  mm_hub_.reset();
  for (const auto& hub : more_hubs_) hub->reset();
  interrupts_.reset();
  psp_.reset();
  smu_.reset();
  std::ranges::fill(doorbells_, 0);
  power_on();
}

/// Called from inside a register access.
void Chip::mode1() {
  if (options_.mec_cure != ChipOptions::Cure::kNothing) options_.hangs_mec = false;
  if (options_.sdma_cure != ChipOptions::Cure::kNothing) options_.hangs_sdma = false;
  lose_everything();
  reset_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.reset_ms);
}

void Chip::function_reset() {
  const std::lock_guard lock(mutex_);
  lose_everything();
  config_.power_on();
  is_bus_master_ = has_msi_ = false;
}

void Chip::on_interrupt(std::function<void()> send) {
  const std::lock_guard lock(interrupt_mutex_);
  send_interrupt_ = std::move(send);
}

void Chip::set_msi(bool on) {
  const std::lock_guard lock(mutex_);
  config_.set_msi(on);
  has_msi_ = on;
}

bool Chip::is_gated(uint32_t dword) const {
  if (!options_.gates_graphics) return false;
  const auto* const declared = bus_.find(dword);
  return declared != nullptr && declared->ip == Ip::kGc;
}

bool Chip::is_resetting() const { return std::chrono::steady_clock::now() < reset_until_; }

bool Chip::meets_fault(uint64_t* value) {
  const uint64_t access = ++accesses_;
  if (options_.fault != BusFault::kNone && access == options_.fault_access) {
    fault_ns_ = state_->knobs.plant.now_ns();
    switch (options_.fault) {
      case BusFault::kNone: break;
      case BusFault::kAllOnes: *value = UINT64_MAX; return true;
      case BusFault::kStall:
        std::this_thread::sleep_for(std::chrono::milliseconds(options_.stall_ms));
        break;
      case BusFault::kWrongAnswer: *value = 0; return false;  // read() turns the bits
      case BusFault::kUnplug: is_unplugged_ = true; break;
    }
  }
  if (!is_unplugged_) return false;
  *value = UINT64_MAX;
  return true;
}

uint64_t Chip::bar_bytes(uint32_t bar) const {
  switch (bar) {
    case kMemoryBar: return config_.bar_bytes(kMemoryBar);
    case kDoorbellBar: return kDoorbellBytes;
    case kRegisterBar: return kRegisterBytes;
    default: return 0;
  }
}

uint64_t Chip::read_plain(uint32_t bar, uint64_t offset, uint32_t width) {
  if (!config_.decodes_memory() || offset + width > bar_bytes(bar)) {
    violations_.add(fmt::format("read of BAR {} at {:#x} is not decoded", bar, offset));
    return ones(width);
  }
  if (bar == kMemoryBar) {
    ++counts_.memory_reads;
    counts_.memory_read_bytes += width;
    note_access(offset, width, false);
    uint64_t value = 0;
    vram_.host_read(offset, std::as_writable_bytes(std::span(&value, 1)).first(width));
    return value;
  }
  if (bar == kDoorbellBar) {
    violations_.add(fmt::format("read of the doorbell at {:#x}", offset));
    return 0;
  }
  if (width != 4 || offset % 4 != 0) {
    violations_.add(fmt::format("read of {} bytes of registers at {:#x}", width, offset));
    return ones(width);
  }
  ++counts_.register_reads;
  const std::lock_guard lock(mutex_);
  if (is_resetting()) return UINT32_MAX;
  const auto dword = static_cast<uint32_t>(offset / 4);
  if (is_gated(dword)) return 0;
  return bus_.read(dword);
}

uint64_t Chip::read(uint32_t bar, uint64_t offset, uint32_t width) {
  uint64_t value = 0;
  if (meets_fault(&value)) return value & ones(width);
  const bool is_wrong =
      options_.fault == BusFault::kWrongAnswer && accesses_ == options_.fault_access;
  value = read_plain(bar, offset, width);
  return (is_wrong ? ~value : value) & ones(width);
}

void Chip::write(uint32_t bar, uint64_t offset, uint32_t width, uint64_t value) {
  uint64_t unused = 0;
  if (meets_fault(&unused)) return;
  if (!config_.decodes_memory() || offset + width > bar_bytes(bar)) {
    violations_.add(fmt::format("write of BAR {} at {:#x} is not decoded", bar, offset));
    return;
  }
  if (bar == kMemoryBar) {
    ++counts_.memory_writes;
    counts_.memory_written_bytes += width;
    note_access(offset, width, true);
    vram_.host_write(offset, std::as_bytes(std::span(&value, 1)).first(width));
  } else if (bar == kDoorbellBar) {
    if (width == 4 && offset % 4 == 0 && options_.takes_half_doorbells)
      ring_half(offset, static_cast<uint32_t>(value));
    else if (width != 8 || offset % 8 != 0)
      violations_.add(fmt::format("write of {} bytes of doorbells at {:#x}", width, offset));
    else
      ring(offset, value);
  } else if (width != 4 || offset % 4 != 0) {
    violations_.add(fmt::format("write of {} bytes of registers at {:#x}", width, offset));
  } else {
    ++counts_.register_writes;
    const std::lock_guard lock(mutex_);
    const auto dword = static_cast<uint32_t>(offset / 4);
    if (!is_resetting() && !is_gated(dword)) bus_.write(dword, static_cast<uint32_t>(value));
  }
}

void Chip::read_block(uint32_t bar, uint64_t offset, std::span<std::byte> to) {
  if (bar == kMemoryBar) {
    uint64_t value = 0;
    if (meets_fault(&value) || !config_.decodes_memory() || offset + to.size() > bar_bytes(bar)) {
      std::ranges::fill(to, std::byte{0xff});
      return;
    }
    ++counts_.memory_reads;
    counts_.memory_read_bytes += to.size();
    note_access(offset, to.size(), false);
    vram_.host_read(offset, to);
    return;
  }
  for (size_t i = 0; i + 4 <= to.size(); i += 4) {
    const auto word = static_cast<uint32_t>(read(bar, offset + i, 4));
    std::memcpy(&to[i], &word, 4);
  }
}

void Chip::write_block(uint32_t bar, uint64_t offset, std::span<const std::byte> from) {
  if (bar == kMemoryBar) {
    uint64_t unused = 0;
    if (meets_fault(&unused) || !config_.decodes_memory() || offset + from.size() > bar_bytes(bar))
      return;
    ++counts_.memory_writes;
    counts_.memory_written_bytes += from.size();
    note_access(offset, from.size(), true);
    vram_.host_write(offset, from);
    return;
  }
  for (size_t i = 0; i + 4 <= from.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, &from[i], 4);
    write(bar, offset + i, 4, word);
  }
}

void Chip::note_access(uint64_t offset, uint64_t bytes, bool is_write) {
  constexpr uint64_t kPage = 4096;
  if (bytes == 0) return;
  const std::lock_guard lock(host_accesses_mutex_);
  ++host_accesses_[{offset / kPage, (offset + bytes - 1) / kPage, is_write}];
}

Chip::TableAccesses Chip::host_table_accesses() {
  TableAccesses out;
  const std::scoped_lock lock(host_accesses_mutex_, fabric_.table_mutex);
  for (const auto& [access, count] : host_accesses_) {
    const auto table = fabric_.table_pages.lower_bound(access.first);
    if (table == fabric_.table_pages.end() || *table > access.last) continue;
    (access.is_write ? out.writes : out.reads) += count;
  }
  return out;
}

void Chip::ring_half(uint64_t offset, uint32_t value) {
  uint64_t known =
      std::atomic_ref<uint64_t>(doorbells_[offset / 8]).load(std::memory_order_acquire);
  if (known == UINT64_MAX) known = 0;  // what an AQL queue has there until it is rung
  if (offset % 8 == 0)
    ring(offset, (known & ~uint64_t{UINT32_MAX}) | value);
  else
    ring(offset - 4, (known & UINT32_MAX) | uint64_t{value} << 32);
}

void Chip::ring(uint64_t offset, uint64_t value) {
  ++counts_.doorbells;
  const std::lock_guard lock(mutex_);
  if (is_resetting()) return;
  const auto dword = static_cast<uint32_t>(offset / 4);
  // nbio_v4_3.c: AWID 3 of the command processor, 0xe of the copy engines.
  constexpr uint32_t kCp = 3, kSdma = 0xe;
  if (!nbio_.has_doorbells())
    return violations_.add(fmt::format("doorbell at {:#x} before RCC_DOORBELL_APER_EN", offset));
  const bool is_gfx = gfx_.has(dword), is_sdma = !is_gfx && sdma_.has(dword);
  if (!is_gfx && !is_sdma)
    return violations_.add(fmt::format("doorbell at {:#x} that no queue has", offset));
  if (row_.generation == 9) {
    const std::string missing = is_gfx ? nbio_.missing_for_chiplets()
                                       : nbio_.missing_for_copies(dword, sdma_.engine_of(dword));
    if (!missing.empty())
      return violations_.add(fmt::format("doorbell at {:#x}: {} holds it back", offset, missing));
  } else if (!nbio_.reaches(dword, is_gfx ? kCp : kSdma))
    return violations_.add(
        fmt::format("doorbell at {:#x}: no S2A_DOORBELL_ENTRY lets it through to {}", offset,
                    is_gfx ? "the command processor" : "the copy engines"));
  if (!(is_gfx ? gfx_.ring(dword, value) : sdma_.ring(dword, value))) return;
  std::atomic_ref<uint64_t>(doorbells_[offset / 8]).store(value, std::memory_order_release);
}

uint32_t Chip::read_config(uint32_t offset, uint32_t width) {
  uint64_t value = 0;
  ++counts_.config;
  if (meets_fault(&value)) return static_cast<uint32_t>(value & ones(width));
  const bool is_wrong =
      options_.fault == BusFault::kWrongAnswer && accesses_ == options_.fault_access;
  const std::lock_guard lock(mutex_);
  value = config_.read(offset, width);
  return static_cast<uint32_t>((is_wrong ? ~value : value) & ones(width));
}

void Chip::write_config(uint32_t offset, uint32_t width, uint32_t value) {
  uint64_t unused = 0;
  ++counts_.config;
  if (meets_fault(&unused)) return;
  ConfigSpace::Effect effect;
  {
    const std::lock_guard lock(mutex_);
    effect = config_.write(offset, width, value);
    is_bus_master_ = config_.is_bus_master();
    has_msi_ = config_.has_msi();
  }
  if (effect == ConfigSpace::Effect::kFunctionReset) function_reset();
}

bool Chip::resize_memory_bar(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return config_.resize_bar(bytes);
}

std::vector<std::string> Chip::deaths() const {
  const std::lock_guard lock(deaths_mutex_);
  return deaths_;
}

/// On a queue's thread: no register lock here.
void Chip::died(const char* engine, const Death& death) {
  {
    const std::lock_guard lock(deaths_mutex_);
    deaths_.push_back(fmt::format("{} queue: {}{}", engine, death.text,
                                  death.kind == Death::Kind::kMemory
                                      ? fmt::format(" at {:#x}", death.address)
                                      : std::string()));
  }
  switch (death.kind) {
    case Death::Kind::kMemory: {
      // gfxhub_v3_0.c, gfxhub_client_ids[].
      constexpr uint32_t kCpc = 5, kTcp = 8, kSdma0 = 13;
      const bool is_copy = std::string_view(engine) == "copy";
      // MI300X: copy engines are the multimedia hub's.
      Hub& hub = is_copy && row_.generation == 9 ? mm_hub_ : gc_hub_;
      hub.report_fault(death.address, death.is_write,
                       death.is_of_wave ? kTcp
                       : is_copy        ? kSdma0
                                        : kCpc);
      break;
    }
    case Death::Kind::kBadPacket:
      interrupts_.post({ih_client::kGrbmCp, ih_source::kCpBadOpcode, 0, 0, 0, {}});
      break;
    case Death::Kind::kException: {
      // kfd_int_process_v11.c, SQ_INTERRUPT_WORD_ERROR: encoding 2 in word 1 bits 7:6, the kind of
      // error in word 0 bits 24:21.
      const uint32_t kind = death.wave_error < 0 ? 0 : static_cast<uint32_t>(death.wave_error);
      // kfd_int_process_v9.c: encoding in word 0 bits 27:26, bits 23:20 of a word made of both.
      if (row_.generation == 9)
        interrupts_.post({ih_client::kGfx, ih_source::kSq, 0, 0, 0, {2u << 26, kind << 4, 0, 0}});
      else
        interrupts_.post({ih_client::kGfx, ih_source::kSq, 0, 0, 0, {kind << 21, 2u << 6, 0, 0}});
      break;
    }
    case Death::Kind::kReset:
    case Death::Kind::kCancelled: break;
  }
}

}  // namespace bm::sim::amd
