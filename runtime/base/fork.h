#pragma once
// A child made by fork() has its parent's memory and descriptors, but none of its threads, and no
// business with its devices.

#include <cstdint>
#include <utility>

namespace bm {

/// From now on children know themselves. Called before a device is opened; cheap when repeated.
void watch_for_fork();
/// Whether this process is a child of one that had called watch_for_fork(). Thread: any.
bool is_forked_child();

/// A member of what a child must leave alone: what the child opens itself is its own.
class ForkGuard {
 public:
  ForkGuard();
  /// Made before a fork() that led to this process.
  bool is_parents() const;

 private:
  uint32_t generation_;
};

/// A descriptor that children made by fork() do not keep: a lock that the parent holds goes with
/// the parent. It stays the caller's to close.
class ParentOnlyFd {
 public:
  explicit ParentOnlyFd(int fd);
  ~ParentOnlyFd();
  ParentOnlyFd(ParentOnlyFd&& other) noexcept { swap(other); }
  ParentOnlyFd& operator=(ParentOnlyFd&& other) noexcept {
    swap(other);
    return *this;
  }

 private:
  void swap(ParentOnlyFd& other) noexcept { std::swap(fd_, other.fd_); }
  int fd_ = -1;
};

}  // namespace bm
