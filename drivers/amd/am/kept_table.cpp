#include "drivers/amd/am/kept_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "runtime/base/byte_reader.h"
#include "runtime/base/check.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kMagic = 0x7470'656b'6d62'00b2;  // "bmkept"
/// Of the checksum in the header: behind magic, version, count and generation.
constexpr size_t kSumAt = 24;
static_assert(kSumAt + 16 == KeptTable::kHeaderBytes);

template <class T>
void put(std::vector<std::byte>& to, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// Of all bytes but the sum's own.
uint64_t sum_of(std::span<const std::byte> bytes) {
  const uint64_t head = XXH3_64bits(bytes.data(), kSumAt);
  const auto rest = bytes.subspan(kSumAt + sizeof(uint64_t));
  return XXH3_64bits_withSeed(rest.data(), rest.size(), head);
}

}  // namespace

std::vector<std::byte> KeptTable::encode() const {
  BM_CHECK(records.size() <= kMostRecords);
  std::vector<std::byte> out;
  put(out, kMagic);
  put(out, kVersion);
  put(out, static_cast<uint32_t>(records.size()));
  put(out, generation);
  put(out, uint64_t{0});
  put(out, uint64_t{0});  // reserved
  for (const KeptRecord& record : records)
    for (const uint64_t word :
         {record.key.low, record.key.high, record.offset, record.bytes, record.checksum})
      put(out, word);
  const uint64_t sum = sum_of(out);
  std::memcpy(out.data() + kSumAt, &sum, sizeof sum);
  return out;
}

uint64_t KeptTable::size_of(std::span<const std::byte> header) {
  ByteReader reader(header);
  const auto magic = reader.read<uint64_t>();
  const auto version = reader.read<uint32_t>();
  const auto count = reader.read<uint32_t>();
  if (!magic || !version || !count || *magic != kMagic || *count == 0 || *count > kMostRecords)
    return 0;
  return kHeaderBytes + uint64_t{*count} * kRecordBytes;
}

Result<KeptTable> KeptTable::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (BM_TRY(reader.read<uint64_t>()) != kMagic)
    return fail(Code::kCorrupt, "no table of kept memory begins here");
  const auto version = BM_TRY(reader.read<uint32_t>());
  if (version != kVersion)
    return fail(Code::kCorrupt, "the table of kept memory is of version {}, this is {}", version,
                kVersion);
  const auto count = BM_TRY(reader.read<uint32_t>());
  KeptTable table;
  table.generation = BM_TRY(reader.read<uint64_t>());
  const auto sum = BM_TRY(reader.read<uint64_t>());
  BM_TRY(reader.skip(8));
  if (count > kMostRecords || bytes.size() != kHeaderBytes + uint64_t{count} * kRecordBytes)
    return fail(Code::kCorrupt, "the table of kept memory has {} bytes for {} records",
                bytes.size(), count);
  if (sum != sum_of(bytes))
    return fail(Code::kCorrupt, "the checksum of the table of kept memory is wrong");
  for (uint32_t i = 0; i < count; ++i) {
    KeptRecord& record = table.records.emplace_back();
    for (uint64_t* word :
         {&record.key.low, &record.key.high, &record.offset, &record.bytes, &record.checksum})
      *word = BM_TRY(reader.read<uint64_t>());
  }
  return table;
}

}  // namespace bm::amd::am
