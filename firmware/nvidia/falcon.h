#pragma once
// Microcode of falcons: the signed programs that set up and tear down the protected memory of the
// GSP (booter_load, booter_unload, scrubber), and the boot loader that carries signed code into a
// falcon which cannot fetch it itself (gen_bootloader; Turing, GA100).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "firmware/image.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

/// A range of an image.
struct Range {
  uint32_t offset = 0;
  uint32_t size = 0;
  auto operator<=>(const Range&) const = default;
};

/// A heavy-secured (HS) program. Source: nouveau, include/nvfw/hs.h, struct nvfw_hs_header_v2 and
/// nvfw_hs_load_header_v2; open-gpu-kernel-modules 570.144, kernel_gsp_booter.c.
struct HsUcode {
  std::string name;                  ///< for messages
  std::span<const std::byte> image;  ///< all that follows lies in it
  /// Where the signature that the card wants is copied to, by signed_image().
  uint32_t signature_at = 0;
  /// All of one size; which one counts is decided by the card's fuses.
  std::vector<std::span<const std::byte>> signatures;
  uint32_t fuse_version = 0;    ///< the last fuse version that the signatures are for
  uint32_t engine_id_mask = 0;  ///< bit 0: SEC2, 2: NVDEC, 10: GSP
  uint32_t ucode_id = 0;        ///< which fuses; counts from 1

  Range os_code;  ///< not secure
  Range os_data;
  struct App {
    Range code;  ///< secure
    Range data;
  };
  std::vector<App> apps;

  /// What a falcon's boot ROM is told: where the signature lies in its data memory.
  uint32_t signature_in_data() const { return signature_at - os_data.offset; }
};

/// Errors: kCorrupt with the offset; kUnsupported (a signature inside the list other than the
/// first, an id that no fuse register has).
Result<HsUcode> parse_hs_ucode(const Image& file);

/// What a fuse register (NV_FUSE_OPT_FPF_<engine>_UCODE<id>_VERSION) says: the highest bit that is
/// set, plus one; 0 when none is. Source: ksec2ReadUcodeFuseVersion_GA100.
uint32_t fuse_version(uint32_t fuse_register);

/// The index of the signature for a card. With one signature it is the one, whatever the fuses say
/// (s_patchBooterUcodeSignature). Errors: kUnsupported: the fuses want a version that has none.
Result<size_t> signature_index(const HsUcode& ucode, uint32_t fuse_register);

/// The image with its signature in place.
Result<std::vector<std::byte>> signed_image(const HsUcode& ucode, uint32_t fuse_register);

/// gen_bootloader. Source: open-gpu-kernel-modules 570.144, rmflcnbl.h, RM_FLCN_BL_DESC.
struct FalconBootLoader {
  uint32_t start_tag = 0;      ///< of its first 256 bytes; it starts at this × 256
  uint32_t descriptor_at = 0;  ///< in the falcon's data memory: where it looks for what to load
  std::span<const std::byte> code;
  std::span<const std::byte> data;  ///< not loaded by any driver; may be empty
};

Result<FalconBootLoader> parse_falcon_boot_loader(const Image& file);

}  // namespace bm::firmware::nvidia
