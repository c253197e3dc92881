#include "drivers/amd/am/autopsy.h"

#include <algorithm>

#include <fmt/format.h>

#include "drivers/amd/am/compute.h"
#include "drivers/amd/am/copy_engine.h"
#include "drivers/amd/am/interrupts.h"
#include "drivers/amd/am/mqd.h"
#include "drivers/amd/aql/packets.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kReadPage = 4096;
constexpr uint64_t kMemorySize = 0xde3;  // RCC_CONFIG_MEMSIZE, before anything is discovered
constexpr uint32_t kAheadDwords = 64, kMostPackets = 24;
// Between two looks at waves: one that computes has moved, one in a loop is still there.
constexpr uint64_t kBetweenLooksUs = 2000;
// SDMA1_REG_OFFSET and SDMA1_HYP_DEC_REG_OFFSET of sdma_v6_0.c and sdma_v7_0.c.
constexpr uint32_t kCopyStride = 0x600, kCopyControlStride = 0x20;

class Examiner {
 public:
  Examiner(Bus& bus, const Card& card, const AutopsyOptions& options)
      : bus_(bus),
        card_(card),
        options_(options),
        end_us_(bus.clock().now_us() + options.limit_us) {}

  Autopsy run() {
    if (card_.chip == nullptr || bus_.probe_dword(kMemorySize) == UINT32_MAX) {
      seen_.note = "registers read as all ones";
      seen_.verdict = judge(bus_, card_, options_, seen_, {});
      return std::move(seen_);
    }
    look_at_hub(Block::kGc);
    look_at_hub(Block::kMmhub);
    if (has_time_for("registers")) look_at_registers();
    for (const uint64_t va : options_.addresses)
      if (has_time_for("page walks"))
        seen_.walks.push_back(walk_pages(bus_, Block::kGc, va, *card_.generation));
    if (has_time_for("interrupts")) look_at_interrupts();
    // A graphics core without a clock answers nothing: selecting queues and waves tells nothing.
    const uint32_t first = options_.compute_queues != 0 ? options_.compute_queues : UINT32_MAX;
    look_at_compute_queues(first, "compute queues");
    // Nobody has written down how engines that are instances are looked at.
    const bool is_known = card_.generation->copies.block == Block::kGc;
    if (!is_known) seen_.unknown = fmt::format("copy queues of {}", card_.chip->name);
    const uint32_t engines = is_known ? std::min(card_.sdma_engines, kCopyEngines) : 0;
    for (uint32_t queue = 0; queue < engines && bus_.status(); ++queue)
      if (has_time_for("copy queues")) look_at_copies(queue);
    WaveScan second;
    if (has_time_for("waves"))
      seen_.waves = scan_waves(bus_, card_, options_.waves, time_left_us() / 2);
    if (!seen_.waves.waves.empty() && has_time_for("the second look at waves")) {
      bus_.sleep_us(kBetweenLooksUs);
      second = scan_waves(bus_, card_, options_.waves, time_left_us());
    }
    look_at_compute_queues(~first, "compute queues of nobody");
    seen_.verdict = judge(bus_, card_, options_, seen_, second);
    if (seen_.verdict.cause == HangCause::kNone && !seen_.left_out.empty())
      seen_.verdict = {HangCause::kNone, "nothing found in what there was time for",
                       "bellmetal gpu autopsy takes its time"};
    if (const Status fine = bus_.status(); !fine) seen_.note = fine.error().message;
    return std::move(seen_);
  }

 private:
  uint64_t time_left_us() {
    const uint64_t now = bus_.clock().now_us();
    return now < end_us_ ? end_us_ - now : 0;
  }
  /// False: `what` is left out, and named once.
  bool has_time_for(const char* what) {
    if (time_left_us() != 0) return true;
    if (seen_.left_out.empty() || seen_.left_out.back() != what) seen_.left_out.emplace_back(what);
    return false;
  }

  void look_at_compute_queues(uint32_t which, const char* what) {
    for (uint32_t queue = 0; queue < kComputeQueues && bus_.status(); ++queue)
      if ((which >> queue & 1) != 0 && has_time_for(what)) look_at_compute(queue);
  }

  void look_at_registers() {
    const At wanted[] = {{Block::kGc, Reg::GRBM_STATUS},
                         {Block::kGc, Reg::GRBM_STATUS2},
                         {Block::kGc, Reg::CP_STAT},
                         {Block::kGc, Reg::CP_CPC_STATUS},
                         {Block::kGc, Reg::CP_CPC_STALLED_STAT1},
                         {Block::kGc, Reg::CP_MEC_RS64_CNTL},
                         {Block::kGc, Reg::RLC_RLCS_BOOTLOAD_STATUS},
                         {Block::kGc, Reg::SDMA0_STATUS_REG},
                         {Block::kGc, Reg::SCRATCH_REG7},
                         {Block::kGc, Reg::SCRATCH_REG6},
                         {Block::kPsp, Reg::SMN_C2PMSG_35},
                         {Block::kPsp, Reg::SMN_C2PMSG_64},
                         {Block::kPsp, Reg::SMN_C2PMSG_81},
                         {Block::kSmu, Reg::SMN_C2PMSG_66},
                         {Block::kSmu, Reg::SMN_C2PMSG_82},
                         {Block::kSmu, Reg::SMN_C2PMSG_90}};
    const auto blocks = bus_.blocks();
    for (const At& at : wanted) {
      if (!bus_.has(at.reg, at.block)) continue;
      const uint32_t value = bus_.read(at);
      SeenRegister one{.name = bus_.name(at), .fields = {}, .value = value};
      for (const auto& [block, table] : blocks)
        if (const auto* row = block == at.block ? table.find(at.reg) : nullptr; row != nullptr)
          one.fields = table.decode(*row, value);
      seen_.registers.push_back(std::move(one));
    }
  }

  void look_at_hub(Block hub) {
    HubState state{.hub = hub, .fault = read_hub_fault(bus_, hub)};
    state.table_base = read_table_base(bus_, hub);
    if (state.fault.status == 0 && hub == Block::kGc && options_.taken_fault)
      state.fault = *options_.taken_fault;
    if (state.fault.status != 0)
      state.walk = walk_pages(bus_, hub, state.fault.address, *card_.generation);
    seen_.hubs.push_back(std::move(state));
  }

  void look_at_interrupts() {
    const uint32_t written = bus_.read({Block::kOsssys, Reg::IH_RB_WPTR});
    const uint32_t read = bus_.read({Block::kOsssys, Reg::IH_RB_RPTR});
    const uint32_t log = bus_.read_field(Block::kOsssys, Field::IH_RB_CNTL_rb_size);
    const uint32_t bytes = 4u << std::min(log, 28u);
    seen_.has_interrupt_overflow =
        bus_.get(Block::kOsssys, Field::IH_RB_WPTR_rb_overflow, written) != 0;
    const uint32_t to = written & ~(kInterruptBytes - 1);
    seen_.interrupts_waiting = (to - read) % bytes / kInterruptBytes;
  }

  uint32_t words_[mqd::kRegistersEnd - mqd::kRegisters] = {};
  uint32_t window(size_t dword) const { return words_[dword - mqd::kRegisters]; }
  uint64_t window_pair(size_t dword) const {
    return uint64_t{window(dword + 1)} << 32 | window(dword);
  }

  void select(uint32_t me, uint32_t queue) {
    using enum Field;
    bus_.write_fields(Block::kGc, {{GRBM_GFX_CNTL_meid, me},
                                   {GRBM_GFX_CNTL_pipeid, 0},
                                   {GRBM_GFX_CNTL_queueid, queue},
                                   {GRBM_GFX_CNTL_vmid, 0}});
  }

  /// Registers of a queue are those of its descriptor, in the same order (mqd.h).
  void look_at_compute(uint32_t queue) {
    using enum Field;
    select(1, queue);
    const uint64_t first = bus_.address({Block::kGc, Reg::CP_MQD_BASE_ADDR});
    for (size_t i = 0; i < std::size(words_) && bus_.status(); ++i)
      words_[i] = bus_.read_dword(first + i);
    const uint64_t buffer = uint64_t{bus_.read({Block::kGc, Reg::CP_HQD_IB_BASE_ADDR_HI})} << 32 |
                            (bus_.read({Block::kGc, Reg::CP_HQD_IB_BASE_ADDR}) & ~3u);
    const uint32_t buffer_at = bus_.read({Block::kGc, Reg::CP_HQD_IB_RPTR}) & 0xfffff;
    select(0, 0);
    if (!bus_.status()) return;
    QueueState state{.name = fmt::format("compute queue {}", queue), .number = queue};
    state.is_active = bus_.get(Block::kGc, CP_HQD_ACTIVE_active, window(mqd::kActive)) != 0;
    state.ring = (window_pair(mqd::kRingLow) & 0xff'ffff'ffff) << 8;
    if (state.ring == 0 && !state.is_active) return;  // nobody has ever had it
    state.ring_bytes = uint64_t{8} << bus_.get(Block::kGc, CP_HQD_PQ_CONTROL_queue_size,
                                               window(mqd::kQueueControl));
    state.is_aql = (window(mqd::kAql) & 1) != 0;
    const uint64_t ring_dwords = state.ring_bytes / 4;
    state.read_at = window(mqd::kReadPointer) % ring_dwords * 4;
    state.known_to = window_pair(mqd::kWriteLow) % ring_dwords * 4;
    const uint32_t bell = window(mqd::kDoorbell);
    state.doorbell_dword = bus_.get(Block::kGc, CP_HQD_PQ_DOORBELL_CONTROL_doorbell_offset, bell);
    state.is_doorbell_on = bus_.get(Block::kGc, CP_HQD_PQ_DOORBELL_CONTROL_doorbell_en, bell) != 0;
    const uint32_t low = bus_.read({Block::kGc, Reg::CP_MEC_DOORBELL_RANGE_LOWER}),
                   high = bus_.read({Block::kGc, Reg::CP_MEC_DOORBELL_RANGE_UPPER});
    state.is_doorbell_in_range =
        state.doorbell_dword * 4 >= low && state.doorbell_dword * 4 <= high;
    state.is_doorbell_routed =
        bus_.read_field(Block::kBus, S2A_DOORBELL_ENTRY_0_CTRL_s2a_doorbell_port0_enable) != 0;
    uint64_t written = 0;
    if (read_words(window_pair(mqd::kPollLow) & ~uint64_t{3}, &written, sizeof written))
      state.written_to = written * (state.is_aql ? 64 : 4) % state.ring_bytes;
    state.ring_packets = window_of(state, state.ring, state.ring_bytes, state.read_at);
    const ListedPacket* current = state.ring_packets.current();
    // The register outlives the buffer: only where the ring says that it is in one.
    if (buffer != 0 && current != nullptr && current->buffer &&
        current->buffer->address == buffer) {
      state.buffer = buffer;
      state.buffer_packets =
          window_of(state, buffer, uint64_t{current->buffer->dwords} * 4, uint64_t{buffer_at} * 4);
    }
    seen_.queues.push_back(std::move(state));
  }

  void look_at_copies(uint32_t queue) {
    using enum Field;
    const uint32_t add = queue * kCopyStride;
    const auto pair = [&](Reg low, Reg high) {
      return uint64_t{bus_.read({Block::kGc, high, add})} << 32 | bus_.read({Block::kGc, low, add});
    };
    QueueState state{.name = fmt::format("copy queue {}", queue), .is_copy = true, .number = queue};
    const uint32_t control = bus_.read({Block::kGc, Reg::SDMA0_QUEUE0_RB_CNTL, add});
    state.is_active = bus_.get(Block::kGc, SDMA0_QUEUE0_RB_CNTL_rb_enable, control) != 0;
    state.ring = pair(Reg::SDMA0_QUEUE0_RB_BASE, Reg::SDMA0_QUEUE0_RB_BASE_HI) << 8;
    if (state.ring == 0) return;
    state.ring_bytes = uint64_t{4} << bus_.get(Block::kGc, SDMA0_QUEUE0_RB_CNTL_rb_size, control);
    state.read_at =
        pair(Reg::SDMA0_QUEUE0_RB_RPTR, Reg::SDMA0_QUEUE0_RB_RPTR_HI) % state.ring_bytes;
    state.known_to =
        pair(Reg::SDMA0_QUEUE0_RB_WPTR, Reg::SDMA0_QUEUE0_RB_WPTR_HI) % state.ring_bytes;
    state.doorbell_dword = bus_.read_field(Block::kGc, SDMA0_QUEUE0_DOORBELL_OFFSET_offset, add);
    state.is_doorbell_on = bus_.read_field(Block::kGc, SDMA0_QUEUE0_DOORBELL_enable, add) != 0;
    const uint32_t entry = bus_.read({Block::kBus, Reg::S2A_DOORBELL_ENTRY_2_CTRL});
    const uint32_t first =
        bus_.get(Block::kBus, S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_range_offset, entry);
    const uint32_t count =
        bus_.get(Block::kBus, S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_range_size, entry);
    state.is_doorbell_in_range =
        state.doorbell_dword >= first && state.doorbell_dword - first < count;
    state.is_doorbell_routed =
        bus_.get(Block::kBus, S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_enable, entry) != 0;
    const uint32_t halt_add = queue * kCopyControlStride;
    state.is_halted = (bus_.has(Reg::SDMA0_MCU_CNTL, Block::kGc)
                           ? bus_.read_field(Block::kGc, SDMA0_MCU_CNTL_halt, halt_add)
                           : bus_.read_field(Block::kGc, SDMA0_F32_CNTL_halt, halt_add)) != 0;
    state.runs_buffers = bus_.read_field(Block::kGc, SDMA0_QUEUE0_IB_CNTL_ib_enable, add) != 0;
    const uint64_t poll =
        pair(Reg::SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_LO, Reg::SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_HI);
    uint64_t written = 0;
    if (read_words(poll & ~uint64_t{3}, &written, sizeof written))
      state.written_to = written % state.ring_bytes;
    state.ring_packets = window_of(state, state.ring, state.ring_bytes, state.read_at);
    const ListedPacket* current = state.ring_packets.current();
    const uint64_t buffer =
        pair(Reg::SDMA0_QUEUE0_IB_BASE_LO, Reg::SDMA0_QUEUE0_IB_BASE_HI) & ~uint64_t{31};
    if (buffer != 0 && current != nullptr && current->buffer &&
        current->buffer->address == buffer) {
      const uint32_t at = bus_.read({Block::kGc, Reg::SDMA0_QUEUE0_IB_RPTR, add});
      state.buffer = buffer;
      state.buffer_packets = window_of(state, buffer, uint64_t{current->buffer->dwords} * 4, at);
    }
    seen_.queues.push_back(std::move(state));
  }

  bool read_words(uint64_t va, void* to, size_t bytes) {
    return read_gpu_memory(bus_, card_, options_, va,
                           std::span(static_cast<std::byte*>(to), bytes));
  }

  /// Packets from the read pointer on: those before it cannot be distinguished from here, since
  /// packets have no marks at their ends.
  PacketWindow window_of(const QueueState& state, uint64_t va, uint64_t bytes, uint64_t read_at) {
    PacketWindow window{.va = va, .read_at = 0, .packets = {}, .problem = {}};
    const bool is_aql = state.is_aql && va == state.ring;
    const uint64_t unit = is_aql ? aql::kPacketBytes : sizeof(uint32_t);
    const uint64_t at = std::min(read_at / unit * unit, bytes);
    window.va = va + at;
    const uint64_t to = va == state.ring && state.known_to > at ? state.known_to : bytes;
    std::vector<uint32_t> words(std::min<uint64_t>((to - at) / 4, kAheadDwords));
    if (va == state.ring && state.known_to == at) words.clear();
    if (!words.empty() && !read_words(window.va, words.data(), words.size() * 4)) {
      window.problem =
          fmt::format("{:#x} cannot be read from here: {}", window.va,
                      walk_pages(bus_, Block::kGc, window.va, *card_.generation).text());
      return window;
    }
    window.packets = is_aql          ? list_aql(words, kMostPackets)
                     : state.is_copy ? list_sdma(words, card_.chip->sdma, kMostPackets)
                                     : list_pm4(words, card_.chip->caches, kMostPackets);
    return window;
  }

  Bus& bus_;
  const Card& card_;
  const AutopsyOptions& options_;
  const uint64_t end_us_;
  Autopsy seen_;
};

void add_window(std::vector<std::string>* lines, const PacketWindow& window, const char* what) {
  if (!window.problem.empty()) lines->push_back(fmt::format("    {}: {}", what, window.problem));
  bool is_first = true;
  for (const ListedPacket& packet : window.packets) {
    if (packet.is_filler && !is_first) continue;
    lines->push_back(fmt::format("    {} {:#x}{} {}", what, window.va + uint64_t{packet.at} * 4,
                                 is_first ? " >" : "  ", packet.text));
    is_first = false;
  }
}

}  // namespace

const ListedPacket* PacketWindow::current() const {
  for (const ListedPacket& packet : packets)
    if (!packet.is_filler) return &packet;
  return nullptr;
}

bool QueueState::is_unannounced() const { return written_to && *written_to != known_to; }

bool read_gpu_memory(Bus& bus, const Card& card, const AutopsyOptions& options, uint64_t va,
                     std::span<std::byte> to) {
  for (size_t done = 0; done < to.size();) {
    const uint64_t at = va + done;
    const auto part =
        to.subspan(done, std::min<uint64_t>(to.size() - done, kReadPage - at % kReadPage));
    const PageWalk walk = walk_pages(bus, Block::kGc, at, *card.generation);
    if (!walk.is_mapped) return false;
    if (walk.is_system) {
      if (!options.read_host || !options.read_host(at, part)) return false;
    } else {
      if (walk.address + part.size() > card.video_bytes) return false;
      // Whole dwords: beyond the BAR memory is read word by word.
      if (walk.address % 4 != 0 || part.size() % 4 != 0) return false;
      bus.read_memory(walk.address, part);
      if (!bus.status()) return false;
    }
    done += part.size();
  }
  return true;
}

Autopsy examine(Bus& bus, const Card& card, const AutopsyOptions& options) {
  return Examiner(bus, card, options).run();
}

std::string Autopsy::text(size_t most) const {
  std::vector<std::string> lines = {verdict.line()};
  for (const HubState& hub : hubs) {
    if (hub.fault.status == 0) continue;
    lines.push_back(fmt::format(
        "{} fault: {} of {:#x} by client {:#x}, permissions {:#x}, walker error {}, status {:#x}",
        block_name(hub.hub), hub.fault.is_write ? "write" : "read", hub.fault.address,
        hub.fault.client, hub.fault.permissions, hub.fault.walker_error, hub.fault.status));
    if (hub.walk) lines.push_back(fmt::format("    now {}", hub.walk->text()));
  }
  for (const PageWalk& walk : walks) {
    lines.push_back(walk.text());
    for (const memory::PageStep& step : walk.steps)
      lines.push_back(fmt::format("    {} at {:#x}, entry {}: {:#x}", step.level, step.table,
                                  step.index, step.entry));
  }
  for (const QueueState& queue : queues) {
    lines.push_back(fmt::format(
        "{}: {}, ring {:#x} of {} bytes, read to {:#x}, knows of {:#x}, host wrote {}, doorbell "
        "{:#x}{}{}",
        queue.name, queue.is_active ? "active" : "inactive", queue.ring, queue.ring_bytes,
        queue.read_at, queue.known_to,
        queue.written_to ? fmt::format("{:#x}", *queue.written_to) : std::string("(not readable)"),
        queue.doorbell_dword, queue.is_doorbell_on ? "" : " off",
        queue.is_halted ? ", engine halted" : ""));
    if (!queue.has_work() && !queue.is_unannounced()) continue;
    add_window(&lines, queue.ring_packets, "ring");
    if (queue.buffer != 0) add_window(&lines, queue.buffer_packets, "buffer");
  }
  for (const WaveState& wave : waves.waves) lines.push_back(wave.text());
  if (!waves.is_whole) lines.emplace_back("not every wave slot was looked at");
  if (interrupts_waiting != 0 || has_interrupt_overflow)
    lines.push_back(fmt::format("{} interrupts wait in their ring{}", interrupts_waiting,
                                has_interrupt_overflow ? ", which has overflowed" : ""));
  for (const SeenRegister& one : registers)
    lines.push_back(fmt::format("{} = {:#x} {}", one.name, one.value, one.fields));
  if (!note.empty()) lines.push_back(fmt::format("not complete: {}", note));
  if (lines.size() > most) lines.resize(most);
  // Said however short the text is to be.
  if (!unknown.empty()) lines.push_back(fmt::format("not looked at: {}", unknown));
  if (!left_out.empty()) lines.push_back(fmt::format("no time for {}", fmt::join(left_out, ", ")));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace bm::amd::am
