#include "runtime/file_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace bm::runtime {
namespace {

// Linux transfers at most 0x7ffff000 bytes per call (read(2), NOTES); smaller calls lose nothing.
constexpr size_t kMostPerCall = size_t{64} << 20;

}  // namespace

Result<FileStream> FileStream::open(std::string path, ReadAt read_at) {
  ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return fail(code_from_errno(errno), "open {}: {}", path, errno_text(errno));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail(Code::kIo, "stat {}: {}", path, errno_text(errno));
  if (S_ISDIR(info.st_mode)) return fail(Code::kInvalidArgument, "{} is a directory", path);
  // Doubles the kernel's read-ahead window; a refusal costs nothing but speed.
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  const uint64_t size = S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
  return FileStream(std::move(path), std::move(fd), size, read_at ? read_at : ::pread);
}

Status FileStream::read(std::span<std::byte> out, uint64_t offset) const {
  while (!out.empty()) {
    if (offset > static_cast<uint64_t>(INT64_MAX))
      return fail(Code::kIo, "{}: offset {} is out of range", path_, offset);
    const size_t wanted = std::min(out.size(), kMostPerCall);
    const ssize_t got = read_at_(fd_.get(), out.data(), wanted, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return fail(Code::kIo, "{}: reading at offset {}: {}", path_, offset, errno_text(errno));
    if (got == 0)
      return fail(Code::kIo, "{}: ends at offset {}, {} bytes short", path_, offset, out.size());
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

}  // namespace bm::runtime
