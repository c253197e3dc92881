#include "drivers/hcq/ring.h"

#include <chrono>
#include <thread>

#include "runtime/base/bits.h"
#include "runtime/base/env.h"

namespace bm::hcq {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kLargestPart = 8;  ///< of the command space; larger pieces get their own memory
constexpr uint32_t kSpins = 2000;
constexpr auto kBetweenQuestions = 10ms;  ///< to the kernel driver: each is a system call

}  // namespace

Ring::Ring(MemoryPool& pool, const CommandOptions& options)
    : pool_(pool), options_(options), marks_(options.marks) {}

Status Ring::open(uint64_t fence_bytes, MemoryDomain fence_domain) {
  if (options_.bytes != 0) commands_ = BM_TRY(pool_.allocate(options_.bytes, options_.domain));
  fence_ = BM_TRY(pool_.allocate(fence_bytes, fence_domain));
  for (uint64_t at = 0; at < fence_bytes; at += sizeof(uint64_t))
    fence_.view().store_release<uint64_t>(at, 0);
  return {};
}

Status Ring::wait(const void* callable, bool (*is_done)(const void*), const char* what) const {
  const auto limit = std::chrono::milliseconds(settings().wait_timeout_ms);
  const auto start = std::chrono::steady_clock::now();
  uint32_t asked = 0;
  for (uint32_t polls = 0;; ++polls) {
    if (is_done(callable)) return {};
    if (options_.is_given_up != nullptr && options_.is_given_up->load(std::memory_order_acquire))
      return fail(Code::kDeviceFault, "the GPU was given up while {}", what);
    if (const Status reached = fence_.view().status(); !reached)
      return fail(Code::kDeviceLost, "{} while {}", reached.error().message, what);
    if (polls < kSpins) {
      if (const char* cause = failure(false))
        return fail(Code::kDeviceFault, "{} while {}", cause, what);
      relax();
      continue;
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    const bool may_ask = waited > asked * kBetweenQuestions;
    if (may_ask) ++asked;
    if (const char* cause = failure(may_ask))
      return fail(Code::kDeviceFault, "{} while {}", cause, what);
    // This thread may have slept through the end: look once more.
    if (waited >= limit && is_done(callable)) return {};
    if (waited >= limit)
      return fail(Code::kTimeout, "no progress for {} ms while {} ({})", limit.count(), what,
                  state());
    std::this_thread::sleep_for(20us);
  }
}

void Ring::collect() {
  const uint64_t done = passed();
  while (num_marks_ > 0 && marks_[first_mark_].fence <= done) {
    begin_ = marks_[first_mark_].position;
    first_mark_ = (first_mark_ + 1) % marks_.size();
    --num_marks_;
  }
  std::erase_if(oversized_, [&](const Oversized& piece) { return piece.fence <= done; });
}

void Ring::forget_space() {
  begin_ = next_;
  num_marks_ = 0;
  oversized_.clear();
  has_oversized_ = false;
}

bool Ring::has_space(uint64_t bytes) {
  bytes = align_up(bytes, MemoryPool::kAlignment);
  if (bytes > options_.bytes / kLargestPart) return true;
  // With what is skipped at the end, at most twice as much.
  if (!fits(2 * bytes)) collect();
  return fits(2 * bytes);
}

Result<CommandSpace> Ring::reserve(uint64_t bytes) {
  bytes = align_up(bytes, MemoryPool::kAlignment);
  const uint64_t size = options_.bytes;
  if (bytes > size / kLargestPart) return reserve_oversized(bytes);
  const uint64_t left = size - next_ % size;
  const uint64_t skipped = left < bytes ? left : 0;
  if (!fits(skipped + bytes)) collect();
  if (!fits(skipped + bytes)) {
    BM_TRY(wait_until(
        [&] {
          collect();
          return fits(skipped + bytes);
        },
        "all command space is in use"));
  }
  next_ += skipped;
  const uint64_t at = next_ % size;
  next_ += bytes;
  return CommandSpace{commands_.va() + at, commands_.view().slice(at, bytes)};
}

Result<CommandSpace> Ring::reserve_oversized(uint64_t bytes) {
  collect();
  Allocation memory = BM_TRY(pool_.allocate(bytes, options_.domain));
  const CommandSpace space{memory.va(), memory.view()};
  oversized_.push_back({std::move(memory), fence_value_ + 1});
  has_oversized_ = true;
  return space;
}

}  // namespace bm::hcq
