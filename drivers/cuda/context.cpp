#include "drivers/cuda/context.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace bm::cuda {

Status Context::failed(CuResult error, std::string_view what) const {
  BM_TRY(health.status());
  Status problem = check(api, error, what);
  if (is_sticky(error)) health.fail(problem.error());
  return problem;
}

void Context::add_stream(CuStream stream) const {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void Context::remove_stream(CuStream stream) const {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
}

bool Context::is_idle() const {
  const std::lock_guard lock(mutex_);
  return !is_stuck_ && std::none_of(streams_.begin(), streams_.end(), [this](CuStream stream) {
    return api.cuStreamQuery(stream) == kErrorNotReady;
  });
}

bool Context::wait_idle() const {
  // TIMEOUT: covers work that is about to end; what takes longer is put off or left alone.
  constexpr std::chrono::milliseconds kPatience{500};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!is_idle()) {
    if (is_stuck_ || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

void Context::give_back(std::function<void()> call) const {
  if (is_stuck_) return;
  {
    const std::lock_guard lock(mutex_);
    put_off_.push_back(std::move(call));
  }
  settle();
}

void Context::settle() const {
  if (!is_idle()) return;
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(put_off_);
  }
  for (const auto& call : calls) call();
}

}  // namespace bm::cuda
