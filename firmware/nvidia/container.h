#pragma once
// The container of NVIDIA's microcode files but gsp and fmc: a header that says where the header
// of the file's kind and the data stand. Files do not say what they are: their names do.
// Source: Linux, drivers/gpu/drm/nouveau/include/nvfw/fw.h, struct nvfw_bin_hdr; what fills it in:
// open-gpu-kernel-modules, nouveau/extract-firmware-nouveau.py.

#include <cstdint>
#include <span>

#include "firmware/image.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

/// struct nvfw_bin_hdr. Little-endian, like every number of these files.
struct BinHeader {
  uint32_t magic = 0;    ///< 0x10de
  uint32_t version = 0;  ///< 1
  /// Rounded up by whoever made the file, and then more than it has: not looked at.
  uint32_t size_bytes = 0;
  uint32_t header_offset = 0;  ///< of the kind's own header, from the start of the file
  uint32_t data_offset = 0;    ///< from the start of the file
  uint32_t data_size = 0;
};
static_assert(sizeof(BinHeader) == 24);

struct Container {
  BinHeader header;
  std::span<const std::byte> data;  ///< what is loaded; inside the file
};

/// Errors: kCorrupt (no such file, parts outside it or over the header); kUnsupported (a version
/// that is not known).
Result<Container> parse_container(const Image& file);

}  // namespace bm::firmware::nvidia
