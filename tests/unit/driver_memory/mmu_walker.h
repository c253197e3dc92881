#pragma once
// What an MMU finds in page tables: written from the vendors' and Linux' descriptions of the bits,
// without the product's rows, so that both can only agree by being right. Reserved bits that are
// set, tables that were given back and words nobody wrote are errors.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "drivers/memory/page_table.h"

namespace bm::memory::test {

/// Memory of a card, filled with garbage, that knows what is allocated and counts its writes.
class FakeTableMemory final : public TableMemory {
 public:
  Aperture aperture() const override { return where; }
  Result<uint64_t> allocate(uint64_t bytes, uint64_t alignment) override;
  void free(uint64_t address, uint64_t bytes) override;
  Status write(uint64_t address, std::span<const uint64_t> words) override;
  /// Nothing where `address` is in no live table.
  std::optional<uint64_t> read(uint64_t address) const;

  Aperture where = Aperture::kVideo;
  int allocations_left = -1;  ///< -1: any number
  int writes_left = -1;
  uint64_t writes = 0;
  std::map<uint64_t, std::vector<uint64_t>> live;  ///< tables by address
  std::vector<std::string> misuses;

 private:
  uint64_t next_ = 0x100000;
};

enum class Mmu { kGfx11, kGfx12, kNvV2, kNvV3 };

struct Translation {
  uint64_t address = 0;  ///< of the byte asked for
  Aperture aperture = Aperture::kVideo;
  bool can_write = false, can_execute = false, is_uncached = false, is_privileged = false;
  uint32_t kind = 0, peer = 0;
  uint64_t page_bytes = 0;
  uint64_t fragment_bytes = 0;  ///< at least a page
};

struct Walk {
  std::optional<Translation> translation;
  std::string error;  ///< what a strict MMU objects to
};

Walk walk(Mmu mmu, const FakeTableMemory& memory, uint64_t root, uint64_t va);

}  // namespace bm::memory::test
