#pragma once
// Serves device nodes to an unmodified program: a seccomp filter stops its open, close and ioctl
// calls, and this process answers them. Linux 5.14 or newer; no privileges needed.

#include <sys/types.h>

#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm::sim::notify {

/// An open file of a device. The server keeps it while any descriptor refers to it.
class Node {
 public:
  virtual ~Node() = default;
};

/// One ioctl of the program.
struct Ioctl {
  uint64_t id = 0;  ///< of the call, for Server::give() and Server::answer()
  pid_t process = 0;
  int fd = -1;
  std::shared_ptr<Node> node;
  unsigned long request = 0;
  uint64_t argument = 0;
};

/// What an ioctl leaves to be done to the program's descriptors.
struct Replace {
  int fd = -1;      ///< descriptor of the program; -1: none
  int source = -1;  ///< descriptor of ours that takes its place; stays ours
};

class Server;

/// The devices. Called from one thread.
class Devices {
 public:
  virtual ~Devices() = default;
  /// Whether opening this path is ours to answer.
  virtual bool owns(const std::string& path) const = 0;
  /// Opens it for a process: 0 or -errno. *fd is given to the program (a memfd, so that mmap and
  /// fstat work); *node may stay null for plain files, whose calls the kernel then answers.
  virtual int open(pid_t process, const std::string& path, int flags, ScopedFd* fd,
                   std::shared_ptr<Node>* node) = 0;
  /// The last descriptor of the node is closed, or its process is gone.
  virtual void close(const std::shared_ptr<Node>& node) = 0;
  /// 0 (or a positive result) or -errno; kLater: Server::answer() follows from another thread.
  virtual int ioctl(Server& server, const Ioctl& call, Replace* replace) = 0;
  /// Everything is closed and the server goes: nothing may be answered any more.
  virtual void finish() {}
};

/// The call blocks, other calls of the program go on.
inline constexpr int kLater = INT_MIN;

struct Options {
  /// ioctl "types" (bits 15:8 of the request) that are stopped.
  std::vector<uint8_t> types;
  /// Also requests that are bare numbers: below 256, or 0x3000000x.
  bool has_bare_requests = false;
};

struct Counts {
  uint64_t opens = 0, closes = 0, ioctls = 0, passed = 0;
  int64_t ended_ns = 0;  ///< when the program ended, by the steady clock
};

class Server {
 public:
  virtual ~Server() = default;
  /// The node behind a descriptor of the program; null when it is none of ours.
  virtual std::shared_ptr<Node> node_of(pid_t process, int fd) = 0;
  /// Opens `source`, a descriptor of ours, in the program while it waits for call `id`: its
  /// descriptor there, closed on exec, or -errno.
  virtual int give(uint64_t id, int source) = 0;
  /// Ends a call that kLater was returned for. Thread: any.
  virtual void answer(uint64_t id, int result) = 0;
};

/// Runs `arguments` (a command line; PATH is searched) with the devices and returns its exit status
/// (128 + signal where one ended it).
/// Errors: kUnsupported where the kernel refuses the filter, kIo.
Result<int> run(Devices& devices, const Options& options, const std::vector<std::string>& arguments,
                Counts* counts);

}  // namespace bm::sim::notify
