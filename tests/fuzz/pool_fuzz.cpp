// Random programs against Pool: blocks stay inside their chunk, never overlap, and all memory comes
// back.
#include <cstdlib>
#include <map>
#include <vector>

#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"
#include "runtime/base/check.h"
#include "runtime/pool.h"

namespace {

using bm::runtime::Block;
using bm::runtime::Pool;

class Range final : public bm::hal::Buffer {
 public:
  Range(uint64_t va, uint64_t size) : Buffer({.size = size}, bm::hal::GpuVa{va}, nullptr) {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bm::ByteReader input(std::as_bytes(std::span(data, size)));
  Pool pool;
  std::map<uint64_t, Block> live;  // by address
  uint64_t next_va = 1ull << 32;
  while (input.remaining() != 0) {
    const uint8_t what = *input.read<uint8_t>();
    if (what % 8 == 0) {
      const uint64_t before = pool.reserved();
      BM_CHECK(pool.release_idle(input.read<uint32_t>().value_or(0)) == before - pool.reserved());
    } else if (what % 8 < 4 && !live.empty()) {
      auto victim = live.lower_bound((1ull << 32) + input.read<uint32_t>().value_or(0));
      if (victim == live.end()) victim = live.begin();
      BM_CHECK(pool.give_back(victim->second).has_value());
      BM_CHECK(!pool.give_back(victim->second).has_value());
      live.erase(victim);
    } else {
      const uint64_t bytes = bm::align_up(
          (input.read<uint16_t>().value_or(0) + uint64_t{1}) << (what >> 4), Pool::kGranule);
      std::optional<Block> block = pool.take(bytes);
      if (!block) {
        const uint64_t chunk = what & 8 ? bytes : pool.chunk_bytes(bytes);
        block = pool.take_from(std::make_unique<Range>(next_va, chunk), bytes);
        next_va += chunk;
      }
      const uint64_t va = bm::hal::raw(block->va());
      const auto after = live.lower_bound(va);
      BM_CHECK(va % Pool::kGranule == 0 && block->offset + bytes <= block->chunk->memory->size());
      BM_CHECK(after == live.end() || va + bytes <= after->first);
      BM_CHECK(after == live.begin() ||
               std::prev(after)->first + std::prev(after)->second.size <= va);
      live[va] = *block;
    }
  }
  for (const auto& [va, block] : live) BM_CHECK(pool.give_back(block).has_value());
  BM_CHECK(pool.free_bytes() == pool.reserved());
  pool.release_idle();
  BM_CHECK(pool.reserved() == 0 && pool.num_chunks() == 0);
  return 0;
}
