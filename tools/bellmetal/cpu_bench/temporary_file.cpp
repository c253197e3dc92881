#include "tools/bellmetal/cpu_bench/temporary_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace bm::cli {

Result<std::unique_ptr<TemporaryFile>> TemporaryFile::create(bool is_large) {
  std::error_code ignored;
  const std::string folder = std::filesystem::temp_directory_path(ignored).string();
  ScopedFd fd;
  if (is_large) fd.reset(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  // File systems without O_TMPFILE: memory, as for small ones.
  if (!fd.is_open()) fd.reset(::memfd_create("bellmetal-bench", MFD_CLOEXEC));
  if (!fd.is_open())
    return fail(Code::kIo, "no temporary file in {}: {}", folder, errno_text(errno));
  std::string path = fmt::format("/proc/{}/fd/{}", ::getpid(), fd.get());
  if (::access(path.c_str(), R_OK | W_OK) != 0)
    return fail(Code::kIo, "{}: {}: temporary files are passed on by their names in /proc", path,
                errno_text(errno));
  return std::unique_ptr<TemporaryFile>(new TemporaryFile(std::move(path), std::move(fd)));
}

Status TemporaryFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::kIo, "{}: {}", path_, errno_text(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace bm::cli
