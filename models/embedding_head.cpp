// Dense layers and classification heads on pooled hidden states.
#include "models/embedding_head.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "models/model_error.h"
#include "models/quant.h"

namespace bm::models {

namespace {

// Source: llama.cpp, gguf-py/gguf/constants.py, MODEL_TENSOR.DENSE_2_OUT, CLS and others.
constexpr std::string_view kTensors[] = {
    "dense_2.weight", "dense_2.bias",    "dense_3.weight", "dense_3.bias",      "cls.weight",
    "cls.bias",       "cls.norm.weight", "cls.norm.bias",  "cls.output.weight", "cls.output.bias"};

Result<std::vector<float>> numbers_of(const GgufTensor& t) {
  std::vector<float> out(t.value_count);
  BM_TRY(dequantize_row(t.type, t.data, out));
  return out;
}

}  // namespace

bool is_embedding_head(std::string_view tensor) {
  return std::ranges::find(kTensors, tensor) != std::end(kTensors);
}

Result<std::optional<EmbeddingHead::Layer>> EmbeddingHead::read_layer(const GgufFile& file,
                                                                      const std::string& name) {
  const GgufTensor* t = file.find_tensor(name + ".weight");
  if (t == nullptr) return std::optional<Layer>();
  const uint64_t rows = t->rank == 2 ? t->dims[1] : 1;  // a label alone may be a vector
  if (t->rank == 0 || t->rank > 2 || t->dims[0] == 0)
    return fail(Code::kCorrupt, "tensor {}.weight has {} dimensions", name, t->rank);
  Layer layer{.name = name, .columns = t->dims[0], .weights = BM_TRY(numbers_of(*t))};
  if (const GgufTensor* bias = file.find_tensor(name + ".bias")) {
    if (bias->value_count != rows)
      return fail(Code::kCorrupt, "tensor {}.bias has {} numbers, {}.weight {} rows", name,
                  bias->value_count, name, rows);
    layer.bias = BM_TRY(numbers_of(*bias));
  }
  return std::optional<Layer>(std::move(layer));
}

// Source: llama.cpp, src/llama-graph.cpp, build_pooling() and build_dense_out().
Result<EmbeddingHead> EmbeddingHead::from_gguf(const GgufFile& file) {
  EmbeddingHead head;
  const std::string architecture(BM_TRY(file.get_string("general.architecture", "")));
  head.is_ranking_ = BM_TRY(file.get_u32(architecture + ".pooling_type", 0)) == 4;
  head.epsilon_ = static_cast<double>(
      BM_TRY(file.get_f32(architecture + ".attention.layer_norm_epsilon", 1e-5F)));
  const auto add = [&](const char* name) -> Result<Layer*> {
    auto layer = BM_TRY(read_layer(file, name));
    if (!layer) return nullptr;
    return &head.layers_.emplace_back(std::move(*layer));
  };
  if (!head.is_ranking_) {
    // Written by hugging_face.cpp.
    const std::string_view text = BM_TRY(file.get_string("bellmetal.prompts", "{}"));
    const auto prompts = nlohmann::json::parse(text, nullptr, false);
    const auto listed = prompts.is_object() ? prompts.find("prompts") : prompts.end();
    if (listed != prompts.end() && listed->is_object())
      for (const auto& [name, prompt] : listed->items())
        if (prompt.is_string()) head.prompts_[name] = prompt.get<std::string>();
    if (const auto name = prompts.is_object() ? prompts.find("default") : prompts.end();
        name != prompts.end() && name->is_string())
      head.default_prompt_ = head.prompts_[name->get<std::string>()];
    for (const char* name : {"dense_2", "dense_3"}) {
      Layer* layer = BM_TRY(add(name));
      if (layer && BM_TRY(file.get_bool(fmt::format("bellmetal.{}.tanh", name), false)))
        layer->after = After::kTanh;
    }
    return head;
  }
  const bool is_modern = architecture == "modern-bert";
  // A folder says which; of files it is what the first of the kind was trained with.
  head.reads_mean_ = BM_TRY(file.get_u32("bellmetal.rank_pooling", is_modern ? 1 : 2)) == 1;
  if (Layer* first = BM_TRY(add("cls"))) {
    const std::string_view own =
        BM_TRY(file.get_string("bellmetal.cls.activation", is_modern ? "gelu" : "tanh"));
    first->after = own == "gelu" ? After::kGelu : own == "relu" ? After::kRelu : After::kTanh;
    for (const auto& [name, to] :
         {std::pair{"cls.norm.weight", &first->gain}, std::pair{"cls.norm.bias", &first->shift}}) {
      const GgufTensor* t = file.find_tensor(name);
      if (t == nullptr) continue;
      if (t->value_count != first->weights.size() / first->columns)
        return fail(Code::kCorrupt, "tensor {} has {} numbers, cls.weight {} rows", name,
                    t->value_count, first->weights.size() / first->columns);
      *to = BM_TRY(numbers_of(*t));
    }
  }
  if (!BM_TRY(add("cls.output")) && head.layers_.empty())
    return fail(
        Code::kUnsupported,
        "a reranker (pooling_type 4) has no tensor \"cls.weight\" or \"cls.output.weight\"");
  head.has_softmax_ = architecture == "qwen3" || architecture == "qwen3vl";
  head.prompt_ = std::string(BM_TRY(file.get_string("tokenizer.chat_template.rerank", "")));
  return head;
}

std::optional<std::string> EmbeddingHead::prompt_of(const std::optional<std::string>& name) const {
  if (!name) return default_prompt_;
  if (name->empty()) return std::string();
  const auto found = prompts_.find(*name);
  return found == prompts_.end() ? std::nullopt : std::optional(found->second);
}

std::string EmbeddingHead::prompt_names() const {
  std::string out;
  for (const auto& [name, prompt] : prompts_) out += (out.empty() ? "" : ", ") + quote_name(name);
  return out;
}

std::vector<double> EmbeddingHead::run(const Layer& layer, std::span<const double> x,
                                       double epsilon) {
  std::vector<double> out(layer.weights.size() / layer.columns);
  for (size_t row = 0; row < out.size(); ++row) {
    double sum = layer.bias.empty() ? 0 : static_cast<double>(layer.bias[row]);
    for (size_t k = 0; k < layer.columns; ++k)
      sum += static_cast<double>(layer.weights[row * layer.columns + k]) * x[k];
    out[row] = layer.after == After::kTanh   ? std::tanh(sum)
               : layer.after == After::kGelu ? sum * std::erfc(-sum / std::numbers::sqrt2) / 2
               : layer.after == After::kRelu ? std::max(sum, 0.0)
                                             : sum;
  }
  if (layer.gain.empty()) return out;
  double mean = 0, variance = 0;
  for (const double v : out) mean += v / static_cast<double>(out.size());
  for (const double v : out) variance += (v - mean) * (v - mean) / static_cast<double>(out.size());
  const double scale = 1 / std::sqrt(variance + epsilon);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = (out[i] - mean) * scale * static_cast<double>(layer.gain[i]) +
             (layer.shift.empty() ? 0 : static_cast<double>(layer.shift[i]));
  return out;
}

Result<std::vector<double>> EmbeddingHead::apply(std::vector<double> x) const {
  for (const Layer& layer : layers_) {
    if (x.size() != layer.columns)
      return fail(Code::kCorrupt, "tensor {}.weight reads {} numbers of a text, there are {}",
                  layer.name, layer.columns, x.size());
    x = run(layer, x, epsilon_);
  }
  if (has_softmax_ && is_ranking_) {
    const double top = std::ranges::max(x);
    double sum = 0;
    for (double& v : x) sum += v = std::exp(v - top);
    for (double& v : x) v /= sum;
  }
  return x;
}

}  // namespace bm::models
