#include "drivers/amd/am/copy_engine.h"

#include <algorithm>
#include <bit>

#include "drivers/amd/am/smu.h"
#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

// SDMA1_REG_OFFSET and SDMA1_HYP_DEC_REG_OFFSET of sdma_v6_0.c and sdma_v7_0.c.
constexpr uint32_t kEngineStride = 0x600, kHypervisorStride = 0x20;
// regSDMA0_QUEUE1_RB_CNTL - regSDMA0_QUEUE0_RB_CNTL (gc_11_0_0_offset.h, gc_12_0_0_offset.h).
constexpr uint32_t kQueueStride = 0x58;
// CACHE_READ_POLICY_L2__DEFAULT (no allocation), CACHE_WRITE_POLICY_L2__DEFAULT (bypass).
constexpr uint32_t kReadPolicy = 2, kWritePolicy = 3;
constexpr uint32_t kHangUnits = 100;  // of 100 ms
constexpr uint64_t kResetUs = 100;

}  // namespace

uint32_t CopyEngines::queue_offset(uint32_t queue) const {
  return engine(queue) * kEngineStride + queue / engines_ * kQueueStride;
}

uint32_t CopyEngines::doorbell(uint32_t queue) const {
  return kCopyDoorbell + engine(queue) * kCopyDoorbellsEach + queue / engines_;
}

void CopyEngines::set_halted(uint32_t engine, bool is_halted) {
  using enum Field;
  const uint32_t value = is_halted ? 1 : 0;
  const uint32_t add = engine * kHypervisorStride;
  if (bus_.has(Reg::SDMA0_MCU_CNTL, Block::kGc))
    bus_.update(Block::kGc, {{SDMA0_MCU_CNTL_halt, value}, {SDMA0_MCU_CNTL_reset, value}}, add);
  else
    bus_.update(Block::kGc, {{SDMA0_F32_CNTL_halt, value}, {SDMA0_F32_CNTL_th1_reset, value}}, add);
}

Status CopyEngines::start(const Card& card) {
  using enum Field;
  engines_ = std::min(card.sdma_engines, kCopyEngines);
  for (uint32_t engine = 0; engine < engines_; ++engine) {
    const uint32_t add = engine * kEngineStride;
    bus_.update(Block::kGc, {{SDMA0_WATCHDOG_CNTL_queue_hang_count, kHangUnits}}, add);
    bus_.update(Block::kGc, {{SDMA0_UTCL1_CNTL_resp_mode, 3}, {SDMA0_UTCL1_CNTL_redo_delay, 9}},
                add);
    if (bus_.has(SDMA0_UTCL1_PAGE_llc_noalloc, Block::kGc))
      bus_.update(Block::kGc,
                  {{SDMA0_UTCL1_PAGE_rd_l2_policy, kReadPolicy},
                   {SDMA0_UTCL1_PAGE_wr_l2_policy, kWritePolicy},
                   {SDMA0_UTCL1_PAGE_llc_noalloc, 1}},
                  add);
    else
      bus_.update(Block::kGc,
                  {{SDMA0_UTCL1_PAGE_rd_l2_policy, kReadPolicy},
                   {SDMA0_UTCL1_PAGE_wr_l2_policy, kWritePolicy}},
                  add);
    set_halted(engine, false);
    bus_.update(Block::kGc, {{SDMA0_CNTL_trap_enable, 1}}, add);
  }
  // 20 dwords an engine: adev->doorbell_index.sdma_doorbell_range.
  open_copy_doorbells(bus_, kCopyDoorbell * 2, kCopyDoorbellsEach * 2 * engines_);
  return bus_.status();
}

Status CopyEngines::start_queue(uint32_t queue, const CopyQueueRequest& request) {
  using enum Field;
  const uint32_t add = queue_offset(queue);
  const auto pair = [&](Reg low, Reg high, uint64_t value) {
    bus_.write_pair(Block::kGc, low, high, value, add);
  };
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_RB_CNTL_rb_enable, 0}}, add);
  pair(Reg::SDMA0_QUEUE0_RB_RPTR, Reg::SDMA0_QUEUE0_RB_RPTR_HI, 0);
  pair(Reg::SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_LO, Reg::SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_HI,
       request.write_pointer);
  pair(Reg::SDMA0_QUEUE0_RB_RPTR_ADDR_LO, Reg::SDMA0_QUEUE0_RB_RPTR_ADDR_HI, request.read_pointer);
  pair(Reg::SDMA0_QUEUE0_RB_BASE, Reg::SDMA0_QUEUE0_RB_BASE_HI, request.ring >> 8);
  // A write pointer that becomes smaller must be announced.
  bus_.write({Block::kGc, Reg::SDMA0_QUEUE0_MINOR_PTR_UPDATE, add}, 1);
  pair(Reg::SDMA0_QUEUE0_RB_WPTR, Reg::SDMA0_QUEUE0_RB_WPTR_HI, 0);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_DOORBELL_OFFSET_offset, doorbell(queue) * 2}}, add);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_DOORBELL_enable, 1}}, add);
  bus_.write({Block::kGc, Reg::SDMA0_QUEUE0_MINOR_PTR_UPDATE, add}, 0);
  const auto log = static_cast<uint32_t>(std::bit_width(request.ring_bytes / 4)) - 1;
  bus_.update(Block::kGc,
              {{SDMA0_QUEUE0_RB_CNTL_rb_size, log},
               {SDMA0_QUEUE0_RB_CNTL_rb_priv, 1},
               {SDMA0_QUEUE0_RB_CNTL_rb_vmid, 0},
               {SDMA0_QUEUE0_RB_CNTL_rptr_writeback_enable, 1},
               {SDMA0_QUEUE0_RB_CNTL_wptr_poll_enable, 0}},
              add);
  if (bus_.has(SDMA0_QUEUE0_RB_CNTL_f32_wptr_poll_enable, Block::kGc))
    bus_.update(Block::kGc, {{SDMA0_QUEUE0_RB_CNTL_f32_wptr_poll_enable, 1}}, add);
  else
    bus_.update(Block::kGc, {{SDMA0_QUEUE0_RB_CNTL_mcu_wptr_poll_enable, 1}}, add);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_RB_CNTL_rb_enable, 1}}, add);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_IB_CNTL_ib_enable, 1}}, add);
  return bus_.status();
}

Status CopyEngines::stop_queue(uint32_t queue) {
  using enum Field;
  const uint32_t add = queue_offset(queue);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_RB_CNTL_rb_enable, 0}}, add);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_IB_CNTL_ib_enable, 0}}, add);
  bus_.update(Block::kGc, {{SDMA0_QUEUE0_DOORBELL_enable, 0}}, add);
  return bus_.status();
}

Status CopyEngines::reset() {
  using enum Field;
  for (uint32_t engine = 0; engine < engines_; ++engine) set_halted(engine, true);
  bus_.sleep_us(kResetUs);
  bus_.write_fields(Block::kGc, {{GRBM_SOFT_RESET_soft_reset_sdma0, 1},
                                 {GRBM_SOFT_RESET_soft_reset_sdma1, engines_ > 1 ? 1u : 0u}});
  static_cast<void>(bus_.read({Block::kGc, Reg::GRBM_SOFT_RESET}));
  bus_.sleep_us(kResetUs);
  bus_.write({Block::kGc, Reg::GRBM_SOFT_RESET}, 0);
  static_cast<void>(bus_.read({Block::kGc, Reg::GRBM_SOFT_RESET}));
  bus_.sleep_us(kResetUs);
  for (uint32_t engine = 0; engine < engines_; ++engine) set_halted(engine, false);
  return bus_.status();
}

}  // namespace bm::amd::am
