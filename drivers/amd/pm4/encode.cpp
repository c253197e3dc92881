#include "drivers/amd/pm4/fields.h"
#include "drivers/amd/pm4/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd::pm4 {

CacheActions cache_actions(CacheForm form) {
  using namespace gcr;
  switch (form) {
    case CacheForm::kCoherCntl:
      return {.acquire_all = coher::kInstructions | coher::kScalar | coher::kVector | coher::kL2 |
                             coher::kL2WriteBack,
              .acquire_kernel = coher::kScalar | coher::kVector,
              .release = eop::kL2WriteBack | eop::kL2NonCoherent};
    case CacheForm::kGcr:
      return {.acquire_all = kInstructionsInv | kMetadataWb | kMetadataInv | kScalarInv |
                             kVectorInv | kL1Inv | kL2Inv | kL2Wb,
              .acquire_kernel = kMetadataWb | kMetadataInv | kScalarInv | kVectorInv | kL1Inv,
              // GLM_INV must come with GLM_WB: gfx_v11_0_ring_emit_fence().
              .release = eop::kMetadataWb | eop::kMetadataInv | eop::kGl2Wb | eop::kSequential |
                         eop::kBypass};
    case CacheForm::kGcrNoGl1:
      return {.acquire_all = kInstructionsInv | kScalarInv | kVectorInv | kL2Inv | kL2Wb,
              .acquire_kernel = kScalarInv | kVectorInv,
              .release = eop::kGl2Wb | eop::kSequential | eop::kBypass};
  }
  __builtin_unreachable();
}

uint32_t Writer::put(const Nop& packet) {
  BM_CHECK(packet.dwords >= 1 && packet.dwords <= kMaxPayload);
  if (packet.dwords == 1) {
    add(kNopWord);
    return position();
  }
  const uint32_t at = open(Op::kNop, packet.dwords - 1);
  words_.resize(words_.size() + packet.dwords - 1, 0);
  return at;
}

uint32_t Writer::put(const SetRegisters& packet) {
  const auto count = static_cast<uint32_t>(packet.values.size());
  BM_CHECK(count >= 1 && count < kMaxPayload);
  const Window* window = window_of(packet.first, count);
  BM_CHECK(window != nullptr);
  open(window->op, count + 1);
  add(packet.first - window->begin);
  words_.insert(words_.end(), packet.values.begin(), packet.values.end());
  return position() - count;
}

uint32_t Writer::put(const Dispatch& packet) {
  const uint32_t at = open(Op::kDispatchDirect, 4);
  add(packet.x, packet.y, packet.z, packet.initiator);
  return at;
}

uint32_t Writer::put(const PredExec& packet) {
  BM_CHECK(packet.dwords >= 1 && packet.dwords <= kMaxPredicated && packet.xccs != 0);
  const uint32_t at = open(Op::kPredExec, 1);
  add(uint32_t{packet.xccs} << 24 | packet.dwords);
  return at;
}

uint32_t Writer::put(const WaitMemory& packet) {
  BM_CHECK(packet.address % 4 == 0);
  const uint32_t at = open(Op::kWaitRegMem, 6);
  add(static_cast<uint32_t>(packet.compare) | wait::kMemory, lo32(packet.address),
      hi32(packet.address), packet.value, packet.mask, packet.interval);
  return at;
}

uint32_t Writer::put(const WriteThenWait& packet) {
  BM_CHECK(packet.request <= wait::kMaxRegister && packet.done <= wait::kMaxRegister);
  const uint32_t at = open(Op::kWaitRegMem, 6);
  add(static_cast<uint32_t>(Compare::kEqual) | wait::kWriteThenWait, packet.request, packet.done,
      packet.value, packet.mask, packet.interval);
  return at;
}

uint32_t Writer::put(const IndirectBuffer& packet) {
  BM_CHECK(packet.address % 4 == 0 && packet.dwords >= 1 && packet.dwords <= kMaxIndirect);
  const uint32_t at = open(Op::kIndirectBuffer, 3);
  add(lo32(packet.address), hi32(packet.address), packet.dwords | kIndirectValid);
  return at;
}

uint32_t Writer::put(const WriteData& packet) {
  const auto count = static_cast<uint32_t>(packet.values.size());
  BM_CHECK(packet.address % 4 == 0 && count >= 1 && count + 3 <= kMaxPayload);
  open(Op::kWriteData, count + 3);
  const uint32_t at = position();
  add(write::kToMemory | (packet.is_confirmed ? write::kConfirm : 0), lo32(packet.address),
      hi32(packet.address));
  words_.insert(words_.end(), packet.values.begin(), packet.values.end());
  return at;
}

uint32_t Writer::put(const CopyData& packet) {
  BM_CHECK(packet.source_kind <= 0xf && packet.target_kind <= 0xf);
  const uint32_t at = open(Op::kCopyData, 5);
  add(uint32_t{packet.source_kind} | uint32_t{packet.target_kind} << 8 |
          (packet.is_double ? copy::kDouble : 0) | (packet.is_confirmed ? copy::kConfirm : 0),
      lo32(packet.source), hi32(packet.source), lo32(packet.target), hi32(packet.target));
  return at;
}

uint32_t Writer::put(const EventWrite& packet) {
  BM_CHECK(packet.type <= 0x3f && packet.index <= 0xf);
  const uint32_t at = open(Op::kEventWrite, 1);
  add(uint32_t{packet.type} | uint32_t{packet.index} << 8);
  return at;
}

uint32_t Writer::put(const ReleaseMem& packet) {
  BM_CHECK((packet.caches & ~release_bits(form_)) == 0);
  BM_CHECK(packet.address % (packet.data == ReleaseData::kWord ? 4 : 8) == 0);
  const uint32_t at = open(Op::kReleaseMem, 7);
  add(kEndOfPipeEvent | kEndOfPipeIndex << 8 | packet.caches,
      static_cast<uint32_t>(packet.data) << 29 | (packet.interrupts ? eop::kInterrupt : 0),
      lo32(packet.address), hi32(packet.address), lo32(packet.value), hi32(packet.value),
      packet.context);
  return at;
}

uint32_t Writer::put(const AcquireMem& packet) {
  BM_CHECK((packet.actions & ~acquire_bits(form_)) == 0);
  const bool is_coher = form_ == CacheForm::kCoherCntl;
  const uint32_t at = open(Op::kAcquireMem, is_coher ? 6 : 7);
  add(is_coher ? packet.actions : 0, kAllBytesLow, kAllBytesHigh, 0, 0, kPollInterval);
  if (!is_coher) add(packet.actions);
  return at;
}

}  // namespace bm::amd::pm4
