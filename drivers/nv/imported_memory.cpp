#include "drivers/nv/imported_memory.h"

#include <algorithm>

#include "drivers/transport/process_pages.h"

namespace bm::nv {

bool ImportedMemory::is_free(const Gpu& gpu, const Stale& stale) {
  for (size_t ring = 0; ring < stale.fences.size() && ring < gpu.rings.size(); ++ring)
    if (!gpu.rings[ring]->has_passed(stale.fences[ring])) return false;
  return true;
}

Result<uint64_t> ImportedMemory::map(Gpu& gpu, std::byte* host, uint64_t size) {
  std::erase_if(stale_, [&](const Stale& stale) { return is_free(gpu, stale); });
  const auto known = known_.find({host, size});
  if (known != known_.end()) {
    if (are_pages_marked(host, size)) return known->second.va();
    Stale stale;
    for (const auto& ring : gpu.rings) stale.fences.push_back(BM_TRY(ring->submit({})));
    stale.memory = std::move(known->second);
    known_.erase(known);
    stale_.push_back(std::move(stale));
  }
  // The mark comes first: pages that change hands in between are found unmarked next time.
  BM_TRY(mark_pages(host, size));
  if (!are_pages_marked(host, size))
    return fail(
        Code::kUnsupported,
        "memory of another device: /proc/self/smaps does not tell whether it is still there");
  Allocation allocation = BM_TRY(gpu.pool.wrap(host, size));
  const uint64_t va = allocation.va();
  known_.emplace(std::pair(host, size), std::move(allocation));
  return va;
}

void ImportedMemory::clear() {
  known_.clear();
  stale_.clear();
}

}  // namespace bm::nv
