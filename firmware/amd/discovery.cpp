#include "firmware/amd/discovery.h"

#include <algorithm>
#include <utility>

#include "firmware/amd/discovery_tables.h"

namespace bm::firmware::amd {
namespace {

// discovery.h; amdgpu.h for the last two.
constexpr uint32_t kBinarySignature = 0x28211407;
constexpr uint32_t kDiscoveryTableSignature = 0x53445049;
constexpr uint32_t kTotalTables = 6;
constexpr uint16_t kMostDies = 16;
constexpr uint16_t kHwIdMax = 300;
constexpr uint8_t kHwipMaxInstance = 44;
/// What struct binary_header's sum covers begins with the size, at 10.
constexpr uint64_t kSummedFrom = 10;

enum TableId : uint8_t { kIpDiscovery, kGc, kHarvestInfo, kVcnInfo, kMallInfo, kNpsInfo };

/// Tables whose sums are checked. The kernel has that of MALL_INFO switched off.
constexpr std::pair<TableId, const char*> kSummed[] = {{kIpDiscovery, "IP_DISCOVERY"},
                                                       {kGc, "GC"},
                                                       {kHarvestInfo, "HARVEST_INFO"},
                                                       {kVcnInfo, "VCN_INFO"},
                                                       {kNpsInfo, "NPS_INFO"}};

/// struct ip, ip_v3 and ip_v4 before their base addresses.
struct IpEntry {
  uint16_t hw_id;
  uint8_t instance_number, num_base_address, major, minor, revision;
  uint8_t nibbles;  ///< low: harvest, or from version 3 on sub_revision; high: variant
};
static_assert(sizeof(IpEntry) == 8);

/// struct binary_header (versions 0 and 1: six tables) or binary_header_v2 (a count of them).
Result<std::vector<TableInfo>> read_list(const Image& binary, Discovery* result) {
  const auto signature = BM_TRY(binary.at<uint32_t>(0, "binary_signature"));
  if (signature != kBinarySignature)
    return fail(Code::kCorrupt, "{}: no IP discovery table: it begins with {:#x} instead of {:#x}",
                binary.name(), signature, kBinarySignature);
  result->version_major = BM_TRY(binary.at<uint16_t>(4, "version_major"));
  result->version_minor = BM_TRY(binary.at<uint16_t>(6, "version_minor"));
  if (result->version_major > 2)
    return fail(Code::kUnsupported, "{}: binary_header at 0x4 has version {}.{}, known up to 2",
                binary.name(), result->version_major, result->version_minor);
  const auto sum = BM_TRY(binary.at<uint16_t>(8, "binary_checksum"));
  const auto size = BM_TRY(binary.at<uint16_t>(10, "binary_size"));
  if (sum == 0) {
    result->without_sum.emplace_back("binary");
  } else {
    if (size < kSummedFrom + 2)
      return fail(Code::kCorrupt, "{}: binary_size at 0xa is {}", binary.name(), size);
    BM_TRY(check_sum(binary, kSummedFrom, size - kSummedFrom, sum, "binary"));
  }
  const bool is_v2 = result->version_major == 2;
  const uint32_t count = is_v2 ? BM_TRY(binary.at<uint16_t>(12, "num_tables")) : kTotalTables;
  std::vector<TableInfo> list =
      BM_TRY(binary.table<TableInfo>(is_v2 ? 16 : 12, count, "table_list"));
  list.resize(kTotalTables);  // tables that are not listed have offset 0
  return list;
}

/// One entry; returns where the next begins.
Result<uint64_t> read_ip(const Image& binary, uint64_t at, uint16_t die, bool has_64_bits,
                         Discovery* result) {
  const auto entry = BM_TRY(binary.at<IpEntry>(at, "ip"));
  IpBlock ip{.hw_id = entry.hw_id,
             .instance_number = entry.instance_number,
             .major = entry.major,
             .minor = entry.minor,
             .revision = entry.revision,
             .die = die};
  const auto low = static_cast<uint8_t>(entry.nibbles & 0xf);
  if (result->ip_discovery_version < 3) {
    ip.harvest = low;
  } else {
    ip.sub_revision = low;
    ip.variant = static_cast<uint8_t>(entry.nibbles >> 4);
  }
  const uint64_t from = at + sizeof(IpEntry);
  const uint64_t each = has_64_bits ? 8 : 4;
  const uint64_t next = from + entry.num_base_address * each;
  if (has_64_bits) {
    ip.base_address =
        BM_TRY(binary.table<uint64_t>(from, entry.num_base_address, "base_address_64"));
  } else {
    const auto words = BM_TRY(binary.table<uint32_t>(from, entry.num_base_address, "base_address"));
    ip.base_address.assign(words.begin(), words.end());
  }
  // amdgpu_discovery_validate_ip: such entries are passed over.
  if (ip.hw_id >= kHwIdMax || ip.instance_number >= kHwipMaxInstance)
    ++result->unknown_ips;
  else
    result->ips.push_back(std::move(ip));
  return next;
}

/// struct ip_discovery_header, then for each die a die_header and its entries, at offsets from the
/// binary's start. No die lists its bytes twice: dies that overlap would let 64 KiB claim millions.
Status read_ips(const Image& binary, const TableInfo& info, Discovery* result) {
  const uint64_t at = info.offset;
  const auto signature = BM_TRY(binary.at<uint32_t>(at, "ip_discovery_header"));
  if (signature != kDiscoveryTableSignature)
    return fail(Code::kCorrupt,
                "{}: IP_DISCOVERY table at {:#x} begins with {:#x} instead of {:#x}", binary.name(),
                at, signature, kDiscoveryTableSignature);
  result->ip_discovery_version = BM_TRY(binary.at<uint16_t>(at + 4, "version"));
  const auto size = BM_TRY(binary.at<uint16_t>(at + 6, "size"));
  BM_TRY(check_sum(binary, at, size, info.checksum, "IP_DISCOVERY"));
  if (result->ip_discovery_version == 0 || result->ip_discovery_version > 4)
    return fail(Code::kUnsupported, "{}: IP_DISCOVERY table at {:#x} has version {}, known: 1 to 4",
                binary.name(), at, result->ip_discovery_version);
  const auto num_dies = BM_TRY(binary.at<uint16_t>(at + 12, "num_dies"));
  if (num_dies > kMostDies)
    return fail(Code::kCorrupt, "{}: num_dies at {:#x} is {}, at most {}", binary.name(), at + 12,
                num_dies, kMostDies);
  const bool has_64_bits = (BM_TRY(binary.at<uint8_t>(at + 78, "base_addr_64_bit")) & 1) != 0;
  uint64_t listed = 0;
  for (uint16_t die = 0; die < num_dies; ++die) {
    const auto offset = BM_TRY(binary.at<uint16_t>(at + 14 + die * 4u + 2, "die_offset"));
    const auto die_id = BM_TRY(binary.at<uint16_t>(offset, "die_id"));
    const auto num_ips = BM_TRY(binary.at<uint16_t>(offset + 2u, "num_ips"));
    if (die_id != die)
      return fail(Code::kCorrupt, "{}: die_id at {:#x} is {} instead of {}", binary.name(), offset,
                  die_id, die);
    uint64_t next = offset + 4u;
    for (uint16_t i = 0; i < num_ips; ++i)
      next = BM_TRY(read_ip(binary, next, die, has_64_bits, result));
    listed += next - offset;
    if (listed > binary.size())
      return fail(Code::kCorrupt, "{}: dies overlap: {} bytes of entries in {}", binary.name(),
                  listed, binary.size());
  }
  return {};
}

}  // namespace

const IpBlock* Discovery::find(uint16_t hw_id, uint8_t instance) const {
  const auto found = std::ranges::find_if(
      ips, [&](const IpBlock& ip) { return ip.hw_id == hw_id && ip.instance_number == instance; });
  return found == ips.end() ? nullptr : &*found;
}

bool Discovery::is_harvested(uint16_t hw_id, uint8_t instance) const {
  const bool is_listed = std::ranges::any_of(harvest, [&](const HarvestInfo& entry) {
    return entry.hw_id == hw_id && entry.number_instance == instance;
  });
  const IpBlock* const ip = find(hw_id, instance);
  return is_listed || (ip != nullptr && ip->harvest == 1);
}

Result<Discovery> parse_discovery(const Image& table) {
  Discovery result;
  const std::vector<TableInfo> list = BM_TRY(read_list(table, &result));
  if (list[kIpDiscovery].offset == 0)
    return fail(Code::kCorrupt, "{}: it lists no IP_DISCOVERY table", table.name());
  for (const auto& [id, name] : kSummed)
    if (list[id].offset != 0 && list[id].checksum == 0) result.without_sum.emplace_back(name);
  BM_TRY(read_ips(table, list[kIpDiscovery], &result));
  if (list[kHarvestInfo].offset != 0)
    result.harvest = BM_TRY(read_harvest(table, list[kHarvestInfo]));
  if (list[kGc].offset != 0) result.gc = BM_TRY(read_gc(table, list[kGc]));
  if (list[kMallInfo].offset != 0) result.mall = BM_TRY(read_mall(table, list[kMallInfo]));
  if (list[kVcnInfo].offset != 0) result.vcn = BM_TRY(read_vcn(table, list[kVcnInfo]));
  if (list[kNpsInfo].offset != 0) {
    // amdgpu_discovery_get_nps_info: "If verification fails, return as if NPS table doesn't exist".
    Result<NpsInfo> nps = read_nps(table, list[kNpsInfo]);
    if (nps)
      result.nps = std::move(*nps);
    else
      result.nps_problem = nps.error().message;
  }
  return result;
}

}  // namespace bm::firmware::amd
