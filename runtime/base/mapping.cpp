#include "runtime/base/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/scoped_fd.h"

namespace bm {
namespace {

void unmap(std::span<const std::byte> bytes) {
  if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap(bytes_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

Mapping::~Mapping() { unmap(bytes_); }

Result<Mapping> Mapping::open_file(const std::string& path) {
  const ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) return fail(code_from_errno(errno), "open {}: {}", path, errno_text(errno));
  Mapping mapping = BM_TRY(of(fd.get(), path));
  if (mapping.bytes().empty())
    return fail(Code::kCorrupt,
                "{} is empty (0 bytes), as a download that broke off leaves it: fetch it again",
                path);
  return mapping;
}

Result<Mapping> Mapping::of(int fd, const std::string& path) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return fail(Code::kIo, "stat {}: {}", path, errno_text(errno));
  if (!S_ISREG(info.st_mode)) return fail(Code::kInvalidArgument, "{} is not a regular file", path);
  if (info.st_size == 0) return Mapping();
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED)
    return fail(code_from_errno(errno), "map {}: {}", path, errno_text(errno));
  return Mapping(std::span(static_cast<const std::byte*>(address), size));
}

void Mapping::release(std::span<const std::byte> part) const {
  const auto address = [](const std::byte* p) { return reinterpret_cast<uintptr_t>(p); };
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = std::max(address(part.data()), address(bytes_.data())),
                  last = std::min(address(part.data() + part.size()),
                                  address(bytes_.data() + bytes_.size()));
  const uintptr_t begin = (first + page - 1) / page * page, end = last / page * page;
  // Advice: whatever comes of it, reading gives the same bytes.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace bm
