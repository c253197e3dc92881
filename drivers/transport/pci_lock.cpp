#include "drivers/transport/pci_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <ctime>

#include "drivers/transport/pci_enumerate.h"

namespace bm {
namespace {

std::string time_text(int64_t since) {
  const auto seconds = static_cast<time_t>(since);
  tm parts{};
  std::array<char, 32> text{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "an unknown time";
  const size_t bytes = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {text.data(), bytes};
}

}  // namespace

Result<PciLockOwner> parse_lock_owner(std::string_view text) {
  // The note is filled up with blanks.
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0' || text.back() == ' '))
    text.remove_suffix(1);
  PciLockOwner owner;
  const char* const end = text.data() + text.size();
  const auto [pid_end, bad_pid] = std::from_chars(text.data(), end, owner.pid);
  if (bad_pid != std::errc() || owner.pid <= 0 || pid_end == end || *pid_end != ' ')
    return fail(Code::kCorrupt, "a lock's note does not begin with a process");
  const auto [since_end, bad_since] = std::from_chars(pid_end + 1, end, owner.since);
  if (bad_since != std::errc() || since_end == end || *since_end != ' ')
    return fail(Code::kCorrupt, "a lock's note has no time");
  for (const char c : std::string_view(since_end + 1, static_cast<size_t>(end - since_end - 1)))
    owner.command += c < 0x20 || c == 0x7f ? '?' : c;
  return owner;
}

Result<PciLock> PciLock::acquire(System& system, const PciAddress& address,
                                 const std::string& folder) {
  const std::string path = folder + "/bellmetal_" + to_string(address) + ".lock";
  // The folder may be writable by all, so what lies there under our name is not followed.
  int opened = system.create(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (opened == -ELOOP)
    return fail(Code::kPermission, "{} is a link, which somebody may have put there; remove it",
                path);
  if (opened == -EACCES)
    return fail(Code::kPermission,
                "{}: {}; it belongs to the user who drove the device last: remove it as root", path,
                errno_text(EACCES));
  if (opened < 0) return fail(code_from_errno(-opened), "{}: {}", path, errno_text(-opened));
  SystemFd fd(system, opened);
  const int locked = system.flock(opened, LOCK_EX | LOCK_NB);
  if (locked == -EWOULDBLOCK) {
    std::array<char, 128> text{};
    const ssize_t got = system.pread(opened, text.data(), text.size(), 0);
    const Result<PciLockOwner> owner =
        parse_lock_owner(std::string_view(text.data(), got < 0 ? 0 : static_cast<size_t>(got)));
    if (!owner) return fail(Code::kIo, "device busy: {} is held by another process", path);
    return fail(Code::kIo, "device busy: {} is held by pid {} ({}) since {}", to_string(address),
                owner->pid, owner->command, time_text(owner->since));
  }
  if (locked < 0) return fail(Code::kIo, "{}: flock: {}", path, errno_text(-locked));
  // The note is for those who find it locked; blanks cover a longer one before it.
  const std::string note = fmt::format(
      "{:<100}\n",
      fmt::format("{} {} {}", ::getpid(), std::time(nullptr), process_command(system, ::getpid())));
  const ssize_t put = system.pwrite(opened, note.data(), note.size(), 0);
  if (put != static_cast<ssize_t>(note.size()))
    return fail(Code::kIo, "{}: {}", path,
                put < 0 ? errno_text(static_cast<int>(-put)) : "short write");
  return PciLock(std::move(fd));
}

}  // namespace bm
