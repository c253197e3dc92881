#include "tests/sim/amd/chip/smu.h"

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
constexpr uint32_t kMetricsBytes = 0x200;

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
  is_alive_ = false;
  main_.polls = debug_.polls = 0;
  has_dram_ = false;
  dram_high_ = dram_low_ = features_ = 0;
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
  const uint64_t address = uint64_t{dram_high_} << 32 | dram_low_;
  std::vector<uint32_t> words(kMetricsBytes / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = number << 16 | static_cast<uint32_t>(i);
  const bool is_done = is_to_memory ? hub_.write(address, std::as_bytes(std::span(words)))
                                    : hub_.read(address, std::as_writable_bytes(std::span(words)));
  if (is_done) return kOk;
  bus_.violations().add(fmt::format("SMU: the tables' memory at {:#x} is nowhere", address));
  return kFailed;
}

uint32_t Smu::run(uint32_t message, uint32_t* argument) {
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
    case kSetLimit: power_limit_watts = *argument & 0xffff; return kOk;
    case kGetLimit: *argument = power_limit_watts; return kOk;
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
