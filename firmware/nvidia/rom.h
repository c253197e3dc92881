#pragma once
// NVIDIA's ROM: a header of the board's setup values, then images as PCI knows them (x86, EFI) and
// images of NVIDIA's own. Read from the card's registers or a dump; not a firmware file.
// Source: open-gpu-kernel-modules 570.144, kernel_gsp_vbios_tu102.c, pci_exp_table.h; nova-core
// vbios.rs; nouveau, nvkm/subdev/bios/image.c.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "firmware/image.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

/// Code types that are known; others are kept.
inline constexpr uint8_t kPcAtImage = 0x00, kEfiImage = 0x03, kNbsiImage = 0x70, kFwsecImage = 0xe0;

struct RomImage {
  uint32_t offset = 0;  ///< from the first image
  uint32_t size = 0;    ///< bytes, a multiple of 512
  uint8_t code_type = 0;
  uint16_t vendor = 0;
  uint16_t device = 0;
  bool is_last = false;
  bool has_extension = false;  ///< NVIDIA's PCI data extension (NPDE): its size and end count
};

struct Rom {
  std::string name;                  ///< for messages
  uint64_t start = 0;                ///< of the first image, from the start of what was read
  std::span<const std::byte> bytes;  ///< from there to the end of the last image
  std::vector<RomImage> images;
  /// What pointers of the x86 image's tables into images of type kFwsecImage have to be moved by:
  /// they were made without the EFI image that lies between. 0 without such images.
  uint32_t expansion_offset = 0;

  Image view() const { return Image(name, bytes); }
};

/// All images up to the last one. Errors: kCorrupt with the offset: no ROM, no end, an image of no
/// size or over the end of what was read.
Result<Rom> parse_rom(const Image& file);

}  // namespace bm::firmware::nvidia
