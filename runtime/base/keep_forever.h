#pragma once
// For what hardware or a driver may still use when nobody can tell how long.

#include <memory>
#include <mutex>
#include <vector>

namespace bm {

/// Never frees it: memory is the smaller loss. Leak checkers see it as reachable.
template <class T>
void keep_forever(std::unique_ptr<T> stuck) {
  struct Graveyard {
    std::mutex mutex;
    std::vector<std::unique_ptr<T>> stuck;
  };
  static auto* const graveyard = new Graveyard;  // outlives everything on purpose
  const std::lock_guard lock(graveyard->mutex);
  graveyard->stuck.push_back(std::move(stuck));
}

}  // namespace bm
