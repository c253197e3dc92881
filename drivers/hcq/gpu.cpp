#include "drivers/hcq/gpu.h"

namespace bm::hcq {

void Health::lose(const Error& cause) {
  {
    const std::lock_guard lock(given_up_mutex);
    if (!given_up) given_up = cause;
  }
  is_given_up.store(true, std::memory_order_release);
  has_fault.store(true, std::memory_order_release);
}

void Health::adopt_loss() {
  if (fault || !is_given_up.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(given_up_mutex);
  fault = given_up;
}

void Health::close() {
  if (!fault) fault = Error{Code::kDeviceLost, "the device is closed"};
  has_fault.store(true, std::memory_order_release);
}

void Health::clear() {
  fault.reset();
  {
    const std::lock_guard lock(given_up_mutex);
    given_up.reset();
  }
  has_fault.store(false, std::memory_order_release);
}

}  // namespace bm::hcq
