#pragma once
// Page tables of one GPU's virtual address space.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tests/sim/nv/backing.h"

namespace bm::sim::nv {

struct PageRange {
  uint64_t size = 0;  ///< bytes
  std::shared_ptr<Backing> backing;
  uint64_t offset = 0;  ///< of the range's first byte in `backing`
  bool is_writable = true, takes_atomics = true;
};

using PageMap = std::map<uint64_t, PageRange>;  ///< by first address; ranges do not touch

/// Range that holds [address, address + bytes), or nullptr.
const PageRange* find_pages(const PageMap& map, uint64_t address, uint64_t bytes,
                            uint64_t* offset_in_range);

/// Page tables that lie in memory, read entry by entry. Thread: one.
class PageWalk {
 public:
  virtual ~PageWalk() = default;
  /// The page that holds the byte, which begins at *base; nullptr and the type of the fault else.
  virtual const PageRange* find(uint64_t address, uint64_t* base, uint32_t* fault_type) = 0;
};

/// Thread: any. Engines work on snapshots, so memory freed under them stays theirs until they end.
class AddressSpace {
 public:
  AddressSpace() = default;
  virtual ~AddressSpace() = default;
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  /// nullptr: translations are those of the snapshot.
  virtual std::unique_ptr<PageWalk> walk() const { return nullptr; }
  std::shared_ptr<const PageMap> snapshot() const;
  /// Replaces whatever was mapped there.
  void map(uint64_t base, PageRange range);
  void unmap(uint64_t base, uint64_t size);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const PageMap> map_ = std::make_shared<PageMap>();
};

}  // namespace bm::sim::nv
