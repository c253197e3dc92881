#include "drivers/nv/rm_gsp/faults.h"

#include <algorithm>
#include <cstring>

#include "drivers/nv/rm/fault.h"

namespace bm::nv::gsp {
namespace {

// nverror.h, ROBUST_CHANNEL_*: an MMU fault while an engine works, and while a context is switched.
constexpr uint32_t kMmuFault = 31, kSwitchFault = 44;
// Xids of a card, not of a channel: fallen off the bus, RPC time-out, GSP error, GPU
// initialisation, recovery action.
constexpr uint32_t kCardXids[] = {79, 119, 120, 143, 154};

template <class S>
Result<abi::Params<S>> decode(const abi::Abi& abi, std::span<const std::byte> payload,
                              std::string_view what) {
  abi::Params<S> params(abi);
  if (payload.size() < params.size())
    return fail(Code::kCorrupt, "{} of {} bytes; the structure has {}", what, payload.size(),
                params.size());
  std::memcpy(params.data(), payload.data(), params.size());
  return params;
}

}  // namespace

bool ChannelFault::is_mmu_fault() const { return code == kMmuFault || code == kSwitchFault; }

Result<ChannelFault> decode_channel_fault(const abi::Abi& abi, std::span<const std::byte> payload) {
  using S = abi::RcTriggered;
  const abi::Params<S> params = BM_TRY(decode<S>(abi, payload, "RC_TRIGGERED"));
  const auto word = [&](S::Field field) { return static_cast<uint32_t>(params.get(field)); };
  return ChannelFault{
      .channel = word(S::chid),
      .engine = word(S::nv2080EngineType),
      .code = word(S::exceptType),
      .mmu_kind = word(S::mmuFaultType),
      .address = params.get(S::mmuFaultAddrHi) << 32 | params.get(S::mmuFaultAddrLo),
      .time_ns = 0};
}

Result<ErrorLog> decode_error_log(const abi::Abi& abi, std::span<const std::byte> payload) {
  using S = abi::OsErrorLog;
  abi::Params<S> params = BM_TRY(decode<S>(abi, payload, "OS_ERROR_LOG"));
  ErrorLog log{.xid = static_cast<uint32_t>(params.get(S::exceptType)),
               .runlist = static_cast<uint32_t>(params.get(S::runlistId)),
               .channel = static_cast<uint32_t>(params.get(S::chid)),
               .text = {}};
  const std::span<const std::byte> text = params.bytes(S::errString);
  const char* const first = reinterpret_cast<const char*>(text.data());
  log.text.assign(first, ::strnlen(first, text.size()));
  while (!log.text.empty() && (log.text.back() == '\n' || log.text.back() == ' '))
    log.text.pop_back();
  return log;
}

std::string error_log_line(std::string_view card, const ErrorLog& log) {
  return fmt::format("NVRM: Xid (PCI:{}): {}, {}", card, log.xid, log.text);
}

FaultDetails::Mmu mmu_details(const ChannelFault& fault) {
  return {.address = fault.address, .access = {}, .kind = mmu_fault_kind(fault.mmu_kind)};
}

bool loses_card(uint32_t xid) { return std::ranges::find(kCardXids, xid) != std::end(kCardXids); }

}  // namespace bm::nv::gsp
