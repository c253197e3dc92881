#include "drivers/amd/am/interrupts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kRingBytes = 256 << 10, kPointerPage = 4096;
constexpr uint32_t kRingMask = kRingBytes - 1;
constexpr uint32_t kRingLog = 16;  // of dwords
constexpr uint32_t kSpaceGpu = 4;  // MC_SPACE: addresses of the memory controller

// soc21_ih_clientid.h.
constexpr uint8_t kClientGfx = 10, kClientVmc = 18, kClientGrbmCp = 20;

struct Source {
  uint8_t source;
  InterruptKind kind;
  const char* text;
};
// GFX_11_0_0__SRCID__*; gfx12 has the same numbers for these.
constexpr Source kSources[] = {
    {0, InterruptKind::kMemoryFault, "UTCL2_FAULT"},
    {1, InterruptKind::kError, "UTCL2_DATA_POISONING"},
    {49, InterruptKind::kDone, "SDMA_TRAP"},
    {54, InterruptKind::kError, "SDMA_DOORBELL_INVALID"},
    {55, InterruptKind::kError, "SDMA_QUEUE_HANG"},
    {56, InterruptKind::kError, "SDMA_ATOMIC_TIMEOUT"},
    {57, InterruptKind::kError, "SDMA_POLL_TIMEOUT"},
    {58, InterruptKind::kError, "SDMA_PAGE_TIMEOUT"},
    {59, InterruptKind::kError, "SDMA_PAGE_NULL"},
    {60, InterruptKind::kError, "SDMA_PAGE_FAULT"},
    {61, InterruptKind::kError, "SDMA_VM_HOLE"},
    {62, InterruptKind::kError, "SDMA_ECC"},
    {64, InterruptKind::kError, "SDMA_SRAM_ECC"},
    {128, InterruptKind::kError, "RLC_GC_FED_INTERRUPT"},
    {180, InterruptKind::kError, "CP_PM4_PKT_RSVD_BIT_ERROR"},
    {181, InterruptKind::kDone, "CP_EOP_INTERRUPT"},
    {183, InterruptKind::kError, "CP_BAD_OPCODE_ERROR"},
    {184, InterruptKind::kError, "CP_PRIV_REG_FAULT"},
    {185, InterruptKind::kError, "CP_PRIV_INSTR_FAULT"},
    {197, InterruptKind::kError, "CP_ECC_ERROR"},
    {201, InterruptKind::kError, "CP_FUE_ERROR"},
    {232, InterruptKind::kError, "GRBM_RD_TIMEOUT_ERROR"},
    {239, InterruptKind::kWave, "SQ_INTERRUPT_ID"},
};

// soc15_ih_clientid.h. The copy engines of a die are SDMA0 to SDMA3, whose numbers are no row.
constexpr uint8_t kClientUtcl2 = 0x1b, kFirstEngine = 0xa, kLastEngine = 0xd;
constexpr uint8_t kClientsSdma[] = {0x08, 0x09, 0x01, 0x04};
// SDMA0_4_0__SRCID__*.
constexpr Source kSdmaSources[] = {
    {217, InterruptKind::kDone, "SDMA_ATOMIC_RTN_DONE"},
    {218, InterruptKind::kError, "SDMA_ATOMIC_TIMEOUT"},
    {220, InterruptKind::kError, "SDMA_ECC"},
    {221, InterruptKind::kError, "SDMA_PAGE_FAULT"},
    {222, InterruptKind::kError, "SDMA_PAGE_NULL"},
    {224, InterruptKind::kDone, "SDMA_TRAP"},
    {228, InterruptKind::kError, "SDMA_SRAM_ECC"},
    {242, InterruptKind::kError, "SDMA_VM_HOLE"},
    {243, InterruptKind::kDone, "SDMA_CTXEMPTY"},
    {244, InterruptKind::kError, "SDMA_DOORBELL_INVALID"},
    {246, InterruptKind::kError, "SDMA_POLL_TIMEOUT"},
};

uint32_t bits(uint32_t word, uint32_t low, uint32_t count) {
  return (word >> low) & ((1u << count) - 1);
}

InterruptMeaning explain_wave(const Interrupt& interrupt, InterruptForm form) {
  constexpr const char* kErrors[] = {"memory error that cannot be corrected (EDC_FUE)",
                                     "illegal instruction", "memory violation",
                                     "fatal memory error (EDC_FED)"};
  // SQ_INTERRUPT_WORD0/1: encoding in bits 7:6 of the second, error type in 24:21 of the first.
  // soc15: encoding in 27:26 of the first; the error in 23:20 of a word made of both
  // (KFD_CONTEXT_ID_GET_SQ_INT_DATA).
  const bool is_soc21 = form == InterruptForm::kSoc21;
  const uint32_t encoding =
      is_soc21 ? bits(interrupt.data[1], 6, 2) : bits(interrupt.data[0], 26, 2);
  if (encoding != 2) return {.kind = InterruptKind::kWave, .text = "SQ_INTERRUPT_ID"};
  const uint32_t joined = (interrupt.data[0] & 0xfff) | (interrupt.data[0] >> 16 & 0xf000) |
                          (interrupt.data[1] << 16 & 0xff0000);
  const uint32_t error = is_soc21 ? bits(interrupt.data[0], 21, 4) : bits(joined, 20, 4);
  return {.kind = InterruptKind::kError,
          .text = error < std::size(kErrors) ? std::string("a wave's ") + kErrors[error]
                                             : fmt::format("a wave's error of type {}", error)};
}

}  // namespace

Interrupt decode_interrupt(const InterruptWords& words) {
  Interrupt result;
  result.client = static_cast<uint8_t>(bits(words[0], 0, 8));
  result.source = static_cast<uint8_t>(bits(words[0], 8, 8));
  result.ring = static_cast<uint8_t>(bits(words[0], 16, 8));
  result.vmid = static_cast<uint8_t>(bits(words[0], 24, 4));
  result.is_mmhub = bits(words[0], 31, 1) != 0;
  result.timestamp = words[1] | uint64_t{words[2] & 0xffff} << 32;
  result.pasid = static_cast<uint16_t>(bits(words[3], 0, 16));
  result.node = static_cast<uint8_t>(bits(words[3], 16, 8));
  for (size_t i = 0; i < result.data.size(); ++i) result.data[i] = words[4 + i];
  return result;
}

InterruptMeaning explain_interrupt(const Interrupt& interrupt, InterruptForm form) {
  const bool is_soc21 = form == InterruptForm::kSoc21;
  const uint8_t graphics_hub = is_soc21 ? kClientGfx : kClientUtcl2;
  const bool is_hub =
      interrupt.source == 0 && (interrupt.client == kClientVmc || interrupt.client == graphics_hub);
  if (is_hub) {
    // src_data[0] is bits 43:12 of the address, src_data[1] has 47:44 and what was tried:
    // gmc_v11_0_process_interrupt(), AMDGPU_GMC9_FAULT_SOURCE_DATA_WRITE.
    constexpr uint32_t kWrite = 0x20;
    return {.kind = InterruptKind::kMemoryFault,
            .text = interrupt.client == kClientVmc ? "multimedia hub" : "graphics hub",
            .address = uint64_t{interrupt.data[0]} << 12 | uint64_t{interrupt.data[1] & 0xf} << 44,
            .is_write = (interrupt.data[1] & kWrite) != 0};
  }
  const bool is_engine = is_soc21
                             ? interrupt.client == kClientGfx
                             : interrupt.client >= kFirstEngine && interrupt.client <= kLastEngine;
  if (!is_soc21 && std::ranges::find(kClientsSdma, interrupt.client) != std::end(kClientsSdma))
    for (const Source& row : kSdmaSources)
      if (row.source == interrupt.source) return {.kind = row.kind, .text = row.text};
  if (is_engine || interrupt.client == kClientGrbmCp)
    for (const Source& row : kSources)
      if (row.source == interrupt.source)
        return row.kind == InterruptKind::kWave
                   ? explain_wave(interrupt, form)
                   : InterruptMeaning{.kind = row.kind, .text = row.text};
  return {.kind = InterruptKind::kOther,
          .text = fmt::format("client {} source {}", interrupt.client, interrupt.source)};
}

Status InterruptRings::allocate_boot() {
  ring_ = BM_TRY(memory_.allocate_boot(kRingBytes, kPointerPage, "interrupt ring"));
  ring1_ = BM_TRY(memory_.allocate_boot(kRingBytes, kPointerPage, "second interrupt ring"));
  pointer_ = BM_TRY(memory_.allocate_boot(kPointerPage, kPointerPage, "interrupt write pointer"));
  return {};
}

Status InterruptRings::start(bool has_msi) {
  using enum Field;
  BM_TRY(stop());
  const auto base = [&](Reg low, Reg high, uint64_t ring) {
    const uint64_t address = gmc_.controller_address(ring);
    bus_.write({Block::kOsssys, low}, static_cast<uint32_t>(address >> 8));
    bus_.write({Block::kOsssys, high}, static_cast<uint32_t>(address >> 40) & 0xff);
  };
  base(Reg::IH_RB_BASE, Reg::IH_RB_BASE_HI, ring_);
  bus_.update(Block::kOsssys, {{IH_RB_CNTL_mc_space, kSpaceGpu},
                               {IH_RB_CNTL_wptr_overflow_clear, 1},
                               {IH_RB_CNTL_wptr_overflow_enable, 1},
                               {IH_RB_CNTL_rb_size, kRingLog},
                               {IH_RB_CNTL_wptr_writeback_enable, 1},
                               {IH_RB_CNTL_mc_snoop, 1},
                               {IH_RB_CNTL_mc_ro, 0},
                               {IH_RB_CNTL_mc_vmid, 0},
                               {IH_RB_CNTL_rptr_rearm, has_msi ? 1u : 0u}});
  const uint64_t pointer = gmc_.controller_address(pointer_);
  bus_.write({Block::kOsssys, Reg::IH_RB_WPTR_ADDR_LO}, lo32(pointer));
  bus_.write({Block::kOsssys, Reg::IH_RB_WPTR_ADDR_HI}, hi32(pointer) & 0xffff);
  bus_.write({Block::kOsssys, Reg::IH_RB_WPTR}, 0);
  bus_.write({Block::kOsssys, Reg::IH_RB_RPTR}, 0);
  bus_.write_fields(Block::kOsssys, {{IH_DOORBELL_RPTR_enable, 0}});

  base(Reg::IH_RB_BASE_RING1, Reg::IH_RB_BASE_HI_RING1, ring1_);
  bus_.update(Block::kOsssys, {{IH_RB_CNTL_RING1_mc_space, kSpaceGpu},
                               {IH_RB_CNTL_RING1_wptr_overflow_clear, 1},
                               {IH_RB_CNTL_RING1_wptr_overflow_enable, 0},
                               {IH_RB_CNTL_RING1_rb_size, kRingLog},
                               {IH_RB_CNTL_RING1_mc_snoop, 1},
                               {IH_RB_CNTL_RING1_mc_ro, 0},
                               {IH_RB_CNTL_RING1_mc_vmid, 0},
                               {IH_RB_CNTL_RING1_rb_full_drain_enable, 1}});
  bus_.write({Block::kOsssys, Reg::IH_RB_WPTR_RING1}, 0);
  bus_.write({Block::kOsssys, Reg::IH_RB_RPTR_RING1}, 0);
  bus_.write_fields(Block::kOsssys, {{IH_DOORBELL_RPTR_RING1_enable, 0}});

  if (bus_.has(Reg::IH_MSI_STORM_CTRL, Block::kOsssys)) {
    bus_.update(Block::kOsssys, {{IH_STORM_CLIENT_LIST_CNTL_client18_is_storm_client, 1}});
    bus_.update(Block::kOsssys, {{IH_INT_FLOOD_CNTL_flood_cntl_enable, 1}});
    bus_.update(Block::kOsssys, {{IH_MSI_STORM_CTRL_delay, 3}});
  }

  // The overflow flag is cleared by an edge: ih_v6_0_toggle_ring_interrupts().
  for (const uint32_t clear : {0u, 1u})
    bus_.update(Block::kOsssys,
                {{IH_RB_CNTL_rb_enable, 1}, {IH_RB_CNTL_wptr_overflow_clear, clear}});
  bus_.update(Block::kOsssys, {{IH_RB_CNTL_wptr_overflow_clear, 0}, {IH_RB_CNTL_enable_intr, 1}});
  for (const uint32_t clear : {0u, 1u, 0u})
    bus_.update(Block::kOsssys,
                {{IH_RB_CNTL_RING1_rb_enable, 1}, {IH_RB_CNTL_RING1_wptr_overflow_clear, clear}});
  read_ = 0;
  return bus_.status();
}

Status InterruptRings::stop() {
  using enum Field;
  bus_.update(Block::kOsssys, {{IH_RB_CNTL_rb_enable, 0}, {IH_RB_CNTL_enable_intr, 0}});
  bus_.update(Block::kOsssys, {{IH_RB_CNTL_RING1_rb_enable, 0}});
  for (const Reg reg :
       {Reg::IH_RB_RPTR, Reg::IH_RB_WPTR, Reg::IH_RB_RPTR_RING1, Reg::IH_RB_WPTR_RING1})
    bus_.write({Block::kOsssys, reg}, 0);
  return bus_.status();
}

/// Source: ih_v6_0_get_wptr(), ih_v6_0_set_rptr(): pointers are bytes, whatever the header's OFFSET
/// field (bits 17:2) may suggest.
std::vector<Interrupt> InterruptRings::drain() {
  using enum Field;
  std::vector<Interrupt> found;
  const uint32_t raw = bus_.read({Block::kOsssys, Reg::IH_RB_WPTR});
  if (!bus_.status()) return found;
  const uint32_t written = raw & kRingMask & ~(kInterruptBytes - 1);
  if (bus_.get(Block::kOsssys, IH_RB_WPTR_rb_overflow, raw) != 0) {
    read_ = (written + kInterruptBytes) & kRingMask;  // the oldest that was not overwritten
    for (const uint32_t clear : {1u, 0u})
      bus_.update(Block::kOsssys, {{IH_RB_CNTL_wptr_overflow_clear, clear}});
  } else if (written == read_) {
    return found;
  }
  while (read_ != written && found.size() < kRingBytes / kInterruptBytes) {
    InterruptWords words;
    bus_.read_memory(ring_ + read_, std::as_writable_bytes(std::span(words)));
    found.push_back(decode_interrupt(words));
    read_ = (read_ + kInterruptBytes) & kRingMask;
  }
  bus_.write({Block::kOsssys, Reg::IH_RB_RPTR}, read_);
  return found;
}

void InterruptRings::skip() {
  read_ = bus_.read({Block::kOsssys, Reg::IH_RB_WPTR}) & kRingMask & ~(kInterruptBytes - 1);
  bus_.write({Block::kOsssys, Reg::IH_RB_RPTR}, read_);
}

}  // namespace bm::amd::am
