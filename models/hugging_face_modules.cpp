#include "models/hugging_face_modules.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "models/gguf.h"
#include "models/json_text.h"
#include "models/model_error.h"

namespace bm::models {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = 1u << 20, kMaxModules = 16, kMaxDense = 2;

bool exists(const std::string& path) {
  struct stat seen{};
  return stat(path.c_str(), &seen) == 0 && S_ISREG(seen.st_mode);
}

Result<json> read_object(const std::string& path, const char* why) {
  if (!exists(path)) return fail(Code::kNotFound, "{} is missing: {}", path, why);
  const Mapping file = BM_TRY(Mapping::open_file(path));
  return parse_json_object(
             {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, kMaxBytes)
      .map_error([&](Error e) { return std::move(e).within(path); });
}

Result<PoolingType> pooling_of(const std::string& path) {
  constexpr const char* kRemedy =
      "supported are cls, mean and lasttoken, one of them; a vector pooled otherwise would be "
      "wrong";
  const json config = BM_TRY(read_object(path,
                                         "modules.json asks for it, and it says what of a "
                                         "text its vector is made of"));
  std::vector<std::string> modes;
  if (const auto mode = config.find("pooling_mode"); mode != config.end()) {
    for (const json& one : mode->is_array() ? *mode : json::array({*mode})) {
      if (!one.is_string()) return fail(Code::kCorrupt, "{}: \"pooling_mode\" is no text", path);
      modes.push_back(one.get<std::string>());
    }
  } else {  // of versions before 5.4
    for (const auto& [key, name] :
         {std::pair{"pooling_mode_cls_token", "cls"}, std::pair{"pooling_mode_max_tokens", "max"},
          std::pair{"pooling_mode_mean_tokens", "mean"},
          std::pair{"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
          std::pair{"pooling_mode_weightedmean_tokens", "weightedmean"},
          std::pair{"pooling_mode_lasttoken", "lasttoken"}})
      if (config.value(key, json()) == true) modes.emplace_back(name);
    if (modes.empty()) modes.emplace_back("mean");
  }
  if (modes.size() == 1) {
    if (modes[0] == "cls") return PoolingType::kFirst;
    if (modes[0] == "mean") return PoolingType::kMean;
    if (modes[0] == "lasttoken") return PoolingType::kLast;
  }
  std::string all;
  for (const std::string& mode : modes) all += (all.empty() ? "" : " and ") + quote_name(mode);
  return fail(Code::kUnsupported, "{}: pooling mode {} is not supported ({})", path, all, kRemedy);
}

Result<FolderModules::Dense> dense_of(const std::string& folder) {
  const std::string path = folder + "config.json";
  const json config =
      BM_TRY(read_object(path, "modules.json asks for it, and it says what the layer does"));
  FolderModules::Dense out{.weights = folder + "model.safetensors"};
  // What is left out is tanh.
  const json activation = config.value("activation_function", json("torch.nn.Tanh"));
  const std::string name = activation.is_string() ? activation.get<std::string>() : "";
  out.has_tanh = name.ends_with(".Tanh");
  if (!out.has_tanh && !name.ends_with(".Identity"))
    return fail(Code::kUnsupported,
                "{}: \"activation_function\" {} is not supported (known: Identity, Tanh)", path,
                quote_name(name));
  if (config.value("use_residual", json()) == true)
    return fail(Code::kUnsupported, "{}: \"use_residual\" is not supported", path);
  if (!exists(out.weights))
    return fail(Code::kNotFound,
                "{} is missing: weights are read from safetensors files alone; saving the model "
                "with sentence-transformers anew writes one",
                out.weights);
  return out;
}

}  // namespace

Result<FolderModules> read_folder_modules(const std::string& folder) {
  FolderModules out;
  const std::string file = folder + "modules.json";
  if (!exists(file)) return out;
  const Mapping mapping = BM_TRY(Mapping::open_file(file));
  const json list =
      json::parse(std::string_view(reinterpret_cast<const char*>(mapping.bytes().data()),
                                   std::min(mapping.bytes().size(), kMaxBytes)),
                  nullptr, false);
  if (!list.is_array() || list.empty() || list.size() > kMaxModules)
    return fail(Code::kCorrupt, "{} is not a list of modules", file);
  bool is_normalized = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const json& module = list[i];
    const json type = module.is_object() ? module.value("type", json()) : json();
    const json where = module.is_object() ? module.value("path", json("")) : json();
    if (!type.is_string() || !where.is_string())
      return fail(Code::kCorrupt, "{}: module {} has no type and path", file, i);
    const auto& whole = type.get_ref<const std::string&>();
    const std::string name = whole.substr(whole.rfind('.') + 1);
    const auto& path = where.get_ref<const std::string&>();
    if (path.find("..") != std::string::npos || path.starts_with('/'))
      return fail(Code::kCorrupt, "{}: module {} is outside of the folder: {}", file, i,
                  quote_name(path));
    const std::string own = folder + path + "/";
    if (i == 0) {
      if (name != "Transformer")
        return fail(Code::kUnsupported, "{}: the first module is {}, not a Transformer", file,
                    quote_name(name));
      if (!path.empty())
        return fail(Code::kUnsupported,
                    "{}: the transformer is in {}, which is not supported; move its files up", file,
                    own);
    } else if (name == "Pooling" && !out.pooling && !out.score) {
      out.pooling = BM_TRY(pooling_of(own + "config.json"));
      const json config = BM_TRY(read_object(own + "config.json", "it was there"));
      out.pools_prompt = config.value("include_prompt", json(true)) != false;
    } else if (name == "Dense" && out.pooling && !is_normalized && out.dense.size() < kMaxDense) {
      out.dense.push_back(BM_TRY(dense_of(own)));
    } else if (name == "Normalize" && out.pooling) {
      is_normalized = true;  // vectors have length 1 whatever a folder says
    } else if (name == "LogitScore" && !out.pooling) {
      const json config =
          BM_TRY(read_object(own + "config.json", "it says which tokens are yes and no"));
      const json yes = config.value("true_token_id", json()),
                 no = config.value("false_token_id", json());
      if (!yes.is_number_unsigned() || !no.is_number_unsigned() || yes > INT32_MAX ||
          no > INT32_MAX)
        return fail(Code::kUnsupported,
                    "{}config.json: \"true_token_id\" and \"false_token_id\" must be there", own);
      out.score = {yes.get<uint32_t>(), no.get<uint32_t>()};
    } else {
      return fail(Code::kUnsupported,
                  "{}: module {}, {}, is not supported at its place (known: Transformer, then "
                  "Pooling, at most two Dense and Normalize; or LogitScore)",
                  file, i, quote_name(name));
    }
  }
  if (!out.pooling && !out.score)
    return fail(Code::kUnsupported,
                "{} has no Pooling: models with a vector for every token are not supported", file);
  return out;
}

}  // namespace bm::models
