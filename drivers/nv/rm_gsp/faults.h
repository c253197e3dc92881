#pragma once
// What the GSP tells of errors of its own accord, in words and numbers. Pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/driver_interface.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// RC_TRIGGERED: a channel was given up.
/// Source: rpc_rc_triggered_v17_02; kernel_gsp.c, _kgspRpcRCTriggered() (570.144).
struct ChannelFault {
  uint32_t channel = 0;  ///< hardware number
  uint32_t engine = 0;   ///< NV2080_ENGINE_TYPE_*
  uint32_t code = 0;     ///< robust-channel code, as in an ErrorNotifier
  uint32_t mmu_kind = 0;
  uint64_t address = 0;  ///< what was accessed, for MMU faults
  uint64_t time_ns = 0;  ///< when it was heard of, GPU clock

  bool is_mmu_fault() const;
};
/// Errors: kCorrupt (shorter than the structure).
Result<ChannelFault> decode_channel_fault(const abi::Abi& abi, std::span<const std::byte> payload);

/// OS_ERROR_LOG: what the kernel module would write to the kernel's log.
/// Source: rpc_os_error_log_v17_00; _kgspRpcOsErrorLog() (570.144).
struct ErrorLog {
  static constexpr uint32_t kNoChannel = ~0u;
  uint32_t xid = 0;
  uint32_t runlist = 0;
  uint32_t channel = kNoChannel;
  std::string text;
};
/// Errors: kCorrupt (shorter than the structure).
Result<ErrorLog> decode_error_log(const abi::Abi& abi, std::span<const std::byte> payload);

/// "NVRM: Xid (PCI:0000:01:00.0): 31, Ch 00000008 …": the line as the kernel's log would have it.
std::string error_log_line(std::string_view card, const ErrorLog& log);

/// The MMU's part of a fault, as devices know it.
FaultDetails::Mmu mmu_details(const ChannelFault& fault);

/// Whether errors of this number end the whole card, whatever channel they name.
bool loses_card(uint32_t xid);

}  // namespace bm::nv::gsp
