#include "drivers/nv/gsp/protected_memory.h"

#include <algorithm>

#include "runtime/base/bits.h"

namespace bm::nv::gsp {
namespace {

using abi::gsp::Gsp;
using abi::gsp::WprMeta;

// gsp_fw_heap.h: GSP_FW_HEAP_PARAM_SIZE_PER_GB_FB, GSP_FW_HEAP_PARAM_CLIENT_ALLOC_SIZE.
constexpr uint64_t kHeapPerGiB = 96 * kKiB, kHeapOfClients = 48 * kKiB * 2048;
// gsp_fw_wpr_meta.h: GSP_FW_WPR_META_MAGIC, GSP_FW_WPR_META_REVISION.
constexpr uint64_t kMagic = 0xdc3aae21371a60b3, kRevision = 1;
constexpr uint64_t kVgaBytes = 128 * kKiB;

constexpr uint64_t align_down(uint64_t value, uint64_t alignment) {
  return value / alignment * alignment;
}

Gsp<WprMeta> encode_sources(const ProtectedSources& from) {
  Gsp<WprMeta> meta;
  meta.set(WprMeta::magic, kMagic)
      .set(WprMeta::revision, kRevision)
      .set(WprMeta::sysmemAddrOfRadix3Elf, from.image_table)
      .set(WprMeta::sizeOfRadix3Elf, from.image_bytes)
      .set(WprMeta::sysmemAddrOfBootloader, from.loader)
      .set(WprMeta::sizeOfBootloader, from.loader_bytes)
      .set(WprMeta::bootloaderCodeOffset, from.loader_code)
      .set(WprMeta::bootloaderDataOffset, from.loader_data)
      .set(WprMeta::bootloaderManifestOffset, from.loader_manifest)
      .set(WprMeta::sysmemAddrOfSignature, from.signature)
      .set(WprMeta::sizeOfSignature, from.signature_bytes);
  return meta;
}

}  // namespace

uint64_t heap_bytes(const Generation& generation, uint64_t memory_bytes, uint64_t before,
                    uint64_t after) {
  const uint64_t gibibytes = (memory_bytes + kGiB - 1) / kGiB;
  uint64_t bytes = generation.heap_os_bytes + generation.heap_base_bytes +
                   align_up(kHeapPerGiB * gibibytes, kMiB) + align_up(kHeapOfClients, kMiB);
  uint64_t most = generation.heap_most_bytes;
  if (before + after != 0 && generation.scrubbed_bytes != 0 && !generation.has_scrubber)
    most = std::min(most, generation.scrubbed_bytes > before + after
                              ? align_down(generation.scrubbed_bytes - before - after, kMiB)
                              : 0);
  return std::min(std::max(bytes, generation.heap_least_bytes), most);
}

Result<ProtectedLayout> lay_out(const Generation& generation, uint64_t memory_bytes,
                                uint64_t vga_at, uint64_t image_bytes, uint64_t loader_bytes) {
  // Everything below fits into a gibibyte; a card has more.
  if (vga_at > memory_bytes || vga_at < kGiB || image_bytes > kGiB / 4 || loader_bytes > kGiB / 4)
    return fail(Code::kUnsupported,
                "{:#x} bytes of video memory, the display's from {:#x}, a GSP image of {:#x} and a "
                "boot loader of {:#x}: no room for protected memory",
                memory_bytes, vga_at, image_bytes, loader_bytes);
  ProtectedLayout layout{.memory_bytes = memory_bytes, .vga_at = vga_at};
  layout.end = align_down(vga_at, 128 * kKiB);
  layout.frts_at = layout.end - generation.frts_bytes;
  layout.loader_at = align_down(layout.frts_at - loader_bytes, 4 * kKiB);
  layout.image_at = align_down(layout.loader_at - image_bytes, 64 * kKiB);
  layout.free_heap_bytes = align_up(generation.non_wpr_heap_bytes, kMiB);
  const uint64_t meta_bytes = align_up(uint64_t{WprMeta::kBytes}, kMiB);
  const uint64_t heap = heap_bytes(generation, memory_bytes, meta_bytes + layout.free_heap_bytes,
                                   align_up(memory_bytes - layout.image_at, kMiB));
  if (heap < generation.heap_least_bytes)
    return fail(Code::kUnsupported,
                "the ROM has scrubbed {} MiB at the end of video memory, which leaves the GSP a "
                "heap of {} MiB, and it takes {}",
                generation.scrubbed_bytes / kMiB, heap / kMiB, generation.heap_least_bytes / kMiB);
  layout.heap_at = align_down(layout.image_at - heap, kMiB);
  layout.heap_bytes = align_down(layout.image_at - layout.heap_at, kMiB);
  layout.start = layout.heap_at - meta_bytes;
  layout.free_heap_at = layout.start - layout.free_heap_bytes;
  return layout;
}

Gsp<WprMeta> encode_meta(const ProtectedLayout& layout, const ProtectedSources& sources) {
  Gsp<WprMeta> meta = encode_sources(sources);
  meta.set(WprMeta::gspFwRsvdStart, layout.free_heap_at)
      .set(WprMeta::nonWprHeapOffset, layout.free_heap_at)
      .set(WprMeta::nonWprHeapSize, layout.free_heap_bytes)
      .set(WprMeta::gspFwWprStart, layout.start)
      .set(WprMeta::gspFwHeapOffset, layout.heap_at)
      .set(WprMeta::gspFwHeapSize, layout.heap_bytes)
      .set(WprMeta::gspFwOffset, layout.image_at)
      .set(WprMeta::bootBinOffset, layout.loader_at)
      .set(WprMeta::frtsOffset, layout.frts_at)
      .set(WprMeta::frtsSize, layout.end - layout.frts_at)
      .set(WprMeta::gspFwWprEnd, layout.end)
      .set(WprMeta::fbSize, layout.memory_bytes)
      .set(WprMeta::vgaWorkspaceOffset, layout.vga_at)
      .set(WprMeta::vgaWorkspaceSize, layout.memory_bytes - layout.vga_at);
  return meta;
}

Gsp<WprMeta> encode_meta(const Generation& generation, uint64_t memory_bytes,
                         const ProtectedSources& sources) {
  Gsp<WprMeta> meta = encode_sources(sources);
  meta.set(WprMeta::nonWprHeapSize, generation.non_wpr_heap_bytes)
      .set(WprMeta::gspFwHeapSize, heap_bytes(generation, memory_bytes, 0, 0))
      .set(WprMeta::frtsSize, generation.frts_bytes)
      .set(WprMeta::vgaWorkspaceSize, kVgaBytes)
      .set(WprMeta::pmuReservedSize, generation.pmu_bytes);
  return meta;
}

uint64_t frts_from_end(const Generation& generation) {
  // kfspGetExtraReservedMemorySize: a page behind the PMU's.
  constexpr uint64_t kExtra = 4 * kKiB, kStep = 2 * kMiB;
  if (generation.pmu_bytes == 0) return generation.end_reserve_bytes;
  return align_up(generation.end_reserve_bytes + kExtra + generation.pmu_bytes, kStep);
}

}  // namespace bm::nv::gsp
