#include "drivers/amd/am/copy_engine.h"

#include <algorithm>
#include <bit>

#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

// CACHE_READ_POLICY_L2__DEFAULT (no allocation), CACHE_WRITE_POLICY_L2__DEFAULT (bypass).
constexpr uint32_t kReadPolicy = 2, kWritePolicy = 3;
constexpr uint32_t kHangUnits = 100;  // of 100 ms
constexpr uint64_t kSdmaResetUs = 100;
// TIMEOUT: the firmware has answered by then; the kernel waits usec_timeout, 100 ms.
constexpr uint64_t kInstanceResetUs = 100'000;

}  // namespace

CopyEngines::CopyEngines(Bus& bus, Smu& smu, const Card& card)
    : bus_(bus),
      smu_(smu),
      form_(&card.generation->copies),
      engines_(std::min(card.sdma_engines, kCopyEngines)) {
  for (const firmware::amd::IpBlock& ip : card.discovery.ips)
    if (ip.hw_id == firmware::amd::kSdma0HwId && ip.instance_number < 32 &&
        !card.discovery.is_harvested(ip.hw_id, ip.instance_number))
      numbers_ |= 1u << ip.instance_number;
  // Instances are taken in the order of their numbers.
  while (std::popcount(numbers_) > static_cast<int>(engines_))
    numbers_ &= ~std::bit_floor(numbers_);
}

uint32_t CopyEngines::queue_offset(uint32_t queue) const {
  return engine(queue) * form_->engine_stride + queue / engines_ * form_->queue_stride;
}

uint32_t CopyEngines::doorbell(uint32_t queue) const {
  return kCopyDoorbell + engine(queue) * kCopyDoorbellsEach + queue / engines_;
}

void CopyEngines::set_halted(uint32_t engine, bool is_halted) {
  using enum Field;
  const uint32_t value = is_halted ? 1 : 0;
  const uint32_t add = engine * form_->hypervisor_stride;
  const Block block = form_->block;
  bus_.with_instance(block, instance(engine), [&] {
    if (bus_.has(Reg::SDMA0_MCU_CNTL, block))
      bus_.update(block, {{SDMA0_MCU_CNTL_halt, value}, {SDMA0_MCU_CNTL_reset, value}}, add);
    else if (bus_.has(SDMA0_F32_CNTL_th1_reset, block))
      bus_.update(block, {{SDMA0_F32_CNTL_halt, value}, {SDMA0_F32_CNTL_th1_reset, value}}, add);
    else
      bus_.update(block, {{SDMA0_F32_CNTL_halt, value}}, add);
  });
}

void CopyEngines::set_all_halted(bool is_halted) {
  for (uint32_t engine = 0; engine < engines_; ++engine) set_halted(engine, is_halted);
}

Status CopyEngines::start() {
  for (uint32_t engine = 0; engine < engines_; ++engine)
    bus_.with_instance(form_->block, instance(engine), [&] { start_engine(engine); });
  // 20 dwords an engine: adev->doorbell_index.sdma_doorbell_range.
  open_copy_doorbells(bus_, kCopyDoorbell * 2, kCopyDoorbellsEach * 2, engines_);
  return bus_.status();
}

void CopyEngines::start_engine(uint32_t engine) {
  using enum Field;
  const Block block = form_->block;
  const uint32_t add = engine * form_->engine_stride;
  if (bus_.has(Reg::SDMA0_WATCHDOG_CNTL, block)) {
    bus_.update(block, {{SDMA0_WATCHDOG_CNTL_queue_hang_count, kHangUnits}}, add);
    bus_.update(block, {{SDMA0_UTCL1_CNTL_resp_mode, 3}, {SDMA0_UTCL1_CNTL_redo_delay, 9}}, add);
    if (bus_.has(SDMA0_UTCL1_PAGE_llc_noalloc, block))
      bus_.update(block,
                  {{SDMA0_UTCL1_PAGE_rd_l2_policy, kReadPolicy},
                   {SDMA0_UTCL1_PAGE_wr_l2_policy, kWritePolicy},
                   {SDMA0_UTCL1_PAGE_llc_noalloc, 1}},
                  add);
    else
      bus_.update(block,
                  {{SDMA0_UTCL1_PAGE_rd_l2_policy, kReadPolicy},
                   {SDMA0_UTCL1_PAGE_wr_l2_policy, kWritePolicy}},
                  add);
  }
  set_halted(engine, false);
  if (bus_.has(SDMA0_CNTL_utc_l1_enable, block))
    bus_.update(block, {{SDMA0_CNTL_utc_l1_enable, 1}, {SDMA0_CNTL_auto_ctxsw_enable, 1}}, add);
  bus_.update(block, {{SDMA0_CNTL_trap_enable, 1}}, add);
}

Status CopyEngines::start_queue(uint32_t queue, const CopyQueueRequest& request) {
  return bus_.with_instance(form_->block, instance(engine(queue)),
                            [&] { return program_queue(queue, request); });
}

Status CopyEngines::program_queue(uint32_t queue, const CopyQueueRequest& request) {
  using enum Field;
  const Block block = form_->block;
  const uint32_t add = queue_offset(queue);
  const auto pair = [&](Reg low, Reg high, uint64_t value) {
    bus_.write_pair(block, low, high, value, add);
  };
  bus_.update(block, {{SDMA0_QUEUE0_RB_CNTL_rb_enable, 0}}, add);
  pair(Reg::SDMA0_QUEUE0_RB_RPTR, Reg::SDMA0_QUEUE0_RB_RPTR_HI, 0);
  pair(Reg::SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_LO, Reg::SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_HI,
       request.write_pointer);
  pair(Reg::SDMA0_QUEUE0_RB_RPTR_ADDR_LO, Reg::SDMA0_QUEUE0_RB_RPTR_ADDR_HI, request.read_pointer);
  pair(Reg::SDMA0_QUEUE0_RB_BASE, Reg::SDMA0_QUEUE0_RB_BASE_HI, request.ring >> 8);
  // A write pointer that becomes smaller must be announced.
  bus_.write({block, Reg::SDMA0_QUEUE0_MINOR_PTR_UPDATE, add}, 1);
  pair(Reg::SDMA0_QUEUE0_RB_WPTR, Reg::SDMA0_QUEUE0_RB_WPTR_HI, 0);
  bus_.update(block, {{SDMA0_QUEUE0_DOORBELL_OFFSET_offset, doorbell(queue) * 2}}, add);
  bus_.update(block, {{SDMA0_QUEUE0_DOORBELL_enable, 1}}, add);
  bus_.write({block, Reg::SDMA0_QUEUE0_MINOR_PTR_UPDATE, add}, 0);
  const auto log = static_cast<uint32_t>(std::bit_width(request.ring_bytes / 4)) - 1;
  bus_.update(block,
              {{SDMA0_QUEUE0_RB_CNTL_rb_size, log},
               {SDMA0_QUEUE0_RB_CNTL_rb_priv, 1},
               {SDMA0_QUEUE0_RB_CNTL_rb_vmid, 0},
               {SDMA0_QUEUE0_RB_CNTL_rptr_writeback_enable, 1}},
              add);
  if (bus_.has(SDMA0_QUEUE0_RB_CNTL_wptr_poll_enable, block))
    bus_.update(block, {{SDMA0_QUEUE0_RB_CNTL_wptr_poll_enable, 0}}, add);
  if (bus_.has(SDMA0_QUEUE0_RB_CNTL_f32_wptr_poll_enable, block))
    bus_.update(block, {{SDMA0_QUEUE0_RB_CNTL_f32_wptr_poll_enable, 1}}, add);
  else if (bus_.has(SDMA0_QUEUE0_RB_CNTL_mcu_wptr_poll_enable, block))
    bus_.update(block, {{SDMA0_QUEUE0_RB_CNTL_mcu_wptr_poll_enable, 1}}, add);
  bus_.update(block, {{SDMA0_QUEUE0_RB_CNTL_rb_enable, 1}}, add);
  bus_.update(block, {{SDMA0_QUEUE0_IB_CNTL_ib_enable, 1}}, add);
  return bus_.status();
}

Status CopyEngines::stop_queue(uint32_t queue) {
  using enum Field;
  const Block block = form_->block;
  const uint32_t add = queue_offset(queue);
  bus_.with_instance(block, instance(engine(queue)), [&] {
    bus_.update(block, {{SDMA0_QUEUE0_RB_CNTL_rb_enable, 0}}, add);
    bus_.update(block, {{SDMA0_QUEUE0_IB_CNTL_ib_enable, 0}}, add);
    bus_.update(block, {{SDMA0_QUEUE0_DOORBELL_enable, 0}}, add);
  });
  return bus_.status();
}

Status CopyEngines::reset_instances() {
  for (uint32_t queue = 0; queue < engines_; ++queue) BM_TRY(stop_queue(queue));
  const Status done = smu_.reset_copies(numbers_);
  if (!done && done.error().code == Code::kUnsupported) {
    bus_.stages.note("halted only: " + done.error().message);
    set_all_halted(true);
    bus_.sleep_us(kSdmaResetUs);
    set_all_halted(false);
    return bus_.status();
  }
  BM_TRY(done);
  for (uint32_t engine = 0; engine < engines_; ++engine)
    BM_TRY(bus_.with_instance(form_->block, instance(engine), [&] {
      const uint32_t halt = bus_.encode(form_->block, {{Field::SDMA0_F32_CNTL_halt, 1}});
      return bus_.wait_for({form_->block, Reg::SDMA0_F32_CNTL}, halt, 0, kInstanceResetUs,
                           "a copy engine stays halted after its reset");
    }));
  return {};
}

Status CopyEngines::reset() {
  using enum Field;
  if (form_->block != Block::kGc) return reset_instances();
  set_all_halted(true);
  bus_.sleep_us(kSdmaResetUs);
  bus_.write_fields(Block::kGc, {{GRBM_SOFT_RESET_soft_reset_sdma0, 1},
                                 {GRBM_SOFT_RESET_soft_reset_sdma1, engines_ > 1 ? 1u : 0u}});
  static_cast<void>(bus_.read({Block::kGc, Reg::GRBM_SOFT_RESET}));
  bus_.sleep_us(kSdmaResetUs);
  bus_.write({Block::kGc, Reg::GRBM_SOFT_RESET}, 0);
  static_cast<void>(bus_.read({Block::kGc, Reg::GRBM_SOFT_RESET}));
  bus_.sleep_us(kSdmaResetUs);
  set_all_halted(false);
  return bus_.status();
}

}  // namespace bm::amd::am
