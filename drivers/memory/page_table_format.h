#pragma once
// How a GPU's MMU wants its page tables: a row per format, pure data and encoders.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace bm::memory {

enum class Aperture : uint8_t {
  kVideo,   ///< the GPU's own memory; addresses are physical
  kSystem,  ///< system memory, coherent with the CPU's caches; bus addresses
  kPeer,    ///< another GPU's memory by its direct link (NVIDIA)
};

/// What a mapping allows and how it is cached.
struct PageAttributes {
  Aperture aperture = Aperture::kVideo;
  bool is_read_only = false;
  bool is_uncached = false;  ///< not kept in the GPU's L2 as ordinary memory is
  bool is_executable = true;
  bool is_privileged = false;  ///< NVIDIA: kernel-level engines only
  uint8_t kind = 0;            ///< NVIDIA: memory layout, 0 is pitch
  uint8_t peer = 0;            ///< NVIDIA: which peer, with Aperture::kPeer
  bool operator==(const PageAttributes&) const = default;
};

/// One level of the tree, root first in a format. An entry covers 2^shift bytes.
struct PageLevel {
  std::string_view name;  ///< the vendor's
  uint8_t shift = 0;
  uint8_t index_bits = 0;
  uint8_t words = 1;  ///< of 64 bits in an entry
  bool has_leaf = false;
  /// Level that word k of an entry points to; -1: none. A leaf is always in word 0.
  std::array<int8_t, 2> children = {-1, -1};
  uint32_t alignment = 4096;  ///< of a table, and the least that is allocated for one

  uint32_t entries() const { return 1u << index_bits; }
  uint64_t entry_bytes() const { return uint64_t{1} << shift; }
  uint64_t table_bytes() const {
    const uint64_t bytes = uint64_t{entries()} * words * 8;
    return bytes < alignment ? alignment : bytes;
  }
};

/// A leaf to be encoded. `fragment_shift`: the leaf is part of an aligned contiguous block of
/// 2^fragment_shift bytes that is mapped alike.
struct LeafEntry {
  uint32_t level = 0;
  uint64_t address = 0;
  PageAttributes attributes;
  uint8_t fragment_shift = 12;
};

struct PageTableFormat {
  std::string_view name;
  uint8_t va_bits = 0;
  uint8_t video_bits = 0, system_bits = 0;  ///< of addresses that fit an entry
  uint8_t max_fragment_shift = 0;           ///< 0: entries say nothing of adjacent ones
  std::span<const PageLevel> levels;
  uint64_t (*leaf)(const LeafEntry& entry) = nullptr;
  /// Entry of `level` whose word `word` points to a table at `address`.
  uint64_t (*directory)(uint32_t level, uint32_t word, uint64_t address,
                        Aperture aperture) = nullptr;
};

/// AMD gfx9 of MI300 (GMC v9): four levels, the last two by "translate further".
const PageTableFormat& gfx9_page_tables();
/// AMD gfx11 (GMC v11) and gfx12 (GMC v12), four levels, no translate-further.
const PageTableFormat& gfx11_page_tables();
const PageTableFormat& gfx12_page_tables();
/// NVIDIA MMU version 2 (Pascal to Ada) and version 3 (Hopper, Blackwell).
const PageTableFormat& nv_mmu_v2_page_tables();
const PageTableFormat& nv_mmu_v3_page_tables();

}  // namespace bm::memory
