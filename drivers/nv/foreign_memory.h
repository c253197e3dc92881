#pragma once
// Host memory of other devices, registered with the GPU for as long as it stays the same memory.

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "drivers/nv/gpu.h"
#include "runtime/base/result.h"

namespace bm::nv {

/// True when every page of the range was marked by mark_pages() and not mapped anew since.
bool are_pages_marked(const void* begin, uint64_t bytes);
/// Marks the pages of a range: they are left out of core dumps, which nobody else asks for, and
/// which a new mapping at the same address does not inherit. Errors: kIo.
Status mark_pages(void* begin, uint64_t bytes);

/// A registration pins pages. When their owner frees them and others appear at the same address,
/// the GPU would go on with the old ones: so it is looked whether they are the same before an old
/// registration is used again. Thread: under the GPU's mutex.
class ForeignMemory {
 public:
  /// Address on the GPU of `size` bytes at `host`. Errors: what registering returns; kUnsupported
  /// where the process cannot see its own mappings.
  Result<uint64_t> map(Gpu& gpu, std::byte* host, uint64_t size);
  void clear();

 private:
  /// Work in flight when it was replaced may still use it.
  struct Stale {
    Allocation memory;
    std::vector<uint64_t> fences;  ///< of each lane
  };
  static bool is_free(const Gpu& gpu, const Stale& stale);

  std::map<std::pair<std::byte*, uint64_t>, Allocation> known_;
  std::vector<Stale> stale_;
};

}  // namespace bm::nv
