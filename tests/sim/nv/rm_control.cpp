#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/nv/rm.h"

namespace bm::sim::nv {
namespace {

// Controls and their structures: src/common/sdk/nvidia/inc/ctrl/*.h; sizes measured with sizeof.
std::optional<uint32_t> control_size(uint32_t command, const Release& release) {
  switch (command) {
    case 0x201: return 128;                    // NV0000 GPU_GET_ATTACHED_IDS
    case 0x205: return 32;                     // GPU_GET_ID_INFO_V2
    case 0x214: return release.probed_ids;     // GPU_GET_PROBED_IDS
    case 0x215: return 132;                    // GPU_ATTACH_IDS
    case 0x13e: return release.build_version;  // SYSTEM_GET_BUILD_VERSION_V2
    case 0x800201: return 16;                  // NV0080 GPU_GET_CLASSLIST
    case 0x800292: return release.class_list_v2;
    case 0x2080014a: return 268;                  // NV2080 GPU_GET_GID_INFO
    case 0x20800110: return release.name_string;  // GPU_GET_NAME_STRING
    case 0x20800102: return release.gpu_info_v2;  // GPU_GET_INFO_V2
    case 0x20801201: return 32;                   // GR_GET_INFO
    case 0x20801301: return 16;                   // FB_GET_INFO
    case 0x20801303: return release.fb_info_v2;
    case 0x2080200a: return 8;   // PERF_BOOST
    case 0x20800123: return 16;  // GPU_GET_ENGINES
    case 0x20800301: return 20;  // EVENT_SET_NOTIFICATION
    case 0x20802a03: return 8;   // CE_GET_CAPS_V2
    case 0xa06c0101: return release.group_schedule;
    case 0xa06c0103: return 8;  // TIMESLICE
    case 0xc36f0108: return 4;  // GET_WORK_SUBMIT_TOKEN
    case 0xa06f0103: return release.group_schedule;
    case 0xa06f0104: return 4;     // BIND
    case 0x83de030c: return 4824;  // READ_ALL_SM_ERROR_STATES
    case 0x83de0328: return 72;    // READ_MMU_FAULT_INFO
    default: return std::nullopt;
  }
}

}  // namespace

// Source: control.c, _rmapiRmControl(): the client, then the size, then the object.
RmStatus RmCalls::run_control(uint32_t client_handle, uint32_t object_handle, uint32_t command,
                              uint64_t address, uint32_t size) {
  Client* const client = kernel_.find_client(client_handle);
  if (client == nullptr) return RmStatus::kInvalidClient;
  const auto expected = control_size(command, *kernel_.release_);
  if ((size != 0) != (address != 0) || (expected && size != *expected))
    return RmStatus::kInvalidArgument;
  if (!may_use(*client)) return RmStatus::kInvalidClient;
  Object* const object = client->find(object_handle);
  if (object == nullptr) return RmStatus::kObjectNotFound;
  std::vector<std::byte> params(size);
  if (size != 0 && !caller_.process->read(address, params.data(), size))
    return RmStatus::kInvalidPointer;
  if (object->kind != ObjectKind::kClient && kernel_.knobs_.is_lost) return RmStatus::kGpuIsLost;
  RmStatus status = RmStatus::kNotSupported;
  switch (object->kind) {
    case ObjectKind::kClient: status = client_control(command, params); break;
    case ObjectKind::kDevice: status = device_control(*object, command, params); break;
    case ObjectKind::kSubdevice: status = subdevice_control(*object, command, params); break;
    case ObjectKind::kGroup:
      status = group_control(*client, static_cast<GroupObject&>(*object), command, params);
      break;
    case ObjectKind::kChannel:
      status = channel_control(static_cast<ChannelObject&>(*object), command, params);
      break;
    case ObjectKind::kDebugger:
      status = debugger_control(*client, static_cast<DebuggerObject&>(*object), command, params);
      break;
    case ObjectKind::kMemory:
    case ObjectKind::kVirtualMemory:
    case ObjectKind::kVaSpace:
    case ObjectKind::kContextShare:
    case ObjectKind::kEngineObject:
    case ObjectKind::kUsermode:
    case ObjectKind::kEvent: break;
  }
  if (status == RmStatus::kOk && size != 0 && !caller_.process->write(address, params.data(), size))
    return RmStatus::kInvalidPointer;
  return status;
}

RmStatus RmCalls::client_control(uint32_t command, Bytes params) {
  const auto gpus = static_cast<uint32_t>(kernel_.gpus_.size());
  switch (command) {
    case 0x201:
    case 0x214:
      for (size_t i = 0; i < 32; ++i) {
        const auto index = static_cast<uint32_t>(i);
        const bool is_there = index < gpus && (command == 0x214 || kernel_.is_open(index));
        put<uint32_t>(params, 4 * i, is_there ? 0x100 * (index + 1) : 0xffffffff);
      }
      return RmStatus::kOk;
    case 0x205: {
      const uint32_t id = get(params, 0), index = id / 0x100 - 1;
      if (id % 0x100 != 0 || id == 0 || index >= gpus || !kernel_.is_open(index))
        return RmStatus::kInvalidArgument;
      put<uint32_t>(params, 8, index);  // deviceInstance
      put<uint32_t>(params, 12, 0);     // subDeviceInstance
      return RmStatus::kOk;
    }
    case 0x215: return RmStatus::kOk;
    case 0x13e: {
      const std::string version = kernel_.version();
      std::memcpy(params.data(), version.c_str(), version.size() + 1);
      return RmStatus::kOk;
    }
    default: return RmStatus::kNotSupported;
  }
}

// Source: ctrl0080gpu.h, GPU_GET_CLASSLIST: a count, then a pointer to that many numbers.
RmStatus RmCalls::device_control(Object&, uint32_t command, Bytes params) {
  const auto& classes = kernel_.chip_->classes;
  if (command == 0x800201) {
    const uint32_t wanted = get(params, 0);
    const uint64_t address = get<uint64_t>(params, 8);
    put<uint32_t>(params, 0, static_cast<uint32_t>(classes.size()));
    if (wanted == 0) return RmStatus::kOk;
    if (wanted < classes.size()) return RmStatus::kInvalidArgument;
    return caller_.process->write(address, classes.data(), classes.size_bytes())
               ? RmStatus::kOk
               : RmStatus::kInvalidAddress;
  }
  if (command == 0x800292) {
    put<uint32_t>(params, 0, static_cast<uint32_t>(classes.size()));
    std::memcpy(params.data() + 4, classes.data(), classes.size_bytes());
    return RmStatus::kOk;
  }
  return RmStatus::kNotSupported;
}

RmStatus RmCalls::subdevice_control(Object& object, uint32_t command, Bytes params) {
  switch (command) {
    case 0x2080014a: {
      // Flags: binary form is type 2 (ctrl2080gpu.h, GID_INFO_FLAGS_FORMAT).
      if ((get(params, 4) & 3) != 2) return RmStatus::kNotSupported;
      const auto uuid = kernel_.uuid(object.gpu);
      put<uint32_t>(params, 8, static_cast<uint32_t>(uuid.size()));
      std::memcpy(params.data() + 12, uuid.data(), uuid.size());
      return RmStatus::kOk;
    }
    case 0x20800110: {
      const std::string_view name = kernel_.chip_->marketing;
      constexpr size_t at = 4;  // after the flags
      const size_t length = std::min(name.size(), params.size() - at - 1);
      std::memcpy(params.data() + at, name.data(), length);
      params[at + length] = std::byte{0};
      return RmStatus::kOk;
    }
    case 0x20801201: return gr_info(object, params);
    case 0x2080200a:
      kernel_.complain("PERF_BOOST changes clocks of a machine that may be shared");
      return RmStatus::kOk;
    case 0x20800301: return RmStatus::kOk;
    case 0x20802a03: {
      // Source: ctrl2080ce.h, NV2080_CTRL_CE_GET_CAPS_V2_PARAMS, NV2080_CTRL_CE_CAPS_CE_*: byte 0
      // has GRCE in bit 0 and SYSMEM in bit 5.
      const uint32_t engine = get(params, 0);
      const Chip& chip = *kernel_.chip_;
      if (engine < 9 || engine >= 9 + std::min(chip.copy_engines, 10u))
        return RmStatus::kInvalidArgument;
      put<uint8_t>(params, 4, is_graphics_copy(chip, engine) ? 0x21 : 0x20);
      put<uint8_t>(params, 5, 0);
      return RmStatus::kOk;
    }
    case 0x20800123: {
      std::vector<uint32_t> engines = {1};
      for (uint32_t i = 0; i < std::min(kernel_.chip_->copy_engines, 10u); ++i)
        engines.push_back(9 + i);
      const uint32_t wanted = get(params, 0);
      put<uint32_t>(params, 0, static_cast<uint32_t>(engines.size()));
      if (wanted < engines.size()) return RmStatus::kOk;
      return caller_.process->write(get<uint64_t>(params, 8), engines.data(), engines.size() * 4)
                 ? RmStatus::kOk
                 : RmStatus::kInvalidAddress;
    }
    default: return RmStatus::kNotSupported;
  }
}

// Source: ctrl2080gr.h, GR_GET_INFO: pairs {index, data} behind a pointer.
RmStatus RmCalls::gr_info(Object&, Bytes params) {
  const uint32_t count = get(params, 0);
  const uint64_t address = get<uint64_t>(params, 8);
  if (count == 0 || count > 0x40) return RmStatus::kInvalidArgument;
  std::vector<std::byte> list(count * 8ull);
  if (!caller_.process->read(address, list.data(), list.size())) return RmStatus::kInvalidAddress;
  const Chip& chip = *kernel_.chip_;
  for (size_t i = 0; i < count; ++i) {
    uint32_t value = 0;
    switch (get(list, 8 * i)) {
      case 0x09: value = chip.gpcs * chip.tpcs_per_gpc * chip.sms_per_tpc; break;
      case 0x0c: value = chip.sm_version; break;
      case 0x0d: value = chip.warps_per_sm; break;
      case 0x14: value = chip.gpcs; break;
      case 0x17: value = chip.tpcs_per_gpc; break;
      case 0x20: value = chip.sms_per_tpc; break;
      default:
        if (get(list, 8 * i) > 0x39) return RmStatus::kInvalidArgument;
        break;
    }
    put<uint32_t>(list, 8 * i + 4, value);
  }
  return caller_.process->write(address, list.data(), list.size()) ? RmStatus::kOk
                                                                   : RmStatus::kInvalidAddress;
}

// Source: kernel_channel_group_api.c, kchangrpapiCtrlCmdGpFifoSchedule_IMPL(): channels of the
// graphics engine in an externally owned address space must be known to the unified memory module.
RmStatus RmCalls::group_control(Client& client, GroupObject& group, uint32_t command,
                                Bytes params) {
  if (command == 0xa06c0103) return RmStatus::kOk;
  if (command != 0xa06c0101) return RmStatus::kNotSupported;
  bool has_channels = false;
  for (const auto& [handle, object] : client.objects) {
    if (object->parent != &group || object->kind != ObjectKind::kChannel) continue;
    const auto& channel = static_cast<const ChannelObject&>(*object);
    has_channels = true;
    if (group.group->engine == 1 && channel.is_external && !channel.channel->is_bound)
      return RmStatus::kInvalidState;
  }
  if (!has_channels) return RmStatus::kInvalidArgument;
  group.group->is_scheduled = get<uint8_t>(params, 0) != 0;
  return RmStatus::kOk;
}

RmStatus RmCalls::channel_control(ChannelObject& channel, uint32_t command, Bytes params) {
  switch (command) {
    case 0xc36f0108: put<uint32_t>(params, 0, channel.channel->token); return RmStatus::kOk;
    case 0xa06f0104: return RmStatus::kOk;
    case 0xa06f0103:
      // A channel in a group is scheduled with the group.
      return RmStatus::kInvalidArgument;
    default: return RmStatus::kNotSupported;
  }
}

// Source: ctrl83dedebug.h, READ_ALL_SM_ERROR_STATES and READ_MMU_FAULT_INFO.
RmStatus RmCalls::debugger_control(Client& client, DebuggerObject& debugger, uint32_t command,
                                   Bytes params) {
  const Object* const compute = client.find(debugger.compute_object);
  if (compute == nullptr) return RmStatus::kInvalidObject;
  const auto* channel = static_cast<const ChannelObject*>(compute->parent);
  if (command == 0x83de030c) {
    const uint32_t target = get(params, 0);
    if (target != 0) channel = client.find<ChannelObject>(target, ObjectKind::kChannel);
    const uint32_t count = get(params, 4), first = get(params, 4820);
    const uint32_t sms =
        kernel_.chip_->gpcs * kernel_.chip_->tpcs_per_gpc * kernel_.chip_->sms_per_tpc;
    if (channel == nullptr) return RmStatus::kInvalidChannel;
    if (count > 100 || first >= sms) return RmStatus::kInvalidArgument;
    ChannelGroup& group = *channel->channel->group;
    const std::lock_guard lock(group.mutex);
    std::fill_n(params.begin() + 8, 4800, std::byte{0});
    for (uint32_t i = 0; i < count && first + i < group.sm_errors.size(); ++i) {
      const SmError& error = group.sm_errors[first + i];
      const Bytes entry = params.subspan(8 + 48ull * i, 48);
      put<uint32_t>(entry, 0, error.global);
      put<uint32_t>(entry, 4, error.warp);
      put<uint32_t>(entry, 8, static_cast<uint32_t>(error.pc));
      put<uint64_t>(entry, 24, error.address);
      put<uint64_t>(entry, 32, error.pc);
    }
    put<uint8_t>(params, 4812, group.mmu_faults.empty() ? 0 : 1);
    return RmStatus::kOk;
  }
  if (command == 0x83de0328) {
    if (channel == nullptr) return RmStatus::kInvalidChannel;
    ChannelGroup& group = *channel->channel->group;
    const std::lock_guard lock(group.mutex);
    const auto count = static_cast<uint32_t>(std::min<size_t>(group.mmu_faults.size(), 4));
    for (uint32_t i = 0; i < count; ++i) {
      put<uint64_t>(params, 16 * i, group.mmu_faults[i].address);
      put<uint32_t>(params, 16 * i + 8, group.mmu_faults[i].type);
      put<uint32_t>(params, 16 * i + 12, group.mmu_faults[i].access);
    }
    put<uint32_t>(params, 64, count);
    return RmStatus::kOk;
  }
  return RmStatus::kNotSupported;
}

}  // namespace bm::sim::nv
