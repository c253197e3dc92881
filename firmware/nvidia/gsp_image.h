#pragma once
// What the GSP is booted with, in ELF files that hold nothing to be linked: sections with names.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firmware/image.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

/// gsp.bin. Source: open-gpu-kernel-modules 570.144, kernel_gsp.c (_kgspPrepareGspRmBinaryImage,
/// _kgspGetSectionNameForPrefix), g_kernel_gsp_nvoc.h (GSP_SIGNATURE_SECTION_NAME_PREFIX).
struct GspImage {
  std::string name;                  ///< for messages
  std::span<const std::byte> image;  ///< .fwimage
  std::string_view version;          ///< .fwversion: "570.144"
  struct Signature {
    std::string_view family;  ///< of .fwsignature_<family>: "ga10x", "cc_gh100"
    std::span<const std::byte> bytes;
  };
  std::vector<Signature> signatures;  ///< in the order of the file

  /// Of a chip family ("tu10x", "ga100", …); `is_confidential`: the one for confidential computing
  /// (Hopper and GB10x), which has a signature of its own. Errors: kUnsupported naming file,
  /// family and those there are.
  Result<std::span<const std::byte>> signature_of(std::string_view family,
                                                  bool is_confidential = false) const;
};

/// Errors: kCorrupt (no ELF, a section missing, empty or twice, a version that is no text).
Result<GspImage> parse_gsp_image(const Image& file);

/// The first program of the GSP on Hopper and Blackwell, with what the FSP is told to check it by:
/// a 32-bit ELF file whose sections' sh_info is a CRC-32. Source: extract-firmware-nouveau.py
/// (fmc), nova-core firmware/fsp.rs, and for the sizes kern_fsp_cot_payload.h
/// (NVDM_PAYLOAD_COT).
struct FmcImage {
  std::span<const std::byte> image;
  std::span<const std::byte> hash;        ///< SHA-384: 48 bytes
  std::span<const std::byte> public_key;  ///< 1 to 384 bytes: RSA 384, ECDSA 97
  std::span<const std::byte> signature;   ///< 1 to 384 bytes: RSA 384, ECDSA 96
};

/// Errors: kCorrupt with file and section; kUnsupported for another ELF class.
Result<FmcImage> parse_fmc_image(const Image& file);

}  // namespace bm::firmware::nvidia
