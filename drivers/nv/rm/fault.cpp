#include "drivers/nv/rm/fault.h"

#include <algorithm>
#include <string_view>

#include "runtime/base/log.h"

namespace bm::nv {
namespace {

constexpr size_t kLogLines = 8;

// Linux nouveau, nvkm/engine/gr/gf100.c, gf100_mp_warp_error[]; the last four are of Volta and
// later (nvgpu, hw_gr_gv11b.h).
constexpr std::string_view kWarpErrors[] = {
    "",
    "stack error",
    "stack error of the programming interface",
    "return with an empty stack",
    "program counter wrapped",
    "misaligned program counter",
    "program counter out of range",
    "misaligned immediate constant address",
    "misaligned register",
    "illegal instruction encoding",
    "illegal instruction for the shader's header",
    "illegal instruction parameter",
    "invalid constant address",
    "register out of range",
    "address out of range",
    "misaligned address",
    "invalid address space",
    "illegal instruction parameter",
    "invalid constant address in a load",
    "geometry error",
    "divergent where it must not be",
    "warp exited early",
    "stack overflow",
    "memory fault",
    "texture format error",
    "texture layout error",
};

// open-gpu-kernel-modules 580.142, volta/gv100/dev_fault.h, NV_PFAULT_FAULT_TYPE_*.
constexpr std::string_view kFaultKinds[] = {
    "unmapped (no directory entry)",
    "directory size",
    "unmapped",
    "address beyond the limit",
    "no address space bound",
    "privilege",
    "read-only",
    "write-only",
    "pitch mask",
    "work creation",
    "unsupported aperture",
    "compression failure",
    "unsupported kind",
    "region",
    "poisoned",
    "no atomics here",
};

/// NV_PFAULT_ACCESS_TYPE_* of the same header; bit 3: by physical address.
std::string access_text(uint32_t type) {
  constexpr std::string_view kAccesses[] = {"read", "write", "atomic", "prefetch", "atomic"};
  const uint32_t low = type & 7;
  if (low >= std::size(kAccesses)) return fmt::format("access {:#x}", type);
  return std::string(kAccesses[low]) + ((type & 8) != 0 ? " (physical)" : "");
}

std::string warp_text(uint32_t esr) {
  const uint32_t error = esr & 0xffff;
  if (error < std::size(kWarpErrors)) return std::string(kWarpErrors[error]);
  return fmt::format("error {:#x}", error);
}

void read_sms(RmDevice& device, RmChannel& channel, FaultDetails& details) {
  RmClient& rm = device.client();
  using S = abi::SmErrorStates;
  const uint32_t room = rm.abi().layout(S::kId).fields[S::smErrorStateArray_hwwGlobalEsr].count;
  const uint32_t all = device.facts().enabled_sms;
  for (uint32_t first = 0; first < all; first += room) {
    abi::Params<S> ask(rm.abi());
    const uint32_t count = std::min(room, all - first);
    ask.set(S::hTargetChannel, channel.handle());
    ask.set(S::numSMsToRead, count);
    ask.set(S::startingSM, first);
    if (const Status asked =
            rm.control(Stage::kDebugger, channel.debugger(), abi::kCtrlSmErrorStates,
                       "DEBUG_READ_ALL_SM_ERROR_STATES", ask);
        !asked) {
      log("nv", LogLevel::kInfo, "{}", asked.error().message);
      return;
    }
    for (uint32_t i = 0; i < count; ++i) {
      FaultDetails::Sm sm;
      sm.sm = first + i;
      sm.esr_global = static_cast<uint32_t>(ask.get(S::smErrorStateArray_hwwGlobalEsr, i));
      sm.esr_warp = static_cast<uint32_t>(ask.get(S::smErrorStateArray_hwwWarpEsr, i));
      if (sm.esr_global == 0 && sm.esr_warp == 0) continue;
      sm.pc = ask.get(S::smErrorStateArray_hwwWarpEsrPc64, i);
      if (sm.pc == 0) sm.pc = ask.get(S::smErrorStateArray_hwwWarpEsrPc, i);
      sm.text = warp_text(sm.esr_warp);
      details.sms.push_back(std::move(sm));
    }
  }
}

void read_mmu(RmDevice& device, RmChannel& channel, FaultDetails& details) {
  RmClient& rm = device.client();
  using S = abi::MmuFaultInfo;
  abi::Params<S> ask(rm.abi());
  if (const Status asked = rm.control(Stage::kDebugger, channel.debugger(), abi::kCtrlMmuFaultInfo,
                                      "DEBUG_READ_MMU_FAULT_INFO", ask);
      !asked) {
    log("nv", LogLevel::kInfo, "{}", asked.error().message);
    return;
  }
  const uint32_t room = rm.abi().layout(S::kId).fields[S::mmuFaultInfoList_faultAddress].count;
  const uint64_t count = std::min<uint64_t>(ask.get(S::count), room);
  for (uint32_t i = 0; i < count; ++i)
    details.mmu.push_back(
        {.address = ask.get(S::mmuFaultInfoList_faultAddress, i),
         .access = access_text(static_cast<uint32_t>(ask.get(S::mmuFaultInfoList_accessType, i))),
         .kind = mmu_fault_kind(static_cast<uint32_t>(ask.get(S::mmuFaultInfoList_faultType, i)))});
}

/// The last lines of the driver, which name the cause ("Xid") in its own words.
std::string driver_lines(const std::string& kernel_log) {
  std::vector<std::string_view> lines;
  std::string_view rest = kernel_log;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    if (line.find("NVRM") != line.npos) lines.push_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::string text;
  for (size_t i = lines.size() - std::min(lines.size(), kLogLines); i < lines.size(); ++i)
    text += fmt::format("{}\n", lines[i]);
  return text;
}

}  // namespace

std::string mmu_fault_kind(uint32_t type) {
  if (type < std::size(kFaultKinds)) return std::string(kFaultKinds[type]);
  return fmt::format("fault {:#x}", type);
}

FaultDetails read_fault_details(RmDevice& device, RmChannel& channel) {
  FaultDetails details;
  if (channel.debugger() != 0) {
    read_sms(device, channel, details);
    read_mmu(device, channel, details);
  }
  details.kernel_log = driver_lines(device.client().transport().driver_log());
  return details;
}

}  // namespace bm::nv
