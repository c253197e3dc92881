#include "runtime/kernarg.h"

#include <utility>

#include "runtime/base/bits.h"

namespace bm::runtime {
namespace {
constexpr uint64_t kBlockAlign = 16;
}

KernargRing::KernargRing(std::unique_ptr<hal::Buffer> memory, Options options)
    : options_(options), memory_(std::move(memory)), segments_(options.segments) {}

Result<std::unique_ptr<KernargRing>> KernargRing::create(hal::Device& device, Options options) {
  auto memory = BM_TRY(device.allocate(
      {.size = options.segment_bytes * options.segments, .host_visible = true, .uncached = true}));
  if (memory->host() == nullptr)
    return fail(Code::kUnsupported, "kernel argument memory is not visible to the host");
  return std::unique_ptr<KernargRing>(new KernargRing(std::move(memory), options));
}

KernargRing::Block::Block(Block&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)),
      segment_(other.segment_),
      va_(other.va_),
      words_(other.words_) {}

KernargRing::Block::~Block() {
  if (ring_ != nullptr) ring_->release(segment_, {});
}

void KernargRing::Block::commit(Point point) {
  std::exchange(ring_, nullptr)->release(segment_, point);
}

Result<KernargRing::Block> KernargRing::reserve(size_t words) {
  const uint64_t bytes = align_up(words * sizeof(uint64_t), kBlockAlign);
  if (bytes > options_.segment_bytes) {
    return fail(Code::kInvalidArgument, "{} bytes of kernel arguments exceed the limit of {}",
                bytes, options_.segment_bytes);
  }
  std::unique_lock lock(mutex_);
  while (segments_[current_].used + bytes > options_.segment_bytes) {
    const size_t next = (current_ + 1) % segments_.size();
    BM_TRY(recycle(lock, next));
  }
  Segment& segment = segments_[current_];
  const uint64_t at = current_ * options_.segment_bytes + segment.used;
  segment.used += bytes;
  ++segment.pending;
  auto* host = reinterpret_cast<uint64_t*>(memory_->host() + at);
  return Block(this, current_, hal::offset(memory_->va(), at), {host, words});
}

/// Makes `segment` current and empty once nobody uses it. Other threads may do the same while we
/// wait, so the caller looks again afterwards.
Status KernargRing::recycle(std::unique_lock<std::mutex>& lock, size_t segment) {
  Segment& next = segments_[segment];
  const size_t seen = current_;
  committed_.wait(lock, [&] { return next.pending == 0 || current_ != seen; });
  if (current_ != seen) return {};
  if (const Point user = next.last_user; !reached(user)) {
    lock.unlock();  // committing and independent reservations must not wait for the device
    Status waited = settle(user);
    lock.lock();
    return waited;
  }
  next = {};
  current_ = segment;
  committed_.notify_all();
  return {};
}

void KernargRing::release(size_t segment, Point point) {
  const std::lock_guard lock(mutex_);
  Segment& s = segments_[segment];
  --s.pending;
  // All Points are of one device's timeline: the largest value is the last user.
  if (point.timeline != nullptr && point.value >= s.last_user.value) s.last_user = point;
  if (s.pending == 0) committed_.notify_all();
}

}  // namespace bm::runtime
