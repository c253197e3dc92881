#include "runtime/base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace bm {
namespace {

/// Process-wide by nature, and never destroyed: fork() may come at any time.
struct State {
  std::atomic<uint32_t> generation{0};  ///< forks that led to this process
  std::mutex mutex;
  std::vector<int> parents_only;
};
State& state() {
  static auto* const made = new State;
  return *made;
}

}  // namespace

void watch_for_fork() {
  static const int registered =
      pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                     [] {
                       state().generation.fetch_add(1, std::memory_order_relaxed);
                       for (const int fd : state().parents_only) ::close(fd);
                       state().parents_only.clear();
                       state().mutex.unlock();
                     });
  static_cast<void>(registered);
}

bool is_forked_child() { return state().generation.load(std::memory_order_relaxed) != 0; }

ForkGuard::ForkGuard() : generation_(state().generation.load(std::memory_order_relaxed)) {
  watch_for_fork();
}

bool ForkGuard::is_parents() const {
  return generation_ != state().generation.load(std::memory_order_relaxed);
}

ParentOnlyFd::ParentOnlyFd(int fd) : fd_(fd) {
  watch_for_fork();
  const std::lock_guard lock(state().mutex);
  state().parents_only.push_back(fd);
}

ParentOnlyFd::~ParentOnlyFd() {
  if (fd_ < 0) return;
  const std::lock_guard lock(state().mutex);
  auto& all = state().parents_only;
  if (const auto at = std::ranges::find(all, fd_); at != all.end()) all.erase(at);
}

}  // namespace bm
