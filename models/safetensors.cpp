#include "models/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "models/model_error.h"
#include "models/safetensors_header.h"
#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"
#include "runtime/base/output_file.h"

namespace bm::models {
namespace {

// The reference library's own cap; larger headers exist only as attacks.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kDataAlignment = 8;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<uint64_t> tensor_bytes(std::string_view name, SafeDtype dtype,
                              std::span<const uint64_t> shape) {
  std::optional<uint64_t> bytes = safe_dtype_bytes(dtype);
  for (const uint64_t dim : shape) bytes = bytes ? checked_mul(*bytes, dim) : bytes;
  if (bytes) return *bytes;
  return fail(Code::kCorrupt, "tensor {}: shape [{}] needs more than 2^64 bytes", quote_name(name),
              fmt::join(shape, ", "));
}

/// The tensors must tile the data: from 0 to its end, without gap or overlap.
Status check_layout(std::vector<SafeHeaderEntry>& entries, uint64_t data_bytes) {
  for (const SafeHeaderEntry& e : entries) {
    if (e.begin > e.end || e.end > data_bytes)
      return fail(Code::kCorrupt, "tensor {}: data_offsets [{}, {}] in {} bytes of data",
                  quote_name(e.name), e.begin, e.end, data_bytes);
    const uint64_t bytes = BM_TRY(tensor_bytes(e.name, e.dtype, e.shape));
    if (bytes != e.end - e.begin)
      return fail(Code::kCorrupt, "tensor {}: {} [{}] is {} bytes, its data_offsets hold {}",
                  quote_name(e.name), safe_dtype_name(e.dtype), fmt::join(e.shape, ", "), bytes,
                  e.end - e.begin);
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t position = 0;
  for (const SafeHeaderEntry& e : entries) {
    if (e.begin != position)
      return fail(Code::kCorrupt,
                  "tensor {}: data begins at {}, but the data before it ends at {} ({})",
                  quote_name(e.name), e.begin, position, e.begin < position ? "overlap" : "gap");
    position = e.end;
  }
  if (position != data_bytes)
    return fail(Code::kCorrupt, "{} bytes of data belong to no tensor", data_bytes - position);
  return {};
}

}  // namespace

Status SafetensorsFile::add_file(std::span<const std::byte> bytes, const std::string& name) {
  const auto context = [&](Error e) { return std::move(e).within(name); };
  ByteReader reader(bytes);
  const uint64_t length = BM_TRY(reader.read<uint64_t>().map_error(context));
  if (length > kMaxHeaderBytes || length > reader.remaining())
    return fail(Code::kCorrupt,
                "{}: offset 0: header of {} bytes (the file has {} more, {} allowed)", name, length,
                reader.remaining(), kMaxHeaderBytes);
  const std::string_view json = BM_TRY(reader.text(length));
  if (json.empty() || json[0] != '{')
    return fail(Code::kCorrupt, "{}: offset 8: the header does not begin with '{{'", name);
  SafeHeader header = BM_TRY(parse_safetensors_header(json).map_error(context));
  BM_TRY(check_layout(header.entries, reader.remaining()).map_error(context));
  const std::span<const std::byte> data = BM_TRY(reader.bytes(reader.remaining()));
  for (SafeHeaderEntry& e : header.entries) {
    if (!index_.emplace(e.name, tensors_.size()).second)
      return fail(Code::kCorrupt, "{}: tensor {} is in another file too", name, quote_name(e.name));
    tensors_.push_back(
        {std::move(e.name), e.dtype, std::move(e.shape), shards_,
         data.subspan(static_cast<size_t>(e.begin), static_cast<size_t>(e.end - e.begin))});
  }
  if (shards_++ == 0) metadata_ = std::move(header.metadata);
  return {};
}

Result<SafetensorsFile> SafetensorsFile::from_bytes(std::span<const std::byte> bytes) {
  SafetensorsFile file;
  BM_TRY(file.add_file(bytes, "safetensors"));
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  if (path.ends_with(".json")) return open_index(path);
  SafetensorsFile file;
  file.mappings_.push_back(BM_TRY(Mapping::open_file(path)));
  BM_TRY(file.add_file(file.mappings_.back().bytes(), path));
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open_index(const std::string& path) {
  const Mapping index = BM_TRY(Mapping::open_file(path));
  if (index.bytes().size() > kMaxHeaderBytes)
    return fail(Code::kCorrupt, "{}: index of {} bytes ({} allowed)", path, index.bytes().size(),
                kMaxHeaderBytes);
  const std::map<std::string, std::string> weight_map =
      BM_TRY(parse_safetensors_index(as_text(index.bytes())).map_error([&](Error e) {
        return std::move(e).within(path);
      }));
  std::map<std::string, uint32_t> files;  // name → position, in alphabetical order
  for (const auto& [tensor, name] : weight_map) files[name] = 0;
  SafetensorsFile out;
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  for (auto& [name, position] : files) {
    position = out.shards_;
    out.mappings_.push_back(BM_TRY(Mapping::open_file(folder + name)));
    BM_TRY(out.add_file(out.mappings_.back().bytes(), folder + name));
  }
  for (const auto& [tensor, name] : weight_map) {
    const SafeTensor* found = out.find(tensor);
    if (found == nullptr || found->shard != files[name])
      return fail(Code::kCorrupt, "{}: tensor {} is not in {}", path, quote_name(tensor), name);
  }
  if (out.tensors_.size() != weight_map.size())
    return fail(Code::kCorrupt, "{}: the files hold {} tensors, weight_map lists {}", path,
                out.tensors_.size(), weight_map.size());
  return out;
}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Result<std::vector<std::byte>> encode_safetensors(
    std::span<const SafeTensor> tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const SafeTensor& t : tensors) {
    const uint64_t bytes = BM_TRY(tensor_bytes(t.name, t.dtype, t.shape));
    if (bytes != t.data.size() || header.contains(t.name) || t.name == "__metadata__")
      return fail(
          Code::kInvalidArgument, "tensor {}: repeated or reserved name, or {} bytes for {} [{}]",
          quote_name(t.name), t.data.size(), safe_dtype_name(t.dtype), fmt::join(t.shape, ", "));
    header[t.name] = {{"dtype", safe_dtype_name(t.dtype)},
                      {"shape", t.shape},
                      {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  // "replace" keeps dump() from throwing on a name that is not UTF-8.
  std::string json = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  json.resize(align_up(json.size(), kDataAlignment), ' ');
  const uint64_t length = json.size();
  std::vector<std::byte> out(8 + json.size());
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, json.data(), json.size());
  for (const SafeTensor& t : tensors) out.insert(out.end(), t.data.begin(), t.data.end());
  return out;
}

Status write_safetensors(const std::string& path, std::span<const SafeTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  const std::vector<std::byte> image = BM_TRY(encode_safetensors(tensors, metadata));
  return replace_file(path, image);
}

}  // namespace bm::models
