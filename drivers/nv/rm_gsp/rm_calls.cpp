#include "drivers/nv/rm_gsp/rm_calls.h"

#include <algorithm>
#include <cstring>

#include "drivers/nv/rm/status.h"
#include "runtime/base/check.h"

namespace bm::nv::gsp {
namespace {

// gpu_engine_type.h counts all copy engines before anything else, NV2080_ENGINE_TYPE_* only ten.
constexpr uint32_t kRmGraphics = 1, kRmCopy0 = 9, kRmCopy10 = 0x13, kRmCopy19 = 0x1c;
// engine_info.h, ENGINE_INFO_TYPE_*.
constexpr size_t kInfoEngine = 2, kInfoRunlist = 3;
// ctrl0080dma.h: NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_FLAGS: video memory, all channels.
constexpr uint64_t kAllChannels = 1 << 3;
constexpr uint64_t kNoPasid = UINT32_MAX;

/// NV2080_ENGINE_TYPE_* of graphics and copy engines; nothing for others.
std::optional<uint32_t> engine_type(uint32_t rm_type) {
  if (rm_type == kRmGraphics) return abi::kEngineGraphics;
  if (rm_type >= kRmCopy0 && rm_type < kRmCopy10) return abi::kEngineCopy0 + (rm_type - kRmCopy0);
  if (rm_type >= kRmCopy10 && rm_type <= kRmCopy19)
    return abi::kEngineCopy10 + (rm_type - kRmCopy10);
  return std::nullopt;
}

Error refused(std::string_view what, uint32_t status) {
  return {Code::kUnsupported, fmt::format("{}: {}", what, status_text(status))};
}

}  // namespace

Result<RmCalls> RmCalls::create(GspRpc& rpc) {
  return RmCalls(rpc, BM_TRY(abi::Abi::create(kFirmware)));
}

/// Header and parameters there, and back into the parameters.
Result<uint32_t> RmCalls::exchange(std::string_view what, RpcFunction function,
                                   std::span<const std::byte> header, uint32_t status_at,
                                   abi::AnyParams* params, uint32_t bytes) {
  BM_CHECK(params == nullptr ? bytes == 0 : bytes <= params->size() + abi::kSlack);
  std::vector<std::byte> payload(header.size() + bytes);
  std::memcpy(payload.data(), header.data(), header.size());
  if (bytes != 0) std::memcpy(payload.data() + header.size(), params->data(), bytes);
  const RpcReply reply =
      BM_TRY(rpc_->call({.what = what, .function = function, .payload = payload}));
  if (reply.result != kStatusOk) return reply.result;
  if (reply.payload.size() < header.size())
    return fail(Code::kCorrupt, "{}: the GSP answered {} bytes", what, reply.payload.size());
  uint32_t status = 0;
  std::memcpy(&status, reply.payload.data() + status_at, sizeof(status));
  if (status == kStatusOk && reply.payload.size() - header.size() < bytes)
    return fail(Code::kCorrupt, "{}: the GSP answered {} of {} bytes of parameters", what,
                reply.payload.size() - header.size(), bytes);
  const size_t back = std::min<size_t>(bytes, reply.payload.size() - header.size());
  if (back != 0) std::memcpy(params->data(), reply.payload.data() + header.size(), back);
  return status;
}

Result<uint32_t> RmCalls::alloc(std::string_view what, const AllocCall& call) {
  using S = abi::RpcRmAlloc;
  abi::Params<S> header(abi_);
  header.set(S::hClient, call.client);
  header.set(S::hParent, call.parent);
  header.set(S::hObject, call.object);
  header.set(S::hClass, call.object_class);
  header.set(S::paramsSize, call.bytes);
  const uint32_t status_at = abi_.layout(S::kId).fields[S::status].offset;
  return exchange(what, RpcFunction::kGspRmAlloc,
                  {static_cast<const std::byte*>(header.data()), header.size()}, status_at,
                  call.params, call.bytes);
}

Result<uint32_t> RmCalls::control(std::string_view what, const ControlCall& call) {
  using S = abi::RpcRmControl;
  abi::Params<S> header(abi_);
  header.set(S::hClient, call.client);
  header.set(S::hObject, call.object);
  header.set(S::cmd, call.command);
  header.set(S::paramsSize, call.bytes);
  const uint32_t status_at = abi_.layout(S::kId).fields[S::status].offset;
  return exchange(what, RpcFunction::kGspRmControl,
                  {static_cast<const std::byte*>(header.data()), header.size()}, status_at,
                  call.params, call.bytes);
}

Result<uint32_t> RmCalls::free(std::string_view what, uint32_t client, uint32_t parent,
                               uint32_t object) {
  using S = abi::RmFree;
  abi::Params<S> params(abi_);
  params.set(S::hRoot, client);
  params.set(S::hObjectParent, parent);
  params.set(S::hObjectOld, object);
  const RpcReply reply = BM_TRY(
      rpc_->call({.what = what,
                  .function = RpcFunction::kFree,
                  .payload = {static_cast<const std::byte*>(params.data()), params.size()}}));
  if (reply.result != kStatusOk || reply.payload.size() < params.size()) return reply.result;
  std::memcpy(params.data(), reply.payload.data(), params.size());
  return static_cast<uint32_t>(params.get(S::status));
}

Status RmCalls::simple(std::string_view what, RpcFunction function, abi::AnyParams& params) {
  const RpcReply reply = BM_TRY(
      rpc_->call({.what = what,
                  .function = function,
                  .payload = {static_cast<const std::byte*>(params.data()), params.size()}}));
  if (reply.result != kStatusOk) return tl::unexpected(refused(what, reply.result));
  return {};
}

Status RmCalls::set_page_directory(uint32_t client, uint32_t device, uint32_t space, uint64_t root,
                                   uint32_t entries) {
  using S = abi::RpcSetPageDirectory;
  abi::Params<S> params(abi_);
  params.set(S::hClient, client);
  params.set(S::hDevice, device);
  params.set(S::pasid, kNoPasid);
  params.set(S::params_physAddress, root);
  params.set(S::params_numEntries, entries);
  params.set(S::params_flags, kAllChannels);
  params.set(S::params_hVASpace, space);
  params.set(S::params_subDeviceId, 1);  // a mask
  params.set(S::params_pasid, kNoPasid);
  return simple("SET_PAGE_DIRECTORY", RpcFunction::kSetPageDirectory, params);
}

Status RmCalls::unset_page_directory(uint32_t client, uint32_t device, uint32_t space) {
  using S = abi::RpcUnsetPageDirectory;
  abi::Params<S> params(abi_);
  params.set(S::hClient, client);
  params.set(S::hDevice, device);
  params.set(S::params_hVASpace, space);
  params.set(S::params_subDeviceId, 1);
  return simple("UNSET_PAGE_DIRECTORY", RpcFunction::kUnsetPageDirectory, params);
}

Status RmCalls::must_alloc(std::string_view what, const AllocCall& call) {
  const uint32_t status = BM_TRY(alloc(what, call));
  if (status != kStatusOk) return tl::unexpected(refused(what, status));
  return {};
}

Status RmCalls::must_control(std::string_view what, const ControlCall& call) {
  const uint32_t status = BM_TRY(control(what, call));
  if (status != kStatusOk) return tl::unexpected(refused(what, status));
  return {};
}

/// Regions as nouveau takes them (r535_gsp_get_static_info_fb()): nothing reserved, not protected.
Result<StaticInfo> RmCalls::read_static_info() {
  using S = abi::GspStaticInfo;
  abi::Params<S> params(abi_);
  const RpcReply reply = BM_TRY(
      rpc_->call({.what = "GET_GSP_STATIC_INFO",
                  .function = RpcFunction::kGetGspStaticInfo,
                  .payload = {static_cast<const std::byte*>(params.data()), params.size()}}));
  if (reply.result != kStatusOk)
    return tl::unexpected(refused("GET_GSP_STATIC_INFO", reply.result));
  if (reply.payload.size() < params.size())
    return fail(Code::kCorrupt,
                "GET_GSP_STATIC_INFO: {} bytes came, firmware {} has {}: another release runs",
                reply.payload.size(), kFirmware.text(), params.size());
  std::memcpy(params.data(), reply.payload.data(), params.size());
  StaticInfo info;
  info.client = static_cast<uint32_t>(params.get(S::hInternalClient));
  info.device = static_cast<uint32_t>(params.get(S::hInternalDevice));
  info.subdevice = static_cast<uint32_t>(params.get(S::hInternalSubdevice));
  info.video_bytes = params.get(S::fb_length);
  const std::span<std::byte> uuid = params.bytes(S::gidInfo_data);
  std::memcpy(info.uuid.data(), uuid.data(), info.uuid.size());
  const std::span<std::byte> name = params.bytes(S::gpuNameString);
  const char* const first = reinterpret_cast<const char*>(name.data());
  info.name.assign(first, ::strnlen(first, name.size()));
  const uint64_t most = abi_.layout(S::kId).fields[S::fbRegionInfoParams_fbRegion_base].count;
  const uint64_t count = params.get(S::fbRegionInfoParams_numFBRegions);
  if (count > most)
    return fail(Code::kCorrupt, "GET_GSP_STATIC_INFO: {} regions of video memory; {} fit", count,
                most);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t base = params.get(S::fbRegionInfoParams_fbRegion_base, i);
    const uint64_t limit = params.get(S::fbRegionInfoParams_fbRegion_limit, i);
    const bool is_ours = params.get(S::fbRegionInfoParams_fbRegion_reserved, i) == 0 &&
                         params.get(S::fbRegionInfoParams_fbRegion_bProtected, i) == 0;
    if (!is_ours || limit <= base) continue;
    info.regions.push_back({base, limit - base + 1});
  }
  if (info.client == 0 || info.subdevice == 0 || info.regions.empty())
    return fail(Code::kCorrupt,
                "GET_GSP_STATIC_INFO: internal client {:#x}, subdevice {:#x}, {} usable of {} "
                "regions of video memory",
                info.client, info.subdevice, info.regions.size(), count);
  return info;
}

Result<std::vector<RunlistEngine>> RmCalls::read_engines(const StaticInfo& info) {
  using S = abi::DeviceInfoTable;
  std::vector<RunlistEngine> engines;
  const uint32_t most = abi_.layout(S::kId).fields[S::entries_engineData].count;
  constexpr uint32_t kMostDevices = 256;  // NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_MAX_DEVICES
  for (uint32_t base = 0; base < kMostDevices; base += most) {
    abi::Params<S> table(abi_);
    table.set(S::baseIndex, base);
    BM_TRY(must_control("FIFO_GET_DEVICE_INFO_TABLE", {.client = info.client,
                                                       .object = info.subdevice,
                                                       .command = abi::kCtrlDeviceInfoTable,
                                                       .params = &table,
                                                       .bytes = table.size()}));
    const uint64_t count = table.get(S::numEntries);
    if (count > most)
      return fail(Code::kCorrupt, "FIFO_GET_DEVICE_INFO_TABLE: {} entries; {} fit", count, most);
    for (uint32_t i = 0; i < count; ++i) {
      const std::span<std::byte> data = table.bytes(S::entries_engineData, i);
      const auto word = [&](size_t index) {
        uint32_t value = 0;
        std::memcpy(&value, data.data() + index * sizeof(value), sizeof(value));
        return value;
      };
      if (const std::optional<uint32_t> type = engine_type(word(kInfoEngine)))
        engines.push_back({*type, word(kInfoRunlist)});
    }
    if (table.get(S::bMore) == 0) break;
  }
  if (std::ranges::find(engines, abi::kEngineGraphics, &RunlistEngine::type) == engines.end())
    return fail(Code::kUnsupported,
                "FIFO_GET_DEVICE_INFO_TABLE: no graphics engine among {} engines", engines.size());
  return engines;
}

Result<uint64_t> RmCalls::read_method_buffer_bytes(const StaticInfo& info) {
  abi::Params<abi::FaultMethodBuffer> params(abi_);
  BM_TRY(must_control("CE_GET_FAULT_METHOD_BUFFER_SIZE", {.client = info.client,
                                                          .object = info.subdevice,
                                                          .command = abi::kCtrlFaultMethodBuffer,
                                                          .params = &params,
                                                          .bytes = params.size()}));
  const uint64_t bytes = params.get(abi::FaultMethodBuffer::size);
  constexpr uint64_t kMost = 16 << 20;
  if (bytes == 0 || bytes > kMost)
    return fail(Code::kCorrupt, "CE_GET_FAULT_METHOD_BUFFER_SIZE: {} bytes", bytes);
  return bytes;
}

}  // namespace bm::nv::gsp
