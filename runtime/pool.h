#pragma once
// Sub-allocation of device memory: chunks from the device, ranges inside them by Tlsf.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/tlsf.h"
#include "runtime/hal/device.h"

namespace bm::runtime {

/// One allocation of the device. `ranges` is absent when a single block takes all of it.
struct Chunk {
  std::unique_ptr<hal::Buffer> memory;
  std::optional<Tlsf> ranges;
};

/// Bytes [offset, offset + size) of a chunk.
struct Block {
  Chunk* chunk = nullptr;
  uint64_t offset = 0, size = 0;
  hal::GpuVa va() const { return hal::offset(chunk->memory->va(), offset); }
  std::byte* host() const {
    return chunk->memory->host() ? chunk->memory->host() + offset : nullptr;
  }
};

/// Chunks of one kind of memory. Small and large blocks live in different chunks, so that one
/// small block cannot keep a large chunk from being given back. Offsets are multiples of the
/// granule: blocks are aligned as the device aligns whole allocations, up to 256 bytes.
/// Not thread-safe: the allocator's lock covers it.
class Pool {
 public:
  static constexpr uint64_t kGranule = 256;
  static constexpr uint64_t kSmallChunk = 2ull << 20;
  static constexpr uint64_t kLargeChunk = 32ull << 20;  ///< most that a chunk of several has
  static constexpr uint64_t kSmallLimit = 1ull << 20;   ///< larger blocks go to large chunks

  /// Bytes to ask the device for when `size` fits in no chunk: about a quarter of what the pool
  /// has, and for large blocks a multiple of their size, so that what is reserved stays near what
  /// is used. A block of more than kLargeChunk gets a chunk of its own.
  uint64_t chunk_bytes(uint64_t size) const;

  /// A block of `size` bytes (a multiple of kGranule, > 0) out of the chunks at hand.
  std::optional<Block> take(uint64_t size);
  /// The same out of a new chunk that has at least `size` bytes.
  Block take_from(std::unique_ptr<hal::Buffer> memory, uint64_t size);
  /// Errors: kInvalidArgument when `block` is not live here (freed twice, foreign).
  Status give_back(const Block& block);

  /// Frees chunks without live blocks until at least `wanted` bytes are freed; returns the bytes.
  uint64_t release_idle(uint64_t wanted = UINT64_MAX);

  uint64_t reserved() const { return reserved_; }
  /// Bytes in free ranges, and in the largest of them.
  uint64_t free_bytes() const;
  uint64_t largest_free() const;
  size_t num_chunks() const { return chunks_[0].size() + chunks_[1].size(); }
  /// Chunks in no particular order, small ones first.
  std::vector<const Chunk*> chunks() const;

 private:
  using Chunks = std::vector<std::unique_ptr<Chunk>>;
  Chunks& chunks_for(uint64_t size) { return chunks_[size > kSmallLimit ? 1 : 0]; }

  Chunks chunks_[2];  ///< small, large
  uint64_t reserved_ = 0;
};

}  // namespace bm::runtime
