#include "drivers/amd/am/smu.h"

#include <array>

#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kTableBytes = 16 << 10;  // SmuMetricsExternal_t and the like are a few KiB
// TIMEOUT: messages take microseconds to some milliseconds; the kernel waits usec_timeout × 20 = 2
// s.
constexpr uint64_t kMessageTimeoutUs = 2'000'000, kAliveTimeoutUs = 100'000;
// TIMEOUT: a metrics table takes about a millisecond; a firmware that is busy with clocks, some.
constexpr uint64_t kSensorTimeoutUs = 300'000;
constexpr uint32_t kOk = 1;
constexpr uint32_t kGetVersion = 0x2;  // PPSMC_MSG_GetSmuVersion, in all interfaces
// Argument of GetPptLimit: power source in the upper half, 0 is POWER_SOURCE_AC.
constexpr uint32_t kMains = 0;
constexpr uint32_t kDebugMode1Reset = 2;  // DEBUGSMC_MSG_Mode1Reset

At mailbox(Reg reg) { return {Block::kSmu, reg}; }

}  // namespace

std::string_view smu_answer(uint32_t answer) {
  switch (answer) {
    case 0x00: return "no answer";
    case 0x01: return "done";
    case 0xfb: return "debug mode has ended";
    case 0xfc: return "busy with something else";
    case 0xfd: return "not now: a prerequisite is missing";
    case 0xfe: return "unknown message";
    case 0xff: return "failed";
    default: return "an answer that is not known here";
  }
}

Status Smu::allocate_boot() {
  table_ = BM_TRY(memory_.allocate_boot(kTableBytes, 4096, "SMU tables"));
  return {};
}

/// Source: smu_cmn_send_smc_msg_with_param(), __smu_cmn_poll_stat(), __smu_cmn_reg2errno().
void Smu::post(uint32_t message, uint32_t argument) {
  bus_.write(mailbox(Reg::SMN_C2PMSG_90), 0);
  bus_.write(mailbox(Reg::SMN_C2PMSG_82), argument);
  bus_.write(mailbox(Reg::SMN_C2PMSG_66), message);
}

Result<uint32_t> Smu::send(uint32_t message, uint32_t argument, uint64_t timeout_us) {
  post(message, argument);
  const uint64_t begun = bus_.clock().now_us();
  uint32_t answer = 0;
  for (uint32_t turn = 0; answer == 0; ++turn) {
    answer = bus_.read(mailbox(Reg::SMN_C2PMSG_90));
    BM_TRY(bus_.status());
    if (answer != 0) break;
    const uint64_t waited = bus_.clock().now_us() - begun;
    if (waited > timeout_us)
      return fail(Code::kTimeout, "SMU message {:#x} (argument {:#x}): no answer in {} ms", message,
                  argument, waited / 1000);
    if (turn > 16) bus_.sleep_us(std::clamp<uint64_t>(waited / 8, 10, 1000));
  }
  if (answer != kOk)
    return fail(Code::kIo, "SMU message {:#x} (argument {:#x}): {} ({:#x})", message, argument,
                smu_answer(answer), answer);
  return bus_.read(mailbox(Reg::SMN_C2PMSG_82));
}

bool Smu::is_alive() { return send(kGetVersion, 0, kAliveTimeoutUs).has_value(); }

/// A warm boot has asked nobody.
Result<uint32_t> Smu::version_now(uint64_t timeout_us) {
  if (version_ == 0) version_ = BM_TRY(send(kGetVersion, 0, timeout_us));
  return version_;
}

Status Smu::start() {
  version_ = BM_TRY(send(kGetVersion, 0, kMessageTimeoutUs));
  const uint64_t table = gmc_.controller_address(table_);
  BM_TRY(send(messages_.table_high, hi32(table), kMessageTimeoutUs));
  BM_TRY(send(messages_.table_low, lo32(table), kMessageTimeoutUs));
  BM_TRY(send(messages_.enable_all, 0, kMessageTimeoutUs));
  return {};
}

/// Source: smu_cmn_update_table(), smu_cmn_get_metrics_table(), smu_v13_0_6_get_metrics_table().
/// Nothing has to be invalidated for the host to see the table: hdp_v6_0_funcs and hdp_v7_0_funcs
/// have no invalidate_hdp, and hdp_v4_0_invalidate_hdp() does nothing for 4.4.2. Returns how often
/// it was measured.
Result<uint32_t> Smu::read_table(const MetricsRow& row, std::span<std::byte> table) {
  BM_TRY(send(messages_.metrics, messages_.metrics_argument, kSensorTimeoutUs));
  bus_.read_memory(table_, table);
  BM_TRY(bus_.status());
  return row.counter(table);
}

Result<Sensors> Smu::read_sensors(const MetricsRow& row, uint32_t chiplet) {
  const uint32_t version = BM_TRY(version_now(kSensorTimeoutUs));
  std::array<std::byte, 2048> space;
  BM_CHECK(row.bytes() <= space.size());
  const std::span<std::byte> table = std::span(space).first(row.bytes());
  // Before its first measurement a firmware hands out zeroes: smu_v13_0_6_setup_driver_pptable().
  const uint64_t begun = bus_.clock().now_us();
  while (BM_TRY(read_table(row, table)) == 0 && row.is_of_socket()) {
    if (bus_.clock().now_us() - begun > kSensorTimeoutUs)
      return fail(Code::kTimeout, "the SMU has measured nothing in {} ms", kSensorTimeoutUs / 1000);
    bus_.sleep_us(1000);
  }
  Sensors seen = BM_TRY(decode_metrics(row, table, version, chiplet));
  if (const auto limit = send(messages_.get_power_limit, kMains, kSensorTimeoutUs))
    seen.power_limit_w = *limit;
  BM_TRY(bus_.status());
  return seen;
}

/// Source: smu_v13_0_get_current_power_limit(), the same in smu_v14_0.c.
Result<uint32_t> Smu::power_limit() {
  return send(messages_.get_power_limit, kMains, kMessageTimeoutUs);
}

/// Source: smu_v13_0_set_power_limit(), the same in smu_v14_0.c: watts, nothing else.
Status Smu::set_power_limit(uint32_t watts, uint32_t most) {
  if (watts == 0 || watts > most)
    return fail(Code::kInvalidArgument,
                "a power limit of {} W: this board takes up to {} W, the limit it has of itself",
                watts, most);
  BM_TRY(send(messages_.set_power_limit, watts, kMessageTimeoutUs));
  const uint32_t now = BM_TRY(power_limit());
  if (now != watts)
    return fail(Code::kIo, "a power limit of {} W was set, the SMU says {} W", watts, now);
  return {};
}

/// Source: smu_v13_0_6_reset_sdma(), smu_v13_0_6_init_caps(): MI300X's from 85.121.0 on, those of
/// program 7 from 85.7.0.
Status Smu::reset_copies(uint32_t engines) {
  const uint32_t version = BM_TRY(version_now(kMessageTimeoutUs));
  const uint32_t program = version >> 24;
  const uint32_t first = program == 0 ? 0x557900 : program == 7 ? 0x7550700 : UINT32_MAX;
  if (messages_.reset_copies == 0 || version < first)
    return fail(Code::kUnsupported,
                "power management firmware {}.{}.{} resets no copy engine, 85.121.0 does",
                version >> 16 & 0xff, version >> 8 & 0xff, version & 0xff);
  BM_TRY(send(messages_.reset_copies, engines, kMessageTimeoutUs));
  return {};
}

/// No answer comes: the card is gone for a while.
Status Smu::reset_card() {
  constexpr uint32_t kMode1 = 1;  // SMU_RESET_MODE_1
  if (messages_.driver_reset != 0) {
    post(messages_.driver_reset, kMode1);
    return bus_.status();
  }
  bus_.write(mailbox(Reg::SMN_C2PMSG_54), 0);
  bus_.write(mailbox(Reg::SMN_C2PMSG_53), 0);
  bus_.write(mailbox(Reg::SMN_C2PMSG_75), kDebugMode1Reset);
  return bus_.status();
}

Status start_bus_block(Bus& bus, const Card& card) {
  using enum Field;
  if (bus.has(Reg::XCC_DOORBELL_FENCE, Block::kBus)) {
    const At fence{Block::kBus, Reg::XCC_DOORBELL_FENCE};
    bus.write(fence, 0xff & ~card.xcc_mask);
    const uint32_t follows = bus.encode(Block::kBus, {{XCC_DOORBELL_FENCE_shub_slv_mode, 1}});
    for (uint32_t die = 1; die < card.dies; ++die) bus.write_on_die(fence, die, follows);
    bus.write({Block::kBus, Reg::BIFC_GFX_INT_MONITOR_MASK}, 0x7ff);
    bus.write({Block::kBus, Reg::BIFC_DOORBELL_ACCESS_EN_PF}, 0xfffff);
    bus.update(Block::kBus, {{RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN_bif_doorbell_aper_en, 1}});
    return bus.status();
  }
  bus.update(Block::kBus, {{RCC_DEV0_EPF2_STRAP2_strap_no_soft_reset_dev0_f2, 0}});
  bus.update(Block::kBus, {{RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN_bif_doorbell_aper_en, 1}});
  bus.update(Block::kHdp, {{HDP_MEM_POWER_CTRL_atomic_mem_power_ctrl_en, 1},
                           {HDP_MEM_POWER_CTRL_atomic_mem_power_ds_en, 1}});
  return bus.status();
}

void open_compute_doorbells(Bus& bus) {
  using enum Field;
  if (!bus.has(S2A_DOORBELL_ENTRY_0_CTRL_s2a_doorbell_port0_enable, Block::kBus)) return;
  // Ports of the command processor and of its scheduler; the kernel's 0x30000007 and 0x3000000d.
  bus.write_fields(Block::kBus,
                   {{S2A_DOORBELL_ENTRY_0_CTRL_s2a_doorbell_port0_enable, 1},
                    {S2A_DOORBELL_ENTRY_0_CTRL_s2a_doorbell_port0_awid, 3},
                    {S2A_DOORBELL_ENTRY_0_CTRL_s2a_doorbell_port0_awaddr_31_28_value, 3}});
  bus.write_fields(Block::kBus,
                   {{S2A_DOORBELL_ENTRY_3_CTRL_s2a_doorbell_port3_enable, 1},
                    {S2A_DOORBELL_ENTRY_3_CTRL_s2a_doorbell_port3_awid, 6},
                    {S2A_DOORBELL_ENTRY_3_CTRL_s2a_doorbell_port3_awaddr_31_28_value, 3}});
}

/// Each engine of a die has a port of its own, whose fields are all port 1's.
static void open_copy_port(Bus& bus, uint32_t engine, uint32_t first, uint32_t each) {
  using enum Field;
  struct Port {
    Reg entry;
    uint32_t id, address;
  };
  constexpr Port kPorts[] = {{Reg::S2A_DOORBELL_ENTRY_1_CTRL, 0xe, 0x1},
                             {Reg::S2A_DOORBELL_ENTRY_2_CTRL, 0x8, 0x2}};
  const Port& port = kPorts[engine];
  bus.write_fields(
      Block::kBus,
      {{DOORBELL0_CTRL_ENTRY_1_bif_doorbell1_range_offset_entry, first + engine * each},
       {DOORBELL0_CTRL_ENTRY_1_bif_doorbell1_range_size_entry, each}},
      0, engine);
  bus.write_on_die(
      {Block::kBus, port.entry}, 0,
      bus.encode(Block::kBus, {{S2A_DOORBELL_ENTRY_1_CTRL_s2a_doorbell_port1_enable, 1},
                               {S2A_DOORBELL_ENTRY_1_CTRL_s2a_doorbell_port1_awid, port.id},
                               {S2A_DOORBELL_ENTRY_1_CTRL_s2a_doorbell_port1_range_offset, port.id},
                               {S2A_DOORBELL_ENTRY_1_CTRL_s2a_doorbell_port1_range_size, each},
                               {S2A_DOORBELL_ENTRY_1_CTRL_s2a_doorbell_port1_awaddr_31_28_value,
                                port.address}}));
}

void open_copy_doorbells(Bus& bus, uint32_t first, uint32_t each, uint32_t engines) {
  using enum Field;
  if (bus.has(Reg::DOORBELL0_CTRL_ENTRY_1, Block::kBus)) {
    for (uint32_t engine = 0; engine < engines; ++engine) open_copy_port(bus, engine, first, each);
    return;
  }
  bus.update(Block::kBus,
             {{S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_enable, 1},
              {S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_awid, 0xe},
              {S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_range_offset, first},
              {S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_range_size, each * engines},
              {S2A_DOORBELL_ENTRY_2_CTRL_s2a_doorbell_port2_awaddr_31_28_value, 3}});
}

}  // namespace bm::amd::am
