#include "drivers/transport/process_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "runtime/base/bits.h"

namespace bm {
namespace {

struct Pages {
  uint64_t begin, end;
};
Pages pages_of(const void* begin, uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  return {align_down(uint64_t{address}, page), align_up(uint64_t{address} + bytes, page)};
}

}  // namespace

Status mark_pages(void* begin, uint64_t bytes) {
  const Pages pages = pages_of(begin, bytes);
  if (madvise(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, MADV_DONTDUMP) == 0)
    return {};
  return fail(Code::kIo, "marking {} bytes at {}: {}", bytes, begin, errno_text(errno));
}

/// proc(5), smaps: a line of addresses per mapping, and one "VmFlags:" with "dd" for ours.
bool are_pages_marked(const void* begin, uint64_t bytes) {
  Pages left = pages_of(begin, bytes);
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  Pages mapping{0, 0};
  while (left.begin < left.end && std::getline(smaps, line)) {
    uint64_t first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &first, &last) == 2) {
      mapping = {first, last};
      if (first > left.begin) return false;
    } else if (line.starts_with("VmFlags:") && mapping.begin <= left.begin &&
               left.begin < mapping.end) {
      if (line.find(" dd") == std::string::npos) return false;
      left.begin = mapping.end;
    }
  }
  return left.begin >= left.end;
}

}  // namespace bm
