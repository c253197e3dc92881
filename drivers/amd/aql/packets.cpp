#include "drivers/amd/aql/packets.h"

#include <algorithm>

#include "drivers/amd/pm4/fields.h"
#include "drivers/amd/pm4/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd::aql {
namespace {

enum Type : uint32_t { kVendor = 0, kInvalid = 1, kDispatchType = 2, kBarrierAndType = 3 };
constexpr uint32_t kBarrierBit = 1 << 8;
constexpr uint32_t kAcquireShift = 9, kReleaseShift = 11;
constexpr uint32_t kPm4Format = 1 << 16;  // AMD_AQL_FORMAT_PM4_IB in the second half-word
constexpr uint32_t kPm4Dwords = 10;       // dwords left in the packet after the IB's four

// Dword indices in amd_queue_t.
constexpr size_t kMaxCuId = 72 / 4, kMaxWaveId = 76 / 4, kReadBaseOffset = 136 / 4,
                 kTmpring = 140 / 4, kDescriptor = 144 / 4, kScratchBase = 160 / 4,
                 kLaneBytes = 176 / 4, kProperties = 180 / 4;
constexpr uint32_t kIs64Bit = 2;

uint32_t first_word(Type type, const Header& header) {
  return type | (header.waits_for_earlier ? kBarrierBit : 0) |
         static_cast<uint32_t>(header.acquire) << kAcquireShift |
         static_cast<uint32_t>(header.release) << kReleaseShift;
}

void put64(std::span<uint32_t> words, size_t at, uint64_t value) {
  words[at] = lo32(value);
  words[at + 1] = hi32(value);
}
uint64_t get64(std::span<const uint32_t> words, size_t at) {
  return uint64_t{words[at + 1]} << 32 | words[at];
}

tl::unexpected<Error> bad(const char* what, uint64_t value) {
  return fail(Code::kCorrupt, "AQL packet: {} {:#x}", what, value);
}

Result<Header> decode_header(uint32_t word) {
  const uint32_t acquire = word >> kAcquireShift & 3, release = word >> kReleaseShift & 3;
  if ((word & 0xe000) != 0 || acquire == 3 || release == 3) return bad("header", word & 0xffff);
  return Header{(word & kBarrierBit) != 0, static_cast<Scope>(acquire),
                static_cast<Scope>(release)};
}

struct Encoder {
  Words operator()(const Dispatch& p) const {
    BM_CHECK(p.dimensions >= 1 && p.dimensions <= 3 && p.descriptor % 64 == 0);
    Words words{};
    words[0] = first_word(kDispatchType, p.header) | uint32_t{p.dimensions} << 16;
    words[1] = p.threads[0] | uint32_t{p.threads[1]} << 16;
    words[2] = p.threads[2];
    std::ranges::copy(p.grid, words.begin() + kGridWord);
    words[6] = p.private_bytes;
    words[7] = p.group_bytes;
    put64(words, 8, p.descriptor);
    put64(words, kKernargWord, p.kernarg);
    put64(words, 14, p.completion);
    return words;
  }
  Words operator()(const BarrierAnd& p) const {
    Words words{};
    words[0] = first_word(kBarrierAndType, p.header);
    for (size_t i = 0; i < p.dependencies.size(); ++i) put64(words, 2 + 2 * i, p.dependencies[i]);
    put64(words, 14, p.completion);
    return words;
  }
  Words operator()(const Pm4Indirect& p) const {
    BM_CHECK(p.address % 4 == 0 && p.dwords >= 1 && p.dwords <= pm4::kMaxIndirect);
    Words words{};
    words[0] = first_word(kVendor, p.header) | kPm4Format;
    words[1] = pm4::header(pm4::Op::kIndirectBuffer, 3);
    put64(words, 2, p.address);
    words[4] = p.dwords | pm4::kIndirectValid;
    words[5] = kPm4Dwords;
    put64(words, 14, p.completion);
    return words;
  }
};

Result<Packet> decode_dispatch(std::span<const uint32_t> w, const Header& header) {
  Dispatch p;
  p.header = header;
  p.dimensions = static_cast<uint16_t>(w[0] >> 16);
  if (p.dimensions < 1 || p.dimensions > 3) return bad("dimensions", p.dimensions);
  p.threads = {static_cast<uint16_t>(w[1]), static_cast<uint16_t>(w[1] >> 16),
               static_cast<uint16_t>(w[2])};
  if (w[2] > 0xffff) return bad("reserved word", w[2]);
  std::ranges::copy(w.subspan(kGridWord, 3), p.grid.begin());
  p.private_bytes = w[6];
  p.group_bytes = w[7];
  p.descriptor = get64(w, 8);
  if (p.descriptor % 64 != 0) return bad("misaligned descriptor", p.descriptor);
  p.kernarg = get64(w, kKernargWord);
  if (get64(w, 12) != 0) return bad("reserved words", get64(w, 12));
  p.completion = get64(w, 14);
  return p;
}

Result<Packet> decode_barrier(std::span<const uint32_t> w, const Header& header) {
  BarrierAnd p{.header = header};
  if (w[0] >> 16 != 0 || w[1] != 0) return bad("reserved words", w[1]);
  for (size_t i = 0; i < p.dependencies.size(); ++i) p.dependencies[i] = get64(w, 2 + 2 * i);
  if (get64(w, 12) != 0) return bad("reserved words", get64(w, 12));
  p.completion = get64(w, 14);
  return p;
}

Result<Packet> decode_pm4(std::span<const uint32_t> w, const Header& header) {
  if (w[0] >> 16 != kPm4Format >> 16) return bad("vendor format", w[0] >> 16);
  if (w[1] != pm4::header(pm4::Op::kIndirectBuffer, 3)) return bad("PM4 header", w[1]);
  const uint32_t dwords = w[4] & pm4::kMaxIndirect;
  if (w[4] != (dwords | pm4::kIndirectValid) || dwords == 0) return bad("PM4 size", w[4]);
  if (w[2] % 4 != 0) return bad("misaligned PM4 address", w[2]);
  if (w[5] != kPm4Dwords) return bad("dwords that remain", w[5]);
  for (size_t i = 6; i < 14; ++i)
    if (w[i] != 0) return bad("reserved word", w[i]);
  return Pm4Indirect{header, get64(w, 2), dwords, get64(w, 14)};
}

}  // namespace

Words encode(const Packet& packet) { return std::visit(Encoder{}, packet); }

Result<Packet> decode(std::span<const uint32_t> words) {
  if (words.size() != kPacketBytes / 4) return bad("length", words.size());
  const Header header = BM_TRY(decode_header(words[0]));
  switch (words[0] & 0xff) {
    case kVendor: return decode_pm4(words, header);
    case kDispatchType: return decode_dispatch(words, header);
    case kBarrierAndType: return decode_barrier(words, header);
    default: return bad("type", words[0] & 0xff);
  }
}

std::string describe(const Packet& packet) {
  struct Text {
    std::string operator()(const Dispatch& p) {
      return fmt::format("KERNEL_DISPATCH {:#x}, grid {}, groups of {}, kernarg {:#x}",
                         p.descriptor, fmt::join(p.grid, " x "), fmt::join(p.threads, " x "),
                         p.kernarg);
    }
    std::string operator()(const BarrierAnd& p) {
      return fmt::format("BARRIER_AND on {:#x}", fmt::join(p.dependencies, ", "));
    }
    std::string operator()(const Pm4Indirect& p) {
      return fmt::format("PM4 of {} dwords at {:#x}", p.dwords, p.address);
    }
  };
  return std::visit(Text{}, packet);
}

std::array<uint32_t, 4> scratch_descriptor(uint64_t base, uint64_t bytes, RegisterSet set) {
  // Swizzled 32-bit elements with the lane id added. Source: ROCR-Runtime, registers.h,
  // SQ_BUF_RSRC_WORD1 and WORD3 of GFX9, GFX10, GFX11 and GFX12.
  const bool is_gfx9 = set == RegisterSet::kGc9_4_3, is_gfx10 = set == RegisterSet::kGc10_3;
  const uint32_t swizzle = is_gfx9 || is_gfx10 ? 1u << 31 : 1u << 30;
  const uint32_t format = is_gfx9 ? 0x00ea4fac : is_gfx10 ? 0x21814fac : 0x20814fac;
  return {lo32(base), (hi32(base) & 0xffff) | swizzle,
          static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX)), format};
}

QueueWords encode_queue(const QueueObject& queue, RegisterSet set) {
  QueueWords words{};
  words[kMaxCuId] = queue.max_cu_id;
  words[kMaxWaveId] = queue.max_wave_id;
  words[kReadBaseOffset] = kReadIndexOffset;
  words[kTmpring] = queue.tmpring;
  if (queue.scratch != 0)
    std::ranges::copy(scratch_descriptor(queue.scratch, queue.scratch_bytes, set),
                      words.begin() + kDescriptor);
  put64(words, kScratchBase, queue.scratch);
  put64(words, kScratchBase + 2, queue.scratch_bytes);
  words[kLaneBytes] = queue.scratch_lane_bytes;
  words[kProperties] = kIs64Bit;
  return words;
}

QueueObject decode_queue(const QueueWords& words) {
  return {.max_cu_id = words[kMaxCuId],
          .max_wave_id = words[kMaxWaveId],
          .tmpring = words[kTmpring],
          .scratch = get64(words, kScratchBase),
          .scratch_bytes = get64(words, kScratchBase + 2),
          .scratch_lane_bytes = words[kLaneBytes]};
}

}  // namespace bm::amd::aql
