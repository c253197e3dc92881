#include "drivers/nv/rm_ioctl/addresses.h"

#include <sys/mman.h>

#include <cerrno>
#include <vector>

#include "drivers/nv/rm/status.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace bm::nv {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHighBase = 0x200'0000'0000;  // above every low window
constexpr uint64_t kHighEnd = 0x4000'0000'0000;  // below where processes keep code and stacks
constexpr uint64_t kHighGranule = 64_KiB;
constexpr uint64_t kPushLimit = uint64_t{1} << 40;

struct Window {
  uint64_t base, bytes;
};

// Tried in order. The last one is for processes under the address sanitizer, whose shadow covers
// nearly everything below 2^40.
constexpr Window kLowWindows[] = {{0x10'0000'0000, 64_GiB},
                                  {0x40'0000'0000, 64_GiB},
                                  {0x80'0000'0000, 64_GiB},
                                  {0x2000'0000, 1_GiB + 256_MiB}};
constexpr uint64_t kChosenBytes[] = {64_GiB, 4_GiB, 1_GiB};

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

/// Takes addresses from the process without giving them memory; false when some are in use.
bool keep(System& system, uint64_t base, uint64_t bytes) {
  void* at = nullptr;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  if (system.mmap(pointer(base), bytes, PROT_NONE, flags, -1, 0, &at) < 0) return false;
  if (at == pointer(base)) return true;
  system.munmap(at, bytes);  // a kernel before 4.17 takes the address as a wish
  return false;
}

std::vector<Window> candidates(uint64_t base) {
  if (base == 0) return {std::begin(kLowWindows), std::end(kLowWindows)};
  std::vector<Window> windows;
  for (const uint64_t bytes : kChosenBytes)
    if (base + bytes <= kPushLimit) windows.push_back({base, bytes});
  return windows;
}

}  // namespace

Result<std::unique_ptr<Addresses>> Addresses::create(System& system, uint64_t base) {
  if (!is_aligned(base, 2_MiB))
    return fail(Code::kInvalidArgument, "GPU address window at {:#x}: not a multiple of 2 MiB",
                base);
  for (const Window& window : candidates(base)) {
    if (!keep(system, window.base, window.bytes)) continue;
    Result<Tlsf> low = Tlsf::create(window.base, window.bytes, kPage);
    Result<Tlsf> high = Tlsf::create(kHighBase, kHighEnd - kHighBase, kHighGranule);
    if (!low || !high) {
      system.munmap(pointer(window.base), window.bytes);
      return tl::unexpected(std::move((low ? high : low).error()));
    }
    std::unique_ptr<Addresses> plan(
        new Addresses(system, window.base, window.bytes, std::move(*low), std::move(*high)));
    plan->reserve_shader_windows();
    return plan;
  }
  if (base == 0)
    return fail(Code::kUnsupported,
                "no free addresses for the GPU window: this process has mappings in every place "
                "tried, or a limit on its address space (ulimit -v) forbids 64 GiB; set "
                "BM_NV_WINDOW to a free address below 2^40");
  return fail(Code::kUnsupported,
              "no free addresses for the GPU window at {:#x}: the process has mappings there, or "
              "it ends above 2^40; choose another BM_NV_WINDOW",
              base);
}

void Addresses::reserve_shader_windows() {
  keeps_local_ = keep(system_, kLocalWindow, kShaderBytes);
  keeps_shared_ = keep(system_, kSharedWindow, kShaderBytes);
  if (!keeps_local_ || !keeps_shared_)
    log("nv", LogLevel::kInfo,
        "the process has mappings where GPUs see their local and shared memory ({:#x} … {:#x}); "
        "such memory cannot be registered",
        kLocalWindow, kSharedWindow + kShaderBytes);
}

Addresses::~Addresses() {
  system_.munmap(pointer(low_), low_bytes_);
  if (keeps_local_) system_.munmap(pointer(kLocalWindow), kShaderBytes);
  if (keeps_shared_) system_.munmap(pointer(kSharedWindow), kShaderBytes);
}

Result<uint64_t> Addresses::take_low(uint64_t bytes, uint64_t alignment) {
  const std::lock_guard lock(mutex_);
  Result<uint64_t> address = low_ranges_.allocate(bytes, alignment);
  if (!address)
    return tl::unexpected(std::move(address.error()).within("GPU addresses below 2^40"));
  return address;
}

Result<uint64_t> Addresses::take_high(uint64_t bytes, uint64_t alignment) {
  const std::lock_guard lock(mutex_);
  Result<uint64_t> address = high_ranges_.allocate(bytes, alignment);
  if (!address) return tl::unexpected(std::move(address.error()).within("GPU addresses"));
  return address;
}

void Addresses::give_back(uint64_t address) {
  const std::lock_guard lock(mutex_);
  Status freed;
  if (address >= low_ && address < low_ + low_bytes_)
    freed = low_ranges_.free(address);
  else if (address >= kHighBase && address < kHighEnd)
    freed = high_ranges_.free(address);
  if (!freed) log("nv", LogLevel::kError, "GPU addresses: {}", freed.error().message);
}

bool Addresses::is_outside(uint64_t address, uint64_t bytes) const {
  const auto overlaps = [&](uint64_t base, uint64_t size) {
    return address < base + size && base < address + bytes;
  };
  return !overlaps(low_, low_bytes_) && !overlaps(kHighBase, kHighEnd - kHighBase) &&
         !overlaps(kLocalWindow, kShaderBytes) && !overlaps(kSharedWindow, kShaderBytes);
}

Status Addresses::map_cpu(uint64_t address, uint64_t bytes, int fd) {
  void* at = nullptr;
  const int flags = MAP_SHARED | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);
  const int result =
      system_.mmap(pointer(address), bytes, PROT_READ | PROT_WRITE, flags, fd, 0, &at);
  if (result < 0)
    return tl::unexpected(errno_error(
        Stage::kMap, fmt::format("mmap of {} bytes at {:#x}", bytes, address), -result));
  return {};
}

void Addresses::unmap_cpu(uint64_t address, uint64_t bytes) {
  void* at = nullptr;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  // On failure the old pages stay, which only wastes them: the next owner maps over them.
  system_.mmap(pointer(address), bytes, PROT_NONE, flags, -1, 0, &at);
}

}  // namespace bm::nv
