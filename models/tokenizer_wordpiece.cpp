// WordPiece (BERT): words are normalised, then cut into the longest known pieces from left to
// right; a word with a stretch that no piece covers is one unknown token.
// Source of the rules: huggingface/tokenizers, normalizers/bert.rs, pre_tokenizers/bert.rs and
// models/wordpiece; the spelling of vocabularies in GGUF files ("▁" begins a word): llama.cpp.

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "models/tokenizer_model.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

// As "max_input_chars_per_word" of the models' tokenizer.json.
constexpr size_t kMaxWordCharacters = 100;

bool is_between(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

/// What BertNormalizer puts spaces around. It leaves out U+2B820 to U+2B91F.
bool is_ideograph(char32_t c) {
  return is_between(c, 0x4E00, 0x9FFF) || is_between(c, 0x3400, 0x4DBF) ||
         is_between(c, 0x20000, 0x2A6DF) || is_between(c, 0x2A700, 0x2B73F) ||
         is_between(c, 0x2B740, 0x2B81F) || is_between(c, 0x2B920, 0x2CEAF) ||
         is_between(c, 0xF900, 0xFAFF) || is_between(c, 0x2F800, 0x2FA1F);
}

bool is_removed(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c == 0 || c == 0xFFFD) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CS || category == UTF8PROC_CATEGORY_CO;
}

bool stands_alone(char32_t c) {
  const bool is_ascii_symbol = is_between(c, '!', '/') || is_between(c, ':', '@') ||
                               is_between(c, '[', '`') || is_between(c, '{', '~');
  return is_ascii_symbol || (char_classes(c) & kPunctuation) != 0 || is_ideograph(c);
}

/// Marks that stand above or below a letter, category Mn.
bool is_accent(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_MN;
}

struct Normalization {
  bool is_lowercase = true;
  bool strips_accents = true;
};

class WordPieceModel final : public TokenModel {
 public:
  WordPieceModel(const Vocab& vocab, Normalization rules) : vocab_(vocab), rules_(rules) {}

  void encode(std::string_view text, bool, std::vector<int32_t>& out) const override {
    std::string word(kSpaceMark);
    size_t characters = 0;
    const auto end_word = [&] {
      if (characters > kMaxWordCharacters)
        out.push_back(vocab_.unknown);
      else if (characters > 0)
        encode_word(word, out);
      word = kSpaceMark;
      characters = 0;
    };
    const auto add = [&](char32_t c) {
      if (rules_.strips_accents && is_accent(c)) return;
      const bool is_alone = stands_alone(c);
      if (is_alone) end_word();
      if (rules_.is_lowercase)
        c = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
      // Of a word that is unknown for its length the rest is not kept.
      if (++characters <= kMaxWordCharacters) append_utf8(word, c);
      if (is_alone) end_word();
    };
    for (size_t pos = 0; pos < text.size();) {
      const CodePoint c = decode_utf8(text, pos);
      pos += c.length;
      if (is_removed(c.value)) continue;
      if ((char_classes(c.value) & kSpace) != 0)
        end_word();
      else
        decompose(c.value, add);
    }
    end_word();
  }

 private:
  template <class Add>
  void decompose(char32_t c, Add&& add) const {
    std::array<utf8proc_int32_t, 8> parts{};  // Unicode's longest canonical decomposition has 4
    int boundary = 0;
    const utf8proc_ssize_t count =
        rules_.strips_accents
            ? utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                      UTF8PROC_DECOMPOSE, &boundary)
            : 0;
    if (count <= 0 || static_cast<size_t>(count) > parts.size()) return add(c);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) add(static_cast<char32_t>(parts[i]));
  }

  /// `word` begins with the mark; so do the pieces that begin a word, and no others.
  void encode_word(std::string_view word, std::vector<int32_t>& out) const {
    const size_t start = out.size();
    for (size_t pos = 0; pos < word.size();) {
      const size_t least = pos == 0 ? kSpaceMark.size() + 1 : 1;
      size_t length = std::min(vocab_.longest, word.size() - pos);
      int32_t found = -1;
      for (; length >= least; --length) {
        const auto entry = vocab_.by_text.find(word.substr(pos, length));
        if (entry == vocab_.by_text.end()) continue;
        found = entry->second;
        break;
      }
      if (found < 0) {
        out.resize(start);
        out.push_back(vocab_.unknown);
        return;
      }
      out.push_back(found);
      pos += length;
    }
  }

  const Vocab& vocab_;
  Normalization rules_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> make_wordpiece_model(const GgufFile& file, Vocab& vocab) {
  if (vocab.unknown < 0)
    return fail(Code::kUnsupported, "a WordPiece vocabulary without an unknown token");
  Normalization rules;
  rules.is_lowercase = BM_TRY(file.get_bool("tokenizer.ggml.normalizer.lowercase", true));
  rules.strips_accents =
      BM_TRY(file.get_bool("tokenizer.ggml.normalizer.strip_accents", rules.is_lowercase));
  fill_sentencepiece_bytes(vocab);
  vocab.add_space_prefix = true;  // decoding drops the space of the first word
  return std::make_unique<WordPieceModel>(vocab, rules);
}

}  // namespace bm::models
