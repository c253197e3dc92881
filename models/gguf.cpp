#include "models/gguf.h"

#include <sys/stat.h>

#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "models/gguf_parse.h"
#include "models/hugging_face.h"
#include "models/model_error.h"
#include "runtime/base/out_of_memory.h"

namespace bm::models {
namespace {

constexpr uint64_t kMaxShards = 1024;

enum class NumberKind : uint8_t { kUnsigned, kSigned, kFloat, kOther };

NumberKind number_kind(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kUint16:
    case GgufType::kUint32:
    case GgufType::kUint64: return NumberKind::kUnsigned;
    case GgufType::kInt8:
    case GgufType::kInt16:
    case GgufType::kInt32:
    case GgufType::kInt64: return NumberKind::kSigned;
    case GgufType::kFloat32:
    case GgufType::kFloat64: return NumberKind::kFloat;
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray: return NumberKind::kOther;
  }
  __builtin_unreachable();
}

tl::unexpected<Error> wrong_type(std::string_view key, const char* wanted, const GgufValue& value) {
  if (value.type == GgufType::kArray)
    return fail(Code::kCorrupt, "metadata key {}: {} expected, the file has an array of {}",
                quote_name(key), wanted, gguf_type_name(value.array.element));
  return fail(Code::kCorrupt, "metadata key {}: {} expected, the file has {}", quote_name(key),
              wanted, gguf_type_name(value.type));
}

/// T when an integer of `kind` with these (sign-extended) bits fits it.
template <class T>
Result<T> fit_integer(std::string_view key, NumberKind kind, uint64_t bits) {
  const bool is_negative = kind == NumberKind::kSigned && static_cast<int64_t>(bits) < 0;
  const bool fits = is_negative
                        ? static_cast<int64_t>(bits) >= int64_t{std::numeric_limits<T>::min()} &&
                              std::is_signed_v<T>
                        : bits <= static_cast<uint64_t>(std::numeric_limits<T>::max());
  if (fits) return static_cast<T>(bits);
  return fail(
      Code::kCorrupt, "metadata key {}: value {} is out of range", quote_name(key),
      is_negative ? fmt::format("{}", static_cast<int64_t>(bits)) : fmt::format("{}", bits));
}

template <class T>
Result<T> integer(std::string_view key, const GgufValue& value) {
  const NumberKind kind = number_kind(value.type);
  if (kind != NumberKind::kUnsigned && kind != NumberKind::kSigned)
    return wrong_type(key, "an integer", value);
  return fit_integer<T>(key, kind, value.bits);
}

Result<float> real(std::string_view key, const GgufValue& value) {
  if (value.type == GgufType::kFloat32)
    return std::bit_cast<float>(static_cast<uint32_t>(value.bits));
  if (value.type == GgufType::kFloat64)
    return static_cast<float>(std::bit_cast<double>(value.bits));
  return wrong_type(key, "a float", value);
}

uint64_t element_bits(const GgufArray& array, size_t index) {
  const size_t size = gguf_element_bytes(array.element);
  uint64_t bits = 0;
  std::memcpy(&bits, array.raw.data() + index * size, size);
  if (number_kind(array.element) == NumberKind::kSigned && size < 8) {
    const unsigned shift = static_cast<unsigned>(64 - 8 * size);
    bits = static_cast<uint64_t>(static_cast<int64_t>(bits << shift) >> shift);
  }
  return bits;
}

template <class T>
Result<std::vector<T>> integers(std::string_view key, const GgufValue& value) {
  const NumberKind kind = number_kind(value.array.element);
  if (value.type != GgufType::kArray ||
      (kind != NumberKind::kUnsigned && kind != NumberKind::kSigned))
    return wrong_type(key, "an array of integers", value);
  std::vector<T> out(static_cast<size_t>(value.array.count));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = BM_TRY(fit_integer<T>(key, kind, element_bits(value.array, i)));
  return out;
}

struct ShardName {
  std::string prefix;
  uint64_t number, count;  // number counts from 1
};

/// Parses "<prefix>-00002-of-00005.gguf".
std::optional<ShardName> parse_shard_name(const std::string& path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";  // a 0 stands for any digit
  if (path.size() <= kPattern.size()) return std::nullopt;
  const std::string_view tail = std::string_view(path).substr(path.size() - kPattern.size());
  uint64_t numbers[2] = {0, 0};
  for (size_t i = 0; i < kPattern.size(); ++i) {
    if (kPattern[i] != '0') {
      if (tail[i] != kPattern[i]) return std::nullopt;
      continue;
    }
    if (tail[i] < '0' || tail[i] > '9') return std::nullopt;
    uint64_t& number = numbers[i < 6 ? 0 : 1];
    number = number * 10 + static_cast<uint64_t>(tail[i] - '0');
  }
  return ShardName{path.substr(0, path.size() - kPattern.size()), numbers[0], numbers[1]};
}

Result<uint64_t> unsigned_or(const GgufShard& shard, std::string_view key, uint64_t max,
                             uint64_t fallback) {
  const auto found = shard.metadata.find(key);
  if (found == shard.metadata.end()) return fallback;
  return gguf_unsigned(key, found->second, max);
}

Result<uint64_t> split_count(const GgufShard& shard) {
  const uint64_t count = BM_TRY(unsigned_or(shard, "split.count", UINT16_MAX, 0));
  if (count > kMaxShards)
    return fail(Code::kCorrupt, "split.count {} is more than {}", count, kMaxShards);
  return count <= 1 ? 1 : count;
}

struct OpenShard {
  std::string name;
  Mapping mapping;
  GgufShard shard;
  std::string stamp;
};

std::string stamp_of(const std::string& path) {
  struct stat seen{};
  if (stat(path.c_str(), &seen) != 0) return {};
  return fmt::format("{}:{}:{}:{}.{}:{}.{};", seen.st_dev, seen.st_ino, seen.st_size,
                     seen.st_mtim.tv_sec, seen.st_mtim.tv_nsec, seen.st_ctim.tv_sec,
                     seen.st_ctim.tv_nsec);
}

Result<OpenShard> open_shard(const std::string& path) {
  OpenShard out;
  out.name = path;
  const std::string before = stamp_of(path);
  out.mapping = BM_TRY(Mapping::open_file(path));
  if (before == stamp_of(path)) out.stamp = before;
  out.shard = BM_TRY(parse_gguf(out.mapping.bytes(), path));
  return out;
}

}  // namespace

/// Joins parsed shards into a GgufFile and checks that they belong together.
class GgufAssembler {
 public:
  static Result<GgufFile> assemble(std::vector<OpenShard> shards) {
    GgufFile file;
    file.version_ = shards[0].shard.version;
    file.shard_count_ = shards.size();
    for (size_t i = 0; i < shards.size(); ++i)
      BM_TRY(add_shard(file, shards[i], i, shards.size()).map_error([&](Error e) {
        return std::move(e).within(shards[i].name);
      }));
    const uint64_t total = BM_TRY(
        unsigned_or(shards[0].shard, "split.tensors.count", INT32_MAX, file.tensors_.size()));
    if (total != file.tensors_.size())
      return fail(Code::kCorrupt, "{}: split.tensors.count says {} tensors, the shards hold {}",
                  shards[0].name, total, file.tensors_.size());
    file.metadata_ = std::move(shards[0].shard.metadata);
    for (OpenShard& shard : shards) {
      file.mappings_.push_back(std::move(shard.mapping));
      file.stamp_ += shard.stamp;
    }
    return file;
  }

 private:
  static Status add_shard(GgufFile& file, OpenShard& open, size_t index, size_t count) {
    const uint64_t announced = BM_TRY(split_count(open.shard));
    const uint64_t number = BM_TRY(unsigned_or(open.shard, "split.no", UINT16_MAX, 0));
    if (announced != count || number != index)
      return fail(Code::kCorrupt, "is shard {} of {} by its split.no and split.count, not {} of {}",
                  number + 1, announced, index + 1, count);
    for (GgufTensor& tensor : open.shard.tensors) {
      tensor.shard = static_cast<uint32_t>(index);
      if (!file.tensor_index_.emplace(tensor.name, file.tensors_.size()).second)
        return fail(Code::kCorrupt, "tensor {} appears twice", quote_name(tensor.name));
      file.tensors_.push_back(std::move(tensor));
    }
    return {};
  }
};

std::string_view gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kUint8: return "uint8";
    case GgufType::kInt8: return "int8";
    case GgufType::kUint16: return "uint16";
    case GgufType::kInt16: return "int16";
    case GgufType::kUint32: return "uint32";
    case GgufType::kInt32: return "int32";
    case GgufType::kFloat32: return "float32";
    case GgufType::kBool: return "bool";
    case GgufType::kString: return "string";
    case GgufType::kArray: return "array";
    case GgufType::kUint64: return "uint64";
    case GgufType::kInt64: return "int64";
    case GgufType::kFloat64: return "float64";
  }
  __builtin_unreachable();
}

std::vector<uint64_t> GgufTensor::shape() const {
  return {dims.rend() - static_cast<std::ptrdiff_t>(rank), dims.rend()};
}

Result<uint64_t> gguf_unsigned(std::string_view key, const GgufValue& value, uint64_t max) {
  const uint64_t number = BM_TRY(integer<uint64_t>(key, value));
  if (number > max)
    return fail(Code::kCorrupt, "metadata key {}: value {} is more than {}", quote_name(key),
                number, max);
  return number;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  return guard_memory(path, [&]() -> Result<GgufFile> {
    if (is_folder(path)) return open_hugging_face(path);
    OpenShard given = BM_TRY(open_shard(path));
    const uint64_t count = BM_TRY(
        split_count(given.shard).map_error([&](Error e) { return std::move(e).within(path); }));
    std::vector<OpenShard> shards;
    if (count == 1) {
      shards.push_back(std::move(given));
      return GgufAssembler::assemble(std::move(shards));
    }
    const std::optional<ShardName> name = parse_shard_name(path);
    if (!name || name->count != count || name->number < 1 || name->number > count)
      return fail(
          Code::kInvalidArgument,
          "{} is one of {} shards, but its name does not end in -NNNNN-of-{:05}.gguf, so the "
          "others cannot be found",
          path, count, count);
    for (uint64_t i = 1; i <= count; ++i) {
      const bool is_given = i == name->number;
      shards.push_back(is_given ? std::move(given)
                                : BM_TRY(open_shard(fmt::format("{}-{:05}-of-{:05}.gguf",
                                                                name->prefix, i, count))));
    }
    return GgufAssembler::assemble(std::move(shards));
  });
}

Result<GgufFile> GgufFile::from_bytes(std::span<const std::byte> bytes) {
  return from_shards({bytes});
}

Result<GgufFile> GgufFile::from_shards(const std::vector<std::span<const std::byte>>& shards) {
  if (shards.empty()) return fail(Code::kInvalidArgument, "no shards given");
  std::vector<OpenShard> open(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    open[i].name = shards.size() == 1 ? "GGUF" : fmt::format("GGUF shard {}", i + 1);
    open[i].shard = BM_TRY(parse_gguf(shards[i], open[i].name));
  }
  return GgufAssembler::assemble(std::move(open));
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<const GgufTensor*> GgufFile::tensor(std::string_view name) const {
  if (const GgufTensor* found = find_tensor(name)) return found;
  return fail(Code::kNotFound, "the model has no tensor {}", quote_name(name));
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

namespace {

Result<const GgufValue*> required(const GgufFile& file, std::string_view key) {
  if (const GgufValue* value = file.find(key)) return value;
  return fail(Code::kNotFound, "metadata key {} is missing", quote_name(key));
}

}  // namespace

Result<uint32_t> GgufFile::get_u32(std::string_view key) const {
  return integer<uint32_t>(key, *BM_TRY(required(*this, key)));
}
Result<uint32_t> GgufFile::get_u32(std::string_view key, uint32_t fallback) const {
  const GgufValue* value = find(key);
  return value ? integer<uint32_t>(key, *value) : fallback;
}
Result<uint64_t> GgufFile::get_u64(std::string_view key) const {
  return integer<uint64_t>(key, *BM_TRY(required(*this, key)));
}
Result<uint64_t> GgufFile::get_u64(std::string_view key, uint64_t fallback) const {
  const GgufValue* value = find(key);
  return value ? integer<uint64_t>(key, *value) : fallback;
}
Result<int32_t> GgufFile::get_i32(std::string_view key) const {
  return integer<int32_t>(key, *BM_TRY(required(*this, key)));
}
Result<int32_t> GgufFile::get_i32(std::string_view key, int32_t fallback) const {
  const GgufValue* value = find(key);
  return value ? integer<int32_t>(key, *value) : fallback;
}
Result<float> GgufFile::get_f32(std::string_view key) const {
  return real(key, *BM_TRY(required(*this, key)));
}
Result<float> GgufFile::get_f32(std::string_view key, float fallback) const {
  const GgufValue* value = find(key);
  return value ? real(key, *value) : fallback;
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* value = BM_TRY(required(*this, key));
  if (value->type != GgufType::kBool) return wrong_type(key, "a bool", *value);
  return value->bits != 0;
}
Result<bool> GgufFile::get_bool(std::string_view key, bool fallback) const {
  return find(key) ? get_bool(key) : fallback;
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = BM_TRY(required(*this, key));
  if (value->type != GgufType::kString) return wrong_type(key, "a string", *value);
  return value->text;
}
Result<std::string_view> GgufFile::get_string(std::string_view key,
                                              std::string_view fallback) const {
  return find(key) ? get_string(key) : fallback;
}

Result<std::span<const std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const GgufValue* value = BM_TRY(required(*this, key));
  if (value->type != GgufType::kArray || value->array.element != GgufType::kString)
    return wrong_type(key, "an array of strings", *value);
  return std::span<const std::string_view>(value->array.strings);
}

Result<std::vector<float>> GgufFile::get_f32s(std::string_view key) const {
  const GgufValue* value = BM_TRY(required(*this, key));
  const GgufArray& array = value->array;
  if (value->type != GgufType::kArray || number_kind(array.element) != NumberKind::kFloat)
    return wrong_type(key, "an array of floats", *value);
  std::vector<float> out(static_cast<size_t>(array.count));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bits = element_bits(array, i);
    out[i] = array.element == GgufType::kFloat32 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                                                 : static_cast<float>(std::bit_cast<double>(bits));
  }
  return out;
}

Result<std::vector<int32_t>> GgufFile::get_i32s(std::string_view key) const {
  return integers<int32_t>(key, *BM_TRY(required(*this, key)));
}

Result<std::vector<uint32_t>> GgufFile::get_u32s(std::string_view key) const {
  return integers<uint32_t>(key, *BM_TRY(required(*this, key)));
}

Result<std::span<const std::byte>> GgufFile::get_bytes(std::string_view key) const {
  const GgufValue* value = BM_TRY(required(*this, key));
  const GgufType element = value->array.element;
  if (value->type != GgufType::kArray ||
      (element != GgufType::kUint8 && element != GgufType::kInt8))
    return wrong_type(key, "an array of bytes", *value);
  return value->array.raw;
}

}  // namespace bm::models
