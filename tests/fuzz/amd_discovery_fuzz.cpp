// Any bytes as an IP discovery table: nothing may crash, read outside or grow beyond what the bytes
// can hold. The sums of the binary and of its tables are set right first, or nothing would get past
// them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "firmware/amd/discovery.h"
#include "firmware/amd/set.h"
#include "runtime/base/check.h"

namespace {

using namespace bm::firmware;

template <class T>
T get(const std::vector<std::byte>& bytes, size_t at) {
  T value{};
  if (at + sizeof(T) <= bytes.size()) std::memcpy(&value, &bytes[at], sizeof(T));
  return value;
}

uint16_t sum_of(const std::vector<std::byte>& bytes, size_t at, size_t count) {
  uint16_t sum = 0;
  for (size_t i = at; i < std::min(bytes.size(), at + count); ++i)
    sum = static_cast<uint16_t>(sum + static_cast<uint8_t>(bytes[i]));
  return sum;
}

void put(std::vector<std::byte>& bytes, size_t at, uint16_t value) {
  if (at + 2 <= bytes.size()) std::memcpy(&bytes[at], &value, 2);
}

void look(std::span<const std::byte> bytes) {
  const auto table = amd::parse_discovery(Image("fuzz", bytes));
  if (!table) {
    BM_CHECK(!table.error().message.empty());
    return;
  }
  // An entry has eight bytes; dies may not tell the same bytes twice, but for the last that is
  // read.
  BM_CHECK(table->ips.size() + table->unknown_ips <= bytes.size() / 8);
  BM_CHECK(table->harvest.size() <= 32);
  for (const amd::IpBlock& ip : table->ips) BM_CHECK(table->find(ip.hw_id, ip.instance_number));
  if (const auto chip = amd::chip_id(*table, 0x744c, 0))
    BM_CHECK(!amd::firmware_set(*chip) || !amd::firmware_set(*chip)->files.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  look(bytes);
  if (size < 32 || size > 0xffff) return 0;
  std::vector<std::byte> sealed(bytes.begin(), bytes.end());
  const size_t list = get<uint16_t>(sealed, 4) == 2 ? 16 : 12;
  for (size_t i = 0; i < 6; ++i) {
    const size_t at = get<uint16_t>(sealed, list + i * 8);
    // IP_DISCOVERY has its size in two bytes at 6, HARVEST_INFO a fixed one, the others a word
    // at 8.
    const size_t covered = i == 0   ? get<uint16_t>(sealed, at + 6)
                           : i == 2 ? size_t{136}
                                    : size_t{get<uint32_t>(sealed, at + 8)};
    put(sealed, list + i * 8 + 2, sum_of(sealed, at, covered));
  }
  put(sealed, 10, static_cast<uint16_t>(sealed.size()));
  put(sealed, 8, sum_of(sealed, 10, sealed.size()));
  look(sealed);
  return 0;
}
