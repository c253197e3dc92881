#include "tests/sim/nv/uvm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace bm::sim::nv {
namespace {

// Source: uvm_ioctl.h and uvm_linux_ioctl.h.
constexpr unsigned long kInitialize = 0x30000001, kDeinitialize = 0x30000002;
constexpr unsigned long kRegisterVaSpace = 25, kUnregisterVaSpace = 26, kRegisterChannel = 27,
                        kUnregisterChannel = 28, kEnablePeer = 29, kMapExternal = 33, kFree = 34,
                        kRegisterGpu = 37, kUnregisterGpu = 38, kPageableAccess = 39,
                        kUnmapExternal = 66, kCreateRange = 73, kMmInitialize = 75;
constexpr uint64_t kPage = 4096;
/// Channel resources must lie below (uvm_hopper.c and others, max_channel_va).
constexpr uint64_t kMaxChannelVa = uint64_t{1} << 40;
/// Stands for the context buffers of a compute channel, whose real size firmware decides.
constexpr uint64_t kContextBytes = uint64_t{4} << 20;

struct CallShape {
  uint32_t size, status;
};

std::optional<CallShape> shape_of(unsigned long request, const Release& release) {
  switch (request) {
    case kInitialize: return CallShape{16, 8};
    case kMmInitialize: return CallShape{8, 4};
    case kRegisterVaSpace: return CallShape{32, 28};
    case kUnregisterVaSpace: return CallShape{20, 16};
    case kRegisterChannel: return CallShape{56, 48};
    case kUnregisterChannel:
      return CallShape{release.unregister_channel, release.unregister_channel_status};
    case kEnablePeer: return CallShape{36, 32};
    case kMapExternal: return CallShape{release.map_external, release.map_external - 4};
    case kFree: return CallShape{release.uvm_free, release.uvm_free_status};
    case kRegisterGpu: return CallShape{40, 36};
    case kUnregisterGpu: return CallShape{20, 16};
    case kPageableAccess: return CallShape{8, 4};
    case kUnmapExternal: return CallShape{40, 32};
    case kCreateRange: return CallShape{24, 16};
    default: return std::nullopt;
  }
}

// Source: uvm_api.h, uvm_api_range_invalid_4k().
bool is_bad_range(uint64_t base, uint64_t size) {
  return base % kPage != 0 || size % kPage != 0 || base == 0 || size == 0 || base + size < base;
}

}  // namespace

// Source: uvm.c, uvm_ioctl(): the argument has the size the module was built with.
int UvmCalls::ioctl(unsigned long request, uint64_t argument) {
  const auto failure = kernel_.count(fmt::format("UVM:{}", request & 0xffff));
  if (failure && failure->error != 0) return -failure->error;
  if (request == kDeinitialize) return 0;
  const auto shape = shape_of(request, *kernel_.release_);
  if (!shape) return -EINVAL;
  std::vector<std::byte> params(shape->size);
  if (!caller_.process->read(argument, params.data(), params.size())) return -EFAULT;
  const std::lock_guard lock(kernel_.mutex_);
  const bool needs_space = request != kInitialize && request != kMmInitialize;
  RmStatus status = RmStatus::kOk;
  if (failure)
    status = failure->status;
  else if (needs_space && file_.uvm == nullptr)
    status = RmStatus::kIllegalAction;
  else
    status = run(request, params);
  put<uint32_t>(params, shape->status, static_cast<uint32_t>(status));
  return caller_.process->write(argument, params.data(), params.size()) ? 0 : -EFAULT;
}

RmStatus UvmCalls::run(unsigned long request, Bytes params) {
  switch (request) {
    case kInitialize: return initialize(params);
    case kMmInitialize: return mm_initialize(params);
    case kRegisterVaSpace: return register_va_space(params);
    case kUnregisterVaSpace: return unregister_va_space(params);
    case kRegisterChannel: return register_channel(params);
    case kUnregisterChannel: return unregister_channel(params);
    case kEnablePeer: return enable_peer(params);
    case kMapExternal: return map_external(params);
    case kUnmapExternal: return unmap_external(params);
    case kFree: return free(params);
    case kRegisterGpu: return register_gpu(params);
    case kUnregisterGpu: return unregister_gpu(params);
    case kPageableAccess: put<uint8_t>(params, 0, 0); return RmStatus::kOk;
    case kCreateRange: return create_range(params);
    default: return RmStatus::kNotSupported;
  }
}

std::optional<uint32_t> UvmCalls::gpu_of(Bytes params, size_t offset) const {
  for (uint32_t i = 0; i < kernel_.gpus_.size(); ++i)
    if (get<Uuid>(params, offset) == kernel_.uuid(i)) return i;
  return std::nullopt;
}

RmStatus UvmCalls::initialize(Bytes params) {
  const uint64_t flags = get<uint64_t>(params, 0);
  if (file_.uvm != nullptr)
    return file_.uvm->flags == flags ? RmStatus::kOk : RmStatus::kInvalidArgument;
  file_.uvm = std::make_shared<UvmSpace>();
  file_.uvm->flags = flags;
  // Bit 0: no heterogeneous memory management; without it a stray GPU pointer may migrate memory.
  if ((flags & 1) == 0) kernel_.complain("UVM_INITIALIZE leaves HMM on");
  return RmStatus::kOk;
}

RmStatus UvmCalls::mm_initialize(Bytes params) {
  const File* const file = caller_.file_of(static_cast<int>(get(params, 0)));
  if (file == nullptr || file->kind != FileKind::kUvm || file->uvm == nullptr)
    return RmStatus::kInvalidArgument;
  return RmStatus::kNothingToDo;
}

// Source: uvm_va_space.c, uvm_va_space_register_gpu().
RmStatus UvmCalls::register_gpu(Bytes params) {
  const auto gpu = gpu_of(params, 0);
  // A GPU that does not open might have been the one (nv.c, nvidia_dev_get_uuid()).
  if (!gpu) return kernel_.options_.is_bootable ? RmStatus::kUuidNotFound : RmStatus::kGeneric;
  if (kernel_.knobs_.is_lost) return RmStatus::kGpuIsLost;
  if (file_.uvm->gpus.contains(*gpu)) return RmStatus::kInvalidDevice;
  file_.uvm->gpus[*gpu] = {};
  put<uint8_t>(params, 16, 0);
  put<int32_t>(params, 20, -1);
  return RmStatus::kOk;
}

RmStatus UvmCalls::unregister_gpu(Bytes params) {
  const auto gpu = gpu_of(params, 0);
  return gpu && file_.uvm->gpus.erase(*gpu) != 0 ? RmStatus::kOk : RmStatus::kInvalidDevice;
}

// Source: uvm_va_space.c, uvm_va_space_register_gpu_va_space() and nv_gpu_ops.c,
// nvGpuOpsDupAddressSpace().
RmStatus UvmCalls::register_va_space(Bytes params) {
  const auto gpu = gpu_of(params, 0);
  if (!gpu || !file_.uvm->gpus.contains(*gpu)) return RmStatus::kInvalidDevice;
  Client* const client = kernel_.find_client(get(params, 20));
  if (client == nullptr) return RmStatus::kInvalidClient;
  auto* space = client->find<VaSpaceObject>(get(params, 24), ObjectKind::kVaSpace);
  if (space == nullptr) return RmStatus::kObjectNotFound;
  if (space->gpu != *gpu) return RmStatus::kInvalidDevice;
  if (!space->is_external) return RmStatus::kInvalidFlags;
  auto& state = file_.uvm->gpus[*gpu];
  if (state.space != nullptr) return RmStatus::kInvalidDevice;
  state.space = space->space;
  space->is_registered = true;
  return RmStatus::kOk;
}

RmStatus UvmCalls::unregister_va_space(Bytes params) {
  const auto gpu = gpu_of(params, 0);
  if (!gpu || !file_.uvm->gpus.contains(*gpu)) return RmStatus::kInvalidDevice;
  auto& state = file_.uvm->gpus[*gpu];
  if (state.space == nullptr) return RmStatus::kInvalidDevice;
  state.space = nullptr;
  std::erase_if(file_.uvm->channels, [&](const auto& channel) { return channel.gpu == *gpu; });
  return RmStatus::kOk;
}

bool UvmCalls::overlaps(uint64_t base, uint64_t size) const {
  const auto& ranges = file_.uvm->ranges;
  auto next = ranges.lower_bound(base);
  if (next != ranges.end() && next->first < base + size) return true;
  return next != ranges.begin() && std::prev(next)->first + std::prev(next)->second.size > base;
}

// Source: uvm_user_channel.c, uvm_user_channel_create() and uvm_register_channel_under_write();
// nv_gpu_ops.c, nvGpuOpsVerifyChannel(), nvGpuOpsGetChannelEngineType() and
// _nvGpuOpsRetainChannelResources(): what runs on graphics' runlist is graphics, whose context
// buffers are asked for (kernel_graphics_context.c, kgrctxGetCtxBuffers_IMPL()); a copy channel
// there has none.
RmStatus UvmCalls::register_channel(Bytes params) {
  const auto gpu = gpu_of(params, 0);
  if (!gpu || !file_.uvm->gpus.contains(*gpu) || file_.uvm->gpus[*gpu].space == nullptr)
    return RmStatus::kInvalidDevice;
  Client* const client = kernel_.find_client(get(params, 20));
  if (client == nullptr) return RmStatus::kInvalidClient;
  const uint32_t handle = get(params, 24);
  const auto* object = client->find<ChannelObject>(handle, ObjectKind::kChannel);
  if (object == nullptr) return RmStatus::kInvalidObjectHandle;
  if (object->gpu != *gpu || object->channel->space != file_.uvm->gpus[*gpu].space)
    return RmStatus::kInvalidChannel;
  const uint64_t base = get<uint64_t>(params, 32), length = get<uint64_t>(params, 40);
  const uint32_t engine = object->channel->group->engine;
  if (is_graphics_copy(*kernel_.chip_, engine)) return RmStatus::kInvalidObject;
  const bool has_context = engine == 1;
  // Made with the first object of graphics or compute.
  if (has_context && !kernel_.gpus_[*gpu]->has_compute_object(*object->channel))
    return RmStatus::kInvalidObject;
  if (has_context && is_bad_range(base, length)) return RmStatus::kInvalidAddress;
  for (const auto& channel : file_.uvm->channels)
    if (channel.client == client->handle && channel.handle == handle)
      return RmStatus::kInvalidChannel;
  if (has_context) {
    if (base + length - 1 >= kMaxChannelVa) return RmStatus::kOutOfRange;
    uint64_t at = base;
    while (at + kContextBytes <= base + length && overlaps(at, kContextBytes)) at += kPage * 16;
    if (at + kContextBytes > base + length) return RmStatus::kInvalidAddress;
    file_.uvm->ranges[at] = {kContextBytes, true, client->handle, handle, {*gpu}};
  }
  file_.uvm->channels.push_back({client->handle, handle, *gpu, object->channel});
  object->channel->is_bound = true;
  return RmStatus::kOk;
}

RmStatus UvmCalls::unregister_channel(Bytes params) {
  // Until 580 the GPU's uuid comes first.
  const size_t at = kernel_.release_->unregister_channel == 28 ? 16 : 0;
  const uint32_t client = get(params, at), handle = get(params, at + 4);
  auto& channels = file_.uvm->channels;
  const auto found = std::find_if(channels.begin(), channels.end(), [&](const auto& channel) {
    return channel.client == client && channel.handle == handle;
  });
  if (found == channels.end()) return RmStatus::kInvalidChannel;
  found->channel->is_bound = false;
  found->channel->group->is_scheduled = false;  // uvm_user_channel_stop()
  channels.erase(found);
  std::erase_if(file_.uvm->ranges, [&](const auto& entry) {
    return entry.second.is_channel && entry.second.channel_client == client &&
           entry.second.channel == handle;
  });
  return RmStatus::kOk;
}

RmStatus UvmCalls::enable_peer(Bytes params) {
  auto first = gpu_of(params, 0), second = gpu_of(params, 16);
  auto& space = *file_.uvm;
  if (!first || !second || *first == *second || !space.gpus.contains(*first) ||
      !space.gpus.contains(*second))
    return RmStatus::kInvalidDevice;
  if (!kernel_.options_.has_peers) return RmStatus::kNotSupported;
  const auto pair = std::minmax(*first, *second);
  return space.peers.insert({pair.first, pair.second}).second ? RmStatus::kOk
                                                              : RmStatus::kInvalidDevice;
}

RmStatus UvmCalls::create_range(Bytes params) {
  const uint64_t base = get<uint64_t>(params, 0), size = get<uint64_t>(params, 8);
  if (is_bad_range(base, size)) return RmStatus::kInvalidAddress;
  if (overlaps(base, size)) return RmStatus::kUvmAddressInUse;
  file_.uvm->ranges[base].size = size;
  return RmStatus::kOk;
}

// Source: uvm_map_external.c, uvm_map_external_allocation(). Attribute records of 36 bytes from 24.
RmStatus UvmCalls::map_external(Bytes params) {
  const Release& release = *kernel_.release_;
  const uint64_t base = get<uint64_t>(params, 0), size = get<uint64_t>(params, 8);
  const size_t tail = 24 + 36ull * release.map_external_gpus;
  const uint64_t count = get<uint64_t>(params, tail);
  if (is_bad_range(base, size)) return RmStatus::kInvalidAddress;
  if (count == 0 || count > release.map_external_gpus) return RmStatus::kInvalidArgument;
  auto range = file_.uvm->ranges.upper_bound(base);
  if (range == file_.uvm->ranges.begin()) return RmStatus::kInvalidAddress;
  --range;
  if (range->second.is_channel || range->first + range->second.size < base + size)
    return RmStatus::kInvalidAddress;
  Client* const client = kernel_.find_client(get(params, tail + 12));
  std::vector<uint32_t> done;
  RmStatus status = RmStatus::kOk;
  for (uint64_t i = 0; i < count && status == RmStatus::kOk; ++i) {
    const Bytes attributes = params.subspan(24 + 36 * i, 36);
    // Mapping types 0 … 3 (default, all, no atomics, read only), caching 0 … 2 (uvm_types.h).
    const auto gpu = gpu_of(attributes, 0);
    if (get(attributes, 16) > 3 || get(attributes, 20) > 2) {
      status = RmStatus::kInvalidArgument;
    } else if (!gpu || !file_.uvm->gpus.contains(*gpu) || file_.uvm->gpus[*gpu].space == nullptr) {
      status = RmStatus::kInvalidDevice;
    } else if (client == nullptr) {
      status = RmStatus::kInvalidClient;
    } else if (auto* memory =
                   client->find<MemoryObject>(get(params, tail + 16), ObjectKind::kMemory)) {
      status = map_on_gpu(params, attributes, *memory);
      if (status == RmStatus::kOk) {
        range->second.mapped.insert(*gpu);
        done.push_back(*gpu);
      }
    } else {
      status = RmStatus::kObjectNotFound;
    }
  }
  if (status != RmStatus::kOk)
    for (const uint32_t gpu : done) file_.uvm->gpus[gpu].space->unmap(base, size);
  return status;
}

RmStatus UvmCalls::map_on_gpu(Bytes params, Bytes attributes, MemoryObject& memory) {
  const uint64_t base = get<uint64_t>(params, 0), size = get<uint64_t>(params, 8),
                 offset = get<uint64_t>(params, 16);
  const uint32_t gpu = *gpu_of(attributes, 0);
  // 49 bits of address up to Ada, 57 after; 2^49 is what every chip here takes.
  if (base + size > uint64_t{1} << 49) return RmStatus::kOutOfRange;
  const auto pair = std::minmax(gpu, memory.gpu);
  if (memory.is_video && gpu != memory.gpu && !file_.uvm->peers.contains({pair.first, pair.second}))
    return RmStatus::kInvalidDevice;
  if (offset % kPage != 0) return RmStatus::kInvalidAddress;
  if (offset + size > memory.size) return RmStatus::kInvalidOffset;
  if ((base | size | offset) % memory.page_size != 0)
    kernel_.complain(
        fmt::format("{:#x}+{:#x} of memory in pages of {:#x} is mapped by smaller "
                    "ones",
                    base, size, memory.page_size));
  const uint32_t type = get(attributes, 16);
  PageRange range;
  range.size = size;
  range.backing = memory.backing;
  range.offset = offset;
  range.is_writable = type != 3 && !memory.is_read_only;
  range.takes_atomics = type < 2;
  file_.uvm->gpus[gpu].space->map(base, std::move(range));
  return RmStatus::kOk;
}

RmStatus UvmCalls::unmap_external(Bytes params) {
  const uint64_t base = get<uint64_t>(params, 0), size = get<uint64_t>(params, 8);
  const auto gpu = gpu_of(params, 16);
  if (is_bad_range(base, size)) return RmStatus::kInvalidAddress;
  if (!gpu || !file_.uvm->gpus.contains(*gpu)) return RmStatus::kInvalidDevice;
  if (!overlaps(base, size)) return RmStatus::kInvalidAddress;
  if (auto& space = file_.uvm->gpus[*gpu].space) space->unmap(base, size);
  return RmStatus::kOk;
}

// Source: uvm_map_external.c, uvm_free(); 590 removed the length from the structure.
RmStatus UvmCalls::free(Bytes params) {
  const uint64_t base = get<uint64_t>(params, 0);
  const auto range = file_.uvm->ranges.find(base);
  if (range == file_.uvm->ranges.end() || range->second.is_channel)
    return RmStatus::kInvalidAddress;
  const uint64_t size = range->second.size;
  const bool has_length = kernel_.release_->uvm_free == 24;
  if (has_length && get<uint64_t>(params, 8) != size) return RmStatus::kInvalidAddress;
  for (const uint32_t gpu : range->second.mapped)
    if (auto& space = file_.uvm->gpus[gpu].space) space->unmap(base, size);
  file_.uvm->ranges.erase(range);
  return RmStatus::kOk;
}

}  // namespace bm::sim::nv
