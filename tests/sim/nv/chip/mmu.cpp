#include "tests/sim/nv/chip/mmu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>

#include <fmt/format.h>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/gpu_memory.h"

namespace bm::sim::nv::card {
namespace {

constexpr uint32_t kFaultPde = 0;  ///< K volta/gv100/dev_fault.h

template <class Where>
class MemoryBacking final : public Backing {
 public:
  MemoryBacking(uint64_t size, Where where) : Backing(size), where_(std::move(where)) {}
  std::byte* at(uint64_t offset, uint64_t bytes) override { return where_(offset, bytes); }
  std::byte* local(uint64_t offset, uint64_t bytes) override { return where_(offset, bytes); }
  bool read(uint64_t offset, void* out, uint64_t bytes) override {
    return move(offset, bytes, [&](std::byte* at, uint64_t done, uint64_t part) {
      load(static_cast<std::byte*>(out) + done, at, part);
    });
  }
  bool write(uint64_t offset, const void* data, uint64_t bytes) override {
    return move(offset, bytes, [&](std::byte* at, uint64_t done, uint64_t part) {
      store(at, static_cast<const std::byte*>(data) + done, part);
    });
  }

 private:
  /// Words whole: the host polls them.
  static void load(std::byte* to, std::byte* from, uint64_t bytes) {
    if (bytes == 4 && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
      const uint32_t value = std::atomic_ref(*reinterpret_cast<uint32_t*>(from)).load();
      std::memcpy(to, &value, 4);
    } else if (bytes == 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
      const uint64_t value = std::atomic_ref(*reinterpret_cast<uint64_t*>(from)).load();
      std::memcpy(to, &value, 8);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  static void store(std::byte* to, const std::byte* from, uint64_t bytes) {
    if (bytes == 4 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
      uint32_t value = 0;
      std::memcpy(&value, from, 4);
      std::atomic_ref(*reinterpret_cast<uint32_t*>(to)).store(value);
    } else if (bytes == 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      uint64_t value = 0;
      std::memcpy(&value, from, 8);
      std::atomic_ref(*reinterpret_cast<uint64_t*>(to)).store(value);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  template <class Do>
  bool move(uint64_t offset, uint64_t bytes, const Do& work) {
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t part = std::min<uint64_t>(bytes - done, 4096 - (offset + done) % 4096);
      std::byte* const at = where_(offset + done, part);
      if (at == nullptr) return false;
      work(at, done, part);
      done += part;
    }
    return true;
  }
  Where where_;
};

/// Forms of entries. A level's index is taken from the address bits `shift` and up.
struct Level {
  uint32_t shift, bits;
};
constexpr Level kLevels2[] = {{47, 2}, {38, 9}, {29, 9}, {21, 8}};
constexpr Level kLevels3[] = {{56, 1}, {47, 9}, {38, 9}, {29, 9}, {21, 8}};

class Walk final : public PageWalk {
 public:
  Walk(Mmu& mmu, bool has_root, Aperture aperture, uint64_t root)
      : mmu_(mmu), has_root_(has_root), aperture_(aperture), root_(root) {}

  const PageRange* find(uint64_t address, uint64_t* base, uint32_t* fault_type) override {
    for (const uint64_t size :
         {uint64_t{4} << 10, uint64_t{64} << 10, uint64_t{2} << 20, uint64_t{512} << 20}) {
      const auto known = pages_.find(address / size * size);
      if (known != pages_.end() && known->second.size == size) {
        *base = known->first;
        return &known->second;
      }
    }
    PageRange range;
    if (!walk(address, &range, base, fault_type)) return nullptr;
    return &(pages_[*base] = range);
  }

 private:
  struct Table {
    Aperture aperture;
    uint64_t at;
  };

  bool refuse(uint64_t address, const std::string& what) {
    mmu_.violations().add(fmt::format("MMU: address {:#x}: {}", address, what));
    return false;
  }

  bool entry(const Table& table, uint64_t offset, uint64_t address, uint64_t* out) {
    const uint64_t at = table.at + offset;
    std::byte bytes[8];
    if (!mmu_.memory().read(table.aperture, at, bytes, "MMU, page table")) return false;
    std::memcpy(out, bytes, 8);
    if (table.aperture == Aperture::kVideo && mmu_.memory().video().is_unsettled(at))
      refuse(address,
             fmt::format("an access before the TLB invalidate: the entry at {:#x} of video "
                         "memory is {:#x} since",
                         at, *out));
    return true;
  }

  /// A directory's half. False: there is no table, *fault_type says why.
  bool table_of(uint64_t half, uint32_t shift, uint64_t address, Table* out) {
    // Version 2: APERTURE 2:1, VOL 3, NO_ATS 5, ADDRESS 53:8 (a big table's 53:4). Version 3:
    // APERTURE 2:1, PCF 5:3, ADDRESS 51:12 (51:8).
    const bool is_v3 = mmu_.row().mmu == MmuVersion::k3;
    const uint32_t aperture = bits(half, 2, 1);
    const uint32_t first = is_v3 ? 12 : 8, last = is_v3 ? 51 : 53;
    const uint32_t low = shift == 8 ? (is_v3 ? 8 : 4) : first;
    const uint64_t address_mask = ((uint64_t{1} << (last + 1)) - 1) & ~((uint64_t{1} << low) - 1);
    // NO_ATS lies within a big table's address.
    const uint64_t plain = is_v3 ? 0x3f : 0x2f;
    const uint64_t reserved = ~(address_mask | plain);
    if ((half & reserved) != 0)
      return refuse(address, fmt::format("directory entry {:#x} with reserved bits {:#x}", half,
                                         half & reserved));
    uint64_t at = half & address_mask;
    if (!is_v3) at = low == 4 ? (at & ~uint64_t{0x20}) << 4 : at << 4;
    *out = {aperture == 1 ? Aperture::kVideo : Aperture::kSystem, at};
    return true;
  }

  bool page_of(uint64_t entry, uint64_t size, uint64_t address, PageRange* range) {
    const bool is_v3 = mmu_.row().mmu == MmuVersion::k3;
    const uint32_t aperture = bits(entry, 2, 1);
    if (aperture == 1) return refuse(address, fmt::format("entry {:#x} names a peer", entry));
    uint64_t reserved = 0, at = 0;
    uint32_t kind = 0;
    bool is_read_only = false, has_atomics = true;
    if (is_v3) {
      // PCF 7:3, KIND 11:8, ADDRESS 51:12, PEER_ID 63:61.
      reserved = ~((uint64_t{1} << 52) - 1);
      kind = bits(entry, 11, 8);
      at = entry & 0xf'ffff'ffff'f000;
      is_read_only = bits(entry, 5, 5) != 0;
      has_atomics = bits(entry, 6, 6) == 0;
    } else {
      // ADDRESS_VID 32:8 with a peer's number and compression tags above, ADDRESS_SYS 53:8.
      reserved = aperture == 0 ? 0x00ff'fffe'0000'0000 : 0x00c0'0000'0000'0000;
      kind = bits(entry, 63, 56);
      at = (aperture == 0 ? entry & 0x1'ffff'ff00 : entry & 0x3f'ffff'ffff'ff00) << 4;
      is_read_only = bits(entry, 6, 6) != 0;
      has_atomics = bits(entry, 7, 7) == 0;
    }
    if ((entry & reserved) != 0)
      return refuse(address, fmt::format("page entry {:#x} with reserved bits {:#x}", entry,
                                         entry & reserved));
    if (kind != 0 && kind != 6)  // PITCH, GENERIC_MEMORY
      return refuse(address, fmt::format("page entry {:#x} of kind {:#x}", entry, kind));
    if (at % size != 0)
      return refuse(address, fmt::format("a page of {:#x} bytes at {:#x}", size, at));
    *range = {size, aperture == 0 ? mmu_.video() : mmu_.system(), at, !is_read_only, has_atomics};
    if (aperture == 0) {
      if (at > mmu_.memory().video().size() || size > mmu_.memory().video().size() - at)
        return refuse(address, fmt::format("a page at {:#x}, beyond video memory", at));
      if (mmu_.is_protected && mmu_.is_protected(at, size))
        return refuse(address, fmt::format("a page at {:#x}, in the write-protected region", at));
      return true;
    }
    for (uint64_t done = 0; done < size; done += 4096) {
      if (mmu_.memory().system_at(at + done, 4096, false, {}) != nullptr) continue;
      // Once more with a name, which is text that few need.
      (void)mmu_.memory().system_at(at + done, 4096, false,
                                    fmt::format("MMU, address {:#x}", address + done));
      return false;
    }
    return true;
  }

  bool walk(uint64_t address, PageRange* range, uint64_t* base, uint32_t* fault_type) {
    *fault_type = kFaultPde;
    if (!has_root_) return false;
    const bool is_v3 = mmu_.row().mmu == MmuVersion::k3;
    const std::span<const Level> levels = is_v3 ? std::span<const Level>(kLevels3) : kLevels2;
    if (address >> (levels[0].shift + levels[0].bits) != 0) return false;
    Table table{aperture_, root_};
    const auto page = [&](uint64_t value, uint64_t size) {
      *fault_type = kFaultPte;
      *base = address / size * size;
      return page_of(value, size, address, range);
    };
    for (size_t i = 0; i < levels.size(); ++i) {
      const Level& level = levels[i];
      const uint64_t index = address >> level.shift & ((uint64_t{1} << level.bits) - 1);
      const bool is_dual = i + 1 == levels.size();
      uint64_t low = 0, high = 0;
      if (!entry(table, index * (is_dual ? 16 : 8), address, &low)) return false;
      // Pages of 512 MiB and 2 MiB stand in the directory.
      if ((low & 1) != 0) {
        if (level.shift != 21 && level.shift != 29)
          return refuse(address,
                        fmt::format("directory entry {:#x} of level {} is a page", low, i));
        return page(low, uint64_t{1} << level.shift);
      }
      if (!is_dual) {
        if (bits(low, 2, 1) == 0) return false;
        if (!table_of(low, 12, address, &table)) return false;
        continue;
      }
      if (!entry(table, index * 16 + 8, address, &high)) return false;
      if (bits(low, 2, 1) != 0) {
        Table big{};
        uint64_t value = 0;
        if (!table_of(low, 8, address, &big)) return false;
        if (!entry(big, (address >> 16 & 31) * 8, address, &value)) return false;
        if ((value & 1) != 0) return page(value, uint64_t{64} << 10);
      }
      if (bits(high, 2, 1) == 0) {
        *fault_type = bits(low, 2, 1) != 0 ? kFaultPte : kFaultPde;
        return false;
      }
      if (!table_of(high, 12, address, &table)) return false;
    }
    uint64_t value = 0;
    if (!entry(table, (address >> 12 & 511) * 8, address, &value)) return false;
    *fault_type = kFaultPte;
    if ((value & 1) == 0) return false;
    return page(value, uint64_t{4} << 10);
  }

  Mmu& mmu_;
  const bool has_root_;
  const Aperture aperture_;
  const uint64_t root_;
  std::unordered_map<uint64_t, PageRange> pages_;
};

}  // namespace

std::shared_ptr<Backing> make_video_backing(VideoMemory& video) {
  const auto where = [&video](uint64_t offset, uint64_t bytes) { return video.at(offset, bytes); };
  return std::make_shared<MemoryBacking<decltype(where)>>(video.size(), where);
}

std::shared_ptr<Backing> make_system_backing(Memory& memory) {
  const auto where = [&memory](uint64_t offset, uint64_t bytes) {
    return memory.system_at(offset, bytes, true, {});
  };
  return std::make_shared<MemoryBacking<decltype(where)>>(uint64_t{1} << 52, where);
}

std::shared_ptr<Backing> make_part(std::shared_ptr<Backing> whole, uint64_t offset,
                                   uint64_t bytes) {
  const auto where = [whole = std::move(whole), offset, bytes](uint64_t at, uint64_t count) {
    return at <= bytes && count <= bytes - at ? whole->at(offset + at, count) : nullptr;
  };
  return std::make_shared<MemoryBacking<decltype(where)>>(bytes, where);
}

Mmu::Mmu(const CardRow& row, RegisterFile& registers, Memory& memory)
    : row_(row),
      registers_(registers),
      memory_(memory),
      video_(make_video_backing(memory.video())),
      system_(make_system_backing(memory)) {
  // NV_VIRTUAL_FUNCTION_FULL_PHYS_OFFSET 0xb80000.
  const char* const source = "turing/tu102/dev_vm.h";
  for (uint32_t i = 0; i < 2; ++i)
    registers_.declare(
        0xb830a0 + 4 * i,
        i == 0 ? "NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_PDB"
               : "NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_UPPER_PDB",
        source,
        {.read = [this, i] { return pdb_[i]; }, .write = [this, i](uint32_t v) { pdb_[i] = v; }});
  // Of BARs and physical accesses, of which the model has no faults: those of channels are
  // GSP-RM's.
  for (const auto& [offset, name] : {std::pair(0x80u, "ADDR_LO"),
                                     {0x84u, "ADDR_HI"},
                                     {0x88u, "INST_LO"},
                                     {0x8cu, "INST_HI"},
                                     {0x90u, "INFO"},
                                     {0x94u, "STATUS"}})
    registers_.declare(0xb83000 + offset,
                       fmt::format("NV_VIRTUAL_FUNCTION_PRIV_MMU_FAULT_{}", name), source,
                       {.is_read_only = true});
  registers_.declare(0xb830b0, "NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE", source,
                     {.read = [] { return 0u; },  // the trigger is done at once
                      .write =
                          [this](uint32_t v) {
                            // ALL_VA 0, ALL_PDB 1, TRIGGER 31.
                            if ((v >> 31) == 0) {
                              registers_.violations().add(
                                  fmt::format("TLB invalidate {:#x} without a trigger", v));
                              return;
                            }
                            if ((v & 2) == 0 && pdb_[0] == 0 && pdb_[1] == 0) {
                              registers_.violations().add(
                                  fmt::format("TLB invalidate {:#x} of no page directory", v));
                              return;
                            }
                            ++invalidates_;
                            memory_.video().settle();
                          }});
}

void Mmu::power_on() { pdb_[0] = pdb_[1] = 0; }

std::unique_ptr<PageWalk> WalkedSpace::walk() const {
  const std::lock_guard lock(mutex_);
  return std::make_unique<Walk>(mmu_, has_root_, aperture_, root_);
}

void WalkedSpace::set_root(Aperture aperture, uint64_t address) {
  const std::lock_guard lock(mutex_);
  has_root_ = true;
  aperture_ = aperture;
  root_ = address;
}

bool WalkedSpace::has_root() const {
  const std::lock_guard lock(mutex_);
  return has_root_;
}

}  // namespace bm::sim::nv::card
