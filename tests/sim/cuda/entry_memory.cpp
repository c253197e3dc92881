// Memory: allocation, registration, copies, fills, what a pointer is.
#include <algorithm>
#include <cstring>

#include "tests/sim/cuda/graphs.h"

namespace bm::sim::cuda {
namespace {

/// Bytes at a device or host address; pageable host memory has no range and is taken as it is.
std::byte* bytes_at(const Driver& d, uint64_t address, size_t bytes, bool may_be_pageable) {
  if (std::byte* p = d.memory.at(address, bytes)) return p;
  const bool is_inside = d.memory.find(address).bytes != 0;
  return may_be_pageable && !is_inside ? reinterpret_cast<std::byte*>(address) : nullptr;
}

uint64_t value_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

struct Copy {
  uint64_t dst = 0, src = 0;
  size_t bytes = 0;
  bool dst_is_host = false, src_is_host = false;
};

/// Checks, enqueues, and waits where the real one would: pageable targets, and calls without Async.
int copy(const char* name, const Copy& job, void* stream, bool is_async) {
  Point point;
  Context* context = nullptr;
  bool must_wait = !is_async;
  const int code = in_context(name, [&](Driver& d, Context& c) -> int {
    context = &c;
    Stream* s = stream_of(d, c, stream);
    if (!s) return kInvalidHandle;
    if (job.bytes == 0) return kSuccess;
    if (!job.dst || !job.src) return kInvalidValue;
    std::byte* to = bytes_at(d, job.dst, job.bytes, job.dst_is_host);
    const std::byte* from = bytes_at(d, job.src, job.bytes, job.src_is_host);
    if (!to || !from) return kInvalidValue;
    std::shared_ptr<std::vector<std::byte>> staged;
    if (job.src_is_host && !d.memory.at(job.src, job.bytes))
      staged = std::make_shared<std::vector<std::byte>>(from, from + job.bytes);
    must_wait |= job.dst_is_host && !d.memory.at(job.dst, job.bytes);
    point = submit(c, *s, [to, from, staged, bytes = job.bytes] {
      std::memmove(to, staged ? staged->data() : from, bytes);
    });
    return kSuccess;
  });
  if (code || !must_wait) return code;
  wait_until([&] { return point.is_reached(); });
  return context->error;
}

template <class T>
int fill(const char* name, uint64_t dst, T value, size_t count, void* stream, bool is_async) {
  Point point;
  Context* context = nullptr;
  const int code = in_context(name, [&](Driver& d, Context& c) -> int {
    context = &c;
    Stream* s = stream_of(d, c, stream);
    if (!s) return kInvalidHandle;
    if (count == 0) return kSuccess;
    if (dst % sizeof(T)) return kInvalidValue;
    std::byte* to = d.memory.at(dst, count * sizeof(T));
    if (!to) return kInvalidValue;
    point = submit(c, *s, [to, value, count] {
      for (size_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof(T), &value, sizeof(T));
    });
    return kSuccess;
  });
  if (code || is_async) return code;
  wait_until([&] { return point.is_reached(); });
  return context->error;
}

int allocate(const char* name, Range::Kind kind, uint64_t* out, size_t bytes, unsigned flags) {
  return in_context(name, [&](Driver& d, Context& c) -> int {
    if (!out || bytes == 0) return kInvalidValue;
    *out = d.memory.allocate(kind, bytes, &c, c.device, flags, d.knobs.memory);
    return *out ? kSuccess : kOutOfMemory;
  });
}

/// Waits for the context first: freed memory may still be in use by work in flight.
int free_range(const char* name, uint64_t address, Range::Kind kind, bool is_null_fine) {
  Context* context = nullptr;
  int code = in_context(name, [&](Driver&, Context& c) -> int {
    context = &c;
    return kSuccess;
  });
  if (code || (address == 0 && is_null_fine)) return code;
  code = drain(*context);
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  const int removed = d.memory.remove(address, kind);
  return code ? code : removed;
}

}  // namespace

BM_FAKE_CUDA cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  return allocate("cuMemAlloc_v2", Range::Kind::kDevice, out, bytes, 0);
}
BM_FAKE_CUDA cuMemFree_v2(uint64_t address) {
  return free_range("cuMemFree_v2", address, Range::Kind::kDevice, true);
}
BM_FAKE_CUDA cuMemAllocManaged(uint64_t* out, size_t bytes, unsigned flags) {
  if (flags != 1 && flags != 2) return kInvalidValue;
  return allocate("cuMemAllocManaged", Range::Kind::kManaged, out, bytes, flags);
}
BM_FAKE_CUDA cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  if (flags & ~7u) return kInvalidValue;
  return allocate("cuMemHostAlloc", Range::Kind::kPinned, reinterpret_cast<uint64_t*>(out), bytes,
                  flags);
}
BM_FAKE_CUDA cuMemAllocHost_v2(void** out, size_t bytes) {
  return allocate("cuMemAllocHost_v2", Range::Kind::kPinned, reinterpret_cast<uint64_t*>(out),
                  bytes, 0);
}
BM_FAKE_CUDA cuMemFreeHost(void* p) {
  return free_range("cuMemFreeHost", value_of(p), Range::Kind::kPinned, false);
}
BM_FAKE_CUDA cuMemAllocAsync(uint64_t* out, size_t bytes, void*) {
  return allocate("cuMemAllocAsync", Range::Kind::kDevice, out, bytes, 0);
}
BM_FAKE_CUDA cuMemFreeAsync(uint64_t address, void*) {
  return free_range("cuMemFreeAsync", address, Range::Kind::kDevice, true);
}
BM_FAKE_CUDA cuMemGetInfo_v2(size_t* free, size_t* total) {
  return in_context("cuMemGetInfo_v2", [&](Driver& d, Context& c) -> int {
    if (!free || !total) return kInvalidValue;
    *total = d.knobs.memory;
    *free = d.knobs.memory - std::min(d.knobs.memory, d.memory.used(c.device));
    return kSuccess;
  });
}
BM_FAKE_CUDA cuMemHostRegister_v2(void* p, size_t bytes, unsigned flags) {
  return in_context("cuMemHostRegister_v2", [&](Driver& d, Context& c) -> int {
    if (!p || bytes == 0 || (flags & ~15u)) return kInvalidValue;
    return d.memory.add_registered(p, bytes, &c, flags);
  });
}
BM_FAKE_CUDA cuMemHostUnregister(void* p) {
  const int code = free_range("cuMemHostUnregister", value_of(p), Range::Kind::kRegistered, false);
  return code == kInvalidValue ? kHostMemoryNotRegistered : code;
}
BM_FAKE_CUDA cuMemHostGetDevicePointer_v2(uint64_t* out, void* p, unsigned flags) {
  return in_context("cuMemHostGetDevicePointer_v2", [&](Driver& d, Context&) -> int {
    const Range range = d.memory.find(value_of(p));
    if (!out || flags || range.bytes == 0 || range.kind == Range::Kind::kDevice)
      return kInvalidValue;
    *out = value_of(p);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuMemHostGetFlags(unsigned* flags, void* p) {
  return in_context("cuMemHostGetFlags", [&](Driver& d, Context&) -> int {
    const Range range = d.memory.find(value_of(p));
    if (!flags || range.kind != Range::Kind::kPinned || range.bytes == 0) return kInvalidValue;
    *flags = range.flags;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address) {
  return in_context("cuMemGetAddressRange_v2", [&](Driver& d, Context&) -> int {
    const Range range = d.memory.find(address);
    if (range.bytes == 0) return kNotFound;
    if (base) *base = range.address;
    if (bytes) *bytes = range.bytes;
    return kSuccess;
  });
}

/// CUpointer_attribute: 1 context, 2 memory type, 3 device pointer, 4 host pointer, 7 buffer id, 8
/// managed, 9 device, 11 range start, 12 range size, 13 mapped.
BM_FAKE_CUDA cuPointerGetAttribute(void* value, int attribute, uint64_t pointer) {
  return in_context("cuPointerGetAttribute", [&](Driver& d, Context& c) -> int {
    const Range range = d.memory.find(pointer);
    if (!value || range.bytes == 0) return kInvalidValue;
    const bool is_device = range.kind == Range::Kind::kDevice;
    const auto put = [&](auto v) {
      std::memcpy(value, &v, sizeof v);
      return kSuccess;
    };
    switch (attribute) {
      case 1: return put(static_cast<void*>(range.context));
      case 2:
        return put(static_cast<unsigned>(is_device || range.kind == Range::Kind::kManaged ? kDevice
                                                                                          : kHost));
      case 3:
        if (is_device && range.device != c.device && !c.can_reach(range.device))
          return kInvalidValue;
        return put(pointer);
      case 4:
        if (is_device) return kInvalidValue;
        return put(pointer);
      case 7: return put(range.address);
      case 8: return put(static_cast<unsigned>(range.kind == Range::Kind::kManaged));
      case 9: return put(range.device);
      case 11: return put(range.address);
      case 12: return put(range.bytes);
      case 13: return put(1u);
      default: return kInvalidValue;
    }
  });
}
/// Attributes that do not apply are left zero.
BM_FAKE_CUDA cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                                    uint64_t pointer) {
  for (unsigned i = 0; i < count; ++i) {
    const int code = cuPointerGetAttribute(values[i], attributes[i], pointer);
    if (code != kSuccess && code != kInvalidValue) return code;
  }
  return kSuccess;
}

BM_FAKE_CUDA cuMemcpyHtoDAsync_v2(uint64_t dst, const void* src, size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync_v2", {dst, value_of(src), bytes, false, true}, stream, true);
}
BM_FAKE_CUDA cuMemcpyDtoHAsync_v2(void* dst, uint64_t src, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync_v2", {value_of(dst), src, bytes, true, false}, stream, true);
}
BM_FAKE_CUDA cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoDAsync_v2", {dst, src, bytes}, stream, true);
}
BM_FAKE_CUDA cuMemcpyAsync(uint64_t dst, uint64_t src, size_t bytes, void* stream) {
  return copy("cuMemcpyAsync", {dst, src, bytes, true, true}, stream, true);
}
BM_FAKE_CUDA cuMemcpyHtoD_v2(uint64_t dst, const void* src, size_t bytes) {
  return copy("cuMemcpyHtoD_v2", {dst, value_of(src), bytes, false, true}, nullptr, false);
}
BM_FAKE_CUDA cuMemcpyDtoH_v2(void* dst, uint64_t src, size_t bytes) {
  return copy("cuMemcpyDtoH_v2", {value_of(dst), src, bytes, true, false}, nullptr, false);
}
BM_FAKE_CUDA cuMemcpyDtoD_v2(uint64_t dst, uint64_t src, size_t bytes) {
  return copy("cuMemcpyDtoD_v2", {dst, src, bytes}, nullptr, false);
}
BM_FAKE_CUDA cuMemcpy(uint64_t dst, uint64_t src, size_t bytes) {
  return copy("cuMemcpy", {dst, src, bytes, true, true}, nullptr, false);
}
BM_FAKE_CUDA cuMemcpyPeerAsync(uint64_t dst, void* to, uint64_t src, void* from, size_t bytes,
                               void* stream) {
  Driver& d = Driver::get();
  {
    const std::lock_guard lock(d.mutex);
    if (!d.contexts.contains(static_cast<Context*>(to)) ||
        !d.contexts.contains(static_cast<Context*>(from)))
      return kInvalidContext;
  }
  return copy("cuMemcpyPeerAsync", {dst, src, bytes}, stream, true);
}

BM_FAKE_CUDA cuMemsetD8Async(uint64_t dst, unsigned char v, size_t n, void* stream) {
  return fill("cuMemsetD8Async", dst, v, n, stream, true);
}
BM_FAKE_CUDA cuMemsetD16Async(uint64_t dst, unsigned short v, size_t n, void* stream) {
  return fill("cuMemsetD16Async", dst, v, n, stream, true);
}
BM_FAKE_CUDA cuMemsetD32Async(uint64_t dst, unsigned v, size_t n, void* stream) {
  return fill("cuMemsetD32Async", dst, v, n, stream, true);
}
BM_FAKE_CUDA cuMemsetD8_v2(uint64_t dst, unsigned char v, size_t n) {
  return fill("cuMemsetD8_v2", dst, v, n, nullptr, false);
}
BM_FAKE_CUDA cuMemsetD16_v2(uint64_t dst, unsigned short v, size_t n) {
  return fill("cuMemsetD16_v2", dst, v, n, nullptr, false);
}
BM_FAKE_CUDA cuMemsetD32_v2(uint64_t dst, unsigned v, size_t n) {
  return fill("cuMemsetD32_v2", dst, v, n, nullptr, false);
}

// Copies and fills of graph nodes: one row, as tensor programs use them.

namespace {

uint64_t address_of(const CopySide& side) {
  return side.memory_type == kHost ? value_of(side.host) : side.device;
}

}  // namespace

int check_copy(Driver& d, const CopyParams& p) {
  for (const CopySide* side : {&p.src, &p.dst}) {
    if (side->memory_type == kArray || side->array || side->reserved) return kInvalidValue;
    if (side->memory_type < kHost || side->memory_type > kUnified) return kInvalidValue;
    if (side->x || side->y || side->z || side->lod) return kNotSupported;
    const bool may_be_pageable = side->memory_type != kDevice;
    if (!bytes_at(d, address_of(*side), p.width, may_be_pageable)) return kInvalidValue;
  }
  if (p.width == 0 || p.height != 1 || p.depth != 1) return p.width ? kNotSupported : kInvalidValue;
  return kSuccess;
}

void run_copy(Driver& d, Context& c, const CopyParams& p) {
  std::byte* to = bytes_at(d, address_of(p.dst), p.width, p.dst.memory_type != kDevice);
  const std::byte* from = bytes_at(d, address_of(p.src), p.width, p.src.memory_type != kDevice);
  // Freed since the graph was made.
  if (!to || !from) return c.fault(kIllegalAddress);
  std::memmove(to, from, p.width);
}

int check_memset(Driver& d, const MemsetParams& p) {
  if ((p.element != 1 && p.element != 2 && p.element != 4) || p.height != 1 || p.width == 0)
    return kInvalidValue;
  if (p.dst % p.element) return kInvalidValue;
  return d.memory.at(p.dst, p.width * p.element) ? kSuccess : kInvalidValue;
}

void run_memset(Driver& d, Context& c, const MemsetParams& p) {
  std::byte* to = d.memory.at(p.dst, p.width * p.element);
  if (!to) return c.fault(kIllegalAddress);
  for (size_t i = 0; i < p.width; ++i) std::memcpy(to + i * p.element, &p.value, p.element);
}

}  // namespace bm::sim::cuda
