#pragma once
// The GSP's protected memory (WPR2) at the end of video memory: who gets which part of it, and the
// structure that says so to the booter or the FMC.
// Source: open-gpu-kernel-modules 570.144, kernel_gsp_tu102.c (kgspCalculateFbLayout),
// kernel_gsp_gh100.c, kernel_gsp.c (_kgspCalculateFwHeapSize, kgspGetFwHeapSize), kern_fsp_gh100.c
// (kfspPrepareBootCommands); nouveau, gsp/rm/r535/gsp.c (r535_gsp_oneinit), gsp/gh100.c; nova-core,
// fb.rs.

#include <cstdint>

#include "drivers/nv/abi/gsp.h"
#include "drivers/nv/gsp/generation.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// Offsets in video memory, in bytes, from the end downwards.
struct ProtectedLayout {
  uint64_t memory_bytes = 0;
  uint64_t vga_at = 0;     ///< what the display keeps, up to the end
  uint64_t end = 0;        ///< of the protected memory
  uint64_t frts_at = 0;    ///< up to `end`; there is none where it equals that
  uint64_t loader_at = 0;  ///< the RISC-V boot loader
  uint64_t image_at = 0;   ///< the GSP image
  uint64_t heap_at = 0, heap_bytes = 0;
  uint64_t start = 0;  ///< of the protected memory: the structure itself
  uint64_t free_heap_at = 0, free_heap_bytes = 0;  ///< not protected, below `start`

  /// Whether more of the end is taken than the ROM has scrubbed.
  bool needs_scrubber(const Generation& generation) const {
    return generation.scrubbed_bytes != 0 &&
           memory_bytes - free_heap_at > generation.scrubbed_bytes;
  }
};

/// What the GSP is given for its heap, in bytes. `before`, `after`: of video memory taken below and
/// above the heap, where the scrubbed part of the end limits it; 0: nothing does.
uint64_t heap_bytes(const Generation& generation, uint64_t memory_bytes, uint64_t before,
                    uint64_t after);

/// For the paths with a booter. `vga_at`: where the display's part begins. Sizes are those of the
/// firmware files. Errors: kUnsupported (too little video memory).
Result<ProtectedLayout> lay_out(const Generation& generation, uint64_t memory_bytes,
                                uint64_t vga_at, uint64_t image_bytes, uint64_t loader_bytes);

/// Where what the structure leads to lies in the host's memory, and how large it is.
struct ProtectedSources {
  uint64_t image_table = 0, image_bytes = 0;  ///< page lists (radix3) of the GSP image
  uint64_t loader = 0, loader_bytes = 0;
  uint32_t loader_code = 0, loader_data = 0, loader_manifest = 0;  ///< offsets in it
  uint64_t signature = 0, signature_bytes = 0;
};

/// For the paths with a booter: every offset.
abi::gsp::Gsp<abi::gsp::WprMeta> encode_meta(const ProtectedLayout& layout,
                                             const ProtectedSources& sources);
/// For the FSP's: sizes alone, the FMC lays them out.
abi::gsp::Gsp<abi::gsp::WprMeta> encode_meta(const Generation& generation, uint64_t memory_bytes,
                                             const ProtectedSources& sources);

/// How far from the end of video memory the FSP is to put FRTS.
uint64_t frts_from_end(const Generation& generation);

}  // namespace bm::nv::gsp
