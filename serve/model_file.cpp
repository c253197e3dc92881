#include "serve/model_file.h"

#include <sys/stat.h>

#include <utility>

namespace bm::serve {

std::optional<FileMark> mark_of(const std::string& path) {
  struct stat s{};
  if (::stat(path.c_str(), &s) != 0) return std::nullopt;
  return FileMark{.device = s.st_dev,
                  .inode = s.st_ino,
                  .size = static_cast<uint64_t>(s.st_size),
                  .seconds = s.st_mtim.tv_sec,
                  .nanoseconds = s.st_mtim.tv_nsec};
}

bool FileWatch::has_changed() {
  const std::optional<FileMark> now = mark_of(path_);
  const bool is_calm = now && now == std::exchange(last_, now);
  if (!is_calm || now == known_) return false;
  known_ = now;
  return true;
}

}  // namespace bm::serve
