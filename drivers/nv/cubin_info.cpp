#include "drivers/nv/cubin_info.h"

#include <cstring>

#include "runtime/base/byte_reader.h"

namespace bm::nv {
namespace {

// How an attribute's value is stored.
enum class Format : uint8_t { kNone = 1, kByte = 2, kHalf = 3, kSized = 4 };

/// Payload bytes of the attributes that are read, as a minimum.
size_t needed_bytes(const InfoRecord& record) {
  switch (Attribute{record.attribute}) {
    case Attribute::kMaxThreads:
    case Attribute::kRequiredBlock:
    case Attribute::kClusterSize:
    case Attribute::kParameter:
    case Attribute::kParameterV2: return 12;
    case Attribute::kParamBank:
    case Attribute::kFrameSize:
    case Attribute::kMinStackSize:
    case Attribute::kRegisters: return 8;
    case Attribute::kMaxClusterRank: return 4;
    case Attribute::kParamBytes:
    case Attribute::kExplicitCluster:
    case Attribute::kBarriers: break;
  }
  return 0;
}

Result<InfoRecord> read_record(ByteReader& reader) {
  const auto format = BM_TRY(reader.read<uint8_t>());
  InfoRecord record{.attribute = BM_TRY(reader.read<uint8_t>()), .value = 0, .payload = {}};
  const auto value = BM_TRY(reader.read<uint16_t>());
  switch (Format{format}) {
    case Format::kNone: break;
    case Format::kByte: record.value = value & 0xff; break;
    case Format::kHalf: record.value = value; break;
    case Format::kSized: record.payload = BM_TRY(reader.bytes(value)); break;
    default: return fail(Code::kCorrupt, "format {} is none of 1 to 4", format);
  }
  return record;
}

}  // namespace

uint32_t InfoRecord::word(size_t index) const {
  uint32_t result = 0;
  if ((index + 1) * sizeof result <= payload.size())
    std::memcpy(&result, payload.data() + index * sizeof result, sizeof result);
  return result;
}

Result<std::vector<InfoRecord>> read_records(const elf::Section& section) {
  std::vector<InfoRecord> records;
  ByteReader reader(section.bytes);
  while (reader.remaining() > 0) {
    const uint64_t at = reader.offset();
    auto record = read_record(reader);
    if (!record)
      return tl::unexpected(std::move(record.error())
                                .within(fmt::format("cubin: '{}' offset {:#x}", section.name, at)));
    records.push_back(*record);
  }
  return records;
}

Result<std::vector<InfoRecord>> read_info(const elf::Section& section) {
  std::vector<InfoRecord> records = BM_TRY(read_records(section));
  for (const InfoRecord& record : records)
    if (record.payload.size() < needed_bytes(record))
      return fail(Code::kCorrupt, "cubin: '{}': attribute {:#x} has {} bytes, {} needed",
                  section.name, record.attribute, record.payload.size(), needed_bytes(record));
  return records;
}

std::optional<uint32_t> symbol_value(std::span<const InfoRecord> module, Attribute attribute,
                                     uint32_t symbol) {
  for (const InfoRecord& record : module)
    if (record.is(attribute) && record.word(0) == symbol) return record.word(1);
  return std::nullopt;
}

}  // namespace bm::nv
