#pragma once
// Memory as an engine sees it: through page tables, with faults.

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/sim/nv/address_space.h"
#include "tests/sim/nv/channel.h"

namespace bm::sim::nv {

// Numbers of faults. Source: open-gpu-kernel-modules 580.142, hwref/volta/gv100/dev_fault.h.
constexpr uint32_t kFaultPte = 2, kFaultReadOnly = 6, kFaultAtomic = 15;

enum class Use : uint8_t { kRead = 0, kWrite = 1, kAtomic = 2 };  ///< numbered as access types

/// A snapshot of page tables. What was written through pointers reaches its owner when this ends.
class GpuMemory {
 public:
  explicit GpuMemory(const AddressSpace& space) : map_(space.snapshot()), walk_(space.walk()) {}
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  /// Pointer to [address, address + bytes) in one piece, or nullptr: fault() says why.
  std::byte* at(uint64_t address, uint64_t bytes, Use use);
  bool read(uint64_t address, void* out, uint64_t bytes);
  bool write(uint64_t address, const void* data, uint64_t bytes);
  bool copy(uint64_t to, uint64_t from, uint64_t bytes);
  bool is_mapped(uint64_t address, uint64_t bytes) const;
  const MmuFault& fault() const { return fault_; }

  template <class T>
  bool get(uint64_t address, T* out) {
    return read(address, out, sizeof(T));
  }

 private:
  /// Range holding the first byte, checked for `use`; nullptr and a fault else.
  const PageRange* find(uint64_t address, Use use, uint64_t* offset);

  std::shared_ptr<const PageMap> map_;
  std::unique_ptr<PageWalk> walk_;   ///< in place of it
  const PageRange* last_ = nullptr;  ///< of at(), which is called for every lane
  uint64_t last_base_ = 0;
  std::vector<Backing*> touched_;
  MmuFault fault_;
};

}  // namespace bm::sim::nv
