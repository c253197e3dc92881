#include "firmware/nvidia/fwsec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "firmware/nvidia/vbios.h"

namespace bm::firmware::nvidia {
namespace {

// FALCON_UCODE_ENTRY_APPID_*: the first is of ROMs with one program for all boards.
constexpr uint8_t kFirmwareSecLic = 0x05, kFwsecDebug = 0x45, kFwsecProduction = 0x85;

struct DescV2 {
  uint32_t header, stored_size, uncompressed_size, virtual_entry, interface_offset, imem_phys_base,
      imem_load_size, imem_virt_base, imem_sec_base, imem_sec_size, dmem_offset, dmem_phys_base,
      dmem_load_size, alt_imem_load_size, alt_dmem_load_size;
};
struct DescV3 {
  uint32_t header, stored_size, pkc_data_offset, interface_offset, imem_phys_base, imem_load_size,
      imem_virt_base, dmem_phys_base, dmem_load_size;
  uint16_t engine_id_mask;
  uint8_t ucode_id, signature_count;
  uint16_t signature_versions, reserved;
};
static_assert(sizeof(DescV2) == 60 && sizeof(DescV3) == 44);
constexpr uint32_t kSignatureBytes = 384;  // BCRT30_RSA3K_SIG_SIZE
constexpr uint64_t kBlock = 256;           // what falcons load by
constexpr uint32_t kMostFuseVersions = 16;

constexpr uint64_t round_up(uint64_t value) { return (value + kBlock - 1) / kBlock * kBlock; }

struct Interfaces {
  uint8_t version, header_bytes, entry_bytes, entries;
};
struct Interface {
  uint32_t id, offset;
};
constexpr uint32_t kDmemMapper = 4;
struct Mapper {
  uint32_t signature;
  uint16_t version, size;
  uint32_t cmd_in_offset, cmd_in_size, cmd_out_offset, cmd_out_size, nvf_img_offset, nvf_img_size,
      printf_buffer, build_time_stamp, ucode_signature, init_cmd, ucode_feature, cmd_mask0,
      cmd_mask1, multi_target;
};
static_assert(sizeof(Interfaces) == 4 && sizeof(Interface) == 8 && sizeof(Mapper) == 64);
constexpr uint32_t kMapperSignature = 0x50414d44;  // "DMAP", in ROMs of TU104 and GA104

/// FWSECLIC_READ_VBIOS_DESC and FWSECLIC_FRTS_REGION_DESC, packed.
struct ReadVbios {
  uint32_t version, size, offset_low, offset_high, image_size, flags;
};
struct FrtsRegion {
  uint32_t version, size, offset_4k, size_4k, media;
};
static_assert(sizeof(ReadVbios) == 24 && sizeof(FrtsRegion) == 20);
constexpr uint32_t kReadVbiosFlags = 2, kMediaVideoMemory = 2;

/// The vendor's module sees to it that the program's bytes fit the room that it is given.
Status check_base(const Image& rom, std::string_view what, uint64_t base, uint64_t size) {
  if (base + size > round_up(size))
    return fail(Code::kUnsupported, "{}: FWSEC's {} ({:#x} bytes) is to be loaded at {:#x}",
                rom.name(), what, size, base);
  return {};
}

Result<Fwsec> read_v2(const Image& rom, uint64_t at, uint64_t descriptor_bytes) {
  const auto desc = BM_TRY(rom.at<DescV2>(at, "FALCON_UCODE_DESC_V2"));
  const uint64_t image = at + descriptor_bytes;
  Fwsec fwsec;
  fwsec.code = BM_TRY(rom.section(image, desc.imem_load_size, "FWSEC's code"));
  fwsec.data = BM_TRY(rom.section(image + desc.dmem_offset, desc.dmem_load_size, "FWSEC's data"));
  BM_TRY(check_base(rom, "code", desc.imem_phys_base, desc.imem_load_size));
  BM_TRY(check_base(rom, "data", desc.dmem_phys_base, desc.dmem_load_size));
  const uint64_t secure_at =
      uint64_t{desc.imem_sec_base} - desc.imem_virt_base + desc.imem_phys_base;
  if (desc.imem_sec_base < desc.imem_virt_base || desc.imem_sec_size > desc.imem_load_size ||
      secure_at > round_up(desc.imem_load_size) - round_up(desc.imem_sec_size))
    return fail(Code::kCorrupt,
                "{}: FWSEC's secure code ({:#x} bytes at {:#x}) is not inside its {:#x} at {:#x}",
                rom.name(), desc.imem_sec_size, desc.imem_sec_base, desc.imem_load_size,
                desc.imem_virt_base);
  fwsec.code_base = desc.imem_phys_base;
  fwsec.code_virtual = desc.imem_virt_base;
  fwsec.data_base = desc.dmem_phys_base;
  fwsec.interface_at = desc.interface_offset;
  fwsec.entry = desc.virtual_entry;
  fwsec.secure = {static_cast<uint32_t>(secure_at),
                  static_cast<uint32_t>(round_up(desc.imem_sec_size))};
  return fwsec;
}

Result<Fwsec> read_v3(const Image& rom, uint64_t at, uint64_t descriptor_bytes) {
  const auto desc = BM_TRY(rom.at<DescV3>(at, "FALCON_UCODE_DESC_V3"));
  const uint64_t image = at + descriptor_bytes;
  Fwsec fwsec;
  fwsec.code = BM_TRY(rom.section(image, desc.imem_load_size, "FWSEC's code"));
  fwsec.data =
      BM_TRY(rom.section(image + desc.imem_load_size, desc.dmem_load_size, "FWSEC's data"));
  if (uint64_t{desc.imem_load_size} + desc.dmem_load_size > round_up(desc.stored_size))
    return fail(Code::kCorrupt, "{}: FWSEC has {:#x} bytes, its code {:#x} and its data {:#x}",
                rom.name(), desc.stored_size, desc.imem_load_size, desc.dmem_load_size);
  if (sizeof(DescV3) + uint64_t{desc.signature_count} * kSignatureBytes > descriptor_bytes)
    return fail(Code::kCorrupt, "{}: {} signatures in FWSEC's descriptor of {:#x} bytes at {:#x}",
                rom.name(), desc.signature_count, descriptor_bytes, at);
  if (desc.signature_count != 0 &&
      uint64_t{desc.pkc_data_offset} + kSignatureBytes > desc.dmem_load_size)
    return fail(Code::kCorrupt, "{}: FWSEC's signature at {:#x} is not inside its data of {:#x}",
                rom.name(), desc.pkc_data_offset, desc.dmem_load_size);
  fwsec.code_base = desc.imem_phys_base;
  fwsec.code_virtual = desc.imem_virt_base;
  fwsec.data_base = desc.dmem_phys_base;
  fwsec.interface_at = desc.interface_offset;
  fwsec.signature_at = desc.pkc_data_offset;
  fwsec.engine_id_mask = desc.engine_id_mask;
  fwsec.ucode_id = desc.ucode_id;
  fwsec.signature_versions = desc.signature_versions;
  for (uint32_t i = 0; i < desc.signature_count; ++i)
    fwsec.signatures.push_back(BM_TRY(
        rom.section(at + sizeof(DescV3) + i * kSignatureBytes, kSignatureBytes, "signature")));
  return fwsec;
}

Result<Fwsec> read_fwsec(const Image& rom, const FalconUcodeEntry& entry) {
  const auto header = BM_TRY(rom.at<uint32_t>(entry.descriptor, "FWSEC's descriptor"));
  const uint32_t version = header >> 8 & 0xff, bytes = header >> 16;
  const bool has_version = (header & 1) != 0;
  const bool is_v2 = has_version && version == 2 && bytes >= sizeof(DescV2);
  const bool is_v3 = has_version && version == 3 && bytes >= sizeof(DescV3);
  if (!is_v2 && !is_v3)
    return fail(Code::kUnsupported,
                "{}: FWSEC's descriptor at {:#x} has version {} and {} bytes; 2 and 3 are known",
                rom.name(), entry.descriptor, has_version ? version : 0, bytes);
  Fwsec fwsec = is_v2 ? BM_TRY(read_v2(rom, entry.descriptor, bytes))
                      : BM_TRY(read_v3(rom, entry.descriptor, bytes));
  fwsec.name = rom.name();
  fwsec.descriptor_version = static_cast<uint8_t>(version);
  fwsec.application = entry.application;
  return fwsec;
}

template <class T>
void put(std::span<std::byte> bytes, uint64_t at, const T& value) {
  std::memcpy(bytes.subspan(at, sizeof value).data(), &value, sizeof value);
}

/// The input of a command, as long as the mapper has room for it.
Status put_command(const Fwsec& fwsec, const FwsecRequest& request, const DmemMapper& mapper,
                   std::span<std::byte> data) {
  constexpr uint64_t kPage = 4096;
  const bool is_frts = request.command == FwsecCommand::kFrts;
  const uint64_t bytes = sizeof(ReadVbios) + (is_frts ? sizeof(FrtsRegion) : 0);
  if (mapper.command_in.size < bytes)
    return fail(Code::kUnsupported, "{}: FWSEC has {} bytes for a command's input, {} are needed",
                fwsec.name, mapper.command_in.size, bytes);
  put(data, mapper.command_in.offset,
      ReadVbios{.version = 1,
                .size = sizeof(ReadVbios),
                .offset_low = 0,
                .offset_high = 0,
                .image_size = 0,
                .flags = kReadVbiosFlags});
  if (is_frts) {
    const uint64_t address = request.frts_address, size = request.frts_size;
    if (address == 0 || size == 0 || address % kPage != 0 || size % kPage != 0 ||
        address / kPage > UINT32_MAX || size / kPage > UINT32_MAX)
      return fail(Code::kInvalidArgument, "FRTS region of {:#x} bytes at {:#x}: multiples of {}",
                  size, address, kPage);
    put(data, uint64_t{mapper.command_in.offset} + sizeof(ReadVbios),
        FrtsRegion{.version = 1,
                   .size = sizeof(FrtsRegion),
                   .offset_4k = static_cast<uint32_t>(address / kPage),
                   .size_4k = static_cast<uint32_t>(size / kPage),
                   .media = kMediaVideoMemory});
  }
  put(data, mapper.offset + offsetof(Mapper, init_cmd), static_cast<uint32_t>(request.command));
  return {};
}

}  // namespace

Result<Fwsec> find_fwsec(const Rom& rom, Fusing fusing) {
  const Bit bit = BM_TRY(find_bit(rom));
  const std::vector<FalconUcodeEntry> entries = BM_TRY(falcon_ucodes(rom, bit));
  const uint8_t wanted = fusing == Fusing::kDebug ? kFwsecDebug : kFwsecProduction;
  Result<Fwsec> result =
      fail(Code::kNotFound, "{}: none of its {} programs for falcons is FWSEC ({:#x})", rom.name,
           entries.size(), wanted);
  for (const FalconUcodeEntry& entry : entries) {
    if (entry.application != wanted && entry.application != kFirmwareSecLic) continue;
    result = read_fwsec(rom.view(), entry);
    if (result) break;  // the vendor's module goes on to the next, too
  }
  return result;
}

Result<DmemMapper> find_dmem_mapper(const Fwsec& fwsec) {
  const Image data(fmt::format("{}: FWSEC's data", fwsec.name), fwsec.data);
  const auto header = BM_TRY(data.at<Interfaces>(fwsec.interface_at, "application interfaces"));
  if (header.version != 1 || header.header_bytes < sizeof header ||
      header.entry_bytes < sizeof(Interface))
    return fail(Code::kUnsupported,
                "{}: application interfaces at {:#x}: version {}, {} bytes of header and {} an "
                "entry",
                data.name(), fwsec.interface_at, header.version, header.header_bytes,
                header.entry_bytes);
  for (uint64_t i = 0; i < header.entries; ++i) {
    const auto entry = BM_TRY(data.at<Interface>(
        fwsec.interface_at + header.header_bytes + i * header.entry_bytes, "interface"));
    if (entry.id != kDmemMapper) continue;
    const auto mapper = BM_TRY(data.at<Mapper>(entry.offset, "DMEM mapper"));
    if (mapper.signature != kMapperSignature || mapper.version != 3)
      return fail(Code::kUnsupported, "{}: DMEM mapper at {:#x}: signature {:#010x}, version {}",
                  data.name(), entry.offset, mapper.signature, mapper.version);
    BM_TRY(data.section(mapper.cmd_in_offset, mapper.cmd_in_size, "input of commands"));
    return DmemMapper{.offset = entry.offset,
                      .version = mapper.version,
                      .size = mapper.size,
                      .command_in = {mapper.cmd_in_offset, mapper.cmd_in_size},
                      .command = mapper.init_cmd};
  }
  return fail(Code::kCorrupt, "{}: none of {} interfaces is the DMEM mapper", data.name(),
              header.entries);
}

Result<size_t> signature_index(const Fwsec& fwsec, uint32_t fuse_register) {
  if (fwsec.signatures.empty())
    return fail(Code::kInvalidArgument, "{}: FWSEC carries no signatures", fwsec.name);
  const uint32_t version = fuse_version(fuse_register);
  if (version >= kMostFuseVersions || (fwsec.signature_versions >> version & 1) == 0)
    return fail(Code::kUnsupported,
                "{}: the card's fuses want version {} of FWSEC's signature, it has those of the "
                "mask {:#x}",
                fwsec.name, version, fwsec.signature_versions);
  const uint32_t before = fwsec.signature_versions & ((1u << version) - 1);
  const auto index = static_cast<size_t>(std::popcount(before));
  if (index >= fwsec.signatures.size())
    return fail(Code::kCorrupt, "{}: FWSEC's signature {} of {} (mask {:#x})", fwsec.name, index,
                fwsec.signatures.size(), fwsec.signature_versions);
  return index;
}

Result<PreparedFwsec> prepare(const Fwsec& fwsec, const FwsecRequest& request) {
  const DmemMapper mapper = BM_TRY(find_dmem_mapper(fwsec));
  // Version 2 is fetched by a boot loader, to where it stands in its buffer.
  const bool is_v2 = fwsec.descriptor_version == 2;
  const uint64_t code_at = is_v2 ? fwsec.code_base : 0, data_at = is_v2 ? fwsec.data_base : 0;
  PreparedFwsec ready;
  ready.code.resize(round_up(code_at + fwsec.code.size()));
  ready.data.resize(round_up(data_at + fwsec.data.size()));
  std::ranges::copy(fwsec.code, ready.code.begin() + static_cast<ptrdiff_t>(code_at));
  std::ranges::copy(fwsec.data, ready.data.begin() + static_cast<ptrdiff_t>(data_at));
  const std::span data = std::span(ready.data).subspan(data_at, fwsec.data.size());
  BM_TRY(put_command(fwsec, request, mapper, data));
  if (!fwsec.signatures.empty()) {
    const size_t index = BM_TRY(signature_index(fwsec, request.fuse_register));
    std::ranges::copy(fwsec.signatures[index], data.begin() + fwsec.signature_at);
  }
  return ready;
}

}  // namespace bm::firmware::nvidia
