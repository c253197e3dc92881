#include "firmware/nvidia/rom.h"

#include <algorithm>

namespace bm::firmware::nvidia {
namespace {

constexpr uint16_t kRomSignatures[] = {0xaa55, 0x4e56, 0xbb77};  // IS_VALID_PCI_ROM_SIG
constexpr uint32_t kPciData[] = {0x52494350,                     // "PCIR"
                                 0x5344504e,                     // "NPDS"
                                 0x53494752};                    // "RGIS"
constexpr uint32_t kExtension = 0x4544504e;                      // "NPDE"
constexpr uint16_t kExtensionV10 = 0x100, kExtensionV11 = 0x101;
constexpr uint32_t kIfr = 0x4947564e;           // "NVGI"
constexpr uint32_t kRomDirectory = 0x44524652;  // "RFRD"
constexpr uint64_t kDirectoryBehindStatus = 4096;
constexpr uint64_t kPciDataPointer = 0x18;
constexpr uint32_t kBlockBytes = 512;
constexpr uint8_t kIsLast = 0x80;

template <class List, class T>
bool is_one_of(const List& list, T value) {
  return std::ranges::find(list, value) != std::end(list);
}

/// s_romImgFindPciHeader_TU102: the board's setup values (init from ROM) before the images.
Result<uint64_t> find_first_image(const Image& file) {
  const auto fixed0 = BM_TRY(file.at<uint32_t>(0, "start of the ROM"));
  if (is_one_of(kRomSignatures, static_cast<uint16_t>(fixed0)) && fixed0 != kIfr)
    return uint64_t{0};
  if (fixed0 != kIfr)
    return fail(Code::kCorrupt, "{}: no ROM of NVIDIA: it begins with {:#010x}", file.name(),
                fixed0);
  const auto fixed1 = BM_TRY(file.at<uint32_t>(4, "IFR"));
  const uint32_t version = fixed1 >> 8 & 0xff;
  uint64_t start = 0;
  if (version == 1 || version == 2) {
    const uint64_t extended = fixed1 >> 16 & 0x7fff;
    start = BM_TRY(file.at<uint32_t>(extended + 4, "IFR: start of the images"));
  } else if (version == 3) {
    const uint64_t total = BM_TRY(file.at<uint32_t>(8, "IFR: size")) & 0xfffff;
    const uint64_t status = BM_TRY(file.at<uint32_t>(total, "IFR: flash status"));
    const uint64_t directory = status + kDirectoryBehindStatus;
    const auto signature = BM_TRY(file.at<uint32_t>(directory, "ROM directory"));
    if (signature != kRomDirectory)
      return fail(Code::kCorrupt, "{}: no ROM directory at {:#x} but {:#010x}", file.name(),
                  directory, signature);
    start = BM_TRY(file.at<uint32_t>(directory + 8, "ROM directory: start of the images"));
  } else {
    return fail(Code::kUnsupported, "{}: IFR version {} at 0x5, 1 to 3 are known", file.name(),
                version);
  }
  if (start % 4 != 0)
    return fail(Code::kCorrupt, "{}: images start at {:#x}, no multiple of 4", file.name(), start);
  return start;
}

/// The image at `at` of `file`; offsets in the result count from the first image, at `start`.
Result<RomImage> read_image(const Image& file, uint64_t start, uint64_t at) {
  const auto signature = BM_TRY(file.at<uint16_t>(at, "ROM signature"));
  if (!is_one_of(kRomSignatures, signature))
    return fail(Code::kCorrupt, "{}: no image at {:#x} but {:#06x}", file.name(), at, signature);
  const uint64_t data = at + BM_TRY(file.at<uint16_t>(at + kPciDataPointer, "PCI data pointer"));
  const auto data_signature = BM_TRY(file.at<uint32_t>(data, "PCI data structure"));
  if (!is_one_of(kPciData, data_signature))
    return fail(Code::kCorrupt, "{}: no PCI data structure at {:#x} but {:#010x}", file.name(),
                data, data_signature);
  RomImage image{.vendor = BM_TRY(file.at<uint16_t>(data + 4, "vendor")),
                 .device = BM_TRY(file.at<uint16_t>(data + 6, "device"))};
  const auto data_bytes = BM_TRY(file.at<uint16_t>(data + 0xa, "PCI data length"));
  const auto blocks = BM_TRY(file.at<uint16_t>(data + 0x10, "image length"));
  image.code_type = BM_TRY(file.at<uint8_t>(data + 0x14, "code type"));
  image.is_last = (BM_TRY(file.at<uint8_t>(data + 0x15, "last image")) & kIsLast) != 0;
  uint32_t count = blocks;
  // PCI's own last image may be followed by more: x86 firmware is not to see NVIDIA's.
  const uint64_t extension = (data + data_bytes + 15) & ~uint64_t{15};
  const auto extension_signature = file.at<uint32_t>(extension, "PCI data extension");
  if (extension_signature && *extension_signature == kExtension) {
    const auto revision = BM_TRY(file.at<uint16_t>(extension + 4, "PCI data extension"));
    if (revision == kExtensionV10 || revision == kExtensionV11) {
      image.has_extension = true;
      const auto bytes = BM_TRY(file.at<uint16_t>(extension + 6, "length of the extension"));
      count = BM_TRY(file.at<uint16_t>(extension + 8, "length of the image"));
      if (bytes > 0xa)
        image.is_last = (BM_TRY(file.at<uint8_t>(extension + 0xa, "last image")) & kIsLast) != 0;
      else if (count < blocks)
        image.is_last = false;
    }
  }
  if (count == 0) return fail(Code::kCorrupt, "{}: image at {:#x} has no size", file.name(), at);
  image.offset = static_cast<uint32_t>(at - start);
  image.size = count * kBlockBytes;
  BM_TRY(file.section(at, image.size, fmt::format("image of type {:#x}", image.code_type)));
  return image;
}

uint32_t expansion_offset(const std::vector<RomImage>& images) {
  const auto fwsec = std::ranges::find(images, kFwsecImage, &RomImage::code_type);
  const auto base = std::ranges::find(images, kPcAtImage, &RomImage::code_type);
  if (fwsec == images.end() || base == images.end() || fwsec->offset < base->size) return 0;
  return fwsec->offset - base->size;
}

}  // namespace

Result<Rom> parse_rom(const Image& file) {
  Rom rom;
  rom.name = file.name();
  rom.start = BM_TRY(find_first_image(file));
  uint64_t at = rom.start;
  for (;;) {
    Result<RomImage> image = read_image(file, rom.start, at);
    // The header of a notebook's image (NBSI) is not PCI's: nouveau and nova-core take it for the
    // last one whatever it says, the vendor's module asks it. Either way nothing has to follow.
    const bool may_end = !rom.images.empty() && rom.images.back().code_type == kNbsiImage &&
                         !rom.images.back().is_last;
    // So may others: behind FWSEC nothing is missed, where there are bytes and they begin no image.
    const auto signature = file.at<uint16_t>(at, "ROM signature");
    const bool is_blank = signature && !is_one_of(kRomSignatures, *signature) &&
                          std::ranges::count(rom.images, kFwsecImage, &RomImage::code_type) != 0;
    if (!image && (may_end || is_blank)) break;
    if (!image) return tl::unexpected<Error>(std::move(image.error()));
    at += image->size;
    rom.images.push_back(*image);
    if (image->is_last) break;
  }
  rom.images.back().is_last = true;
  rom.bytes = BM_TRY(file.section(rom.start, at - rom.start, "images"));
  rom.expansion_offset = expansion_offset(rom.images);
  return rom;
}

}  // namespace bm::firmware::nvidia
