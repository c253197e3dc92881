#include "drivers/transport/physical_memory.h"

#include <fcntl.h>
#include <linux/mman.h>
#include <sys/mman.h>

#include "runtime/base/bits.h"

namespace bm {
namespace {

constexpr uint64_t kHugePage = 2_MiB, kPage = 4096;
constexpr uint64_t kMaxBytes = 1024_GiB;
// An entry of pagemap: bit 63 says that the page is present, bits 54:0 are its frame's number.
constexpr uint64_t kPresent = uint64_t{1} << 63, kFrameMask = (uint64_t{1} << 55) - 1;

class PhysicalMemory final : public DmaMemory {
 public:
  explicit PhysicalMemory(SystemMapping mapping) : mapping_(std::move(mapping)) {}

  Status resolve(System& system) {
    view_ = BM_TRY(HostView::mapped(mapping_.address(), mapping_.bytes()));
    const int opened = system.open("/proc/self/pagemap", O_RDONLY);
    if (opened < 0)
      return fail(code_from_errno(-opened), "/proc/self/pagemap: {}", errno_text(-opened));
    const SystemFd fd(system, opened);
    const auto first = reinterpret_cast<uintptr_t>(mapping_.address());
    for (uint64_t at = 0; at < mapping_.bytes(); at += kHugePage) {
      uint64_t entry = 0;
      const ssize_t got =
          system.pread(fd.get(), &entry, sizeof entry, (first + at) / kPage * sizeof entry);
      if (got != static_cast<ssize_t>(sizeof entry))
        return fail(Code::kIo, "/proc/self/pagemap: {}",
                    got < 0 ? errno_text(static_cast<int>(-got)) : "short read");
      const uint64_t address = (entry & kFrameMask) * kPage;
      if ((entry & kPresent) == 0)
        return fail(Code::kIo, "a huge page is not there though it was mapped at once");
      if (address == 0)
        return fail(Code::kPermission,
                    "the kernel hides physical addresses from this user (CAP_SYS_ADMIN); use VFIO "
                    "behind an IOMMU");
      if (address % kHugePage != 0)
        return fail(Code::kIo, "a huge page lies at {:#x}, which is not aligned", address);
      if (!ranges_.empty() && ranges_.back().address + ranges_.back().bytes == address)
        ranges_.back().bytes += kHugePage;
      else
        ranges_.push_back({address, kHugePage});
    }
    return {};
  }

 private:
  SystemMapping mapping_;
};

}  // namespace

Result<std::unique_ptr<DmaMemory>> allocate_physical(System& system, uint64_t bytes,
                                                     bool is_contiguous) {
  if (bytes == 0 || bytes > kMaxBytes)
    return fail(Code::kInvalidArgument, "{:#x} bytes of DMA memory", bytes);
  const uint64_t size = align_up(bytes, kHugePage);
  void* address = nullptr;
  // Shared, so that a fork does not copy pages that the device knows.
  const int error = system.mmap(
      nullptr, size, PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0, &address);
  if (error < 0)
    return fail(code_from_errno(-error),
                "{} huge pages of 2 MiB: {}; reserve them: sysctl vm.nr_hugepages={} or more",
                size / kHugePage, errno_text(-error), size / kHugePage);
  auto memory = std::make_unique<PhysicalMemory>(SystemMapping(system, address, size));
  if (const int advised = system.madvise(address, size, MADV_DONTFORK); advised < 0)
    return fail(Code::kIo, "keeping DMA memory from forked processes: {}", errno_text(-advised));
  BM_TRY(memory->resolve(system));
  if (is_contiguous && memory->ranges().size() != 1)
    return fail(
        Code::kOutOfMemory,
        "{:#x} bytes lie in {} pieces of physical memory; one huge page has 2 MiB, and more "
        "lie side by side only by luck",
        size, memory->ranges().size());
  return memory;
}

}  // namespace bm
