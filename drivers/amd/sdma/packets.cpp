#include "drivers/amd/sdma/packets.h"

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd::sdma {
namespace {

enum Op : uint32_t {
  kNop = 0,
  kCopy = 1,
  kWrite = 2,
  kIndirect = 4,
  kFence = 5,
  kTrap = 6,
  kPoll = 8,
  kFill = 11,
  kTimestamp = 13,
};
constexpr uint32_t kTimestampGlobal = 2 << 8;  // SDMA_SUBOP_TIMESTAMP_GET_GLOBAL
constexpr uint32_t kUncachedFence = 3 << 16;
constexpr uint32_t kPollMemory = 1u << 31, kPollGreaterEqual = 5u << 28;
constexpr uint32_t kRetryForever = 0xfff << 16;
constexpr uint32_t kMaxSkip = 0x3fff;  // SDMA_PKT_NOP_HEADER_count
constexpr uint32_t kMaxWrite = 0xfffff, kMaxIndirect = 0xfffff, kMaxContext = 0xfffffff;

/// COUNT of copies and fills: 22 bits up to version 5, then 30.
uint32_t count_mask(SdmaForm form) {
  switch (form) {
    case SdmaForm::kV4_4:
    case SdmaForm::kV5_2: return 0x3fffff;
    case SdmaForm::kV6:
    case SdmaForm::kV7: return 0x3fffffff;
  }
  __builtin_unreachable();
}
uint32_t fence_header(SdmaForm form) {
  return form == SdmaForm::kV4_4 ? uint32_t{kFence} : kFence | kUncachedFence;
}

uint64_t pair(std::span<const uint32_t> words, size_t at) {
  return uint64_t{words[at + 1]} << 32 | words[at];
}
tl::unexpected<Error> bad(const char* packet, const char* what, uint64_t value) {
  return fail(Code::kCorrupt, "SDMA {}: {} {:#x}", packet, what, value);
}

Result<Packet> decode_copy(std::span<const uint32_t> w, SdmaForm form) {
  if (w[0] != kCopy) return bad("COPY", "header", w[0]);
  if ((w[1] & ~count_mask(form)) != 0 || w[1] >= max_piece(form)) return bad("COPY", "count", w[1]);
  if (w[2] != 0) return bad("COPY", "parameter", w[2]);
  return Copy{pair(w, 3), pair(w, 5), uint64_t{w[1]} + 1};
}

Result<Packet> decode_fill(std::span<const uint32_t> w, SdmaForm form) {
  if (w[0] != kFill || w[3] != 0) return bad("CONST_FILL", "header or data", w[0] | w[3]);
  if ((w[4] & ~count_mask(form)) != 0 || w[4] >= max_piece(form) || w[4] % 4 != 3)
    return bad("CONST_FILL", "count", w[4]);
  if (w[1] % 4 != 0) return bad("CONST_FILL", "misaligned address", w[1]);
  return Fill{pair(w, 1), uint64_t{w[4]} + 1};
}

Result<Packet> decode_indirect(std::span<const uint32_t> w) {
  if (w[0] != kIndirect) return bad("INDIRECT", "header", w[0]);
  if (w[1] % 32 != 0) return bad("INDIRECT", "misaligned address", w[1]);
  if (w[3] == 0 || w[3] > kMaxIndirect || w[3] % kIndirectAlign != 0)
    return bad("INDIRECT", "size", w[3]);
  if (w[4] != 0 || w[5] != 0) return bad("INDIRECT", "save area", pair(w, 4));
  return Indirect{pair(w, 1), w[3]};
}

Result<Packet> decode_fence(std::span<const uint32_t> w, SdmaForm form) {
  if (w[0] != fence_header(form)) return bad("FENCE", "header", w[0]);
  if (w[1] % 4 != 0) return bad("FENCE", "misaligned address", w[1]);
  return Fence{pair(w, 1), w[3]};
}

Result<Packet> decode_poll(std::span<const uint32_t> w) {
  if (w[0] != (kPoll | kPollMemory | kPollGreaterEqual)) return bad("POLL_REGMEM", "header", w[0]);
  if (w[1] % 4 != 0) return bad("POLL_REGMEM", "misaligned address", w[1]);
  if ((w[5] & ~0xffffu) != kRetryForever) return bad("POLL_REGMEM", "retries", w[5]);
  return WaitMemory{pair(w, 1), w[3], w[4], static_cast<uint16_t>(w[5])};
}

Result<Packet> decode_timestamp(std::span<const uint32_t> w) {
  if (w[0] != (kTimestamp | kTimestampGlobal)) return bad("TIMESTAMP", "header", w[0]);
  if (w[1] % 8 != 0) return bad("TIMESTAMP", "misaligned address", w[1]);
  return Timestamp{pair(w, 1)};
}

Result<Packet> decode_write(std::span<const uint32_t> w) {
  if (w[0] != kWrite) return bad("WRITE", "header", w[0]);
  if (w[1] % 4 != 0) return bad("WRITE", "misaligned address", w[1]);
  return Write{pair(w, 1), w.subspan(4)};
}

/// Dwords of the packet, 0: unknown.
Result<uint32_t> length_of(std::span<const uint32_t> words) {
  switch (words[0] & 0xff) {
    case kNop: return (words[0] >> 16 & kMaxSkip) + 1;
    case kCopy: return kCopyDwords;
    case kWrite:
      if (words.size() < 4) return 5;
      if (words[3] >= kMaxWrite) return bad("WRITE", "count", words[3]);
      return words[3] + 5;
    case kIndirect: return kIndirectDwords;
    case kFence: return kFenceDwords;
    case kTrap: return 2;
    case kPoll: return kWaitDwords;
    case kFill: return 5;
    case kTimestamp: return 3;
    default: return bad("packet", "unknown opcode", words[0] & 0xff);
  }
}

Result<Packet> decode_body(std::span<const uint32_t> w, SdmaForm form) {
  switch (w[0] & 0xff) {
    case kNop:
      if ((w[0] & ~(kMaxSkip << 16)) != 0) return bad("NOP", "header", w[0]);
      if (w[0] != 0) return Skip{w.subspan(1)};
      return Nop{};
    case kCopy: return decode_copy(w, form);
    case kWrite: return decode_write(w);
    case kIndirect: return decode_indirect(w);
    case kFence: return decode_fence(w, form);
    case kTrap:
      if (w[0] != kTrap || w[1] > kMaxContext) return bad("TRAP", "words", pair(w, 0));
      return Trap{w[1]};
    case kPoll: return decode_poll(w);
    case kFill: return decode_fill(w, form);
    default: return decode_timestamp(w);
  }
}

}  // namespace

uint64_t max_piece(SdmaForm form) {
  // The kernel driver stays at 4 MiB everywhere; newer engines take much more, and fewer packets
  // leave more of the ring to others.
  switch (form) {
    case SdmaForm::kV4_4:
    case SdmaForm::kV5_2: return 4_MiB;
    case SdmaForm::kV6:
    case SdmaForm::kV7: return 1_GiB;
  }
  __builtin_unreachable();
}

uint32_t Writer::put(const Nop&) { return add(kNop); }

uint32_t Writer::put(const Skip& p) {
  BM_CHECK(!p.hidden.empty() && p.hidden.size() <= kMaxSkip);
  const uint32_t at = add(kNop | p.hidden.size() << 16);
  words_.insert(words_.end(), p.hidden.begin(), p.hidden.end());
  return at;
}

uint32_t Writer::put(const Copy& p) {
  BM_CHECK(p.bytes >= 1 && p.bytes <= max_piece(form_));
  return add(kCopy, p.bytes - 1, 0, lo32(p.source), hi32(p.source), lo32(p.target), hi32(p.target));
}

uint32_t Writer::put(const Write& p) {
  const size_t count = p.values.size();
  BM_CHECK(count >= 1 && count <= kMaxWrite && p.target % 4 == 0);
  const uint32_t at = add(kWrite, lo32(p.target), hi32(p.target), count - 1);
  words_.insert(words_.end(), p.values.begin(), p.values.end());
  return at;
}

uint32_t Writer::put(const Fill& p) {
  BM_CHECK(p.bytes >= 4 && p.bytes % 4 == 0 && p.bytes <= max_piece(form_) && p.target % 4 == 0);
  return add(kFill, lo32(p.target), hi32(p.target), 0, p.bytes - 1);
}

uint32_t Writer::put(const Indirect& p) {
  BM_CHECK(p.address % 32 == 0 && p.dwords != 0 && p.dwords <= kMaxIndirect &&
           p.dwords % kIndirectAlign == 0);
  return add(kIndirect, lo32(p.address), hi32(p.address), p.dwords, 0, 0);
}

uint32_t Writer::put(const Fence& p) {
  BM_CHECK(p.address % 4 == 0);
  return add(fence_header(form_), lo32(p.address), hi32(p.address), p.value);
}

uint32_t Writer::put(const Trap& p) {
  BM_CHECK(p.context <= kMaxContext);
  return add(kTrap, p.context);
}

uint32_t Writer::put(const WaitMemory& p) {
  BM_CHECK(p.address % 4 == 0);
  return add(kPoll | kPollMemory | kPollGreaterEqual, lo32(p.address), hi32(p.address), p.value,
             p.mask, p.interval | kRetryForever);
}

uint32_t Writer::put(const Timestamp& p) {
  BM_CHECK(p.target % 8 == 0);
  return add(kTimestamp | kTimestampGlobal, lo32(p.target), hi32(p.target));
}

Result<Decoded> decode(std::span<const uint32_t> words, SdmaForm form) {
  if (words.empty()) return fail(Code::kCorrupt, "SDMA: no words left");
  const uint32_t dwords = BM_TRY(length_of(words));
  if (dwords > words.size())
    return fail(Code::kCorrupt, "SDMA: packet of {} words, {} left", dwords, words.size());
  return Decoded{BM_TRY(decode_body(words.first(dwords), form)), dwords};
}

size_t whole_packets(std::span<const uint32_t> words, size_t room) {
  if (words.size() <= room) return words.size();
  for (size_t at = 0;;) {
    const auto dwords = length_of(words.subspan(at));
    BM_CHECK(dwords.has_value());
    if (at + *dwords > room) return at;
    at += *dwords;
  }
}

std::string describe(const Packet& packet) {
  struct Text {
    std::string operator()(const Nop&) { return "NOP"; }
    std::string operator()(const Skip& p) {
      return fmt::format("NOP over {} dwords", p.hidden.size());
    }
    std::string operator()(const Copy& p) {
      return fmt::format("COPY {} bytes from {:#x} to {:#x}", p.bytes, p.source, p.target);
    }
    std::string operator()(const Write& p) {
      return fmt::format("WRITE [{:#x}] = {:#x}", p.target, fmt::join(p.values, ", "));
    }
    std::string operator()(const Fill& p) {
      return fmt::format("CONST_FILL {} bytes at {:#x}", p.bytes, p.target);
    }
    std::string operator()(const Indirect& p) {
      return fmt::format("INDIRECT {:#x}, {} dwords", p.address, p.dwords);
    }
    std::string operator()(const Fence& p) {
      return fmt::format("FENCE [{:#x}] = {:#x}", p.address, p.value);
    }
    std::string operator()(const Trap& p) { return fmt::format("TRAP {}", p.context); }
    std::string operator()(const WaitMemory& p) {
      return fmt::format("POLL_REGMEM [{:#x}] & {:#x} >= {:#x}", p.address, p.mask, p.value);
    }
    std::string operator()(const Timestamp& p) {
      return fmt::format("TIMESTAMP [{:#x}]", p.target);
    }
  };
  return std::visit(Text{}, packet);
}

}  // namespace bm::amd::sdma
