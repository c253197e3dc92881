#include "runtime/base/small_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace bm {

void prefer_small_pages(std::span<std::byte> memory) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)),
             first = reinterpret_cast<uintptr_t>(memory.data()),
             begin = (first + page - 1) / page * page, end = (first + memory.size()) / page * page;
  // Kernels without huge pages refuse it, and have small ones.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_NOHUGEPAGE);
}

}  // namespace bm
