#include "runtime/signal_pool.h"

#include <atomic>
#include <utility>

#include "runtime/base/check.h"

namespace bm::runtime {
namespace {

std::atomic_ref<uint64_t> word(std::byte* host) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(host));
}

}  // namespace

SignalPool::SignalPool(hal::Device& device, uint64_t page_bytes)
    : device_(device), page_bytes_(page_bytes) {
  BM_CHECK(page_bytes >= kSignalBytes && page_bytes % kSignalBytes == 0);
}

SignalPool::Signal::~Signal() {
  if (pool_ != nullptr) pool_->give_back({va_, host_, last_use_});
}

void SignalPool::Signal::swap(Signal& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(va_, other.va_);
  std::swap(host_, other.host_);
  std::swap(last_use_, other.last_use_);
}

uint64_t SignalPool::Signal::value() const { return word(host_).load(std::memory_order_acquire); }
void SignalPool::Signal::set_value(uint64_t value) {
  word(host_).store(value, std::memory_order_release);
}
uint64_t SignalPool::Signal::timestamp() const {
  return word(host_ + 8).load(std::memory_order_acquire);
}

Result<SignalPool::Signal> SignalPool::allocate() {
  const std::lock_guard lock(lock_);
  if (free_.empty()) collect();
  if (free_.empty()) BM_TRY(add_page());
  const Slot slot = free_.back();
  free_.pop_back();
  word(slot.host).store(0, std::memory_order_release);
  word(slot.host + 8).store(0, std::memory_order_release);
  Signal signal;
  signal.pool_ = this;
  signal.va_ = slot.va;
  signal.host_ = slot.host;
  return signal;
}

Status SignalPool::add_page() {
  std::unique_ptr<hal::Buffer> page = BM_TRY(device_.allocate({.size = page_bytes_,
                                                               .host_visible = true,
                                                               .host_memory = true,
                                                               .uncached = true,
                                                               .zero = true}));
  if (page->host() == nullptr)
    return fail(Code::kUnsupported, "the device has no memory shared with the CPU");
  // Last slot first, so that slots are handed out in address order.
  for (uint64_t at = page_bytes_; at >= kSignalBytes; at -= kSignalBytes)
    free_.push_back(
        {hal::offset(page->va(), at - kSignalBytes), page->host() + at - kSignalBytes, {}});
  pages_.push_back(std::move(page));
  return {};
}

void SignalPool::give_back(const Slot& slot) {
  const std::lock_guard lock(lock_);
  (reached(slot.last_use) ? free_ : in_flight_).push_back(slot);
}

void SignalPool::collect() {
  std::erase_if(in_flight_, [this](const Slot& slot) {
    if (!reached(slot.last_use)) return false;
    free_.push_back(slot);
    return true;
  });
}

size_t SignalPool::capacity() const {
  const std::lock_guard lock(lock_);
  return pages_.size() * (page_bytes_ / kSignalBytes);
}

size_t SignalPool::available() const {
  const std::lock_guard lock(lock_);
  return free_.size();
}

}  // namespace bm::runtime
