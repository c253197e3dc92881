#include "tensor/arena_pool.h"

#include <algorithm>

namespace bm {

Result<runtime::Buffer> ArenaPool::take(runtime::Device& device, uint64_t bytes) {
  const std::lock_guard guard(mutex_);
  std::erase_if(blocks_, [](const Block& b) { return b.storage.expired(); });
  runtime::StoragePtr best;
  uint64_t best_size = 0;
  for (const Block& b : blocks_) {
    if (b.device != &device || b.size < bytes || (best && b.size >= best_size)) continue;
    if (runtime::StoragePtr storage = b.storage.lock()) {
      best = std::move(storage);
      best_size = b.size;
    }
  }
  if (best) return runtime::Buffer{std::move(best), 0, best_size};
  runtime::Buffer fresh = BM_TRY(runtime::allocate(device, {.size = bytes}));
  blocks_.push_back({&device, fresh.storage, fresh.size});
  return fresh;
}

uint64_t ArenaPool::bytes() const {
  const std::lock_guard guard(mutex_);
  uint64_t sum = 0;
  for (const Block& b : blocks_)
    if (!b.storage.expired()) sum += b.size;
  return sum;
}

}  // namespace bm
