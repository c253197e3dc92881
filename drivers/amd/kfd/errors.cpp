#include "drivers/amd/kfd/errors.h"

#include <cerrno>

namespace bm::amd::kfd {
namespace {

/// "Groups:" of /proc/self/status, for the message about a missing one.
std::string own_groups(System& system) {
  std::string text;
  if (system.read_file("/proc/self/status", &text) < 0) return "";
  constexpr std::string_view kKey = "\nGroups:";
  const size_t at = text.find(kKey);
  if (at == std::string::npos) return "";
  const size_t begin = at + kKey.size();
  std::string groups = text.substr(begin, text.find('\n', begin) - begin);
  const size_t first = groups.find_first_not_of(" \t");
  if (first == std::string::npos) return "none";
  groups.erase(0, first);
  return groups.substr(0, groups.find_last_not_of(" \t") + 1);
}

}  // namespace

Error open_error(System& system, const std::string& path, int error) {
  const bool is_kfd = path == "/dev/kfd";
  std::string text = fmt::format("{}: {}", path, errno_text(error));
  switch (error) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      text += is_kfd
                  ? "; the amdgpu kernel driver is not loaded (modprobe amdgpu), was built "
                    "without CONFIG_HSA_AMD, or this container lacks the node (--device=/dev/kfd)"
                  : "; the render node is missing: give the container /dev/dri, too";
      break;
    case EACCES:
      text += fmt::format(
          "; the node belongs to group '{}' on most systems: 'sudo usermod -aG render,video $USER' "
          "and log in again, or a udev rule such as 'KERNEL==\"{}\", GROUP=\"render\", "
          "MODE=\"0660\"' (this process is in groups: {})",
          "render", is_kfd ? "kfd" : "renderD*", own_groups(system));
      break;
    case EPERM:
      text += "; a control group forbids the node (docker: --device, systemd: DeviceAllow=)";
      break;
    case EMFILE: text += "; too many open files (ulimit -n)"; break;
    case EBUSY: text += "; the GPU is being reset or another client holds it"; break;
    default: break;
  }
  return {code_from_errno(error), std::move(text)};
}

Error call_error(std::string_view call, std::string_view what, int error, std::string_view hint) {
  Code code = code_from_errno(error);
  if (error == EIO || error == ENODEV) code = Code::kDeviceLost;
  if (error == ENOTTY) code = Code::kUnsupported;
  std::string text = fmt::format("KFD {}", call);
  if (!what.empty()) text += fmt::format(" of {}", what);
  text += fmt::format(": {}", errno_text(error));
  if (!hint.empty()) text += fmt::format(" ({})", hint);
  return {code, std::move(text)};
}

}  // namespace bm::amd::kfd
