#pragma once
// Writes a GPU's page tables. The tables are built in a host shadow and reach the device in bursts,
// at most one per touched table and change, and are never read back: over a cable every single
// access costs what a burst does.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "drivers/memory/page_table_format.h"
#include "runtime/base/result.h"

namespace bm::memory {

/// Where tables lie: video memory through a BAR or a cable, or system memory.
class TableMemory {
 public:
  virtual ~TableMemory() = default;
  virtual Aperture aperture() const = 0;  ///< kVideo or kSystem
  /// Physical or bus address of `bytes`, aligned to `alignment`; contents arbitrary.
  virtual Result<uint64_t> allocate(uint64_t bytes, uint64_t alignment) = 0;
  virtual void free(uint64_t address, uint64_t bytes) = 0;
  /// One burst. The device may read the words from the moment this returns, or earlier.
  virtual Status write(uint64_t address, std::span<const uint64_t> words) = 0;
};

/// Contiguous memory that pages are mapped to.
struct PhysicalRange {
  uint64_t address = 0, bytes = 0;
  bool operator==(const PhysicalRange&) const = default;
};

/// What the TLBs must forget before the change counts.
struct TlbRange {
  uint64_t va = 0, bytes = 0;
  bool has_directories = false;  ///< tables were linked or unlinked: walk caches too
};

/// One address space. Not thread-safe.
///
/// Every call either does all it says or, where it returns kInvalidArgument or kOutOfMemory,
/// nothing. When the memory refuses a write, that error is returned and what is missing is written
/// by the next call.
class PageTable {
 public:
  /// Errors: as TableMemory.
  static Result<std::unique_ptr<PageTable>> create(const PageTableFormat& format,
                                                   TableMemory& memory);
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  uint64_t root_address() const { return root_->address; }
  const PageTableFormat& format() const { return format_; }

  /// Maps `ranges`, one behind the other, from `va` on, by the largest pages that alignment allows.
  /// Everything is a multiple of 4 KiB. Errors: kInvalidArgument (alignment, outside the address
  /// space or of what an entry can name, something is mapped there); kOutOfMemory.
  Result<TlbRange> map(uint64_t va, std::span<const PhysicalRange> ranges,
                       const PageAttributes& attributes);
  /// The same over whatever is mapped there.
  Result<TlbRange> remap(uint64_t va, std::span<const PhysicalRange> ranges,
                         const PageAttributes& attributes);
  /// All of [va, va + bytes) must be mapped; mappings and large pages that reach beyond it are
  /// split. Errors: kInvalidArgument naming the first address that is not mapped; kOutOfMemory (for
  /// the tables of a split). Tables that become empty are unlinked and kept until
  /// release_retired().
  Result<TlbRange> unmap(uint64_t va, uint64_t bytes);

  /// Gives the memory of unlinked tables back. Call it after the TLBs forgot the ranges returned so
  /// far: until then the device may still walk them.
  void release_retired();

  /// unmap(), `flush(true)` of the TLBs, release_retired(). Errors: theirs; what TLBs remember may
  /// still be reached then.
  template <class Flush>
  Status unmap_flushed(uint64_t va, uint64_t bytes, Flush flush) {
    BM_TRY(unmap(va, bytes));
    BM_TRY(flush(true));
    release_retired();
    return {};
  }
  /// map(), `flush(false)`, release_retired(). Errors: theirs; nothing is mapped then, as nothing
  /// has used the addresses yet.
  template <class Flush>
  Status map_flushed(uint64_t va, std::span<const PhysicalRange> ranges,
                     const PageAttributes& attributes, Flush flush) {
    const bool was_free = !find(va);
    const Result<TlbRange> written = map(va, ranges, attributes);
    const Status done = written ? flush(false) : Status(tl::unexpected(written.error()));
    if (done) {
      release_retired();
      return {};
    }
    uint64_t bytes = 0;
    for (const PhysicalRange& range : ranges) bytes += range.bytes;
    if (was_free && find(va)) static_cast<void>(unmap_flushed(va, bytes, flush));
    return done;
  }

  struct Mapping {
    uint64_t va = 0, address = 0, bytes = 0;
    PageAttributes attributes;
  };
  /// The contiguous mapping that holds `va`.
  std::optional<Mapping> find(uint64_t va) const;
  /// A table as the device walks it.
  struct Place {
    uint32_t level = 0;  ///< of the format
    uint64_t address = 0;
  };
  /// The directories on the way to `va`, the root first, as far as there are any.
  std::vector<Place> path(uint64_t va) const;
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  uint64_t tables() const { return tables_; }  ///< linked, the root included
  uint64_t bursts() const { return bursts_; }  ///< writes to the device so far

 private:
  struct Table {
    uint32_t level = 0;
    uint64_t address = 0;
    uint32_t used = 0;   ///< words that are not 0
    bool is_new = true;  ///< the device has arbitrary words
    std::vector<uint64_t> words, written;
    std::vector<std::unique_ptr<Table>> children;  ///< one per word
  };
  struct Extent {
    uint64_t bytes = 0, address = 0;
    PageAttributes attributes;
  };
  struct Retired {
    uint64_t address, bytes;
  };
  /// A leaf of an extent: level, place and how far it reaches.
  struct Leaf {
    uint32_t level = 0;
    uint64_t va = 0;
  };
  /// A missing table: its level and the first address it covers.
  using TableKey = std::pair<uint32_t, uint64_t>;
  using Extents = std::map<uint64_t, Extent>;

  PageTable(const PageTableFormat& format, TableMemory& memory);
  Status check_range(uint64_t va, uint64_t bytes) const;
  Result<Extents> extents_of(uint64_t va, std::span<const PhysicalRange> ranges,
                             const PageAttributes& attributes) const;
  Result<TlbRange> change(uint64_t va, uint64_t bytes, const Extents& added);
  Extents remainders(uint64_t va, uint64_t bytes) const;

  uint32_t leaf_level(uint64_t va, uint64_t address, uint64_t left) const;
  uint8_t fragment_shift(uint64_t va, uint64_t extent_va, const Extent& extent) const;
  template <class Visit>
  void for_each_leaf(uint64_t va, const Extent& extent, const Visit& visit) const;

  uint32_t index(uint32_t level, uint64_t va) const;
  Table* find_table(uint32_t level, uint64_t va) const;
  void collect_missing(const Extents& extents, std::set<TableKey>* missing) const;
  Result<std::unique_ptr<Table>> new_table(uint32_t level);
  Table& table_for(uint32_t level, uint64_t va, std::map<TableKey, std::unique_ptr<Table>>* spare);
  void set_word(Table& table, uint32_t word, uint64_t value);
  void set_leaves(uint64_t va, const Extent& extent,
                  std::map<TableKey, std::unique_ptr<Table>>* spare);
  void clear_leaves(uint64_t va, const Extent& extent);
  void retire(std::unique_ptr<Table> table);
  void prune(Table& table, uint64_t base, uint64_t first, uint64_t last);
  Status flush(Table& table, uint64_t base, uint64_t first, uint64_t last);

  const PageTableFormat& format_;
  TableMemory& memory_;
  std::vector<uint32_t> by_size_;                       ///< levels with leaves, largest first
  std::vector<std::pair<uint32_t, uint32_t>> parents_;  ///< level and word, by level
  std::unique_ptr<Table> root_;
  Extents extents_;
  std::vector<Retired> retired_;
  uint64_t mapped_bytes_ = 0, tables_ = 0, bursts_ = 0;
  bool has_changed_directories_ = false;
  /// What a refused write has left to do.
  uint64_t pending_first_ = ~uint64_t{0}, pending_last_ = 0;
};

}  // namespace bm::memory
