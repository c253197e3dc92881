#include "firmware/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "firmware/decompress.h"
#include "firmware/sha256.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/base/trust.h"

namespace bm::firmware {
namespace {

/// The largest file of the manifest has 61 MiB.
constexpr uint64_t kMostBytes = 256_MiB;
constexpr Compression kForms[] = {Compression::kNone, Compression::kZstd, Compression::kXz};

bool is_clean(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string_view::npos)
    return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

Result<std::vector<std::byte>> read_whole(const std::string& path) {
  const ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return fail(Code::kCorrupt, "{} is no regular file", path);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size == 0) return fail(Code::kCorrupt, "{} is empty", path);
  if (size > kMostBytes)
    return fail(Code::kCorrupt, "{} has {} bytes, no firmware has", path, size);
  std::vector<std::byte> bytes(size);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
    if (got == 0) return fail(Code::kCorrupt, "{} got shorter while it was read", path);
    done += static_cast<size_t>(got);
  }
  return bytes;
}

/// The least that has to be installed; `row`: the oldest version of a file, or nullptr.
std::string where_from(const Row* row) {
  if (row == nullptr) return "no package that is known here";
  return fmt::format("Debian package {} {} or later (first in {}, component non-free-firmware)",
                     row->package, row->package_version, row->suite);
}

const Row* oldest(std::string_view name) {
  const std::span<const Row> rows = versions_of(name);
  return rows.empty() ? nullptr : &rows.front();
}

/// The row of these bytes: under `name` if there is one, else under another; nullptr: unknown.
const Row* recognise(std::string_view name, std::span<const std::byte> bytes) {
  const auto is_of_this_size = [&](const Row& row) { return row.size == bytes.size(); };
  if (std::ranges::none_of(manifest(), is_of_this_size)) return nullptr;
  const std::string sum = sha256_hex(bytes);
  for (const std::span<const Row> rows : {versions_of(name), manifest()})
    for (const Row& row : rows)
      if (is_of_this_size(row) && row.sha256 == sum) return &row;
  return nullptr;
}

}  // namespace

Search default_search() {
  Search search;
  const std::string& own = settings().firmware_dir;
  for (size_t at = 0; at < own.size();) {
    const size_t end = std::min(own.find(':', at), own.size());
    if (end != at) search.folders.push_back(own.substr(at, end - at));
    at = end + 1;
  }
  utsname system{};
  const bool has_release = ::uname(&system) == 0;
  for (const char* base : {"/lib/firmware/updates", "/lib/firmware"}) {
    if (has_release) search.folders.push_back(fmt::format("{}/{}", base, system.release));
    search.folders.emplace_back(base);
  }
  search.folders.emplace_back("/usr/lib/firmware");
  return search;
}

Result<File> load(std::string_view name, const Search& search) {
  if (!is_clean(name))
    return fail(Code::kInvalidArgument, "'{}' is no name of a firmware file", name);
  for (const std::string& folder : search.folders) {
    for (const Compression form : kForms) {
      File file{.path = fmt::format("{}/{}{}", folder, name, suffix(form)), .bytes = {}};
      const Result<std::string> target = trusted_target(file.path);
      if (!target && target.error().code == Code::kNotFound) continue;
      if (!target) {
        // Folders, pipes and loops of links: the file is no good, whoever named its folder was
        // right.
        Error error = target.error();
        if (error.code == Code::kInvalidArgument && file.path.starts_with('/'))
          error.code = Code::kCorrupt;
        return tl::unexpected<Error>(std::move(error));
      }
      const std::vector<std::byte> packed = BM_TRY(read_whole(*target));
      Result<std::vector<std::byte>> bytes = decompress(packed, form, kMostBytes);
      if (!bytes) return tl::unexpected<Error>(std::move(bytes.error()).within(file.path));
      file.bytes = std::move(*bytes);
      file.row = recognise(name, file.bytes);
      if (file.row != nullptr && file.row->name != name)
        return fail(Code::kCorrupt, "{} is {} of {} {} under another name; it comes with {}",
                    file.path, file.row->name, file.row->package, file.row->package_version,
                    where_from(oldest(name)));
      return file;
    }
  }
  return fail(Code::kNotFound, "firmware {} is in none of {}; it comes with {}", name,
              fmt::join(search.folders, ", "), where_from(oldest(name)));
}

std::vector<std::string> check(std::span<const std::string_view> names, const Search& search) {
  std::vector<std::string> lines;
  // Files of one package in one line; its versions begin with a date.
  struct Missing {
    const Row* needed = nullptr;
    std::vector<std::string_view> names;
  };
  std::map<std::string_view, Missing> missing;
  for (const std::string_view name : names) {
    const Result<File> file = load(name, search);
    if (file) continue;
    if (file.error().code != Code::kNotFound) {
      lines.push_back(file.error().message);
      continue;
    }
    const Row* const row = oldest(name);
    Missing& package = missing[row == nullptr ? std::string_view() : row->package];
    package.names.push_back(name);
    if (package.needed == nullptr || row->package_version > package.needed->package_version)
      package.needed = row;
  }
  for (const auto& [package, files] : missing)
    lines.push_back(fmt::format("missing: {}; install {}, or name their folder in BM_FIRMWARE_DIR",
                                fmt::join(files.names, ", "), where_from(files.needed)));
  return lines;
}

}  // namespace bm::firmware
