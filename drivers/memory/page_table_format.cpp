#include "drivers/memory/page_table_format.h"

namespace bm::memory {
namespace {

constexpr uint64_t bit(uint32_t position) { return uint64_t{1} << position; }

// --- AMD. Sources: Linux amdgpu_vm.h (AMDGPU_PTE_*, AMDGPU_PDE_PTE*), the tables of bits above
// gmc_v11_0_get_vm_pde() in gmc_v11_0.c and gmc_v12_0_get_vm_pde() in gmc_v12_0.c; levels and 48
// bits from amdgpu_vm_adjust_size(…, 9, 3, 48), 44 bits of bus address from
// dma_set_mask_and_coherent() in both files' sw_init.
namespace amd {

constexpr uint64_t kValid = bit(0), kSystem = bit(1), kSnooped = bit(2);
constexpr uint64_t kExecutable = bit(4), kReadable = bit(5), kWriteable = bit(6);
constexpr uint32_t kFragmentShift = 7;
constexpr uint64_t kMtypeUncached = 3;   // MTYPE_UC
constexpr uint64_t kMtypeReadWrite = 1;  // MTYPE_RW, soc15 only
constexpr uint32_t kGfx9MtypeShift = 57, kGfx11MtypeShift = 48, kGfx12MtypeShift = 54;
constexpr uint64_t kTranslateFurther = bit(56);       // AMDGPU_PTE_TF
constexpr uint64_t kBlockOf2MiB = uint64_t{9} << 59;  // AMDGPU_PDE_BFS(9): 2^9 pages
constexpr uint64_t kGfx11PdeIsPte = bit(54);          // AMDGPU_PDE_PTE: in directories only
constexpr uint64_t kGfx12IsPte = bit(63);             // AMDGPU_PTE_IS_PTE: in every leaf

constexpr std::array<PageLevel, 4> kLevels = {{
    {.name = "PDB2", .shift = 39, .index_bits = 9, .children = {1, -1}},
    {.name = "PDB1", .shift = 30, .index_bits = 9, .has_leaf = true, .children = {2, -1}},
    {.name = "PDB0", .shift = 21, .index_bits = 9, .has_leaf = true, .children = {3, -1}},
    {.name = "PTB", .shift = 12, .index_bits = 9, .has_leaf = true},
}};
constexpr uint32_t kPdb1 = 1, kPdb0 = 2, kPtb = 3;

uint64_t system_bits(Aperture aperture) {
  return aperture == Aperture::kSystem ? kSystem | kSnooped : 0;
}

uint64_t common_leaf(const LeafEntry& entry, uint32_t mtype_shift) {
  const PageAttributes& how = entry.attributes;
  uint64_t word = entry.address | kValid | kReadable | system_bits(how.aperture);
  if (!how.is_read_only) word |= kWriteable;
  if (how.is_executable) word |= kExecutable;
  if (how.is_uncached) word |= kMtypeUncached << mtype_shift;
  return word | uint64_t{entry.fragment_shift - 12u} << kFragmentShift;
}

/// Local memory is kept in L2 and written back (MTYPE_RW), system memory is not kept at all, and
/// the host's caches are asked either way: gmc_v9_0_get_coherence_flags(), 9.4.3 without
/// ext_coherent.
uint64_t gfx9_leaf(const LeafEntry& entry) {
  uint64_t word = common_leaf(entry, kGfx9MtypeShift) | kSnooped;
  if (!entry.attributes.is_uncached && entry.attributes.aperture == Aperture::kVideo)
    word |= kMtypeReadWrite << kGfx9MtypeShift;
  // A page of PDB0 is the hardware's page table entry of a block of 2 MiB: no mark says leaf there,
  // TF says directory.
  return word | (entry.level == kPdb1 ? kGfx11PdeIsPte : 0);
}

/// gmc_v9_0_get_vm_pde().
uint64_t gfx9_directory(uint32_t level, uint32_t, uint64_t address, Aperture aperture) {
  uint64_t word = address | kValid | system_bits(aperture);
  if (level == kPdb1) word |= kBlockOf2MiB;
  if (level == kPdb0) word |= kTranslateFurther;
  return word;
}

uint64_t gfx11_leaf(const LeafEntry& entry) {
  return common_leaf(entry, kGfx11MtypeShift) | (entry.level == kPtb ? 0 : kGfx11PdeIsPte);
}

uint64_t gfx12_leaf(const LeafEntry& entry) {
  return common_leaf(entry, kGfx12MtypeShift) | kGfx12IsPte;
}

uint64_t directory(uint32_t, uint32_t, uint64_t address, Aperture aperture) {
  return address | kValid | system_bits(aperture);
}

}  // namespace amd

// --- NVIDIA. Sources: open-gpu-kernel-modules 570.144, kernel-open/nvidia-uvm/hwref/turing/tu102
// and hopper/gh100/dev_mmu.h (NV_MMU_VER2_*, NV_MMU_VER3_*); levels and page sizes from Linux
// nouveau nvkm/subdev/mmu/vmmgp100.c and vmmgh100.c (*_vmm_desc_12, *_vmm_desc_16, .page).
namespace nv {

// A leaf's aperture counts video memory as 0, a directory's as 1 (0 is "invalid").
constexpr uint32_t kApertureShift = 1;
constexpr uint64_t kPeer = 1, kCoherent = 2, kDirectoryVideo = 1;
constexpr uint64_t kValid = bit(0);
constexpr uint64_t kV2Volatile = bit(3), kV2Privilege = bit(5), kV2ReadOnly = bit(6);
constexpr uint32_t kV2AddressDrop = 4;  // address bits 53:8, in units of 4 KiB (256 bytes: 53:4)
constexpr uint32_t kV2PeerShift = 33, kV2KindShift = 56;
constexpr uint32_t kV3PcfShift = 3, kV3KindShift = 8, kV3PeerShift = 61;
// PTE_PCF: REGULAR_RW_ATOMIC_CACHED_ACD and what is added to it; PDE_PCF: *_ATS_NOT_ALLOWED.
constexpr uint64_t kV3Acd = 0x10, kV3Uncached = 1, kV3Privilege = 2, kV3ReadOnly = 4;
constexpr uint64_t kV3PdeCached = 2, kV3PdeUncached = 3;

constexpr PageLevel kPde0 = {
    .name = "PDE0", .shift = 21, .index_bits = 8, .words = 2, .has_leaf = true};
constexpr PageLevel kBig = {
    .name = "PTE64K", .shift = 16, .index_bits = 5, .has_leaf = true, .alignment = 256};
constexpr PageLevel kSmall = {.name = "PTE4K", .shift = 12, .index_bits = 9, .has_leaf = true};

constexpr PageLevel with_children(PageLevel level, int8_t first, int8_t second) {
  level.children = {first, second};
  return level;
}

constexpr std::array<PageLevel, 6> kV2Levels = {{
    {.name = "PDE3", .shift = 47, .index_bits = 2, .children = {1, -1}},
    {.name = "PDE2", .shift = 38, .index_bits = 9, .children = {2, -1}},
    {.name = "PDE1", .shift = 29, .index_bits = 9, .children = {3, -1}},
    with_children(kPde0, 4, 5),
    kBig,
    kSmall,
}};
constexpr std::array<PageLevel, 7> kV3Levels = {{
    {.name = "PDE4", .shift = 56, .index_bits = 1, .children = {1, -1}},
    {.name = "PDE3", .shift = 47, .index_bits = 9, .children = {2, -1}},
    {.name = "PDE2", .shift = 38, .index_bits = 9, .children = {3, -1}},
    {.name = "PDE1", .shift = 29, .index_bits = 9, .has_leaf = true, .children = {4, -1}},
    with_children(kPde0, 5, 6),
    kBig,
    kSmall,
}};

uint64_t leaf_aperture(Aperture aperture) {
  switch (aperture) {
    case Aperture::kVideo: return 0;
    case Aperture::kPeer: return kPeer << kApertureShift;
    case Aperture::kSystem: return kCoherent << kApertureShift;
  }
  __builtin_unreachable();
}

/// Coherent system memory is not kept in L2 (VOL): the CPU would not see what is there.
bool is_volatile(const PageAttributes& how) {
  return how.is_uncached || how.aperture == Aperture::kSystem;
}

uint64_t v2_leaf(const LeafEntry& entry) {
  const PageAttributes& how = entry.attributes;
  uint64_t word = kValid | leaf_aperture(how.aperture) | entry.address >> kV2AddressDrop |
                  uint64_t{how.kind} << kV2KindShift;
  if (is_volatile(how)) word |= kV2Volatile;
  if (how.is_privileged) word |= kV2Privilege;
  if (how.is_read_only) word |= kV2ReadOnly;
  if (how.aperture == Aperture::kPeer) word |= uint64_t{how.peer & 7u} << kV2PeerShift;
  return word;
}

uint64_t v2_directory(uint32_t, uint32_t, uint64_t address, Aperture aperture) {
  const uint64_t word = address >> kV2AddressDrop;
  if (aperture == Aperture::kVideo) return word | kDirectoryVideo << kApertureShift;
  return word | kCoherent << kApertureShift | kV2Volatile;
}

uint64_t v3_leaf(const LeafEntry& entry) {
  const PageAttributes& how = entry.attributes;
  const uint64_t pcf = kV3Acd | (is_volatile(how) ? kV3Uncached : 0) |
                       (how.is_privileged ? kV3Privilege : 0) |
                       (how.is_read_only ? kV3ReadOnly : 0);
  uint64_t word = kValid | leaf_aperture(how.aperture) | pcf << kV3PcfShift | entry.address |
                  uint64_t{how.kind & 15u} << kV3KindShift;
  if (how.aperture == Aperture::kPeer) word |= uint64_t{how.peer & 7u} << kV3PeerShift;
  return word;
}

uint64_t v3_directory(uint32_t, uint32_t, uint64_t address, Aperture aperture) {
  if (aperture == Aperture::kVideo)
    return address | kDirectoryVideo << kApertureShift | kV3PdeCached << kV3PcfShift;
  return address | kCoherent << kApertureShift | kV3PdeUncached << kV3PcfShift;
}

}  // namespace nv
}  // namespace

const PageTableFormat& gfx9_page_tables() {
  // 48 bits of bus address as well (gmc_v9_0_sw_init(), 9.4.2 and later).
  static constexpr PageTableFormat kFormat = {.name = "gfx9",
                                              .va_bits = 48,
                                              .video_bits = 48,
                                              .system_bits = 48,
                                              .max_fragment_shift = 12 + 31,
                                              .levels = amd::kLevels,
                                              .leaf = amd::gfx9_leaf,
                                              .directory = amd::gfx9_directory};
  return kFormat;
}

const PageTableFormat& gfx11_page_tables() {
  static constexpr PageTableFormat kFormat = {.name = "gfx11",
                                              .va_bits = 48,
                                              .video_bits = 48,
                                              .system_bits = 44,
                                              .max_fragment_shift = 12 + 31,
                                              .levels = amd::kLevels,
                                              .leaf = amd::gfx11_leaf,
                                              .directory = amd::directory};
  return kFormat;
}

const PageTableFormat& gfx12_page_tables() {
  static constexpr PageTableFormat kFormat = {.name = "gfx12",
                                              .va_bits = 48,
                                              .video_bits = 48,
                                              .system_bits = 44,
                                              .max_fragment_shift = 12 + 31,
                                              .levels = amd::kLevels,
                                              .leaf = amd::gfx12_leaf,
                                              .directory = amd::directory};
  return kFormat;
}

const PageTableFormat& nv_mmu_v2_page_tables() {
  // Video addresses end below the field that names a peer (bits 32:8); nouveau's DMA mask is 47.
  static constexpr PageTableFormat kFormat = {.name = "NVIDIA MMU v2",
                                              .va_bits = 49,
                                              .video_bits = 37,
                                              .system_bits = 47,
                                              .levels = nv::kV2Levels,
                                              .leaf = nv::v2_leaf,
                                              .directory = nv::v2_directory};
  return kFormat;
}

const PageTableFormat& nv_mmu_v3_page_tables() {
  static constexpr PageTableFormat kFormat = {.name = "NVIDIA MMU v3",
                                              .va_bits = 57,
                                              .video_bits = 52,
                                              .system_bits = 52,
                                              .levels = nv::kV3Levels,
                                              .leaf = nv::v3_leaf,
                                              .directory = nv::v3_directory};
  return kFormat;
}

}  // namespace bm::memory
