// SentencePiece unigram model: the segmentation with the greatest sum of scores (Viterbi).
// Source of the rules: google/sentencepiece, unigram_model.cc; flags as in llama.cpp.

#include <algorithm>
#include <limits>

#include "models/tokenizer_model.h"
#include "models/tokenizer_normalize.h"
#include "models/tokenizer_trie.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

// An unknown character costs this much more than the rarest token.
constexpr float kUnknownPenalty = 10.0f;

struct Best {
  double score = -std::numeric_limits<double>::infinity();
  uint32_t begin = 0;
  int32_t token = -1;  // −1: unknown
};

class UnigramModel final : public TokenModel {
 public:
  UnigramModel(const Vocab& vocab, CharsMap map, bool merge_spaces)
      : vocab_(vocab), map_(std::move(map)), merge_spaces_(merge_spaces) {
    float lowest = 0.0f;
    for (const auto& [text, id] : vocab.by_text) {
      trie_.insert(text, id);
      lowest = std::min(lowest, vocab.at(id).score);
    }
    unknown_score_ = double{lowest} - kUnknownPenalty;
  }

  void encode(std::string_view text, bool starts_text, std::vector<int32_t>& out) const override {
    const std::string normal = normalize(text, starts_text && vocab_.add_space_prefix);
    const std::vector<Best> best = search(normal);
    std::vector<Best> path;
    std::vector<uint32_t> ends;
    for (size_t end = normal.size(); end > 0; end = best[end].begin) {
      path.push_back(best[end]);
      ends.push_back(static_cast<uint32_t>(end));
    }
    bool was_unknown = false;
    for (size_t i = path.size(); i-- > 0;) {
      const std::string_view piece =
          std::string_view(normal).substr(path[i].begin, ends[i] - path[i].begin);
      if (path[i].token >= 0)
        out.push_back(path[i].token);
      else if (!was_unknown || vocab_.byte_tokens[static_cast<uint8_t>(piece[0])] >= 0)
        append_byte_fallback(vocab_, piece,
                             out);  // a run of unknown characters is one unknown token
      was_unknown = path[i].token < 0;
    }
  }

 private:
  /// Replacement rules, then spaces to marks: one before the first word and, when spaces are
  /// merged, one before each word and none elsewhere.
  std::string normalize(std::string_view text, bool add_prefix) const {
    std::string out;
    bool in_word = false, has_prefix = !add_prefix;
    for (const char c : map_.apply(text)) {
      if (c == ' ') {
        if (!merge_spaces_) out += kSpaceMark;
        in_word = false;
        continue;
      }
      if (!in_word && (merge_spaces_ || !has_prefix)) out += kSpaceMark;
      in_word = has_prefix = true;
      out += c;
    }
    return out;
  }

  std::vector<Best> search(const std::string& text) const {
    std::vector<Best> best(text.size() + 1);
    best[0].score = 0.0;
    for (size_t pos = 0; pos < text.size();) {
      const size_t char_length = decode_utf8(text, pos).length;
      const double score = best[pos].score;
      bool has_char = false;
      const auto offer = [&](size_t length, double cost, int32_t token) {
        Best& end = best[pos + length];
        if (score + cost > end.score) end = {score + cost, static_cast<uint32_t>(pos), token};
      };
      trie_.prefixes(text, pos, [&](size_t length, int32_t token) {
        has_char |= length == char_length;
        const Token& entry = vocab_.at(token);
        offer(length, entry.type == TokenType::kUserDefined ? 0.0 : double{entry.score}, token);
      });
      if (!has_char) offer(char_length, unknown_score_, -1);
      pos += char_length;
    }
    return best;
  }

  const Vocab& vocab_;
  ByteTrie trie_;
  CharsMap map_;
  bool merge_spaces_;
  double unknown_score_ = 0;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> make_unigram_model(const GgufFile& file, Vocab& vocab) {
  if (BM_TRY(file.get_bool("tokenizer.ggml.treat_whitespace_as_suffix", false)))
    return fail(Code::kUnsupported, "unigram models with spaces as suffixes are not supported");
  if (!can_express_all_bytes(vocab))
    return fail(Code::kUnsupported,
                "the vocabulary has neither all byte tokens nor an unknown token");
  CharsMap map;
  if (file.find("tokenizer.ggml.precompiled_charsmap") != nullptr) {
    const auto blob = BM_TRY(file.get_bytes("tokenizer.ggml.precompiled_charsmap"));
    map = BM_TRY(CharsMap::parse(blob));
  }
  const bool merge_spaces = BM_TRY(file.get_bool("tokenizer.ggml.remove_extra_whitespaces", false));
  fill_sentencepiece_bytes(vocab);
  return std::make_unique<UnigramModel>(vocab, std::move(map), merge_spaces);
}

}  // namespace bm::models
