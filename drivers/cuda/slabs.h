#pragma once
// Small allocations as parts of big ones: the driver's own take long and free with a pause of the
// whole GPU.

#include <cstdint>
#include <map>
#include <mutex>

#include "drivers/cuda/context.h"
#include "runtime/base/result.h"
#include "runtime/base/tlsf.h"

namespace bm::cuda {

enum class Backing : uint8_t {
  kVideo,   ///< cuMemAlloc
  kPinned,  ///< cuMemHostAlloc: host memory both sides use
};

/// One allocation. `host` is null for video memory.
struct Piece {
  CuDevicePtr va = 0;
  std::byte* host = nullptr;
  uint64_t size = 0;  ///< bytes, as asked for
};

/// Thread: safe. The context is current in every call.
class Slabs {
 public:
  Slabs(const Context& context, Backing backing) : context_(context), backing_(backing) {}
  ~Slabs();
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  /// 256-byte aligned. Errors: kOutOfMemory with the numbers the driver tells.
  Result<Piece> allocate(uint64_t bytes);
  /// Never waits: while work is in flight the driver gets it back later.
  void free(const Piece& piece);
  /// Bytes held from the driver.
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  struct Slab {
    Piece piece;
    Tlsf ranges;  ///< offsets
  };
  uint64_t slab_bytes() const;
  Result<Piece> from_driver(uint64_t bytes);
  void to_driver(const Piece& piece);
  void free_empty(const Slab* but);

  const Context& context_;
  const Backing backing_;
  std::mutex mutex_;
  std::map<CuDevicePtr, Slab> slabs_;
  std::atomic<uint64_t> held_{0};
};

}  // namespace bm::cuda
