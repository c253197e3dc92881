#include "drivers/amd/am/compute.h"

#include <string_view>
#include <utility>

#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

using firmware::amd::Kind;

constexpr uint64_t kMqdStride = 4096;
// TIMEOUT: the kernel gives the RLC usec_timeout = 100 ms; two seconds for boards that train first.
constexpr uint64_t kAutoloadTimeoutUs = 2'000'000;
// TIMEOUT: unmapping a queue waits for waves to be thrown away; the kernel's longest is 2 s.
constexpr uint64_t kDequeueTimeoutUs = 500'000;
constexpr uint64_t kDequeueUs = 50'000;
constexpr uint32_t kVmids = 16, kResetWaves = 2;
constexpr uint32_t kComputeMe = 1;
// AMDGPU_DOORBELL_LAYOUT1_XCC_RANGE, in 64-bit words.
constexpr uint32_t kChipletDoorbells = 0x20;
// GOLDEN_GB_ADDR_CONFIG of gfx_v9_4_3.c.
constexpr uint32_t kAddressConfig = 0x2a114042;

}  // namespace

Status Compute::allocate_boot() {
  mqds_ = BM_TRY(memory_.allocate_boot(kMqdStride * kComputeQueues * bus_.instances(Block::kGc),
                                       kMqdStride, "queue descriptors"));
  return {};
}

/// Which queue or VMID the registers that exist once for each stand for. Source:
/// soc21_grbm_select().
void Compute::select(uint32_t me, uint32_t pipe, uint32_t queue, uint32_t vmid) {
  using enum Field;
  bus_.write_fields(Block::kGc, {{GRBM_GFX_CNTL_meid, me},
                                 {GRBM_GFX_CNTL_pipeid, pipe},
                                 {GRBM_GFX_CNTL_queueid, queue},
                                 {GRBM_GFX_CNTL_vmid, vmid}});
}

/// Both: firmware is complete, and nothing works on it any more.
Status Compute::wait_autoload() {
  const uint32_t complete =
      bus_.encode(Block::kGc, {{Field::RLC_RLCS_BOOTLOAD_STATUS_bootload_complete, 1}});
  BM_TRY(bus_.wait_for({Block::kGc, Reg::RLC_RLCS_BOOTLOAD_STATUS}, complete, complete,
                       kAutoloadTimeoutUs, "the RLC has not loaded its firmware"));
  return wait_idle();
}

Status Compute::wait_idle() {
  return bus_.wait_for({Block::kGc, Reg::CP_STAT}, UINT32_MAX, 0, kAutoloadTimeoutUs,
                       "the command processor is busy after the RLC has loaded it");
}

Status Compute::set_start_addresses(const Firmware& firmware) {
  if (generation_.processor == ProcessorKind::kF32) return set_running(false);
  return bus_.for_each_instance(Block::kGc, [&](uint32_t) { return set_start_instance(firmware); });
}

Status Compute::set_start_instance(const Firmware& firmware) {
  using enum Field;
  struct Processor {
    std::string_view suffix;
    uint32_t me, pipes;
    Reg low, high;
  };
  const Processor rows[] = {
      {"_pfp.bin", 0, 1, Reg::CP_PFP_PRGRM_CNTR_START, Reg::CP_PFP_PRGRM_CNTR_START_HI},
      {"_me.bin", 0, 1, Reg::CP_ME_PRGRM_CNTR_START, Reg::CP_ME_PRGRM_CNTR_START_HI},
      {"_mec.bin", kComputeMe, generation_.compute_pipes, Reg::CP_MEC_RS64_PRGRM_CNTR_START,
       Reg::CP_MEC_RS64_PRGRM_CNTR_START_HI},
  };
  for (const Processor& row : rows) {
    const auto* code = firmware.find(Kind::kCp, row.suffix);
    if (code == nullptr) continue;
    for (uint32_t pipe = 0; pipe < row.pipes; ++pipe) {
      select(row.me, pipe, 0, 0);
      bus_.write_pair(Block::kGc, row.low, row.high, code->ucode_start_address >> 2);
    }
    select(0, 0, 0, 0);
  }
  // The address counts from a reset of the pipe on.
  for (const uint32_t value : {1u, 0u}) {
    if (firmware.find(Kind::kCp, "_pfp.bin") != nullptr)
      bus_.update(Block::kGc, {{CP_ME_CNTL_pfp_pipe0_reset, value}});
    if (firmware.find(Kind::kCp, "_me.bin") != nullptr)
      bus_.update(Block::kGc, {{CP_ME_CNTL_me_pipe0_reset, value}});
    bus_.update(Block::kGc, {{CP_MEC_RS64_CNTL_mec_pipe0_reset, value},
                             {CP_MEC_RS64_CNTL_mec_pipe1_reset, value},
                             {CP_MEC_RS64_CNTL_mec_pipe2_reset, value},
                             {CP_MEC_RS64_CNTL_mec_pipe3_reset, value}});
  }
  return bus_.status();
}

Status Compute::configure() {
  return bus_.for_each_instance(Block::kGc, [&](uint32_t xcc) { return configure_instance(xcc); });
}

Status Compute::configure_instance(uint32_t xcc) {
  using enum Field;
  // The one golden register of gfx11 that has no name for its bit (golden_settings_gc_11_0).
  constexpr uint32_t kTcpGolden = 0x20000000;
  if (generation_.has_tcp_golden) {
    const At tcp{Block::kGc, Reg::TCP_CNTL};
    bus_.write(tcp, bus_.read(tcp) | kTcpGolden);
  }
  if (bus_.has(TCP_UTCL1_CNTL2_spare, Block::kGc)) {
    bus_.update(Block::kGc, {{TCP_UTCL1_CNTL2_spare, 1}});
    bus_.write({Block::kGc, Reg::GB_ADDR_CONFIG}, kAddressConfig);
  }
  bus_.update(Block::kGc, {{RLC_CNTL_rlc_enable_f32, 1}});
  bus_.update(Block::kGc, {{RLC_SRM_CNTL_srm_enable, 1}, {RLC_SRM_CNTL_auto_incr_addr, 1}});
  bus_.write({Block::kGc, Reg::RLC_SPM_MC_CNTL}, 0xf);
  bus_.update(Block::kGc, {{GRBM_CNTL_read_timeout, 0xff}});
  for (uint32_t vmid = 0; vmid < kVmids; ++vmid) {
    select(0, 0, 0, vmid);
    // 64-bit addresses, unaligned accesses, prefetch of three lines: DEFAULT_SH_MEM_CONFIG. 9.4.3:
    // no retries, 8-bit floats as the chip has them (update_qpd_v9()).
    uint32_t how = bus_.encode(
        Block::kGc, {{SH_MEM_CONFIG_address_mode, 0}, {SH_MEM_CONFIG_alignment_mode, 3}});
    if (bus_.has(SH_MEM_CONFIG_initial_inst_prefetch, Block::kGc))
      how = bus_.encode(Block::kGc, {{SH_MEM_CONFIG_initial_inst_prefetch, 3}}, how);
    if (bus_.has(SH_MEM_CONFIG_retry_disable, Block::kGc))
      how = bus_.encode(Block::kGc, {{SH_MEM_CONFIG_retry_disable, 1}, {SH_MEM_CONFIG_f8_mode, 1}},
                        how);
    bus_.write({Block::kGc, Reg::SH_MEM_CONFIG}, how);
    // Bits 63:48 of where flat addresses mean LDS and scratch: kfd_flat_memory.c.
    bus_.write_fields(Block::kGc, {{SH_MEM_BASES_shared_base, 1}, {SH_MEM_BASES_private_base, 2}});
  }
  select(0, 0, 0, 0);
  // In bytes of a 32-bit doorbell: dwords << 2.
  const uint32_t first = xcc * kChipletDoorbells;
  bus_.write({Block::kGc, Reg::CP_MEC_DOORBELL_RANGE_LOWER}, (first * 2) << 2);
  bus_.write({Block::kGc, Reg::CP_MEC_DOORBELL_RANGE_UPPER},
             ((first + generation_.last_doorbell) * 2) << 2);
  return bus_.status();
}

Status Compute::set_running(bool is_running) {
  BM_TRY(bus_.for_each_instance(Block::kGc, [&](uint32_t) {
    set_running_instance(is_running);
    return bus_.status();
  }));
  bus_.sleep_us(is_running ? kDequeueUs : 50);
  return bus_.status();
}

void Compute::set_running_instance(bool is_running) {
  using enum Field;
  const uint32_t on = is_running ? 1 : 0, off = is_running ? 0 : 1;
  if (generation_.processor == ProcessorKind::kF32) {
    bus_.write_fields(Block::kGc, {{CP_MEC_CNTL_mec_invalidate_icache, off},
                                   {CP_MEC_CNTL_mec_me1_pipe0_reset, off},
                                   {CP_MEC_CNTL_mec_me1_pipe1_reset, off},
                                   {CP_MEC_CNTL_mec_me1_pipe2_reset, off},
                                   {CP_MEC_CNTL_mec_me1_pipe3_reset, off},
                                   {CP_MEC_CNTL_mec_me2_pipe0_reset, off},
                                   {CP_MEC_CNTL_mec_me2_pipe1_reset, off},
                                   {CP_MEC_CNTL_mec_me1_halt, off},
                                   {CP_MEC_CNTL_mec_me2_halt, off}});
    return;
  }
  bus_.update(Block::kGc, {{CP_MEC_RS64_CNTL_mec_invalidate_icache, off},
                           {CP_MEC_RS64_CNTL_mec_pipe0_reset, off},
                           {CP_MEC_RS64_CNTL_mec_pipe1_reset, off},
                           {CP_MEC_RS64_CNTL_mec_pipe2_reset, off},
                           {CP_MEC_RS64_CNTL_mec_pipe3_reset, off},
                           {CP_MEC_RS64_CNTL_mec_pipe0_active, on},
                           {CP_MEC_RS64_CNTL_mec_pipe1_active, on},
                           {CP_MEC_RS64_CNTL_mec_pipe2_active, on},
                           {CP_MEC_RS64_CNTL_mec_pipe3_active, on},
                           {CP_MEC_RS64_CNTL_mec_halt, off}});
}

Status Compute::start_queue(uint32_t queue, MqdRequest request) {
  request.xccs = bus_.instances(Block::kGc);
  request.stride = kMqdStride;
  const uint64_t first = mqds_ + queue * request.xccs * kMqdStride;
  const uint32_t served = request.is_aql ? request.xccs : 1;
  // The first one last: whoever is told of packets finds the others there.
  for (uint32_t left = served; left > 0; --left) {
    request.xcc = left - 1;
    const uint64_t physical = first + request.xcc * kMqdStride;
    request.address = gmc_.controller_address(physical);
    BM_TRY(bus_.with_instance(Block::kGc, request.xcc,
                              [&] { return program_queue(queue, physical, request); }));
  }
  return {};
}

Status Compute::program_queue(uint32_t queue, uint64_t physical, const MqdRequest& request) {
  using enum Field;
  const MqdWords words = encode_mqd(bus_, generation_, request);
  BM_TRY(bus_.status());
  bus_.write_memory(physical, std::as_bytes(std::span(words)));
  gmc_.flush_hdp();
  // Of the pipe: a reset of the processor may clear it. Without it nothing tells of the end of a
  // packet, nor of one that is no packet: gfx_v11_0_set_compute_eop_interrupt_state(),
  // gfx_v11_0_set_bad_op_fault_state(), gfx_v11_0_set_priv_reg_fault_state().
  bus_.write_fields(Block::kGc, {{CP_ME1_PIPE0_INT_CNTL_time_stamp_int_enable, 1},
                                 {CP_ME1_PIPE0_INT_CNTL_opcode_error_int_enable, 1},
                                 {CP_ME1_PIPE0_INT_CNTL_priv_reg_int_enable, 1}});
  select(kComputeMe, 0, queue, 0);
  const uint64_t window = bus_.address({Block::kGc, Reg::CP_HQD_PQ_WPTR_HI}) -
                          bus_.address({Block::kGc, Reg::CP_MQD_BASE_ADDR}) + 1;
  if (window != mqd::kRegistersEnd - mqd::kRegisters) {
    select(0, 0, 0, 0);
    return fail(Code::kUnsupported, "this version has {} queue registers, the descriptor {}",
                window, mqd::kRegistersEnd - mqd::kRegisters);
  }
  bus_.write_block({Block::kGc, Reg::CP_MQD_BASE_ADDR},
                   std::span(words).subspan(mqd::kRegisters, window));
  // The doorbell counts before the queue does; its end-of-pipe buffer is fetched from its start.
  bus_.write({Block::kGc, Reg::CP_HQD_PQ_DOORBELL_CONTROL}, words[mqd::kDoorbell]);
  bus_.write_fields(Block::kGc, {{CP_HQD_EOP_RPTR_init_fetcher, 1}});
  bus_.write_fields(Block::kGc, {{CP_HQD_ACTIVE_active, 1}});
  select(0, 0, 0, 0);
  return bus_.status();
}

Status Compute::stop_queue(uint32_t queue) {
  Status done;
  for (uint32_t xcc = 0; xcc < bus_.instances(Block::kGc); ++xcc) {
    Status one = bus_.with_instance(Block::kGc, xcc, [&] { return stop_instance(queue); });
    if (done && !one) done = std::move(one);
  }
  return done;
}

Status Compute::stop_instance(uint32_t queue) {
  using enum Field;
  select(kComputeMe, 0, queue, 0);
  Status done;
  if (bus_.read_field(Block::kGc, CP_HQD_ACTIVE_active) != 0) {
    bus_.write_fields(Block::kGc, {{CP_HQD_DEQUEUE_REQUEST_dequeue_req, kResetWaves}});
    bus_.write_fields(Block::kGc, {{SPI_COMPUTE_QUEUE_RESET_reset, 1}});
    done = bus_.wait_for({Block::kGc, Reg::CP_HQD_ACTIVE}, 1, 0, kDequeueTimeoutUs,
                         "the compute queue does not stop");
  }
  select(0, 0, 0, 0);
  return done ? bus_.status() : done;
}

bool Compute::stop_queues() {
  bool all = true;
  for (uint32_t queue = 0; queue < kComputeQueues; ++queue) all = stop_queue(queue) && all;
  return all;
}

/// gfx12 has no reset of the processor in GRBM_SOFT_RESET that the kernel uses: its pipes' own
/// does.
Status Compute::reset(const Firmware& firmware) {
  using enum Field;
  static_cast<void>(stop_queues());
  BM_TRY(bus_.status());
  BM_TRY(set_running(false));
  if (generation_.has_processor_reset) {
    BM_TRY(bus_.for_each_instance(Block::kGc, [&](uint32_t) {
      bus_.write_fields(Block::kGc,
                        {{GRBM_SOFT_RESET_soft_reset_cp, 1}, {GRBM_SOFT_RESET_soft_reset_cpc, 1}});
      return bus_.status();
    }));
    bus_.sleep_us(kDequeueUs);
    BM_TRY(bus_.for_each_instance(Block::kGc, [&](uint32_t) {
      bus_.write({Block::kGc, Reg::GRBM_SOFT_RESET}, 0);
      return bus_.status();
    }));
  }
  BM_TRY(set_start_addresses(firmware));
  return set_running(true);
}

}  // namespace bm::amd::am
