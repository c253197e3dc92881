#pragma once
// Writes files and ROMs of NVIDIA's for the tests, by offsets read again in the script that makes
// the files (open-gpu-kernel-modules, nouveau/extract-firmware-nouveau.py), in kernel_gsp_fwsec.c
// and in the PCI Firmware Specification 3.0, 5.1: nothing here comes from the product.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "firmware/image.h"

namespace bm::firmware::nvidia {

using Bytes = std::vector<uint8_t>;

inline std::span<const std::byte> view(const Bytes& bytes) {
  return std::as_bytes(std::span(bytes));
}
inline Image image_of(const Bytes& bytes) { return Image("file", view(bytes)); }

template <class T>
void set(Bytes& bytes, size_t at, T value) {
  if (bytes.size() < at + sizeof value) bytes.resize(at + sizeof value);
  for (size_t i = 0; i < sizeof value; ++i)
    bytes[at + i] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i));
}
inline void words(Bytes& bytes, size_t at, const std::vector<uint32_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) set(bytes, at + 4 * i, values[i]);
}
inline uint32_t get32(const Bytes& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | bytes.at(at + i);
  return value;
}
inline void text(Bytes& bytes, size_t at, std::string_view what) {
  for (size_t i = 0; i < what.size(); ++i) set(bytes, at + i, static_cast<uint8_t>(what[i]));
}
/// `count` bytes that differ from their neighbours and from other seeds'.
inline Bytes pattern(size_t count, uint32_t seed) {
  Bytes bytes(count);
  uint32_t state = seed * 2654435761u + 1;
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}
inline void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }

/// booter(), scrubber(): header 24, hs header 36, signatures, six words, load header, image.
struct HsFile {
  uint32_t signatures = 2, signature_bytes = 16, fuse_version = 1, engine_id = 1, ucode_id = 3;
  uint32_t os_data = 0x300, os_data_bytes = 0x100, signature_at = 0x310, image_bytes = 0x400;

  Bytes build() const {
    const uint32_t all = signatures * signature_bytes, after = 60 + all, data = 120 + all;
    Bytes bytes;
    words(bytes, 0, {0x10de, 1, (data + image_bytes + 255) / 256 * 256, 24, data, image_bytes});
    words(bytes, 24, {60, all, after, after + 4, after + 8, 12, after + 20, after + 24, 36});
    for (uint32_t i = 0; i < signatures; ++i) append(bytes, pattern(signature_bytes, 100 + i));
    words(bytes, after,
          {signature_at, 0, fuse_version, engine_id, ucode_id, signatures, 0, 0x100, os_data,
           os_data_bytes, 1, 0x100, 0x200, 0x100, 0});
    append(bytes, pattern(image_bytes, 1));
    return bytes;
  }
};

/// gsp_bootloader(): header 24, descriptor, image. Of whole pages, as NVIDIA's: drivers place it
/// right below the FRTS region.
inline Bytes riscv_file(const std::vector<uint32_t>& descriptor, uint32_t image_bytes = 0x1000) {
  Bytes bytes;
  const auto data = static_cast<uint32_t>(24 + 4 * descriptor.size());
  words(bytes, 0, {0x10de, 1, (data + image_bytes + 255) / 256 * 256, 24, data, image_bytes});
  words(bytes, 24, descriptor);
  append(bytes, pattern(image_bytes, 2));
  return bytes;
}
/// As GA102's: version 5 with all parts.
inline std::vector<uint32_t> riscv_descriptor() {
  return {5,     0x600, 0x80,  0x680, 0x10, 0, 0, 0x1234, 0x0,   0x80, 0x80,
          0x100, 0x180, 0x200, 1,     0,    0, 0, 0,      0x900, 1};
}

/// generic_bootloader(): header 24, descriptor 24, image.
inline Bytes gen_bootloader_file() {
  Bytes bytes;
  words(bytes, 0, {0x10de, 1, 0x400, 24, 48, 0x300, 0xfd, 0x20, 0, 0x200, 0x200, 0x100});
  append(bytes, pattern(0x300, 3));
  return bytes;
}

struct Part {
  std::string name;
  Bytes bytes;
};
/// fmc(): ELF32, section headers, names, sections; sh_info is zlib's CRC-32.
inline uint32_t slow_crc32(const Bytes& bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
  }
  return ~crc;
}
inline Bytes fmc_file(const std::vector<Part>& parts) {
  const auto count = static_cast<uint16_t>(parts.size() + 2);
  Bytes bytes;
  text(bytes, 0,
       "\x7f"
       "ELF\x01\x01\x01");
  set<uint32_t>(bytes, 20, 1);
  set<uint32_t>(bytes, 32, 52);  // e_shoff
  set<uint16_t>(bytes, 40, 52);
  set<uint16_t>(bytes, 46, 40);  // e_shentsize
  set<uint16_t>(bytes, 48, count);
  set<uint16_t>(bytes, 50, 1);  // e_shstrndx
  std::string names(1, '\0');
  names += std::string(".shstrtab") + '\0';
  size_t at = 52 + 40u * count;
  std::vector<uint32_t> name_at;
  for (const Part& part : parts) {
    name_at.push_back(static_cast<uint32_t>(names.size()));
    names += part.name + '\0';
  }
  bytes.resize(at);
  words(
      bytes, 52 + 40,
      {1, 3, 0x20, 0, static_cast<uint32_t>(at), static_cast<uint32_t>(names.size()), 0, 0, 1, 0});
  text(bytes, at, names);
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes.resize((bytes.size() + 3) / 4 * 4);
    words(bytes, 52 + 40 * (i + 2),
          {name_at[i], 1, 0xfff00102, 0, static_cast<uint32_t>(bytes.size()),
           static_cast<uint32_t>(parts[i].bytes.size()), 0, slow_crc32(parts[i].bytes), 4, 0});
    append(bytes, parts[i].bytes);
  }
  return bytes;
}
inline std::vector<Part> fmc_parts(size_t key = 97, size_t signature = 96) {
  return {{"hash", pattern(48, 11)},
          {"signature", pattern(signature, 12)},
          {"publickey", pattern(key, 13)},
          {"image", pattern(0x148, 14)}};
}

/// ELF64 as readelf shows gsp.bin: contents first, headers behind them.
inline Bytes gsp_file(const std::vector<Part>& parts) {
  Bytes bytes(64);
  text(bytes, 0,
       "\x7f"
       "ELF\x02\x01\x01");
  set<uint16_t>(bytes, 16, 1);
  set<uint16_t>(bytes, 18, 243);  // RISC-V
  set<uint32_t>(bytes, 20, 1);
  set<uint16_t>(bytes, 52, 64);
  set<uint16_t>(bytes, 58, 64);
  std::string names(1, '\0');
  struct Header {
    uint32_t name, type;
    uint64_t at, bytes;
  };
  std::vector<Header> headers;
  for (const Part& part : parts) {
    headers.push_back({static_cast<uint32_t>(names.size()), 1, bytes.size(), part.bytes.size()});
    names += part.name + '\0';
    append(bytes, part.bytes);
  }
  headers.push_back({static_cast<uint32_t>(names.size()), 3, bytes.size(), 0});
  names += std::string(".shstrtab") + '\0';
  headers.back().bytes = names.size();
  text(bytes, bytes.size(), names);
  bytes.resize((bytes.size() + 7) / 8 * 8);
  const size_t table = bytes.size();
  set<uint64_t>(bytes, 40, table);
  set<uint16_t>(bytes, 60, static_cast<uint16_t>(headers.size() + 1));
  set<uint16_t>(bytes, 62, static_cast<uint16_t>(headers.size()));
  bytes.resize(table + 64 * (headers.size() + 1));
  for (size_t i = 0; i < headers.size(); ++i) {
    const size_t at = table + 64 * (i + 1);
    set(bytes, at, headers[i].name);
    set(bytes, at + 4, headers[i].type);
    set(bytes, at + 24, headers[i].at);
    set(bytes, at + 32, headers[i].bytes);
    set<uint64_t>(bytes, at + 48, 1);
  }
  return bytes;
}
inline Bytes version_section(std::string_view version) {
  Bytes bytes;
  text(bytes, 0, version);
  bytes.push_back(0);
  return bytes;
}
inline std::vector<Part> gsp_parts() {
  return {{".fwimage", pattern(0x1800, 21)},       {".fwversion", version_section("570.144")},
          {".fwsignature_ad10x", pattern(64, 22)}, {".fwsignature_cc_gh100", pattern(64, 23)},
          {".fwsignature_gh100", pattern(64, 24)}, {".fwsignature_ga10x", pattern(64, 25)}};
}

/// A ROM: optional setup values, x86 image with the BIT, EFI image, two of NVIDIA's; FWSEC in the
/// second. Offsets of what tests damage are kept.
struct RomFile {
  int ifr_version = 0;     ///< 0: none
  uint8_t descriptor = 3;  ///< its version
  bool has_nbsi = false;   ///< a notebook's image at the end
  bool nbsi_says_last = true;
  uint8_t application = 0x85;
  uint8_t token_bytes = 6;
  uint32_t signatures = 3;
  uint16_t versions = 0xb;                  ///< 0, 1 and 3
  std::vector<uint8_t> before{0x07, 0x45};  ///< applications of entries in front

  Bytes bytes{};
  size_t start = 0, bit = 0, tokens = 0, table = 0, desc = 0, code = 0, data = 0;
  std::vector<size_t> images{};
  Bytes code_bytes{}, data_bytes{};

  static constexpr uint32_t kBase = 0x800, kEfi = 0x600, kFirst = 0x400;
  static constexpr uint32_t kInterface = 0x20, kMapper = 0x60, kInput = 0x140, kSignature = 0x180;

  /// Header, PCIR or NPDS, NPDE behind it.
  void add_image(uint32_t size, uint8_t type, uint16_t signature, std::string_view pci,
                 uint8_t pci_last, int extension_last) {
    const size_t at = bytes.size();
    images.push_back(at);
    bytes.resize(at + size);
    set<uint16_t>(bytes, at, signature);
    set<uint16_t>(bytes, at + 0x18, 0x24);
    text(bytes, at + 0x24, pci);
    set<uint16_t>(bytes, at + 0x28, 0x10de);
    set<uint16_t>(bytes, at + 0x2a, 0x2484);
    set<uint16_t>(bytes, at + 0x2e, 0x18);
    // Without an extension this is the size; with one, it is not looked at.
    set<uint16_t>(bytes, at + 0x34,
                  extension_last < 0 ? static_cast<uint16_t>(size / 512) : 0x7777);
    set<uint8_t>(bytes, at + 0x38, type);
    set<uint8_t>(bytes, at + 0x39, pci_last);
    if (extension_last < 0) return;
    text(bytes, at + 0x40, "NPDE");  // 0x24 + 0x18, rounded up to 16
    set<uint16_t>(bytes, at + 0x44, 0x101);
    set<uint16_t>(bytes, at + 0x46, 0x14);
    set<uint16_t>(bytes, at + 0x48, static_cast<uint16_t>(size / 512));
    set<uint8_t>(bytes, at + 0x4a, static_cast<uint8_t>(extension_last));
  }

  void build_ifr() {
    if (ifr_version == 0) return;
    start = ifr_version == 3 ? 0x3000 : 0x400;
    bytes.resize(start);
    text(bytes, 0, "NVGI");
    set<uint8_t>(bytes, 5, static_cast<uint8_t>(ifr_version));
    if (ifr_version == 3) {
      set<uint32_t>(bytes, 8, 0xfff00040);  // 19:0 count
      set<uint32_t>(bytes, 0x40, 0x80);
      text(bytes, 0x1080, "RFRD");
      set<uint32_t>(bytes, 0x1088, static_cast<uint32_t>(start));
    } else {
      set<uint16_t>(bytes, 6, 0x8040);  // 30:16 count
      set<uint32_t>(bytes, 0x44, static_cast<uint32_t>(start));
    }
  }

  void build_bit() {
    bit = start + 0x1b0;
    text(bytes, bit - 0x40,
         std::string_view("\xff\xb8"
                          "BIT\0",
                          6));  // one whose sum is wrong
    set<uint8_t>(bytes, bit - 0x40 + 8, 12);
    text(bytes, bit,
         std::string_view("\xff\xb8"
                          "BIT\0",
                          6));
    set<uint16_t>(bytes, bit + 6, 0x100);
    set<uint8_t>(bytes, bit + 8, 12);
    set<uint8_t>(bytes, bit + 9, token_bytes);
    set<uint8_t>(bytes, bit + 10, 3);
    fix_bit_sum();
    tokens = bit + 12;
    const struct {
      uint8_t id, version;
      uint16_t size, pointer;
    } all[] = {{0x32, 1, 4, 0x10}, {0x42, 2, 37, 0x240}, {0x70, 2, 4, 0x260}};
    for (size_t i = 0; i < 3; ++i) {
      const size_t at = tokens + i * token_bytes;
      set(bytes, at, all[i].id);
      set(bytes, at + 1, all[i].version);
      set(bytes, at + 2, all[i].size);
      set(bytes, at + 4, all[i].pointer);
    }
    words(bytes, start + 0x240, {0x94027100});
    set<uint8_t>(bytes, start + 0x244, 0x5e);
  }
  void fix_bit_sum() {
    set<uint8_t>(bytes, bit + 11, 0);
    uint8_t sum = 0;
    for (size_t i = 0; i < 12; ++i) sum = static_cast<uint8_t>(sum + bytes[bit + i]);
    set<uint8_t>(bytes, bit + 11, static_cast<uint8_t>(-sum));
  }

  /// Pointers are as if the EFI image were not there.
  uint32_t pointer(size_t at) const { return static_cast<uint32_t>(at - start - kEfi); }

  void build_fwsec(size_t image) {
    table = image + 0x80;
    set<uint32_t>(bytes, start + 0x260, pointer(table));
    desc = image + 0x200;
    const auto count = static_cast<uint8_t>(before.size() + 2);
    const uint8_t header[] = {1, 6, 6, count, 1, 48};
    for (size_t i = 0; i < 6; ++i) set(bytes, table + i, header[i]);
    size_t at = table + 6;
    for (const uint8_t other : before) {
      set(bytes, at, other);
      set<uint32_t>(bytes, at + 2, pointer(image + 0x100));
      at += 6;
    }
    at += 6;  // one that is not used
    set(bytes, at, application);
    set<uint8_t>(bytes, at + 1, 7);
    set(bytes, at + 2, pointer(desc));
    const uint32_t code_size = 0x500, data_size = 0x310;
    const uint32_t desc_size = descriptor == 2 ? 60 : 44 + signatures * 384;
    const uint32_t vdesc = 1u | uint32_t{descriptor} << 8 | desc_size << 16;
    const uint32_t gap = descriptor == 2 ? 0x40 : 0;
    code = desc + desc_size;
    data = code + code_size + gap;
    if (descriptor == 2)
      words(bytes, desc,
            {vdesc, 0x900, 0x900, 0x10, kInterface, 0, code_size, 0x1000, 0x1100, 0x3f0,
             code_size + gap, 0, data_size, 0, 0});
    else
      words(bytes, desc,
            {vdesc, code_size + data_size, kSignature, kInterface, 0, code_size, 0x2000, 0,
             data_size, 0x09000400, versions});
    if (descriptor != 2) {
      set<uint16_t>(bytes, desc + 36, 0x400);
      set<uint8_t>(bytes, desc + 38, 9);
      set(bytes, desc + 39, static_cast<uint8_t>(signatures));
      for (uint32_t i = 0; i < signatures; ++i) {
        const Bytes one = pattern(384, 200 + i);
        std::memcpy(&bytes[desc + 44 + 384 * i], one.data(), one.size());
      }
    }
    code_bytes = pattern(code_size, 31);
    data_bytes = pattern(data_size, 32);
    const uint8_t interfaces[] = {1, 4, 8, 2};
    for (size_t i = 0; i < 4; ++i) set(data_bytes, kInterface + i, interfaces[i]);
    words(data_bytes, kInterface + 4, {5, 0x1c, 4, kMapper});
    text(data_bytes, kMapper, "DMAP");
    words(data_bytes, kMapper + 4,
          {0x00400003, kInput, 0x40, 0x1000000, 0x100, 0x1e40, 0x2600, 0, 0x128, 0x130, 0, 0x14,
           0x44000, 0, 0});
    std::memcpy(&bytes[code], code_bytes.data(), code_size);
    std::memcpy(&bytes[data], data_bytes.data(), data_size);
  }

  RomFile& build() {
    bytes.clear();
    images.clear();
    build_ifr();
    add_image(kBase, 0x00, 0xaa55, "PCIR", 0, 0);
    add_image(kEfi, 0x03, 0xaa55, "PCIR", 0x80, 0);  // PCI's last, not NVIDIA's
    add_image(kFirst, 0xe0, 0x4e56, "NPDS", 0, 0);
    const size_t second = bytes.size();
    add_image(0x1000, 0xe0, 0x4e56, "NPDS", 0, has_nbsi ? 0 : 0x80);
    if (has_nbsi) add_image(0x200, 0x70, 0x4e56, "NPDS", nbsi_says_last ? 0x80 : 0, -1);
    build_bit();
    build_fwsec(second);
    append(bytes, pattern(0x100, 9));  // what dumps have behind the last image
    return *this;
  }
};

}  // namespace bm::firmware::nvidia
