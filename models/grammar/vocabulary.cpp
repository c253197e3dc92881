#include "models/grammar/vocabulary.h"

#include <algorithm>

namespace bm::models {
namespace {

// Depths are kept in 16 bits; the longest tokens that are known have some hundred bytes.
constexpr size_t kMaxPieceBytes = 4096;

}  // namespace

GrammarVocabulary::GrammarVocabulary(const std::vector<std::string>& pieces,
                                     std::vector<int32_t> ends)
    : pieces_(pieces), ends_(std::move(ends)) {
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (!pieces_[i].empty() && pieces_[i].size() <= kMaxPieceBytes)
      tokens_.push_back(static_cast<int32_t>(i));
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    const int order = piece(a).compare(piece(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> path;  // nodes from the root to the last one
  std::string_view last;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = piece(tokens_[i]);
    longest_ = std::max(longest_, text.size());
    const auto shared = static_cast<size_t>(
        std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    for (; path.size() > shared; path.pop_back())
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    while (path.size() < text.size()) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.first_token = static_cast<uint32_t>(i),
                        .depth = static_cast<uint16_t>(path.size()),
                        .byte = static_cast<uint8_t>(text[path.size() - 1])});
    }
    Node& node = nodes_[path.back()];
    if (node.num_tokens == 0) node.first_token = static_cast<uint32_t>(i);
    // Of more than 65,535 tokens of the same bytes the rest is never chosen.
    if (node.num_tokens < UINT16_MAX) ++node.num_tokens;
    last = text;
  }
  for (const uint32_t node : path) nodes_[node].end = static_cast<uint32_t>(nodes_.size());
}

GrammarVocabulary GrammarVocabulary::of(const Tokenizer& tokenizer) {
  std::vector<std::string> pieces(tokenizer.size());
  std::vector<int32_t> ends;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (tokenizer.is_end_of_generation(id))
      ends.push_back(id);
    else if (!tokenizer.is_special(id))
      pieces[i] = tokenizer.piece(id);
  }
  return GrammarVocabulary(pieces, std::move(ends));
}

}  // namespace bm::models
