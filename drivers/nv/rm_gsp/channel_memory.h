#pragma once
// What the hardware keeps of a channel, and the description of a channel by physical address that
// the GSP wants where the kernel driver gives handles.
//
// Source: open-gpu-kernel-modules 570.144, kernel_channel.c, _kchannelSendChannelAllocRpc();
// alloc_channel.h (NV_CHANNEL_ALLOC_PARAMS, NVOS04_FLAGS_*); Linux nouveau,
// nvkm/subdev/gsp/rm/r570/fifo.c, r570_chan_alloc().

#include <cstdint>
#include <optional>
#include <set>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm_gsp/memory.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// Numbers of channels, which the GSP takes from its client. One set for all runlists.
class ChannelNumbers {
 public:
  /// 2048 channels; number 0 is the firmware's (nouveau, r570_fifo.rsvd_chids).
  static constexpr uint32_t kFirst = 1, kEnd = 2048;
  Result<uint32_t> take();
  void give_back(uint32_t number) { taken_.erase(number); }

 private:
  std::set<uint32_t> taken_;
};

/// Where something lies: NV_MEMORY_DESC_PARAMS.
struct PhysicalPlace {
  uint64_t address = 0, bytes = 0;
  bool is_system = false;
};

/// Instance block (with RAMFC at its start) and method buffer of one channel.
struct ChannelMemory {
  Block instance, method_buffer;
  /// Errors: kOutOfMemory.
  static Result<ChannelMemory> take(CardMemory& memory, uint64_t method_buffer_bytes);
};

enum class ChannelPrivilege : uint8_t { kUser = 0, kAdmin = 1 };

struct ChannelPlaces {
  uint32_t number = 0;
  PhysicalPlace userd;
  std::optional<PhysicalPlace> notifier;
  ChannelPrivilege privilege = ChannelPrivilege::kUser;
};

/// Writes into `params` what the GSP needs beside the ring: where everything lies, and the number.
/// Handles of memory are the caller's own affair and become 0, but for the notifier's: without it
/// the resource manager writes none.
void describe_channel(abi::Params<abi::ChannelAlloc>& params, const ChannelMemory& memory,
                      const ChannelPlaces& places);

/// How a generation's doorbell names a channel.
enum class TokenForm : uint8_t {
  kRunlist,         ///< Turing to GB10x: runlist 22:16, channel 11:0
  kRunlistEnabled,  ///< GB20x: the same with bit 30, RUNLIST_DOORBELL_ENABLE
};
/// Source: kfifoGenerateWorkSubmitTokenHal_TU102(), _GA100(), _GB202() (570.144).
uint32_t work_submit_token(TokenForm form, uint32_t runlist, uint32_t channel);

}  // namespace bm::nv::gsp
