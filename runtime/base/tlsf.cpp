#include "runtime/base/tlsf.h"

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm {
namespace {

constexpr uint32_t kColumnBits = 5;  // 32 classes per power of two: at most 3 % rounding
constexpr uint32_t kColumns = 1u << kColumnBits;

/// Class that holds blocks of `granules` (>= 1). Rows 0: exact sizes; row r: [2^(r+4), 2^(r+5)).
uint32_t class_of(uint64_t granules) {
  if (granules < kColumns) return static_cast<uint32_t>(granules);
  const uint32_t log = floor_log2(granules);
  const uint32_t column = static_cast<uint32_t>(granules >> (log - kColumnBits)) & (kColumns - 1);
  return (log - kColumnBits + 1) * kColumns + column;
}

/// First class whose every block has at least `granules`.
uint32_t class_at_least(uint64_t granules) {
  if (granules < kColumns) return static_cast<uint32_t>(granules);
  const uint64_t step = uint64_t{1} << (floor_log2(granules) - kColumnBits);
  const std::optional<uint64_t> rounded = checked_add(granules, step - 1);
  return rounded ? class_of(*rounded) : UINT32_MAX;
}

uint64_t hash(uint64_t start) { return (start * 0x9e3779b97f4a7c15u) >> 20; }

}  // namespace

Result<Tlsf> Tlsf::create(uint64_t base, uint64_t size, uint64_t granule) {
  if (!is_power_of_two(granule))
    return fail(Code::kInvalidArgument, "granule {} is not a power of two", granule);
  if (!is_aligned(base, granule))
    return fail(Code::kInvalidArgument, "base {:#x} is not a multiple of {}", base, granule);
  // A range may end exactly at 2^64.
  if (size != 0 && base + (size - 1) < base)
    return fail(Code::kInvalidArgument, "{} bytes from {:#x} pass the end of the address space",
                size, base);
  const uint32_t shift = floor_log2(granule);
  return Tlsf(base, size >> shift, shift);
}

Tlsf::Tlsf(uint64_t base, uint64_t granules, uint32_t granule_shift)
    : base_(base), shift_(granule_shift), live_(16, kNone) {
  stats_.capacity = granules << granule_shift;
  if (granules == 0) return;
  const uint32_t rows = class_of(granules) / kColumns + 1;
  used_columns_.resize(rows);
  heads_.assign(size_t{rows} * kColumns, kNone);
  insert_free(new_block({.start = 0, .size = granules}));
}

Result<uint64_t> Tlsf::allocate(uint64_t size, uint64_t alignment) {
  if (size == 0 || !is_power_of_two(alignment))
    return fail(Code::kInvalidArgument, "cannot place {} bytes aligned to {}", size, alignment);
  if (const std::optional<uint64_t> address = try_allocate(size, alignment)) return *address;
  return fail(Code::kOutOfMemory,
              "no room for {} bytes aligned to {}: {} of {} used, largest gap {}", size, alignment,
              stats_.used, stats_.capacity, largest_free());
}

std::optional<uint64_t> Tlsf::try_allocate(uint64_t size, uint64_t alignment) {
  if (size == 0 || size > stats_.capacity || !is_power_of_two(alignment)) return std::nullopt;
  const uint64_t granules = ceil_div(size, uint64_t{1} << shift_);
  const Fit found = find(granules, alignment);
  if (found.block == kNone) return std::nullopt;
  take(found, granules);
  return base_ + (found.start << shift_);
}

/// Where `granules` would start inside free block `index`, if they fit.
std::optional<Tlsf::Fit> Tlsf::fit(Index index, uint64_t granules, uint64_t alignment) const {
  const Block& block = blocks_[index];
  const std::optional<uint64_t> aligned =
      checked_align_up(base_ + (block.start << shift_), alignment);
  if (!aligned) return std::nullopt;
  const uint64_t start = (*aligned - base_) >> shift_;
  const uint64_t skipped = start - block.start;
  if (block.size < granules || block.size - granules < skipped) return std::nullopt;
  return Fit{index, start};
}

Tlsf::Fit Tlsf::find(uint64_t granules, uint64_t alignment) const {
  const uint64_t granule = uint64_t{1} << shift_;
  const uint64_t slack = alignment > granule ? (alignment >> shift_) - 1 : 0;
  // 1: the newest block of the exact class, which reuses what was freed last.
  const uint32_t least = class_of(granules);
  if (least < heads_.size() && heads_[least] != kNone)
    if (const std::optional<Fit> found = fit(heads_[least], granules, alignment)) return *found;
  // 2: any block of a class that is large enough whatever its start.
  const std::optional<uint64_t> padded = checked_add(granules, slack);
  if (padded) {
    const Index index = first_in_class_from(class_at_least(*padded));
    if (index != kNone)
      if (const std::optional<Fit> found = fit(index, granules, alignment)) return *found;
  }
  // 3: nearly full: look at every block that could still do.
  for (uint32_t c = least; c < heads_.size(); ++c)
    for (Index index = heads_[c]; index != kNone; index = blocks_[index].next_free)
      if (const std::optional<Fit> found = fit(index, granules, alignment)) return *found;
  return {};
}

Tlsf::Index Tlsf::first_in_class_from(uint32_t size_class) const {
  if (size_class >= heads_.size()) return kNone;
  const uint32_t row = size_class / kColumns;
  const uint32_t columns = used_columns_[row] & (UINT32_MAX << (size_class % kColumns));
  if (columns != 0)
    return heads_[row * kColumns + static_cast<uint32_t>(std::countr_zero(columns))];
  const uint64_t rows = row >= 63 ? 0 : used_rows_ & (UINT64_MAX << (row + 1));
  if (rows == 0) return kNone;
  const auto next = static_cast<uint32_t>(std::countr_zero(rows));
  return heads_[next * kColumns + static_cast<uint32_t>(std::countr_zero(used_columns_[next]))];
}

void Tlsf::take(Fit fit, uint64_t granules) {
  Index index = fit.block;
  remove_free(index);
  const uint64_t skipped = fit.start - blocks_[index].start;
  if (skipped != 0) {
    const Index rest = split_after(index, skipped);
    insert_free(index);
    index = rest;
  }
  if (blocks_[index].size > granules) insert_free(split_after(index, granules));
  live_insert(index);
  stats_.used += granules << shift_;
  ++stats_.allocations;
}

Status Tlsf::free(uint64_t address) {
  const uint64_t offset = address - base_;
  const size_t slot = live_slot(offset >> shift_);
  if (address < base_ || !is_aligned(offset, uint64_t{1} << shift_) || live_[slot] == kNone)
    return fail(Code::kInvalidArgument, "free of {:#x}, which is not the start of a live block",
                address);
  Index index = live_[slot];
  live_erase(slot);
  stats_.used -= blocks_[index].size << shift_;
  --stats_.allocations;
  const Index after = blocks_[index].after;
  if (after != kNone && blocks_[after].is_free) {
    remove_free(after);
    merge_with_after(index);
  }
  const Index before = blocks_[index].before;
  if (before != kNone && blocks_[before].is_free) {
    remove_free(before);
    merge_with_after(before);
    index = before;
  }
  insert_free(index);
  return {};
}

std::optional<uint64_t> Tlsf::size_of(uint64_t address) const {
  const uint64_t offset = address - base_;
  const Index index = live_[live_slot(offset >> shift_)];
  if (address < base_ || !is_aligned(offset, uint64_t{1} << shift_) || index == kNone)
    return std::nullopt;
  return blocks_[index].size << shift_;
}

uint64_t Tlsf::largest_free() const {
  if (used_rows_ == 0) return 0;
  const uint32_t row = floor_log2(used_rows_);
  const uint32_t size_class = row * kColumns + floor_log2(used_columns_[row]);
  uint64_t largest = 0;
  for (Index index = heads_[size_class]; index != kNone; index = blocks_[index].next_free)
    largest = std::max(largest, blocks_[index].size);
  return largest << shift_;
}

std::vector<Tlsf::Range> Tlsf::ranges() const {
  std::vector<Range> result;
  // Block 0 always starts the range: merges keep the lower block's entry.
  for (Index index = blocks_.empty() ? kNone : 0; index != kNone; index = blocks_[index].after) {
    const Block& block = blocks_[index];
    result.push_back({base_ + (block.start << shift_), block.size << shift_, block.is_free});
  }
  return result;
}

void Tlsf::insert_free(Index index) {
  Block& block = blocks_[index];
  const uint32_t size_class = class_of(block.size);
  block.is_free = true;
  block.previous_free = kNone;
  block.next_free = heads_[size_class];
  if (block.next_free != kNone) blocks_[block.next_free].previous_free = index;
  heads_[size_class] = index;
  used_columns_[size_class / kColumns] |= 1u << (size_class % kColumns);
  used_rows_ |= uint64_t{1} << (size_class / kColumns);
  ++stats_.free_blocks;
}

void Tlsf::remove_free(Index index) {
  Block& block = blocks_[index];
  const uint32_t size_class = class_of(block.size);
  if (block.next_free != kNone) blocks_[block.next_free].previous_free = block.previous_free;
  if (block.previous_free != kNone)
    blocks_[block.previous_free].next_free = block.next_free;
  else
    heads_[size_class] = block.next_free;
  if (heads_[size_class] == kNone) {
    uint32_t& columns = used_columns_[size_class / kColumns];
    columns &= ~(1u << (size_class % kColumns));
    if (columns == 0) used_rows_ &= ~(uint64_t{1} << (size_class / kColumns));
  }
  block.is_free = false;
  --stats_.free_blocks;
}

Tlsf::Index Tlsf::new_block(const Block& block) {
  if (!spare_.empty()) {
    const Index index = spare_.back();
    spare_.pop_back();
    blocks_[index] = block;
    return index;
  }
  BM_CHECK(blocks_.size() < kNone);
  blocks_.push_back(block);
  return static_cast<Index>(blocks_.size() - 1);
}

/// Cuts block `index` to `granules`; returns the new block that holds the rest.
Tlsf::Index Tlsf::split_after(Index index, uint64_t granules) {
  const Block whole = blocks_[index];
  const Index rest = new_block({.start = whole.start + granules,
                                .size = whole.size - granules,
                                .before = index,
                                .after = whole.after});
  if (whole.after != kNone) blocks_[whole.after].before = rest;
  blocks_[index].size = granules;
  blocks_[index].after = rest;
  return rest;
}

void Tlsf::merge_with_after(Index index) {
  const Index after = blocks_[index].after;
  blocks_[index].size += blocks_[after].size;
  blocks_[index].after = blocks_[after].after;
  if (blocks_[index].after != kNone) blocks_[blocks_[index].after].before = index;
  spare_.push_back(after);
}

/// Slot of the live block that starts at `start`, or the empty slot where it would go.
size_t Tlsf::live_slot(uint64_t start) const {
  const size_t mask = live_.size() - 1;
  size_t slot = static_cast<size_t>(hash(start)) & mask;
  while (live_[slot] != kNone && blocks_[live_[slot]].start != start) slot = (slot + 1) & mask;
  return slot;
}

void Tlsf::live_insert(Index index) {
  // Filled to at most half, so probes stay short.
  if ((stats_.allocations + 1) * 2 > live_.size()) live_grow();
  live_[live_slot(blocks_[index].start)] = index;
}

/// Backward-shift deletion: keeps every probe sequence unbroken without tombstones.
void Tlsf::live_erase(size_t slot) {
  const size_t mask = live_.size() - 1;
  size_t hole = slot;
  for (size_t next = (slot + 1) & mask; live_[next] != kNone; next = (next + 1) & mask) {
    const size_t home = static_cast<size_t>(hash(blocks_[live_[next]].start)) & mask;
    if (((next - home) & mask) >= ((next - hole) & mask)) {
      live_[hole] = live_[next];
      hole = next;
    }
  }
  live_[hole] = kNone;
}

void Tlsf::live_grow() {
  const std::vector<Index> old = std::exchange(live_, std::vector<Index>(live_.size() * 2, kNone));
  for (const Index index : old)
    if (index != kNone) live_[live_slot(blocks_[index].start)] = index;
}

}  // namespace bm
