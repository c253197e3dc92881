#include "drivers/memory/page_table.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::memory {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint8_t kPageShift = 12;

uint64_t space_bytes(const PageTableFormat& format) { return uint64_t{1} << format.va_bits; }

}  // namespace

// --- Creation and arguments

PageTable::PageTable(const PageTableFormat& format, TableMemory& memory)
    : format_(format), memory_(memory), parents_(format.levels.size(), {0, 0}) {
  for (uint32_t level = 0; level < format.levels.size(); ++level) {
    const PageLevel& row = format.levels[level];
    if (row.has_leaf) by_size_.push_back(level);
    for (uint32_t word = 0; word < row.words; ++word)
      if (row.children[word] >= 0)
        parents_[static_cast<size_t>(row.children[word])] = {level, word};
  }
  std::sort(by_size_.begin(), by_size_.end(), [&format](uint32_t a, uint32_t b) {
    return format.levels[a].shift > format.levels[b].shift;
  });
}

Result<std::unique_ptr<PageTable>> PageTable::create(const PageTableFormat& format,
                                                     TableMemory& memory) {
  std::unique_ptr<PageTable> result(new PageTable(format, memory));
  result->root_ = BM_TRY(result->new_table(0));
  result->tables_ = 1;
  BM_TRY(result->flush(*result->root_, 0, 0, 0));
  return result;
}

PageTable::~PageTable() {
  if (root_ != nullptr) retire(std::move(root_));
  release_retired();
}

Status PageTable::check_range(uint64_t va, uint64_t bytes) const {
  if (bytes == 0 || !is_aligned(va, kPage) || !is_aligned(bytes, kPage) ||
      bytes > space_bytes(format_) || va > space_bytes(format_) - bytes)
    return fail(Code::kInvalidArgument,
                "{:#x} bytes at {:#x} are no pages of the {}-bit space of {}", bytes, va,
                format_.va_bits, format_.name);
  return {};
}

Result<PageTable::Extents> PageTable::extents_of(uint64_t va, std::span<const PhysicalRange> ranges,
                                                 const PageAttributes& attributes) const {
  const uint64_t limit = uint64_t{1}
                         << (attributes.aperture == Aperture::kSystem ? format_.system_bits
                                                                      : format_.video_bits);
  Extents extents;
  uint64_t at = va;
  for (const PhysicalRange& range : ranges) {
    if (range.bytes == 0 || !is_aligned(range.address, kPage) || !is_aligned(range.bytes, kPage) ||
        range.bytes > limit || range.address > limit - range.bytes)
      return fail(Code::kInvalidArgument, "an entry of {} cannot name {:#x} bytes at {:#x}",
                  format_.name, range.bytes, range.address);
    BM_TRY(check_range(at, range.bytes));
    Extent* const last = extents.empty() ? nullptr : &extents.rbegin()->second;
    if (last != nullptr && last->address + last->bytes == range.address)
      last->bytes += range.bytes;
    else
      extents[at] = {range.bytes, range.address, attributes};
    at += range.bytes;
  }
  if (extents.empty()) return fail(Code::kInvalidArgument, "nothing to map at {:#x}", va);
  return extents;
}

// --- The changes

Result<TlbRange> PageTable::map(uint64_t va, std::span<const PhysicalRange> ranges,
                                const PageAttributes& attributes) {
  const Extents added = BM_TRY(extents_of(va, ranges, attributes));
  const uint64_t end = added.rbegin()->first + added.rbegin()->second.bytes;
  const auto next = extents_.lower_bound(end);
  if (next != extents_.begin()) {
    const auto& [other, extent] = *std::prev(next);
    if (other + extent.bytes > va)
      return fail(Code::kInvalidArgument,
                  "{:#x} bytes at {:#x} meet a mapping of {:#x} bytes at {:#x}", end - va, va,
                  extent.bytes, other);
  }
  return change(va, end - va, added);
}

Result<TlbRange> PageTable::remap(uint64_t va, std::span<const PhysicalRange> ranges,
                                  const PageAttributes& attributes) {
  const Extents added = BM_TRY(extents_of(va, ranges, attributes));
  return change(va, added.rbegin()->first + added.rbegin()->second.bytes - va, added);
}

Result<TlbRange> PageTable::unmap(uint64_t va, uint64_t bytes) {
  BM_TRY(check_range(va, bytes));
  for (uint64_t at = va; at < va + bytes;) {
    const std::optional<Mapping> mapping = find(at);
    if (!mapping)
      return fail(Code::kInvalidArgument, "{:#x} of {:#x} bytes at {:#x} is not mapped", at, bytes,
                  va);
    at = mapping->va + mapping->bytes;
  }
  return change(va, bytes, {});
}

std::optional<PageTable::Mapping> PageTable::find(uint64_t va) const {
  auto found = extents_.upper_bound(va);
  if (found == extents_.begin()) return std::nullopt;
  --found;
  const auto& [start, extent] = *found;
  if (va - start >= extent.bytes) return std::nullopt;
  return Mapping{start, extent.address, extent.bytes, extent.attributes};
}

std::vector<PageTable::Place> PageTable::path(uint64_t va) const {
  std::vector<Place> places;
  // Directories come first in a format, each the only parent of the next.
  for (uint32_t level = 0; level < format_.levels.size(); ++level) {
    if (format_.levels[level].children[0] < 0) break;
    const Table* const table = find_table(level, va);
    if (table == nullptr) break;
    places.push_back({level, table->address});
  }
  return places;
}

/// What stays of the mappings that [va, va + bytes) cuts.
PageTable::Extents PageTable::remainders(uint64_t va, uint64_t bytes) const {
  Extents rest;
  const auto keep = [&rest](uint64_t start, const Extent& extent, uint64_t from, uint64_t to) {
    if (from < to) rest[from] = {to - from, extent.address + (from - start), extent.attributes};
  };
  auto at = extents_.lower_bound(va);
  if (at != extents_.begin()) --at;
  for (; at != extents_.end() && at->first < va + bytes; ++at) {
    const auto& [start, extent] = *at;
    const uint64_t end = start + extent.bytes;
    if (end <= va) continue;
    keep(start, extent, start, std::min(va, end));
    keep(start, extent, std::max(va + bytes, start), end);
  }
  return rest;
}

/// Replaces what [va, va + bytes) maps by `added`. Extents that are cut are written again as a
/// whole: their large pages split, and the fragments of the leaves beside the cut get shorter.
Result<TlbRange> PageTable::change(uint64_t va, uint64_t bytes, const Extents& added) {
  Extents written = remainders(va, bytes);
  written.insert(added.begin(), added.end());
  // Everything that can fail comes before the first change.
  std::set<TableKey> missing;
  collect_missing(written, &missing);
  std::map<TableKey, std::unique_ptr<Table>> spare;
  for (const TableKey& key : missing) {
    Result<std::unique_ptr<Table>> table = new_table(key.first);
    if (!table) {
      for (auto& [unused, taken] : spare)
        memory_.free(taken->address, format_.levels[taken->level].table_bytes());
      return tl::unexpected<Error>(std::move(table.error()));
    }
    spare[key] = std::move(*table);
  }

  uint64_t first = va, last = va + bytes - 1;
  has_changed_directories_ = false;
  auto at = extents_.lower_bound(va);
  if (at != extents_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > va) --at;
  while (at != extents_.end() && at->first < va + bytes) {
    first = std::min(first, at->first);
    last = std::max(last, at->first + at->second.bytes - 1);
    clear_leaves(at->first, at->second);
    mapped_bytes_ -= at->second.bytes;
    at = extents_.erase(at);
  }
  for (const auto& [start, extent] : written) {
    set_leaves(start, extent, &spare);
    mapped_bytes_ += extent.bytes;
  }
  extents_.merge(written);
  BM_CHECK(spare.empty());
  prune(*root_, 0, first, last);

  const TlbRange range{first, last - first + 1, has_changed_directories_};
  pending_first_ = std::min(pending_first_, first);
  pending_last_ = std::max(pending_last_, last);
  BM_TRY(flush(*root_, 0, pending_first_, pending_last_));
  pending_first_ = ~uint64_t{0};
  pending_last_ = 0;
  return range;
}

// --- Leaves

/// The level with the largest pages that fit where `left` bytes of an extent go on.
uint32_t PageTable::leaf_level(uint64_t va, uint64_t address, uint64_t left) const {
  for (const uint32_t level : by_size_) {
    const uint64_t bytes = format_.levels[level].entry_bytes();
    if (bytes <= left && is_aligned(va | address, bytes)) return level;
  }
  BM_CHECK(false);
  return 0;
}

/// The largest aligned block around `va` that lies in the extent and whose memory is aligned alike
/// (Linux asks for contiguous memory only; what a TLB makes of other memory nobody says).
uint8_t PageTable::fragment_shift(uint64_t va, uint64_t extent_va, const Extent& extent) const {
  uint8_t shift = kPageShift;
  const uint64_t address = extent.address + (va - extent_va);
  while (shift < format_.max_fragment_shift) {
    const uint64_t bytes = uint64_t{2} << shift;
    const uint64_t start = align_down(va, bytes);
    const bool is_inside = start >= extent_va && start - extent_va <= extent.bytes &&
                           bytes <= extent.bytes - (start - extent_va);
    if (!is_inside || (va ^ address) % bytes != 0) break;
    ++shift;
  }
  return shift;
}

template <class Visit>
void PageTable::for_each_leaf(uint64_t va, const Extent& extent, const Visit& visit) const {
  for (uint64_t done = 0; done < extent.bytes;) {
    const uint32_t level = leaf_level(va + done, extent.address + done, extent.bytes - done);
    visit(Leaf{level, va + done});
    done += format_.levels[level].entry_bytes();
  }
}

void PageTable::set_leaves(uint64_t va, const Extent& extent,
                           std::map<TableKey, std::unique_ptr<Table>>* spare) {
  for_each_leaf(va, extent, [&](const Leaf& leaf) {
    Table& table = table_for(leaf.level, leaf.va, spare);
    const PageLevel& row = format_.levels[leaf.level];
    const uint32_t word = index(leaf.level, leaf.va) * row.words;
    // Nothing is mapped below any more, or it would have been in the way.
    for (uint32_t k = 0; k < row.words; ++k) {
      if (row.children[k] < 0 || table.children[word + k] == nullptr) continue;
      set_word(table, word + k, 0);
      retire(std::move(table.children[word + k]));
    }
    set_word(table, word,
             format_.leaf({.level = leaf.level,
                           .address = extent.address + (leaf.va - va),
                           .attributes = extent.attributes,
                           .fragment_shift = fragment_shift(leaf.va, va, extent)}));
  });
}

void PageTable::clear_leaves(uint64_t va, const Extent& extent) {
  for_each_leaf(va, extent, [this](const Leaf& leaf) {
    Table* const table = find_table(leaf.level, leaf.va);
    BM_CHECK(table != nullptr);
    set_word(*table, index(leaf.level, leaf.va) * format_.levels[leaf.level].words, 0);
  });
}

// --- Tables

uint32_t PageTable::index(uint32_t level, uint64_t va) const {
  const PageLevel& row = format_.levels[level];
  return static_cast<uint32_t>(va >> row.shift) & (row.entries() - 1);
}

PageTable::Table* PageTable::find_table(uint32_t level, uint64_t va) const {
  if (level == 0) return root_.get();
  const auto [parent_level, word] = parents_[level];
  const Table* const parent = find_table(parent_level, va);
  if (parent == nullptr) return nullptr;
  const uint32_t entry = index(parent_level, va) * format_.levels[parent_level].words;
  return parent->children[entry + word].get();
}

void PageTable::collect_missing(const Extents& extents, std::set<TableKey>* missing) const {
  for (const auto& [va, extent] : extents) {
    for_each_leaf(va, extent, [&](const Leaf& leaf) {
      for (uint32_t level = leaf.level; level != 0; level = parents_[level].first) {
        const PageLevel& row = format_.levels[level];
        const uint64_t start = leaf.va >> (row.shift + row.index_bits)
                                              << (row.shift + row.index_bits);
        if (find_table(level, leaf.va) != nullptr || !missing->emplace(level, start).second) break;
      }
    });
  }
}

Result<std::unique_ptr<PageTable::Table>> PageTable::new_table(uint32_t level) {
  const PageLevel& row = format_.levels[level];
  auto table = std::make_unique<Table>();
  table->level = level;
  table->words.assign(row.table_bytes() / 8, 0);
  table->written = table->words;
  if (row.children[0] >= 0) table->children.resize(size_t{row.entries()} * row.words);
  table->address = BM_TRY(memory_.allocate(row.table_bytes(), row.alignment));
  return table;
}

/// The table of `level` that covers `va`, linked on the way where it is missing.
PageTable::Table& PageTable::table_for(uint32_t level, uint64_t va,
                                       std::map<TableKey, std::unique_ptr<Table>>* spare) {
  if (level == 0) return *root_;
  const auto [parent_level, word] = parents_[level];
  Table& parent = table_for(parent_level, va, spare);
  const uint32_t entry = index(parent_level, va) * format_.levels[parent_level].words + word;
  std::unique_ptr<Table>& child = parent.children[entry];
  if (child == nullptr) {
    const PageLevel& row = format_.levels[level];
    const uint32_t covered = row.shift + row.index_bits;
    auto taken = spare->extract({level, va >> covered << covered});
    BM_CHECK(!taken.empty());
    child = std::move(taken.mapped());
    ++tables_;
    has_changed_directories_ = true;
    set_word(parent, entry,
             format_.directory(parent_level, word, child->address, memory_.aperture()));
  }
  return *child;
}

void PageTable::set_word(Table& table, uint32_t word, uint64_t value) {
  uint64_t& old = table.words[word];
  table.used = table.used - (old != 0) + (value != 0);
  old = value;
}

void PageTable::retire(std::unique_ptr<Table> table) {
  for (std::unique_ptr<Table>& child : table->children)
    if (child != nullptr) retire(std::move(child));
  retired_.push_back({table->address, format_.levels[table->level].table_bytes()});
  --tables_;
  has_changed_directories_ = true;
}

void PageTable::release_retired() {
  for (const Retired& table : retired_) memory_.free(table.address, table.bytes);
  retired_.clear();
}

/// Unlinks the empty tables that cover anything of [first, last].
void PageTable::prune(Table& table, uint64_t base, uint64_t first, uint64_t last) {
  const PageLevel& row = format_.levels[table.level];
  if (table.children.empty()) return;
  const uint64_t from = (std::max(first, base) - base) >> row.shift;
  const uint64_t to = std::min<uint64_t>((last - base) >> row.shift, row.entries() - 1);
  for (uint64_t entry = from; entry <= to; ++entry) {
    for (uint32_t k = 0; k < row.words; ++k) {
      const auto word = static_cast<uint32_t>(entry * row.words + k);
      std::unique_ptr<Table>& child = table.children[word];
      if (child == nullptr) continue;
      prune(*child, base + (entry << row.shift), first, last);
      if (child->used != 0) continue;
      set_word(table, word, 0);
      retire(std::move(child));
    }
  }
}

/// Writes what differs from the device's words, children first: no entry ever leads to words that
/// were not written.
Status PageTable::flush(Table& table, uint64_t base, uint64_t first, uint64_t last) {
  const PageLevel& row = format_.levels[table.level];
  if (!table.children.empty()) {
    const uint64_t from = (std::max(first, base) - base) >> row.shift;
    const uint64_t to = std::min<uint64_t>((last - base) >> row.shift, row.entries() - 1);
    for (uint64_t entry = from; entry <= to; ++entry)
      for (uint32_t k = 0; k < row.words; ++k)
        if (Table* const child = table.children[entry * row.words + k].get())
          BM_TRY(flush(*child, base + (entry << row.shift), first, last));
  }
  size_t from = 0, to = table.words.size();
  if (!table.is_new) {
    while (from < to && table.words[from] == table.written[from]) ++from;
    while (to > from && table.words[to - 1] == table.written[to - 1]) --to;
    if (from == to) return {};
  }
  const std::span<const uint64_t> words = std::span(table.words).subspan(from, to - from);
  BM_TRY(memory_.write(table.address + from * 8, words));
  ++bursts_;
  std::copy(words.begin(), words.end(), table.written.begin() + static_cast<ptrdiff_t>(from));
  table.is_new = false;
  return {};
}

}  // namespace bm::memory
