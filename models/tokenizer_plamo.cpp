// PLaMo 2 and 3: of all ways to cut a text into pieces the one with the greatest sum of scores,
// found from the end to the front; a character without a piece is spelled in bytes.
// Source of the rules: pfnet/plamo-2-8b, tokenization_plamo.py; of what PLaMo 3 cuts before,
// llama.cpp, src/llama-vocab.cpp.

#include <algorithm>
#include <cmath>

#include "models/tokenizer_model.h"
#include "models/tokenizer_trie.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

// Scores are whole numbers, so that sums do not depend on the order.
constexpr double kScoreUnits = 1e4;
constexpr int64_t kUnknownScore = -10'000'000, kWorstScore = -20'000'000;
constexpr char32_t kByteOrderMark = 0xFEFF, kBoundary = 0xEE00;
constexpr std::string_view kMarkerBegin = "<|plamo:", kMarkerEnd = "|>";
constexpr size_t kMaxMarkerCharacters = 64;
constexpr size_t kLongRun = 4, kSpaceRun = 2;

class PlamoModel final : public TokenModel {
 public:
  PlamoModel(const Vocab& vocab, bool cuts_first) : vocab_(vocab), cuts_first_(cuts_first) {
    scores_.reserve(vocab.tokens.size());
    for (const Token& token : vocab.tokens)
      scores_.push_back(static_cast<int64_t>(
          std::clamp(std::round(double{token.score} * kScoreUnits), -1e9, 1e9)));
    for (const auto& [text, id] : vocab.by_text)
      if (scores_[static_cast<size_t>(id)] > kWorstScore && is_valid_utf8(text))
        trie_.insert(text, id);
  }

  void encode(std::string_view text, bool, std::vector<int32_t>& out) const override {
    if (!cuts_first_) {
      const CodePoint first = decode_utf8(text, 0);
      if (first.value == kByteOrderMark) text.remove_prefix(first.length);
      return encode_part(text, out);
    }
    size_t begin = 0;
    for (const size_t end : cuts_of(text)) {
      encode_part(text.substr(begin, end - begin), out);
      begin = end;
      if (begin == text.size()) break;
      if (const CodePoint c = decode_utf8(text, begin); c.value == kBoundary) begin += c.length;
    }
  }

 private:
  /// What begins at a place, at best.
  struct Best {
    int64_t score = 0;  ///< of all from here to the end
    uint32_t length = 0;
    int32_t token = -1;  ///< −1: a character in bytes
  };

  void encode_part(std::string_view text, std::vector<int32_t>& out) const {
    std::vector<Best> best(text.size() + 1);
    for (size_t pos = text.size(); pos-- > 0;) {
      if ((static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) continue;
      Best& here = best[pos];
      bool has_piece = false;
      trie_.prefixes(text, pos, [&](size_t length, int32_t token) {
        const int64_t score = best[pos + length].score + scores_[static_cast<size_t>(token)];
        if (has_piece && score < here.score) return;  // of equal ones the longest
        here = {score, static_cast<uint32_t>(length), token};
        has_piece = true;
      });
      const uint32_t length = decode_utf8(text, pos).length;
      const int64_t score = best[pos + length].score + kUnknownScore;
      if (!has_piece || score > here.score) here = {score, length, -1};
    }
    for (size_t pos = 0; pos < text.size(); pos += best[pos].length)
      if (best[pos].token >= 0)
        out.push_back(best[pos].token);
      else
        append_byte_fallback(vocab_, text.substr(pos, best[pos].length), out);
  }

  /// End of a marker that begins at `pos`, with its end; `pos` where there is none.
  static size_t marker_end(std::string_view text, size_t pos) {
    if (!text.substr(pos).starts_with(kMarkerBegin)) return pos;
    size_t end = pos + kMarkerBegin.size();
    for (size_t count = 0; count < kMaxMarkerCharacters && end < text.size(); ++count) {
      const CodePoint c = decode_utf8(text, end);
      const bool is_separator = c.value >= 0x1C && c.value <= 0x1F;
      if (c.value == '|' || is_separator || (char_classes(c.value) & kSpace) != 0) break;
      end += c.length;
    }
    return text.substr(end).starts_with(kMarkerEnd) ? end + kMarkerEnd.size() : pos;
  }

  /// Ends of the parts that are pieces by themselves, in order, the last that of the text: before
  /// and behind markers and long runs of a character, and before boundaries.
  static std::vector<size_t> cuts_of(std::string_view text) {
    std::vector<size_t> markers;
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = marker_end(text, pos);
      if (end > pos) markers.insert(markers.end(), {pos, end});
      pos = end > pos ? end : pos + 1;
    }
    std::vector<size_t> cuts;
    size_t next = 0;  // of `markers`: the first that is not behind us
    for (size_t pos = 0; pos < text.size();) {
      const CodePoint c = decode_utf8(text, pos);
      for (; next < markers.size() && markers[next] <= pos; ++next) cuts.push_back(markers[next]);
      const size_t limit = next < markers.size() ? markers[next] : text.size();
      size_t end = pos + c.length, run = 1;
      while (end < limit && decode_utf8(text, end).value == c.value) {
        end += c.length;
        ++run;
      }
      const bool is_long =
          (c.value != '\n' && run >= kLongRun) || (c.value == ' ' && run >= kSpaceRun);
      if (c.value == kBoundary)
        for (size_t at = pos; at < end; at += c.length) cuts.push_back(at);
      if (is_long) cuts.insert(cuts.end(), {pos, end});
      pos = end;
    }
    cuts.push_back(text.size());
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
  }

  const Vocab& vocab_;
  bool cuts_first_;  ///< PLaMo 3
  std::vector<int64_t> scores_;
  ByteTrie trie_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> make_plamo_model(const GgufFile&, Vocab& vocab,
                                                     bool cuts_first) {
  if (!can_express_all_bytes(vocab))
    return fail(Code::kUnsupported,
                "the vocabulary has neither all byte tokens nor an unknown token");
  for (Token& token : vocab.tokens) token.bytes = token.text;
  for (size_t byte = 0; byte < 256; ++byte)
    if (const int32_t id = vocab.byte_tokens[byte]; id >= 0)
      vocab.tokens[static_cast<size_t>(id)].bytes.assign(1, static_cast<char>(byte));
  return std::make_unique<PlamoModel>(vocab, cuts_first);
}

}  // namespace bm::models
