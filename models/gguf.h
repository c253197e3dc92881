#pragma once
// GGUF model files, versions 2 and 3, single or split: typed metadata and tensors as spans of the
// mapped file. Nothing is copied; every size in the file is checked before it is used.
//
// Source of the format: ggml repository, docs/gguf.md and gguf.cpp (constants); split files:
// llama.cpp, tools/gguf-split.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/quant.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace bm::models {

/// Metadata value types, numbers as in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
std::string_view gguf_type_name(GgufType type);

struct GgufArray {
  GgufType element = GgufType::kUint8;
  uint64_t count = 0;
  std::span<const std::byte> raw;         ///< fixed-size elements, little endian, unaligned
  std::vector<std::string_view> strings;  ///< when element is kString
  std::vector<GgufArray> arrays;          ///< when element is kArray
};

struct GgufValue {
  GgufType type = GgufType::kUint8;
  uint64_t bits = 0;  ///< integers sign-extended to 64 bits; bool 0 or 1; floats: their bit pattern
  std::string_view text;  ///< when type is kString; any bytes
  GgufArray array;        ///< when type is kArray
};

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  uint32_t rank = 0;                            ///< 0 to 4; 0 is a single value
  std::array<uint64_t, 4> dims = {1, 1, 1, 1};  ///< ggml's order: dims[0] varies fastest
  uint64_t value_count = 0;
  uint32_t shard = 0;
  std::span<const std::byte> data;  ///< exactly the tensor's bytes; aligned as the file is

  /// Dimensions with the slowest first: a matrix is {rows, columns}.
  std::vector<uint64_t> shape() const;
};

/// A whole model: one file or all its shards. Views handed out live as long as the object (also
/// after a move). Thread: const members may be called from any thread.
class GgufFile {
 public:
  /// Opens `path`; for a split model any shard may be given, the others are taken from its folder.
  /// A folder with a config.json is a model of Hugging Face: hugging_face.h.
  /// Errors: kNotFound, kPermission, kIo; kCorrupt naming file and offset; kUnsupported for
  /// version 1, big-endian files and tensor types that quant.h does not read.
  static Result<GgufFile> open(const std::string& path);

  /// Same on bytes that the caller keeps alive; one span per shard, in order.
  static Result<GgufFile> from_bytes(std::span<const std::byte> bytes);
  static Result<GgufFile> from_shards(const std::vector<std::span<const std::byte>>& shards);

  uint32_t version() const { return version_; }
  size_t shard_count() const { return shard_count_; }
  /// Of the first shard, in alphabetical order.
  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  /// In file order, shard by shard.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  /// nullptr when there is none of that name.
  const GgufTensor* find_tensor(std::string_view name) const;
  /// Errors: kNotFound naming the tensor.
  Result<const GgufTensor*> tensor(std::string_view name) const;

  /// nullptr when there is no such key.
  const GgufValue* find(std::string_view key) const;

  /// `data` of a tensor, or a part of it, is not needed soon: its pages leave the process's memory.
  /// Nothing happens to bytes that lie in no mapped GGUF file.
  void release(std::span<const std::byte> data) const {
    for (const Mapping& m : mappings_) m.release(data);
  }

  /// What the system says of the files: device, inode, size and times of each, so that a file that
  /// was written to since has another. Empty for bytes that somebody else holds.
  const std::string& stamp() const { return stamp_; }

  // Typed access. Without a default: kNotFound naming the missing key. With one: the default when
  // the key is absent. Both: kCorrupt naming key and type when the value is of another kind or does
  // not fit. Integers of any width convert when the value fits; floats of either width.
  Result<uint32_t> get_u32(std::string_view key) const;
  Result<uint32_t> get_u32(std::string_view key, uint32_t fallback) const;
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<uint64_t> get_u64(std::string_view key, uint64_t fallback) const;
  Result<int32_t> get_i32(std::string_view key) const;
  Result<int32_t> get_i32(std::string_view key, int32_t fallback) const;
  Result<float> get_f32(std::string_view key) const;
  Result<float> get_f32(std::string_view key, float fallback) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<bool> get_bool(std::string_view key, bool fallback) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key, std::string_view fallback) const;

  // Arrays; kNotFound when absent (ask find() first for an optional one).
  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<float>> get_f32s(std::string_view key) const;
  Result<std::vector<int32_t>> get_i32s(std::string_view key) const;
  Result<std::vector<uint32_t>> get_u32s(std::string_view key) const;
  /// Bytes of an int8 or uint8 array.
  Result<std::span<const std::byte>> get_bytes(std::string_view key) const;

 private:
  friend class GgufAssembler;
  friend class HuggingFaceModel;

  uint32_t version_ = 0;
  size_t shard_count_ = 0;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
  std::vector<Mapping> mappings_;
  std::shared_ptr<const void> owner_;  ///< of what lies in no file as it is
  std::string stamp_;
};

}  // namespace bm::models
