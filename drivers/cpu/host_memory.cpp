#include "drivers/cpu/host_memory.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <cstdlib>
#include <cstring>

#include "runtime/base/bits.h"

namespace bm::cpu {
namespace {

constexpr uint64_t kPage = 4096;

hal::GpuVa va_of(const void* host) { return hal::GpuVa{reinterpret_cast<uint64_t>(host)}; }

/// Wraps memory it does not own.
class ExternalBuffer final : public hal::Buffer {
 public:
  explicit ExternalBuffer(const hal::BufferDesc& desc)
      : Buffer(desc, va_of(desc.external), static_cast<std::byte*>(desc.external)) {}
};

class HeapBuffer final : public hal::Buffer {
 public:
  HeapBuffer(const hal::BufferDesc& desc, std::byte* host) : Buffer(desc, va_of(host), host) {}
  ~HeapBuffer() override { std::free(host_); }
};

class MappedBuffer final : public hal::Buffer {
 public:
  MappedBuffer(const hal::BufferDesc& desc, std::byte* host, uint64_t mapped)
      : Buffer(desc, va_of(host), host), mapped_(mapped) {}
  ~MappedBuffer() override { munmap(host_, mapped_); }

 private:
  uint64_t mapped_;
};

auto out_of_memory(uint64_t size) {
  const hal::MemoryInfo info = host_memory_info();
  return fail(Code::kOutOfMemory, "{} bytes of host memory requested, {} used of {}", size,
              info.used, info.total);
}

/// `bytes` (a multiple of the page) aligned to kHugePage; nullptr if the system refuses.
std::byte* map_aligned(uint64_t bytes) {
  void* whole =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  const uint64_t begin = reinterpret_cast<uint64_t>(whole), aligned = align_up(begin, kHugePage);
  if (aligned != begin) munmap(whole, aligned - begin);
  const uint64_t tail = kHugePage - (aligned - begin);
  if (tail != 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  auto* host = reinterpret_cast<std::byte*>(aligned);
  madvise(host, bytes, MADV_HUGEPAGE);  // only advice: kernels without huge pages refuse it
  return host;
}

}  // namespace

Result<std::unique_ptr<hal::Buffer>> allocate_host(const hal::BufferDesc& desc) {
  if (desc.size == 0) return fail(Code::kInvalidArgument, "buffer of 0 bytes");
  if (desc.external != nullptr) {
    if (desc.external_kind != hal::ExternalKind::kHostPointer)
      return fail(Code::kUnsupported, "this device wraps host pointers only");
    if (desc.size > UINTPTR_MAX - reinterpret_cast<uintptr_t>(desc.external))
      return fail(Code::kInvalidArgument, "{} bytes at {} end beyond the address space", desc.size,
                  desc.external);
    if (desc.zero) std::memset(desc.external, 0, desc.size);
    return std::make_unique<ExternalBuffer>(desc);
  }
  // Overcommit would grant more than the machine has and kill the process on first use.
  if (desc.size > host_memory_info().total) return out_of_memory(desc.size);
  if (desc.size >= kHugePage) {
    const uint64_t mapped = align_up(desc.size, kPage);
    std::byte* host = map_aligned(mapped);  // fresh mappings are zero
    if (host == nullptr) return out_of_memory(desc.size);
    return std::make_unique<MappedBuffer>(desc, host, mapped);
  }
  auto* host = static_cast<std::byte*>(
      std::aligned_alloc(kBufferAlignment, align_up(desc.size, kBufferAlignment)));
  if (host == nullptr) return out_of_memory(desc.size);
  if (desc.zero) std::memset(host, 0, desc.size);
  return std::make_unique<HeapBuffer>(desc, host);
}

Result<hal::GpuVa> map_host(const hal::Buffer& peer) {
  if (peer.host() == nullptr)
    return fail(Code::kUnsupported, "buffer of {} bytes has no host address", peer.size());
  return va_of(peer.host());
}

hal::MemoryInfo host_memory_info() {
  struct sysinfo info{};
  if (sysinfo(&info) != 0) return {};
  const uint64_t unit = info.mem_unit == 0 ? 1 : info.mem_unit;
  return {.total = info.totalram * unit,
          .used = (info.totalram - info.freeram - info.bufferram) * unit};
}

}  // namespace bm::cpu
