#include "tests/sim/notify/server.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "tests/sim/notify/filter.h"

namespace bm::sim::notify {
namespace {

/// What a filtered program sends its notification descriptor through.
bool send_fd(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, 0) == 1;
}

int receive_fd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

class NotifyServer final : public Server {
 public:
  NotifyServer(Devices& devices, int listener) : devices_(devices), listener_(listener) {}

  void run(const std::atomic<bool>& is_over);
  const Counts& counts() const { return counts_; }
  std::shared_ptr<Node> node_of(pid_t process, int fd) override;
  int give(uint64_t id, int source) override;
  void answer(uint64_t id, int result) override {
    reply(id, std::max(result, 0), result < 0 ? -result : 0);
  }

 private:
  struct FileId {
    dev_t device;
    ino_t inode;
    auto operator<=>(const FileId&) const = default;
  };
  using Descriptor = std::pair<pid_t, int>;

  void handle(const seccomp_notif& call);
  void on_open(const seccomp_notif& call);
  void on_close(const seccomp_notif& call);
  void on_ioctl(const seccomp_notif& call);
  void reply(uint64_t id, int64_t value, int error, uint32_t flags = 0);
  void pass(uint64_t id) {
    ++counts_.passed;
    reply(id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
  }
  std::string path_at(pid_t process, uint64_t address) const;
  pid_t process_of(uint32_t thread);
  void forget(const std::shared_ptr<Node>& node);
  void forget_dead();

  Devices& devices_;
  int listener_;
  Counts counts_;
  std::map<Descriptor, std::shared_ptr<Node>> nodes_;
  std::map<FileId, std::shared_ptr<Node>> by_inode_;  ///< for descriptors that were duplicated
  std::map<uint32_t, pid_t> threads_;
};

pid_t NotifyServer::process_of(uint32_t thread) {
  const auto found = threads_.find(thread);
  if (found != threads_.end()) return found->second;
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%u/status", thread);
  const ScopedFd fd(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const ssize_t got = fd.is_open() ? ::read(fd.get(), text.data(), text.size() - 1) : 0;
  const char* const line = got > 0 ? std::strstr(text.data(), "\nTgid:") : nullptr;
  const pid_t process =
      line == nullptr ? static_cast<pid_t>(thread) : static_cast<pid_t>(std::atoi(line + 6));
  threads_[thread] = process;
  return process;
}

std::string NotifyServer::path_at(pid_t process, uint64_t address) const {
  std::string path;
  std::array<char, 256> chunk;
  while (path.size() < 4096) {
    // Chunks end at multiples of their size, so none crosses into a page that is not there.
    const size_t part = chunk.size() - address % chunk.size();
    const iovec here{chunk.data(), part};
    const iovec there{reinterpret_cast<void*>(address), part};
    if (process_vm_readv(process, &here, 1, &there, 1, 0) != static_cast<ssize_t>(part)) break;
    const size_t length = strnlen(chunk.data(), part);
    path.append(chunk.data(), length);
    if (length < part) break;
    address += part;
  }
  return path;
}

void NotifyServer::reply(uint64_t id, int64_t value, int error, uint32_t flags) {
  seccomp_notif_resp response{};
  response.id = id;
  response.val = value;
  response.error = -error;
  response.flags = flags;
  ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

void NotifyServer::on_open(const seccomp_notif& call) {
  const bool is_at = call.data.nr == SYS_openat;
  const std::string path = path_at(static_cast<pid_t>(call.pid), call.data.args[is_at ? 1 : 0]);
  const int flags = static_cast<int>(call.data.args[is_at ? 2 : 1]);
  if (!devices_.owns(path)) return pass(call.id);
  ++counts_.opens;
  forget_dead();
  ScopedFd fd;
  std::shared_ptr<Node> node;
  if (const int error = devices_.open(process_of(call.pid), path, flags, &fd, &node); error != 0)
    return reply(call.id, 0, -error);
  seccomp_notif_addfd add{};
  add.id = call.id;
  add.flags = SECCOMP_ADDFD_FLAG_SEND;
  add.srcfd = static_cast<uint32_t>(fd.get());
  add.newfd_flags = (flags & O_CLOEXEC) != 0 ? O_CLOEXEC : 0;
  const int given = ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
  if (given < 0) {
    if (node != nullptr) devices_.close(node);
    return reply(call.id, 0, errno);
  }
  if (node == nullptr) return;
  struct stat status{};
  if (fstat(fd.get(), &status) == 0) by_inode_[{status.st_dev, status.st_ino}] = node;
  nodes_[{process_of(call.pid), given}] = std::move(node);
}

std::shared_ptr<Node> NotifyServer::node_of(pid_t process, int fd) {
  const auto found = nodes_.find({process, fd});
  if (found != nodes_.end()) return found->second;
  if (nodes_.empty() || fd < 0) return nullptr;
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", process, fd);
  struct stat status{};
  if (stat(path.data(), &status) != 0) return nullptr;
  const auto known = by_inode_.find({status.st_dev, status.st_ino});
  if (known == by_inode_.end()) return nullptr;
  nodes_[{process, fd}] = known->second;
  return known->second;
}

void NotifyServer::on_close(const seccomp_notif& call) {
  const pid_t process = process_of(call.pid);
  const auto found = nodes_.find({process, static_cast<int>(call.data.args[0])});
  if (found == nodes_.end()) return pass(call.id);
  ++counts_.closes;
  const std::shared_ptr<Node> node = found->second;
  nodes_.erase(found);
  forget(node);
  reply(call.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

/// Closes the node when no descriptor that is known refers to it.
void NotifyServer::forget(const std::shared_ptr<Node>& node) {
  const bool is_open = std::any_of(nodes_.begin(), nodes_.end(),
                                   [&](const auto& entry) { return entry.second == node; });
  if (is_open) return;
  std::erase_if(by_inode_, [&](const auto& entry) { return entry.second == node; });
  devices_.close(node);
}

void NotifyServer::forget_dead() {
  std::vector<std::shared_ptr<Node>> lost;
  for (auto entry = nodes_.begin(); entry != nodes_.end();) {
    const bool is_gone = kill(entry->first.first, 0) != 0 && errno == ESRCH;
    if (is_gone) lost.push_back(entry->second);
    entry = is_gone ? nodes_.erase(entry) : std::next(entry);
  }
  for (const auto& node : lost) forget(node);
}

int NotifyServer::give(uint64_t id, int source) {
  seccomp_notif_addfd add{};
  add.id = id;
  add.srcfd = static_cast<uint32_t>(source);
  add.newfd_flags = O_CLOEXEC;
  const int given = ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
  return given < 0 ? -errno : given;
}

void NotifyServer::on_ioctl(const seccomp_notif& call) {
  const pid_t process = process_of(call.pid);
  const int fd = static_cast<int>(call.data.args[0]);
  const std::shared_ptr<Node> node = node_of(process, fd);
  if (node == nullptr) return pass(call.id);
  ++counts_.ioctls;
  Replace replace;
  const int result = devices_.ioctl(
      *this, {call.id, process, fd, node, call.data.args[1] & 0xffffffff, call.data.args[2]},
      &replace);
  if (result == kLater) return;
  if (replace.fd >= 0) {
    seccomp_notif_addfd add{};
    add.id = call.id;
    add.flags = SECCOMP_ADDFD_FLAG_SETFD;
    add.srcfd = static_cast<uint32_t>(replace.source);
    add.newfd = static_cast<uint32_t>(replace.fd);
    add.newfd_flags = O_CLOEXEC;
    if (::ioctl(listener_, SECCOMP_IOCTL_NOTIF_ADDFD, &add) < 0) return reply(call.id, 0, errno);
  }
  answer(call.id, result);
}

void NotifyServer::handle(const seccomp_notif& call) {
  switch (call.data.nr) {
    case SYS_ioctl: return on_ioctl(call);
    case SYS_close: return on_close(call);
    default: return on_open(call);
  }
}

void NotifyServer::run(const std::atomic<bool>& is_over) {
  // The kernel's structures may have grown since this was compiled; it says how large they are.
  alignas(seccomp_notif) std::array<char, 512> buffer;
  while (true) {
    pollfd ready{listener_, POLLIN, 0};
    const int count = poll(&ready, 1, 100);
    // POLLHUP: no process with the filter is left.
    if (count > 0 && (ready.revents & POLLIN) == 0) break;
    if (count <= 0) {
      if (is_over) break;
      continue;
    }
    buffer.fill(0);
    auto* const call = reinterpret_cast<seccomp_notif*>(buffer.data());
    if (::ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, call) == 0)
      handle(*call);
    else if (errno != EINTR && errno != ENOENT)
      break;
  }
  std::map<Descriptor, std::shared_ptr<Node>> rest;
  rest.swap(nodes_);
  for (const auto& [descriptor, node] : rest) forget(node);
  devices_.finish();
}

[[noreturn]] void become(const Options& options, const std::vector<std::string>& arguments,
                         int socket) {
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const int listener = install_filter(options.types, options.has_bare_requests);
  // Nothing may be closed or opened between the filter and the server that answers it.
  if (listener < 0 || !send_fd(socket, listener)) _exit(126);
  execvp(words[0], words.data());
  std::perror(words[0]);
  _exit(127);
}

}  // namespace

namespace {

/// The program that a signal is passed on to; 0: none.
std::atomic<pid_t>& program() {
  static constinit std::atomic<pid_t> value{0};
  return value;
}

/// Ctrl-C in a terminal (SI_KERNEL) reaches the program by itself.
void pass_on(int number, siginfo_t* info, void*) {
  if (info->si_code != SI_KERNEL && program() > 0) kill(program(), number);
}

/// While it lives, signals that end this process go to the program instead: it needs its devices
/// until its own end, and we clean up after it.
class PassSignalsOn {
 public:
  explicit PassSignalsOn(pid_t to) {
    program() = to;
    struct sigaction action{};
    action.sa_sigaction = pass_on;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~PassSignalsOn() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    program() = 0;
  }
  PassSignalsOn(const PassSignalsOn&) = delete;
  PassSignalsOn& operator=(const PassSignalsOn&) = delete;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace

Result<int> run(Devices& devices, const Options& options, const std::vector<std::string>& arguments,
                Counts* counts) {
  std::array<int, 2> ends{-1, -1};
  if (arguments.empty()) return fail(Code::kInvalidArgument, "no command to run");
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(code_from_errno(errno), "socketpair: {}", errno_text(errno));
  const ScopedFd ours(ends[0]);
  ScopedFd theirs(ends[1]);
  const pid_t child = fork();
  if (child < 0) return fail(code_from_errno(errno), "fork: {}", errno_text(errno));
  if (child == 0) {
    // Without its devices it could only hang.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    become(options, arguments, theirs.get());
  }
  const PassSignalsOn signals(child);
  theirs.reset();
  const ScopedFd listener(receive_fd(ours.get()));
  int status = 0;
  if (!listener.is_open()) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    // Ended from outside before it came to that.
    if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    return fail(Code::kUnsupported,
                "seccomp user notification is refused here (it needs Linux 5.14 and no filter that "
                "forbids it)");
  }
  NotifyServer server(devices, listener.get());
  std::atomic<bool> is_over{false};
  std::thread thread([&] { server.run(is_over); });
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  const auto ended = std::chrono::steady_clock::now().time_since_epoch();
  is_over = true;
  thread.join();
  if (counts != nullptr) {
    *counts = server.counts();
    counts->ended_ns = ended / std::chrono::nanoseconds(1);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace bm::sim::notify
