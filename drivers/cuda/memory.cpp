#include "drivers/cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace bm::cuda {
namespace {

constexpr int kMostNested = 4;

std::byte* pointer_of(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

// ---- Region

Region::Region(std::shared_ptr<Memory> memory, const hal::BufferDesc& desc, const Piece& piece,
               Space space, Owner owner)
    : Buffer(desc, hal::GpuVa{piece.va}, piece.host),
      memory_(std::move(memory)),
      piece_(piece),
      space_(space),
      owner_(owner) {
  memory_->add(*this);
}

Region::~Region() {
  memory_->remove(*this);
  const Current current(memory_->context());
  switch (owner_) {
    case Owner::kSlabs:
      (space_ == Space::kDevice ? memory_->video_ : memory_->pinned_).free(piece_);
      break;
    case Owner::kRegistered: memory_->unregister_host(piece_.host); break;
    case Owner::kCaller: break;
  }
}

// ---- Allocation

Memory::Memory(ContextPtr context)
    : context_(std::move(context)),
      video_(*context_, Backing::kVideo),
      pinned_(*context_, Backing::kPinned) {}

Memory::~Memory() {
  const Current current(*context_);
  if (fill_stream_ != nullptr) context_->api.cuStreamDestroy(fill_stream_);
}

Result<std::unique_ptr<hal::Buffer>> Memory::allocate(const hal::BufferDesc& desc) {
  if (desc.size == 0) return fail(Code::kInvalidArgument, "buffer of 0 bytes");
  const Current current(*context_);
  if (desc.external != nullptr) {
    const auto address = reinterpret_cast<uintptr_t>(desc.external);
    if (desc.size > UINTPTR_MAX - address)
      return fail(Code::kInvalidArgument, "{} bytes at {:#x} leave the address space", desc.size,
                  address);
    switch (desc.external_kind) {
      case hal::ExternalKind::kHostPointer: return wrap_host(desc);
      case hal::ExternalKind::kCudaPointer: return wrap_cuda(desc);
      case hal::ExternalKind::kClMem:
      case hal::ExternalKind::kSvmPointer:
        return fail(Code::kUnsupported, "a CUDA device cannot wrap OpenCL memory");
    }
    __builtin_unreachable();
  }
  const bool is_host = desc.host_visible || desc.host_memory || desc.uncached;
  BM_TRY(check_size(desc.size, is_host));
  const Piece piece = BM_TRY((is_host ? pinned_ : video_).allocate(desc.size));
  auto region =
      std::make_unique<Region>(shared_from_this(), desc, piece,
                               is_host ? Space::kShared : Space::kDevice, Region::Owner::kSlabs);
  if (desc.zero && is_host) std::memset(piece.host, 0, desc.size);
  if (desc.zero && !is_host) BM_TRY(fill_zero(piece.va, desc.size));
  return region;
}

Status Memory::check_size(uint64_t bytes, bool is_host) const {
  const uint64_t limit = is_host ? context_->info.host_bytes : context_->info.memory_bytes;
  if (bytes <= limit) return {};
  return fail(Code::kOutOfMemory, "{} bytes requested, {} used, the {} has {}", bytes, used(),
              is_host ? "machine" : "GPU", limit);
}

/// On a stream of its own: the device's queues may be waiting for the host.
Status Memory::fill_zero(CuDevicePtr va, uint64_t bytes) {
  const Api& api = context_->api;
  const std::lock_guard lock(fill_mutex_);
  if (fill_stream_ == nullptr)
    BM_TRY(context_->done(api.cuStreamCreate(&fill_stream_, kStreamNonBlocking), "cuStreamCreate"));
  if (api.cuMemsetD8Async != nullptr) {
    BM_TRY(context_->done(api.cuMemsetD8Async(va, 0, bytes, fill_stream_), "cuMemsetD8Async"));
    return context_->done(api.cuStreamSynchronize(fill_stream_), "filling a buffer with zero");
  }
  constexpr uint64_t kStep = 1 << 20;
  const std::vector<std::byte> zeros(std::min(bytes, kStep));
  for (uint64_t at = 0; at < bytes; at += kStep)
    BM_TRY(context_->done(
        api.cuMemcpyHtoDAsync(va + at, zeros.data(), std::min(kStep, bytes - at), fill_stream_),
        "cuMemcpyHtoDAsync"));
  return context_->done(api.cuStreamSynchronize(fill_stream_), "filling a buffer with zero");
}

/// Makes the caller's memory reachable for kernels and copies without staging.
Result<std::unique_ptr<hal::Buffer>> Memory::wrap_host(const hal::BufferDesc& desc) {
  const Api& api = context_->api;
  unsigned type = 0;
  const CuDevicePtr address = reinterpret_cast<uintptr_t>(desc.external);
  const bool is_known = api.cuPointerGetAttribute != nullptr &&
                        api.cuPointerGetAttribute(&type, kPointerMemoryType, address) == kSuccess;
  if (is_known && type == kMemoryDevice)
    return fail(Code::kInvalidArgument,
                "{:#x} is a CUDA device pointer: wrap it as hal::ExternalKind::kCudaPointer",
                address);
  Piece piece{.va = address, .host = static_cast<std::byte*>(desc.external), .size = desc.size};
  const Region::Owner owner = BM_TRY(register_host(piece.host, desc.size));
  // From here on the region, once made, or we give the registration back.
  CuResult error = kSuccess;
  if (api.cuMemHostGetDevicePointer != nullptr)
    error = api.cuMemHostGetDevicePointer(&piece.va, desc.external, 0);
  if (error != kSuccess && owner == Region::Owner::kRegistered) unregister_host(piece.host);
  BM_TRY(context_->done(error, "cuMemHostGetDevicePointer"));
  if (desc.zero) std::memset(desc.external, 0, desc.size);
  return std::make_unique<Region>(shared_from_this(), desc, piece, Space::kShared, owner);
}

/// kRegistered: unregister_host() is due. kCaller: somebody else registered it.
Result<Region::Owner> Memory::register_host(std::byte* host, uint64_t bytes) {
  const Api& api = context_->api;
  if (api.cuMemHostRegister == nullptr || api.cuMemHostUnregister == nullptr)
    return fail(Code::kUnsupported, "this driver cannot register host memory");
  const std::lock_guard lock(registered_mutex_);
  const auto after = registered_.upper_bound(host);
  if (after != registered_.begin()) {
    auto& [base, entry] = *std::prev(after);
    const auto offset = static_cast<uint64_t>(host - base);
    if (offset < entry.size && bytes <= entry.size - offset) {
      ++entry.users;
      return Region::Owner::kRegistered;
    }
  }
  const unsigned flags = kHostPortable | kHostDeviceMap;
  CuResult error = api.cuMemHostRegister(host, bytes, flags);
  // Mapped files and the like may only be read.
  if (error != kSuccess && error != kErrorAlreadyRegistered &&
      context_->info.has_read_only_register)
    error = api.cuMemHostRegister(host, bytes, flags | kHostRegisterReadOnly);
  if (error == kErrorAlreadyRegistered) return Region::Owner::kCaller;
  BM_TRY(context_->done(
      error, fmt::format("registering {} bytes of host memory at {}", bytes, fmt::ptr(host))));
  registered_.emplace(host, Registration{bytes, 1});
  return Region::Owner::kRegistered;
}

void Memory::unregister_host(const std::byte* host) {
  const std::lock_guard lock(registered_mutex_);
  const auto at = std::prev(registered_.upper_bound(host));
  if (--at->second.users != 0) return;
  // Behind a stream that waits for ever it stays registered; later would be wrong: the memory is
  // the caller's again.
  if (context_->wait_idle()) context_->api.cuMemHostUnregister(const_cast<std::byte*>(at->first));
  registered_.erase(at);
}

/// Another framework's memory: used in place, never freed.
Result<std::unique_ptr<hal::Buffer>> Memory::wrap_cuda(const hal::BufferDesc& desc) {
  const Api& api = context_->api;
  const CuDevicePtr va = reinterpret_cast<uintptr_t>(desc.external);
  if (api.cuPointerGetAttribute == nullptr)
    return fail(Code::kUnsupported, "this driver cannot tell whose a CUDA pointer is");
  const auto ask = [&](auto& value, PointerAttribute what) {
    return api.cuPointerGetAttribute(&value, what, va) == kSuccess;
  };
  unsigned type = 0, is_managed = 0;
  if (!ask(type, kPointerMemoryType))
    return fail(Code::kInvalidArgument,
                "{:#x} is no CUDA pointer: memory of the host is hal::ExternalKind::kHostPointer",
                va);
  ask(is_managed, kPointerIsManaged);
  if (type != kMemoryDevice && is_managed == 0)
    return fail(Code::kInvalidArgument,
                "{:#x} is host memory CUDA knows: wrap it as hal::ExternalKind::kHostPointer", va);
  int ordinal = 0;
  if (is_managed == 0 && ask(ordinal, kPointerDeviceOrdinal) && ordinal != context_->info.device)
    return fail(Code::kInvalidArgument, "{:#x} is memory of CUDA device {}, this is device {}", va,
                ordinal, context_->info.device);
  // Memory of a pool belongs to no context.
  CuContext owner = nullptr;
  if (is_managed == 0 && ask(owner, kPointerContext) && owner != nullptr &&
      owner != context_->handle)
    return fail(Code::kUnsupported,
                "{:#x} was allocated in a context of its own; allocate it in the primary context "
                "(cuDevicePrimaryCtxRetain), as CUDA's runtime does",
                va);
  CuDevicePtr start = 0;
  size_t bytes = 0;
  if (ask(start, kPointerRangeStart) && ask(bytes, kPointerRangeSize) &&
      (va < start || va - start > bytes || desc.size > bytes - (va - start)))
    return fail(Code::kInvalidArgument,
                "{} bytes at {:#x} leave their allocation of {} bytes at {:#x}", desc.size, va,
                bytes, start);
  if (desc.host_visible && is_managed == 0)
    return fail(Code::kUnsupported, "the host does not see video memory at {:#x}", va);
  const Piece piece{.va = va,
                    .host = desc.host_visible ? static_cast<std::byte*>(desc.external) : nullptr,
                    .size = desc.size};
  return std::make_unique<Region>(shared_from_this(), desc, piece, Space::kDevice,
                                  Region::Owner::kCaller);
}

// ---- Peers

Status Memory::enable_peer(const Context& peer) {
  const Api& api = context_->api;
  const auto refused = [&](std::string_view why) {
    return fail(Code::kUnsupported, "CUDA device {} has no access to memory of device {}: {}",
                context_->info.index, peer.info.index, why);
  };
  if (api.cuDeviceCanAccessPeer == nullptr || api.cuCtxEnablePeerAccess == nullptr)
    return refused("this driver knows no peers");
  const std::unique_lock lock(mutex_);
  if (enabled_.contains(peer.handle)) return {};
  int can_access = 0;
  BM_TRY(context_->done(
      api.cuDeviceCanAccessPeer(&can_access, context_->info.device, peer.info.device),
      "cuDeviceCanAccessPeer"));
  if (can_access == 0) return refused("the hardware or its driver does not offer it");
  const CuResult error = api.cuCtxEnablePeerAccess(peer.handle, 0);
  if (error != kSuccess && error != kErrorPeerAlreadyEnabled) return refused(explain(api, error));
  enabled_.insert(peer.handle);
  return {};
}

Result<hal::GpuVa> Memory::map(const hal::Buffer& peer) {
  // The one checked downcast: only another CUDA device's buffers have unified addresses.
  const auto* region = dynamic_cast<const Region*>(&peer);
  if (region != nullptr && &region->memory() == this) return peer.va();
  Peer entry{.size = peer.size(), .space = Space::kForeign, .host = peer.host()};
  hal::GpuVa va{reinterpret_cast<uintptr_t>(peer.host())};
  if (region != nullptr) {
    const Current current(*context_);
    if (region->space() == Space::kDevice) BM_TRY(enable_peer(region->memory().context()));
    entry.space = region->space();  // pinned memory is portable among contexts
    va = peer.va();
  } else if (peer.host() == nullptr) {
    return fail(Code::kUnsupported, "CUDA reaches other devices' memory only where the host does");
  }
  const std::unique_lock lock(mutex_);
  peers_.insert_or_assign(hal::raw(va), entry);
  return va;
}

// ---- Addresses

void Memory::add(Region& region) {
  if (region.owner_ == Region::Owner::kSlabs && region.space_ == Space::kDevice)
    count(region.size());
  const std::unique_lock lock(mutex_);
  by_address_.emplace(hal::raw(region.va()), &region);
}

void Memory::remove(Region& region) {
  if (region.owner_ == Region::Owner::kSlabs && region.space_ == Space::kDevice)
    discount(region.size());
  const std::unique_lock lock(mutex_);
  auto [at, end] = by_address_.equal_range(hal::raw(region.va()));
  while (at != end && at->second != &region) ++at;
  by_address_.erase(at);
  note_loss();
}

Result<Place> Memory::resolve(hal::GpuVa va, uint64_t bytes) const {
  const uint64_t address = hal::raw(va);
  if (address == 0) return fail(Code::kInvalidArgument, "address 0");
  {
    const std::shared_lock lock(mutex_);
    // The caller may have wrapped a part of memory that is wrapped already: look a little further.
    auto at = by_address_.upper_bound(address);
    for (int i = 0; i < kMostNested && at != by_address_.begin(); ++i) {
      const Region& region = *(--at)->second;
      const uint64_t offset = address - hal::raw(region.va());
      if (offset >= region.size()) continue;
      if (bytes > region.size() - offset)
        return fail(Code::kInvalidArgument, "{} bytes at {:#x} leave a buffer of {} at byte {}",
                    bytes, address, region.size(), offset);
      return Place{region.space(), address,
                   region.host() == nullptr ? nullptr : region.host() + offset};
    }
    const auto peer = peers_.upper_bound(address);
    if (peer != peers_.begin()) {
      const auto& [base, entry] = *std::prev(peer);
      if (address - base < entry.size)
        return Place{entry.space, address,
                     entry.host == nullptr ? nullptr : entry.host + (address - base)};
    }
  }
  return ask_driver(va);
}

/// Memory of nobody here: somebody else's CUDA memory, or host memory.
Result<Place> Memory::ask_driver(hal::GpuVa va) const {
  const Api& api = context_->api;
  const CuDevicePtr address = hal::raw(va);
  unsigned type = 0;
  if (api.cuPointerGetAttribute == nullptr ||
      api.cuPointerGetAttribute(&type, kPointerMemoryType, address) != kSuccess)
    return Place{Space::kForeign, 0, pointer_of(address)};
  if (type == kMemoryDevice) return Place{Space::kDevice, address, nullptr};
  void* host = pointer_of(address);
  static_cast<void>(api.cuPointerGetAttribute(&host, kPointerHostPointer, address));
  return Place{Space::kShared, address, static_cast<std::byte*>(host)};
}

}  // namespace bm::cuda
