#include "tests/unit/driver_memory/mmu_walker.h"

#include <fmt/format.h>

namespace bm::memory::test {
namespace {

constexpr uint64_t kGarbage = 0xdead'beef'dead'beef;

uint64_t field(uint64_t word, uint32_t high, uint32_t low) {
  return word >> low & (~uint64_t{0} >> (63 - (high - low)));
}

Walk error(std::string text) { return {std::nullopt, std::move(text)}; }

/// Linux 6.x gmc_v11_0.c and gmc_v12_0.c, "PTE format" and "PDE format"; a walk of four levels from
/// PDB2. gfx11: P (54) makes a PDE a PTE; gfx12: P (63) is in every PTE.
Walk walk_amd(bool is_gfx12, const FakeTableMemory& memory, uint64_t root, uint64_t va) {
  if (va >> 48 != 0) return error("beyond 48 bits");
  uint64_t table = root;
  for (uint32_t level = 0; level < 4; ++level) {
    const uint32_t shift = 39 - 9 * level;
    const std::optional<uint64_t> read = memory.read(table + field(va, shift + 8, shift) * 8);
    if (!read) return error(fmt::format("level {}: {:#x} is no table", level, table));
    const uint64_t word = *read;
    if (word == 0) return {};
    if (field(word, 0, 0) == 0)
      return error(fmt::format("level {}: {:#x} without valid", level, word));
    const bool says_leaf = field(word, is_gfx12 ? 63 : 54, is_gfx12 ? 63 : 54) != 0;
    const bool is_leaf = level == 3 || says_leaf;
    if (level == 3 && says_leaf != is_gfx12) return error(fmt::format("P bit of PTE {:#x}", word));
    const bool is_system = field(word, 1, 1) != 0;
    if (is_system != (field(word, 2, 2) != 0)) return error("system memory that is not snooped");
    if (!is_leaf) {
      const uint64_t address = field(word, 47, 6) << 6;
      if (field(word, 63, 48) != 0 || field(word, 5, 3) != 0 || field(word, 11, 6) != 0)
        return error(fmt::format("level {}: reserved bits of PDE {:#x}", level, word));
      if (is_system != (memory.where == Aperture::kSystem)) return error("PDE in the other memory");
      table = address;
      continue;
    }
    if (level == 0) return error("a page of 512 GiB");
    const uint64_t page = uint64_t{1} << shift;
    const uint64_t address = field(word, 47, 12) << 12;
    if (address % page != 0) return error(fmt::format("level {}: page at {:#x}", level, address));
    const uint64_t allowed =
        is_gfx12 ? uint64_t{3} << 54 | uint64_t{1} << 63 : uint64_t{7} << 48 | uint64_t{1} << 54;
    if ((word & ~((uint64_t{1} << 48) - 1) & ~allowed) != 0 || field(word, 3, 3) != 0)
      return error(fmt::format("level {}: reserved bits of PTE {:#x}", level, word));
    const uint64_t mtype = is_gfx12 ? field(word, 55, 54) : field(word, 50, 48);
    if (mtype != 0 && mtype != 3) return error(fmt::format("memory type {}", mtype));
    if (field(word, 5, 5) == 0) return error("a page that cannot be read");
    Translation result;
    result.address = address + va % page;
    result.aperture = is_system ? Aperture::kSystem : Aperture::kVideo;
    result.can_execute = field(word, 4, 4) != 0;
    result.can_write = field(word, 6, 6) != 0;
    result.is_uncached = mtype == 3;
    result.page_bytes = page;
    result.fragment_bytes = uint64_t{4096} << field(word, 11, 7);
    if (result.fragment_bytes < page) return error("a fragment smaller than its page");
    return {result, {}};
  }
  return error("unreachable");
}

std::optional<Aperture> directory_aperture(uint64_t value) {
  if (value == 1) return Aperture::kVideo;
  if (value == 2) return Aperture::kSystem;
  return std::nullopt;
}

/// A PTE of either version; dev_mmu.h of TU102 (NV_MMU_VER2_PTE) and GH100 (NV_MMU_VER3_PTE).
Walk nv_leaf(bool is_v3, uint64_t word, uint64_t va, uint64_t page) {
  Translation result;
  const uint64_t aperture = field(word, 2, 1);
  if (aperture == 3) return error("memory that is not coherent");
  result.aperture = aperture == 0   ? Aperture::kVideo
                    : aperture == 1 ? Aperture::kPeer
                                    : Aperture::kSystem;
  uint64_t address = 0;
  if (is_v3) {
    const uint64_t pcf = field(word, 7, 3);
    if ((pcf & 0x10) == 0 || (pcf & 8) != 0) return error(fmt::format("PCF {:#x}", pcf));
    result.is_uncached = (pcf & 1) != 0;
    result.is_privileged = (pcf & 2) != 0;
    result.can_write = (pcf & 4) == 0;
    result.kind = static_cast<uint32_t>(field(word, 11, 8));
    result.peer = static_cast<uint32_t>(field(word, 63, 61));
    address = field(word, 51, 12) << 12;
    if (field(word, 60, 52) != 0) return error(fmt::format("reserved bits of PTE {:#x}", word));
  } else {
    result.is_uncached = field(word, 3, 3) != 0;
    result.is_privileged = field(word, 5, 5) != 0;
    result.can_write = field(word, 6, 6) == 0;
    if (field(word, 4, 4) != 0 || field(word, 7, 7) != 0 || field(word, 55, 54) != 0)
      return error(fmt::format("bits of PTE {:#x}", word));
    result.kind = static_cast<uint32_t>(field(word, 63, 56));
    if (result.aperture == Aperture::kSystem) {
      address = field(word, 53, 8) << 12;
    } else {
      address = field(word, 32, 8) << 12;
      result.peer = static_cast<uint32_t>(field(word, 35, 33));
      if (field(word, 53, 36) != 0) return error(fmt::format("compression of PTE {:#x}", word));
    }
  }
  if (result.aperture != Aperture::kPeer && result.peer != 0) return error("a peer's number");
  if (address % page != 0) return error(fmt::format("page of {:#x} at {:#x}", page, address));
  result.can_execute = true;
  result.address = address + va % page;
  result.page_bytes = result.fragment_bytes = page;
  return {result, {}};
}

/// Half of a directory entry: address of the table it names, 0 for none. `is_big`: a table of
/// 64 KiB pages, in units of 256 bytes.
Walk nv_directory(bool is_v3, bool is_big, uint64_t word, const FakeTableMemory& memory,
                  uint64_t* table) {
  *table = 0;
  if (word == 0) return {};
  const std::optional<Aperture> aperture = directory_aperture(field(word, 2, 1));
  if (field(word, 0, 0) != 0 || !aperture) return error(fmt::format("PDE {:#x}", word));
  if (*aperture != memory.where) return error("PDE in the other memory");
  if (is_v3) {
    // VALID_CACHED_ATS_NOT_ALLOWED, VALID_UNCACHED_ATS_NOT_ALLOWED.
    if (field(word, 5, 3) != (*aperture == Aperture::kVideo ? 2u : 3u))
      return error(fmt::format("PCF of PDE {:#x}", word));
    *table = is_big ? field(word, 51, 8) << 8 : field(word, 51, 12) << 12;
    if (field(word, 63, 52) != 0 || field(word, 7, 6) != 0 || (!is_big && field(word, 11, 8) != 0))
      return error(fmt::format("reserved bits of PDE {:#x}", word));
  } else {
    if (field(word, 3, 3) != (*aperture == Aperture::kVideo ? 0u : 1u))
      return error(fmt::format("VOL of PDE {:#x}", word));
    *table = is_big ? field(word, 53, 4) << 8 : field(word, 53, 8) << 12;
    if (field(word, 63, 54) != 0 || (!is_big && field(word, 7, 4) != 0))
      return error(fmt::format("reserved bits of PDE {:#x}", word));
  }
  return {};
}

Walk walk_nv(bool is_v3, const FakeTableMemory& memory, uint64_t root, uint64_t va) {
  if (va >> (is_v3 ? 57 : 49) != 0) return error("beyond the space");
  uint64_t table = root;
  std::vector<uint32_t> shifts = {47, 38, 29};
  if (is_v3) shifts.insert(shifts.begin(), 56);
  for (size_t i = 0; i < shifts.size(); ++i) {
    const uint32_t shift = shifts[i];
    const uint32_t top = i != 0 ? shift + 8 : (is_v3 ? 56 : 48);
    const std::optional<uint64_t> word = memory.read(table + field(va, top, shift) * 8);
    if (!word) return error(fmt::format("{:#x} is no table", table));
    // Pages of 512 MiB exist from GH100 on.
    if (shift == 29 && is_v3 && field(*word, 0, 0) != 0)
      return nv_leaf(is_v3, *word, va, uint64_t{1} << 29);
    const Walk found = nv_directory(is_v3, false, *word, memory, &table);
    if (!found.error.empty() || table == 0) return found;
  }
  const uint64_t entry = table + field(va, 28, 21) * 16;
  const std::optional<uint64_t> low = memory.read(entry), high = memory.read(entry + 8);
  if (!low || !high) return error(fmt::format("{:#x} is no table", table));
  if (field(*low, 0, 0) != 0) {
    if (*high != 0) return error("a page of 2 MiB with a table beside it");
    return nv_leaf(is_v3, *low, va, uint64_t{1} << 21);
  }
  uint64_t big = 0, small = 0;
  if (Walk found = nv_directory(is_v3, true, *low, memory, &big); !found.error.empty())
    return found;
  if (Walk found = nv_directory(is_v3, false, *high, memory, &small); !found.error.empty())
    return found;
  std::optional<uint64_t> big_word, small_word;
  if (big != 0) {
    big_word = memory.read(big + field(va, 20, 16) * 8);
    if (!big_word) return error(fmt::format("{:#x} is no big table", big));
  }
  if (small != 0) {
    small_word = memory.read(small + field(va, 20, 12) * 8);
    if (!small_word) return error(fmt::format("{:#x} is no small table", small));
  }
  const bool has_big = big_word && field(*big_word, 0, 0) != 0;
  const bool has_small = small_word && field(*small_word, 0, 0) != 0;
  if (has_big && has_small) return error("mapped twice");
  // An invalid big PTE of another value than 0 would hide the small ones or be sparse.
  if (!has_big && big_word.value_or(0) != 0) return error("a big PTE that is neither");
  if (!has_small && small_word.value_or(0) != 0) return error("a small PTE that is neither");
  if (has_big) return nv_leaf(is_v3, *big_word, va, uint64_t{1} << 16);
  if (has_small) return nv_leaf(is_v3, *small_word, va, uint64_t{1} << 12);
  return {};
}

}  // namespace

Result<uint64_t> FakeTableMemory::allocate(uint64_t bytes, uint64_t alignment) {
  if (allocations_left == 0) return fail(Code::kOutOfMemory, "no memory for a table");
  if (allocations_left > 0) --allocations_left;
  next_ = (next_ + alignment - 1) / alignment * alignment;
  // Never the same address twice: a stale pointer must not find a new table.
  const uint64_t address = next_;
  next_ += bytes;
  live[address].assign(bytes / 8, kGarbage);
  return address;
}

void FakeTableMemory::free(uint64_t address, uint64_t bytes) {
  const auto found = live.find(address);
  if (found == live.end() || found->second.size() * 8 != bytes)
    misuses.push_back(fmt::format("free of {:#x}", address));
  else
    live.erase(found);
}

Status FakeTableMemory::write(uint64_t address, std::span<const uint64_t> words) {
  if (writes_left == 0) return fail(Code::kDeviceLost, "the card is gone");
  if (writes_left > 0) --writes_left;
  ++writes;
  auto found = live.upper_bound(address);
  if (found == live.begin() || words.empty() || address % 8 != 0) {
    misuses.push_back(fmt::format("write of {} words at {:#x}", words.size(), address));
    return {};
  }
  --found;
  const uint64_t first = (address - found->first) / 8;
  if (first + words.size() > found->second.size())
    misuses.push_back(fmt::format("write of {} words at {:#x}", words.size(), address));
  else
    std::copy(words.begin(), words.end(), found->second.begin() + static_cast<ptrdiff_t>(first));
  return {};
}

std::optional<uint64_t> FakeTableMemory::read(uint64_t address) const {
  auto found = live.upper_bound(address);
  if (found == live.begin()) return std::nullopt;
  --found;
  const uint64_t word = (address - found->first) / 8;
  if (word >= found->second.size() || found->second[word] == kGarbage) return std::nullopt;
  return found->second[word];
}

Walk walk(Mmu mmu, const FakeTableMemory& memory, uint64_t root, uint64_t va) {
  switch (mmu) {
    case Mmu::kGfx11: return walk_amd(false, memory, root, va);
    case Mmu::kGfx12: return walk_amd(true, memory, root, va);
    case Mmu::kNvV2: return walk_nv(false, memory, root, va);
    case Mmu::kNvV3: return walk_nv(true, memory, root, va);
  }
  __builtin_unreachable();
}

}  // namespace bm::memory::test
