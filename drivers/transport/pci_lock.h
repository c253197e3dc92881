#pragma once
// One process at a time per PCI function: a lock that the kernel drops with its owner, whatever
// ends it, and a note of who that is.

#include <cstdint>
#include <string>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"
#include "runtime/base/fork.h"

namespace bm {

/// Held until destroyed; children made by fork() do not hold it. The file stays, with the last
/// owner's note: its name is that of the function, and removing it would let two processes lock two
/// files.
class PciLock {
 public:
  /// The file is bellmetal_<address>.lock in /run/lock, or in `folder`. Errors: kIo ("device busy:
  /// held by pid 123 (name) since 2026-01-01 12:00:00 UTC"); kPermission (the folder, or a file
  /// that is a link or belongs to somebody else); kNotFound (no such folder).
  static Result<PciLock> acquire(System& system, const PciAddress& address,
                                 const std::string& folder = "/run/lock");

 private:
  explicit PciLock(SystemFd fd) : fd_(std::move(fd)), held_(fd_.get()) {}
  SystemFd fd_;
  ParentOnlyFd held_;
};

/// What the owner of a lock wrote: "pid since comm". Errors: kCorrupt.
struct PciLockOwner {
  int pid = 0;
  int64_t since = 0;  ///< seconds since 1970
  std::string command;
};
Result<PciLockOwner> parse_lock_owner(std::string_view text);

}  // namespace bm
