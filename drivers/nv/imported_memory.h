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

/// A registration pins pages. When their owner frees them and others appear at the same address,
/// the GPU would go on with the old ones: so it is looked whether they are the same before an old
/// registration is used again. Thread: under the GPU's mutex.
class ImportedMemory {
 public:
  /// Address on the GPU of `size` bytes at `host`. Errors: what registering returns; kUnsupported
  /// where the process cannot see its own mappings.
  Result<uint64_t> map(Gpu& gpu, std::byte* host, uint64_t size);
  void clear();

 private:
  /// Work in flight when it was replaced may still use it.
  struct Stale {
    Allocation memory;
    std::vector<uint64_t> fences;  ///< of each ring
  };
  static bool is_free(const Gpu& gpu, const Stale& stale);

  std::map<std::pair<std::byte*, uint64_t>, Allocation> known_;
  std::vector<Stale> stale_;
};

}  // namespace bm::nv
