// SentencePiece byte-pair encoding: repeatedly merge the two adjacent symbols whose union has the
// best score. Source of the rules: google/sentencepiece, bpe_model.cc; byte fallback and flags as
// in llama.cpp.

#include <algorithm>
#include <string>

#include "models/tokenizer_model.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

struct Symbol {
  uint32_t begin, length;  // bytes of the text; length 0: merged into the symbol before it
  uint32_t previous, next;
};

struct Pair {
  float score;
  uint32_t left, right;
  uint32_t length;  // of both when queued; a different sum later means the pair is outdated
};

struct WorsePair {
  bool operator()(const Pair& a, const Pair& b) const {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }
};

std::string escape_spaces(std::string_view text, bool add_prefix) {
  std::string out(add_prefix ? kSpaceMark : "");
  for (const char c : text) {
    if (c == ' ')
      out += kSpaceMark;
    else
      out += c;
  }
  return out;
}

class Merger {
 public:
  Merger(const Vocab& vocab, std::string_view text) : vocab_(vocab), text_(text) {
    for (size_t pos = 0; pos < text.size();) {
      const uint32_t length = decode_utf8(text, pos).length;
      const auto index = static_cast<uint32_t>(symbols_.size());
      symbols_.push_back(
          {static_cast<uint32_t>(pos), length, index == 0 ? kNone : index - 1, index + 1});
      pos += length;
    }
    symbols_.back().next = kNone;
    for (uint32_t i = 1; i < symbols_.size(); ++i) collect(i - 1, i);
    std::make_heap(heap_.begin(), heap_.end(), WorsePair());
  }

  void run(std::vector<int32_t>& out) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), WorsePair());
      const Pair best = heap_.back();
      heap_.pop_back();
      join(best);
    }
    for (uint32_t i = 0; i != kNone; i = symbols_[i].next) {
      const std::string_view piece = text_.substr(symbols_[i].begin, symbols_[i].length);
      const auto found = vocab_.by_text.find(piece);
      if (found != vocab_.by_text.end())
        out.push_back(found->second);
      else
        append_byte_fallback(vocab_, piece, out);
    }
  }

 private:
  /// Queues the pair (unsorted) when its union is a token.
  bool collect(uint32_t left, uint32_t right) {
    if (left == kNone || right == kNone) return false;
    const uint32_t length = symbols_[left].length + symbols_[right].length;
    if (length > vocab_.longest) return false;
    const auto found = vocab_.by_text.find(text_.substr(symbols_[left].begin, length));
    if (found == vocab_.by_text.end()) return false;
    heap_.push_back({vocab_.at(found->second).score, left, right, length});
    return true;
  }

  void queue(uint32_t left, uint32_t right) {
    if (collect(left, right)) std::push_heap(heap_.begin(), heap_.end(), WorsePair());
  }

  void join(const Pair& pair) {
    Symbol &left = symbols_[pair.left], &right = symbols_[pair.right];
    if (left.length == 0 || right.length == 0 || left.length + right.length != pair.length) return;
    left.length = pair.length;
    right.length = 0;
    left.next = right.next;
    if (right.next != kNone) symbols_[right.next].previous = pair.left;
    queue(left.previous, pair.left);
    queue(pair.left, left.next);
  }

  const Vocab& vocab_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
  std::vector<Pair> heap_;
};

class SpmModel final : public TokenModel {
 public:
  explicit SpmModel(const Vocab& vocab) : vocab_(vocab) {}

  void encode(std::string_view text, bool starts_text, std::vector<int32_t>& out) const override {
    const std::string escaped = escape_spaces(text, starts_text && vocab_.add_space_prefix);
    Merger(vocab_, escaped).run(out);
  }

 private:
  const Vocab& vocab_;
};

}  // namespace

void fill_sentencepiece_bytes(Vocab& vocab) {
  for (size_t byte = 0; byte < 256; ++byte)
    if (const int32_t id = vocab.byte_tokens[byte]; id >= 0)
      vocab.tokens[static_cast<size_t>(id)].bytes.assign(1, static_cast<char>(byte));
  for (Token& token : vocab.tokens) {
    if (token.type == TokenType::kByte) continue;
    const bool is_text = token.type != TokenType::kControl && token.type != TokenType::kUnknown;
    for (size_t pos = 0; pos < token.text.size();) {
      const bool is_mark = is_text && token.text.compare(pos, kSpaceMark.size(), kSpaceMark) == 0;
      token.bytes += is_mark ? ' ' : token.text[pos];
      pos += is_mark ? kSpaceMark.size() : 1;
    }
  }
}

Result<std::unique_ptr<TokenModel>> make_spm_model(const GgufFile&, Vocab& vocab) {
  if (!can_express_all_bytes(vocab))
    return fail(Code::kUnsupported,
                "the vocabulary has neither all byte tokens nor an unknown token");
  fill_sentencepiece_bytes(vocab);
  return std::make_unique<SpmModel>(vocab);
}

}  // namespace bm::models
