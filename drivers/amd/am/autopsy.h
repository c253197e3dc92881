#pragma once
// Why a card hangs: what its registers and memory say as it stands, and the one cause that explains
// it. Boots, resets and repairs nothing. What has to be written to read at all are selectors:
// GRBM_GFX_CNTL, GRBM_GFX_INDEX and SQ_IND_INDEX, which are left as drivers leave them.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/amd/am/page_walk.h"
#include "drivers/amd/am/waves.h"
#include "drivers/amd/packet_listing.h"

namespace bm::amd::am {

/// What a verdict may name.
enum class HangCause : uint8_t {
  kNone,  ///< nothing stands still
  kCardGone,
  kNotBooted,
  kGraphicsGated,
  kPspHangs,
  kSmuSilent,
  kProcessorNotLoaded,
  kPageTableBase,
  kStaleTlb,
  kShaderFault,
  kShaderReadOnlyFault,
  kPacketFetchFault,
  kCopyFault,
  kOtherFault,
  kIllegalInstruction,
  kWaveViolation,
  kWaveTrapped,
  kWaveHalted,
  kBarrier,
  kEndlessLoop,
  kProcessorHalted,
  kQueueInactive,
  kDoorbellsOff,
  kDoorbellNotRouted,
  kDoorbellOutOfRange,
  kDoorbellDisabled,
  kDoorbellNeverRung,
  kWaitNeverMet,
  kBadPacket,
  kProcessorStands,
  kCopyEngineHalted,
  kCopyBuffersOff,
  kCopyWaitNeverMet,
  kCopyBadPacket,
  kCopyEngineStands,
  kInterruptOverflow,
  kInterruptsNotTaken,
};
/// "wait-never-met", for scripts.
std::string_view hang_cause_name(HangCause cause);

struct Verdict {
  HangCause cause = HangCause::kNone;
  std::string text, remedy;
  /// "cause: …; remedy: …".
  std::string line() const;
};

/// A place that a queue reads packets from.
struct PacketWindow {
  uint64_t va = 0;       ///< of words[0]
  uint32_t read_at = 0;  ///< dwords from there to the read pointer
  std::vector<ListedPacket> packets;
  std::string problem;  ///< why nothing is listed

  /// The one at the read pointer, fillers passed over; nullptr: none.
  const ListedPacket* current() const;
};

struct QueueState {
  std::string name;  ///< "compute queue 0", "copy queue 1"
  bool is_copy = false, is_aql = false;
  uint32_t number = 0;
  bool is_active = false;
  uint64_t ring = 0, ring_bytes = 0;
  /// In bytes of the ring: where the engine reads, and how far it knows that there is something.
  uint64_t read_at = 0, known_to = 0;
  /// What the host has written to the pointer in memory, in bytes; absent: it cannot be read.
  std::optional<uint64_t> written_to = {};
  uint32_t doorbell_dword = 0;
  bool is_doorbell_on = false, is_doorbell_in_range = true, is_doorbell_routed = true;
  bool is_halted = false, runs_buffers = true;  ///< copy engines
  uint64_t buffer = 0;                          ///< indirect buffer that it is in; 0: in the ring
  PacketWindow ring_packets = {}, buffer_packets = {};

  /// Packets that the engine knows of and has not finished.
  bool has_work() const { return known_to != read_at; }
  bool is_unannounced() const;
};

struct HubState {
  Block hub{};
  HubFault fault;
  uint64_t table_base = 0;
  std::optional<PageWalk> walk = {};  ///< of the address that faulted
};

/// A register with the fields that are set.
struct SeenRegister {
  std::string name, fields;
  uint32_t value = 0;
};

struct Autopsy {
  Verdict verdict;
  std::vector<QueueState> queues;
  std::vector<HubState> hubs;
  std::vector<PageWalk> walks;  ///< of AutopsyOptions::addresses
  WaveScan waves;
  std::vector<SeenRegister> registers;
  uint32_t interrupts_waiting = 0;
  bool has_interrupt_overflow = false;
  std::string note;  ///< why it is not complete
  /// What there was no time for: "copy queues", "waves". A verdict is then of the rest.
  std::vector<std::string> left_out;
  std::string unknown = {};  ///< what no look at this chip shows: "copy queues of gfx942"

  /// Verdict first, then a line for each thing seen. `lines`: at most so many.
  std::string text(size_t lines = SIZE_MAX) const;
};

struct AutopsyOptions {
  /// Memory of the host by address on the GPU: whoever owns it gives a view. False: not readable.
  std::function<bool(uint64_t va, std::span<std::byte> to)> read_host = {};
  /// A fault that was taken out of the registers already.
  std::optional<HubFault> taken_fault = {};
  std::vector<uint64_t> addresses = {};  ///< to be walked besides the one that faulted
  uint32_t compute_queues = 0;           ///< bits of those that ought to be active
  uint64_t limit_us = 1'500'000;         ///< in all
  size_t waves = 64;
};

/// `bus` without an error of its own; it keeps those it meets here. Ends within limit_us and what
/// one look (a queue's registers, a page walk) may take: what comes first is what a verdict needs
/// most, and what there is no time for is named. Never fails: a card that is gone is a verdict.
Autopsy examine(Bus& bus, const Card& card, const AutopsyOptions& options = {});

/// Of what was seen; pure but for what it looks up in memory to explain a wait.
Verdict judge(Bus& bus, const Card& card, const AutopsyOptions& options, const Autopsy& seen,
              const WaveScan& second_look);

/// Bytes at an address on the GPU, through the tables of the graphics hub. False: not readable.
bool read_gpu_memory(Bus& bus, const Card& card, const AutopsyOptions& options, uint64_t va,
                     std::span<std::byte> to);

}  // namespace bm::amd::am
