#pragma once
// safetensors files, single or listed by a model.safetensors.index.json, and a simple writer.
//
// Source of the format: huggingface/safetensors, README.md "Format" and tensor.rs (limits). The
// checks are stricter than the text in one point: unknown fields of a tensor are refused.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace bm::models {

enum class SafeDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};
std::string_view safe_dtype_name(SafeDtype dtype);  ///< as in the file: "BF16", "F8_E4M3"
size_t safe_dtype_bytes(SafeDtype dtype);

struct SafeTensor {
  std::string name;
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<uint64_t> shape;  ///< row-major, slowest dimension first
  uint32_t shard = 0;
  std::span<const std::byte> data;  ///< exactly shape × dtype bytes; alignment not promised
};

/// One file or all files of an index. Views live as long as the object, also after a move.
class SafetensorsFile {
 public:
  /// `path` names a .safetensors file or, ending in ".json", an index next to its files.
  /// Errors: kNotFound, kPermission, kIo; kCorrupt naming file and offset; kUnsupported for a
  /// number type that is not in SafeDtype.
  static Result<SafetensorsFile> open(const std::string& path);
  /// Single file in memory that the caller keeps alive.
  static Result<SafetensorsFile> from_bytes(std::span<const std::byte> bytes);

  const std::vector<SafeTensor>& tensors() const { return tensors_; }  ///< by file, then by offset
  /// nullptr when there is none of that name.
  const SafeTensor* find(std::string_view name) const;
  /// The "__metadata__" texts; of the first file when there are several.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  static Result<SafetensorsFile> open_index(const std::string& path);
  Status add_file(std::span<const std::byte> bytes, const std::string& name);

  std::vector<SafeTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
  std::vector<Mapping> mappings_;
  uint32_t shards_ = 0;
};

/// The "weight_map" of an index file: tensor name → file name.
/// Errors: kCorrupt, also for a file name that is not a plain name in the same folder.
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json);

/// A file image with the given tensors in the given order; `shard` is ignored.
/// Errors: kInvalidArgument when a name repeats or data is not shape × dtype bytes.
Result<std::vector<std::byte>> encode_safetensors(
    std::span<const SafeTensor> tensors, const std::map<std::string, std::string>& metadata = {});

/// Writes encode_safetensors() to a temporary file and renames it to `path`.
Status write_safetensors(const std::string& path, std::span<const SafeTensor> tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace bm::models
