// Dense layers and classification heads on pooled hidden states.
#include "models/embedding_head.h"

#include <algorithm>
#include <cmath>

#include "models/model_error.h"
#include "models/quant.h"

namespace bm::models {

namespace {

// Source: llama.cpp, gguf-py/gguf/constants.py, MODEL_TENSOR.DENSE_2_OUT, CLS and others.
constexpr std::string_view kTensors[] = {"dense_2.weight", "dense_3.weight",  "cls.weight",
                                         "cls.bias",       "cls.norm.weight", "cls.output.weight",
                                         "cls.output.bias"};

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
  Layer layer{.name = name, .columns = t->dims[0], .weights = BM_TRY(numbers_of(*t)), .bias = {}};
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
  const auto add = [&](const char* name) -> Result<bool> {
    auto layer = BM_TRY(read_layer(file, name));
    if (!layer) return false;
    head.layers_.push_back(std::move(*layer));
    return true;
  };
  if (!head.is_ranking_) {
    for (const char* name : {"dense_2", "dense_3"}) BM_TRY(add(name));
    return head;
  }
  // ModernBERT's: its activation and what is pooled differ between the authors' code and llama.cpp.
  if (file.find_tensor("cls.norm.weight"))
    return fail(Code::kUnsupported,
                "tensor \"cls.norm.weight\": heads of rerankers with a norm are not supported");
  head.has_first_ = BM_TRY(add("cls"));
  if (!BM_TRY(add("cls.output")) && !head.has_first_)
    return fail(
        Code::kUnsupported,
        "a reranker (pooling_type 4) has no tensor \"cls.weight\" or \"cls.output.weight\"");
  head.has_softmax_ = architecture == "qwen3" || architecture == "qwen3vl";
  head.prompt_ = std::string(BM_TRY(file.get_string("tokenizer.chat_template.rerank", "")));
  return head;
}

Result<std::vector<double>> EmbeddingHead::apply(std::vector<double> x) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (x.size() != layer.columns)
      return fail(Code::kCorrupt, "tensor {}.weight reads {} numbers of a text, there are {}",
                  layer.name, layer.columns, x.size());
    std::vector<double> out(layer.weights.size() / layer.columns);
    for (size_t row = 0; row < out.size(); ++row) {
      double sum = layer.bias.empty() ? 0 : static_cast<double>(layer.bias[row]);
      for (size_t k = 0; k < layer.columns; ++k)
        sum += static_cast<double>(layer.weights[row * layer.columns + k]) * x[k];
      out[row] = sum;
    }
    x = std::move(out);
    if (!has_first_ || i > 0) continue;
    for (double& v : x) v = std::tanh(v);
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
