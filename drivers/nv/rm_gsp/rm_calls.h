#pragma once
// Calls of the resource manager as messages to the GSP: allocation, control, free, and the two that
// give it page directories. Also what it is asked once, at the start.
//
// Source: open-gpu-kernel-modules 570.144, rpc.c (rpcRmApiAlloc_GSP, rpcRmApiControl_GSP,
// rpcFree_v03_00, rpcSetPageDirectory_v1E_05); Linux nouveau, nvkm/subdev/gsp/rm/r535/alloc.c.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm_gsp/memory.h"
#include "drivers/nv/gsp/rpc.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// The firmware whose structures these are.
inline constexpr abi::Version kFirmware = {570, 144, 0};

struct AllocCall {
  uint32_t client = 0, parent = 0, object = 0, object_class = 0;
  abi::AnyParams* params = nullptr;
  uint32_t bytes = 0;  ///< of the parameters
};

struct ControlCall {
  uint32_t client = 0, object = 0, command = 0;
  abi::AnyParams* params = nullptr;
  uint32_t bytes = 0;
};

/// An engine with a runlist.
struct RunlistEngine {
  uint32_t type = 0;  ///< NV2080_ENGINE_TYPE_*
  uint32_t runlist = 0;
};

/// What the GSP says of itself and the card.
struct StaticInfo {
  uint32_t client = 0, device = 0, subdevice = 0;  ///< for internal controls
  std::string name;
  std::array<uint8_t, 16> uuid{};
  uint64_t video_bytes = 0;
  std::vector<VideoRegion> regions;  ///< usable
};

/// Errors are failures of the way; what the resource manager answers is the result. Thread: as
/// GspRpc.
class RmCalls {
 public:
  /// `rpc` outlives it.
  static Result<RmCalls> create(GspRpc& rpc);

  const abi::Abi& abi() const { return abi_; }
  GspRpc& rpc() { return *rpc_; }

  Result<uint32_t> alloc(std::string_view what, const AllocCall& call);
  Result<uint32_t> control(std::string_view what, const ControlCall& call);
  Result<uint32_t> free(std::string_view what, uint32_t client, uint32_t parent, uint32_t object);
  /// Root of the page tables of `space`, in video memory, for all its channels.
  Status set_page_directory(uint32_t client, uint32_t device, uint32_t space, uint64_t root,
                            uint32_t entries);
  Status unset_page_directory(uint32_t client, uint32_t device, uint32_t space);

  // The same where anything but NV_OK is an error, named as the calls of rm/client.h are.
  Status must_alloc(std::string_view what, const AllocCall& call);
  Status must_control(std::string_view what, const ControlCall& call);

  /// Stage P12. Errors: kCorrupt (short answer, no usable memory), kUnsupported.
  Result<StaticInfo> read_static_info();
  Result<std::vector<RunlistEngine>> read_engines(const StaticInfo& info);
  /// Of the buffer in which a copy engine keeps methods when it faults.
  Result<uint64_t> read_method_buffer_bytes(const StaticInfo& info);

 private:
  RmCalls(GspRpc& rpc, abi::Abi abi) : rpc_(&rpc), abi_(std::move(abi)) {}
  Result<uint32_t> exchange(std::string_view what, RpcFunction function,
                            std::span<const std::byte> header, uint32_t status_at,
                            abi::AnyParams* params, uint32_t bytes);
  Status simple(std::string_view what, RpcFunction function, abi::AnyParams& params);

  GspRpc* rpc_;
  abi::Abi abi_;
};

}  // namespace bm::nv::gsp
