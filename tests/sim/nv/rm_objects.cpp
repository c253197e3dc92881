#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tests/sim/nv/rm.h"

namespace bm::sim::nv {
namespace {

// Classes: src/common/sdk/nvidia/inc/class/*.h.
namespace cls {
constexpr uint32_t kDevice = 0x80, kSubdevice = 0x2080, kVideoMemory = 0x40, kSystemMemory = 0x3e,
                   kVirtualMemory = 0x70, kVaSpace = 0x90f1, kGroup = 0xa06c,
                   kContextShare = 0x9067, kDebugger = 0x83de, kEvent = 0x5, kOsEvent = 0x79;
}

bool is_root(uint32_t object_class) {
  return object_class == 0 || object_class == 1 || object_class == 0x41;
}
bool is_usermode(uint32_t c) {
  return c == 0xc361 || c == 0xc461 || c == 0xc561 || c == 0xc661 || c == 0xc761;
}
bool is_channel(uint32_t c) {
  return c == 0xc36f || c == 0xc46f || c == 0xc56f || c == 0xc86f || c == 0xc96f || c == 0xca6f;
}
bool is_compute(uint32_t c) {
  return c == 0xc5c0 || c == 0xc6c0 || c == 0xc7c0 || c == 0xc9c0 || c == 0xcbc0 || c == 0xcdc0 ||
         c == 0xcec0;
}
bool is_copy(uint32_t c) {
  return c == 0xc5b5 || c == 0xc6b5 || c == 0xc7b5 || c == 0xc8b5 || c == 0xc9b5 || c == 0xcab5;
}

enum class Params : uint8_t { kNone, kOptional, kRequired };

/// Row of resource_list.h: what a class hangs under, and the structure it takes.
struct ClassRow {
  ObjectKind parent;
  Params params;
  uint32_t size;
  bool has_any_parent = false;
};

std::optional<ClassRow> class_row(uint32_t c, const Release& release) {
  switch (c) {
    case cls::kDevice: return ClassRow{ObjectKind::kClient, Params::kOptional, 56};
    case cls::kSubdevice: return ClassRow{ObjectKind::kDevice, Params::kOptional, 4};
    case cls::kVideoMemory:
    case cls::kSystemMemory:
      return ClassRow{ObjectKind::kDevice, Params::kRequired, release.memory_params};
    case cls::kVirtualMemory: return ClassRow{ObjectKind::kDevice, Params::kRequired, 24};
    case cls::kVaSpace:
      return ClassRow{ObjectKind::kDevice, Params::kRequired, release.va_space_params};
    case cls::kGroup: return ClassRow{ObjectKind::kDevice, Params::kRequired, 20};
    case cls::kContextShare: return ClassRow{ObjectKind::kGroup, Params::kRequired, 12};
    case cls::kDebugger: return ClassRow{ObjectKind::kDevice, Params::kRequired, 12};
    case cls::kEvent:
    case cls::kOsEvent: return ClassRow{ObjectKind::kClient, Params::kRequired, 24, true};
    default: break;
  }
  if (is_usermode(c))
    return ClassRow{ObjectKind::kSubdevice, c >= 0xc661 ? Params::kOptional : Params::kNone,
                    c >= 0xc661 ? 2u : 0u};
  if (is_channel(c)) return ClassRow{ObjectKind::kGroup, Params::kRequired, release.channel_params};
  if (is_compute(c)) return ClassRow{ObjectKind::kChannel, Params::kOptional, 16};
  if (is_copy(c)) return ClassRow{ObjectKind::kChannel, Params::kOptional, 8};
  return std::nullopt;
}

/// Classes every chip has, whatever its engine list says.
bool is_generic(uint32_t c) {
  return c == cls::kVirtualMemory || c == cls::kEvent || c == cls::kOsEvent || c == cls::kDevice ||
         c == cls::kSubdevice || c == cls::kVideoMemory || c == cls::kSystemMemory ||
         c == cls::kVaSpace;
}

}  // namespace

// Source: alloc_free.c, serverAllocResourceUnderLock(): the order of these checks is the kernel's.
RmStatus RmCalls::allocate(Request& request) {
  if (is_root(request.object_class)) return allocate_client(request);
  const auto row = class_row(request.object_class, *kernel_.release_);
  if (!row) return RmStatus::kInvalidClass;
  if (row->params == Params::kRequired && request.params_address == 0)
    return RmStatus::kInvalidArgument;
  // The kernel copies the size of its own structure, whatever the caller believes it to be.
  std::vector<std::byte> params(row->size);
  const bool has_params = request.params_address != 0 && row->size != 0;
  if (has_params && !caller_.process->read(request.params_address, params.data(), params.size()))
    return RmStatus::kInvalidPointer;
  Client* const client = kernel_.find_client(request.client);
  if (client == nullptr || !may_use(*client)) return RmStatus::kInvalidClient;
  Object* const parent = client->find(request.parent);
  if (parent == nullptr) return RmStatus::kObjectNotFound;
  const bool is_fitting =
      row->has_any_parent || parent->kind == row->parent ||
      (request.object_class == cls::kVideoMemory && parent->kind == ObjectKind::kSubdevice) ||
      (is_channel(request.object_class) && parent->kind == ObjectKind::kDevice);
  if (!is_fitting) return RmStatus::kInvalidParent;
  if (request.handle != 0 && client->find(request.handle) != nullptr)
    return RmStatus::kDuplicateName;
  const auto& listed = kernel_.chip_->classes;
  if (!is_generic(request.object_class) &&
      std::find(listed.begin(), listed.end(), request.object_class) == listed.end())
    return RmStatus::kNotSupported;
  if (parent->kind != ObjectKind::kClient && kernel_.knobs_.is_lost) return RmStatus::kGpuIsLost;
  if (request.handle == 0) {
    while (client->find(client->next_handle) != nullptr) ++client->next_handle;
    request.handle = client->next_handle++;
  }
  const RmStatus status = create(*client, parent, request, params);
  if (status != RmStatus::kOk) return status;
  made_->handle = request.handle;
  made_->object_class = request.object_class;
  made_->parent = parent;
  if (request.object_class != cls::kDevice) made_->gpu = parent->gpu;
  if (made_->kind == ObjectKind::kEvent) {
    const auto& event = static_cast<const EventObject&>(*made_);
    if (event.is_listening)
      kernel_.gpus_[made_->gpu]->add_listener({event.queue, request.handle, event.index});
  }
  client->objects[request.handle] = std::move(made_);
  if (has_params && !caller_.process->write(request.params_address, params.data(), params.size()))
    return RmStatus::kInvalidPointer;
  return RmStatus::kOk;
}

RmStatus RmCalls::allocate_client(Request& request) {
  if (file_.kind != FileKind::kControl) return RmStatus::kInvalidArgument;
  if (request.handle == 0) {
    while (kernel_.clients_.contains(kernel_.next_client_)) ++kernel_.next_client_;
    request.handle = kernel_.next_client_++;
  }
  if (kernel_.clients_.contains(request.handle)) return RmStatus::kDuplicateName;
  Client& client = kernel_.clients_[request.handle];
  client.handle = request.handle;
  client.owner = &file_;
  client.process = caller_.process->id();
  auto self = std::make_unique<Object>();
  self->handle = request.handle;
  self->object_class = 0x41;
  client.objects[request.handle] = std::move(self);
  return RmStatus::kOk;
}

RmStatus RmCalls::create(Client& client, Object* parent, const Request& request, Bytes params) {
  const uint32_t c = request.object_class;
  if (c == cls::kDevice) return create_device(client, request, params);
  if (c == cls::kVideoMemory || c == cls::kSystemMemory)
    return create_memory(parent, request, params);
  if (c == cls::kGroup) return create_group(client, params);
  if (c == cls::kContextShare) return create_context_share(client, parent, params);
  if (is_channel(c)) return create_channel(client, parent, request, params);
  if (is_compute(c) || is_copy(c)) return create_engine_object(parent, request, params);
  if (c == cls::kDebugger) return create_debugger(client, params);
  if (c == cls::kEvent || c == cls::kOsEvent) return create_event(client, params);
  if (c == cls::kSubdevice) {
    if (get(params, 0) != 0) return RmStatus::kInvalidArgument;
    made_ = std::make_unique<Object>();
    made_->kind = ObjectKind::kSubdevice;
  } else if (c == cls::kVaSpace) {
    auto space = std::make_unique<VaSpaceObject>();
    space->kind = ObjectKind::kVaSpace;
    space->is_external = (get(params, 4) & 0x8) != 0;  // nvos.h, FLAGS_IS_EXTERNALLY_OWNED
    made_ = std::move(space);
  } else {
    made_ = std::make_unique<Object>();
    made_->kind = is_usermode(c) ? ObjectKind::kUsermode : ObjectKind::kVirtualMemory;
  }
  return RmStatus::kOk;
}

// Source: alloc_free.c, resservResourceFactory(): a device needs an attached (opened) GPU.
RmStatus RmCalls::create_device(Client& client, const Request& request, Bytes params) {
  if (request.params_address == 0) return kernel_.release_->no_device_params;
  const uint32_t instance = get(params, 0);
  if (instance >= 32) return RmStatus::kInvalidArgument;
  if (instance >= kernel_.gpus_.size() || !kernel_.is_open(instance))
    return kernel_.release_->no_gpu;
  const uint32_t share = get(params, 4);
  if (share != 0 && share != client.handle && kernel_.find_client(share) == nullptr)
    return RmStatus::kInvalidClient;
  made_ = std::make_unique<Object>();
  made_->kind = ObjectKind::kDevice;
  made_->gpu = instance;
  return RmStatus::kOk;
}

// Source: nvos.h, NVOS32_ATTR_*: location 26:25, page size 24:23, physicality 28:27.
RmStatus RmCalls::create_memory(Object* parent, const Request& request, Bytes params) {
  const bool is_video = request.object_class == cls::kVideoMemory;
  const uint32_t attributes = get(params, 24), attributes2 = get(params, 28);
  const uint64_t wanted = get<uint64_t>(params, 64);
  const uint32_t location = bits(attributes, 26, 25);
  if (wanted == 0 || is_video != (location == 0)) return RmStatus::kInvalidArgument;
  constexpr uint64_t k4K = 4096, k64K = 65536, k2M = uint64_t{2} << 20, k512M = uint64_t{512} << 20;
  uint64_t page = is_video && wanted >= k64K ? k64K : k4K;
  switch (bits(attributes, 24, 23)) {
    case 1: page = k4K; break;
    case 2: page = k64K; break;
    case 3: page = bits(attributes2, 21, 20) == 2 ? k512M : k2M; break;
    default: break;
  }
  const uint64_t size = (wanted + page - 1) / page * page;
  if (size < wanted) return RmStatus::kInvalidArgument;
  uint64_t& used = kernel_.video_used_[parent->gpu];
  if (is_video &&
      (size > kernel_.options_.video_memory || used > kernel_.options_.video_memory - size))
    return RmStatus::kNoMemory;
  auto memory = std::make_unique<MemoryObject>();
  memory->kind = ObjectKind::kMemory;
  memory->backing = create_shared_backing(size, is_video ? "fake-nvidia-vram" : "fake-nvidia-sys");
  if (memory->backing == nullptr) return RmStatus::kNoMemory;
  memory->size = size;
  memory->page_size = page;
  memory->is_video = is_video;
  memory->is_read_only = bits(attributes2, 22, 22) != 0;
  if (is_video) used += size;
  made_ = std::move(memory);
  put<uint64_t>(params, 64, size);
  put<uint64_t>(params, 72, std::max(get<uint64_t>(params, 72), page));
  put<uint64_t>(params, 88, size - 1);
  return RmStatus::kOk;
}

RmStatus RmCalls::create_group(Client& client, Bytes params) {
  // NV2080_ENGINE_TYPE_GRAPHICS 1, COPY0 9 (cl2080_notification.h).
  const uint32_t engine = get(params, 12), space = get(params, 8);
  const bool is_copy_engine =
      engine >= 9 && engine < 9 + std::min(kernel_.chip_->copy_engines, 10u);
  if (engine != 1 && !is_copy_engine) return RmStatus::kInvalidArgument;
  if (space != 0 && client.find<VaSpaceObject>(space, ObjectKind::kVaSpace) == nullptr)
    return RmStatus::kObjectNotFound;
  auto group = std::make_unique<GroupObject>();
  group->kind = ObjectKind::kGroup;
  group->group->engine = engine;
  group->va_space = space;
  made_ = std::move(group);
  return RmStatus::kOk;
}

// Source: kernel_ctxshare.c, kctxshareapiConstruct_IMPL() and kctxshareInitCommon_IMPL(): an
// externally owned space must have page tables first; flags 0 … 3 (nvos.h,
// NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT).
RmStatus RmCalls::create_context_share(Client& client, Object* parent, Bytes params) {
  uint32_t handle = get(params, 0);
  if (handle == 0) handle = static_cast<GroupObject*>(parent)->va_space;
  const auto* space = client.find<VaSpaceObject>(handle, ObjectKind::kVaSpace);
  if (space == nullptr) return RmStatus::kObjectNotFound;
  if (space->is_external && !space->is_registered) return RmStatus::kInvalidState;
  if (get(params, 4) > 3) return RmStatus::kInvalidArgument;
  auto share = std::make_unique<ContextShareObject>();
  share->kind = ObjectKind::kContextShare;
  share->space = space->space;
  share->is_external = space->is_external;
  share->is_async = bits(get(params, 4), 1, 0) != 0;
  put<uint32_t>(params, 8, share->is_async ? 1 : 0);
  made_ = std::move(share);
  return RmStatus::kOk;
}

// Source: kernel_channel.c, kchannelConstruct_IMPL().
RmStatus RmCalls::create_channel(Client& client, Object* parent, const Request& request,
                                 Bytes params) {
  if (parent->kind != ObjectKind::kGroup) return RmStatus::kNotSupported;
  const Release& release = *kernel_.release_;
  auto& group = *static_cast<GroupObject*>(parent);
  const uint32_t share_handle = get(params, 24), space_handle = get(params, 28);
  if (space_handle != 0) return RmStatus::kInvalidArgument;
  // 610 has a second handle for the same thing, in front of the USERD handles.
  const uint32_t entries = get(params, 16);
  const uint32_t userd_handle = get(params, release.channel_userd_handles);
  const uint64_t userd_offset = get<uint64_t>(params, release.channel_userd_offsets);
  const uint32_t engine = get(params, release.channel_engine);
  if (engine != 0 && engine != group.group->engine) return RmStatus::kInvalidArgument;
  std::shared_ptr<AddressSpace> space;
  bool is_external = false, is_async = false;
  // All channels of a group name a share, or none does.
  if (group.channels != 0 && group.has_shares != (share_handle != 0))
    return RmStatus::kInvalidArgument;
  if (share_handle != 0) {
    const auto* share = client.find<ContextShareObject>(share_handle, ObjectKind::kContextShare);
    if (share == nullptr || share->parent != parent) return RmStatus::kInvalidArgument;
    space = share->space;
    is_external = share->is_external;
    is_async = share->is_async;
  } else if (const auto* own = client.find<VaSpaceObject>(group.va_space, ObjectKind::kVaSpace)) {
    // The driver makes shares of its own then, of the group's space.
    if (own->is_external && !own->is_registered) return RmStatus::kInvalidState;
    space = own->space;
    is_external = own->is_external;
  }
  if (space == nullptr) return RmStatus::kInvalidArgument;
  const auto* userd = client.find<MemoryObject>(userd_handle, ObjectKind::kMemory);
  if (userd == nullptr) return RmStatus::kInvalidObjectHandle;
  // USERD is 512 bytes, so aligned (clc56f.h, Nvc56fControl).
  if (userd_offset % 512 != 0 || userd_offset + 512 > userd->size)
    return RmStatus::kInvalidArgument;
  if (entries == 0 || !std::has_single_bit(entries)) return RmStatus::kInvalidArgument;
  auto channel = std::make_shared<Channel>();
  const uint32_t error_handle = get(params, 0);
  if (error_handle != 0) {
    const auto* notifier = client.find<MemoryObject>(error_handle, ObjectKind::kMemory);
    // Two records of 16 bytes, three with confidential computing (550).
    if (notifier == nullptr || notifier->size < 48) return RmStatus::kObjectNotFound;
    channel->notifier = notifier->backing;
  } else {
    kernel_.complain("a channel without an error notifier");
  }
  channel->channel_class = request.object_class;
  channel->handle = request.handle;
  channel->group = group.group;
  channel->space = std::move(space);
  channel->ring = get<uint64_t>(params, 8);
  channel->entries = entries;
  channel->userd = userd->backing;
  channel->userd_offset = userd_offset;
  uint64_t offset = 0;
  if (channel->ring % 8 != 0 ||
      find_pages(*channel->space->snapshot(), channel->ring, entries * 8ull, &offset) == nullptr)
    kernel_.complain(
        fmt::format("ring at {:#x} is not mapped when its channel is made", channel->ring));
  kernel_.gpus_[parent->gpu]->attach(channel);
  auto object = std::make_unique<ChannelObject>();
  object->kind = ObjectKind::kChannel;
  object->is_external = is_external;
  object->is_async = is_async;
  object->channel = std::move(channel);
  made_ = std::move(object);
  ++group.channels;
  group.has_shares = share_handle != 0;
  return RmStatus::kOk;
}

// Source: kernel_ce_context.c, kceGetEngineDescFromAllocParams() (version 0: an index, version 1:
// an engine type); kernel_fifo_gm107.c, kfifoRunlistSetIdByEngine_GM107() and
// kfifoRunlistSetId_GM107(): the object's engine must be of the channel's runlist, and an
// asynchronous subcontext is for graphics and what runs in step with it
// (kernel_fifo_gp102.c, kfifoValidateEngineAndSubctxType_GP102()).
RmStatus RmCalls::create_engine_object(Object* parent, const Request& request, Bytes params) {
  const auto& object = static_cast<const ChannelObject&>(*parent);
  Channel& channel = *object.channel;
  const Chip& chip = *kernel_.chip_;
  const auto is_of_graphics = [&](uint32_t engine) {
    return engine == 1 || is_graphics_copy(chip, engine);
  };
  const uint32_t group_engine = channel.group->engine;
  if (is_compute(request.object_class) && !is_of_graphics(group_engine))
    return RmStatus::kInvalidArgument;
  if (is_copy(request.object_class)) {
    const uint32_t version = get(params, 0), engine = get(params, 4) + (version == 0 ? 9 : 0);
    if (version > 1 || engine < 9 || engine >= 9 + std::min(chip.copy_engines, 10u))
      return RmStatus::kInvalidArgument;
    if (object.is_async && !is_of_graphics(engine)) return RmStatus::kInvalidArgument;
    const bool is_same =
        is_of_graphics(group_engine) ? is_of_graphics(engine) : engine == group_engine;
    if (!is_same) return RmStatus::kInvalidState;
  }
  kernel_.gpus_[parent->gpu]->add_object(channel, request.object_class);
  made_ = std::make_unique<EngineObject>();
  made_->kind = ObjectKind::kEngineObject;
  return RmStatus::kOk;
}

RmStatus RmCalls::create_debugger(Client& client, Bytes params) {
  const uint32_t owner = get(params, 4), compute = get(params, 8);
  Client* const app = kernel_.find_client(owner);
  if (app == nullptr || app != &client) return RmStatus::kInvalidClient;
  const Object* const object = client.find(compute);
  if (object == nullptr || !is_compute(object->object_class)) return RmStatus::kInvalidArgument;
  auto debugger = std::make_unique<DebuggerObject>();
  debugger->kind = ObjectKind::kDebugger;
  debugger->compute_object = compute;
  made_ = std::move(debugger);
  return RmStatus::kOk;
}

// Source: cl0005.h, NV0005_ALLOC_PARAMETERS; osapi.c, allocate_os_event(); event_notification.c,
// registerEventNotification(): non-stall events hang under the subdevice and name an engine.
RmStatus RmCalls::create_event(Client& client, Bytes params) {
  constexpr uint32_t kNonStall = 0x08000000;
  const uint32_t source = get(params, 4), index = get(params, 12);
  const int fd = static_cast<int>(get<uint64_t>(params, 16));
  const File* const file = caller_.file_of(fd);
  const bool is_prepared = file != nullptr && file->events != nullptr &&
                           file->event_clients.contains(fd) &&
                           file->event_clients.at(fd) == client.handle;
  if (!is_prepared) return RmStatus::kInvalidArgument;
  const Object* const object = client.find(source);
  if (object == nullptr) return RmStatus::kObjectNotFound;
  auto event = std::make_unique<EventObject>();
  event->kind = ObjectKind::kEvent;
  event->queue = file->events;
  event->index = index & 0xffff;
  event->is_listening = (index & kNonStall) != 0;
  if (event->is_listening) {
    const bool is_engine = event->index == kNotifyHost || event->index == kNotifyGraphics ||
                           (event->index >= kNotifyCopy0 && event->index < kNotifyCopy0 + 10);
    if (object->kind != ObjectKind::kSubdevice || !is_engine) return RmStatus::kInvalidArgument;
  } else if (object->kind == ObjectKind::kChannel) {
    kernel_.complain("an event on a channel that is not a non-stall event never fires");
  }
  made_ = std::move(event);
  return RmStatus::kOk;
}

}  // namespace bm::sim::nv
