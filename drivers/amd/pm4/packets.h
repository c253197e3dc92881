#pragma once
// PM4 type-3 packets of compute queues: each packet as a value, its words, and back. Pure.
//
// Sources: Linux, drivers/gpu/drm/amd/amdgpu/soc15d.h (gfx9) and nvd.h (gfx10 and later),
// PACKET3_*; cache actions as in gfx_v9_4_3.c, gfx_v11_0.c and gfx_v12_0.c, *_emit_mem_sync() and
// *_ring_emit_fence().

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "drivers/amd/chips.h"
#include "runtime/base/result.h"

namespace bm::amd::pm4 {

enum class Op : uint8_t {
  kNop = 0x10,
  kDispatchDirect = 0x15,
  kPredExec = 0x23,
  kWriteData = 0x37,
  kWaitRegMem = 0x3c,
  kIndirectBuffer = 0x3f,
  kCopyData = 0x40,
  kEventWrite = 0x46,
  kReleaseMem = 0x49,
  kAcquireMem = 0x58,
  kSetShReg = 0x76,
  kSetUconfigReg = 0x79,
};

inline constexpr uint32_t kMaxPayload = 0x3fff;     ///< dwords after a header
inline constexpr uint32_t kMaxIndirect = 0xfffff;   ///< dwords of an indirect buffer
inline constexpr uint32_t kMaxPredicated = 0x3fff;  ///< dwords after PRED_EXEC

/// `payload` dwords follow, at least 1.
constexpr uint32_t header(Op op, uint32_t payload) {
  return 3u << 30 | (payload - 1) << 16 | static_cast<uint32_t>(op) << 8;
}
/// A one-dword NOP is the header with the largest count.
inline constexpr uint32_t kNopWord = header(Op::kNop, kMaxPayload + 1);

enum class Compare : uint8_t {
  kAlways,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  kGreaterEqual,
  kGreater
};
enum class ReleaseData : uint8_t { kNone = 0, kWord = 1, kDouble = 2, kClock = 3 };

struct Nop {
  uint32_t dwords = 1;  ///< header included
  bool operator==(const Nop&) const = default;
};
/// Consecutive registers from dword address `first`, in the SH (0x2c00) or UCONFIG (0xc000) window.
struct SetRegisters {
  uint32_t first = 0;
  std::span<const uint32_t> values;
};
struct Dispatch {
  uint32_t x = 0, y = 0, z = 0;  ///< work-groups
  uint32_t initiator = 0;
  bool operator==(const Dispatch&) const = default;
};
/// The next `dwords` are for the chiplets in the mask; only inside indirect buffers.
struct PredExec {
  uint8_t xccs = 0;
  uint32_t dwords = 0;
  bool operator==(const PredExec&) const = default;
};
/// Polls 32 bits at `address`, a multiple of 4.
struct WaitMemory {
  uint64_t address = 0;
  uint32_t value = 0, mask = UINT32_MAX;
  Compare compare = Compare::kGreaterEqual;
  uint16_t interval = 4;
  bool operator==(const WaitMemory&) const = default;
};
/// Writes `value` to register `request`, polls register `done` until (done & mask) == value.
struct WriteThenWait {
  uint32_t request = 0, done = 0;
  uint32_t value = 0, mask = 0;
  uint16_t interval = 4;
  bool operator==(const WriteThenWait&) const = default;
};
struct IndirectBuffer {
  uint64_t address = 0;  ///< multiple of 4
  uint32_t dwords = 0;   ///< at most kMaxIndirect
  bool operator==(const IndirectBuffer&) const = default;
};
/// Writes dwords to memory; `is_confirmed`: later packets wait until they have arrived.
struct WriteData {
  uint64_t address = 0;
  std::span<const uint32_t> values;
  bool is_confirmed = true;
};
/// 32 or 64 bits between registers, memory, counters (`source`, `target`: *_SEL of soc15d.h).
struct CopyData {
  uint8_t source_kind = 0, target_kind = 0;
  bool is_double = false, is_confirmed = false;
  uint64_t source = 0, target = 0;
  bool operator==(const CopyData&) const = default;
};
struct EventWrite {
  uint8_t type = 0, index = 0;
  bool operator==(const EventWrite&) const = default;
};
/// At the end of all earlier work: caches are written back, then data is written, then an interrupt
/// is raised. `caches`: bits of the first dword above the event.
struct ReleaseMem {
  uint32_t caches = 0;
  ReleaseData data = ReleaseData::kDouble;
  bool interrupts = false;
  uint64_t address = 0;
  uint64_t value = 0;
  uint32_t context = 0;  ///< of the interrupt; event id
  bool operator==(const ReleaseMem&) const = default;
};
/// Cache actions on everything.
struct AcquireMem {
  uint32_t actions = 0;
  bool operator==(const AcquireMem&) const = default;
};

using Packet =
    std::variant<Nop, SetRegisters, Dispatch, PredExec, WaitMemory, WriteThenWait, IndirectBuffer,
                 WriteData, CopyData, EventWrite, ReleaseMem, AcquireMem>;

/// Cache actions of a generation.
struct CacheActions {
  uint32_t acquire_all;     ///< everything, instructions and L2 included
  uint32_t acquire_kernel;  ///< between kernels of one queue
  uint32_t release;         ///< write-back to memory
};
CacheActions cache_actions(CacheForm form);

/// VGT_EVENT_TYPE values. Source: Linux, soc15d.h users; gfx_v9_0.c, CS_PARTIAL_FLUSH,
/// CACHE_FLUSH_AND_INV_TS_EVENT.
inline constexpr EventWrite kWaitForKernels{.type = 7, .index = 4};
inline constexpr uint8_t kEndOfPipeEvent = 0x14, kEndOfPipeIndex = 5;

/// Appends packets to a list of words that the caller keeps. Every function returns the index of
/// the packet's first payload word, for patches. Values out of range break a promise of the caller.
class Writer {
 public:
  Writer(std::vector<uint32_t>& words, CacheForm form) : words_(words), form_(form) {}

  uint32_t position() const { return static_cast<uint32_t>(words_.size()); }
  CacheForm form() const { return form_; }

  uint32_t put(const Nop& packet);
  uint32_t put(const SetRegisters& packet);
  uint32_t put(const Dispatch& packet);
  uint32_t put(const PredExec& packet);
  uint32_t put(const WaitMemory& packet);
  uint32_t put(const WriteThenWait& packet);
  uint32_t put(const IndirectBuffer& packet);
  uint32_t put(const WriteData& packet);
  uint32_t put(const CopyData& packet);
  uint32_t put(const EventWrite& packet);
  uint32_t put(const ReleaseMem& packet);
  uint32_t put(const AcquireMem& packet);
  uint32_t put(const Packet& packet) {
    return std::visit([this](const auto& p) { return put(p); }, packet);
  }
  template <class... Values>
  uint32_t set(uint32_t first, Values... values) {
    const uint32_t list[] = {static_cast<uint32_t>(values)...};
    return put(SetRegisters{first, list});
  }

 private:
  uint32_t open(Op op, uint32_t payload) {
    words_.push_back(header(op, payload));
    return position();
  }
  template <class... Values>
  void add(Values... values) {
    (words_.push_back(static_cast<uint32_t>(values)), ...);
  }

  std::vector<uint32_t>& words_;
  CacheForm form_;
};

struct Decoded {
  Packet packet;
  uint32_t dwords = 0;  ///< header included
};

/// First packet of `words`; spans in it view `words`.
/// Errors: kCorrupt naming what is wrong: no type-3 header, unknown opcode, a length the packet
/// does not have, bits that this generation does not define or that we never set.
Result<Decoded> decode(std::span<const uint32_t> words, CacheForm form);

/// "WAIT_REG_MEM [0x7f00…] >= 5", for traces and messages.
std::string describe(const Packet& packet);

}  // namespace bm::amd::pm4
