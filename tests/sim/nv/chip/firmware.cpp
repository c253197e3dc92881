#include "tests/sim/nv/chip/firmware.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "tests/sim/nv/bytes.h"

namespace bm::sim::nv::card {
namespace {

uint32_t word(const Blob& from, size_t at) { return get<uint32_t>(from, at); }

std::optional<Blob> part(const Blob& from, uint64_t at, uint64_t bytes) {
  if (at > from.size() || bytes > from.size() - at) return std::nullopt;
  return Blob(from.begin() + static_cast<ptrdiff_t>(at),
              from.begin() + static_cast<ptrdiff_t>(at + bytes));
}

/// Section headers of ELF: offsets of their fields by class (elf.h).
struct ElfForm {
  size_t table, entry_bytes, count, names, name, offset, size;
  bool is_wide;
};
constexpr ElfForm kElf32{32, 46, 48, 50, 0, 16, 20, false};
constexpr ElfForm kElf64{40, 58, 60, 62, 0, 24, 32, true};

uint64_t elf_word(const Blob& file, size_t at, bool is_wide) {
  return is_wide ? get<uint64_t>(file, at) : get<uint32_t>(file, at);
}

std::optional<Blob> section(const Blob& file, std::string_view wanted) {
  if (file.size() < 64 || word(file, 0) != 0x464c457f) return std::nullopt;
  const ElfForm& form = std::to_integer<int>(file[4]) == 2 ? kElf64 : kElf32;
  const uint64_t table = elf_word(file, form.table, form.is_wide);
  const uint64_t bytes = get<uint16_t>(file, form.entry_bytes);
  const uint32_t count = get<uint16_t>(file, form.count);
  const uint64_t names_at = table + bytes * get<uint16_t>(file, form.names);
  const uint64_t names = elf_word(file, names_at + form.offset, form.is_wide);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = table + bytes * i;
    const uint64_t name = names + get<uint32_t>(file, at + form.name);
    if (name >= file.size()) continue;
    const auto* const text = reinterpret_cast<const char*>(&file[name]);
    if (std::string_view(text, strnlen(text, file.size() - name)) != wanted) continue;
    return part(file, elf_word(file, at + form.offset, form.is_wide),
                elf_word(file, at + form.size, form.is_wide));
  }
  return std::nullopt;
}

/// The container around NVIDIA's images: 0x10de, 1, whole size, header, data, data size.
struct Container {
  uint32_t header;
  Blob data;
};
std::optional<Container> open_container(const Blob& file, std::string* why) {
  if (word(file, 0) != 0x10de || word(file, 4) != 1) {
    *why = "no container of NVIDIA's";
    return std::nullopt;
  }
  auto data = part(file, word(file, 16), word(file, 20));
  if (!data) {
    *why = "the data reaches beyond the file";
    return std::nullopt;
  }
  return Container{word(file, 12), std::move(*data)};
}

/// Bytes that differ from their neighbours.
Blob noise(size_t count, uint32_t seed) {
  Blob out(count);
  uint32_t state = seed * 0x9e3779b1u + 7;
  for (std::byte& one : out) {
    state = state * 1103515245 + 12345;
    one = static_cast<std::byte>(state >> 23);
  }
  return out;
}

template <class T>
void set(Blob& to, size_t at, T value) {
  if (to.size() < at + sizeof value) to.resize(at + sizeof value);
  std::memcpy(&to[at], &value, sizeof value);
}
void set_text(Blob& to, size_t at, std::string_view text) {
  if (to.size() < at + text.size()) to.resize(at + text.size());
  std::memcpy(&to[at], text.data(), text.size());
}

}  // namespace

FirmwareFiles FirmwareFiles::load(const std::string& folder, const CardRow& row,
                                  std::string_view version) {
  FirmwareFiles out;
  for (const std::string_view name :
       {"booter_load", "booter_unload", "bootloader", "gsp", "fmc", "scrubber", "gen_bootloader"}) {
    // A package's links may be folders that another machine has: where there is none, the
    // image lies in the folder of the chip that it was made for.
    for (const std::string_view chip : {row.name, row.gsp_of}) {
      std::ifstream in(fmt::format("{}/nvidia/{}/gsp/{}-{}.bin", folder, chip, name, version),
                       std::ios::binary);
      if (!in || (chip != row.name && name != "gsp" && name != "gen_bootloader")) continue;
      const std::string bytes((std::istreambuf_iterator<char>(in)), {});
      Blob blob(bytes.size());
      std::memcpy(blob.data(), bytes.data(), bytes.size());
      out.files[std::string(name)] = std::move(blob);
      break;
    }
  }
  return out;
}

const Blob* HsProgram::signature_for(uint32_t fuse) const {
  if (signatures.empty()) return nullptr;
  if (signature_versions != 0) {
    // s_prepareForFwsec_TU102(): one signature for each bit, in their order.
    if ((signature_versions >> fuse & 1) == 0) return nullptr;
    const auto index =
        static_cast<size_t>(std::popcount(signature_versions & ((uint32_t{1} << fuse) - 1)));
    return index < signatures.size() ? &signatures[index] : nullptr;
  }
  // s_patchBooterUcodeSignature(): the newest first.
  if (signatures.size() == 1) return &signatures.front();
  return fuse < signatures.size() ? &signatures[signatures.size() - 1 - fuse] : nullptr;
}

std::optional<HsProgram> read_hs(HsProgram::Kind kind, const Blob& file, std::string* why) {
  auto container = open_container(file, why);
  if (!container) return std::nullopt;
  const size_t h = container->header;
  HsProgram out;
  out.kind = kind;
  out.name = kind == HsProgram::Kind::kBooterLoad     ? "booter_load"
             : kind == HsProgram::Kind::kBooterUnload ? "booter_unload"
                                                      : "scrubber";
  // Signatures, patch_loc, patch_sig, {fuse version, engine, ucode}, number of signatures, header.
  const uint32_t all = word(file, h + 4), patch = word(file, word(file, h + 8));
  const uint32_t meta = word(file, h + 16), count = word(file, word(file, h + 24));
  const uint32_t load = word(file, h + 28);
  out.engine_mask = word(file, meta + 4);
  out.ucode_id = word(file, meta + 8);
  if (count == 0 || all % count != 0) {
    *why = "signatures do not divide";
    return std::nullopt;
  }
  out.signature_bytes = all / count;
  for (uint32_t i = 0; i < count; ++i) {
    auto one = part(file, word(file, h) + i * out.signature_bytes, out.signature_bytes);
    if (!one) {
      *why = "a signature reaches beyond the file";
      return std::nullopt;
    }
    out.signatures.push_back(std::move(*one));
  }
  // osCodeOffset, osCodeSize, osDataOffset, osDataSize, numApps, appCodeOffset, appCodeSize.
  const uint32_t os_code = word(file, load), os_bytes = word(file, load + 4);
  const uint32_t data = word(file, load + 8), data_bytes = word(file, load + 12);
  const uint32_t app = word(file, load + 20), app_bytes = word(file, load + 24);
  auto os_part = part(container->data, os_code, os_bytes);
  auto app_part = part(container->data, app, app_bytes);
  auto data_part = part(container->data, data, data_bytes);
  if (!os_part || !app_part || !data_part || patch < data ||
      patch - data + out.signature_bytes > data_bytes) {
    *why = "a part reaches beyond the image";
    return std::nullopt;
  }
  out.code_virtual = app;
  out.front = std::move(*os_part);
  out.code = std::move(*app_part);
  out.data = std::move(*data_part);
  out.signature_at = patch - data;
  return out;
}

std::optional<RiscvImage> read_riscv(const Blob& file, std::string* why) {
  auto container = open_container(file, why);
  if (!container) return std::nullopt;
  const size_t h = container->header;
  // RM_RISCV_UCODE_DESC (K arch/nvalloc/common/inc/rmRiscvUcode.h).
  return RiscvImage{std::move(container->data), word(file, h + 48), word(file, h + 40),
                    word(file, h + 32), word(file, h + 28)};
}

std::optional<GspImage> read_gsp(const Blob& file, std::string_view signature, std::string* why) {
  auto image = section(file, ".fwimage");
  auto sign = section(file, signature);
  if (!image || !sign) {
    *why = fmt::format("no section {}", image ? signature : ".fwimage");
    return std::nullopt;
  }
  return GspImage{std::move(*image), std::move(*sign)};
}

std::optional<FmcImage> read_fmc(const Blob& file, std::string* why) {
  auto image = section(file, "image"), hash = section(file, "hash");
  auto key = section(file, "publickey"), signature = section(file, "signature");
  if (!image || !hash || !key || !signature) {
    *why = "a section is missing";
    return std::nullopt;
  }
  return FmcImage{std::move(*image), std::move(*hash), std::move(*key), std::move(*signature)};
}

std::optional<LoaderImage> read_loader(const Blob& file, std::string* why) {
  auto container = open_container(file, why);
  if (!container) return std::nullopt;
  const size_t h = container->header;
  // RM_FLCN_BL_DESC: start tag, offset for the DMEM, code offset and size, data offset and size.
  auto code = part(container->data, word(file, h + 8), word(file, h + 12));
  if (!code) {
    *why = "the code reaches beyond the image";
    return std::nullopt;
  }
  return LoaderImage{std::move(*code), word(file, h), word(file, h + 4)};
}

Vbios make_vbios(const CardRow& row) {
  constexpr uint32_t kBase = 0x800, kEfi = 0x400, kExtension = 0x20000;
  Vbios out;
  Blob& rom = out.rom;
  const auto add_image = [&](uint32_t bytes, uint8_t type, uint16_t signature, std::string_view pci,
                             bool is_last) {
    // PCI Firmware Specification 3.0, 5.1; NVIDIA's NPDE behind it.
    const size_t at = rom.size();
    rom.resize(at + bytes);
    set<uint16_t>(rom, at, signature);
    set<uint16_t>(rom, at + 0x18, 0x20);
    set_text(rom, at + 0x20, pci);
    set<uint16_t>(rom, at + 0x24, 0x10de);
    set<uint16_t>(rom, at + 0x26, row.device);
    set<uint16_t>(rom, at + 0x2a, 0x18);
    set<uint16_t>(rom, at + 0x30, static_cast<uint16_t>(bytes / 512));
    set<uint8_t>(rom, at + 0x34, type);
    set<uint8_t>(rom, at + 0x35, is_last ? 0x80 : 0);
    set_text(rom, at + 0x40, "NPDE");
    set<uint16_t>(rom, at + 0x44, 0x101);
    set<uint16_t>(rom, at + 0x46, 0x14);
    set<uint16_t>(rom, at + 0x48, static_cast<uint16_t>(bytes / 512));
    set<uint8_t>(rom, at + 0x4a, is_last ? 0x80 : 0);
    return at;
  };
  add_image(kBase, 0x00, 0xaa55, "PCIR", false);
  add_image(kEfi, 0x03, 0xaa55, "PCIR", false);
  const size_t second = add_image(kExtension, 0xe0, 0x4e56, "NPDS", true);

  // BIT: header, two tokens.
  constexpr size_t kBit = 0x1b0;
  set<uint16_t>(rom, kBit, 0xb8ff);
  set<uint32_t>(rom, kBit + 2, 0x00544942);
  set<uint16_t>(rom, kBit + 6, 0x100);
  const uint8_t sizes[] = {12, 6, 2};
  for (size_t i = 0; i < 3; ++i) set(rom, kBit + 8 + i, sizes[i]);
  uint8_t sum = 0;
  for (size_t i = 0; i < 12; ++i)
    sum = static_cast<uint8_t>(sum + std::to_integer<uint8_t>(rom[kBit + i]));
  set<uint8_t>(rom, kBit + 11, static_cast<uint8_t>(-sum));
  const struct {
    uint8_t id, version;
    uint16_t bytes, at;
  } tokens[] = {{0x42, 2, 37, 0x240}, {0x70, 2, 4, 0x280}};
  for (size_t i = 0; i < 2; ++i) {
    const size_t at = kBit + 12 + i * 6;
    set(rom, at, tokens[i].id);
    set(rom, at + 1, tokens[i].version);
    set(rom, at + 2, tokens[i].bytes);
    set(rom, at + 4, tokens[i].at);
  }
  set<uint32_t>(rom, 0x240, 0x95020400);
  if (row.descriptor == 0) {
    rom.resize(1 << 20, std::byte{0xff});
    return out;
  }

  // Pointers count as if the EFI image were not there.
  const auto pointer = [&](size_t at) { return static_cast<uint32_t>(at - kEfi); };
  const size_t table = second + 0x80, descriptor = second + 0x200;
  set<uint32_t>(rom, 0x280, pointer(table));
  const uint8_t header[] = {1, 6, 6, 2, 1, 44};
  for (size_t i = 0; i < 6; ++i) set(rom, table + i, header[i]);
  const uint8_t other = 0x07, fwsec = 0x85;
  set(rom, table + 6, other);
  set<uint32_t>(rom, table + 8, pointer(second + 0x100));
  set(rom, table + 12, fwsec);
  set<uint8_t>(rom, table + 13, 7);
  set(rom, table + 14, pointer(descriptor));

  constexpr uint32_t kCode = 0x1800, kData = 0x900, kSecureFrom = 0x100;
  constexpr uint32_t kInterface = 0x20, kMapper = 0x60, kInput = 0x140, kInputBytes = 0x80,
                     kSignature = 0x400, kSignatureBytes = 384;
  HsProgram program;
  program.kind = HsProgram::Kind::kFwsec;
  program.name = "FWSEC";
  program.code = noise(kCode, 31);
  program.data = noise(kData, 32);
  program.mapper_at = kMapper;
  const uint8_t interface[] = {1, 4, 8, 2};
  for (size_t i = 0; i < 4; ++i) set(program.data, kInterface + i, interface[i]);
  const uint32_t entries[] = {5, 0x1c, 4, kMapper};
  for (size_t i = 0; i < 4; ++i) set(program.data, kInterface + 4 + 4 * i, entries[i]);
  set_text(program.data, kMapper, "DMAP");
  set<uint16_t>(program.data, kMapper + 4, 3);
  set<uint16_t>(program.data, kMapper + 6, 0x40);
  set(program.data, kMapper + 8, kInput);
  set(program.data, kMapper + 12, kInputBytes);
  set<uint32_t>(program.data, kMapper + 44, 0);  // init_cmd

  const bool is_v2 = row.descriptor == 2;
  const uint32_t signatures = is_v2 ? 0 : 2;
  const uint32_t bytes = is_v2 ? 60 : 44 + signatures * kSignatureBytes;
  set(rom, descriptor, 1u | row.descriptor << 8 | bytes << 16);
  if (is_v2) {
    // FALCON_UCODE_DESC_V2
    const uint32_t words[] = {
        kCode + kData, kCode + kData,       0,     kInterface, 0,     kCode, 0,
        kSecureFrom,   kCode - kSecureFrom, kCode, 0,          kData, 0,     0};
    for (size_t i = 0; i < std::size(words); ++i) set(rom, descriptor + 4 + 4 * i, words[i]);
    program.code_virtual = kSecureFrom;
  } else {
    // FALCON_UCODE_DESC_V3; IMEMVirtBase is 0 in the ROMs of cards.
    const uint32_t words[] = {kCode + kData, kSignature, kInterface, 0, kCode, 0, 0, kData};
    for (size_t i = 0; i < std::size(words); ++i) set(rom, descriptor + 4 + 4 * i, words[i]);
    program.code_virtual = 0;
    program.engine_mask = 0x400;
    program.ucode_id = 9;
    program.signature_at = kSignature;
    program.signature_bytes = kSignatureBytes;
    program.signature_versions = 3;
    set<uint16_t>(rom, descriptor + 36, static_cast<uint16_t>(program.engine_mask));
    set<uint8_t>(rom, descriptor + 38, static_cast<uint8_t>(program.ucode_id));
    set<uint8_t>(rom, descriptor + 39, static_cast<uint8_t>(signatures));
    set<uint16_t>(rom, descriptor + 40, static_cast<uint16_t>(program.signature_versions));
    for (uint32_t i = 0; i < signatures; ++i) {
      program.signatures.push_back(noise(kSignatureBytes, 200 + i));
      std::memcpy(&rom[descriptor + 44 + size_t{kSignatureBytes} * i],
                  program.signatures.back().data(), kSignatureBytes);
    }
  }
  std::memcpy(&rom[descriptor + bytes], program.code.data(), kCode);
  std::memcpy(&rom[descriptor + bytes + kCode], program.data.data(), kData);
  if (is_v2) {
    program.front.assign(program.code.begin(), program.code.begin() + kSecureFrom);
    program.code.erase(program.code.begin(), program.code.begin() + kSecureFrom);
  }
  out.fwsec = std::move(program);
  rom.resize(1 << 20, std::byte{0xff});
  return out;
}

}  // namespace bm::sim::nv::card
