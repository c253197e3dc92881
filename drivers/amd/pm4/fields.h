#pragma once
// Bits inside PM4 packets, shared by encoder and decoder. Sources: packets.h.

#include <array>
#include <cstdint>

#include "drivers/amd/pm4/packets.h"

namespace bm::amd::pm4 {

// ACQUIRE_MEM, PACKET3_ACQUIRE_MEM_CP_COHER_CNTL_* (gfx9).
namespace coher {
inline constexpr uint32_t kL2WriteBack = 1u << 18, kVector = 1u << 22, kL2 = 1u << 23,
                          kScalar = 1u << 27, kInstructions = 1u << 29;
}
// ACQUIRE_MEM, GCR_CNTL (gfx10 and later): the same bits as SDMA_GCR_* of sdma_v6_0_0_pkt_open.h.
namespace gcr {
inline constexpr uint32_t kInstructionsInv = 0x1, kMetadataWb = 0x10, kMetadataInv = 0x20,
                          kScalarWb = 0x40, kScalarInv = 0x80, kVectorInv = 0x100, kL1Inv = 0x200,
                          kL2Inv = 0x4000, kL2Wb = 0x8000;
}
// RELEASE_MEM, EOP_* (gfx9) and PACKET3_RELEASE_MEM_GCR_* (gfx10 and later).
namespace eop {
inline constexpr uint32_t kL2WriteBack = 1u << 15, kL2NonCoherent = 1u << 19;
inline constexpr uint32_t kMetadataWb = 1u << 12, kMetadataInv = 1u << 13, kVectorInv = 1u << 14,
                          kL1Inv = 1u << 15, kGl2Inv = 1u << 20, kGl2Wb = 1u << 21,
                          kSequential = 1u << 22, kBypass = 3u << 25;
inline constexpr uint32_t kInterrupt = 2u << 24;  // INT_SEL: after the write is confirmed
}  // namespace eop
namespace wait {
inline constexpr uint32_t kMemory = 1u << 4, kWriteThenWait = 1u << 6, kMaxRegister = 0x3ffff;
}
namespace write {
inline constexpr uint32_t kToMemory = 5u << 8, kConfirm = 1u << 20;
}
namespace copy {
inline constexpr uint32_t kDouble = 1u << 16, kConfirm = 1u << 20;
}
inline constexpr uint32_t kIndirectValid = 1u << 23;
// COHER_SIZE as the kernel drivers write it for everything, and their polling interval.
inline constexpr uint32_t kAllBytesLow = UINT32_MAX, kAllBytesHigh = 0xffffff, kPollInterval = 10;

/// Register windows of the SET_* packets, in dwords.
struct Window {
  Op op;
  uint32_t begin, end;
};
inline constexpr std::array<Window, 2> kWindows{
    {{Op::kSetShReg, 0x2c00, 0x3000}, {Op::kSetUconfigReg, 0xc000, 0x1c000}}};

constexpr const Window* window_of(uint32_t first, uint32_t count) {
  for (const Window& window : kWindows)
    if (first >= window.begin && first < window.end && count <= window.end - first) return &window;
  return nullptr;
}

/// Bits the generation defines among those we use.
constexpr uint32_t acquire_bits(CacheForm form) {
  using namespace gcr;
  switch (form) {
    case CacheForm::kCoherCntl:
      return coher::kL2WriteBack | coher::kVector | coher::kL2 | coher::kScalar |
             coher::kInstructions;
    case CacheForm::kGcr:
      return kInstructionsInv | kMetadataWb | kMetadataInv | kScalarWb | kScalarInv | kVectorInv |
             kL1Inv | kL2Inv | kL2Wb;
    case CacheForm::kGcrNoGl1:
      return kInstructionsInv | kScalarWb | kScalarInv | kVectorInv | kL2Inv | kL2Wb;
  }
  __builtin_unreachable();
}
constexpr uint32_t release_bits(CacheForm form) {
  using namespace eop;
  switch (form) {
    case CacheForm::kCoherCntl: return kL2WriteBack | kL2NonCoherent;
    case CacheForm::kGcr:
      return kMetadataWb | kMetadataInv | eop::kVectorInv | eop::kL1Inv | kGl2Inv | kGl2Wb |
             kSequential | kBypass;
    case CacheForm::kGcrNoGl1: return eop::kVectorInv | kGl2Inv | kGl2Wb | kSequential | kBypass;
  }
  __builtin_unreachable();
}

}  // namespace bm::amd::pm4
