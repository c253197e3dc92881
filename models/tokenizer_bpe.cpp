// Byte-pair encoding: words are cut by the pre-tokenizer, then their bytes are joined in the order
// of the merge list. Source of the rules: openai/gpt-2, encoder.py; ignore_merges as in
// huggingface/tokenizers.
// Gemma 4 joins characters instead, in lines, with marks for spaces as SentencePiece has them.
// Source: llama.cpp, llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GEMMA4. The Chinese Jina v2 joins the
// characters of words between white space: LLAMA_VOCAB_PRE_TYPE_WHITESPACE.

#include <utf8proc.h>

#include <algorithm>
#include <optional>

#include "models/model_error.h"
#include "models/tokenizer_bytes.h"
#include "models/tokenizer_model.h"
#include "models/tokenizer_split.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

constexpr uint32_t kNoMerge = UINT32_MAX,
                   kStranger = kNoMerge - 1;  // a character that no merge has

struct Merge {
  uint32_t rank, result;
};

/// Strings that merging can produce, numbered: 0–255 are the single bytes.
class Symbols {
 public:
  Symbols() {
    for (int b = 0; b < 256; ++b) intern(std::string(1, static_cast<char>(b)));
  }

  uint32_t intern(std::string text) {
    const auto [entry, is_new] = ids_.emplace(std::move(text), static_cast<uint32_t>(ids_.size()));
    return entry->second;
  }

  /// Merge of rank `rank`, spelled "left right"; of two equal ones the first counts.
  /// Errors: kCorrupt.
  Status add_merge(const ByteAlphabet* alphabet, std::string_view merge, uint32_t rank) {
    const size_t space = merge.find(' ', 1);
    const std::string_view right_text =
        space == merge.npos ? std::string_view() : merge.substr(space + 1);
    const auto decode = [&](std::string_view spelling) {
      return alphabet ? alphabet->decode(spelling) : std::string(spelling);
    };
    const std::optional<std::string> left = decode(merge.substr(0, space));
    const std::optional<std::string> right = decode(right_text);
    if (!left || !right || left->empty() || right->empty())
      return fail(Code::kCorrupt, "tokenizer.ggml.merges: element {} is {}", rank,
                  quote_name(merge));
    const uint64_t key = pair_key(intern(*left), intern(*right));
    merges_.emplace(key, Merge{rank, intern(*left + *right)});
    return {};
  }

  const Merge* find_merge(uint32_t left, uint32_t right) const {
    const auto found = merges_.find(pair_key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  const std::unordered_map<std::string, uint32_t>& all() const { return ids_; }
  uint32_t find(std::string_view text) const {
    const auto found = ids_.find(std::string(text));
    return found == ids_.end() ? kStranger : found->second;
  }

 private:
  static uint64_t pair_key(uint32_t left, uint32_t right) { return (uint64_t{left} << 32) | right; }

  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<uint64_t, Merge> merges_;
};

struct Part {
  uint32_t symbol;  // kNoMerge: merged into the symbol before it
  uint32_t previous, next;
  uint32_t begin, length;
};

struct Candidate {
  uint32_t rank, left, right;
  uint32_t left_symbol, right_symbol;  // as queued; different now means outdated
};

struct LaterCandidate {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

/// Joins the bytes of one word; buffers are kept from word to word.
class WordMerger {
 public:
  explicit WordMerger(const Symbols& symbols) : symbols_(symbols) {}

  const std::vector<Part>& merge(std::string_view word) {
    parts_.clear();
    for (uint32_t i = 0; i < word.size(); ++i)
      parts_.push_back({static_cast<uint8_t>(word[i]), i - 1, i + 1, i, 1});
    return join_all();
  }

  const std::vector<Part>& merge_characters(std::string_view word) {
    parts_.clear();
    for (uint32_t i = 0, at = 0; at < word.size(); ++i) {
      const auto length = static_cast<uint32_t>(decode_utf8(word, at).length);
      parts_.push_back({symbols_.find(word.substr(at, length)), i - 1, i + 1, at, length});
      at += length;
    }
    return join_all();
  }

 private:
  const std::vector<Part>& join_all() {
    heap_.clear();
    const auto count = static_cast<uint32_t>(parts_.size());
    if (count == 0) return parts_;
    parts_.front().previous = kNoMerge;
    parts_.back().next = kNoMerge;
    for (uint32_t i = 1; i < count; ++i) collect(i - 1, i);
    std::make_heap(heap_.begin(), heap_.end(), LaterCandidate());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), LaterCandidate());
      const Candidate next = heap_.back();
      heap_.pop_back();
      join(next);
    }
    return parts_;
  }

  bool collect(uint32_t left, uint32_t right) {
    if (left == kNoMerge || right == kNoMerge) return false;
    const uint32_t a = parts_[left].symbol, b = parts_[right].symbol;
    const Merge* merge = symbols_.find_merge(a, b);
    if (merge != nullptr) heap_.push_back({merge->rank, left, right, a, b});
    return merge != nullptr;
  }

  void queue(uint32_t left, uint32_t right) {
    if (collect(left, right)) std::push_heap(heap_.begin(), heap_.end(), LaterCandidate());
  }

  void join(const Candidate& c) {
    Part &left = parts_[c.left], &right = parts_[c.right];
    // A pair never gets another partner without one of its two changing its symbol.
    if (left.symbol != c.left_symbol || right.symbol != c.right_symbol || left.next != c.right)
      return;
    left.symbol = symbols_.find_merge(c.left_symbol, c.right_symbol)->result;
    left.length += right.length;
    left.next = right.next;
    right.symbol = kNoMerge;
    if (right.next != kNoMerge) parts_[right.next].previous = c.left;
    queue(left.previous, c.left);
    queue(c.left, left.next);
  }

  const Symbols& symbols_;
  std::vector<Part> parts_;
  std::vector<Candidate> heap_;
};

class BpeModel final : public TokenModel {
 public:
  BpeModel(const Vocab& vocab, Splitter splitter, Symbols symbols,
           std::unordered_map<std::string_view, int32_t> words)
      : vocab_(vocab),
        splitter_(std::move(splitter)),
        symbols_(std::move(symbols)),
        words_(std::move(words)) {
    token_of_symbol_.resize(symbols_.all().size(), -1);
    for (const auto& [text, symbol] : symbols_.all())
      if (const auto found = words_.find(text); found != words_.end())
        token_of_symbol_[symbol] = found->second;
  }

  void encode(std::string_view text, bool, std::vector<int32_t>& out) const override {
    WordMerger merger(symbols_);
    for (const std::string_view word : splitter_.split(text)) {
      if (splitter_.ignores_merges()) {
        if (const auto found = words_.find(word); found != words_.end()) {
          out.push_back(found->second);
          continue;
        }
      }
      for (const Part& part : merger.merge(word)) {
        if (part.symbol == kNoMerge) continue;
        const int32_t token = token_of_symbol_[part.symbol];
        if (token >= 0)
          out.push_back(token);
        else
          append_byte_fallback(vocab_, word.substr(part.begin, part.length), out);
      }
    }
  }

 private:
  const Vocab& vocab_;
  Splitter splitter_;
  Symbols symbols_;
  std::unordered_map<std::string_view, int32_t> words_;  // keys view Token::bytes
  std::vector<int32_t> token_of_symbol_;                 // −1: a merge without a token
};

class CharacterBpeModel final : public TokenModel {
 public:
  CharacterBpeModel(const Vocab& vocab, Symbols symbols, CharacterRuns runs, bool is_lowercase)
      : vocab_(vocab), symbols_(std::move(symbols)), runs_(runs), is_lowercase_(is_lowercase) {}

  void encode(std::string_view text, bool starts_text, std::vector<int32_t>& out) const override {
    if (runs_ == CharacterRuns::kWords) return encode_between_spaces(text, out);
    std::string escaped = starts_text && vocab_.add_space_prefix ? std::string(kSpaceMark) : "";
    for (const char c : text) c == ' ' ? escaped += kSpaceMark : escaped += c;
    WordMerger merger(symbols_);
    for (size_t begin = 0; begin < escaped.size();) {
      const bool is_break = escaped[begin] == '\n';
      const size_t found =
          is_break ? escaped.find_first_not_of('\n', begin) : escaped.find('\n', begin);
      const size_t end = found == escaped.npos ? escaped.size() : found;
      const std::string_view run = std::string_view(escaped).substr(begin, end - begin);
      if (runs_ == CharacterRuns::kMarkedWords && !is_break)
        encode_words(merger, run, out);
      else
        encode_run(merger, run, is_break, out);
      begin = end;
    }
  }

 private:
  void encode_between_spaces(std::string_view text, std::vector<int32_t>& out) const {
    WordMerger merger(symbols_);
    std::string run;
    const auto flush = [&] {
      if (!run.empty()) encode_run(merger, run, false, out);
      run.clear();
    };
    for (size_t pos = 0; pos < text.size();) {
      const CodePoint c = decode_utf8(text, pos);
      const auto value = static_cast<utf8proc_int32_t>(c.value);
      if ((char_classes(c.value) & kSpace) != 0)
        flush();
      else
        append_utf8(run, is_lowercase_ ? static_cast<char32_t>(utf8proc_tolower(value)) : c.value);
      pos += c.length;
    }
    flush();
  }

  /// Every mark begins a word, and so does a line. Source: huggingface/tokenizers,
  /// pre_tokenizers/metaspace.rs; of lines what llama.cpp does.
  void encode_words(WordMerger& merger, std::string_view line, std::vector<int32_t>& out) const {
    std::string text(line.starts_with(kSpaceMark) ? "" : kSpaceMark);
    text += line;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(kSpaceMark, begin + 1), text.size());
      encode_run(merger, std::string_view(text).substr(begin, end - begin), false, out);
      begin = end;
    }
  }

  void encode_run(WordMerger& merger, std::string_view run, bool is_break,
                  std::vector<int32_t>& out) const {
    if (const auto whole = vocab_.by_text.find(run); is_break && whole != vocab_.by_text.end())
      return out.push_back(whole->second);
    for (const Part& part : merger.merge_characters(run)) {
      if (part.symbol == kNoMerge) continue;
      const std::string_view text = run.substr(part.begin, part.length);
      if (const auto token = vocab_.by_text.find(text); token != vocab_.by_text.end())
        out.push_back(token->second);
      else if (runs_ != CharacterRuns::kWords)
        append_byte_fallback(vocab_, text, out);
      else
        append_bytes(text, out);
    }
  }

  /// Those that have a token; the others are left out, as llama.cpp leaves them.
  void append_bytes(std::string_view text, std::vector<int32_t>& out) const {
    for (const char c : text)
      if (const int32_t id = vocab_.byte_tokens[static_cast<uint8_t>(c)]; id >= 0)
        out.push_back(id);
  }

  const Vocab& vocab_;
  Symbols symbols_;
  CharacterRuns runs_;
  bool is_lowercase_;  ///< of CharacterRuns::kWords
};

/// Source: llama.cpp, llama-vocab.cpp, llm_tokenizer_hybriddna_session.
class DnaModel final : public TokenModel {
 public:
  struct Roles {
    int32_t begin, end, unknown;
  };
  static constexpr std::string_view kBegin = "<dna>", kEnd = "</dna>", kUnknown = "<oov>";
  /// Ends the names of sixes, so that they are no words (U+E000).
  static constexpr std::string_view kMark = "\xee\x80\x80";

  DnaModel(const Vocab& vocab, std::unique_ptr<TokenModel> words, Roles roles)
      : vocab_(vocab), words_(std::move(words)), roles_(roles) {}

  void encode(std::string_view text, bool starts_text, std::vector<int32_t>& out) const override {
    while (!text.empty()) {
      const size_t begin = text.find(kBegin);
      if (begin > 0) words_->encode(text.substr(0, begin), starts_text, out);
      if (begin == text.npos) return;
      out.push_back(roles_.begin);
      text.remove_prefix(begin + kBegin.size());
      const size_t end = text.find(kEnd);
      encode_bases(text.substr(0, end), out);
      if (end == text.npos) return;
      out.push_back(roles_.end);
      text.remove_prefix(end + kEnd.size());
    }
  }

 private:
  /// Bytes, not characters; the last six are filled up with A.
  void encode_bases(std::string_view bases, std::vector<int32_t>& out) const {
    constexpr size_t kBases = 6;
    for (; !bases.empty(); bases.remove_prefix(std::min(kBases, bases.size()))) {
      std::string six(bases.substr(0, kBases));
      for (char& c : six)
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
      six.resize(kBases, 'A');
      const auto found = vocab_.by_text.find(six += kMark);
      out.push_back(found == vocab_.by_text.end() ? roles_.unknown : found->second);
    }
  }

  const Vocab& vocab_;
  std::unique_ptr<TokenModel> words_;
  Roles roles_;
};

/// Fills in Token::bytes and the byte tokens; gives the tokens that merging can reach, by their
/// bytes.
std::unordered_map<std::string_view, int32_t> decode_tokens(const ByteAlphabet& alphabet,
                                                            Vocab& vocab) {
  std::unordered_map<std::string_view, int32_t> words;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    Token& token = vocab.tokens[i];
    const bool is_word = token.type == TokenType::kNormal || token.type == TokenType::kUndefined;
    std::optional<std::string> bytes;
    if (is_word) bytes = alphabet.decode(token.text);
    token.bytes = bytes.value_or(token.text);  // added tokens are written as they are
    if (!bytes || bytes->empty()) continue;
    words.insert_or_assign(token.bytes, static_cast<int32_t>(i));
    if (token.bytes.size() == 1)
      vocab.byte_tokens[static_cast<uint8_t>(token.bytes[0])] = static_cast<int32_t>(i);
  }
  return words;
}

}  // namespace

Result<std::unique_ptr<TokenModel>> make_bpe_model(const GgufFile& file, Vocab& vocab,
                                                   std::string_view pre) {
  const ByteAlphabet alphabet;
  auto words = decode_tokens(alphabet, vocab);
  if (!can_express_all_bytes(vocab))
    return fail(Code::kUnsupported,
                "the vocabulary has neither all 256 bytes nor an unknown token");
  Splitter splitter = BM_TRY(Splitter::create(pre));
  Symbols symbols;
  const auto merges = BM_TRY(file.get_strings("tokenizer.ggml.merges"));
  for (size_t i = 0; i < merges.size(); ++i)
    BM_TRY(symbols.add_merge(&alphabet, merges[i], static_cast<uint32_t>(i)));
  return std::make_unique<BpeModel>(vocab, std::move(splitter), std::move(symbols),
                                    std::move(words));
}

Result<std::unique_ptr<TokenModel>> make_dna_model(const GgufFile& file, Vocab& vocab,
                                                   std::string_view pre) {
  auto words = BM_TRY(make_bpe_model(file, vocab, pre));
  const auto begin = vocab.find(DnaModel::kBegin), end = vocab.find(DnaModel::kEnd),
             unknown = vocab.find(DnaModel::kUnknown);
  if (!begin || !end || !unknown) return words;
  for (size_t i = static_cast<size_t>(*unknown) + 1; i < vocab.tokens.size(); ++i) {
    std::string& bytes = vocab.tokens[i].bytes;
    if (bytes.ends_with(DnaModel::kMark)) bytes.resize(bytes.size() - DnaModel::kMark.size());
  }
  return std::make_unique<DnaModel>(vocab, std::move(words),
                                    DnaModel::Roles{*begin, *end, *unknown});
}

Result<std::unique_ptr<TokenModel>> make_character_bpe_model(const GgufFile& file, Vocab& vocab,
                                                             CharacterRuns runs) {
  // Of words without white space characters that have no token are left out.
  if (runs != CharacterRuns::kWords && !can_express_all_bytes(vocab))
    return fail(Code::kUnsupported,
                "the vocabulary has neither all byte tokens nor an unknown token");
  fill_sentencepiece_bytes(vocab);
  Symbols symbols;
  const auto merges = BM_TRY(file.get_strings("tokenizer.ggml.merges"));
  for (size_t i = 0; i < merges.size(); ++i)
    BM_TRY(symbols.add_merge(nullptr, merges[i], static_cast<uint32_t>(i)));
  const bool is_lowercase = runs == CharacterRuns::kWords &&
                            BM_TRY(file.get_bool("tokenizer.ggml.normalizer.lowercase", false));
  return std::make_unique<CharacterBpeModel>(vocab, std::move(symbols), runs, is_lowercase);
}

}  // namespace bm::models
