#include "tools/bellmetal/cpu_bench/temporary_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace bm::cli {

Result<std::unique_ptr<TemporaryFile>> TemporaryFile::create(bool is_large) {
  std::error_code error;
  std::string folder = "/dev/shm";
  if (is_large || ::access(folder.c_str(), W_OK) != 0)
    folder = std::filesystem::temp_directory_path(error).string();
  std::string path = folder + "/bellmetal-XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd < 0)
    return fail(Code::kIo, "no temporary file in {}: {}", folder,
                std::generic_category().message(errno));
  return std::unique_ptr<TemporaryFile>(new TemporaryFile(std::move(path), fd));
}

TemporaryFile::~TemporaryFile() {
  ::close(fd_);
  ::unlink(path_.c_str());
}

Status TemporaryFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::kIo, "{}: {}", path_, std::generic_category().message(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace bm::cli
