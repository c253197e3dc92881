#include <fmt/format.h>

#include <cerrno>

#include "tests/sim/nv/rm.h"

namespace bm::sim::nv {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kOsDescriptor = 0x71;

}  // namespace

// Source: escape.c, NV_ESC_RM_ALLOC_MEMORY (NVOS02 and a descriptor, 56 bytes; device files only).
int RmCalls::alloc_memory(Bytes data) {
  const auto failure = kernel_.count(fmt::format("RM_ALLOC_MEMORY:{:x}", get(data, 12)));
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 56) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  RmStatus status = RmStatus::kOk;
  if (failure) {
    status = failure->status;
  } else if (get(data, 12) != kOsDescriptor) {
    status = RmStatus::kNotSupported;
  } else {
    status = register_host_memory(data);
  }
  put<uint32_t>(data, 40, static_cast<uint32_t>(status));
  return 0;
}

// Source: escape.c, RmAllocOsDescriptor() and RmCreateOsDescriptor(). Flags (nvos.h, NVOS02_FLAGS):
// physicality 7:4, location 11:8, coherency 15:12, mapping 31:30.
RmStatus RmCalls::register_host_memory(Bytes data) {
  const uint32_t flags = get(data, 16);
  const bool is_system = bits(flags, 11, 8) == 0, is_unmapped = bits(flags, 31, 30) == 1;
  if (!is_system || !is_unmapped) return RmStatus::kInvalidFlags;
  const uint32_t coherency = bits(flags, 15, 12);  // 0 uncached, 1 cached, 5 write-back
  if (coherency != 0 && coherency != 1 && coherency != 5) return RmStatus::kInvalidFlags;
  const uint64_t address = get<uint64_t>(data, 24), limit = get<uint64_t>(data, 32);
  if (address % kPage != 0) return RmStatus::kNotSupported;
  if (limit + 1 == 0) return RmStatus::kInvalidLimit;
  const uint64_t size = (limit + kPage) / kPage * kPage;
  // Pinning touches every page; the first and the last tell most of it, and each is cheap.
  for (const uint64_t at : {address, address + size - kPage}) {
    uint8_t byte = 0;
    if (!caller_.process->get(at, &byte) || !caller_.process->write(at, &byte, 1))
      return RmStatus::kInvalidAddress;
  }
  Client* const client = kernel_.find_client(get(data, 0));
  if (client == nullptr || !may_use(*client)) return RmStatus::kInvalidClient;
  Object* const parent = client->find(get(data, 4));
  if (parent == nullptr) return RmStatus::kObjectNotFound;
  if (parent->kind != ObjectKind::kDevice) return RmStatus::kInvalidParent;
  uint32_t handle = get(data, 8);
  if (handle != 0 && client->find(handle) != nullptr) return RmStatus::kDuplicateName;
  if (handle == 0) handle = client->next_handle++;
  auto memory = std::make_unique<MemoryObject>();
  memory->kind = ObjectKind::kMemory;
  memory->handle = handle;
  memory->object_class = kOsDescriptor;
  memory->parent = parent;
  memory->gpu = parent->gpu;
  memory->size = size;
  memory->pinned_bytes = size;
  memory->is_cpu_mappable = false;
  memory->backing = create_process_backing(caller_.process, address, size);
  client->objects[handle] = std::move(memory);
  put<uint32_t>(data, 8, handle);
  return RmStatus::kOk;
}

// Source: escape.c, NV_ESC_RM_MAP_MEMORY; mapping_cpu.c, memMap_IMPL(); nv-usermap.c,
// nv_add_mapping_context_to_file().
int RmCalls::map_memory(Bytes data) {
  const auto failure = kernel_.count("RM_MAP_MEMORY");
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 56) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  const RmStatus status = failure ? failure->status : prepare_mapping(data);
  put<uint32_t>(data, 40, static_cast<uint32_t>(status));
  return 0;
}

RmStatus RmCalls::prepare_mapping(Bytes data) {
  Client* const client = kernel_.find_client(get(data, 0));
  if (client == nullptr || !may_use(*client)) return RmStatus::kInvalidClient;
  const Object* const device = client->find(get(data, 4));
  Object* const object = client->find(get(data, 8));
  if (device == nullptr || object == nullptr) return RmStatus::kObjectNotFound;
  if (device->kind != ObjectKind::kDevice && device->kind != ObjectKind::kSubdevice)
    return RmStatus::kInvalidParent;
  const uint64_t offset = get<uint64_t>(data, 16), length = get<uint64_t>(data, 24);
  File::PendingMap map;
  bool is_bar = true;
  if (object->kind == ObjectKind::kUsermode) {
    map.backing = kernel_.gpus_[object->gpu]->usermode();
  } else if (object->kind == ObjectKind::kMemory) {
    auto& memory = static_cast<MemoryObject&>(*object);
    if (!memory.is_cpu_mappable) return RmStatus::kObjectNotFound;
    map.backing = memory.backing;
    map.is_writable = !memory.is_read_only;
    is_bar = memory.is_video;
    ++memory.cpu_mappings;
  } else {
    return RmStatus::kInvalidObject;
  }
  if (offset >= map.backing->size()) return RmStatus::kInvalidBase;
  if (length == 0 || length > map.backing->size() - offset) return RmStatus::kInvalidLimit;
  map.offset = offset / kPage * kPage;
  map.size = length + offset % kPage;
  map.must_be_whole = is_bar;
  const int fd = static_cast<int>(get(data, 48));
  File* const file = caller_.file_of(fd);
  // Video memory is mapped through a file of its device, system memory through a control file.
  const bool is_fitting =
      file != nullptr && (is_bar ? file->kind == FileKind::kDevice && file->gpu == object->gpu
                                 : file->kind == FileKind::kControl);
  if (!is_fitting) return RmStatus::kInvalidArgument;
  if (file->pending) return RmStatus::kStateInUse;
  file->pending = map;
  *effect_ = Effect{.fd = fd, .map = map, .events = nullptr};
  // pLinearAddress: a cookie that RM_UNMAP_MEMORY wants back.
  put<uint64_t>(data, 32, 0x7ff000000000 + (uint64_t{object->handle} << 12));
  return RmStatus::kOk;
}

int RmCalls::unmap_memory(Bytes data) {
  const auto failure = kernel_.count("RM_UNMAP_MEMORY");
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 32) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  RmStatus status = failure ? failure->status : RmStatus::kOk;
  Client* const client = kernel_.find_client(get(data, 0));
  if (failure) {
  } else if (client == nullptr || !may_use(*client)) {
    status = RmStatus::kInvalidClient;
  } else if (Object* const object = client->find(get(data, 8)); object == nullptr) {
    status = RmStatus::kObjectNotFound;
  } else if (object->kind == ObjectKind::kMemory) {
    auto& memory = static_cast<MemoryObject&>(*object);
    if (memory.cpu_mappings == 0)
      status = RmStatus::kInvalidArgument;
    else
      --memory.cpu_mappings;
  }
  put<uint32_t>(data, 24, static_cast<uint32_t>(status));
  return 0;
}

// Source: osapi.c, allocate_os_event(): events arrive at the file the call is made on, and objects
// name them by the descriptor in the structure.
int RmCalls::alloc_os_event(Bytes data) {
  const auto failure = kernel_.count("ALLOC_OS_EVENT");
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 16) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  const uint32_t client = get(data, 0);
  const int fd = static_cast<int>(get(data, 8));
  RmStatus status = failure ? failure->status : RmStatus::kOk;
  const bool is_taken = file_.event_clients.contains(fd) && file_.event_clients[fd] == client;
  if (!failure && is_taken) status = RmStatus::kInsufficientResources;
  if (status == RmStatus::kOk) {
    if (file_.events == nullptr) file_.events = std::make_shared<EventQueue>();
    file_.event_clients[fd] = client;
    if (caller_.file_of(fd) == &file_)
      *effect_ = Effect{fd, std::nullopt, file_.events};
    else
      kernel_.complain("ALLOC_OS_EVENT names another file than the one it is made on");
  }
  put<uint32_t>(data, 12, static_cast<uint32_t>(status));
  return 0;
}

int RmCalls::free_os_event(Bytes data) {
  const auto failure = kernel_.count("FREE_OS_EVENT");
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 16) return -EINVAL;
  const std::lock_guard lock(kernel_.mutex_);
  RmStatus status = failure ? failure->status : RmStatus::kInvalidEvent;
  const int fd = static_cast<int>(get(data, 8));
  const auto found = file_.event_clients.find(fd);
  if (!failure && found != file_.event_clients.end() && found->second == get(data, 0)) {
    file_.event_clients.erase(found);
    status = RmStatus::kOk;
  }
  put<uint32_t>(data, 12, static_cast<uint32_t>(status));
  return 0;
}

// Source: osapi.c, get_os_event_data(); nvos.h, NVOS41_PARAMETERS and NvUnixEvent (16 bytes).
int RmCalls::get_event_data(Bytes data) {
  const auto failure = kernel_.count("RM_GET_EVENT_DATA");
  if (failure && failure->error != 0) return -failure->error;
  if (data.size() != 16) return -EINVAL;
  UnixEvent event;
  bool has_more = false;
  RmStatus status = RmStatus::kOperatingSystem;
  if (failure) {
    status = failure->status;
  } else if (file_.events != nullptr && file_.events->take(&event, &has_more)) {
    status = RmStatus::kOk;
    static_assert(sizeof event == 16);
    if (!caller_.process->write(get<uint64_t>(data, 0), &event, sizeof event))
      status = RmStatus::kInvalidAddress;
  }
  put<uint32_t>(data, 8, has_more ? 1 : 0);
  put<uint32_t>(data, 12, static_cast<uint32_t>(status));
  return 0;
}

}  // namespace bm::sim::nv
