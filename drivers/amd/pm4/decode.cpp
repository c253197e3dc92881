#include "drivers/amd/pm4/fields.h"
#include "drivers/amd/pm4/packets.h"

namespace bm::amd::pm4 {
namespace {

uint64_t pair(std::span<const uint32_t> words, size_t at) {
  return uint64_t{words[at + 1]} << 32 | words[at];
}

tl::unexpected<Error> bad(const char* packet, const char* what, uint64_t value) {
  return fail(Code::kCorrupt, "PM4 {}: {} {:#x}", packet, what, value);
}

Result<Packet> decode_nop(std::span<const uint32_t> body) {
  for (const uint32_t word : body)
    if (word != 0) return bad("NOP", "hides", word);
  return Nop{static_cast<uint32_t>(body.size()) + 1};
}

Result<Packet> decode_registers(Op op, std::span<const uint32_t> body) {
  const Window& window = kWindows[op == Op::kSetShReg ? 0 : 1];
  const auto count = static_cast<uint32_t>(body.size() - 1);
  if (count == 0) return bad("SET_*_REG", "sets nothing from", body[0]);
  if (body[0] >= window.end - window.begin || window_of(window.begin + body[0], count) == nullptr)
    return bad("SET_*_REG", "leaves its window at offset", body[0]);
  return SetRegisters{window.begin + body[0], body.subspan(1)};
}

Result<Packet> decode_wait(std::span<const uint32_t> body) {
  const uint32_t control = body[0];
  const auto interval = static_cast<uint16_t>(body[5]);
  if (body[5] > 0xffff) return bad("WAIT_REG_MEM", "interval", body[5]);
  if (control == (static_cast<uint32_t>(Compare::kEqual) | wait::kWriteThenWait)) {
    if (body[1] > wait::kMaxRegister || body[2] > wait::kMaxRegister)
      return bad("WAIT_REG_MEM", "register", body[1] | body[2]);
    return WriteThenWait{body[1], body[2], body[3], body[4], interval};
  }
  if ((control & ~7u) != wait::kMemory || (control & 7) == 7)
    return bad("WAIT_REG_MEM", "control", control);
  if (body[1] % 4 != 0) return bad("WAIT_REG_MEM", "misaligned address", body[1]);
  return WaitMemory{pair(body, 1), body[3], body[4], static_cast<Compare>(control & 7), interval};
}

Result<Packet> decode_indirect(std::span<const uint32_t> body) {
  const uint32_t dwords = body[2] & kMaxIndirect;
  if (body[2] != (dwords | kIndirectValid) || dwords == 0)
    return bad("INDIRECT_BUFFER", "size word", body[2]);
  if (body[0] % 4 != 0) return bad("INDIRECT_BUFFER", "misaligned address", body[0]);
  return IndirectBuffer{pair(body, 0), dwords};
}

Result<Packet> decode_write(std::span<const uint32_t> body) {
  if (body.size() < 4) return bad("WRITE_DATA", "length", body.size());
  if ((body[0] & ~write::kConfirm) != write::kToMemory)
    return bad("WRITE_DATA", "control", body[0]);
  if (body[1] % 4 != 0) return bad("WRITE_DATA", "misaligned address", body[1]);
  return WriteData{pair(body, 1), body.subspan(3), (body[0] & write::kConfirm) != 0};
}

Result<Packet> decode_copy(std::span<const uint32_t> body) {
  if ((body[0] & ~(0xf0fu | copy::kDouble | copy::kConfirm)) != 0)
    return bad("COPY_DATA", "control", body[0]);
  return CopyData{static_cast<uint8_t>(body[0] & 0xf),
                  static_cast<uint8_t>(body[0] >> 8 & 0xf),
                  (body[0] & copy::kDouble) != 0,
                  (body[0] & copy::kConfirm) != 0,
                  pair(body, 1),
                  pair(body, 3)};
}

Result<Packet> decode_release(std::span<const uint32_t> body, CacheForm form) {
  const uint32_t caches = body[0] & ~0xf3fu;
  if ((body[0] & 0xf3f) != (kEndOfPipeEvent | kEndOfPipeIndex << 8))
    return bad("RELEASE_MEM", "event", body[0]);
  if ((caches & ~release_bits(form)) != 0) return bad("RELEASE_MEM", "cache bits", caches);
  const uint32_t data = body[1] >> 29;
  if (data > static_cast<uint32_t>(ReleaseData::kClock) ||
      (body[1] & ~(7u << 29 | eop::kInterrupt)) != 0)
    return bad("RELEASE_MEM", "selectors", body[1]);
  const auto kind = static_cast<ReleaseData>(data);
  if (body[2] % (kind == ReleaseData::kWord ? 4 : 8) != 0)
    return bad("RELEASE_MEM", "misaligned address", body[2]);
  return ReleaseMem{caches,        kind,          (body[1] & eop::kInterrupt) != 0,
                    pair(body, 2), pair(body, 4), body[6]};
}

Result<Packet> decode_acquire(std::span<const uint32_t> body, CacheForm form) {
  const bool is_coher = form == CacheForm::kCoherCntl;
  const uint32_t actions = is_coher ? body[0] : body[6];
  if (!is_coher && body[0] != 0) return bad("ACQUIRE_MEM", "CP_COHER_CNTL", body[0]);
  if ((actions & ~acquire_bits(form)) != 0) return bad("ACQUIRE_MEM", "actions", actions);
  if (body[1] != kAllBytesLow || body[2] != kAllBytesHigh || body[3] != 0 || body[4] != 0)
    return bad("ACQUIRE_MEM", "range at", pair(body, 3));
  if (body[5] != kPollInterval) return bad("ACQUIRE_MEM", "interval", body[5]);
  return AcquireMem{actions};
}

/// Dwords after the header, 0: any.
uint32_t payload_of(Op op, CacheForm form) {
  switch (op) {
    case Op::kNop:
    case Op::kWriteData:
    case Op::kSetShReg:
    case Op::kSetUconfigReg: return 0;
    case Op::kDispatchDirect: return 4;
    case Op::kPredExec:
    case Op::kEventWrite: return 1;
    case Op::kWaitRegMem: return 6;
    case Op::kIndirectBuffer: return 3;
    case Op::kCopyData: return 5;
    case Op::kReleaseMem: return 7;
    case Op::kAcquireMem: return form == CacheForm::kCoherCntl ? 6 : 7;
  }
  return UINT32_MAX;
}

Result<Packet> decode_body(Op op, std::span<const uint32_t> body, CacheForm form) {
  switch (op) {
    case Op::kNop: return decode_nop(body);
    case Op::kDispatchDirect: return Dispatch{body[0], body[1], body[2], body[3]};
    case Op::kPredExec:
      if ((body[0] & 0xffc000) != 0 || body[0] >> 24 == 0 || (body[0] & kMaxPredicated) == 0)
        return bad("PRED_EXEC", "mask and count", body[0]);
      return PredExec{static_cast<uint8_t>(body[0] >> 24), body[0] & kMaxPredicated};
    case Op::kWriteData: return decode_write(body);
    case Op::kWaitRegMem: return decode_wait(body);
    case Op::kIndirectBuffer: return decode_indirect(body);
    case Op::kCopyData: return decode_copy(body);
    case Op::kEventWrite:
      if ((body[0] & ~0xf3fu) != 0) return bad("EVENT_WRITE", "word", body[0]);
      return EventWrite{static_cast<uint8_t>(body[0] & 0x3f),
                        static_cast<uint8_t>(body[0] >> 8 & 0xf)};
    case Op::kReleaseMem: return decode_release(body, form);
    case Op::kAcquireMem: return decode_acquire(body, form);
    case Op::kSetShReg:
    case Op::kSetUconfigReg: return decode_registers(op, body);
  }
  __builtin_unreachable();
}

}  // namespace

Result<Decoded> decode(std::span<const uint32_t> words, CacheForm form) {
  if (words.empty()) return fail(Code::kCorrupt, "PM4: no words left");
  const uint32_t first = words[0];
  if (first == kNopWord) return Decoded{Nop{1}, 1};
  if (first >> 30 != 3 || (first & 0xff) != 0) return bad("packet", "header", first);
  const auto op = static_cast<Op>(first >> 8 & 0xff);
  const uint32_t payload = (first >> 16 & 0x3fff) + 1;
  const uint32_t expected = payload_of(op, form);
  if (expected == UINT32_MAX) return bad("packet", "unknown opcode", first >> 8 & 0xff);
  if (expected != 0 && payload != expected) return bad("packet", "length in header", first);
  if (payload >= words.size())
    return fail(Code::kCorrupt, "PM4: packet of {} words, {} left", payload + 1, words.size());
  return Decoded{BM_TRY(decode_body(op, words.subspan(1, payload), form)), payload + 1};
}

std::string describe(const Packet& packet) {
  struct Text {
    std::string operator()(const Nop& p) { return fmt::format("NOP of {} dwords", p.dwords); }
    std::string operator()(const SetRegisters& p) {
      return fmt::format("SET_REG {:#x} = {:#x}", p.first, fmt::join(p.values, ", "));
    }
    std::string operator()(const Dispatch& p) {
      return fmt::format("DISPATCH_DIRECT {} x {} x {}, initiator {:#x}", p.x, p.y, p.z,
                         p.initiator);
    }
    std::string operator()(const PredExec& p) {
      return fmt::format("PRED_EXEC mask {:#x}, {} dwords", p.xccs, p.dwords);
    }
    std::string operator()(const WaitMemory& p) {
      static constexpr const char* kSigns[] = {"any", "<", "<=", "==", "!=", ">=", ">"};
      return fmt::format("WAIT_REG_MEM [{:#x}] & {:#x} {} {:#x}", p.address, p.mask,
                         kSigns[static_cast<size_t>(p.compare)], p.value);
    }
    std::string operator()(const WriteThenWait& p) {
      return fmt::format("WAIT_REG_MEM writes {:#x} to register {:#x}, waits for {:#x}", p.value,
                         p.request, p.done);
    }
    std::string operator()(const IndirectBuffer& p) {
      return fmt::format("INDIRECT_BUFFER {:#x}, {} dwords", p.address, p.dwords);
    }
    std::string operator()(const WriteData& p) {
      return fmt::format("WRITE_DATA [{:#x}] = {:#x}", p.address, fmt::join(p.values, ", "));
    }
    std::string operator()(const CopyData& p) {
      return fmt::format("COPY_DATA {}:{:#x} to {}:{:#x}", p.source_kind, p.source, p.target_kind,
                         p.target);
    }
    std::string operator()(const EventWrite& p) {
      return fmt::format("EVENT_WRITE {:#x}, index {}", p.type, p.index);
    }
    std::string operator()(const ReleaseMem& p) {
      return fmt::format("RELEASE_MEM [{:#x}] = {}{}, caches {:#x}", p.address,
                         p.data == ReleaseData::kClock ? "clock" : fmt::format("{:#x}", p.value),
                         p.interrupts ? " and interrupt" : "", p.caches);
    }
    std::string operator()(const AcquireMem& p) {
      return fmt::format("ACQUIRE_MEM {:#x}", p.actions);
    }
  };
  return std::visit(Text{}, packet);
}

}  // namespace bm::amd::pm4
