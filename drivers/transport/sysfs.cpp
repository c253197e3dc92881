#include "drivers/transport/sysfs.h"

#include <fcntl.h>

#include <cerrno>
#include <charconv>

namespace bm {
namespace {

tl::unexpected<Error> failed(const char* what, const std::string& path, int error) {
  return fail(code_from_errno(error), "{} {}: {}", what, path, errno_text(error));
}

}  // namespace

Result<std::string> read_sysfs(System& system, const std::string& path) {
  std::string text;
  if (const int error = system.read_file(path, &text); error < 0)
    return failed("reading", path, -error);
  text.erase(text.find_last_not_of(" \n\t") + 1);
  return text;
}

Result<int64_t> read_sysfs_number(System& system, const std::string& path) {
  const std::string text = BM_TRY(read_sysfs(system, path));
  const bool is_hex = text.starts_with("0x");
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] =
      std::from_chars(text.data() + (is_hex ? 2 : 0), end, value, is_hex ? 16 : 10);
  if (problem != std::errc() || stop != end)
    return fail(Code::kCorrupt, "{} holds '{}', which is no number", path, text.substr(0, 40));
  return value;
}

Status write_sysfs(System& system, const std::string& path, std::string_view text) {
  const int opened = system.open(path, O_WRONLY);
  if (opened < 0) return failed("opening", path, -opened);
  const SystemFd fd(system, opened);
  const ssize_t put = system.write(fd.get(), text.data(), text.size());
  if (put < 0) return failed("writing", path, static_cast<int>(-put));
  if (static_cast<size_t>(put) != text.size())
    return fail(Code::kIo, "writing {}: {} of {} bytes were taken", path, put, text.size());
  return {};
}

Result<std::string> sysfs_link_name(System& system, const std::string& path) {
  std::string target;
  const int error = system.read_link(path, &target);
  if (error == -ENOENT || error == -EINVAL) return std::string();
  if (error < 0) return failed("reading", path, -error);
  return target.substr(target.rfind('/') + 1);
}

std::string pci_folder(const PciAddress& address) {
  return "/sys/bus/pci/devices/" + to_string(address);
}

}  // namespace bm
