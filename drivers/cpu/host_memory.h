#pragma once
// Buffers in this process's memory, shared by every device whose address is the host pointer
// (CPU, REF) and by NULL for memory that was asked to be visible.

#include <memory>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cpu {

/// Alignment of every buffer that is not external.
inline constexpr uint64_t kBufferAlignment = 64;
/// From this size on buffers are mapped on their own, aligned to it and offered as huge pages.
inline constexpr uint64_t kHugePage = 2 << 20;

/// Private memory of the process (a forked child gets copies). `external` memory is wrapped as
/// given. Errors: kInvalidArgument for size 0; kUnsupported for external
/// memory that is no host pointer; kOutOfMemory with requested, used and total bytes.
Result<std::unique_ptr<hal::Buffer>> allocate_host(const hal::BufferDesc& desc);

/// A peer's buffer is reachable if it has a host pointer. Errors: kUnsupported.
Result<hal::GpuVa> map_host(const hal::Buffer& peer);

/// Physical memory of the machine; what the kernel could give away at once counts as unused.
hal::MemoryInfo host_memory_info();

}  // namespace bm::cpu
