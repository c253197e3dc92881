#include "tests/sim/amd/chip/gfx.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

// v11_structs.h and v12_structs.h, struct v11_compute_mqd: header first, the queue's registers from
// dword 0x80 on in the order of their addresses.
constexpr uint32_t kMqdHeader = 0xc0310800, kMqdRegisters = 0x80;
constexpr uint32_t kCpBusy = 0x80000000;  // CP_STAT.CP_BUSY
constexpr uint32_t kComputePipes = 1;     // MEID of MEC 1
// What the descriptor and the registers must agree about: what gfx_v11_0_kiq_init_register()
// copies.
constexpr const char* kCopied[] = {"CP_MQD_BASE_ADDR",
                                   "CP_MQD_BASE_ADDR_HI",
                                   "CP_HQD_VMID",
                                   "CP_HQD_PERSISTENT_STATE",
                                   "CP_HQD_PQ_BASE",
                                   "CP_HQD_PQ_BASE_HI",
                                   "CP_HQD_PQ_RPTR_REPORT_ADDR",
                                   "CP_HQD_PQ_RPTR_REPORT_ADDR_HI",
                                   "CP_HQD_PQ_WPTR_POLL_ADDR",
                                   "CP_HQD_PQ_WPTR_POLL_ADDR_HI",
                                   "CP_HQD_PQ_DOORBELL_CONTROL",
                                   "CP_HQD_PQ_CONTROL",
                                   "CP_MQD_CONTROL",
                                   "CP_HQD_EOP_BASE_ADDR",
                                   "CP_HQD_EOP_BASE_ADDR_HI",
                                   "CP_HQD_EOP_CONTROL"};
constexpr uint32_t kCompute = 0, kAql = 2;
// v9_structs.h, struct v9_mqd: compute_current_logic_xcc_id, compute_tg_chunk_size,
// cp_mqd_stride_size.
constexpr uint32_t kLogicalXcc = 39, kChunk = 41, kStride = 226;

}  // namespace

Gfx::Gfx(EngineRoom& room, uint32_t xcc)
    : room_(room), xcc_(xcc), is_f32_(room.bus.row().generation == 9) {
  RegisterBus& bus = room.bus;
  const auto field = [&](const char* name, std::string_view rest) {
    return bus.field(Ip::kGc, name, rest);
  };
  select_ = &bus.declare(Ip::kGc, "GRBM_GFX_CNTL");
  pipe_ = field("GRBM_GFX_CNTL", "PIPEID");
  me_ = field("GRBM_GFX_CNTL", "MEID");
  vmid_ = field("GRBM_GFX_CNTL", "VMID");
  queue_ = field("GRBM_GFX_CNTL", "QUEUEID");
  const char* const control = is_f32_ ? "CP_MEC_CNTL" : "CP_MEC_RS64_CNTL";
  halt_ = field(control, is_f32_ ? "MEC_ME1_HALT" : "MEC_HALT");
  for (uint32_t i = 0; i < kPipes; ++i) {
    pipe_reset_[i] = field(control, fmt::format("MEC_{}PIPE{}_RESET", is_f32_ ? "ME1_" : "", i));
    if (!is_f32_) pipe_active_[i] = field(control, fmt::format("MEC_PIPE{}_ACTIVE", i));
  }
  if (!is_f32_) complete_ = field("RLC_RLCS_BOOTLOAD_STATUS", "BOOTLOAD_COMPLETE");
  offset_ = field("CP_HQD_PQ_DOORBELL_CONTROL", "DOORBELL_OFFSET");
  enable_ = field("CP_HQD_PQ_DOORBELL_CONTROL", "DOORBELL_EN");
  size_ = field("CP_HQD_PQ_CONTROL", "QUEUE_SIZE");
  command_ = field("RLC_SAFE_MODE", "CMD");
  cp_stat_ = &bus.declare(Ip::kGc, "CP_STAT", {.reset = kCpBusy, .is_read_only = true});
  bootload_ = bus.declare_if_there(Ip::kGc, "RLC_RLCS_BOOTLOAD_STATUS", {.is_read_only = true});
  range_low_ = &bus.declare(Ip::kGc, "CP_MEC_DOORBELL_RANGE_LOWER");
  range_high_ = &bus.declare(Ip::kGc, "CP_MEC_DOORBELL_RANGE_UPPER");
  mec_control_ = &bus.declare(Ip::kGc, control,
                              {.reset = halt_.mask | (is_f32_ ? pipe_reset_[0].mask : 0),
                               .write = [this](uint32_t value) { write_mec_control(value); }});
  mec_state_ = *mec_control_;
  const auto banked = [&](const char* name, std::array<uint32_t, 16>& values) {
    bus.declare(Ip::kGc, name,
                {.read = [this, &values] { return values[vmid_.of(*select_)]; },
                 .write = [this, &values](uint32_t value) { values[vmid_.of(*select_)] = value; }});
  };
  banked("SH_MEM_CONFIG", sh_mem_config_);
  banked("SH_MEM_BASES", sh_mem_bases_);
  // The command bit goes away when it is done.
  safe_mode_ =
      &bus.declare(Ip::kGc, "RLC_SAFE_MODE",
                   {.write = [this](uint32_t value) { *safe_mode_ = value & ~command_.mask; }});
  bus.declare(Ip::kGc, "GRBM_SOFT_RESET", {.write = [this](uint32_t value) { soft_reset(value); }});
  bus.declare(Ip::kGc, "SPI_COMPUTE_QUEUE_RESET", {.write = [this](uint32_t) {
                if (selected() == nullptr)
                  violation("SPI_COMPUTE_QUEUE_RESET with no compute pipe selected");
              }});
  for (uint32_t i = 0; i < kPipes; ++i) {
    const std::string name = fmt::format("CP_ME1_PIPE{}_INT_CNTL", i);
    // gfx12 has two compute pipes: the others' registers have no fields.
    if (!find_field(bus.row().ip(Ip::kGc).header, name, "TIME_STAMP_INT_ENABLE")) continue;
    time_stamp_ = field(name.c_str(), "TIME_STAMP_INT_ENABLE");
    opcode_error_ = field(name.c_str(), "OPCODE_ERROR_INT_ENABLE");
    std::atomic<uint32_t>& state = pipe_interrupts_[i];
    bus.declare(Ip::kGc, name,
                {.read = [&state] { return state.load(); },
                 .write = [&state](uint32_t value) { state = value; }});
  }
  declare_window();
  if (!is_f32_) declare_start();
  declare_waves();
  for (const char* const prefix : {"CP_", "GRBM_", "RLC_", "SCRATCH_", "GB_", "TCP_", "SH_"})
    bus.declare_all(Ip::kGc, prefix);
}

Gfx::~Gfx() { stop_all(); }

size_t Gfx::active_queues() const {
  size_t count = 0;
  for (const Pipe& pipe : pipes_)
    for (const Hqd& hqd : pipe.queues) count += hqd.queue != nullptr || hqd.is_served ? 1 : 0;
  return count;
}

void Gfx::declare_window() {
  const uint32_t first = *room_.bus.address_of(Ip::kGc, "CP_MQD_BASE_ADDR"),
                 last = *room_.bus.address_of(
                     Ip::kGc, is_f32_ ? "CP_HQD_AQL_DISPATCH_ID_HI" : "CP_HQD_DEQUEUE_STATUS");
  // Several names of the header share an address, and some addresses have none.
  std::map<uint32_t, std::string> names;
  for (const RegisterRow& row : registers_of(room_.bus.row().ip(Ip::kGc).header)) {
    const uint32_t address = room_.bus.base(Ip::kGc, row.segment) + row.offset;
    if (!row.name.starts_with("CP_HQD_") && !row.name.starts_with("CP_MQD_")) continue;
    if (address < first || address > last) continue;
    offsets_[std::string(row.name)] = address - first;
    names.try_emplace(address, row.name);
  }
  for (uint32_t address = first; address <= last; ++address) {
    const uint32_t index = address - first;
    const auto name = names.find(address);
    const Behavior behavior = {.read = [this, index] { return read_window(index); },
                               .write = [this, index](uint32_t v) { write_window(index, v); }};
    room_.bus.declare_at(
        Ip::kGc, address,
        name == names.end() ? fmt::format("HQD window + {:#x}", index) : name->second,
        name == names.end() ? "v11_structs.h, reserved dwords"
                            : std::string(room_.bus.row().ip(Ip::kGc).header),
        behavior);
  }
}

void Gfx::declare_start() {
  const auto half = [this](uint32_t shift) {
    return Behavior{.read =
                        [this, shift] {
                          const uint64_t start = pipes_[pipe_.of(*select_)].start;
                          return static_cast<uint32_t>(start >> shift);
                        },
                    .write =
                        [this, shift](uint32_t value) {
                          if (me_.of(*select_) != kComputePipes)
                            violation("CP_MEC_RS64_PRGRM_CNTR_START with no compute pipe selected");
                          uint64_t& start = pipes_[pipe_.of(*select_)].start;
                          start = (start & ~(uint64_t{UINT32_MAX} << shift)) | uint64_t{value}
                                                                                   << shift;
                        }};
  };
  room_.bus.declare(Ip::kGc, "CP_MEC_RS64_PRGRM_CNTR_START", half(0));
  room_.bus.declare(Ip::kGc, "CP_MEC_RS64_PRGRM_CNTR_START_HI", half(32));
}

Gfx::Hqd* Gfx::selected() {
  if (me_.of(*select_) != kComputePipes) return nullptr;
  return &pipes_[pipe_.of(*select_)].queues[queue_.of(*select_)];
}

/// What the queue's engine moves is where the engine is.
uint32_t Gfx::read_window(uint32_t index) {
  Hqd* const hqd = selected();
  if (hqd == nullptr) return 0;
  if (hqd->queue) {
    const Queue& queue = *hqd->queue;
    const uint64_t ring_dwords = uint64_t{2} << size_.of(word(*hqd, "CP_HQD_PQ_CONTROL"));
    const uint64_t unit = (word(*hqd, "CP_HQD_AQL_CONTROL") & 1) != 0 ? 16 : 1;
    if (index == offsets_.at("CP_HQD_PQ_RPTR"))
      return static_cast<uint32_t>(queue.position() * unit % ring_dwords);
    if (index == offsets_.at("CP_HQD_IB_BASE_ADDR")) return static_cast<uint32_t>(queue.buffer());
    if (index == offsets_.at("CP_HQD_IB_BASE_ADDR_HI"))
      return static_cast<uint32_t>(queue.buffer() >> 32);
    if (index == offsets_.at("CP_HQD_IB_RPTR")) return queue.buffer_position();
  }
  return hqd->words[index];
}

uint32_t& Gfx::word(Hqd& hqd, const char* name) { return hqd.words[offsets_.at(name)]; }

void Gfx::write_window(uint32_t index, uint32_t value) {
  Hqd* const hqd = selected();
  if (hqd == nullptr)
    return violation(fmt::format("queue register {:#x} with no compute pipe selected", index));
  if (index == offsets_.at("CP_HQD_DEQUEUE_REQUEST")) {
    hqd->words[index] = value;
    // 1 drains, 2 resets the waves; either way the queue goes, unless the processor hangs.
    const bool obeys = !room_.options.hangs_mec;
    if ((value & 7) != 0 && (hqd->queue || hqd->is_served) && obeys) deactivate(*hqd);
    return;
  }
  if (index != offsets_.at("CP_HQD_ACTIVE")) {
    hqd->words[index] = value;
    return;
  }
  if ((value & 1) != 0 && !hqd->queue && !hqd->is_served)
    activate(*hqd, pipe_.of(*select_), queue_.of(*select_));
  else if ((value & 1) == 0 && (hqd->queue || hqd->is_served))
    deactivate(*hqd);
  hqd->words[index] = value & 1;
}

void Gfx::write_mec_control(uint32_t value) {
  if (pipe_reset_[0].of(value) != 0 && room_.options.mec_cure == ChipOptions::Cure::kEngineReset)
    room_.options.hangs_mec = false;
  for (uint32_t i = 0; i < kPipes; ++i) {
    const bool was_reset = pipe_reset_[i].of(*mec_control_) != 0,
               is_reset = pipe_reset_[i].of(value) != 0;
    if (is_reset) {
      pipes_[i].has_started = false;
      continue;
    }
    if (!was_reset) continue;
    Pipe& pipe = pipes_[i];
    const uint64_t wanted = room_.options.mec_start;
    if (!room_.psp.is_autoload_done())
      violation(fmt::format("MEC pipe {} leaves reset before autoload", i));
    else if (is_f32_)
      pipe.has_started = true;
    else if (pipe.start == 0 || (wanted != 0 && pipe.start != wanted))
      // Pipes that nobody uses may start nowhere.
      pipe.has_started = false;
    else
      pipe.has_started = true;
  }
  *mec_control_ = value;
  mec_state_ = value;
}

bool Gfx::is_running(uint32_t pipe) const {
  const uint32_t state = mec_state_;
  return halt_.of(state) == 0 && (is_f32_ || pipe_active_[pipe].of(state) != 0) &&
         pipe_reset_[pipe].of(state) == 0;
}

void Gfx::activate(Hqd& hqd, uint32_t pipe_index, uint32_t queue_index) {
  const auto get = [&](const char* name) { return word(hqd, name); };
  const auto pair = [&](const char* lo, const char* hi) {
    return uint64_t{get(hi)} << 32 | get(lo);
  };
  const std::string who = fmt::format("queue {} of pipe {}", queue_index, pipe_index);
  if (!room_.psp.is_autoload_done()) return violation(who + " is made active before autoload");
  if (!pipes_[pipe_index].has_started)
    return violation(
        fmt::format("{} is made active on a pipe that was not started from {:#x} but {:#x}", who,
                    room_.options.mec_start, pipes_[pipe_index].start));
  if (get("CP_HQD_VMID") != 0) return violation(who + " has a VMID that is not modelled");
  if (pair("CP_HQD_EOP_BASE_ADDR", "CP_HQD_EOP_BASE_ADDR_HI") == 0)
    violation(who + " has no EOP buffer");
  if (sh_mem_config_[0] == 0) violation(who + ": SH_MEM_CONFIG of VMID 0 was never set");
  const bool is_aql = (get("CP_HQD_AQL_CONTROL") & 1) != 0;
  const uint32_t xccs = room_.bus.row().xccs();
  if (xccs > 1 && is_aql && room_.psp.partitions() != 1)
    violation(who + " of several chiplets before SPATIAL_PART 1");
  hqd.is_checked = false;
  if (xcc_ != 0) {
    if (!is_aql) violation(fmt::format("{}: a PM4 queue on chiplet {}", who, xcc_));
    hqd.is_served = true;
    return;
  }
  QueueSetup setup;
  setup.xccs = xccs;
  setup.type = is_aql ? kAql : kCompute;
  setup.generation = room_.bus.row().generation;
  setup.ring = (pair("CP_HQD_PQ_BASE", "CP_HQD_PQ_BASE_HI") & 0xff'ffff'ffff) << 8;
  setup.ring_bytes = uint64_t{8} << size_.of(get("CP_HQD_PQ_CONTROL"));
  setup.read_pointer =
      pair("CP_HQD_PQ_RPTR_REPORT_ADDR", "CP_HQD_PQ_RPTR_REPORT_ADDR_HI") & ~uint64_t{3};
  setup.write_pointer =
      pair("CP_HQD_PQ_WPTR_POLL_ADDR", "CP_HQD_PQ_WPTR_POLL_ADDR_HI") & ~uint64_t{3};
  setup.first = pair("CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_WPTR_HI");
  uint64_t* const doorbell = room_.doorbells + offset_.of(get("CP_HQD_PQ_DOORBELL_CONTROL")) / 2;
  *doorbell = is_aql ? setup.first - 1 : setup.first;
  setup.doorbell = doorbell;
  setup.is_halted = [this, pipe_index] {
    return !is_running(pipe_index) || room_.options.hangs_mec;
  };
  setup.write_and_wait = [this](uint32_t request, uint32_t answer, uint32_t value) {
    return room_.nbio.write_and_wait(request, answer, value);
  };
  setup.interrupt = [this, pipe_index, queue_index](uint32_t context) {
    ++room_.state.interrupts;
    if (time_stamp_.of(pipe_interrupts_[pipe_index]) == 0) return;
    // gfx_v11_0_eop_irq(): me 3:2, pipe 1:0, queue 6:4.
    room_.interrupts.post({ih_client::kGrbmCp,
                           ih_source::kCpEop,
                           static_cast<uint8_t>(kComputePipes << 2 | pipe_index | queue_index << 4),
                           0,
                           0,
                           {context, 0, 0, 0}});
  };
  setup.die = [this, pipe_index](const Death& death) {
    Death told = death;
    if (death.kind == Death::Kind::kBadPacket &&
        opcode_error_.of(pipe_interrupts_[pipe_index]) == 0)
      told.kind = Death::Kind::kCancelled;
    room_.died("compute", told);
  };
  hqd.is_checked = false;
  hqd.queue = std::make_unique<Queue>(room_.hub, room_.state, std::move(setup));
}

void Gfx::deactivate(Hqd& hqd) {
  hqd.is_served = false;
  hqd.queue.reset();
  word(hqd, "CP_HQD_ACTIVE") = 0;
  word(hqd, "CP_HQD_DEQUEUE_REQUEST") = 0;
}

bool Gfx::check_descriptor(Hqd& hqd) {
  const uint64_t address =
      uint64_t{word(hqd, "CP_MQD_BASE_ADDR_HI")} << 32 | (word(hqd, "CP_MQD_BASE_ADDR") & ~3u);
  std::array<uint32_t, 0xe4> mqd{};
  if (!room_.hub.read(address, std::as_writable_bytes(std::span(mqd)))) {
    violation(fmt::format("the queue descriptor at {:#x} is nowhere", address));
    return false;
  }
  if (mqd[0] != kMqdHeader) {
    violation(fmt::format("the queue descriptor at {:#x} starts with {:#x}, not {:#x}", address,
                          mqd[0], kMqdHeader));
    return false;
  }
  if (const uint32_t xccs = room_.bus.row().xccs(); xccs > 1) {
    const bool is_aql = (word(hqd, "CP_HQD_AQL_CONTROL") & 1) != 0;
    if (mqd[kStride] == 0 || (is_aql && (mqd[kLogicalXcc] != xcc_ || mqd[kChunk] != 1)))
      violation(
          fmt::format("chiplet {}: the descriptor is of logical XCC {}, chunk size {}, "
                      "distance {:#x}",
                      xcc_, mqd[kLogicalXcc], mqd[kChunk], mqd[kStride]));
  }
  for (const char* const name : kCopied) {
    const uint32_t there = mqd[kMqdRegisters + offsets_.at(name)], here = word(hqd, name);
    if (there != here)
      violation(fmt::format("{} is {:#x}, and {:#x} in the queue descriptor", name, here, there));
  }
  return true;
}

/// The first doorbell reaches all chiplets.
bool Gfx::check_chiplets(uint32_t pipe, uint32_t queue) {
  Hqd& mine = pipes_[pipe].queues[queue];
  if ((word(mine, "CP_HQD_AQL_CONTROL") & 1) == 0) return true;
  for (Gfx* const other : chiplets_) {
    if (other == this) continue;
    Hqd& theirs = other->pipes_[pipe].queues[queue];
    const auto differs = [&](const char* name) { return word(mine, name) != word(theirs, name); };
    if (!theirs.is_served || !other->is_running(pipe) || differs("CP_HQD_PQ_BASE") ||
        differs("CP_HQD_PQ_BASE_HI") || differs("CP_HQD_AQL_CONTROL") ||
        differs("CP_HQD_PQ_DOORBELL_CONTROL")) {
      violation(fmt::format("queue {} of pipe {} is not chiplet {}'s", queue, pipe, other->xcc_));
      return false;
    }
    if (other->room_.hub.root() != room_.hub.root())
      violation(fmt::format("chiplet {} has other page tables than the first", other->xcc_));
    if (!other->check_descriptor(theirs)) return false;
  }
  return true;
}

bool Gfx::has(uint32_t dword) {
  for (Pipe& pipe : pipes_)
    for (Hqd& hqd : pipe.queues)
      if (hqd.queue && offset_.of(word(hqd, "CP_HQD_PQ_DOORBELL_CONTROL")) == dword) return true;
  return false;
}

bool Gfx::ring(uint32_t dword, uint64_t value) {
  for (uint32_t p = 0; p < kPipes; ++p)
    for (uint32_t q = 0; q < kQueues; ++q) {
      Hqd& hqd = pipes_[p].queues[q];
      const uint32_t control = word(hqd, "CP_HQD_PQ_DOORBELL_CONTROL");
      if (!hqd.queue || offset_.of(control) != dword) continue;
      bool arrives = true;
      if (enable_.of(control) == 0) {
        violation(fmt::format("doorbell {:#x} of a queue that has it off", dword));
        arrives = false;
      }
      const uint32_t at = dword * 4;
      if (at < *range_low_ || at > *range_high_) {
        violation(
            fmt::format("doorbell at byte {:#x} is outside CP_MEC_DOORBELL_RANGE {:#x} to {:#x}",
                        at, *range_low_, *range_high_));
        arrives = false;
      }
      if (!arrives) return false;
      if (!is_running(p))
        violation(fmt::format("a doorbell rings while MEC pipe {} does not run", p));
      if (!hqd.is_checked) hqd.is_checked = check_descriptor(hqd) && check_chiplets(p, q);
      // Dwords: an AQL doorbell names the last packet of 16, not the next.
      const bool is_aql = (word(hqd, "CP_HQD_AQL_CONTROL") & 1) != 0;
      const uint64_t write_pointer = is_aql ? (value + 1) * 16 : value;
      word(hqd, "CP_HQD_PQ_WPTR_LO") = static_cast<uint32_t>(write_pointer);
      word(hqd, "CP_HQD_PQ_WPTR_HI") = static_cast<uint32_t>(write_pointer >> 32);
      return true;
    }
  return false;
}

void Gfx::soft_reset(uint32_t value) {
  const auto has = [&](const char* name) {
    return room_.bus.field(Ip::kGc, "GRBM_SOFT_RESET", name).of(value) != 0;
  };
  if (has("SOFT_RESET_CP") || has("SOFT_RESET_CPC") || has("SOFT_RESET_GFX")) {
    if (room_.options.mec_cure == ChipOptions::Cure::kEngineReset) room_.options.hangs_mec = false;
    stop_all();
    for (Pipe& pipe : pipes_) pipe.has_started = false;
    for (auto& state : pipe_interrupts_) state = 0;
  }
  for (uint32_t i = 0; i < 2; ++i)
    if (!is_f32_ && has(i == 0 ? "SOFT_RESET_SDMA0" : "SOFT_RESET_SDMA1") && soft_reset_sdma_)
      soft_reset_sdma_(i);
}

void Gfx::stop_all() {
  for (Pipe& pipe : pipes_)
    for (Hqd& hqd : pipe.queues) {
      hqd.queue.reset();
      hqd.is_served = false;
      hqd.words.fill(0);
    }
}

void Gfx::boot() {
  *cp_stat_ = 0;
  if (bootload_ != nullptr) *bootload_ = room_.options.hides_bootload ? 2 : complete_.mask | 1;
}

void Gfx::reset() {
  stop_all();
  for (Pipe& pipe : pipes_) {
    pipe.start = 0;
    pipe.has_started = false;
  }
  for (auto& state : pipe_interrupts_) state = 0;
  sh_mem_config_.fill(0);
  sh_mem_bases_.fill(0);
  mec_state_ = halt_.mask;
}

}  // namespace bm::sim::amd
