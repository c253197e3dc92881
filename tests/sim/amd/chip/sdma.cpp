#include "tests/sim/amd/chip/sdma.h"

#include <array>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {
constexpr uint32_t kSdma = 1;  // QueueSetup::type
}

Sdma::Sdma(EngineRoom& room)
    : room_(room),
      ip_(room.bus.row().copy_block()),
      count_(is_instance() ? room.bus.row().ip(Ip::kSdma).instances : 2),
      engines_(count_),
      rings_(is_instance() ? count_ : 2 * count_) {
  for (uint32_t i = 0; i < engines_.size(); ++i) declare_engine(i);
  for (uint32_t i = 0; i < rings_.size(); ++i) declare_queue(i);
  for (uint32_t i = 0; i < (is_instance() ? count_ : 1); ++i) {
    if (is_instance()) room.bus.select_instance(ip_, i);
    room.bus.declare_all(ip_, "SDMA");
  }
  if (is_instance()) room.bus.select_instance(ip_, 0);
}

std::string Sdma::prefix(uint32_t engine) const {
  return is_instance() ? "SDMA_" : fmt::format("SDMA{}_", engine);
}

Sdma::~Sdma() { reset(); }

void Sdma::declare_engine(uint32_t index) {
  RegisterBus& bus = room_.bus;
  Engine& e = engines_[index];
  if (is_instance()) bus.select_instance(ip_, index);
  const std::string prefix = this->prefix(index);
  const std::string halt = prefix + (bus.row().sdma.major >= 7 ? "MCU_CNTL" : "F32_CNTL");
  halt_ = bus.field(ip_, halt, "HALT");
  trap_ = bus.field(ip_, prefix + "CNTL", "TRAP_ENABLE");
  e.halt = &bus.declare(ip_, halt, {.reset = halt_.mask, .write = [this, &e](uint32_t value) {
                                      *e.halt = value;
                                      e.is_halted = halt_.of(value) != 0;
                                    }});
  e.control = &bus.declare(ip_, prefix + "CNTL", {.write = [this, &e](uint32_t value) {
                             *e.control = value;
                             e.traps = trap_.of(value) != 0;
                           }});
}

void Sdma::declare_queue(uint32_t index) {
  RegisterBus& bus = room_.bus;
  Ring& e = rings_[index];
  if (is_instance()) bus.select_instance(ip_, index);
  e.engine = &engines_[index % count_];
  const std::string queue =
      prefix(index % count_) +
      (is_instance() ? std::string("GFX_") : fmt::format("QUEUE{}_", index / count_));
  enable_ = bus.field(ip_, queue + "RB_CNTL", "RB_ENABLE");
  size_ = bus.field(ip_, queue + "RB_CNTL", "RB_SIZE");
  writeback_ = bus.field(ip_, queue + "RB_CNTL", "RPTR_WRITEBACK_ENABLE");
  vmid_ = bus.field(ip_, queue + "RB_CNTL", "RB_VMID");
  doorbell_enable_ = bus.field(ip_, queue + "DOORBELL", "ENABLE");
  doorbell_offset_ = bus.field(ip_, queue + "DOORBELL_OFFSET", "OFFSET");
  ib_enable_ = bus.field(ip_, queue + "IB_CNTL", "IB_ENABLE");
  const auto plain = [&](const char* rest) { return &bus.declare(ip_, queue + rest); };
  e.base = plain("RB_BASE");
  e.base_hi = plain("RB_BASE_HI");
  // Where the engine is while it has a queue; before, what was written.
  const auto live = [&](const char* rest, uint32_t* Ring::* place, auto read) {
    e.*place = &bus.declare(ip_, queue + rest, {.read = [&e, place, read] {
                              return e.queue ? static_cast<uint32_t>(read(*e.queue)) : *(e.*place);
                            }});
  };
  live("RB_RPTR", &Ring::rptr, [](const Queue& q) { return q.position(); });
  live("RB_RPTR_HI", &Ring::rptr_hi, [](const Queue& q) { return q.position() >> 32; });
  live("IB_BASE_LO", &Ring::ib_base, [](const Queue& q) { return q.buffer(); });
  live("IB_BASE_HI", &Ring::ib_base_hi, [](const Queue& q) { return q.buffer() >> 32; });
  live("IB_SIZE", &Ring::ib_size,
       [](const Queue& q) { return q.buffer() == 0 ? 0 : q.buffer_dwords(); });
  live("IB_RPTR", &Ring::ib_rptr, [](const Queue& q) { return q.buffer_position() * 4; });
  e.rptr_address = plain("RB_RPTR_ADDR_LO");
  e.rptr_address_hi = plain("RB_RPTR_ADDR_HI");
  e.poll = plain("RB_WPTR_POLL_ADDR_LO");
  e.poll_hi = plain("RB_WPTR_POLL_ADDR_HI");
  e.wptr = plain("RB_WPTR");
  e.wptr_hi = plain("RB_WPTR_HI");
  e.doorbell = plain("DOORBELL");
  e.doorbell_offset = plain("DOORBELL_OFFSET");
  // gc_10_1_0_default.h, mmSDMA0_RLC0_IB_CNTL_DEFAULT: SWITCH_INSIDE_IB alone.
  e.ib_control =
      &bus.declare(ip_, queue + "IB_CNTL", {.reset = 0x100, .write = [this, &e](uint32_t value) {
                                              *e.ib_control = value;
                                              e.runs_buffers = ib_enable_.of(value) != 0;
                                            }});
  e.rb_control = &bus.declare(ip_, queue + "RB_CNTL", {.write = [this, &e, index](uint32_t value) {
                                *e.rb_control = value;
                                if (enable_.of(value) != 0 && !e.queue)
                                  start(index);
                                else if (enable_.of(value) == 0 && e.queue)
                                  stop(e);
                              }});
}

size_t Sdma::active_queues() const {
  size_t count = 0;
  for (const Ring& ring : rings_) count += ring.queue != nullptr ? 1 : 0;
  return count;
}

void Sdma::start(uint32_t index) {
  Ring& e = rings_[index];
  const auto pair = [](const uint32_t* lo, const uint32_t* hi) {
    return uint64_t{*hi} << 32 | *lo;
  };
  if (!room_.psp.is_autoload_done())
    return violation(fmt::format("queue {}: a ring before autoload", index));
  if (vmid_.of(*e.rb_control) != 0)
    return violation(fmt::format("queue {}: a VMID that is not modelled", index));
  QueueSetup setup;
  setup.type = kSdma;
  setup.generation = room_.bus.row().generation;
  setup.ring = pair(e.base, e.base_hi) << 8;
  setup.ring_bytes = uint64_t{4} << size_.of(*e.rb_control);
  if (writeback_.of(*e.rb_control) != 0)
    setup.read_pointer = pair(e.rptr_address, e.rptr_address_hi) & ~uint64_t{3};
  setup.write_pointer = pair(e.poll, e.poll_hi) & ~uint64_t{3};
  setup.first = pair(e.rptr, e.rptr_hi);
  uint64_t* const doorbell = room_.doorbells + doorbell_offset_.of(*e.doorbell_offset) / 2;
  *doorbell = pair(e.wptr, e.wptr_hi);
  setup.doorbell = doorbell;
  setup.is_halted = [this, &e] { return e.engine->is_halted || room_.options.hangs_sdma; };
  setup.runs_buffers = [&e] { return e.runs_buffers.load(); };
  setup.interrupt = [this, &e, index](uint32_t context) {
    if (!e.engine->traps) return;
    ++room_.state.interrupts;
    // soc15_ih_clientid.h, SOC15_IH_CLIENTID_SDMA0 to SDMA3; irqsrcs_sdma0_4_0.h, SDMA_TRAP.
    constexpr std::array<uint8_t, 4> kClients = {0x08, 0x09, 0x01, 0x04};
    if (is_instance())
      return room_.interrupts.post({kClients[index % 4], 224, 0, 0, 0, {context, 0, 0, 0}});
    room_.interrupts.post({ih_client::kGfx, ih_source::kSdmaTrap, 0, 0, 0, {context, 0, 0, 0}});
  };
  setup.die = [this](const Death& death) { room_.died("copy", death); };
  e.queue = std::make_unique<Queue>(is_instance() ? room_.copy_hub : room_.hub, room_.state,
                                    std::move(setup));
}

/// A queue that is off shows how far it was read.
void Sdma::stop(Ring& ring) {
  if (!ring.queue) return;
  const uint64_t position = ring.queue->position();
  ring.queue.reset();
  *ring.rptr = static_cast<uint32_t>(position);
  *ring.rptr_hi = static_cast<uint32_t>(position >> 32);
}

bool Sdma::has(uint32_t dword) const {
  for (const Ring& e : rings_)
    if (e.queue && doorbell_offset_.of(*e.doorbell_offset) == dword) return true;
  return false;
}

uint32_t Sdma::engine_of(uint32_t dword) const {
  for (uint32_t i = 0; i < rings_.size(); ++i)
    if (rings_[i].queue && doorbell_offset_.of(*rings_[i].doorbell_offset) == dword)
      return i % count_;
  return 0;
}

bool Sdma::ring(uint32_t dword, uint64_t value) {
  for (Ring& e : rings_) {
    if (!e.queue || doorbell_offset_.of(*e.doorbell_offset) != dword) continue;
    if (e.engine->is_halted) violation("a doorbell rings while the engine is halted");
    if (is_instance() &&
        room_.bus.field(ip_, "SDMA_CNTL", "UTC_L1_ENABLE").of(*e.engine->control) == 0)
      violation("a doorbell rings without UTC_L1_ENABLE");
    if (doorbell_enable_.of(*e.doorbell) == 0) {
      violation(fmt::format("doorbell {:#x} of a queue that has it off", dword));
      return false;
    }
    *e.wptr = static_cast<uint32_t>(value);
    *e.wptr_hi = static_cast<uint32_t>(value >> 32);
    return true;
  }
  return false;
}

void Sdma::soft_reset(uint32_t index) {
  if (room_.options.sdma_cure == ChipOptions::Cure::kEngineReset) room_.options.hangs_sdma = false;
  for (uint32_t i = index; i < rings_.size(); i += count_) stop(rings_[i]);
}

bool Sdma::reset_engines(uint32_t engines) {
  if (engines == 0 || engines >> count_ != 0) return false;
  for (uint32_t i = 0; i < count_; ++i)
    if ((engines >> i & 1) != 0 && rings_[i].queue) return false;
  for (uint32_t i = 0; i < count_; ++i) {
    if ((engines >> i & 1) == 0) continue;
    soft_reset(i);
    Engine& engine = engines_[i];
    *engine.control = 0;
    engine.traps = false;
    *engine.halt &= ~halt_.mask;
    engine.is_halted = false;
  }
  return true;
}

void Sdma::let_go() {
  for (Engine& engine : engines_) {
    *engine.halt &= ~halt_.mask;
    engine.is_halted = false;
  }
}

void Sdma::reset() {
  for (Ring& ring : rings_) {
    stop(ring);
    ring.runs_buffers = false;
  }
  for (Engine& engine : engines_) {
    engine.is_halted = true;
    engine.traps = false;
  }
}

}  // namespace bm::sim::amd
