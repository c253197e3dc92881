#include "firmware/nvidia/gsp_image.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "firmware/decompress.h"
#include "runtime/base/elf.h"

namespace bm::firmware::nvidia {
namespace {

constexpr std::string_view kSignaturePrefix = ".fwsignature_";
constexpr size_t kMostVersionBytes = 64;  // _kgspFwContainerVerifyVersion

/// Text with its terminator and nothing behind it, as the vendor's module wants it.
Result<std::string_view> version_text(const Image& file, std::span<const std::byte> bytes) {
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  const bool is_text =
      bytes.size() > 1 && bytes.size() < kMostVersionBytes && bytes.back() == std::byte{0} &&
      std::all_of(text, text + bytes.size() - 1, [](char c) { return c > ' ' && c <= '~'; });
  if (!is_text)
    return fail(Code::kCorrupt, "{}: .fwversion ({} bytes) is no text", file.name(), bytes.size());
  return std::string_view(text, bytes.size() - 1);
}

// Elf32_Ehdr and Elf32_Shdr. Source: System V gABI 4.1, chapters "Object Files" and "Sections".
struct Elf32Header {
  uint8_t ident[16];
  uint16_t type, machine;
  uint32_t version, entry, segments_at, sections_at, flags;
  uint16_t header_bytes, segment_bytes, segments, section_bytes, sections, names_index;
};
struct Elf32Section {
  uint32_t name, type, flags, address, offset, size, link, info, alignment, entry_size;
};
static_assert(sizeof(Elf32Header) == 52 && sizeof(Elf32Section) == 40);
constexpr uint32_t kProgbits = 1, kStrtab = 3;
/// SHF_OS_NONCONFORMING: sh_info is a CRC-32 (elf_section_header in the script that writes them).
constexpr uint32_t kHasCrc = 0x100;

Result<std::string_view> name_of(const Image& file, std::span<const std::byte> names, uint32_t at) {
  if (at >= names.size())
    return fail(Code::kCorrupt, "{}: name of a section at {:#x} of {:#x} bytes of names",
                file.name(), at, names.size());
  const auto* const text = reinterpret_cast<const char*>(names.data()) + at;
  const void* const end = std::memchr(text, 0, names.size() - at);
  if (end == nullptr)
    return fail(Code::kCorrupt, "{}: name of a section at {:#x} has no end", file.name(), at);
  return std::string_view(text, static_cast<size_t>(static_cast<const char*>(end) - text));
}

Result<std::vector<Elf32Section>> read_sections(const Image& file, uint16_t& names_index) {
  const auto header = BM_TRY(file.at<Elf32Header>(0, "ELF header"));
  constexpr uint8_t kMagic[] = {0x7f, 'E', 'L', 'F'};
  if (!std::equal(std::begin(kMagic), std::end(kMagic), header.ident))
    return fail(Code::kCorrupt, "{}: no ELF file", file.name());
  if (header.ident[4] != 1 || header.ident[5] != 1)
    return fail(Code::kUnsupported,
                "{}: ELF class {} data {}; 32-bit little endian is what these files are",
                file.name(), header.ident[4], header.ident[5]);
  if (header.section_bytes != sizeof(Elf32Section) || header.names_index >= header.sections)
    return fail(Code::kCorrupt, "{}: {} sections of {} bytes, names in {}", file.name(),
                header.sections, header.section_bytes, header.names_index);
  names_index = header.names_index;
  return file.table<Elf32Section>(header.sections_at, header.sections, "sections");
}

Status check_size(const Image& file, std::string_view what, size_t bytes, size_t least,
                  size_t most) {
  if (bytes < least || bytes > most)
    return fail(Code::kCorrupt, "{}: section {} has {} bytes, {} to {} can be", file.name(), what,
                bytes, least, most);
  return {};
}

}  // namespace

Result<std::span<const std::byte>> GspImage::signature_of(std::string_view family,
                                                          bool is_confidential) const {
  const std::string wanted = (is_confidential ? "cc_" : "") + std::string(family);
  const auto found = std::ranges::find(signatures, wanted, &Signature::family);
  if (found != signatures.end()) return found->bytes;
  std::vector<std::string> known;
  for (const Signature& signature : signatures) known.push_back(elf::one_line(signature.family));
  return fail(Code::kUnsupported, "{}: version {} has no signature for {}; it has {}", name,
              version, wanted, fmt::join(known, ", "));
}

Result<GspImage> parse_gsp_image(const Image& file) {
  auto elf = elf::File::parse(file.bytes());
  if (!elf) return tl::unexpected<Error>(std::move(elf.error()).within(file.name()));
  GspImage image;
  image.name = file.name();
  std::span<const std::byte> version;
  for (const elf::Section& section : elf->sections()) {
    const bool is_image = section.name == ".fwimage", is_version = section.name == ".fwversion";
    if (!is_image && !is_version && !section.name.starts_with(kSignaturePrefix)) continue;
    if (section.bytes.empty())
      return fail(Code::kCorrupt, "{}: section {} is empty", file.name(),
                  elf::one_line(section.name));
    const std::string_view family =
        is_image || is_version ? "" : section.name.substr(kSignaturePrefix.size());
    const bool is_there =
        is_image     ? !image.image.empty()
        : is_version ? !version.empty()
                     : std::ranges::find(image.signatures, family, &GspImage::Signature::family) !=
                           image.signatures.end();
    if (is_there)
      return fail(Code::kCorrupt, "{}: two sections {}, the second at {:#x}", file.name(),
                  elf::one_line(section.name), section.offset);
    if (is_image)
      image.image = section.bytes;
    else if (is_version)
      version = section.bytes;
    else if (family.empty())
      return fail(Code::kCorrupt, "{}: section {} names no chip", file.name(),
                  elf::one_line(section.name));
    else
      image.signatures.push_back({.family = family, .bytes = section.bytes});
  }
  if (image.image.empty() || version.empty() || image.signatures.empty())
    return fail(Code::kCorrupt, "{}: no GSP image: it lacks {}", file.name(),
                image.image.empty() ? ".fwimage"
                : version.empty()   ? ".fwversion"
                                    : ".fwsignature_*");
  image.version = BM_TRY(version_text(file, version));
  return image;
}

Result<FmcImage> parse_fmc_image(const Image& file) {
  uint16_t names_index = 0;
  const std::vector<Elf32Section> sections = BM_TRY(read_sections(file, names_index));
  const Elf32Section& table = sections[names_index];
  if (table.type != kStrtab)
    return fail(Code::kCorrupt, "{}: section {} with the names has type {}", file.name(),
                names_index, table.type);
  const auto names = BM_TRY(file.section(table.offset, table.size, "names of sections"));
  FmcImage fmc;
  struct Wanted {
    std::string_view name;
    std::span<const std::byte> FmcImage::* bytes;
  };
  constexpr Wanted kWanted[] = {{"image", &FmcImage::image},
                                {"hash", &FmcImage::hash},
                                {"publickey", &FmcImage::public_key},
                                {"signature", &FmcImage::signature}};
  for (size_t i = 1; i < sections.size(); ++i) {
    const Elf32Section& section = sections[i];
    const std::string_view name = BM_TRY(name_of(file, names, section.name));
    const auto* const wanted = std::ranges::find(kWanted, name, &Wanted::name);
    if (section.type != kProgbits || wanted == std::end(kWanted)) continue;
    if (!(fmc.*wanted->bytes).empty())
      return fail(Code::kCorrupt, "{}: two sections {}, the second at {:#x}", file.name(), name,
                  section.offset);
    const Image part =
        BM_TRY(file.part(section.offset, section.size, fmt::format("section {}", name)));
    if ((section.flags & kHasCrc) != 0) BM_TRY(part.check_crc32(0, section.info));
    fmc.*wanted->bytes = part.bytes();
  }
  // The arrays of the message to the FSP.
  constexpr size_t kHash = 48, kMost = 384;
  BM_TRY(check_size(file, "hash", fmc.hash.size(), kHash, kHash));
  BM_TRY(check_size(file, "publickey", fmc.public_key.size(), 1, kMost));
  BM_TRY(check_size(file, "signature", fmc.signature.size(), 1, kMost));
  BM_TRY(check_size(file, "image", fmc.image.size(), 1, file.size()));
  return fmc;
}

}  // namespace bm::firmware::nvidia
