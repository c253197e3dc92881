#include "models/gguf_parse.h"

#include <algorithm>
#include <optional>

#include "models/model_error.h"
#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"

namespace bm::models {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr uint64_t kDefaultAlignment = 32, kMinAlignment = 8, kMaxAlignment = 1_MiB;
constexpr uint64_t kMaxKeyBytes = 65535, kMaxNameBytes = 1024;
constexpr uint32_t kMaxRank = 4;
constexpr uint32_t kMaxArrayDepth = 4;
// Smallest encodings: a count may not exceed what the rest of the file can hold (a 43-byte file
// that announces 2^60 strings must not make us allocate or loop).
constexpr uint64_t kMinStringBytes = 8;
constexpr uint64_t kMinArrayBytes = 4 + 8;
constexpr uint64_t kMinEntryBytes = kMinStringBytes + 4 + 1;
constexpr uint64_t kMinTensorBytes = kMinStringBytes + 4 + 4 + 8;

struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;  // from the start of the data section
  uint64_t bytes = 0;
};

class Parser {
 public:
  explicit Parser(std::span<const std::byte> bytes) : bytes_(bytes), reader_(bytes) {}

  Result<GgufShard> parse() {
    GgufShard shard;
    shard.version = BM_TRY(read_version());
    const auto tensor_count = BM_TRY(read_count("tensor count", kMinTensorBytes));
    const auto entry_count = BM_TRY(read_count("metadata count", kMinEntryBytes));
    for (uint64_t i = 0; i < entry_count; ++i) BM_TRY(read_entry(shard));
    const uint64_t alignment = BM_TRY(read_alignment(shard));
    std::vector<TensorEntry> entries;
    for (uint64_t i = 0; i < tensor_count; ++i) entries.push_back(BM_TRY(read_tensor(alignment)));
    BM_TRY(place(entries, alignment));
    for (TensorEntry& entry : entries) shard.tensors.push_back(std::move(entry.tensor));
    return shard;
  }

 private:
  template <class... Args>
  tl::unexpected<Error> corrupt(uint64_t offset, fmt::format_string<Args...> format,
                                Args&&... args) {
    return fail(Code::kCorrupt, "offset {}: {}", offset,
                fmt::format(format, std::forward<Args>(args)...));
  }

  Result<uint32_t> read_version() {
    if (BM_TRY(reader_.read<uint32_t>()) != kMagic)
      return corrupt(0, "not a GGUF file (the first four bytes are not \"GGUF\")");
    const auto version = BM_TRY(reader_.read<uint32_t>());
    if ((version & 0xFFFF) == 0 && version != 0)
      return fail(Code::kUnsupported, "offset 4: big-endian GGUF files are not supported");
    if (version < kOldestVersion || version > kNewestVersion)
      return fail(Code::kUnsupported, "offset 4: GGUF version {} is not supported (2 and 3 are)",
                  version);
    return version;
  }

  /// A 64-bit count of things that take at least `min_bytes` each.
  Result<uint64_t> read_count(const char* what, uint64_t min_bytes) {
    const uint64_t at = reader_.offset();
    const auto count = BM_TRY(reader_.read<uint64_t>());
    if (count > reader_.remaining() / min_bytes)
      return corrupt(at, "{} {} does not fit in the {} bytes left", what, count,
                     reader_.remaining());
    return count;
  }

  Result<std::string_view> read_string() {
    const uint64_t at = reader_.offset();
    const auto length = BM_TRY(reader_.read<uint64_t>());
    if (length > reader_.remaining())
      return corrupt(at, "string of {} bytes does not fit in the {} bytes left", length,
                     reader_.remaining());
    return reader_.text(length);
  }

  Result<GgufType> read_type() {
    const uint64_t at = reader_.offset();
    const auto number = BM_TRY(reader_.read<uint32_t>());
    if (number > static_cast<uint32_t>(GgufType::kFloat64))
      return corrupt(at, "metadata type {} does not exist", number);
    return static_cast<GgufType>(number);
  }

  Status read_entry(GgufShard& shard) {
    const uint64_t at = reader_.offset();
    const std::string_view key = BM_TRY(read_string());
    if (key.empty() || key.size() > kMaxKeyBytes)
      return corrupt(at, "metadata key of {} bytes (1 to {} allowed)", key.size(), kMaxKeyBytes);
    GgufValue value;
    value.type = BM_TRY(read_type());
    BM_TRY(read_value(value).map_error([&](Error e) {
      return std::move(e).within(fmt::format("metadata key {}", quote_name(key)));
    }));
    if (!shard.metadata.emplace(key, std::move(value)).second)
      return corrupt(at, "metadata key {} appears twice", quote_name(key));
    return {};
  }

  template <class T>
  Status read_integer(GgufValue& value) {
    value.bits = static_cast<uint64_t>(static_cast<int64_t>(BM_TRY(reader_.read<T>())));
    return {};
  }

  Status read_value(GgufValue& value) {
    switch (value.type) {
      case GgufType::kUint8: return read_integer<uint8_t>(value);
      case GgufType::kInt8: return read_integer<int8_t>(value);
      case GgufType::kUint16: return read_integer<uint16_t>(value);
      case GgufType::kInt16: return read_integer<int16_t>(value);
      case GgufType::kUint32:
      case GgufType::kFloat32: return read_integer<uint32_t>(value);
      case GgufType::kInt32: return read_integer<int32_t>(value);
      case GgufType::kUint64:
      case GgufType::kInt64:
      case GgufType::kFloat64: return read_integer<uint64_t>(value);
      case GgufType::kBool: return read_bool(value);
      case GgufType::kString: value.text = BM_TRY(read_string()); return {};
      case GgufType::kArray: return read_array(value.array, 1);
    }
    __builtin_unreachable();
  }

  Status read_bool(GgufValue& value) {
    const uint64_t at = reader_.offset();
    value.bits = BM_TRY(reader_.read<uint8_t>());
    if (value.bits > 1) return corrupt(at, "bool with value {}", value.bits);
    return {};
  }

  Status read_array(GgufArray& array, uint32_t depth) {
    const uint64_t at = reader_.offset();
    if (depth > kMaxArrayDepth) return corrupt(at, "arrays nested deeper than {}", kMaxArrayDepth);
    array.element = BM_TRY(read_type());
    if (array.element == GgufType::kString) {
      array.count = BM_TRY(read_count("string count", kMinStringBytes));
      array.strings.reserve(static_cast<size_t>(array.count));
      for (uint64_t i = 0; i < array.count; ++i) array.strings.push_back(BM_TRY(read_string()));
    } else if (array.element == GgufType::kArray) {
      array.count = BM_TRY(read_count("array count", kMinArrayBytes));
      for (uint64_t i = 0; i < array.count; ++i)
        BM_TRY(read_array(array.arrays.emplace_back(), depth + 1));
    } else {
      const size_t size = gguf_element_bytes(array.element);
      array.count = BM_TRY(read_count("element count", size));
      array.raw =
          BM_TRY(reader_.bytes(array.count * size));  // cannot wrap: count ≤ remaining / size
    }
    return {};
  }

  Result<uint64_t> read_alignment(const GgufShard& shard) {
    const auto found = shard.metadata.find("general.alignment");
    if (found == shard.metadata.end()) return kDefaultAlignment;
    const uint64_t alignment =
        BM_TRY(gguf_unsigned("general.alignment", found->second, UINT32_MAX));
    if (!is_power_of_two(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment)
      return fail(Code::kCorrupt, "general.alignment {} is not a power of two from {} to {}",
                  alignment, kMinAlignment, kMaxAlignment);
    return alignment;
  }

  Result<TensorEntry> read_tensor(uint64_t alignment) {
    const uint64_t at = reader_.offset();
    TensorEntry entry;
    GgufTensor& tensor = entry.tensor;
    tensor.name = BM_TRY(read_string());
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes)
      return corrupt(at, "tensor name of {} bytes (1 to {} allowed)", tensor.name.size(),
                     kMaxNameBytes);
    tensor.rank = BM_TRY(reader_.read<uint32_t>());
    if (tensor.rank > kMaxRank)
      return corrupt(at, "tensor {} has {} dimensions (at most {} allowed)",
                     quote_name(tensor.name), tensor.rank, kMaxRank);
    for (uint32_t i = 0; i < tensor.rank; ++i) tensor.dims[i] = BM_TRY(reader_.read<uint64_t>());
    const auto type = BM_TRY(reader_.read<uint32_t>());
    entry.offset = BM_TRY(reader_.read<uint64_t>());
    BM_TRY(measure(entry, type, at));
    if (!is_aligned(entry.offset, alignment))
      return corrupt(at, "tensor {}: data offset {} is not a multiple of {}",
                     quote_name(tensor.name), entry.offset, alignment);
    return entry;
  }

  Status measure(TensorEntry& entry, uint32_t type_number, uint64_t at) {
    GgufTensor& tensor = entry.tensor;
    const GgmlTypeInfo* info = find_ggml_type(type_number);
    if (info == nullptr)
      return fail(Code::kUnsupported,
                  "offset {}: tensor {} is stored as {}, which is not supported", at,
                  quote_name(tensor.name), ggml_type_name(type_number));
    tensor.type = info->type;
    std::optional<uint64_t> count = 1;
    for (const uint64_t dim : tensor.dims) count = count ? checked_mul(*count, dim) : count;
    // Signed 63 bits, so that later code may compute with int64_t.
    if (!count || *count > INT64_MAX)
      return corrupt(at, "tensor {}: dimensions {} multiply past 2^63", quote_name(tensor.name),
                     fmt::join(tensor.dims, "×"));
    if (tensor.dims[0] % info->block_values != 0)
      return corrupt(at, "tensor {}: rows of {} are not whole {} blocks of {}",
                     quote_name(tensor.name), tensor.dims[0], info->name, info->block_values);
    tensor.value_count = *count;
    const Result<uint64_t> bytes = ggml_row_bytes(info->type, *count);
    if (!bytes) return corrupt(at, "tensor {}: {}", quote_name(tensor.name), bytes.error().message);
    entry.bytes = *bytes;
    return {};
  }

  /// Gives every tensor its bytes; rejects data outside the file and overlaps.
  Status place(std::vector<TensorEntry>& entries, uint64_t alignment) {
    if (entries.empty()) return {};
    const std::optional<uint64_t> base = checked_align_up(reader_.offset(), alignment);
    for (TensorEntry& entry : entries) {
      const std::optional<uint64_t> begin = base ? checked_add(*base, entry.offset) : base;
      const std::optional<uint64_t> end = begin ? checked_add(*begin, entry.bytes) : begin;
      if (!end || *end > bytes_.size())
        return fail(
            Code::kCorrupt,
            "tensor {}: its {} bytes at offset {} of the data section (file offset {}) lie beyond "
            "the end of the file ({} bytes)",
            quote_name(entry.tensor.name), entry.bytes, entry.offset, begin.value_or(UINT64_MAX),
            bytes_.size());
      entry.tensor.data =
          bytes_.subspan(static_cast<size_t>(*begin), static_cast<size_t>(entry.bytes));
    }
    return reject_overlaps(entries);
  }

  Status reject_overlaps(const std::vector<TensorEntry>& entries) {
    std::vector<const TensorEntry*> order;
    for (const TensorEntry& entry : entries)
      if (entry.bytes > 0) order.push_back(&entry);
    std::sort(order.begin(), order.end(),
              [](const TensorEntry* a, const TensorEntry* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i)
      if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
        return fail(Code::kCorrupt, "tensors {} and {} overlap at offset {} of the data section",
                    quote_name(order[i - 1]->tensor.name), quote_name(order[i]->tensor.name),
                    order[i]->offset);
    return {};
  }

  std::span<const std::byte> bytes_;
  ByteReader reader_;
};

}  // namespace

size_t gguf_element_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool: return 1;
    case GgufType::kUint16:
    case GgufType::kInt16: return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32: return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  __builtin_unreachable();
}

Result<GgufShard> parse_gguf(std::span<const std::byte> bytes, const std::string& name) {
  return Parser(bytes).parse().map_error([&](Error e) { return std::move(e).within(name); });
}

}  // namespace bm::models
