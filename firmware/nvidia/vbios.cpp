#include "firmware/nvidia/vbios.h"

#include <array>
#include <cstring>
#include <optional>

namespace bm::firmware::nvidia {
namespace {

constexpr std::array<uint8_t, 6> kBitMark = {0xff, 0xb8, 'B', 'I', 'T', 0};
constexpr uint64_t kBitHeaderBytes = 12;  // BIT_HEADER_V1_00
constexpr uint8_t kShortToken = 6, kLongToken = 8;
constexpr uint16_t kFalconDataBytes = 4;  // BIT_DATA_FALCON_DATA_V2
constexpr uint16_t kBiosVersionBytes = 5;

/// FALCON_UCODE_TABLE_HDR_V1.
struct UcodeTable {
  uint8_t version, header_bytes, entry_bytes, entries, descriptor_version, descriptor_bytes;
};
static_assert(sizeof(UcodeTable) == 6);
constexpr uint64_t kEntryBytes = 6;  // FALCON_UCODE_TABLE_ENTRY_V1

bool adds_up(std::span<const std::byte> bytes) {
  uint32_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<uint8_t>(byte);
  return (sum & 0xff) == 0;
}

Result<Bit> read_bit(const Image& rom, uint64_t at) {
  const auto header_bytes = BM_TRY(rom.at<uint8_t>(at + 8, "BIT header size"));
  const auto token_bytes = BM_TRY(rom.at<uint8_t>(at + 9, "BIT token size"));
  const auto count = BM_TRY(rom.at<uint8_t>(at + 10, "number of BIT tokens"));
  if (token_bytes < kShortToken)
    return fail(Code::kCorrupt, "{}: tokens of the BIT at {:#x} have {} bytes", rom.name(), at,
                token_bytes);
  Bit bit{.offset = static_cast<uint32_t>(at), .tokens = {}};
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t token = at + header_bytes + uint64_t{i} * token_bytes;
    BM_TRY(rom.section(token, token_bytes, "BIT token"));
    bit.tokens.push_back({.id = BM_TRY(rom.at<uint8_t>(token, "BIT token")),
                          .version = BM_TRY(rom.at<uint8_t>(token + 1, "BIT token")),
                          .size = BM_TRY(rom.at<uint16_t>(token + 2, "BIT token")),
                          .pointer = token_bytes >= kLongToken
                                         ? BM_TRY(rom.at<uint32_t>(token + 4, "BIT token"))
                                         : BM_TRY(rom.at<uint16_t>(token + 4, "BIT token"))});
  }
  return bit;
}

Result<std::vector<FalconUcodeEntry>> read_table(const Rom& rom, uint64_t at) {
  const Image view = rom.view();
  const auto table = BM_TRY(view.at<UcodeTable>(at, "table of falcons' microcode"));
  if (table.version != 1 || table.header_bytes < sizeof table || table.entry_bytes < kEntryBytes)
    return fail(Code::kUnsupported,
                "{}: table of falcons' microcode at {:#x}: version {}, {} bytes of header and {} "
                "an entry",
                rom.name, at, table.version, table.header_bytes, table.entry_bytes);
  std::vector<FalconUcodeEntry> entries;
  for (uint32_t i = 0; i < table.entries; ++i) {
    const uint64_t entry = at + table.header_bytes + uint64_t{i} * table.entry_bytes;
    FalconUcodeEntry one{
        .application = BM_TRY(view.at<uint8_t>(entry, "application of an entry")),
        .target = BM_TRY(view.at<uint8_t>(entry + 1, "target of an entry")),
        .descriptor = BM_TRY(view.at<uint32_t>(entry + 2, "descriptor of an entry"))};
    if (one.application == 0 && one.descriptor == 0) continue;
    const uint64_t moved = uint64_t{one.descriptor} + rom.expansion_offset;
    // One that leads nowhere is of no harm until somebody wants it.
    one.descriptor = static_cast<uint32_t>(std::min<uint64_t>(moved, UINT32_MAX));
    entries.push_back(one);
  }
  return entries;
}

}  // namespace

Result<Bit> find_bit(const Rom& rom) {
  const Image view = rom.view();
  const auto mark = std::as_bytes(std::span(kBitMark));
  std::optional<uint64_t> other;
  for (uint64_t at = 0; at + kBitHeaderBytes <= rom.bytes.size(); ++at) {
    if (std::memcmp(rom.bytes.data() + at, mark.data(), mark.size()) != 0) continue;
    const auto header_bytes = BM_TRY(view.at<uint8_t>(at + 8, "BIT header size"));
    const auto header = view.section(at, header_bytes, "BIT header");
    if (header_bytes < kBitHeaderBytes || !header) continue;
    if (adds_up(*header)) return read_bit(view, at);
    const auto token_bytes = BM_TRY(view.at<uint8_t>(at + 9, "BIT token size"));
    if (!other && token_bytes >= kShortToken) other = at;
  }
  // The vendor's module wants the sum, nouveau and nova-core do not look at it.
  if (other) return read_bit(view, *other);
  return fail(Code::kCorrupt, "{}: no BIT in {:#x} bytes of images", rom.name, rom.bytes.size());
}

std::string vbios_version(const Rom& rom, const Bit& bit) {
  const Image view = rom.view();
  for (const BitToken& token : bit.tokens) {
    if (token.id != kBiosDataToken || token.version < 1 || token.version > 2 ||
        token.size <= kBiosVersionBytes)
      continue;
    const auto version = view.at<uint32_t>(token.pointer, "VBIOS version");
    const auto oem = view.at<uint8_t>(uint64_t{token.pointer} + 4, "VBIOS version");
    if (version && oem)
      return fmt::format("{:02x}.{:02x}.{:02x}.{:02x}.{:02x}", *version >> 24,
                         *version >> 16 & 0xff, *version >> 8 & 0xff, *version & 0xff, *oem);
  }
  return "";
}

Result<std::vector<FalconUcodeEntry>> falcon_ucodes(const Rom& rom, const Bit& bit) {
  const Image view = rom.view();
  for (const BitToken& token : bit.tokens) {
    if (token.id != kFalconDataToken || token.version != 2 || token.size < kFalconDataBytes)
      continue;
    const auto pointer = BM_TRY(view.at<uint32_t>(token.pointer, "pointer to the falcons' table"));
    return read_table(rom, uint64_t{pointer} + rom.expansion_offset);
  }
  return fail(Code::kUnsupported, "{}: the BIT has no falcon data of version 2", rom.name);
}

}  // namespace bm::firmware::nvidia
