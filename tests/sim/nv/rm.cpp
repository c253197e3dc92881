#include "tests/sim/nv/rm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace bm::sim::nv {
namespace {

// Source: nv_escape.h and nv-ioctl-numbers.h.
constexpr uint32_t kAllocMemory = 0x27, kFree = 0x29, kControl = 0x2a, kAlloc = 0x2b,
                   kDupObject = 0x34, kShare = 0x35, kMapMemory = 0x4e, kUnmapMemory = 0x4f,
                   kGetEventData = 0x52, kMapMemoryDma = 0x57, kUnmapMemoryDma = 0x58,
                   kCardInfo = 200, kRegisterFd = 201, kAllocOsEvent = 206, kFreeOsEvent = 207,
                   kCheckVersion = 210, kXfer = 211, kAttachGpus = 212, kSysParams = 214,
                   kWaitOpenComplete = 218;
/// NV_ABSOLUTE_MAX_IOCTL_SIZE, nv-linux.h.
constexpr uint32_t kMaxXfer = 16384;

/// Escapes that need a device file; the others need the control file (escape.c,
/// NV_ACTUAL_DEVICE_ONLY and NV_CTL_DEVICE_ONLY), but for those that take both.
bool takes_device(uint32_t escape) {
  return escape == kAllocMemory || escape == kRegisterFd || escape == kAllocOsEvent ||
         escape == kFreeOsEvent || escape == kGetEventData || escape == kWaitOpenComplete ||
         escape == kAlloc;
}
bool takes_control(uint32_t escape) { return escape != kAllocMemory; }

int as_result(const Failure& failure) { return failure.error != 0 ? -failure.error : -EINVAL; }

}  // namespace

// Source: kernel-open/nvidia/nv.c, nvidia_ioctl().
int RmCalls::ioctl(unsigned long request, uint64_t argument) {
  uint32_t escape = request & 0xff;
  uint32_t size = request >> 16 & 0x3fff;
  if (escape == kXfer) {
    if (size != 16) return -EINVAL;
    struct {
      uint32_t command, size;
      uint64_t address;
    } xfer{};
    if (!caller_.process->get(argument, &xfer)) return -EFAULT;
    escape = xfer.command;
    size = xfer.size;
    argument = xfer.address;
    if (size > kMaxXfer) return -EINVAL;
  }
  std::vector<std::byte> data(size);
  if (!caller_.process->read(argument, data.data(), size)) return -EFAULT;
  int result = -EINVAL;
  if (file_.kind == FileKind::kDevice && kernel_.knobs_.is_lost) {
    result = -EINVAL;
  } else if (file_.kind == FileKind::kDevice ? takes_device(escape) : takes_control(escape)) {
    result = dispatch(escape, data);
  }
  if (result != -EFAULT && !caller_.process->write(argument, data.data(), size)) return -EFAULT;
  return result;
}

int RmCalls::dispatch(uint32_t escape, Bytes data) {
  switch (escape) {
    case kAlloc: return alloc(data);
    case kControl: return control(data);
    case kFree: return free(data);
    case kAllocMemory: return alloc_memory(data);
    case kMapMemory: return map_memory(data);
    case kUnmapMemory: return unmap_memory(data);
    case kAllocOsEvent: return alloc_os_event(data);
    case kFreeOsEvent: return free_os_event(data);
    case kGetEventData: return get_event_data(data);
    case kCardInfo: return card_info(data);
    case kCheckVersion: return check_version(data);
    case kRegisterFd: return register_fd(data);
    case kAttachGpus: return attach_gpus(data);
    case kMapMemoryDma:
      return status_only(data, kernel_.release_->major >= 580 ? 64 : 56,
                         kernel_.release_->major >= 580 ? 56 : 48, "RM_MAP_MEMORY_DMA");
    case kUnmapMemoryDma:
      return status_only(data, kernel_.release_->major >= 550 ? 48 : 40,
                         kernel_.release_->major >= 550 ? 40 : 32, "RM_UNMAP_MEMORY_DMA");
    case kDupObject: return status_only(data, 28, 24, "RM_DUP_OBJECT");
    case kShare: return status_only(data, 24, 20, "RM_SHARE");
    case kSysParams:
      if (const auto failure = kernel_.count("SYS_PARAMS")) return as_result(*failure);
      return data.size() == 8 ? 0 : -EINVAL;
    case kWaitOpenComplete:
      if (const auto failure = kernel_.count("WAIT_OPEN_COMPLETE")) return as_result(*failure);
      // Came with 550: older modules know no such escape.
      if (data.size() != 8 || kernel_.release_->major < 550) return -EINVAL;
      put<uint32_t>(data, 0, 0);
      put<uint32_t>(data, 4, 0);
      return 0;
    default: kernel_.count(fmt::format("escape:{:#x}", escape)); return -EINVAL;
  }
}

/// Calls the model knows by shape only: it refuses them as a module without the feature would.
int RmCalls::status_only(Bytes data, size_t size, size_t status_offset, const std::string& name) {
  const auto failure = kernel_.count(name);
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != size || kernel_.options_.is_sandboxed) return -EINVAL;
  kernel_.complain(fmt::format("{} is not needed for compute and not modelled", name));
  put<uint32_t>(data, status_offset,
                static_cast<uint32_t>(failure ? failure->status : RmStatus::kNotSupported));
  return 0;
}

// Source: nv.c, nvidia_read_card_info(); nv-ioctl.h, nv_ioctl_card_info_t (72 bytes).
int RmCalls::card_info(Bytes data) {
  if (const auto failure = kernel_.count("CARD_INFO")) return as_result(*failure);
  constexpr size_t kEntry = 72;
  const size_t gpus = kernel_.gpus_.size();
  if (data.size() / kEntry < gpus) return -EINVAL;
  std::fill(data.begin(), data.end(), std::byte{0});
  for (uint32_t i = 0; i < gpus; ++i) {
    const Bytes card = data.subspan(i * kEntry, kEntry);
    put<uint8_t>(card, 0, 1);
    put<uint8_t>(card, 8, static_cast<uint8_t>(i + 1));  // bus
    put<uint16_t>(card, 12, 0x10de);
    put<uint16_t>(card, 14, kernel_.chip_->pci_device);
    put<uint32_t>(card, 16, 0x100 * (i + 1));  // gpu_id
    put<uint64_t>(card, 24, uint64_t{0xc0000000} + (uint64_t{i} << 24));
    put<uint64_t>(card, 32, uint64_t{1} << 24);
    put<uint64_t>(card, 40, uint64_t{0x800000000000} + (uint64_t{i} << 40));
    put<uint64_t>(card, 48, kernel_.options_.video_memory);
    put<uint32_t>(card, 56, i);  // minor_number
  }
  return 0;
}

// Source: osapi.c, RmPerformVersionCheck().
int RmCalls::check_version(Bytes data) {
  if (const auto failure = kernel_.count("CHECK_VERSION_STR")) return as_result(*failure);
  if (data.size() != 72) return -EINVAL;
  const std::string version = kernel_.version();
  const uint32_t command = get(data, 0);
  put<uint32_t>(data, 4, 1);
  const auto* text = reinterpret_cast<const char*>(data.data() + 8);
  const std::string asked(text, strnlen(text, 64));
  const bool is_same =
      command == '1' ? asked.substr(0, asked.find('.')) == version.substr(0, version.find('.'))
                     : asked == version;
  if (command != '2' && is_same) return 0;
  std::memcpy(data.data() + 8, version.c_str(), version.size() + 1);
  return command == '2' ? 0 : -EINVAL;
}

// Source: escape.c, NV_ESC_REGISTER_FD.
int RmCalls::register_fd(Bytes data) {
  if (const auto failure = kernel_.count("REGISTER_FD")) return as_result(*failure);
  if (data.size() != 4) return -EINVAL;
  const File* const control = caller_.file_of(static_cast<int>(get(data, 0)));
  const std::lock_guard lock(kernel_.mutex_);
  const bool is_usable = file_.control == nullptr && control != nullptr && control != &file_ &&
                         control->kind == FileKind::kControl && control->control == nullptr;
  if (!is_usable) return -EINVAL;
  file_.control = control;
  return 0;
}

// Source: nv.c, NV_ESC_ATTACH_GPUS_TO_FD.
int RmCalls::attach_gpus(Bytes data) {
  if (const auto failure = kernel_.count("ATTACH_GPUS_TO_FD")) return as_result(*failure);
  const std::lock_guard lock(kernel_.mutex_);
  if (data.empty() || data.size() % 4 != 0 || !file_.attached.empty()) return -EINVAL;
  std::vector<uint32_t> wanted;
  for (size_t i = 0; i < data.size(); i += 4) {
    const uint32_t id = get(data, i);
    if (id == 0) continue;
    if (id % 0x100 != 0 || id / 0x100 > kernel_.gpus_.size()) return -EINVAL;
    wanted.push_back(id);
  }
  file_.attached = std::move(wanted);
  return 0;
}

// Source: escape.c, NV_ESC_RM_ALLOC: both forms, told apart by size.
int RmCalls::alloc(Bytes data) {
  const bool has_rights = data.size() == 48;
  if (data.size() != 32 && !has_rights) {
    kernel_.count("RM_ALLOC:size");
    return -EINVAL;
  }
  Request request{get(data, 0), get(data, 4), get(data, 8), get(data, 12), get<uint64_t>(data, 16)};
  const bool is_event = request.object_class == 0x5 || request.object_class == 0x79;
  const auto failure = kernel_.count(fmt::format("RM_ALLOC:{:x}", request.object_class));
  if (failure && failure->error != 0) return -failure->error;
  if (file_.kind == FileKind::kDevice && !is_event) return -EINVAL;
  if (kernel_.options_.is_sandboxed && request.object_class == 0x70) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  const RmStatus status = failure ? failure->status : allocate(request);
  put<uint32_t>(data, 8, request.handle);
  put<uint32_t>(data, has_rights ? 40 : 28, static_cast<uint32_t>(status));
  return 0;
}

// Source: escape.c, NV_ESC_RM_CONTROL; nvos.h, NVOS54_PARAMETERS.
int RmCalls::control(Bytes data) {
  const uint32_t command = get(data, 8);
  const auto failure = kernel_.count(fmt::format("RM_CONTROL:{:x}", command));
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 32) return -EINVAL;
  // What gVisor's nvproxy refuses for a client with the compute capability only.
  const bool is_refused =
      command == 0x13e || command == 0xa06f0104 || command == 0x2080130e || command == 0x83de0328;
  if (kernel_.options_.is_sandboxed && is_refused) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  const RmStatus status = failure ? failure->status
                                  : run_control(get(data, 0), get(data, 4), command,
                                                get<uint64_t>(data, 16), get(data, 24));
  put<uint32_t>(data, 28, static_cast<uint32_t>(status));
  return 0;
}

// Source: escape.c, NV_ESC_RM_FREE; resserv/rs_server.c, serverFreeResourceTree(). A client that is
// gone answers "invalid object handle" (seen on the real 535 module).
int RmCalls::free(Bytes data) {
  const auto failure = kernel_.count("RM_FREE");
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 16) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  const uint32_t root = get(data, 0), handle = get(data, 8);
  RmStatus status = RmStatus::kOk;
  Client* const client = kernel_.find_client(root);
  if (failure) {
    status = failure->status;
  } else if (client == nullptr) {
    status = RmStatus::kInvalidObjectHandle;
  } else if (!may_use(*client)) {
    status = RmStatus::kInvalidClient;
  } else if (client->find(handle) == nullptr) {
    // The kernel says OK to what is not there; a client that does so has lost count.
    kernel_.complain(fmt::format("free of {:#x}, which is no object", handle));
  } else {
    kernel_.free_tree(*client, handle, false);
    if (handle == root) kernel_.clients_.erase(root);
  }
  put<uint32_t>(data, 12, static_cast<uint32_t>(status));
  return 0;
}

/// A client belongs to the control file that made it; device files speak for the control file they
/// were registered with (escape.c, secInfo.clientOSInfo).
bool RmCalls::may_use(const Client& client) const {
  const File* const speaker = file_.control != nullptr ? file_.control : &file_;
  return client.owner == speaker;
}

}  // namespace bm::sim::nv
