#pragma once
// One GGUF file: header, metadata and tensor table. Joining shards is gguf.cpp's work.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf.h"

namespace bm::models {

struct GgufShard {
  uint32_t version = 0;
  std::map<std::string_view, GgufValue> metadata;
  std::vector<GgufTensor>
      tensors;  ///< inside the file, aligned, free of overlap; names not compared
};

/// Reads and checks one file; `name` is for messages.
Result<GgufShard> parse_gguf(std::span<const std::byte> bytes, const std::string& name);

/// `value` as T when it is an integer that fits, for keys read before a GgufFile exists.
/// Errors: kCorrupt naming `key`.
Result<uint64_t> gguf_unsigned(std::string_view key, const GgufValue& value, uint64_t max);

/// Size of one element; 0 for strings and arrays.
size_t gguf_element_bytes(GgufType type);

}  // namespace bm::models
