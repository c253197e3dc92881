// Normalizers and pre-tokenizers of a tokenizer.json.
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/model_error.h"
#include "models/tokenizer_bytes.h"
#include "models/tokenizer_json.h"
#include "models/tokenizer_normalize.h"
#include "models/unicode.h"

namespace bm::models {

using nlohmann::json;

namespace {

constexpr int kMaxDepth = 8;
constexpr size_t kMaxSteps = 64, kMaxPatternBytes = 16 * 1024, kMaxTextBytes = 4096;
// As in tokenizer_split.cpp.
constexpr uint32_t kMatchLimit = 5'000'000, kDepthLimit = 10'000, kHeapLimitKib = 64 * 1024;
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  size_t begin, end;
  bool is_match;
};
using Parts = std::vector<Part>;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

/// A pattern as Oniguruma reads it, in PCRE2's words: \s is White_Space there, \w has marks and
/// joiners, and classes within a class are united with it.
std::string translated(std::string_view pattern) {
  constexpr std::string_view kSpaces =
      R"(\t-\r\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  constexpr std::string_view kWords = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D})";
  std::string out;
  int depth = 0;  // of classes
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool in_class = depth > 0;
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
      // A negated class within another, or a named one, has no such form.
      const bool is_inner = in_class && pattern[i] == '[' && next != '^' && next != ':';
      if (pattern[i] == '[' && (!in_class || is_inner)) ++depth;
      const bool closes_inner = pattern[i] == ']' && depth > 1;
      if (pattern[i] == ']' && in_class) --depth;
      if (!is_inner && !closes_inner) out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's')
      out += in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
    else if (escaped == 'S' && !in_class)
      out += fmt::format("[^{}]", kSpaces);
    else if (escaped == 'w')
      out += in_class ? std::string(kWords) : fmt::format("[{}]", kWords);
    else if (escaped == 'W' && !in_class)
      out += fmt::format("[^{}]", kWords);
    else
      (out += '\\') += escaped;
  }
  return out;
}

/// Thread: immutable.
class Pattern {
 public:
  /// What is searched as it is; empty: a regular expression.
  static Result<Pattern> create(std::string_view text, bool is_regex) {
    Pattern p;
    if (text.empty() || text.size() > kMaxPatternBytes)
      return fail(Code::kUnsupported, "a pattern of {} bytes", text.size());
    if (!is_regex) {
      p.literal_ = text;
      return p;
    }
    // Intersections of classes, which PCRE2 has not.
    if (text.find("&&") != text.npos)
      return fail(Code::kUnsupported, "pattern {} is not supported", quote_name(text));
    const std::string own = translated(text);
    int error = 0;
    size_t offset = 0;
    p.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                nullptr));
    if (!p.code_)
      return fail(Code::kUnsupported, "pattern {} is not supported (at byte {})", quote_name(text),
                  offset);
    return p;
  }

  /// Matches and the stretches between them, in order. Where a limit is hit the rest has no match.
  Parts find(std::string_view text) const {
    Parts out;
    size_t gap = 0;
    const auto found = [&](size_t begin, size_t end) {
      if (gap < begin) out.push_back({gap, begin, false});
      out.push_back({begin, end, true});
      gap = end;
    };
    if (code_) {
      each_match(text, found);
    } else {
      for (size_t at = text.find(literal_); at != text.npos; at = text.find(literal_, gap))
        found(at, at + literal_.size());
    }
    if (gap < text.size()) out.push_back({gap, text.size(), false});
    return out;
  }

 private:
  template <class Found>
  void each_match(std::string_view text, Found&& found) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create(1, nullptr));
    const std::unique_ptr<pcre2_match_context, FreeContext> context(
        pcre2_match_context_create(nullptr));
    if (!data || !context) return;
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_depth_limit(context.get(), kDepthLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    for (size_t pos = 0; pos < text.size();) {
      const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), pos, PCRE2_NO_UTF_CHECK, data.get(), context.get());
      if (rc < 0) return;
      const size_t* range = pcre2_get_ovector_pointer(data.get());
      if (range[1] < range[0] || range[0] < pos) return;
      found(range[0], range[1]);
      pos = range[1];
      if (range[0] == range[1] && pos < text.size()) pos += decode_utf8(text, pos).length;
    }
  }

  std::string literal_;
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

enum class Behavior : uint8_t { kRemoved, kIsolated, kPrevious, kNext, kContiguous };

/// Words of a text by its parts. Source: tokenizers, normalizer.rs, NormalizedString::split().
void cut(std::string_view text, const Parts& parts, Behavior behavior,
         std::vector<std::string>& out) {
  Parts kept;
  bool was_match = false;
  const auto fold = [&](const Part& p, bool is_backward) {
    const bool joins = behavior == Behavior::kContiguous
                           ? !kept.empty() && p.is_match == was_match
                           : p.is_match && !was_match && !kept.empty();
    if (joins)
      (is_backward ? kept.back().begin : kept.back().end) = is_backward ? p.begin : p.end;
    else
      kept.push_back(p);
    was_match = p.is_match;
  };
  switch (behavior) {
    case Behavior::kIsolated: kept = parts; break;
    case Behavior::kRemoved:
      for (const Part& p : parts)
        if (!p.is_match) kept.push_back(p);
      break;
    case Behavior::kPrevious:
    case Behavior::kContiguous:
      for (const Part& p : parts) fold(p, false);
      break;
    case Behavior::kNext:
      for (size_t i = parts.size(); i-- > 0;) fold(parts[i], true);
      std::reverse(kept.begin(), kept.end());
      break;
  }
  for (const Part& p : kept)
    if (p.begin < p.end) out.emplace_back(text.substr(p.begin, p.end - p.begin));
}

/// Every character for which `is_match` holds is a match.
template <class Is>
Parts characters(std::string_view text, Is&& is_match) {
  Parts out;
  size_t gap = 0;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = decode_utf8(text, pos);
    if (is_match(c.value)) {
      if (gap < pos) out.push_back({gap, pos, false});
      out.push_back({pos, pos + c.length, true});
      gap = pos + c.length;
    }
    pos += c.length;
  }
  if (gap < text.size()) out.push_back({gap, text.size(), false});
  return out;
}

bool is_space(char32_t c) { return (char_classes(c) & kSpace) != 0; }
bool is_punctuation(char32_t c) {
  const bool is_ascii = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
                        (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return is_ascii || (char_classes(c) & kPunctuation) != 0;
}
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

template <class Each>
std::string mapped(std::string_view text, Each&& each) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = decode_utf8(text, pos);
    each(c.value, out);
    pos += c.length;
  }
  return out;
}

std::string lowered(std::string_view text) {
  return mapped(text, [](char32_t c, std::string& out) {
    if (c == 0x130) {  // the one letter that becomes two
      append_utf8(out, 'i');
      return append_utf8(out, 0x307);
    }
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  });
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t gap = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, gap)) {
    out.append(text, gap, at - gap).append(to);
    gap = at + from.size();
  }
  text = gap == 0 ? text : out.append(text, gap, text.npos);
}

std::vector<uint8_t> base64(std::string_view text) {
  std::vector<uint8_t> out;
  uint32_t bits = 0, count = 0;
  for (const char c : text) {
    const int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                  : c >= 'a' && c <= 'z' ? c - 'a' + 26
                  : c >= '0' && c <= '9' ? c - '0' + 52
                  : c == '+'             ? 62
                  : c == '/'             ? 63
                                         : -1;
    if (v < 0) continue;
    bits = bits << 6 | static_cast<uint32_t>(v);
    if ((count += 6) >= 8) out.push_back(static_cast<uint8_t>(bits >> (count -= 8)));
  }
  return out;
}

std::string text_of(const json& from, const char* key, std::string fallback = {}) {
  const auto found = from.find(key);
  return found != from.end() && found->is_string() ? found->get<std::string>() : fallback;
}

bool flag_of(const json& from, const char* key, bool fallback) {
  const auto found = from.find(key);
  return found != from.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

const ByteAlphabet& alphabet() {
  static const ByteAlphabet own;  // constant
  return own;
}

}  // namespace

enum class StepKind : uint8_t {
  kNfc,
  kNfd,
  kNfkc,
  kNfkd,
  kLowercase,
  kReplace,
  kPrepend,
  kStrip,
  kStripAccents,
  kBert,
  kCharsMap,
  kSpellBytes,
  kSplit,
  kByteLevel,
  kDigits,
  kPunctuation,
  kBertSplit,
  kWhitespaceSplit,
  kMetaspace,
};

struct TextStep {
  StepKind kind = StepKind::kNfc;
  std::optional<Pattern> pattern;
  std::string text;  ///< what replaces, what is put first
  Behavior behavior = Behavior::kIsolated;
  bool is_inverted = false;
  bool first = false, second = false, third = false, fourth = false;
  CharsMap map;

  /// `place`: is_first becomes false where what the text begins with is taken off.
  void run(std::vector<std::string>& words, TextPlace& place) const;

 private:
  void normalize(std::string& text, const TextPlace& place) const;
  void split(std::string text, const TextPlace& place, bool is_leading,
             std::vector<std::string>& out) const;
};

void TextStep::normalize(std::string& t, const TextPlace& place) const {
  switch (kind) {
    case StepKind::kNfc: t = normal_form(t, true, false); break;
    case StepKind::kNfd: t = normal_form(t, false, false); break;
    case StepKind::kNfkc: t = normal_form(t, true, true); break;
    case StepKind::kNfkd: t = normal_form(t, false, true); break;
    case StepKind::kLowercase: t = lowered(t); break;
    case StepKind::kReplace: {
      std::string out;
      for (const Part& p : pattern->find(t))
        out += p.is_match ? text : t.substr(p.begin, p.end - p.begin);
      t = std::move(out);
      break;
    }
    case StepKind::kPrepend:
      if (!t.empty() && !place.is_continued) t.insert(0, text);
      break;
    case StepKind::kStrip: {
      size_t begin = 0, end = t.size();
      while (first && begin < end && is_space(decode_utf8(t, begin).value))
        begin += decode_utf8(t, begin).length;
      while (second && end > begin) {
        size_t at = end - 1;
        while (at > begin && (static_cast<uint8_t>(t[at]) & 0xC0) == 0x80) --at;
        if (!is_space(decode_utf8(t, at).value)) break;
        end = at;
      }
      t = t.substr(begin, end - begin);
      break;
    }
    case StepKind::kStripAccents:
      t = mapped(t, [](char32_t c, std::string& out) {
        if ((char_classes(c) & kMark) == 0) append_utf8(out, c);
      });
      break;
    case StepKind::kBert: {  // first: clean, second: ideographs, third: accents, fourth: lower case
      if (first || second)
        t = mapped(t, [&](char32_t c, std::string& out) {
          const utf8proc_category_t kind_of = category(c);
          const bool is_break = c == '\t' || c == '\n' || c == '\r';
          // Not those that Unicode has not assigned.
          const bool is_control = kind_of == UTF8PROC_CATEGORY_CC ||
                                  kind_of == UTF8PROC_CATEGORY_CF ||
                                  kind_of == UTF8PROC_CATEGORY_CO;
          if (first && (c == 0 || c == 0xFFFD || (is_control && !is_break))) return;
          if (first && (is_break || is_space(c))) return void(out += ' ');
          const bool is_alone = second && is_ideograph(c);
          if (is_alone) out += ' ';
          append_utf8(out, c);
          if (is_alone) out += ' ';
        });
      if (third)
        t = mapped(normal_form(t, false, false), [](char32_t c, std::string& out) {
          if (category(c) != UTF8PROC_CATEGORY_MN) append_utf8(out, c);
        });
      if (fourth) t = lowered(t);
      break;
    }
    case StepKind::kCharsMap: t = map.apply(t); break;
    case StepKind::kSpellBytes: t = alphabet().encode(t); break;
    default: break;
  }
}

void TextStep::split(std::string t, const TextPlace& place, bool is_leading,
                     std::vector<std::string>& out) const {
  const auto by = [&](Parts parts) {
    if (is_inverted)
      for (Part& p : parts) p.is_match = !p.is_match;
    cut(t, parts, behavior, out);
  };
  switch (kind) {
    case StepKind::kSplit: return by(pattern->find(t));
    case StepKind::kByteLevel: {  // first: a space before the text, second: GPT-2's words
      if (first && !place.is_continued && !t.starts_with(' ')) t.insert(0, 1, ' ');
      std::vector<std::string> words;
      if (second)
        cut(t, pattern->find(t), Behavior::kIsolated, words);
      else
        words.push_back(std::move(t));
      for (const std::string& word : words) out.push_back(alphabet().encode(word));
      return;
    }
    case StepKind::kDigits:
      return by(characters(t, [](char32_t c) { return (char_classes(c) & kNumber) != 0; }));
    case StepKind::kPunctuation: return by(characters(t, is_punctuation));
    case StepKind::kWhitespaceSplit: return by(characters(t, is_space));
    case StepKind::kBertSplit: {
      std::vector<std::string> words;
      cut(t, characters(t, is_space), Behavior::kRemoved, words);
      for (const std::string& word : words)
        cut(word, characters(word, is_punctuation), Behavior::kIsolated, out);
      return;
    }
    case StepKind::kMetaspace: {  // first: always, second: at the beginning, third: words are cut
      replace_all(t, " ", text);
      const bool may_prepend = !(place.is_continued && is_leading) &&
                               (first || (second && place.is_first && is_leading));
      if (may_prepend && !t.starts_with(text)) t.insert(0, text);
      if (!third) return out.push_back(std::move(t));
      return cut(t, pattern->find(t), Behavior::kNext, out);
    }
    default: break;
  }
}

void TextStep::run(std::vector<std::string>& words, TextPlace& place) const {
  if (kind < StepKind::kSplit) {
    for (std::string& word : words) normalize(word, place);
    return;
  }
  const bool removes = kind == StepKind::kWhitespaceSplit || kind == StepKind::kBertSplit ||
                       behavior == Behavior::kRemoved;
  const std::string begin = removes && !words.empty() ? words.front() : std::string();
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) split(std::move(words[i]), place, i == 0, out);
  words = std::move(out);
  if (removes && !words.empty() && !begin.starts_with(words.front())) place.is_first = false;
}

TextSteps::TextSteps() = default;
TextSteps::TextSteps(TextSteps&&) noexcept = default;
TextSteps& TextSteps::operator=(TextSteps&&) noexcept = default;
TextSteps::~TextSteps() = default;

Status TextSteps::add_normalizer(const json& from) { return add(from, true, 0); }
Status TextSteps::add_pre_tokenizer(const json& from) { return add(from, false, 0); }

namespace {

Result<Pattern> pattern_of(const json& from) {
  const auto found = from.find("pattern");
  if (found != from.end() && found->is_object()) {
    if (found->contains("String")) return Pattern::create(text_of(*found, "String"), false);
    if (found->contains("Regex")) return Pattern::create(text_of(*found, "Regex"), true);
  }
  return fail(Code::kCorrupt, "a step without a pattern");
}

Result<Behavior> behavior_of(const json& from, const char* fallback) {
  const std::string name = text_of(from, "behavior", fallback);
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kPrevious;
  if (name == "MergedWithNext") return Behavior::kNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return fail(Code::kUnsupported, "behavior {} is not known", quote_name(name));
}

Result<TextStep> normalizer_of(const json& from, const std::string& type) {
  TextStep step;
  const std::pair<const char*, StepKind> plain[] = {{"NFC", StepKind::kNfc},
                                                    {"NFD", StepKind::kNfd},
                                                    {"NFKC", StepKind::kNfkc},
                                                    {"NFKD", StepKind::kNfkd},
                                                    {"Lowercase", StepKind::kLowercase},
                                                    {"StripAccents", StepKind::kStripAccents},
                                                    {"ByteLevel", StepKind::kSpellBytes}};
  for (const auto& [name, kind] : plain)
    if (type == name) {
      step.kind = kind;
      return step;
    }
  if (type == "Replace") {
    step.kind = StepKind::kReplace;
    step.pattern = BM_TRY(pattern_of(from));
    step.text = text_of(from, "content");
  } else if (type == "Prepend") {
    step.kind = StepKind::kPrepend;
    step.text = text_of(from, "prepend");
  } else if (type == "Strip") {
    step.kind = StepKind::kStrip;
    step.first = flag_of(from, "strip_left", true);
    step.second = flag_of(from, "strip_right", true);
  } else if (type == "BertNormalizer") {
    step.kind = StepKind::kBert;
    step.first = flag_of(from, "clean_text", true);
    step.second = flag_of(from, "handle_chinese_chars", true);
    step.fourth = flag_of(from, "lowercase", true);
    step.third = flag_of(from, "strip_accents", step.fourth);
  } else if (type == "Precompiled") {
    step.kind = StepKind::kCharsMap;
    const std::vector<uint8_t> blob = base64(text_of(from, "precompiled_charsmap"));
    step.map = BM_TRY(CharsMap::parse(std::as_bytes(std::span(blob))));
  } else {
    return fail(Code::kUnsupported, "normalizer {} is not supported", quote_name(type));
  }
  if (step.text.size() > kMaxTextBytes)
    return fail(Code::kCorrupt, "normalizer {} has a text of {} bytes", type, step.text.size());
  return step;
}

Result<TextStep> splitter_of(const json& from, const std::string& type) {
  TextStep step;
  if (type == "Split") {
    step.kind = StepKind::kSplit;
    step.pattern = BM_TRY(pattern_of(from));
    step.behavior = BM_TRY(behavior_of(from, "Isolated"));
    step.is_inverted = flag_of(from, "invert", false);
  } else if (type == "ByteLevel") {
    step.kind = StepKind::kByteLevel;
    step.first = flag_of(from, "add_prefix_space", true);
    step.second = flag_of(from, "use_regex", true);
    step.pattern = BM_TRY(Pattern::create(kGpt2Pattern, true));
  } else if (type == "Digits") {
    step.kind = StepKind::kDigits;
    step.behavior =
        flag_of(from, "individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Punctuation") {
    step.kind = StepKind::kPunctuation;
    step.behavior = BM_TRY(behavior_of(from, "Isolated"));
  } else if (type == "Whitespace") {
    step.kind = StepKind::kSplit;
    step.pattern = BM_TRY(Pattern::create(R"(\w+|[^\w\s]+)", true));
    step.behavior = Behavior::kRemoved;
    step.is_inverted = true;
  } else if (type == "WhitespaceSplit") {
    step.kind = StepKind::kWhitespaceSplit;
    step.behavior = Behavior::kRemoved;
  } else if (type == "BertPreTokenizer") {
    step.kind = StepKind::kBertSplit;
  } else if (type == "CharDelimiterSplit") {
    step.kind = StepKind::kSplit;
    step.pattern = BM_TRY(Pattern::create(text_of(from, "delimiter"), false));
    step.behavior = Behavior::kRemoved;
  } else if (type == "Metaspace") {
    step.kind = StepKind::kMetaspace;
    step.text = text_of(from, "replacement", std::string(kSpaceMark));
    const std::string scheme = text_of(
        from, "prepend_scheme", flag_of(from, "add_prefix_space", true) ? "always" : "never");
    step.first = scheme == "always";
    step.second = scheme == "first";
    step.third = flag_of(from, "split", true);
    step.pattern = BM_TRY(Pattern::create(step.text, false));
  } else {
    return fail(Code::kUnsupported, "pre_tokenizer {} is not supported", quote_name(type));
  }
  return step;
}

}  // namespace

Status TextSteps::add(const json& from, bool is_normalizer, int depth) {
  if (from.is_null()) return {};
  const char* what = is_normalizer ? "normalizer" : "pre_tokenizer";
  if (!from.is_object() || depth > kMaxDepth || steps_.size() >= kMaxSteps)
    return fail(Code::kCorrupt, "tokenizer.json: {} is no object, or too large", what);
  const std::string type = text_of(from, "type");
  if (type == "Sequence") {
    const auto list = from.find(is_normalizer ? "normalizers" : "pretokenizers");
    if (list == from.end() || !list->is_array())
      return fail(Code::kCorrupt, "tokenizer.json: a Sequence of {}s without a list", what);
    for (const json& step : *list) BM_TRY(add(step, is_normalizer, depth + 1));
    return {};
  }
  TextStep step = BM_TRY(
      (is_normalizer ? normalizer_of(from, type) : splitter_of(from, type)).map_error([](Error e) {
        return std::move(e).within("tokenizer.json");
      }));
  is_byte_level_ =
      is_byte_level_ || step.kind == StepKind::kByteLevel || step.kind == StepKind::kSpellBytes;
  puts_space_ = puts_space_ || (step.kind == StepKind::kByteLevel && step.first) ||
                (step.kind == StepKind::kMetaspace && (step.first || step.second)) ||
                step.kind == StepKind::kPrepend;
  steps_.push_back(std::make_unique<const TextStep>(std::move(step)));
  return {};
}

std::vector<std::string> TextSteps::run(std::string_view text, const TextPlace& place) const {
  std::vector<std::string> words = {std::string(text)};
  TextPlace at = place;
  for (const auto& step : steps_) step->run(words, at);
  return words;
}

}  // namespace bm::models
