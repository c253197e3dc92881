#include "runtime/pool.h"

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::runtime {

uint64_t Pool::chunk_bytes(uint64_t size) const {
  if (size <= kSmallLimit) return kSmallChunk;
  const uint64_t chunk = std::clamp(align_up(reserved_ / 4, kSmallChunk), kSmallChunk, kLargeChunk);
  // A part of a block's size that is left over at the end holds no other of its kind.
  return size > chunk / 8 ? std::max<uint64_t>(chunk / size, 1) * size : chunk;
}

std::optional<Block> Pool::take(uint64_t size) {
  for (const std::unique_ptr<Chunk>& chunk : chunks_for(size)) {
    const Tlsf::Stats& stats = chunk->ranges->stats();
    if (stats.capacity - stats.used < size) continue;
    if (const std::optional<uint64_t> offset = chunk->ranges->try_allocate(size))
      return Block{chunk.get(), *offset, size};
  }
  return std::nullopt;
}

Block Pool::take_from(std::unique_ptr<hal::Buffer> memory, uint64_t size) {
  const uint64_t bytes = memory->size();
  Result<Tlsf> ranges = Tlsf::create(0, bytes, kGranule);
  BM_CHECK(ranges.has_value());
  auto chunk = std::make_unique<Chunk>(Chunk{std::move(memory), std::move(*ranges)});
  const std::optional<uint64_t> offset = chunk->ranges->try_allocate(size);
  BM_CHECK(offset.has_value());
  const Block block{chunk.get(), *offset, size};
  reserved_ += bytes;
  chunks_for(size).push_back(std::move(chunk));
  return block;
}

Status Pool::give_back(const Block& block) {
  for (const Chunks& chunks : chunks_)
    if (std::any_of(chunks.begin(), chunks.end(),
                    [&](const auto& chunk) { return chunk.get() == block.chunk; }))
      return block.chunk->ranges->free(block.offset);
  return fail(Code::kInvalidArgument, "free of a block that belongs to no chunk of this pool");
}

uint64_t Pool::release_idle(uint64_t wanted) {
  uint64_t released = 0;
  for (Chunks& chunks : chunks_)
    std::erase_if(chunks, [&](const std::unique_ptr<Chunk>& chunk) {
      if (released >= wanted || !chunk->ranges->is_empty()) return false;
      released += chunk->memory->size();
      return true;
    });
  reserved_ -= released;
  return released;
}

uint64_t Pool::free_bytes() const {
  uint64_t bytes = 0;
  for (const Chunk* chunk : chunks())
    bytes += chunk->ranges->stats().capacity - chunk->ranges->stats().used;
  return bytes;
}

uint64_t Pool::largest_free() const {
  uint64_t largest = 0;
  for (const Chunk* chunk : chunks()) largest = std::max(largest, chunk->ranges->largest_free());
  return largest;
}

std::vector<const Chunk*> Pool::chunks() const {
  std::vector<const Chunk*> all;
  for (const Chunks& chunks : chunks_)
    for (const std::unique_ptr<Chunk>& chunk : chunks) all.push_back(chunk.get());
  return all;
}

}  // namespace bm::runtime
