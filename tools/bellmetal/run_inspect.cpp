#include <bit>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/llama.h"
#include "models/safetensors.h"
#include "runtime/device.h"
#include "runtime/device_list.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/text_model.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TensorLine {
  std::string name, type;
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
};

struct Contents {
  std::string format;
  size_t files = 1;
  std::vector<std::pair<std::string, Json>> metadata = {};
  std::vector<TensorLine> tensors = {};
  std::vector<models::Llama::MemoryNeed> memory = {};
  std::string memory_problem = {};  ///< why there is none
};

// Longer arrays (vocabularies) are shown by their length.
constexpr uint64_t kMaxShownElements = 16;
constexpr size_t kMaxShownText = 60;

Json json_of(const models::GgufArray& array) {
  if (array.element == models::GgufType::kString && array.count <= kMaxShownElements) {
    Json out = Json::array();
    for (const std::string_view text : array.strings) out.push_back(std::string(text));
    return out;
  }
  return {{"element", models::gguf_type_name(array.element)}, {"count", array.count}};
}

Json json_of(const models::GgufValue& value) {
  using models::GgufType;
  switch (value.type) {
    case GgufType::kUint8:
    case GgufType::kUint16:
    case GgufType::kUint32:
    case GgufType::kUint64: return value.bits;
    case GgufType::kInt8:
    case GgufType::kInt16:
    case GgufType::kInt32:
    case GgufType::kInt64: return static_cast<int64_t>(value.bits);
    case GgufType::kFloat32: return std::bit_cast<float>(static_cast<uint32_t>(value.bits));
    case GgufType::kFloat64: return std::bit_cast<double>(value.bits);
    case GgufType::kBool: return value.bits != 0;
    case GgufType::kString: return std::string(value.text);
    case GgufType::kArray: return json_of(value.array);
  }
  return nullptr;
}

Result<Contents> read_gguf(const InspectOptions& options) {
  const auto opened =
      std::make_shared<const models::GgufFile>(BM_TRY(models::GgufFile::open(options.file)));
  const models::GgufFile& file = *opened;
  Contents contents{.format = fmt::format("GGUF {}", file.version()), .files = file.shard_count()};
  for (const auto& [key, value] : file.metadata())
    contents.metadata.emplace_back(std::string(key), json_of(value));
  for (const models::GgufTensor& t : file.tensors())
    contents.tensors.push_back({std::string(t.name),
                                models::ggml_type_name(static_cast<uint32_t>(t.type)), t.shape(),
                                t.data.size()});
  auto memory = models::Llama::memory_need(
      opened, {.device = options.device, .context = options.context, .progress = {}},
      cache_dtype(options.cache_type));
  if (memory)
    contents.memory = std::move(*memory);
  else
    contents.memory_problem = std::move(memory.error().message);
  return contents;
}

Result<Contents> read_safetensors(const std::string& path) {
  const auto file = BM_TRY(models::SafetensorsFile::open(path));
  Contents contents{.format = "safetensors"};
  for (const models::SafeTensor& t : file.tensors()) {
    contents.files = std::max<size_t>(contents.files, t.shard + size_t{1});
    contents.tensors.push_back(
        {t.name, std::string(models::safe_dtype_name(t.dtype)), t.shape, t.data.size()});
  }
  for (const auto& [key, value] : file.metadata()) contents.metadata.emplace_back(key, value);
  return contents;
}

struct Total {
  size_t tensors = 0;
  uint64_t values = 0, bytes = 0;
};

uint64_t value_count(const TensorLine& tensor) {
  uint64_t count = 1;
  for (const uint64_t dimension : tensor.shape) count *= dimension;
  return count;
}

std::map<std::string, Total> totals_by_type(const Contents& contents) {
  std::map<std::string, Total> totals;
  for (const TensorLine& tensor : contents.tensors) {
    Total& total = totals[tensor.type];
    ++total.tensors;
    total.values += value_count(tensor);
    total.bytes += tensor.bytes;
  }
  return totals;
}

uint64_t needed(const models::Llama::MemoryNeed& m) {
  return m.weights + m.context * m.per_position + m.states + m.scratch;
}

void print_memory(const Contents& contents) {
  if (!contents.memory_problem.empty())
    fmt::print("\nThe memory it needs is not known: {}\n", contents.memory_problem);
  if (contents.memory.empty()) return;
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"DEVICE"},
               {"WEIGHTS", kRight},
               {"PER 1000 TOKENS", kRight},
               {fmt::format("AT {} TOKENS", contents.memory[0].context), kRight},
               {"SCRATCH, ABOUT", kRight},
               {"TOGETHER", kRight},
               {"FREE", kRight}});
  for (const auto& m : contents.memory)
    table.add({m.device, human_bytes(m.weights), human_bytes(1000 * m.per_position),
               human_bytes(m.context * m.per_position + m.states), human_bytes(m.scratch),
               human_bytes(needed(m)), human_bytes(m.free)});
  fmt::print("\n{}", table.text());
}

void print_as_json(const Contents& contents, const InspectOptions& options) {
  Json metadata = Json::object(), types = Json::object();
  for (const auto& [key, value] : contents.metadata) metadata[key] = value;
  Total all;
  for (const auto& [type, total] : totals_by_type(contents)) {
    types[type] = {{"tensors", total.tensors}, {"values", total.values}, {"bytes", total.bytes}};
    all.values += total.values;
    all.bytes += total.bytes;
  }
  Json out = {{"format", contents.format}, {"files", contents.files},
              {"metadata", metadata},      {"types", types},
              {"values", all.values},      {"weight_bytes", all.bytes}};
  if (!contents.memory_problem.empty()) out["memory_problem"] = contents.memory_problem;
  for (const auto& m : contents.memory)
    out["memory"].push_back({{"device", m.device},
                             {"context", m.context},
                             {"weight_bytes", m.weights},
                             {"cache_bytes_per_1000_tokens", 1000 * m.per_position},
                             {"cache_bytes", m.context * m.per_position + m.states},
                             {"scratch_bytes", m.scratch},
                             {"needed_bytes", needed(m)},
                             {"free_bytes", m.free}});
  if (options.has_tensors) {
    out["tensors"] = Json::array();
    for (const TensorLine& tensor : contents.tensors)
      out["tensors"].push_back({{"name", tensor.name},
                                {"type", tensor.type},
                                {"shape", tensor.shape},
                                {"bytes", tensor.bytes}});
  }
  print_json(out);
}

/// Text from a file in one line of a terminal: no control characters, not too long.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kMaxShownText) return text;
  size_t end = kMaxShownText;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

void print_tables(const Contents& contents, const InspectOptions& options) {
  Table metadata({{"KEY"}, {"VALUE"}});
  for (const auto& [key, value] : contents.metadata) {
    const std::string quoted = shown(key);
    metadata.add({quoted.substr(1, quoted.size() - 2), shown(value)});
  }
  fmt::print("{}, {} file{}\n\n{}\n", contents.format, contents.files,
             contents.files == 1 ? "" : "s", metadata.text());
  if (options.has_tensors) {
    Table tensors({{"TENSOR"}, {"TYPE"}, {"SHAPE"}, {"BYTES", Table::Align::kRight}});
    for (const TensorLine& tensor : contents.tensors) {
      const std::string quoted = shown(tensor.name);
      tensors.add({quoted.substr(1, quoted.size() - 2), tensor.type,
                   fmt::format("{}", fmt::join(tensor.shape, " × ")), human_bytes(tensor.bytes)});
    }
    fmt::print("{}\n", tensors.text());
  }
  Table types({{"TYPE"},
               {"TENSORS", Table::Align::kRight},
               {"VALUES", Table::Align::kRight},
               {"BYTES", Table::Align::kRight}});
  Total all;
  for (const auto& [type, total] : totals_by_type(contents)) {
    types.add({type, std::to_string(total.tensors), std::to_string(total.values),
               human_bytes(total.bytes)});
    all.tensors += total.tensors;
    all.values += total.values;
    all.bytes += total.bytes;
  }
  types.add(
      {"all", std::to_string(all.tensors), std::to_string(all.values), human_bytes(all.bytes)});
  fmt::print("{}", types.text());
  print_memory(contents);
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  for (const std::string& name : runtime::device_list(options.device))
    if (const Status known = runtime::check_device_name(name); !known)
      return report(known.error(), options.json);
  const bool is_safetensors =
      options.file.ends_with(".safetensors") || options.file.ends_with(".json");
  const auto contents = is_safetensors ? read_safetensors(options.file) : read_gguf(options);
  if (!contents) return report_file(contents.error(), options.file, options.json);
  if (options.json)
    print_as_json(*contents, options);
  else
    print_tables(*contents, options);
  return kOk;
}

}  // namespace bm::cli
