#include "drivers/cpu/host_memory.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "runtime/base/bits.h"

namespace bm::cpu {
namespace {

constexpr uint64_t kPage = 4096;

hal::GpuVa va_of(const void* host) { return hal::GpuVa{reinterpret_cast<uint64_t>(host)}; }

/// 0: the system does not say. Source: sysinfo(2).
uint64_t physical_memory() {
  struct sysinfo info{};
  if (sysinfo(&info) != 0) return 0;
  return info.totalram * (info.mem_unit == 0 ? 1 : info.mem_unit);
}

/// With what the kernel only keeps of files, such as a model's that was just read. Source:
/// proc_meminfo(5), MemAvailable.
uint64_t available_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/meminfo", "re"),
                                                             &std::fclose);
  constexpr std::string_view kName = "MemAvailable:";
  std::array<char, 128> line{};
  while (file && std::fgets(line.data(), line.size(), file.get()))
    if (std::string_view(line.data()).starts_with(kName))
      return std::strtoull(line.data() + kName.size(), nullptr, 10) << 10;
  return physical_memory();  // who cannot know refuses nothing
}

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
  if (desc.size > physical_memory()) return out_of_memory(desc.size);
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
  const uint64_t total = physical_memory();
  return {.total = total, .used = total - std::min(total, available_memory())};
}

}  // namespace bm::cpu
