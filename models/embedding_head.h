#pragma once
// What becomes of a text's pooled hidden state in files that have more layers behind it: the dense
// layers of sentence-transformers, and the head of a reranker. Computed on the host: a text has one
// such vector.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/gguf.h"

namespace bm::models {

class EmbeddingHead {
 public:
  /// A head without layers where the file has none.
  /// Errors: kUnsupported, kCorrupt naming the tensor.
  static Result<EmbeddingHead> from_gguf(const GgufFile& file);

  /// Whether the result is a score of how well a text answers another (pooling_type 4).
  bool is_ranking() const { return is_ranking_; }
  /// Of rerankers: whether the mean of all tokens is what it reads, not the first or last of them.
  bool reads_mean() const { return reads_mean_; }
  /// Of rerankers that are language models: a text with {query} and {document} in it.
  const std::string& prompt() const { return prompt_; }

  /// What is put before a text of this name; of no name, what is put before all. Nothing: there is
  /// no such prompt.
  std::optional<std::string> prompt_of(const std::optional<std::string>& name) const;
  /// Names of the prompts, in quotes.
  std::string prompt_names() const;

  /// Pooled hidden state → embedding, or scores of the labels, the first of which counts.
  /// Errors: kCorrupt for another number of components than the file's layers have.
  Result<std::vector<double>> apply(std::vector<double> pooled) const;

 private:
  enum class After : uint8_t { kNothing, kTanh, kGelu, kRelu };
  struct Layer {
    std::string name;
    size_t columns = 0;
    std::vector<float> weights;    ///< [rows, columns]
    std::vector<float> bias = {};  ///< of `rows`, or none
    After after = After::kNothing;
    std::vector<float> gain = {}, shift = {};  ///< of a norm behind that, each or none
  };
  static Result<std::optional<Layer>> read_layer(const GgufFile& file, const std::string& name);
  static std::vector<double> run(const Layer& layer, std::span<const double> x, double epsilon);
  std::vector<Layer> layers_;
  bool is_ranking_ = false, reads_mean_ = false;
  double epsilon_ = 1e-5;     ///< of norms
  bool has_softmax_ = false;  ///< scores of labels sum to 1
  std::string prompt_;
  std::map<std::string, std::string> prompts_;  ///< of texts, by their names
  std::string default_prompt_;
};

/// Tensors that EmbeddingHead reads, and nobody else.
bool is_embedding_head(std::string_view tensor);

}  // namespace bm::models
