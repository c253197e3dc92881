#include "tests/sim/nv/chip/rm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/gpu_memory.h"
#include "tests/sim/nv/method_ranges.h"
#include "tests/sim/notify/give_up.h"

namespace bm::sim::nv::card {
namespace {

constexpr uint32_t code(RmStatus status) { return static_cast<uint32_t>(status); }

// GspStaticConfigInfo (K inc/kernel/gpu/gsp/gsp_static_config.h): its size, and offsets of what the
// model fills.
constexpr size_t kStaticInfoBytes = 1656, kStaticGidLength = 32, kStaticGid = 36,
                 kStaticRegions = 344, kStaticRegion0 = 352, kStaticFbLength = 1224,
                 kStaticBar1Pde = 1536, kStaticBar2Pde = 1544, kStaticInternalClient = 1600,
                 kStaticInternalDevice = 1604, kStaticInternalSubdevice = 1608;
// Handles of GSP-RM's own, which GET_GSP_STATIC_INFO tells. Made up.
constexpr uint32_t kInternalClient = 0xc2000001, kInternalDevice = 0xabcd0080,
                   kInternalSubdevice = 0xabcd2080;

enum class Kind : uint8_t {
  kClient,
  kDevice,
  kSubdevice,
  kVaSpace,
  kVirtualMemory,
  kMemory,
  kGroup,
  kContextShare,
  kChannel,
  kCompute,
  kGraphics,
  kCopy,
  kDebugger,
  kEvent,
  kUsermode,
};

/// Classes: K class/cl*.h; what a parent is: rmapi/resource_list.h. Sizes of the parameters at
/// 570.144, measured with a compiler.
struct ClassRow {
  uint32_t number;
  Kind kind;
  uint32_t bytes;
  bool is_optional;
  Kind parent;
  Kind other_parent;
};
constexpr ClassRow kClasses[] = {
    {0x0000, Kind::kClient, 120, false, Kind::kClient, Kind::kClient},
    {0x0041, Kind::kClient, 120, false, Kind::kClient, Kind::kClient},
    {0x0080, Kind::kDevice, 56, false, Kind::kClient, Kind::kClient},
    {0x2080, Kind::kSubdevice, 4, true, Kind::kDevice, Kind::kDevice},
    {0x90f1, Kind::kVaSpace, 48, false, Kind::kDevice, Kind::kDevice},
    {0x0070, Kind::kVirtualMemory, 24, false, Kind::kDevice, Kind::kDevice},
    {0x003e, Kind::kMemory, 128, false, Kind::kDevice, Kind::kDevice},
    {0x0040, Kind::kMemory, 128, false, Kind::kDevice, Kind::kDevice},
    {0xa06c, Kind::kGroup, 20, false, Kind::kDevice, Kind::kDevice},
    {0x9067, Kind::kContextShare, 12, false, Kind::kGroup, Kind::kGroup},
    {0x83de, Kind::kDebugger, 12, false, Kind::kDevice, Kind::kDevice},
    {0x0005, Kind::kEvent, 24, false, Kind::kSubdevice, Kind::kChannel},
    {0x0079, Kind::kEvent, 24, false, Kind::kSubdevice, Kind::kChannel},
};

bool is_channel(uint32_t number) {
  return number == 0xc36f || number == 0xc46f || number == 0xc56f || number == 0xc86f ||
         number == 0xc96f || number == 0xca6f;
}
bool is_usermode(uint32_t number) {
  return number == 0xc361 || number == 0xc461 || number == 0xc561 || number == 0xc661 ||
         number == 0xc761;
}

std::optional<ClassRow> find_class(uint32_t number) {
  for (const ClassRow& row : kClasses)
    if (row.number == number) return row;
  if (is_channel(number))
    return ClassRow{number, Kind::kChannel, 368, false, Kind::kGroup, Kind::kDevice};
  if (is_usermode(number))
    return ClassRow{number, Kind::kUsermode, 8, true, Kind::kSubdevice, Kind::kSubdevice};
  // 3D classes end in 97; the engines know none of their methods.
  if ((number & 0xff) == 0x97 && number >> 8 >= 0xc5)
    return ClassRow{number, Kind::kGraphics, 16, true, Kind::kChannel, Kind::kChannel};
  switch (engine_kind(number)) {
    case EngineKind::kCompute:
      return ClassRow{number, Kind::kCompute, 16, true, Kind::kChannel, Kind::kChannel};
    case EngineKind::kCopy:
      return ClassRow{number, Kind::kCopy, 8, true, Kind::kChannel, Kind::kChannel};
    default: return std::nullopt;
  }
}

/// Controls: K ctrl/ctrl*.h; sizes measured with a compiler. What the model does not know is a
/// violation: a driver counts on nothing that is not here.
enum Control : uint32_t {
  kGetDeviceTable = 0x20801112,
  kCopyReservedPdes = 0x90f10106,
  kContextBuffers = 0x20800a32,
  kPromoteContext = 0x2080012b,
  kMethodBufferSize = 0x20802a08,
  kCopyCaps = 0x20802a07,
  kPerfBoost = 0x2080200a,
  kScheduleGroup = 0xa06c0101,
  kSetTimeslice = 0xa06c0103,
  kPreempt = 0xa06c0105,
  kScheduleChannel = 0xa06f0103,
  kBind = 0xa06f0104,
  kGetToken = 0xc36f0108,
  kGrInfo = 0x20800a2a,
  kFlushSysmembar = 0x20800a70,
  kSmErrors = 0x83de030c,
  kMmuFaultInfo = 0x83de0328,
  kClassList = 0x800292,
  kGidInfo = 0x2080014a,
  kNameString = 0x20800110,
  kConstructedFalcons = 0x208001b0,
  kZcullInfo = 0x20801206,
  kInterruptTable = 0x20800a5c,
  kGpcInfo = 0x20800137,
  kTpcInfo = 0x20800138,
  kFbInfo = 0x20801303,
  kSetNotification = 0x20800301,
  kSetPageDirectoryControl = 0x801813,
  kUnsetPageDirectoryControl = 0x801814,
};
struct ControlRow {
  uint32_t command, bytes;
  Kind kind;
};
constexpr ControlRow kControls[] = {
    {kGetDeviceTable, 3212, Kind::kSubdevice},
    {kCopyReservedPdes, 184, Kind::kVaSpace},
    {kContextBuffers, 1664, Kind::kSubdevice},
    {kPromoteContext, 560, Kind::kSubdevice},
    {kMethodBufferSize, 4, Kind::kSubdevice},
    {kCopyCaps, 8, Kind::kSubdevice},
    {kPerfBoost, 8, Kind::kSubdevice},
    {kScheduleGroup, 2, Kind::kGroup},
    {kSetTimeslice, 8, Kind::kGroup},
    {kPreempt, 8, Kind::kGroup},
    {kScheduleChannel, 2, Kind::kChannel},
    {kBind, 4, Kind::kChannel},
    {kGetToken, 4, Kind::kChannel},
    {kGrInfo, 3712, Kind::kSubdevice},
    {kFlushSysmembar, 0, Kind::kSubdevice},
    {kSmErrors, 4824, Kind::kDebugger},
    {kMmuFaultInfo, 72, Kind::kDebugger},
    {kClassList, 404, Kind::kDevice},
    {kGidInfo, 268, Kind::kSubdevice},
    {kNameString, 132, Kind::kSubdevice},
    {kConstructedFalcons, 1284, Kind::kSubdevice},
    {kZcullInfo, 40, Kind::kSubdevice},
    {kInterruptTable, 2068, Kind::kSubdevice},
    {kGpcInfo, 4, Kind::kSubdevice},
    {kTpcInfo, 8, Kind::kSubdevice},
    {kFbInfo, 460, Kind::kSubdevice},
    {kSetNotification, 20, Kind::kSubdevice},
    {kSetPageDirectoryControl, 32, Kind::kDevice},
    {kUnsetPageDirectoryControl, 8, Kind::kDevice},
};

/// Sizes of context buffers, by engine id of NV0080_CTRL_FIFO_GET_ENGINE_CONTEXT_PROPERTIES. Made
/// up, of the order that nouveau's log shows.
struct ContextBuffer {
  uint32_t id, bytes, alignment;
};
constexpr ContextBuffer kContextSizes[] = {
    {0, 0x180000, 4096},     {8, 0x20000, 4096},     {9, 0x10000, 4096},  {10, 0x100000, 4096},
    {11, 0x80000, 4096},     {12, 0x10000, 4096},    {13, 0x20000, 4096}, {14, 0x80000, 4096},
    {15, 0x10000, 4096},     {16, 0x8000, 4096},     {17, 0x4000, 4096},  {18, 0x20000, 4096},
    {19, 0x200000, 0x20000}, {20, 0x4000, 4096},     {21, 0x4000, 4096},  {22, 0x4000, 4096},
    {23, 0x10000, 4096},     {24, 0x80000, 0x10000}, {25, 0x4000, 4096},
};

}  // namespace

Rm::Rm(const CardRow& row, RegisterFile& registers, Memory& memory, Mmu& mmu, GspQueues& queues)
    : row_(row),
      chip_([&]() -> const Chip& {
        const Chip* const chip = find_chip(row.name);
        if (chip == nullptr) sim::give_up("no engines for " + std::string(row.name));
        return *chip;
      }()),
      registers_(registers),
      memory_(memory),
      mmu_(mmu),
      queues_(queues) {
  engines_ = std::make_unique<Gpu>(chip_, 0, knobs_, [this](std::string what) {
    registers_.violations().add("engines: " + what);
  });
  engines_->on_death = [this](const Channel& channel, uint32_t why) { died(channel, why); };
}

Rm::~Rm() { stop(); }

size_t Rm::objects() const {
  size_t count = 0;
  for (const auto& [handle, client] : clients_) count += client.size() - 1;
  return count;
}

uint32_t Rm::refuse(RmStatus status, const std::string& what) {
  registers_.violations().add("RM: " + what);
  return code(status);
}

void Rm::stop() {
  for (auto& [handle, client] : clients_)
    for (auto& [name, object] : client)
      if (object.channel != nullptr) engines_->detach(*object.channel);
  clients_.clear();
  bar2_space.reset();
}

// GspSystemInfo: gpuPhysAddr, gpuPhysFbAddr, gpuPhysInstAddr, ... are what the driver found.
void Rm::set_system_info(std::span<const std::byte> info) {
  constexpr size_t kBytes = 928;
  if (info.size() != kBytes)
    refuse(RmStatus::kInvalidParamStruct,
           fmt::format("SET_SYSTEM_INFO of {} bytes, not {}", info.size(), kBytes));
}

Rm::Object* Rm::find(uint32_t client, uint32_t handle) {
  const auto at = clients_.find(client);
  if (at == clients_.end()) return nullptr;
  const auto object = at->second.find(handle);
  return object == at->second.end() ? nullptr : &object->second;
}

RpcReply Rm::handle(uint32_t function, std::span<const std::byte> payload) {
  RpcReply reply;
  reply.payload.assign(payload.begin(), payload.end());
  const auto wants = [&](size_t bytes) {
    if (payload.size() == bytes) return true;
    reply.result =
        refuse(RmStatus::kInvalidParamStruct,
               fmt::format("function {} with {} bytes, not {}", function, payload.size(), bytes));
    return false;
  };
  switch (function) {
    case rpc::kAlloc: put<uint32_t>(reply.payload, 16, allocate(reply.payload)); break;
    case rpc::kControl: put<uint32_t>(reply.payload, 12, control(reply.payload)); break;
    case rpc::kFree:
      if (wants(16)) put<uint32_t>(reply.payload, 12, free(payload));
      break;
    case rpc::kDupObject:
      if (wants(28)) put<uint32_t>(reply.payload, 24, duplicate(payload));
      break;
    // The structure's own layout has the control's behind three words, aligned to 8.
    case rpc::kSetPageDirectory:
      if (wants(48)) reply.result = set_page_directory(payload);
      break;
    case rpc::kUnsetPageDirectory: wants(16); break;
    case rpc::kAllocMemory: reply.result = allocate_memory(payload); break;
    case rpc::kGetStaticInfo: reply.payload = static_info(); break;
    case rpc::kUnloading: wants(8); break;
    case rpc::kUpdateBarPde:
      if (wants(24)) reply.result = update_bar_pde(payload);
      break;
    default:
      reply.result = refuse(RmStatus::kNotSupported, fmt::format("function {}", function));
      break;
  }
  return reply;
}

// rpc_gsp_rm_alloc_v03_00: client, parent, object, class, status, size, flags, reserved,
// parameters.
uint32_t Rm::allocate(std::span<std::byte> message) {
  if (message.size() < 32)
    return refuse(RmStatus::kInvalidParamStruct, "GSP_RM_ALLOC without its words");
  const uint32_t client_handle = get<uint32_t>(message, 0),
                 parent_handle = get<uint32_t>(message, 4), handle = get<uint32_t>(message, 8),
                 number = get<uint32_t>(message, 12), bytes = get<uint32_t>(message, 20);
  const auto params = message.subspan(32);
  const std::string name = fmt::format("allocation of class {:#06x}", number);
  const auto row = find_class(number);
  if (!row) return refuse(RmStatus::kInvalidClass, name + ", which is not known");
  if (params.size() != bytes || (bytes != row->bytes && !(row->is_optional && bytes == 0)))
    return refuse(RmStatus::kInvalidParamStruct,
                  fmt::format("{} with {} bytes of parameters, {} in the message; the class has {}",
                              name, bytes, params.size(), row->bytes));
  if (row->kind == Kind::kClient) {
    if (clients_.contains(client_handle))
      return refuse(RmStatus::kInvalidClient, fmt::format("client {:#x} is there", client_handle));
    Object root;
    root.handle = client_handle;
    clients_[client_handle][client_handle] = root;
    return 0;
  }
  const auto found = clients_.find(client_handle);
  if (found == clients_.end())
    return refuse(RmStatus::kInvalidClient,
                  fmt::format("{} for client {:#x}, which is not there", name, client_handle));
  Client& client = found->second;
  const auto parent = client.find(parent_handle);
  if (parent == client.end())
    return refuse(RmStatus::kInvalidObjectHandle,
                  fmt::format("{} under {:#x}, which is not there", name, parent_handle));
  const auto parent_kind = parent_handle == client_handle
                               ? Kind::kClient
                               : find_class(parent->second.object_class)->kind;
  if (parent_kind != row->parent && parent_kind != row->other_parent)
    return refuse(RmStatus::kInvalidParent,
                  fmt::format("{} under class {:#06x}", name, parent->second.object_class));
  if (handle == 0 || client.contains(handle))
    return refuse(RmStatus::kInvalidObjectHandle,
                  fmt::format("{}: handle {:#x} is in use", name, handle));
  const bool is_listed = row->kind == Kind::kMemory || row->kind == Kind::kEvent ||
                         row->kind == Kind::kVaSpace || row->kind == Kind::kVirtualMemory ||
                         std::ranges::count(chip_.classes, number) != 0;
  if (!is_listed)
    return refuse(RmStatus::kInvalidClass, fmt::format("{}: the chip has none", name));
  Object object;
  object.handle = handle;
  object.parent = parent_handle;
  object.object_class = number;
  uint32_t status = 0;
  switch (row->kind) {
    case Kind::kVaSpace: object.space = std::make_shared<WalkedSpace>(mmu_); break;
    case Kind::kGroup:
      object.group = std::make_shared<ChannelGroup>();
      object.group->engine = get<uint32_t>(params, 12);
      object.va_space = get<uint32_t>(params, 8);
      if (object.group->engine == 0 || object.group->engine >= 9 + chip_.copy_engines)
        status = refuse(RmStatus::kInvalidArgument,
                        fmt::format("channel group of engine {}", object.group->engine));
      break;
    case Kind::kContextShare: {
      object.va_space = get<uint32_t>(params, 0);
      if (object.va_space == 0) object.va_space = parent->second.va_space;
      const auto space = client.find(object.va_space);
      if (space == client.end() || space->second.space == nullptr)
        status = refuse(RmStatus::kObjectNotFound,
                        fmt::format("context share of {:#x}, no address space", object.va_space));
      else if (!space->second.space->has_root())
        status = refuse(RmStatus::kInvalidState,
                        "context share of an address space without a page directory");
      break;
    }
    case Kind::kChannel: status = make_channel(client, object, parent->second, params); break;
    case Kind::kCompute:
    case Kind::kCopy:
      if (row->kind == Kind::kCompute && number != chip_.compute_class)
        status = refuse(RmStatus::kInvalidClass, name);
      else
        engines_->add_object(*parent->second.channel, number);
      break;
    case Kind::kClient:
    case Kind::kDevice:
    case Kind::kSubdevice:
    case Kind::kVirtualMemory:
    case Kind::kMemory:
    case Kind::kDebugger:
    case Kind::kGraphics:
    case Kind::kEvent:
    case Kind::kUsermode: break;
  }
  if (status == 0) client[handle] = std::move(object);
  return status;
}

/// A NV_MEMORY_DESC_PARAMS: base, size, address space (1 system, 2 video). `alignment` of the base.
uint32_t Rm::take_range(Object& object, std::span<const std::byte> description, const char* what,
                        uint64_t alignment, uint64_t least, Range* out) {
  const uint64_t at = get<uint64_t>(description, 0), bytes = get<uint64_t>(description, 8);
  const uint32_t space = get<uint32_t>(description, 16);
  Range range{space == 2 ? Aperture::kVideo : Aperture::kSystem, at, bytes, what};
  if (space != 1 && space != 2)
    return refuse(RmStatus::kInvalidArgument,
                  fmt::format("channel's {} in address space {}", what, space));
  if (bytes < least || at % alignment != 0)
    return refuse(
        RmStatus::kInvalidArgument,
        fmt::format("channel's {} at {:#x}, {:#x} bytes: at least {:#x}, aligned to {:#x}", what,
                    at, bytes, least, alignment));
  if (range.aperture == Aperture::kVideo) {
    const uint64_t all = memory_.video().size();
    if (at > all || bytes > all - at)
      return refuse(RmStatus::kInvalidAddress,
                    fmt::format("channel's {} at {:#x} is beyond video memory", what, at));
    if (is_protected && is_protected(at, bytes))
      return refuse(
          RmStatus::kInvalidAddress,
          fmt::format("channel's {} at {:#x} is in the write-protected region", what, at));
  } else {
    for (uint64_t done = 0; done < bytes; done += 4096)
      if (memory_.system_at(at + done, std::min<uint64_t>(4096, bytes - done), true,
                            fmt::format("channel's {}", what)) == nullptr) {
        // GSP-RM does not look; nouveau's golden channel describes one in the wrong memory.
        if (std::string_view(what) == "method buffer") break;
        return code(RmStatus::kInvalidAddress);
      }
  }
  const auto is_taken = [&](const Range& theirs) {
    return theirs.aperture == range.aperture && theirs.at < at + bytes &&
           at < theirs.at + theirs.bytes;
  };
  for (const Range& own : object.ranges)
    if (is_taken(own))
      return refuse(RmStatus::kInUse,
                    fmt::format("channel's {} at {:#x} is its {}", what, at, own.what));
  for (const auto& [client, objects] : clients_)
    for (const auto& [handle, one] : objects)
      for (const Range& theirs : one.ranges)
        if (is_taken(theirs))
          return refuse(RmStatus::kInUse, fmt::format("channel's {} at {:#x} is the {} of another",
                                                      what, at, theirs.what));
  object.ranges.push_back(range);
  *out = range;
  return 0;
}

void Rm::before_unmap(uint64_t address, uint64_t bytes) {
  for (const auto& [client, objects] : clients_)
    for (const auto& [handle, one] : objects)
      for (const Range& range : one.ranges)
        if (range.aperture != Aperture::kVideo && range.at < address + bytes &&
            address < range.at + range.bytes)
          refuse(RmStatus::kInUse,
                 fmt::format("memory at {:#x} is unmapped while channel {:#x} has its {} there",
                             address, handle, range.what));
}

// NV_CHANNEL_ALLOC_PARAMS.
uint32_t Rm::make_channel(Client& client, Object& object, const Object& parent,
                          std::span<std::byte> params) {
  constexpr size_t kRing = 8, kEntries = 16, kShare = 24, kSpace = 28, kEngine = 128,
                   kInstance = 144, kUserd = 168, kRamfc = 192, kMethods = 216, kNotifier = 248;
  auto channel = std::make_shared<Channel>();
  channel->channel_class = object.object_class;
  channel->handle = object.handle;
  channel->ring = get<uint64_t>(params, kRing);
  channel->entries = get<uint32_t>(params, kEntries);
  const uint32_t engine = get<uint32_t>(params, kEngine);
  channel->group = parent.group;
  if (channel->group == nullptr) {
    channel->group = std::make_shared<ChannelGroup>();
    channel->group->engine = engine == 0 ? 1 : engine;
  } else if (engine != 0 && engine != channel->group->engine) {
    return refuse(RmStatus::kInvalidArgument,
                  fmt::format("channel of engine {} in a group of engine {}", engine,
                              channel->group->engine));
  }
  uint32_t space_handle = get<uint32_t>(params, kSpace);
  if (const uint32_t share = get<uint32_t>(params, kShare); share != 0) {
    const auto at = client.find(share);
    if (at == client.end() || at->second.object_class != 0x9067 ||
        at->second.parent != parent.handle)
      return refuse(RmStatus::kInvalidArgument,
                    fmt::format("channel of {:#x}, no context share of its group", share));
    space_handle = at->second.va_space;
  } else if (space_handle == 0) {
    space_handle = parent.va_space;
  }
  const auto space = client.find(space_handle);
  if (space == client.end() || space->second.space == nullptr)
    return refuse(RmStatus::kObjectNotFound,
                  fmt::format("channel of {:#x}, no address space", space_handle));
  if (!space->second.space->has_root())
    return refuse(RmStatus::kInvalidState, "channel of an address space without a page directory");
  channel->space = space->second.space;
  // NVOS04_FLAGS: USERD_INDEX_PAGE_FIXED 21, _PAGE_VALUE 20:12, _VALUE 10:8: the driver's number of
  // the channel (kchannelAllocHwID_GM107()).
  const uint32_t flags = get<uint32_t>(params, 20);
  if ((flags >> 21 & 1) != 0) {
    channel->has_id = true;
    channel->id = (flags >> 12 & 0x1ff) * 8 + (flags >> 8 & 7);
  }
  if (channel->entries == 0 || !std::has_single_bit(channel->entries))
    return refuse(RmStatus::kInvalidArgument,
                  fmt::format("channel with {} entries", channel->entries));
  Range instance, userd, ramfc, methods, notifier;
  const auto part = [&](size_t at) { return std::span<const std::byte>(params).subspan(at, 24); };
  // RAMFC is a part of the instance block.
  uint32_t status = take_range(object, part(kInstance), "instance memory", 4096, 4096, &instance);
  if (status == 0) {
    const uint64_t at = get<uint64_t>(part(kRamfc), 0), bytes = get<uint64_t>(part(kRamfc), 8);
    if (at < instance.at || at + bytes > instance.at + instance.bytes || bytes < 512 ||
        get<uint32_t>(part(kRamfc), 16) != get<uint32_t>(part(kInstance), 16))
      status =
          refuse(RmStatus::kInvalidArgument,
                 fmt::format("channel's RAMFC at {:#x}, {:#x} bytes, not in its instance memory",
                             at, bytes));
  }
  if (status == 0)
    status = take_range(object, part(kMethods), "method buffer", 4096, 0x5000, &methods);
  // USERD: NV_RAMUSERD_CHAN_SIZE 512.
  if (status == 0) {
    const uint64_t at = get<uint64_t>(part(kUserd), 0);
    if (at % 512 != 0 || get<uint64_t>(part(kUserd), 8) < 512)
      refuse(RmStatus::kOk, fmt::format("channel's USERD at {:#x}, {:#x} bytes: 512, aligned to it",
                                        at, get<uint64_t>(part(kUserd), 8)));
    status = take_range(object, part(kUserd), "USERD", 4, 4, &userd);
  }
  // Of address space 0 is one that nobody wants.
  if (status == 0 && get<uint32_t>(part(kNotifier), 16) != 0) {
    status = take_range(object, part(kNotifier), "error notifier", 16, 16, &notifier);
  }
  if (status != 0) return status;
  if (notifier.bytes != 0)
    channel->notifier =
        make_part(notifier.aperture == Aperture::kVideo ? mmu_.video() : mmu_.system(), notifier.at,
                  notifier.bytes);
  channel->userd = userd.aperture == Aperture::kVideo ? mmu_.video() : mmu_.system();
  channel->userd_offset = userd.at;
  GpuMemory memory(*channel->space);
  uint64_t entry = 0;
  if (channel->ring % 8 != 0 || !memory.get(channel->ring, &entry))
    refuse(RmStatus::kOk,
           fmt::format("channel's ring at {:#x} is not mapped when it is made", channel->ring));
  engines_->attach(channel);
  object.channel = std::move(channel);
  return 0;
}

// rpc_gsp_rm_control_v03_00: client, object, command, status, size, flags, parameters.
uint32_t Rm::control(std::span<std::byte> message) {
  if (message.size() < 24)
    return refuse(RmStatus::kInvalidParamStruct, "GSP_RM_CONTROL without its words");
  const uint32_t client_handle = get<uint32_t>(message, 0), handle = get<uint32_t>(message, 4),
                 command = get<uint32_t>(message, 8), bytes = get<uint32_t>(message, 16);
  const auto params = message.subspan(24);
  const auto row = std::ranges::find(kControls, command, &ControlRow::command);
  if (row == std::end(kControls))
    return refuse(RmStatus::kNotSupported,
                  fmt::format("control {:#x}, which is not known", command));
  if (params.size() != bytes || bytes != row->bytes)
    return refuse(
        RmStatus::kInvalidParamStruct,
        fmt::format("control {:#x} with {} bytes of parameters, {} in the message; it has {}",
                    command, bytes, params.size(), row->bytes));
  if (client_handle == kInternalClient) {
    Client none;
    Object internal;
    return run_control(none, internal, command, params);
  }
  Object* const object = find(client_handle, handle);
  if (object == nullptr)
    return refuse(RmStatus::kInvalidObjectHandle,
                  fmt::format("control {:#x} of {:#x}, which client {:#x} has not", command, handle,
                              client_handle));
  const auto of = find_class(object->object_class);
  if (handle == client_handle || !of || of->kind != row->kind)
    return refuse(RmStatus::kInvalidObject,
                  fmt::format("control {:#x} of class {:#06x}", command, object->object_class));
  return run_control(clients_[client_handle], *object, command, params);
}

uint32_t Rm::run_control(Client& client, Object& object, uint32_t command, std::span<std::byte> p) {
  switch (command) {
    case kGetDeviceTable: fill_device_table(p); return 0;
    case kGrInfo: fill_gr_info(p); return 0;
    // NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS. Made up; what tinygrad takes without
    // asking.
    case kMethodBufferSize: put<uint32_t>(p, 0, 0x5000); return 0;
    // NV2080_CTRL_CE_GET_CAPS_V2_PARAMS: engine, table; GRCE is bit 0 of its first byte.
    case kCopyCaps:
      put<uint8_t>(p, 4, is_graphics_copy(chip_, get<uint32_t>(p, 0)) ? 1 : 0);
      return 0;
    case kPromoteContext: return promote(p);
    case kContextBuffers:
      for (const ContextBuffer& one : kContextSizes) {
        put<uint32_t>(p, one.id * 8, one.bytes);
        put<uint32_t>(p, one.id * 8 + 4, one.alignment);
      }
      return 0;
    // hSubDevice, subDeviceId, pageSize, virtAddrLo, Hi, levels' number, levels {address, size,
    // aperture, shift} from 40 on, 24 bytes each.
    case kCopyReservedPdes: {
      const uint32_t levels = get<uint32_t>(p, 32);
      if (levels == 0 || levels > 6)
        return refuse(RmStatus::kInvalidArgument, fmt::format("{} levels of page tables", levels));
      for (uint32_t i = 0; i < levels; ++i) {
        const uint64_t at = get<uint64_t>(p, 40 + i * 24);
        const uint32_t aperture = get<uint32_t>(p, 56 + i * 24);
        if (aperture == 0 || aperture > 3 || at % 4096 != 0 ||
            (aperture == 1 &&
             (at >= memory_.video().size() || (is_protected && is_protected(at, 8)))))
          return refuse(
              RmStatus::kInvalidAddress,
              fmt::format("reserved page table {} at {:#x}, aperture {}", i, at, aperture));
      }
      // The range is the server's: its own entries go into the last directory; here there are none.
      const uint64_t first = get<uint64_t>(p, 16), last = get<uint64_t>(p, 24);
      const uint32_t shift = get<uint8_t>(p, 60 + (levels - 1) * 24);
      const uint64_t directory = get<uint64_t>(p, 40 + (levels - 1) * 24);
      const uint64_t entries = get<uint64_t>(p, 48 + (levels - 1) * 24) / 8;
      constexpr std::byte kNone[8]{};
      for (uint64_t at = first; shift < 57 && at <= last && at >= first; at += uint64_t{1} << shift)
        memory_.write(
            get<uint32_t>(p, 56 + (levels - 1) * 24) == 1 ? Aperture::kVideo : Aperture::kSystem,
            directory + (at >> shift) % entries * 8, kNone, "the server's page directory entries");
      if (!object.space->has_root())
        object.space->set_root(get<uint32_t>(p, 56) == 1 ? Aperture::kVideo : Aperture::kSystem,
                               get<uint64_t>(p, 40));
      return 0;
    }
    case kScheduleGroup: object.group->is_scheduled = get<uint8_t>(p, 0) != 0; return 0;
    case kScheduleChannel: object.channel->group->is_scheduled = get<uint8_t>(p, 0) != 0; return 0;
    case kBind:
      if (get<uint32_t>(p, 0) != object.channel->group->engine)
        return refuse(RmStatus::kInvalidArgument,
                      fmt::format("channel bound to engine {}, made for {}", get<uint32_t>(p, 0),
                                  object.channel->group->engine));
      return 0;
    // The card's driver adds runlist and ring.
    case kGetToken: put<uint32_t>(p, 0, object.channel->id); return 0;
    case kClassList:
      put<uint32_t>(p, 0, static_cast<uint32_t>(chip_.classes.size()));
      for (size_t i = 0; i < chip_.classes.size(); ++i)
        put<uint32_t>(p, 4 + 4 * i, chip_.classes[i]);
      return 0;
    case kGidInfo: {
      put<uint32_t>(p, 8, 16);
      for (uint32_t i = 0; i < 16; ++i)
        put<uint8_t>(p, 12 + i, static_cast<uint8_t>(chip_.pci_device * (i + 3)));
      return 0;
    }
    case kNameString: {
      const size_t bytes = std::min<size_t>(chip_.marketing.size(), 63);
      std::memcpy(&p[4], chip_.marketing.data(), bytes);
      return 0;
    }
    case kInterruptTable: fill_interrupt_table(p); return 0;
    // NV2080_CTRL_GPU_GET_FERMI_GPC_INFO_PARAMS, _TPC_INFO_PARAMS: masks; none of a GPC that is
    // off.
    case kGpcInfo: put<uint32_t>(p, 0, (1u << chip_.gpcs) - 1); return 0;
    case kTpcInfo:
      put<uint32_t>(p, 4, get<uint32_t>(p, 0) < chip_.gpcs ? (1u << chip_.tpcs_per_gpc) - 1 : 0);
      return 0;
    case kSmErrors:
    case kMmuFaultInfo: fill_sm_errors(client, p); return 0;
    case kSetPageDirectoryControl: {
      std::array<std::byte, 48> message{};
      std::ranges::copy(p, message.begin() + 16);
      return set_page_directory(message);
    }
    default: return 0;
  }
}

// NV2080_CTRL_FIFO_DEVICE_ENTRY of 100 bytes: engineData by ENGINE_INFO_TYPE (engine 2, runlist 3).
void Rm::fill_device_table(std::span<std::byte> p) const {
  const uint32_t base = get<uint32_t>(p, 0);
  uint32_t count = 0;
  for (uint32_t i = base; i <= chip_.copy_engines && count < 32; ++i, ++count) {
    const auto entry = p.subspan(12 + count * size_t{100}, 100);
    // Graphics first. Copy engines in step with it share its runlist.
    const uint32_t engine = i == 0 ? 1 : 8 + i;
    const uint32_t runlist = i == 0 || is_graphics_copy(chip_, engine) ? 0 : engine - 8;
    put<uint32_t>(entry, 8, engine);
    put<uint32_t>(entry, 12, runlist);
    put<uint32_t>(entry, 80, 1);
    const std::string name = i == 0 ? "GRAPHICS" : fmt::format("CE{}", i - 1);
    std::memcpy(&entry[84], name.data(), name.size());
  }
  put<uint32_t>(p, 4, count);
  put<uint8_t>(p, 8, base + count <= chip_.copy_engines ? 1 : 0);
}

// NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS: a count and entries of 16 bytes with
// MC_ENGINE_IDX (K inc/kernel/gpu/intr/engine_idx.h) and vectors of the CPU's tree, which are made
// up.
void Rm::fill_interrupt_table(std::span<std::byte> p) const {
  constexpr uint32_t kCopy0 = 15, kGsp = 50, kGraphics0 = 84, kNone = UINT32_MAX, kStall = 128;
  uint32_t count = 0;
  const auto add = [&](uint32_t engine, uint32_t stall, uint32_t nonstall) {
    const auto entry = p.subspan(4 + count++ * size_t{16}, 16);
    put<uint16_t>(entry, 0, static_cast<uint16_t>(engine));
    put<uint32_t>(entry, 8, stall);
    put<uint32_t>(entry, 12, nonstall);
  };
  add(kGsp, kStall, kNone);
  add(kGraphics0, kStall + 1, 0);
  for (uint32_t i = 0; i < chip_.copy_engines; ++i) add(kCopy0 + i, kStall + 2 + i, 1 + i);
  put<uint32_t>(p, 0, count);
  for (uint32_t i = 0; i < 7; ++i) {  // NV2080_INTR_CATEGORY_SUBTREE_MAP
    put<uint8_t>(p, 2052 + 2 * i, 2);
    put<uint8_t>(p, 2053 + 2 * i, 2);
  }
}

// Of engine 0: pairs of index and datum (NV0080_CTRL_GR_INFO_INDEX_*).
void Rm::fill_gr_info(std::span<std::byte> p) const {
  const struct {
    uint32_t index, value;
  } all[] = {{0x0c, chip_.sm_version}, {0x0d, chip_.warps_per_sm}, {0x0e, 32},
             {0x14, chip_.gpcs},       {0x17, chip_.tpcs_per_gpc}, {0x20, chip_.sms_per_tpc}};
  for (uint32_t i = 0; i < 0x3a; ++i) put<uint32_t>(p, i * 8, i);
  for (const auto& one : all) put<uint32_t>(p, one.index * 8 + 4, one.value);
}

// NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS.
uint32_t Rm::promote(std::span<const std::byte> p) {
  const uint32_t count = get<uint32_t>(p, 40), client = get<uint32_t>(p, 12),
                 handle = get<uint32_t>(p, 16);
  const Object* const object = find(client, handle);
  if (object == nullptr || (object->channel == nullptr && object->group == nullptr))
    return refuse(RmStatus::kInvalidObjectHandle,
                  fmt::format("context buffers for {:#x}, which is no channel", handle));
  if (count > 16)
    return refuse(RmStatus::kInvalidArgument, fmt::format("{} context buffers", count));
  for (uint32_t i = 0; i < count; ++i) {
    const auto entry = p.subspan(48 + i * size_t{32}, 32);
    const uint64_t at = get<uint64_t>(entry, 0), virtual_at = get<uint64_t>(entry, 8),
                   bytes = get<uint64_t>(entry, 16);
    const uint32_t id = get<uint16_t>(entry, 28);
    if (bytes != 0) {
      // PHYSATTR: aperture 1:0 … of NV2080_CTRL_GPU_INITIALIZE_CTX_APERTURE is 0 video, 1, 2
      // system.
      const uint32_t attributes = get<uint32_t>(entry, 24);
      const bool is_video = (attributes & 3) == 0;
      if (at % 4096 != 0 || (is_video && (at + bytes > memory_.video().size() ||
                                          (is_protected && is_protected(at, bytes)))))
        return refuse(RmStatus::kInvalidAddress,
                      fmt::format("context buffer {} at {:#x}, {:#x} bytes", id, at, bytes));
      const uint32_t engine = id == 0 ? 0 : id <= 2 ? 16 : id >= 3 && id <= 10 ? id + 14 : 24;
      for (const ContextBuffer& one : kContextSizes)
        if (one.id == engine && bytes < one.bytes)
          return refuse(RmStatus::kInvalidArgument,
                        fmt::format("context buffer {} of {:#x} bytes, the chip wants {:#x}", id,
                                    bytes, one.bytes));
    }
    if (virtual_at != 0 && object->channel != nullptr) {
      GpuMemory memory(*object->channel->space);
      uint32_t word = 0;
      if (!memory.get(virtual_at, &word))
        return refuse(
            RmStatus::kInvalidAddress,
            fmt::format("context buffer {} at address {:#x}, which is not mapped", id, virtual_at));
    }
  }
  return 0;
}

// NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS: channel, number, states of 80 bytes, faults;
// NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS: entries of 16 bytes, their number.
void Rm::fill_sm_errors(Client& client, std::span<std::byte> p) {
  for (auto& [handle, object] : client) {
    if (object.channel == nullptr) continue;
    ChannelGroup& group = *object.channel->group;
    const std::lock_guard lock(group.mutex);
    if (p.size() == 72) {
      const size_t count = std::min<size_t>(group.mmu_faults.size(), 4);
      for (size_t i = 0; i < count; ++i) {
        put<uint64_t>(p, i * 16, group.mmu_faults[i].address);
        put<uint32_t>(p, i * 16 + 8, group.mmu_faults[i].type);
        put<uint32_t>(p, i * 16 + 12, group.mmu_faults[i].access);
      }
      put<uint32_t>(p, 64, static_cast<uint32_t>(count));
    } else {
      put<uint8_t>(p, 4812, group.mmu_faults.empty() ? 0 : 1);
    }
    if (!group.mmu_faults.empty()) return;
  }
}

uint32_t Rm::free(std::span<const std::byte> payload) {
  const uint32_t client = get<uint32_t>(payload, 0), handle = get<uint32_t>(payload, 8);
  if (find(client, handle) == nullptr)
    return refuse(RmStatus::kObjectNotFound,
                  fmt::format("free of {:#x}, which client {:#x} has not", handle, client));
  if (client == handle) {
    for (auto& [name, object] : clients_[client])
      if (object.channel != nullptr) engines_->detach(*object.channel);
    clients_.erase(client);
    return 0;
  }
  erase(clients_[client], handle);
  return 0;
}

void Rm::erase(Client& client, uint32_t handle) {
  std::vector<uint32_t> children;
  for (const auto& [name, object] : client)
    if (object.parent == handle) children.push_back(name);
  for (const uint32_t child : children) erase(client, child);
  const auto at = client.find(handle);
  if (at == client.end()) return;
  if (at->second.channel != nullptr) engines_->detach(*at->second.channel);
  client.erase(at);
}

// NVOS55_PARAMETERS: client, parent, object, source's client and object, flags, status.
uint32_t Rm::duplicate(std::span<const std::byte> payload) {
  const Object* const source = find(get<uint32_t>(payload, 12), get<uint32_t>(payload, 16));
  const uint32_t client = get<uint32_t>(payload, 0), handle = get<uint32_t>(payload, 8);
  if (source == nullptr || find(client, get<uint32_t>(payload, 4)) == nullptr ||
      find(client, handle) != nullptr)
    return refuse(RmStatus::kInvalidObjectHandle, "duplicate of what is not there");
  Object copy = *source;
  copy.handle = handle;
  copy.parent = get<uint32_t>(payload, 4);
  copy.channel = nullptr;
  copy.ranges.clear();
  clients_[client][handle] = std::move(copy);
  return 0;
}

// rpc_set_page_directory_v1E_05: client, device, pasid, then at 16 the control's parameters:
// address, entries, flags, space, channel, subdevice, pasid.
uint32_t Rm::set_page_directory(std::span<const std::byte> payload) {
  const auto params = payload.subspan(16);
  const uint64_t at = get<uint64_t>(params, 0);
  const uint32_t entries = get<uint32_t>(params, 8), flags = get<uint32_t>(params, 12),
                 handle = get<uint32_t>(params, 16);
  Object* space = find(get<uint32_t>(payload, 0), handle);
  if (space == nullptr)
    for (auto& [name, client] : clients_)
      if (const auto found = client.find(handle); found != client.end()) space = &found->second;
  if (space == nullptr || space->space == nullptr)
    return refuse(RmStatus::kObjectNotFound,
                  fmt::format("page directory for {:#x}, no address space", handle));
  // NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_FLAGS_APERTURE 1:0: 0 video memory, 1 and 2 system memory.
  const Aperture aperture = (flags & 3) == 0 ? Aperture::kVideo : Aperture::kSystem;
  const uint32_t wanted = row_.mmu == MmuVersion::k3 ? 2 : 4;
  if (entries < wanted || entries > 512 || at % (entries * 8ull) != 0)
    return refuse(RmStatus::kInvalidArgument,
                  fmt::format("page directory at {:#x} of {} entries", at, entries));
  if (aperture == Aperture::kVideo
          ? at + entries * 8ull > memory_.video().size() ||
                (is_protected && is_protected(at, entries * 8ull))
          : memory_.system_at(at, entries * 8ull, false, "page directory") == nullptr)
    return refuse(RmStatus::kInvalidAddress, fmt::format("page directory at {:#x}, no memory", at));
  space->space->set_root(aperture, at);
  return 0;
}

// rpc_alloc_memory_v13_01: client, device, memory, class, flags, adjustment, format, length at 32,
// pages at 40, then a list of pages.
uint32_t Rm::allocate_memory(std::span<const std::byte> payload) {
  const uint32_t client = get<uint32_t>(payload, 0), handle = get<uint32_t>(payload, 8),
                 pages = get<uint32_t>(payload, 40);
  if (find(client, get<uint32_t>(payload, 4)) == nullptr || find(client, handle) != nullptr)
    return refuse(RmStatus::kInvalidObjectHandle, fmt::format("memory {:#x}", handle));
  if (payload.size() < 48 + pages * 8ull)
    return refuse(RmStatus::kInvalidParamStruct,
                  fmt::format("memory of {} pages, without them", pages));
  Object object;
  object.handle = handle;
  object.parent = get<uint32_t>(payload, 4);
  object.object_class = 0x40;
  clients_[client][handle] = object;
  return 0;
}

// rpc_update_bar_pde_v15_00: which BAR, the entry, the address bit of its level.
uint32_t Rm::update_bar_pde(std::span<const std::byte> payload) {
  constexpr uint32_t kBar2 = 1;  // NV_RPC_UPDATE_PDE_BAR_2
  const uint32_t bar = get<uint32_t>(payload, 0);
  const uint64_t entry = get<uint64_t>(payload, 8), shift = get<uint64_t>(payload, 16);
  const bool is_v3 = row_.mmu == MmuVersion::k3;
  if (bar != kBar2 || !(shift == 47 || (is_v3 && shift == 56)))
    return refuse(RmStatus::kInvalidArgument,
                  fmt::format("page directory entry for BAR {} at bit {}", bar, shift));
  const uint64_t directory = bar2_directory();
  std::byte* const tables = memory_.video().at(directory, 0x2000);
  std::memset(tables, 0, 0x2000);
  if (shift == 47) {
    std::memcpy(tables + 0x1000, &entry, 8);
    const uint64_t next = (directory + 0x1000) | 1u << 1;  // video memory
    if (is_v3) std::memcpy(tables, &next, 8);
  } else {
    std::memcpy(tables, &entry, 8);
  }
  if (entry == 0)
    bar2_space.reset();
  else if (bar2_space == nullptr)
    bar2_space = std::make_unique<WalkedSpace>(mmu_);
  if (bar2_space != nullptr)
    bar2_space->set_root(Aperture::kVideo, directory + (is_v3 ? 0 : 0x1000));
  return 0;
}

// GspStaticConfigInfo, of which the model fills what drivers read.
std::vector<std::byte> Rm::static_info() const {
  std::vector<std::byte> out(kStaticInfoBytes);
  put<uint64_t>(out, kStaticBar1Pde, bar2_directory() - 0x1000);
  put<uint64_t>(out, kStaticBar2Pde, bar2_directory());
  put<uint32_t>(out, kStaticInternalClient, kInternalClient);
  put<uint32_t>(out, kStaticInternalDevice, kInternalDevice);
  put<uint32_t>(out, kStaticInternalSubdevice, kInternalSubdevice);
  // Bytes: mem_mgr_gsp_client.c shifts them by 20.
  put<uint64_t>(out, kStaticFbLength, memory_.video().size());
  // One region: all that lies below what the GSP keeps.
  put<uint32_t>(out, kStaticRegions, 1);
  uint64_t end = memory_.video().size();
  constexpr uint64_t kMiB = 1 << 20;
  while (end > kMiB && is_protected && is_protected(0, end)) end -= kMiB;
  put<uint64_t>(out, kStaticRegion0 + 8, end - 1);
  put<uint8_t>(out, kStaticRegion0 + 28,
               1);  // supportCompressed, supportISO: nouveau takes no other
  put<uint8_t>(out, kStaticRegion0 + 29, 1);
  put<uint32_t>(out, kStaticGidLength, 16);
  for (uint32_t i = 0; i < 16; ++i)
    put<uint8_t>(out, kStaticGid + i, static_cast<uint8_t>(chip_.pci_device * (i + 3)));
  return out;
}

// rpc_rc_triggered_v17_02, rpc_os_error_log_v17_00.
void Rm::died(const Channel& channel, uint32_t why) {
  const auto faults = engines_->faults();
  MmuFault fault{};
  bool has_fault = false;
  {
    const std::lock_guard lock(channel.group->mutex);
    has_fault = !channel.group->mmu_faults.empty();
    if (has_fault) fault = channel.group->mmu_faults.back();
  }
  std::vector<std::byte> log(272);
  put<uint32_t>(log, 0, why);
  put<uint32_t>(log, 8, channel.id);
  const std::string text = faults.empty() ? "channel died" : faults.back();
  std::memcpy(&log[12], text.data(), std::min<size_t>(text.size(), 255));
  queues_.post(rpc::kOsErrorLog, log);
  if (has_fault) queues_.post(rpc::kMmuFaultQueued, {});
  std::vector<std::byte> triggered(48);
  put<uint32_t>(triggered, 0, channel.group->engine);
  put<uint32_t>(triggered, 4, channel.id);
  put<uint32_t>(triggered, 16, why);
  put<uint32_t>(triggered, 28, static_cast<uint32_t>(fault.address));
  put<uint32_t>(triggered, 32, static_cast<uint32_t>(fault.address >> 32));
  put<uint32_t>(triggered, 36, fault.type);
  queues_.post(rpc::kRcTriggered, triggered);
}

}  // namespace bm::sim::nv::card
