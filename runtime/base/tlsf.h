#pragma once
// Two-level segregated fit over an address range, without memory behind it.

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/result.h"

namespace bm {

/// Range allocator: constant-time search by two bitmaps, adjacent ranges merged on free, all
/// bookkeeping in a side table so the range may be device memory. Not thread-safe.
///
/// Method: Masmano, Ripoll, Crespo, Real, "TLSF: a new dynamic memory allocator for real-time
/// systems", ECRTS 2004; plus an exhaustive last step, so that an allocation fails only when no
/// free block fits.
class Tlsf {
 public:
  struct Stats {
    uint64_t capacity = 0;     ///< bytes
    uint64_t used = 0;         ///< bytes handed out, rounded to granules
    uint64_t allocations = 0;  ///< live blocks
    uint64_t free_blocks = 0;
  };
  struct Range {
    uint64_t address = 0, size = 0;
    bool is_free = false;
    bool operator==(const Range&) const = default;
  };

  /// Manages [base, base + size). Sizes are rounded up to `granule`, a power of two; a tail of the
  /// range smaller than that is left unused.
  /// Errors: kInvalidArgument: base not a multiple of granule, or the range passes 2^64.
  static Result<Tlsf> create(uint64_t base, uint64_t size, uint64_t granule = 256);

  /// Address of `size` free bytes, a multiple of `alignment` (a power of two).
  /// Errors: kInvalidArgument (size 0, bad alignment); kOutOfMemory with the numbers.
  Result<uint64_t> allocate(uint64_t size, uint64_t alignment = 1);
  /// The same without an error text, for callers that try several ranges.
  std::optional<uint64_t> try_allocate(uint64_t size, uint64_t alignment = 1);

  /// Errors: kInvalidArgument for an address that is not the start of a live block: freed twice,
  /// inside a block, or never handed out. Nothing changes then.
  Status free(uint64_t address);

  /// Rounded size of the live block at `address`, or nothing.
  std::optional<uint64_t> size_of(uint64_t address) const;
  /// Bytes of the largest free block.
  uint64_t largest_free() const;
  bool is_empty() const { return stats_.allocations == 0; }
  const Stats& stats() const { return stats_; }
  /// Every block in address order.
  std::vector<Range> ranges() const;

 private:
  using Index = uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  // Sizes and starts in granules. Ranges adjacent by address form one list, free blocks of a class
  // another.
  struct Block {
    uint64_t start = 0, size = 0;
    Index before = kNone, after = kNone;
    Index previous_free = kNone, next_free = kNone;
    bool is_free = false;
  };
  struct Fit {
    Index block = kNone;
    uint64_t start = 0;
  };

  Tlsf(uint64_t base, uint64_t granules, uint32_t granule_shift);

  Fit find(uint64_t granules, uint64_t alignment) const;
  std::optional<Fit> fit(Index index, uint64_t granules, uint64_t alignment) const;
  Index first_in_class_from(uint32_t size_class) const;
  void take(Fit fit, uint64_t granules);
  void insert_free(Index index);
  void remove_free(Index index);
  Index new_block(const Block& block);
  void merge_with_after(Index index);
  Index split_after(Index index, uint64_t granules);

  size_t live_slot(uint64_t start) const;
  void live_insert(Index index);
  void live_erase(size_t slot);
  void live_grow();

  uint64_t base_ = 0;
  uint32_t shift_ = 0;
  Stats stats_;
  std::vector<Block> blocks_;
  std::vector<Index> spare_;            ///< unused entries of blocks_
  uint64_t used_rows_ = 0;              ///< bit r: row r of the class table has a free block
  std::vector<uint32_t> used_columns_;  ///< per row: bit c: class has a free block
  std::vector<Index> heads_;            ///< per class: first free block
  std::vector<Index> live_;             ///< open-addressed table, start → live block
};

}  // namespace bm
