// From what was seen of a card to the one cause that explains it: what stops everything first, then
// what stops one engine, then what only looks as if something stood still.

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "drivers/amd/am/autopsy.h"
#include "drivers/amd/am/smu.h"

namespace bm::amd::am {
namespace {

struct CauseName {
  HangCause cause;
  std::string_view name;
};
constexpr CauseName kNames[] = {
    {HangCause::kNone, "none"},
    {HangCause::kCardGone, "card-gone"},
    {HangCause::kNotBooted, "not-booted"},
    {HangCause::kGraphicsGated, "graphics-gated"},
    {HangCause::kPspHangs, "psp-hangs"},
    {HangCause::kSmuSilent, "smu-silent"},
    {HangCause::kProcessorNotLoaded, "processor-not-loaded"},
    {HangCause::kPageTableBase, "page-table-base"},
    {HangCause::kStaleTlb, "stale-tlb"},
    {HangCause::kShaderFault, "shader-fault"},
    {HangCause::kShaderReadOnlyFault, "shader-read-only-fault"},
    {HangCause::kPacketFetchFault, "packet-fetch-fault"},
    {HangCause::kCopyFault, "copy-fault"},
    {HangCause::kOtherFault, "other-fault"},
    {HangCause::kIllegalInstruction, "illegal-instruction"},
    {HangCause::kWaveViolation, "wave-violation"},
    {HangCause::kWaveTrapped, "wave-trapped"},
    {HangCause::kWaveHalted, "wave-halted"},
    {HangCause::kBarrier, "barrier"},
    {HangCause::kEndlessLoop, "endless-loop"},
    {HangCause::kProcessorHalted, "processor-halted"},
    {HangCause::kQueueInactive, "queue-inactive"},
    {HangCause::kDoorbellsOff, "doorbells-off"},
    {HangCause::kDoorbellNotRouted, "doorbell-not-routed"},
    {HangCause::kDoorbellOutOfRange, "doorbell-out-of-range"},
    {HangCause::kDoorbellDisabled, "doorbell-disabled"},
    {HangCause::kDoorbellNeverRung, "doorbell-never-rung"},
    {HangCause::kWaitNeverMet, "wait-never-met"},
    {HangCause::kBadPacket, "bad-packet"},
    {HangCause::kProcessorStands, "processor-stands"},
    {HangCause::kCopyEngineHalted, "copy-engine-halted"},
    {HangCause::kCopyBuffersOff, "copy-buffers-off"},
    {HangCause::kCopyWaitNeverMet, "copy-wait-never-met"},
    {HangCause::kCopyBadPacket, "copy-bad-packet"},
    {HangCause::kCopyEngineStands, "copy-engine-stands"},
    {HangCause::kInterruptOverflow, "interrupt-overflow"},
    {HangCause::kInterruptsNotTaken, "interrupts-not-taken"},
};

constexpr uint32_t kMailboxReady = 1u << 31;  // of C2PMSG_35 and C2PMSG_64
// s_barrier of gfx11, s_barrier_wait of gfx12 (LLVM 19's assembler), without their operand.
constexpr uint32_t kBarrierGfx11 = 0xbfbd0000, kBarrierWaitGfx12 = 0xbf940000;

/// Who asked a hub of the graphics core. Source: gfxhub_v3_0.c, gfxhub_v12_0.c,
/// gfxhub_client_ids[].
enum class Client : uint8_t { kProcessor, kShader, kCopy, kOther };
Client client_of(uint32_t id) {
  switch (id) {
    case 4:
    case 5:
    case 6: return Client::kProcessor;  // CPF, CPC, CPG
    case 8:
    case 9:
    case 10: return Client::kShader;  // TCP, SQC for instructions and data
    case 13:
    case 14:
    case 16:
    case 17: return Client::kCopy;  // SDMA0 … SDMA3
    default: return Client::kOther;
  }
}

class Judge {
 public:
  Judge(Bus& bus, const Card& card, const AutopsyOptions& options, const Autopsy& seen,
        const WaveScan& second)
      : bus_(bus), card_(card), options_(options), seen_(seen), second_(second) {}

  Verdict run() {
    using Step = std::optional<Verdict> (Judge::*)();
    static constexpr Step kSteps[] = {&Judge::gone,   &Judge::security,   &Judge::power,
                                      &Judge::gated,  &Judge::not_loaded, &Judge::faults,
                                      &Judge::waves,  &Judge::processor,  &Judge::compute,
                                      &Judge::copies, &Judge::interrupts};
    for (const Step step : kSteps)
      if (auto found = (this->*step)()) return std::move(*found);
    return {HangCause::kNone, "no queue has work left, no fault is recorded, no wave is resident",
            "nothing to do: where a program still waits, what it waits for was never submitted"};
  }

 private:
  uint32_t value(Block block, Reg reg) { return bus_.read({block, reg}); }

  std::optional<Verdict> gone() {
    if (card_.chip != nullptr && bus_.probe_dword(0xde3) != UINT32_MAX) return std::nullopt;
    return Verdict{
        HangCause::kCardGone, "the card has fallen off the bus: every register reads as all ones",
        "check power cables and slot, then rescan the bus or switch the machine off and on"};
  }

  std::optional<Verdict> security() {
    const uint32_t boot = value(Block::kPsp, Reg::SMN_C2PMSG_35),
                   life = value(Block::kPsp, Reg::SMN_C2PMSG_81),
                   ring = value(Block::kPsp, Reg::SMN_C2PMSG_64);
    if (life == 0 && (boot & kMailboxReady) == 0)
      return Verdict{HangCause::kPspHangs,
                     fmt::format("the PSP's boot loader does not come back from command {:#x} "
                                 "(C2PMSG_35 = {:#x}, error bits {:#x})",
                                 boot & ~kMailboxReady & ~0xffu, boot, boot & 0xff),
                     "`bellmetal gpu firmware check`, then reset the card (`gpu boot --reset`)"};
    if (life == 0)
      return Verdict{
          HangCause::kNotBooted,
          "the card is not booted: its PSP runs the boot loader only, as after power-on or "
          "a reset",
          "`bellmetal gpu boot`; what hung before the reset can no longer be seen"};
    if ((ring & kMailboxReady) == 0)
      return Verdict{
          HangCause::kPspHangs,
          fmt::format("the PSP's system does not answer its mailbox (C2PMSG_64 = {:#x})", ring),
          "reset the card (`bellmetal gpu boot --reset`)"};
    return std::nullopt;
  }

  std::optional<Verdict> power() {
    const uint32_t message = value(Block::kSmu, Reg::SMN_C2PMSG_66);
    // The second read is for an answer that came meanwhile.
    if (message == 0 || value(Block::kSmu, Reg::SMN_C2PMSG_90) != 0) return std::nullopt;
    bus_.sleep_us(1000);
    for (int look = 0; look < 4; ++look)
      if (value(Block::kSmu, Reg::SMN_C2PMSG_90) != 0) return std::nullopt;
    return Verdict{
        HangCause::kSmuSilent,
        fmt::format("the SMU does not answer message {:#x} (argument {:#x})", message,
                    value(Block::kSmu, Reg::SMN_C2PMSG_82)),
        "reset the card through its slot (`bellmetal pci`), or switch the machine off and on"};
  }

  /// The location of video memory is never 0 in a hub that has a clock.
  std::optional<Verdict> gated() {
    if (value(Block::kGc, Reg::MC_VM_FB_LOCATION_TOP) != 0 ||
        value(Block::kMmhub, Reg::MC_VM_FB_LOCATION_TOP) == 0)
      return std::nullopt;
    return Verdict{
        HangCause::kGraphicsGated,
        "the graphics core does not answer: its registers read as 0 while the other hub's "
        "do not (power gated by GFXOFF, or its clock stands)",
        "keep GFXOFF off while queues exist; reset the card (`bellmetal gpu boot --reset`)"};
  }

  std::optional<Verdict> not_loaded() {
    using enum Field;
    if (!bus_.has(Reg::RLC_RLCS_BOOTLOAD_STATUS, Block::kGc)) return std::nullopt;
    const uint32_t status = value(Block::kGc, Reg::RLC_RLCS_BOOTLOAD_STATUS);
    if (bus_.get(Block::kGc, RLC_RLCS_BOOTLOAD_STATUS_bootload_complete, status) != 0)
      return std::nullopt;
    return Verdict{
        HangCause::kProcessorNotLoaded,
        fmt::format("the command processor has no firmware: the RLC has not completed its "
                    "autoload (RLC_RLCS_BOOTLOAD_STATUS = {:#x})",
                    status),
        "`bellmetal gpu firmware check`, then `gpu boot --reset`"};
  }

  std::optional<Verdict> faults() {
    for (const HubState& hub : seen_.hubs)
      if (hub.fault.status != 0) return fault(hub);
    return std::nullopt;
  }

  Verdict fault(const HubState& hub) {
    const HubFault& f = hub.fault;
    const char* const access = f.is_write ? "write" : "read";
    const PageWalk& walk = *hub.walk;
    const auto& other =
        *std::ranges::find_if(seen_.hubs, [&](const HubState& one) { return one.hub != hub.hub; });
    if (walk.is_root_wrong || hub.table_base != other.table_base)
      return {
          HangCause::kPageTableBase,
          fmt::format("the {} hub's page table base {:#x} is not where the tables are ({}; the "
                      "other hub has {:#x}): {} of {:#x} faulted",
                      block_name(hub.hub), hub.table_base,
                      walk.is_root_wrong ? walk.problem : "its root differs", other.table_base,
                      access, f.address),
          "write VM_CONTEXT0_PAGE_TABLE_BASE_ADDR of both hubs alike, then flush the TLBs; a warm "
          "boot does"};
    if (walk.allows(f.is_write))
      return {
          HangCause::kStaleTlb,
          fmt::format("a stale TLB: the {} of {:#x} was refused, and the tables allow it now ({})",
                      access, f.address, walk.text()),
          "flush the TLBs after every change of tables, before the work that needs it is rung"};
    return refused(hub, access);
  }

  Verdict refused(const HubState& hub, const char* access) {
    const HubFault& f = hub.fault;
    const PageWalk& walk = *hub.walk;
    const bool is_read_only = walk.is_mapped && f.is_write;
    const std::string page = is_read_only ? fmt::format("read-only page {:#x}", f.address)
                             : walk.is_mapped
                                 ? fmt::format("page {:#x} without rights", f.address)
                                 : fmt::format("page {:#x}, which is not mapped", f.address);
    const auto ring = std::ranges::find_if(seen_.queues, [&](const QueueState& queue) {
      return f.address >= queue.ring && f.address < queue.ring + queue.ring_bytes;
    });
    if (ring != seen_.queues.end())
      return {HangCause::kPacketFetchFault,
              fmt::format("{} cannot fetch its packets: {} of {} in its ring", ring->name, access,
                          page),
              "keep a ring mapped until its queue is stopped"};
    switch (hub.hub == Block::kGc ? client_of(f.client) : Client::kOther) {
      case Client::kProcessor:
        return {
            HangCause::kPacketFetchFault,
            fmt::format("the command processor faulted: {} of {} (a packet, an indirect buffer or "
                        "what one names)",
                        access, page),
            "map what packets name, and keep it until they are done"};
      case Client::kShader:
        return {is_read_only ? HangCause::kShaderReadOnlyFault : HangCause::kShaderFault,
                fmt::format("a kernel faulted: {} of {}{}", access, page, kernel_text()),
                is_read_only
                    ? "the kernel writes to an input: check the order of its arguments"
                    : "check the kernel's arguments and bounds; was the buffer freed too early?"};
      case Client::kCopy:
        return {HangCause::kCopyFault,
                fmt::format("a copy engine faulted: {} ({}) of {}", access,
                            f.is_write ? "the target" : "the source", page),
                "check the copy's addresses and sizes; was the buffer freed too early?"};
      case Client::kOther: break;
    }
    return {HangCause::kOtherFault,
            fmt::format("client {:#x} of the {} hub faulted: {} of {}", f.client,
                        block_name(hub.hub), access, page),
            "the client's number is in gfxhub_client_ids[] and mmhub_client_ids[] of the kernel"};
  }

  std::string kernel_text() const {
    const auto& waves = seen_.waves.waves;
    const auto at = std::ranges::find_if(waves, &WaveState::has_memory_violation);
    return at == waves.end() ? std::string() : fmt::format(", at PC {:#x}", at->pc);
  }

  bool is_at_barrier(const WaveState& wave) {
    if (wave.is_in_barrier) return true;
    // The instruction at the counter, or the one before where it counts ahead.
    const uint32_t wanted = card_.is_gfx12() ? kBarrierWaitGfx12 : kBarrierGfx11;
    for (const uint64_t at : {wave.pc, wave.pc - 4}) {
      uint32_t word = 0;
      if (read_gpu_memory(bus_, card_, options_, at, std::as_writable_bytes(std::span(&word, 1))) &&
          (word & 0xffff0000) == wanted)
        return true;
    }
    return false;
  }

  std::optional<Verdict> waves() {
    const auto& all = seen_.waves.waves;
    const auto find = [&](auto member) {
      const auto at = std::ranges::find_if(all, member);
      return at == all.end() ? nullptr : &*at;
    };
    if (const auto* wave = find(&WaveState::has_illegal_instruction))
      return Verdict{HangCause::kIllegalInstruction,
                     fmt::format("a wave met an illegal instruction: {}", wave->text()),
                     "the code at that address is not this chip's, or was overwritten"};
    if (const auto* wave = find(&WaveState::has_memory_violation))
      return Verdict{
          HangCause::kWaveViolation, fmt::format("a wave's access was refused: {}", wave->text()),
          "a misaligned or out-of-range access (LDS, scratch): check the kernel's bounds"};
    if (const auto* wave = find(&WaveState::is_in_trap))
      return Verdict{HangCause::kWaveTrapped, fmt::format("a wave has trapped: {}", wave->text()),
                     "an s_trap of the kernel's own, an assertion most often"};
    if (const auto* wave = find(&WaveState::is_halted))
      return Verdict{HangCause::kWaveHalted, fmt::format("a wave is halted: {}", wave->text()),
                     "s_sethalt, or a debugger that was not detached"};
    // Those that were there at the first look and still are.
    std::vector<const WaveState*> stay;
    for (const WaveState& wave : all)
      if (std::ranges::find(second_.waves, wave.place(), &WaveState::place) != second_.waves.end())
        stay.push_back(&wave);
    if (stay.empty()) return std::nullopt;
    const auto waiting = std::ranges::stable_partition(
        stay, [&](const WaveState* wave) { return !is_at_barrier(*wave); });
    if (!waiting.empty())
      return Verdict{
          HangCause::kBarrier,
          fmt::format("{} of {} waves wait at a barrier that the others do not reach: {}",
                      waiting.size(), stay.size(), waiting.front()->text()),
          "a barrier in a branch that not every wave takes, or a wave before it in a loop"};
    uint64_t low = UINT64_MAX, high = 0;
    for (const auto* list : {&seen_.waves, &second_})
      for (const WaveState& wave : list->waves) {
        low = std::min(low, wave.pc);
        high = std::max(high, wave.pc);
      }
    return Verdict{
        HangCause::kEndlessLoop,
        fmt::format("{} waves of a kernel run and do not end: PC {:#x} to {:#x}", stay.size(), low,
                    high),
        "a loop without an end in that code, or a kernel longer than the wait: look twice"};
  }

  std::optional<Verdict> processor() {
    using enum Field;
    if (!bus_.has(Reg::CP_MEC_RS64_CNTL, Block::kGc)) return std::nullopt;
    const uint32_t control = value(Block::kGc, Reg::CP_MEC_RS64_CNTL);
    const bool is_halted = bus_.get(Block::kGc, CP_MEC_RS64_CNTL_mec_halt, control) != 0;
    const bool is_reset = bus_.get(Block::kGc, CP_MEC_RS64_CNTL_mec_pipe0_reset, control) != 0;
    const bool is_active = bus_.get(Block::kGc, CP_MEC_RS64_CNTL_mec_pipe0_active, control) != 0;
    if (!is_halted && !is_reset && is_active) return std::nullopt;
    return Verdict{HangCause::kProcessorHalted,
                   fmt::format("the compute command processor does not run: {} (CP_MEC_RS64_CNTL = "
                               "{:#x})",
                               is_halted  ? "MEC_HALT is set"
                               : is_reset ? "pipe 0 is in reset"
                                          : "pipe 0 is not active",
                               control),
                   "let it run (MEC_HALT 0, pipe 0 active, out of reset), or boot the card again"};
  }

  std::optional<Verdict> compute() {
    for (const QueueState& queue : seen_.queues)
      if (!queue.is_copy)
        if (auto found = compute_queue(queue)) return found;
    return std::nullopt;
  }

  std::optional<Verdict> compute_queue(const QueueState& queue) {
    const bool is_wanted = (options_.compute_queues >> queue.number & 1) != 0;
    if (!queue.is_active && (is_wanted || (queue.written_to && *queue.written_to != queue.read_at)))
      return Verdict{
          HangCause::kQueueInactive,
          fmt::format("{} has work and no active hardware queue (CP_HQD_ACTIVE is 0)", queue.name),
          "load the queue's registers again and set CP_HQD_ACTIVE last"};
    if (!queue.is_active) return std::nullopt;
    if (queue.is_unannounced()) return doorbell(queue);
    if (!queue.has_work()) return std::nullopt;
    return at_packet(queue, HangCause::kWaitNeverMet, HangCause::kBadPacket,
                     HangCause::kProcessorStands);
  }

  Verdict doorbell(const QueueState& queue) {
    using enum Field;
    const std::string state =
        fmt::format("{} does not know of what the host wrote (to {:#x}, it knows of {:#x})",
                    queue.name, *queue.written_to, queue.known_to);
    if (bus_.read_field(Block::kBus, RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN_bif_doorbell_aper_en) == 0)
      return {HangCause::kDoorbellsOff,
              fmt::format("{}: the doorbell aperture is off (RCC_DOORBELL_APER_EN)", state),
              "set BIF_DOORBELL_APER_EN, then ring again"};
    if (!queue.is_doorbell_routed)
      return {HangCause::kDoorbellNotRouted,
              fmt::format("{}: no S2A_DOORBELL_ENTRY of the bus block lets doorbell {:#x} through",
                          state, queue.doorbell_dword),
              "enable the block's S2A_DOORBELL_ENTRY, then ring again"};
    if (!queue.is_doorbell_in_range)
      return {HangCause::kDoorbellOutOfRange,
              fmt::format("{}: doorbell {:#x} (byte {:#x}) lies outside the range that its block "
                          "listens to ({})",
                          state, queue.doorbell_dword, queue.doorbell_dword * 4,
                          queue.is_copy ? "S2A_DOORBELL_ENTRY_2" : "CP_MEC_DOORBELL_RANGE"),
              "widen the range, then ring again"};
    if (!queue.is_doorbell_on)
      return {HangCause::kDoorbellDisabled,
              fmt::format("{}: its doorbell {:#x} is disabled ({})", state, queue.doorbell_dword,
                          queue.is_copy ? "SDMA0_QUEUE0_DOORBELL.ENABLE" : "DOORBELL_EN"),
              "enable the queue's doorbell, then ring again"};
    return {HangCause::kDoorbellNeverRung,
            fmt::format("{}: doorbell {:#x} works and was not rung", state, queue.doorbell_dword),
            "the host must write the doorbell after the pointer in memory"};
  }

  std::optional<Verdict> copies() {
    for (const QueueState& queue : seen_.queues)
      if (queue.is_copy)
        if (auto found = copy_queue(queue)) return found;
    return std::nullopt;
  }

  std::optional<Verdict> copy_queue(const QueueState& queue) {
    const bool is_behind =
        queue.has_work() || (queue.written_to && *queue.written_to != queue.read_at);
    if (!is_behind) return std::nullopt;
    if (queue.is_halted)
      return Verdict{HangCause::kCopyEngineHalted,
                     fmt::format("{} has work and its engine is halted (HALT of SDMA{}'s control)",
                                 queue.name, queue.number),
                     "clear HALT; after a fault reset the engine"};
    if (!queue.is_active)
      return Verdict{HangCause::kQueueInactive,
                     fmt::format("{} has work and is off (RB_ENABLE is 0)", queue.name),
                     "load the queue's registers again and set RB_ENABLE last"};
    if (queue.is_unannounced()) return doorbell(queue);
    const ListedPacket* current = queue.ring_packets.current();
    if (current != nullptr && current->buffer && !queue.runs_buffers)
      return Verdict{
          HangCause::kCopyBuffersOff,
          fmt::format("{} stands at {}: IB_CNTL.IB_ENABLE is clear, so it runs no indirect "
                      "buffers",
                      queue.name, current->text),
          "set SDMA0_QUEUE0_IB_CNTL.IB_ENABLE, or write the packets into the ring"};
    return at_packet(queue, HangCause::kCopyWaitNeverMet, HangCause::kCopyBadPacket,
                     HangCause::kCopyEngineStands);
  }

  /// What the engine is at, in the ring or in the buffer that the ring has sent it to.
  Verdict at_packet(const QueueState& queue, HangCause unmet, HangCause bad, HangCause stands) {
    const PacketWindow& window = queue.buffer != 0 ? queue.buffer_packets : queue.ring_packets;
    const ListedPacket* packet = window.current();
    if (packet == nullptr)
      return {stands,
              fmt::format("{} stands at {:#x}{}{}", queue.name, window.va,
                          window.problem.empty() ? "" : ", where ", window.problem),
              "run this inside the process that owns the queue, whose memory the packets lie in"};
    const std::string where =
        fmt::format("{} stands at {:#x}", queue.name, window.va + uint64_t{packet->at} * 4);
    if (packet->is_bad)
      return {bad, fmt::format("{}: {}", where, packet->text),
              "the word before it has a wrong length, or the ring was overwritten"};
    if (packet->wait) {
      const ListedWait& wait = *packet->wait;
      uint32_t word = 0;
      const bool is_read = read_gpu_memory(bus_, card_, options_, wait.address,
                                           std::as_writable_bytes(std::span(&word, 1)));
      if (!is_read || !wait.is_met(word))
        return {unmet,
                fmt::format("{}: {}; {}", where, packet->text,
                            is_read ? fmt::format("there is {:#x}", word)
                                    : std::string("what is there cannot be read from here")),
                "whoever was to write that word has not: look at the other queues and at the host"};
    }
    return {stands, fmt::format("{}: {}", where, packet->text),
            "the engine does not finish that packet: reset the queue"};
  }

  std::optional<Verdict> interrupts() {
    if (seen_.has_interrupt_overflow)
      return Verdict{HangCause::kInterruptOverflow,
                     fmt::format("the interrupt ring has overflowed, {} entries wait in it",
                                 seen_.interrupts_waiting),
                     "drain the ring more often; poll fences, since interrupts were lost"};
    if (seen_.interrupts_waiting != 0)
      return Verdict{
          HangCause::kInterruptsNotTaken,
          fmt::format("{} interrupts wait in their ring and nobody takes them (MSI lost or "
                      "off)",
                      seen_.interrupts_waiting),
          "check MSI and bus mastering (`bellmetal doctor`); poll meanwhile"};
    return std::nullopt;
  }

  Bus& bus_;
  const Card& card_;
  const AutopsyOptions& options_;
  const Autopsy& seen_;
  const WaveScan& second_;
};

}  // namespace

std::string_view hang_cause_name(HangCause cause) {
  const auto* const row = std::ranges::find(kNames, cause, &CauseName::cause);
  return row == std::end(kNames) ? std::string_view("unknown") : row->name;
}

std::string Verdict::line() const { return fmt::format("cause: {}; remedy: {}", text, remedy); }

Verdict judge(Bus& bus, const Card& card, const AutopsyOptions& options, const Autopsy& seen,
              const WaveScan& second_look) {
  return Judge(bus, card, options, seen, second_look).run();
}

}  // namespace bm::amd::am
