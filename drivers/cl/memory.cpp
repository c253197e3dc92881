#include "drivers/cl/memory.h"

#include <algorithm>
#include <cstring>

#include "drivers/cpu/host_addresses.h"
#include "drivers/cpu/host_memory.h"
#include "runtime/base/bits.h"

namespace bm::cl {
namespace {

/// Between invented ranges lies at least this much nothing, so that an overrun is noticed.
constexpr uint64_t kAddressStep = 4096;
constexpr int kMostNested = 4;

hal::GpuVa va_of(const void* pointer) { return hal::GpuVa{reinterpret_cast<uintptr_t>(pointer)}; }

}  // namespace

// ---- Region

Region::Region(std::shared_ptr<Memory> memory, const hal::BufferDesc& desc, hal::GpuVa va,
               std::byte* host, Parts parts)
    : Buffer(desc, va, host), memory_(std::move(memory)), parts_(std::move(parts)) {
  memory_->add(*this);
}

Region::~Region() {
  memory_->remove(*this);
  sub_buffers_.clear();
  // A mapping keeps the object alive, and the object must not outlive the memory around it.
  if (was_mapped && is_mapped) memory_->unmap(parts_.mem.get(), host());
  parts_.mem = {};  // before the memory it may be made around
  if (parts_.svm != nullptr)
    memory_->context().api.clSVMFree(memory_->context().handle, parts_.svm);
}

Status Region::wrap_host() {
  const Context& context = memory_->context();
  cl_int error = CL_SUCCESS;
  const cl_mem mem = context.api.clCreateBuffer(
      context.handle, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, size(), host(), &error);
  BM_TRY(check(error, "clCreateBuffer around host memory"));
  parts_.mem = OwnedMem(context.api, mem);
  return {};
}

Result<cl_mem> Region::mem_at(uint64_t offset) {
  const Context& context = memory_->context();
  if (!parts_.mem) BM_TRY(wrap_host());
  if (offset == 0) return parts_.mem.get();
  const auto by_offset = [](const auto& sub, uint64_t wanted) { return sub.first < wanted; };
  const auto at = std::lower_bound(sub_buffers_.begin(), sub_buffers_.end(), offset, by_offset);
  if (at != sub_buffers_.end() && at->first == offset) return at->second.get();
  if (offset % context.info.sub_buffer_align != 0)
    return fail(Code::kInvalidArgument,
                "a kernel argument begins {} bytes into a buffer: without shared virtual memory "
                "this device needs a multiple of {} (CL_DEVICE_MEM_BASE_ADDR_ALIGN)",
                offset, context.info.sub_buffer_align);
  const cl_buffer_region range{offset, size() - offset};
  cl_int error = CL_SUCCESS;
  const cl_mem sub = context.api.clCreateSubBuffer(parts_.mem.get(), CL_MEM_READ_WRITE,
                                                   CL_BUFFER_CREATE_TYPE_REGION, &range, &error);
  BM_TRY(check(error, "clCreateSubBuffer"));
  sub_buffers_.emplace(at, offset, OwnedMem(context.api, sub));
  return sub;
}

// ---- Allocation

std::unique_ptr<hal::Buffer> Memory::make_region(const hal::BufferDesc& desc, hal::GpuVa va,
                                                 std::byte* host, Region::Parts parts) {
  return std::make_unique<Region>(shared_from_this(), desc, va, host, std::move(parts));
}

Result<std::unique_ptr<hal::Buffer>> Memory::allocate(const hal::BufferDesc& desc) {
  if (desc.size == 0) return fail(Code::kInvalidArgument, "buffer of 0 bytes");
  if (desc.external != nullptr) return wrap(desc);
  const Svm svm = context_->info.svm;
  const bool is_for_host = desc.host_visible || desc.host_memory || desc.uncached;
  // Signals and argument blocks are read and written by this driver: plain memory serves best.
  if (desc.uncached || (is_for_host && svm != Svm::kFine)) {
    Region::Parts parts;
    parts.backing = BM_TRY(cpu::allocate_host(desc));
    std::byte* host = parts.backing->host();
    return make_region(desc, va_of(host), host, std::move(parts));
  }
  BM_TRY(check_size(desc.size));
  if (svm == Svm::kNone) return allocate_mem(desc);
  // Fine-grained memory of a card with its own memory lives on the wrong side of the bus.
  return allocate_svm(desc, svm == Svm::kFine && (is_for_host || context_->info.is_unified));
}

Status Memory::check_size(uint64_t bytes) const {
  const DeviceInfo& info = context_->info;
  const uint64_t in_use = used();
  if (bytes <= info.max_alloc_bytes && in_use <= info.memory_bytes &&
      bytes <= info.memory_bytes - in_use)
    return {};
  return fail(Code::kOutOfMemory, "{} bytes requested, {} used of {}, at most {} in one buffer",
              bytes, in_use, info.memory_bytes, info.max_alloc_bytes);
}

Result<std::unique_ptr<hal::Buffer>> Memory::allocate_svm(const hal::BufferDesc& desc,
                                                          bool is_fine) {
  const cl_svm_mem_flags flags =
      CL_MEM_READ_WRITE | (is_fine ? cl_svm_mem_flags{CL_MEM_SVM_FINE_GRAIN_BUFFER} : 0);
  // Alignment 0: that of the largest type, 128 bytes.
  void* pointer = context_->api.clSVMAlloc(context_->handle, flags, desc.size, 0);
  if (pointer == nullptr)
    return fail(Code::kOutOfMemory, "clSVMAlloc refuses {} bytes, {} used of {}", desc.size, used(),
                context_->info.memory_bytes);
  Region::Parts parts{
      .space = Space::kSvm, .mem = {}, .backing = {}, .svm = pointer, .is_fine = is_fine};
  auto* host = is_fine ? static_cast<std::byte*>(pointer) : nullptr;
  auto region = make_region(desc, va_of(pointer), host, std::move(parts));
  if (desc.zero && is_fine) std::memset(host, 0, desc.size);
  if (desc.zero && !is_fine) BM_TRY(fill_zero(pointer, nullptr, desc.size));
  return region;
}

Result<std::unique_ptr<hal::Buffer>> Memory::allocate_mem(const hal::BufferDesc& desc) {
  cl_int error = CL_SUCCESS;
  const cl_mem mem =
      context_->api.clCreateBuffer(context_->handle, CL_MEM_READ_WRITE, desc.size, nullptr, &error);
  // Out of resources means out of memory here: nothing has run.
  if (error == CL_OUT_OF_RESOURCES) error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  BM_TRY(check(error, fmt::format("clCreateBuffer of {} bytes", desc.size)));
  Region::Parts parts;
  parts.space = Space::kMem;
  parts.mem = OwnedMem(context_->api, mem);
  if (desc.zero) BM_TRY(fill_zero(nullptr, mem, desc.size));
  return make_region(desc, invent_address(desc.size), nullptr, std::move(parts));
}

Result<std::unique_ptr<hal::Buffer>> Memory::wrap(const hal::BufferDesc& desc) {
  switch (desc.external_kind) {
    case hal::ExternalKind::kHostPointer: {
      Region::Parts parts;
      parts.backing = BM_TRY(cpu::allocate_host(desc));
      return make_region(desc, va_of(desc.external), static_cast<std::byte*>(desc.external),
                         std::move(parts));
    }
    case hal::ExternalKind::kSvmPointer: {
      if (context_->info.svm == Svm::kNone)
        return fail(Code::kUnsupported, "this device has no shared virtual memory");
      Region::Parts parts;
      parts.space = Space::kSvm;
      parts.is_fine = desc.host_visible;  // only the caller knows how it was allocated
      auto* host = desc.host_visible ? static_cast<std::byte*>(desc.external) : nullptr;
      return make_region(desc, va_of(desc.external), host, std::move(parts));
    }
    case hal::ExternalKind::kClMem: return adopt_mem(desc);
    case hal::ExternalKind::kCudaPointer:
      return fail(Code::kUnsupported, "OpenCL cannot wrap a CUDA pointer");
  }
  __builtin_unreachable();
}

Result<std::unique_ptr<hal::Buffer>> Memory::adopt_mem(const hal::BufferDesc& desc) {
  const auto mem = static_cast<cl_mem>(desc.external);
  const Api& api = context_->api;
  cl_context owner = nullptr;
  size_t bytes = 0;
  BM_TRY(check(api.clGetMemObjectInfo(mem, CL_MEM_CONTEXT, sizeof owner, &owner, nullptr),
               "not a cl_mem"));
  BM_TRY(check(api.clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof bytes, &bytes, nullptr),
               "not a cl_mem"));
  if (owner != context_->handle)
    return fail(Code::kInvalidArgument,
                "the cl_mem belongs to another cl_context: create it in the device's own one "
                "(bm::cl::native_handles)");
  if (desc.size > bytes)
    return fail(Code::kInvalidArgument, "a cl_mem of {} bytes cannot be a buffer of {}", bytes,
                desc.size);
  if (desc.host_visible)
    return fail(Code::kUnsupported, "a cl_mem has no host pointer without being mapped");
  BM_TRY(check(api.clRetainMemObject(mem), "clRetainMemObject"));
  Region::Parts parts;
  parts.space = Space::kMem;
  parts.mem = OwnedMem(api, mem);
  return make_region(desc, invent_address(desc.size), nullptr, std::move(parts));
}

hal::GpuVa Memory::invent_address(uint64_t bytes) {
  const uint64_t step = align_up(bytes, kAddressStep) + kAddressStep;
  // 2^62 bytes are never used up, so no address comes twice and a stale one is always an error.
  return hal::GpuVa{cpu::kFirstInventedAddress + kAddressStep +
                    next_address_.fetch_add(step, std::memory_order_relaxed)};
}

/// Enqueues and waits, on a queue of its own: the device's queues may be waiting for the host.
template <class Enqueue>
Status Memory::run_aside(const char* what, const Enqueue& enqueue) {
  const Api& api = context_->api;
  cl_int error = CL_SUCCESS;
  const OwnedQueue queue(
      api, api.clCreateCommandQueue(context_->handle, context_->unit.device, 0, &error));
  BM_TRY(check(error, what));
  BM_TRY(check(enqueue(api, queue.get()), what));
  return check(api.clFinish(queue.get()), what);
}

Status Memory::fill_zero(void* svm, cl_mem mem, uint64_t bytes) {
  return run_aside("filling a buffer with zero", [=](const Api& api, cl_command_queue queue) {
    const uint8_t zero = 0;
    if (svm != nullptr)
      return api.clEnqueueSVMMemFill(queue, svm, &zero, 1, bytes, 0, nullptr, nullptr);
    return api.clEnqueueFillBuffer(queue, mem, &zero, 1, 0, bytes, 0, nullptr, nullptr);
  });
}

/// Best effort: the memory goes whether the device still answers or not. One that is stuck might
/// never come to it.
void Memory::unmap(cl_mem mem, void* pointer) {
  if (context_->health.is_bad()) return;
  const Status done = run_aside("unmapping", [=](const Api& api, cl_command_queue queue) {
    return api.clEnqueueUnmapMemObject(queue, mem, pointer, 0, nullptr, nullptr);
  });
  static_cast<void>(done);
}

Result<hal::GpuVa> Memory::map(const hal::Buffer& peer) {
  {
    const std::shared_lock lock(mutex_);
    const auto [begin, end] = by_address_.equal_range(hal::raw(peer.va()));
    if (std::any_of(begin, end, [&](const auto& entry) { return entry.second == &peer; }))
      return peer.va();
  }
  if (peer.host() == nullptr)
    return fail(Code::kUnsupported,
                "OpenCL reaches other devices' memory only where the host does");
  return va_of(peer.host());
}

// ---- Addresses

void Memory::add(Region& region) {
  const bool is_counted = region.desc().external == nullptr && region.space() != Space::kHost;
  if (is_counted) count(region.size());
  const std::unique_lock lock(mutex_);
  by_address_.emplace(hal::raw(region.va()), &region);
}

void Memory::remove(Region& region) {
  const bool is_counted = region.desc().external == nullptr && region.space() != Space::kHost;
  if (is_counted) discount(region.size());
  const std::unique_lock lock(mutex_);
  auto [at, end] = by_address_.equal_range(hal::raw(region.va()));
  while (at != end && at->second != &region) ++at;
  by_address_.erase(at);
  note_loss();
}

Result<Place> Memory::resolve(hal::GpuVa va, uint64_t bytes) {
  const std::shared_lock lock(mutex_);
  // The caller may have wrapped a part of memory that is wrapped already: look a little further.
  auto at = by_address_.upper_bound(hal::raw(va));
  for (int i = 0; i < kMostNested && at != by_address_.begin(); ++i) {
    Region& region = *(--at)->second;
    const uint64_t offset = hal::raw(va) - hal::raw(region.va());
    if (offset >= region.size()) continue;
    if (bytes > region.size() - offset)
      return fail(Code::kInvalidArgument, "{} bytes at {:#x} leave a buffer of {} at byte {}",
                  bytes, hal::raw(va), region.size(), offset);
    return Place{region.space(), &region, offset, reinterpret_cast<void*>(hal::raw(va))};
  }
  if (!cpu::is_host_address(va) || hal::raw(va) == 0)
    return fail(Code::kInvalidArgument, "{:#x} is no address of this device", hal::raw(va));
  return Place{Space::kHost, nullptr, 0, reinterpret_cast<void*>(hal::raw(va))};
}

Result<uint64_t*> Memory::host_word(hal::GpuVa va, const char* command) {
  if (hal::raw(va) == 0 || hal::raw(va) % sizeof(uint64_t) != 0)
    return fail(Code::kInvalidArgument, "{} at {:#x}: not the address of an aligned 64-bit word",
                command, hal::raw(va));
  const Place place = BM_TRY(resolve(va, sizeof(uint64_t)));
  if (place.space == Space::kMem || (place.space == Space::kSvm && !place.region->is_fine()))
    return fail(Code::kUnsupported, "{} at {:#x}: the host does not see this memory", command,
                hal::raw(va));
  return static_cast<uint64_t*>(place.pointer);
}

Result<Region*> Memory::bind(cl_kernel kernel, uint32_t index, hal::GpuVa va) {
  const Api& api = context_->api;
  if (hal::raw(va) == 0) {
    BM_TRY(check(api.clSetKernelArg(kernel, index, sizeof(cl_mem), nullptr), "clSetKernelArg"));
    return nullptr;
  }
  const Place place = BM_TRY(resolve(va, 1));
  if (place.space == Space::kSvm) {
    BM_TRY(check(api.clSetKernelArgSVMPointer(kernel, index, place.pointer),
                 "clSetKernelArgSVMPointer"));
    return nullptr;
  }
  if (place.region == nullptr)
    return fail(Code::kInvalidArgument, "kernel argument {} at {:#x} is not this device's memory",
                index, hal::raw(va));
  const cl_mem mem = BM_TRY(place.region->mem_at(place.offset));
  BM_TRY(check(api.clSetKernelArg(kernel, index, sizeof mem, &mem), "clSetKernelArg"));
  return place.space == Space::kHost ? place.region : nullptr;
}

}  // namespace bm::cl
