#include "models/kv_cache.h"

#include <algorithm>
#include <numeric>

#include "runtime/allocator.h"
#include "runtime/base/check.h"
#include "runtime/base/env.h"
#include "runtime/base/small_pages.h"
#include "runtime/buffer.h"
#include "runtime/device.h"

namespace bm::models {
namespace {

constexpr int64_t kLargestBlock = 32;
constexpr double kLargestCode = 127;

int64_t block_of(int64_t length) { return std::gcd(length, kLargestBlock); }

Tensor rows_of(const Tensor& t, const SymInt& first, const SymInt& count) {
  std::vector<std::pair<SymInt, SymInt>> ranges{{first, first + count}};
  for (int64_t axis = 1; axis < t.rank(); ++axis) ranges.emplace_back(0, t.size(axis));
  return t.shrink(ranges);
}

/// A cache has room for what may come, and most of it never does.
void come_with_use(const Tensor& t) {
  if (t.device().hal().arch().vendor != hal::Vendor::kCpu) return;
  const runtime::Buffer buffer = t.buffer();
  if (std::byte* const host = buffer.host()) prefer_small_pages({host, buffer.size});
}

/// The first `used` rows of `from` in memory for `capacity`.
Tensor grown(const Tensor& from, int64_t capacity, int64_t used) {
  if (!from.is_valid()) return {};
  Shape shape = from.shape();
  const int64_t old = shape[0].constant();
  shape[0] = capacity;
  Tensor to = Tensor::empty(shape, from.dtype(), from.device().name());
  come_with_use(to);
  if (used == 0) return to;
  runtime::Buffer source = from.buffer(), target = to.buffer();
  source.size = target.size =
      source.size / static_cast<uint64_t>(old) * static_cast<uint64_t>(used);
  unwrap(runtime::copy(target, source));
  return to;
}

}  // namespace

uint64_t free_memory(runtime::Device& device) {
  const hal::MemoryInfo memory = device.hal().memory();
  const uint64_t free = memory.total > memory.used ? memory.total - memory.used : 0;
  const uint64_t cap = settings().memory_cap;
  return cap == 0 ? free : std::min(free, cap - std::min(cap, device.allocator().stats().used));
}

KvRows::KvRows(int64_t capacity, int64_t heads, int64_t length, DType type,
               const std::string& device)
    : numbers_(Tensor::empty({capacity, heads, length}, type, device)) {
  BM_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kI8);
  if (type == DType::kI8)
    scales_ = Tensor::empty({capacity, heads, length / block_of(length)}, DType::kF16, device);
  come_with_use(numbers_);
  if (scales_.is_valid()) come_with_use(scales_);
}

uint64_t KvRows::bytes_per_position(int64_t heads, int64_t length, DType type) {
  const int64_t scales = type == DType::kI8 ? length / block_of(length) * 2 : 0;
  return static_cast<uint64_t>(heads * (length * item_size(type) + scales));
}

int64_t KvRows::block() const { return block_of(numbers_.size(2).constant()); }

void KvRows::store(const SymInt& first, const SymInt& count, const Tensor& x) {
  Tensor to = rows_of(numbers_, first, count);
  if (!scales_.is_valid()) {
    to.assign(x.cast(numbers_.dtype()));
    return;
  }
  const Tensor blocks = x.contiguous().reshape({count, numbers_.size(1), scales_.size(2), block()});
  Tensor scales = rows_of(scales_, first, count);
  const Tensor made = (blocks.abs().max({3}) * (1 / kLargestCode)).cast(DType::kF16).contiguous();
  scales.assign(made);
  const Tensor used = made.cast(DType::kF32).unsqueeze(3);
  // A block whose scale is 0 has numbers that float16 counts as 0.
  const Tensor codes = (used > 0.0).where(blocks / used, 0.0).round();
  to.assign(codes.clip(-kLargestCode, kLargestCode).cast(DType::kI8).reshape(to.shape()));
}

Tensor KvRows::restored(const Tensor& numbers, const Tensor& scales) const {
  const Tensor wide = numbers.cast(DType::kF32);
  if (!scales.is_valid()) return wide;
  const Shape blocks{numbers.size(0), numbers.size(1), scales.size(2), block()};
  return (wide.reshape(blocks) * scales.cast(DType::kF32).unsqueeze(3)).reshape(numbers.shape());
}

Tensor KvRows::load(const SymInt& end) const {
  return restored(rows_of(numbers_, 0, end),
                  scales_.is_valid() ? rows_of(scales_, 0, end) : Tensor());
}

Tensor KvRows::take(const Tensor& index, bool is_copied) const {
  const auto taken = [&](const Tensor& t) {
    if (!t.is_valid()) return t;
    return is_copied ? t.take(index).contiguous() : t.take(index);
  };
  const Tensor numbers = taken(numbers_);
  return restored(numbers, taken(scales_));
}

void KvRows::grow(int64_t capacity, int64_t used) {
  Tensor numbers = grown(numbers_, capacity, used), scales = grown(scales_, capacity, used);
  numbers_ = std::move(numbers);
  scales_ = std::move(scales);
}

}  // namespace bm::models
