#pragma once
// The tokens of a vocabulary as a prefix tree over their bytes, laid out in the order of a walk.

#include <cstdint>
#include <string>
#include <vector>

#include "models/tokenizer.h"

namespace bm::models {

/// Thread: immutable; shared by any number of matchers.
class GrammarVocabulary {
 public:
  /// `pieces`: bytes of each token, empty for those that no grammar allows; `ends`: tokens that end
  /// the text.
  GrammarVocabulary(const std::vector<std::string>& pieces, std::vector<int32_t> ends);
  /// Control tokens are never allowed, tokens that end generation where the text may end.
  static GrammarVocabulary of(const Tokenizer& tokenizer);

  struct Node {
    uint32_t end = 0;          ///< index behind the node's subtree
    uint32_t first_token = 0;  ///< in tokens(): those that end here
    uint16_t num_tokens = 0;
    uint16_t depth = 1;  ///< bytes up to here
    uint8_t byte = 0;
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& ends() const { return ends_; }
  const std::string& piece(int32_t token) const { return pieces_[static_cast<size_t>(token)]; }
  size_t size() const { return pieces_.size(); }
  size_t longest() const { return longest_; }

 private:
  std::vector<std::string> pieces_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_, ends_;
  size_t longest_ = 0;
};

}  // namespace bm::models
