#include "tests/sim/amd/chip/smu.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

// smu_v13_0_0_ppsmc.h, PPSMC_Result_*.
constexpr uint32_t kOk = 1, kFailed = 0xff, kUnknown = 0xfe, kPrerequisite = 0xfd, kBusy = 0xfc;
// PPSMC_MSG_*: the same in all three interfaces but where the model does not know them by name.
constexpr uint32_t kTest = 1, kVersion = 2, kIfVersion = 3, kEnableAll = 6, kDisableAll = 7,
                   kRunningLow = 0xc, kRunningHigh = 0xd, kDramHigh = 0xe, kDramLow = 0xf,
                   kToMemory = 0x12, kFromMemory = 0x13, kSoftMin = 0x19, kSoftMax = 0x1a,
                   kHardMin = 0x1b, kHardMax = 0x1c, kMinFrequency = 0x1d, kMaxFrequency = 0x1e,
                   kByIndex = 0x1f, kMode1 = 0x2f, kSetLimit = 0x32, kGetLimit = 0x33,
                   kDramAddress14 = 0x50, kToMemoryWithAddress14 = 0x52, kAllRunning14 = 0x54;
constexpr uint32_t kDebugTest = 1, kDebugMode1 = 2;  // DEBUGSMC_MSG_*
// Registers: smu_v13_0_0_ppt.c, mmMP1_SMN_C2PMSG_*.
constexpr uint32_t kMessage66 = 0x282, kArgument82 = 0x292, kAnswer90 = 0x29a, kMessage75 = 0x28b,
                   kArgument53 = 0x275, kAnswer54 = 0x276;
constexpr uint32_t kOtherTableBytes = 0x200;
constexpr uint32_t kMetricsNumber = 5;               // TABLE_SMU_METRICS
constexpr uint32_t kSpareWords = 30, kPadWords = 8;  // SmuMetricsExternal_t, behind SmuMetrics_t
constexpr uint32_t kIdleWatts = 13, kFullWatts = 420;
constexpr uint32_t kHotC = 100;  // from there on it throttles

/// Members one after the other, each at a multiple of its size, as compilers lay structures out.
class StructWriter {
 public:
  template <class... Values>
  void words(Values... values) {
    (put(static_cast<uint32_t>(values), 4), ...);
  }
  template <class... Values>
  void halves(Values... values) {
    (put(static_cast<uint32_t>(values), 2), ...);
  }
  template <class... Values>
  void bytes(Values... values) {
    (put(static_cast<uint32_t>(values), 1), ...);
  }
  /// Something else in each member, so that whoever looks a place beside his own is found out.
  void noise(size_t count, size_t size) {
    for (size_t i = 0; i < count; ++i) put(0x6100 + 7 * static_cast<uint32_t>(out_.size()), size);
  }
  std::vector<uint8_t> take() {
    while (out_.size() % 4 != 0) out_.push_back(0);
    return std::move(out_);
  }

 private:
  void put(uint32_t value, size_t size) {
    while (out_.size() % size != 0) out_.push_back(0xa5);
    for (size_t i = 0; i < size; ++i) out_.push_back(static_cast<uint8_t>(value >> (8 * i)));
  }
  std::vector<uint8_t> out_;
};

/// How many of each SmuMetrics_t has: PPCLK_COUNT, SVI_PLANE_COUNT, TEMP_COUNT, THROTTLER_COUNT and
/// TABLE_COUNT of the interface's header, and numbers of its throttlers.
struct MetricsShape {
  size_t clocks, planes, temperatures, throttlers;
  bool has_moving_averages;
  uint32_t tables;
  size_t ppt0_throttler;
};
const MetricsShape& shape_of(SmuInterface interface) {
  static const std::map<SmuInterface, MetricsShape> shapes = {
      {SmuInterface::k13_0_0, {13, 5, 13, 22, false, 12, 16}},
      {SmuInterface::k13_0_7, {13, 5, 13, 22, false, 13, 16}},
      {SmuInterface::k14_0_2, {11, 4, 12, 21, true, 13, 14}},
  };
  return shapes.at(interface);
}

/// Levels in MHz by clock number: smu13_driver_if_v13_0_0.h and smu14_driver_if_v14_0.h, PPCLK_e
/// starts with GFXCLK, SOCCLK, UCLK, FCLK.
std::vector<uint32_t> levels(uint32_t clock) {
  switch (clock) {
    case 0: return {500, 2500};  // GFXCLK: two levels, what is between them is free
    case 1: return {400, 800, 1200};
    case 2: return {96, 456, 772, 1250};
    case 3: return {500, 1200, 2000};
    default: return clock < 12 ? std::vector<uint32_t>{300, 600} : std::vector<uint32_t>{};
  }
}

}  // namespace

Smu::Smu(RegisterBus& bus, Hub& hub) : bus_(bus), hub_(hub) {
  is_alive_ = bus.row().has_direct_load;
  declare(main_, kMessage66, kArgument82, kAnswer90, false);
  declare(debug_, kMessage75, kArgument53, kAnswer54, true);
}

void Smu::declare(Mailbox& box, uint32_t message, uint32_t argument, uint32_t answer,
                  bool is_debug) {
  const uint32_t base = bus_.row().ip(Ip::kMp1).bases[0];
  const char* const source = "smu_v13_0_0_ppt.c, smu_v14_0_2_ppt.c";
  const std::string prefix = is_debug ? "MP1 debug " : "MP1 ";
  box.argument = &bus_.declare_at(Ip::kMp1, base + argument, prefix + "argument", source);
  // Whoever clears the answer has waited long enough for it to be there, read or not.
  box.answer = &bus_.declare_at(Ip::kMp1, base + answer, prefix + "answer", source,
                                {.read =
                                     [&box] {
                                       if (box.polls > 0 && --box.polls == 0)
                                         *box.answer = box.pending;
                                       return *box.answer;
                                     },
                                 .write =
                                     [&box](uint32_t value) {
                                       box.polls = 0;
                                       *box.answer = value;
                                     }});
  box.message =
      &bus_.declare_at(Ip::kMp1, base + message, prefix + "message", source,
                       {.write = [this, &box, is_debug](uint32_t value) {
                         *box.message = value;
                         if (!is_alive_) return;
                         if (*box.answer != 0 || box.polls != 0) {
                           bus_.violations().add(fmt::format(
                               "SMU: message {:#x} while the last one's answer is there", value));
                           *box.answer = kBusy;
                           box.polls = 0;
                           return;
                         }
                         const auto planted = planted_answer.find(value);
                         if (planted != planted_answer.end()) {
                           box.pending = planted->second;
                           box.polls = planted->second == 0 ? 0 : 2;
                           return;
                         }
                         // A mode 1 reset in there forgets everything, but for its answer.
                         box.pending = is_debug ? run_debug(value) : run(value, box.argument);
                         box.polls = 2;
                       }});
}

void Smu::reset() {
  is_alive_ = bus_.row().has_direct_load;
  main_.polls = debug_.polls = 0;
  has_dram_ = false;
  dram_high_ = dram_low_ = features_ = 0;
  power_limit_watts = board_limit_watts;
  measured_ = energy_ = unmeasured = 0;
}

/// Numbers that the headers leave out, and all above the last one.
bool Smu::is_known(uint32_t message) const {
  static const std::map<SmuInterface, std::pair<uint32_t, std::vector<uint32_t>>> interfaces = {
      {SmuInterface::k13_0_0, {0x52, {0, 0x4d, 0x50}}},
      {SmuInterface::k13_0_7, {0x52, {0, 0x37, 0x4d, 0x4e, 0x4f, 0x50}}},
      {SmuInterface::k14_0_2, {0x59, {0, 0x2f, 0x37, 0x3f}}},
  };
  const auto& [count, holes] = interfaces.at(bus_.row().smu);
  for (const uint32_t hole : holes)
    if (message == hole) return false;
  return message < count;
}

uint32_t Smu::run_debug(uint32_t message) {
  if (bus_.row().smu == SmuInterface::k13_0_6) {
    bus_.violations().add("SMU: the debug mailbox of 13.0.6 is not modelled");
    return kUnknown;
  }
  if (message == kDebugTest) return kOk;
  // Only where the kernel resets so: smu_v13_0_0_ppt.c, smu_v13_0_7_ppt.c sends
  // PPSMC_MSG_Mode1Reset as well, smu_v14_0_2_ppt.c.
  if (message == kDebugMode1) {
    if (on_mode1) on_mode1();
    return kOk;
  }
  bus_.violations().add(fmt::format("SMU: unknown debug message {:#x}", message));
  return kUnknown;
}

uint32_t Smu::level(uint32_t argument, uint32_t* out) const {
  const auto all = levels(argument >> 16);
  const uint32_t index = argument & 0xffff;
  if (all.empty() || (index != 0xff && index >= all.size())) return kFailed;
  // 0xff asks how many there are; bit 31 says that what is between the levels is free
  // (smu_v13_0_get_fine_grained_status()).
  *out = index == 0xff ? static_cast<uint32_t>(all.size()) : all[index];
  if (index != 0xff && argument >> 16 == 0) *out |= 1u << 31;
  return kOk;
}

uint32_t Smu::table(uint32_t number, bool is_to_memory) {
  if (!has_dram_) {
    bus_.violations().add("SMU: a table before SetDriverDramAddr");
    return kPrerequisite;
  }
  if ((number & 0xffff) >= shape_of(bus_.row().smu).tables) {
    bus_.violations().add(fmt::format("SMU: there is no table {}", number & 0xffff));
    return kFailed;
  }
  if (number == kMetricsNumber && is_to_memory) return publish(metrics());
  std::vector<uint8_t> bytes(kOtherTableBytes, static_cast<uint8_t>(0xc0 + number));
  if (is_to_memory) return publish(bytes);
  const uint64_t address = uint64_t{dram_high_} << 32 | dram_low_;
  if (hub_.read(address, std::as_writable_bytes(std::span(bytes)))) return kOk;
  bus_.violations().add(fmt::format("SMU: the tables' memory at {:#x} is nowhere", address));
  return kFailed;
}

uint32_t Smu::publish(std::span<const uint8_t> bytes) {
  const uint64_t address = uint64_t{dram_high_} << 32 | dram_low_;
  if (hub_.write(address, std::as_bytes(bytes))) return kOk;
  bus_.violations().add(fmt::format("SMU: the tables' memory at {:#x} is nowhere", address));
  return kFailed;
}

uint32_t Smu::measure_activity() {
  const uint64_t now = packets ? packets() : 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>(100, (now - std::exchange(packets_seen_, now)) * 20));
}

uint32_t Smu::watts_at(uint32_t activity) const {
  return kIdleWatts + activity * (kFullWatts - kIdleWatts) / 100;
}

/// struct hsmp_metric_table, in the order of its members, which are packed to 4 bytes. Fractions
/// are half of the values' last digit or a little less, so that whoever cuts or rounds up is seen.
std::vector<uint8_t> Smu::socket_metrics() {
  const auto above = [](uint32_t value) { return (value << 10) + 0x1ff; };
  const auto below = [](uint32_t value) { return value == 0 ? 0 : (value << 10) - 0x200; };
  StructWriter out;
  if (unmeasured > 0) {
    --unmeasured;
    for (int i = 0; i < 400; ++i) out.words(0);
    return out.take();
  }
  const uint32_t activity = measure_activity(),
                 watts = std::min(watts_at(activity), power_limit_watts);
  const auto quads = [&](size_t count) { out.noise(count * 2, 4); };
  out.words(++measured_);
  out.words(above(edge_c + 9), above(edge_c + 30), below(edge_c + 16));  // socket, VR, HBM
  quads(3);
  out.words(above(power_limit_watts), above(board_limit_watts), below(watts));
  quads(1 + 5);                                               // time, energies
  out.noise(2, 4);                                            // limits of CCLK and GFXCLK
  out.words(above(1800), above(activity == 0 ? 900 : 1300));  // FCLK, UCLK
  out.noise(4 * 4, 4);                                        // SOCCLK, VCLK, DCLK, LCLK
  quads(8 + 96);
  out.noise(4 + 6 * 4 + 2, 4);  // ranges
  out.noise(2, 4);
  quads(8 + 8);  // XGMI
  out.noise(1, 4);
  out.words(below(activity), above(activity / 2));  // GFX busy, DRAM utilization
  quads(3);
  out.noise(1, 4);
  quads(1 + 4);
  out.noise(5 + 1, 4);  // how long each throttled; spare
  for (uint32_t chiplet = 0; chiplet < 8; ++chiplet)
    out.words(below(activity == 0 ? 132 + chiplet : 2100 - chiplet));
  return out.take();
}

/// SmuMetrics_t, in the order of its members.
std::vector<uint8_t> Smu::metrics() {
  const MetricsShape& shape = shape_of(bus_.row().smu);
  const uint32_t activity = measure_activity(), wanted = watts_at(activity);
  const uint32_t watts = std::min(wanted, power_limit_watts);
  energy_ += watts;
  StructWriter out;
  // CurrClock: GFXCLK, SOCCLK, UCLK and others.
  out.words(activity == 0 ? 500 : 2480, 800, activity == 0 ? 96 : 1249);
  out.noise(shape.clocks - 3, 4);
  out.halves(2600);                             // gfxclk, target
  out.halves(2450, activity == 0 ? 11 : 2200);  // before and after deep sleep
  out.halves(1950, 700);                        // fclk
  out.halves(1240, activity == 0 ? 5 : 1100);   // memclk
  out.noise(4, 2);                              // video clocks
  out.noise(2, 2);                              // PCIeBusy, dGPU_W_MAX
  out.halves(0);
  if (shape.has_moving_averages) out.noise(16, 2);
  out.words(++measured_);
  out.noise(shape.planes, 2);  // voltages
  out.noise(shape.planes, 2);  // currents
  out.halves(activity);
  out.halves(activity == 0 ? 0xfffe : activity / 2);  // of memory; below zero when it is idle
  out.noise(2, 2);
  out.words(energy_);
  out.halves(watts, watts + 24);
  out.halves(edge_c, edge_c + 9);
  out.noise(2, 2);
  out.halves(edge_c + 16);  // TEMP_MEM
  out.noise(shape.temperatures - 5, 2);
  out.noise(1, 2);                                    // of the air that fans take in
  out.bytes(4, 6);                                    // link
  const uint32_t fan = edge_c < 50 ? 0 : edge_c / 2;  // per cent; it stands still when it is cool
  out.bytes(fan, 0);
  out.halves(fan * 33);
  for (size_t i = 0; i < shape.throttlers; ++i) {
    const bool is_hot = i == 1 && edge_c + 9 >= kHotC;  // THROTTLER_TEMP_HOTSPOT_BIT
    out.bytes(is_hot ? 37 : i == shape.ppt0_throttler && watts < wanted ? 64 : 0);
  }
  if (shape.has_moving_averages) out.bytes(0, 0, 0);
  out.noise(12, 4);
  out.noise(4, 2);
  out.words(0x5e41a1, 0x1);
  out.noise(kSpareWords + kPadWords, 4);
  return out.take();
}

uint32_t Smu::set_limit(uint32_t argument) {
  if (argument != 0 && argument <= board_limit_watts) {
    power_limit_watts = argument;
    return kOk;
  }
  bus_.violations().add(
      fmt::format("SMU: a power limit of {:#x}, the board has {} W", argument, board_limit_watts));
  return kFailed;
}

uint32_t Smu::get_limit(uint32_t* argument) {
  // POWER_SOURCE_AC and POWER_SOURCE_DC in the upper half; a card in a slot is on mains alone.
  if (*argument >> 16 < 2 && (*argument & 0xffff) == 0) {
    *argument = power_limit_watts;
    return kOk;
  }
  bus_.violations().add(fmt::format("SMU: the power limit of source {:#x}", *argument));
  return kFailed;
}

/// smu_v13_0_6_ppsmc.h.
uint32_t Smu::run_mi300(uint32_t message, uint32_t* argument) {
  constexpr uint32_t kTestMi300 = 1, kVersionMi300 = 2, kReset = 3, kInterface = 4, kEnable = 5,
                     kMetricsMi300 = 9, kHigh = 0xd, kLow = 0xe, kSoftMinMi300 = 0x13,
                     kSoftMaxMi300 = 0x14, kByIndexMi300 = 0x17, kSetLimitMi300 = 0x18,
                     kGetLimitMi300 = 0x19, kResetCopies = 0x4d;
  constexpr uint32_t kFirstWithResets = 0x00557900;
  switch (message) {
    case kTestMi300: ++*argument; return kOk;
    case kVersionMi300: *argument = version; return kOk;
    case kInterface: *argument = 0x8042024; return kOk;
    case kEnable:
      if (!has_dram_) break;
      features_ = UINT32_MAX;
      unmeasured = 2;
      return kOk;
    case kMetricsMi300:
      if (!has_dram_) break;
      return publish(socket_metrics());
    case kSetLimitMi300: return set_limit(*argument);
    case kGetLimitMi300: return get_limit(argument);
    case kResetCopies:
      if (version < kFirstWithResets) return kUnknown;
      if (on_reset_copies && on_reset_copies(*argument)) return kOk;
      break;
    case kHigh: dram_high_ = *argument; return kOk;
    case kLow:
      dram_low_ = *argument;
      has_dram_ = true;
      return kOk;
    case kSoftMinMi300:
    case kSoftMaxMi300: return levels(*argument >> 16).empty() ? kFailed : kOk;
    case kByIndexMi300: return level(*argument, argument);
    case kReset:
      if (*argument != 1) break;
      if (on_mode1) on_mode1();
      return kOk;
    default:
      bus_.violations().add(fmt::format("SMU: message {:#x} is not modelled", message));
      return kUnknown;
  }
  bus_.violations().add(fmt::format("SMU: message {:#x} of {:#x}", message, *argument));
  return kPrerequisite;
}

uint32_t Smu::run(uint32_t message, uint32_t* argument) {
  if (bus_.row().smu == SmuInterface::k13_0_6) return run_mi300(message, argument);
  if (!is_known(message)) {
    bus_.violations().add(fmt::format("SMU: unknown message {:#x}", message));
    return kUnknown;
  }
  const bool is_14 = bus_.row().smu == SmuInterface::k14_0_2;
  const auto all = levels(*argument >> 16);
  switch (message) {
    case kTest: ++*argument; return kOk;
    case kVersion: *argument = is_14 ? 0x00663e00 : 0x004e8000; return kOk;
    case kIfVersion: *argument = is_14 ? 0x2e : 0x3d; return kOk;
    case kEnableAll: features_ = UINT32_MAX; return kOk;
    case kDisableAll: features_ = 0; return kOk;
    case kRunningLow:
    case kRunningHigh: *argument = features_; return kOk;
    case kDramHigh: dram_high_ = *argument; return kOk;
    case kDramLow:
      dram_low_ = *argument;
      has_dram_ = true;
      return kOk;
    case kToMemory: return table(*argument, true);
    case kFromMemory: return table(*argument, false);
    case kByIndex: return level(*argument, argument);
    case kMinFrequency:
      if (all.empty()) return kFailed;
      *argument = all.front();
      return kOk;
    case kMaxFrequency:
      if (all.empty()) return kFailed;
      *argument = all.back();
      return kOk;
    case kSoftMin:
    case kSoftMax:
    case kHardMin:
    case kHardMax: return all.empty() ? kFailed : kOk;
    case kMode1:
      if (on_mode1) on_mode1();
      return kOk;
    case kSetLimit: return set_limit(*argument);
    case kGetLimit: return get_limit(argument);
    default: break;
  }
  if (is_14 && message == kDramAddress14) {
    // Pieces of 16 bits would not do: which ones smu_cmn sends is in no source of this model.
    bus_.violations().add("SMU: SetDriverDramAddr of 14.0.2 is not modelled, send the two halves");
    return kFailed;
  }
  if (is_14 && message == kToMemoryWithAddress14) return table(*argument, true);
  if (is_14 && message == kAllRunning14) *argument = features_;
  return kOk;  // known, without an effect here
}

}  // namespace bm::sim::amd
