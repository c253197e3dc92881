#include "models/tokenizer_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <span>

#include "models/model_error.h"
#include "models/tokenizer_scan.h"
#include "models/unicode.h"
#include "runtime/base/check.h"

namespace bm::models {

struct SplitStep {
  const char* pattern;  ///< PCRE2 with \s and \S as White_Space and \T{…}, see expand_classes()
  ScanFunction scan;    ///< the same by hand; where it is nullptr, `cut` is it
  CutFunction cut = nullptr;
  /// Longer texts go to the hand-written one: the pattern takes quadratic time.
  size_t max_regex_bytes = SIZE_MAX;
};

struct SplitPreset {
  const char* name;
  std::span<const SplitStep> steps;  ///< each cuts the pieces of the one before
  bool ignores_merges = false;
  bool adds_bos = false;
};

namespace {

// Patterns: "pre_tokenizer" of the models' tokenizer.json; names, and which model uses which:
// llama.cpp, llama-vocab.cpp. (?i:…) is written out.
#define BM_CONTRACTION R"('(?:[sStTmMdD\x{17F}]|[rR][eE]|[vV][eE]|[lL][lL]))"
#define BM_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define BM_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define BM_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"

constexpr SplitStep kGpt2Step = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", scan_gpt2};
constexpr SplitStep kNumberStep = {R"(\p{N})", scan_number};
constexpr SplitStep kThreeDigitsStep = {R"([0-9][0-9][0-9])", scan_three_digits};

constexpr std::array kGpt2 = {kGpt2Step};
constexpr std::array kStarcoder = {kNumberStep, kGpt2Step};
constexpr std::array kDefault = {SplitStep{R"([\p{P}\$\+<=>\^~\|]+)", scan_punctuation}, kGpt2Step,
                                 SplitStep{R"(\p{N}+)", scan_numbers}, kThreeDigitsStep};
constexpr std::array kFalcon = {SplitStep{R"([\p{P}\$\+<=>\^~\|`]+)", scan_falcon_punctuation},
                                kGpt2Step, kThreeDigitsStep};
constexpr std::array kLlama3 = {SplitStep{
    BM_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" BM_SPACES,
    scan_llama3}};
constexpr std::array kQwen2 = {SplitStep{
    BM_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" BM_SPACES,
    scan_qwen2}};
constexpr std::array kQwen35 = {
    SplitStep{BM_CONTRACTION
              R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" BM_SPACES,
              scan_qwen35}};
constexpr std::array kTekken = {SplitStep{R"([^\r\n\p{L}\p{N}]?)" BM_UPPER "*" BM_LOWER
                                          R"(+|[^\r\n\p{L}\p{N}]?)" BM_UPPER "+" BM_LOWER
                                          R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" BM_SPACES,
                                          scan_tekken}};
constexpr std::array kGpt4o = {SplitStep{R"([^\r\n\p{L}\p{N}]?)" BM_UPPER "*" BM_LOWER
                                         "+(?:" BM_CONTRACTION R"()?|[^\r\n\p{L}\p{N}]?)" BM_UPPER
                                         "+" BM_LOWER "*(?:" BM_CONTRACTION
                                         R"()?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" BM_SPACES,
                                         scan_gpt4o}};
constexpr std::array kDeepseek3 = {
    SplitStep{R"(\p{N}{1,3})", scan_three_numbers},
    SplitStep{R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)", scan_deepseek3_cjk},
    SplitStep{
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*)" BM_SPACES,
        scan_deepseek3}};

// Some models' patterns match the same as one above, written otherwise: bailingmoe has possessive
// quantifiers and \s*[\r\n] as qwen2, granite-embed-multi-97m is gpt-4o.
constexpr SplitStep kNewlineStep = {R"([\r\n])", scan_newline};
constexpr SplitStep kAsianStep = {R"([\T{asian}]+)", scan_deepseek_asian};
constexpr SplitStep kLastSpacesStep = {R"((?<!\s)\s++$)", scan_last_spaces};
constexpr SplitStep kNumbersStep = {R"(\p{N}+)", scan_numbers};
constexpr SplitStep kLineStep = {R"([^\n]+|\n+)", scan_line};
constexpr SplitStep kBloomStep = {R"( ?[^(\s|)\T{stops}]+)", scan_bloom};
constexpr std::array kDeepseekLlm = {kNewlineStep,
                                     SplitStep{R"(\s?[\T{cased}]+)", scan_deepseek_cased},
                                     SplitStep{R"(\s?[\T{marks}]+)", scan_deepseek_marks},
                                     kLastSpacesStep,
                                     kAsianStep,
                                     kNumbersStep};
constexpr std::array kDeepseekCoder = {kNewlineStep, SplitStep{R"(\s?\p{L}+)", scan_spaced_letters},
                                       SplitStep{R"(\s?\p{P}+)", scan_spaced_marks}, kAsianStep,
                                       kNumberStep};
constexpr std::array kBloom = {kBloomStep};
constexpr std::array kViking = {kBloomStep, kNumberStep};
constexpr std::array kChameleon = {SplitStep{"<sentinel:[0-9]+>", scan_sentinel},
                                   SplitStep{"IMGIMG[A-I]{1,4}Z", scan_image_token},
                                   SplitStep{R"([\t\n]|    |  )", scan_indent},
                                   kNumberStep,
                                   SplitStep{R"([\p{P}!-/:-@\[-`{-~])", scan_one_punctuation},
                                   kGpt2Step};
constexpr std::array kKimiK2 = {
    SplitStep{R"([\T{han}]+|[^\r\n\p{L}\p{N}]?(?:(?![\T{han}]))" BM_UPPER
              R"()*(?:(?![\T{han}]))" BM_LOWER ")+(?:" BM_CONTRACTION
              R"()?|[^\r\n\p{L}\p{N}]?(?:(?![\T{han}]))" BM_UPPER R"()+(?:(?![\T{han}]))" BM_LOWER
              ")*(?:" BM_CONTRACTION R"()?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" BM_SPACES,
              scan_kimi_k2}};
constexpr std::array kYoutu = {
    SplitStep{R"([\T{hangul}]+|[\T{asian_marks}]+|[\T{bopomofo}]+|[\T{cjk}]+)", scan_youtu_asian},
    SplitStep{R"([^\r\n\p{L}\p{N}]?)" BM_UPPER "*" BM_LOWER "+(?:" BM_CONTRACTION
              R"()?|[^\r\n\p{L}\p{N}]?)" BM_UPPER "+" BM_LOWER "*(?:" BM_CONTRACTION
              R"()?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" BM_SPACES,
              scan_youtu}};
constexpr std::array kSpark = {
    kDeepseek3[0], kDeepseek3[1],
    SplitStep{
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)",
        scan_spark},
    kNumberStep};
// The spaces of jais-2 are cut into powers of two, but the last one belongs to the next word.
constexpr std::array kJais2 = {SplitStep{
    BM_CONTRACTION
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S))"
    R"(|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S))"
    R"(|\s{4}(?!\S)|\s{1,2}(?!\S)|\s)",
    scan_jais2, nullptr, 16 * 1024}};
constexpr std::array kSeedCoder = {
    SplitStep{BM_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+)" BM_SPACES,
              scan_seed_coder}};
constexpr std::array kMinicpm5 = {
    kDeepseek3[0],
    SplitStep{BM_CONTRACTION
              R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*)" BM_SPACES,
              scan_minicpm5}};
constexpr std::array kUfakzeka = {SplitStep{
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" BM_SPACES, scan_no_contractions}};
constexpr std::array kLaguna = {kLineStep, kQwen2[0]};
constexpr std::array kExaoneMoe = {
    SplitStep{BM_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N})"
                             R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)",
              scan_exaone_moe}};
// Joiners hold the letters of a word together.
constexpr std::array kK2Horizon = {
    SplitStep{BM_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}\x{200C}\x{200D}]+|\p{N}{1,3})"
                             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)" BM_SPACES,
              scan_k2_horizon}};
constexpr size_t kMaxGroupedBytes = 1024;
constexpr std::array kSuperbpe = {kNumbersStep, SplitStep{R"((?=(?:\d{3})+(?!\d)))", nullptr,
                                                          cut_before_threes, kMaxGroupedBytes}};
// \b after a digit, spelled out: PCRE2 and the other engines differ in what a word consists of.
constexpr std::array kTinyAya = {
    SplitStep{R"(\d{1,3}(?=(?:\d{3})*(?![\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}])))", nullptr,
              cut_digits_in_threes, kMaxGroupedBytes},
    kGpt4o[0]};
constexpr std::array kAfmoe = {SplitStep{R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", nullptr,
                                         cut_numbers_in_threes, kMaxGroupedBytes},
                               SplitStep{R"([\T{unspaced}]+)", scan_afmoe_asian}, kDeepseek3[2]};

#undef BM_CONTRACTION
#undef BM_SPACES
#undef BM_UPPER
#undef BM_LOWER

constexpr SplitPreset kPresets[] = {
    {"default", kDefault},
    {"gpt-2", kGpt2},
    {"phi-2", kGpt2},
    {"jina-es", kGpt2},
    {"jina-de", kGpt2},
    {"jina-v2-es", kGpt2},
    {"jina-v2-de", kGpt2},
    {"gigachat", kGpt2},
    {"a.x-4.0", kGpt2},
    {"mellum", kGpt2},
    {"modern-bert", kGpt2},
    {"jina-v1-en", kGpt2},
    {"jina-v2-code", kGpt2},
    {"roberta-bpe", kGpt2},
    {"exaone4", kGpt2},
    {"mpt", kGpt2},
    {"olmo", kGpt2},
    {"jais", kGpt2},
    {"trillion", kGpt2},
    {"granite-docling", kGpt2},
    {"starcoder", kStarcoder},
    {"refact", kStarcoder},
    {"command-r", kStarcoder},
    {"smollm", kStarcoder},
    {"codeshell", kStarcoder},
    {"exaone", kStarcoder},
    {"minerva-7b", kStarcoder},
    {"mellum2", kStarcoder},
    {"falcon", kFalcon},
    {"llama3", kLlama3, true, true},
    {"llama-v3", kLlama3, true, true},
    {"llama-bpe", kLlama3, true, true},
    {"falcon3", kLlama3, true, true},
    {"falcon-h1", kLlama3, true, true},
    {"pixtral", kLlama3, true, true},
    {"midm-2.0", kLlama3, true, true},
    {"lfm2", kLlama3, true, true},
    {"jina-v5-nano", kLlama3, true, true},
    {"dbrx", kLlama3},
    {"smaug-bpe", kLlama3},
    {"glm4", kLlama3},
    {"glm5", kLlama3},
    {"chatglm-bpe", kLlama3},
    {"qwen2", kQwen2},
    {"deepseek-r1-qwen", kQwen2},
    {"megrez", kQwen2},
    {"stablelm2", kQwen2},
    {"hunyuan", kQwen2},
    {"grok-2", kQwen2},
    {"kormo", kQwen2},
    {"f2llmv2", kQwen2},
    {"solar-open", kQwen2},
    {"bailingmoe", kQwen2},
    {"bailingmoe2", kQwen2},
    {"llada-moe", kQwen2},
    {"qwen35", kQwen35},
    {"tekken", kTekken, true, true},
    {"gpt-4o", kGpt4o},
    {"llama4", kGpt4o},
    {"kanana2", kGpt4o},
    {"talkie", kGpt4o},
    {"minimax-m2", kGpt4o},
    {"granite-embed-multi-97m", kGpt4o, true},
    {"tiny_aya", kTinyAya},
    {"cohere2moe", kTinyAya},
    {"deepseek-v3", kDeepseek3},
    {"hunyuan-dense", kDeepseek3},
    {"joyai-llm", kDeepseek3},
    {"hy_v4", kDeepseek3},
    {"spark2_5", kSpark},
    {"afmoe", kAfmoe},
    {"deepseek-llm", kDeepseekLlm},
    {"deepseek-coder", kDeepseekCoder},
    {"bloom", kBloom},
    {"gpt3-finnish", kBloom},
    {"poro-chat", kBloom},
    {"viking", kViking},
    {"chameleon", kChameleon, false, true},
    {"kimi-k2", kKimiK2},
    {"youtu", kYoutu, true},
    {"jais-2", kJais2},
    {"seed-coder", kSeedCoder},
    {"minicpm5", kMinicpm5, true},
    {"ufakzeka", kUfakzeka},
    {"laguna", kLaguna},
    {"exaone-moe", kExaoneMoe},
    {"superbpe", kSuperbpe},
    {"k2-horizon", kK2Horizon},
};

// Limits of one match. The patterns need at most a few backtracks per character of a run, so texts
// of ordinary words stay far below; a text that does not is finished by the scanner.
constexpr uint32_t kMatchLimit = 5'000'000, kDepthLimit = 10'000, kHeapLimitKib = 64 * 1024;

/// PCRE2's own \s holds U+180E, which has not been White_Space since Unicode 6.3. \T{name} in a
/// class stands for char_set().
std::string expand_classes(std::string_view pattern) {
  constexpr std::string_view kSpaces =
      R"(\t-\r\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\') {
      if (pattern[i] == '[') in_class = true;
      if (pattern[i] == ']') in_class = false;
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's')
      out += in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
    else if (escaped == 'S')
      out += fmt::format("[^{}]", kSpaces);
    else if (escaped == 'T') {
      const size_t end = pattern.find('}', i);
      const auto set = char_set(pattern.substr(i + 2, end - i - 2));
      BM_CHECK(in_class && !set.empty());
      for (const CharRange& r : set)
        out += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<uint32_t>(r.first),
                           static_cast<uint32_t>(r.last));
      i = end;
    } else
      (out += '\\') += escaped;
  }
  return out;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::unique_ptr<pcre2_code, FreeCode> compile(const char* pattern) {
  const std::string text = expand_classes(pattern);
  int error = 0;
  size_t offset = 0;
  // The interpreter, not the JIT: the JIT ignores the depth limit and wants executable memory.
  return std::unique_ptr<pcre2_code, FreeCode>(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP,
                    &error, &offset, nullptr));
}

struct FoundWord {
  size_t begin = 0, end = 0;
  bool is_found = false;
  bool is_failed = false;  // limit hit or out of memory
};

/// Match buffers of one split() call; the compiled patterns are shared between threads.
class Matcher {
 public:
  Matcher()
      : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    if (!context_) return;
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_depth_limit(context_.get(), kDepthLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  }

  FoundWord find(const pcre2_code* code, std::string_view text, size_t pos) {
    if (!data_ || !context_) return {.is_failed = true};
    // The text was made valid UTF-8 before: checking it again per match would cost quadratic time.
    const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos,
                               PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
    if (rc == PCRE2_ERROR_NOMATCH) return {};
    if (rc < 0) return {.is_failed = true};
    const size_t* range = pcre2_get_ovector_pointer(data_.get());
    return {range[0], range[1], true, range[1] < range[0]};
  }

 private:
  std::unique_ptr<pcre2_match_data, FreeMatch> data_;
  std::unique_ptr<pcre2_match_context, FreeContext> context_;
};

using Words = std::vector<std::string_view>;

/// Matches of `scan` from `pos` on become words, and so do the stretches between them.
void scan_words(ScanFunction scan, std::string_view text, size_t pos, Words& out) {
  size_t gap = pos;
  while (pos < text.size()) {
    const size_t length = scan(text, pos);
    if (length == 0) {
      pos += decode_utf8(text, pos).length;
      continue;
    }
    if (gap < pos) out.push_back(text.substr(gap, pos - gap));
    out.push_back(text.substr(pos, length));
    gap = pos += length;
  }
  if (gap < text.size()) out.push_back(text.substr(gap));
}

void hand_words(const SplitStep& step, std::string_view text, size_t pos, Words& out) {
  if (step.cut != nullptr)
    step.cut(text.substr(pos), out);
  else
    scan_words(step.scan, text, pos, out);
}

void regex_words(const pcre2_code* code, const SplitStep& step, Matcher& matcher,
                 std::string_view text, Words& out) {
  if (text.size() > step.max_regex_bytes) return hand_words(step, text, 0, out);
  size_t gap = 0;  // begin of what has not become a word yet
  for (size_t pos = 0; pos < text.size();) {
    const FoundWord word = matcher.find(code, text, pos);
    if (word.is_failed) return hand_words(step, text, gap, out);
    if (!word.is_found) break;
    if (gap < word.begin) out.push_back(text.substr(gap, word.begin - gap));
    gap = word.begin;
    if (word.begin == word.end) {  // a cut between characters
      pos = word.end < text.size() ? word.end + decode_utf8(text, word.end).length : text.size();
      continue;
    }
    out.push_back(text.substr(word.begin, word.end - word.begin));
    gap = pos = word.end;
  }
  if (gap < text.size()) out.push_back(text.substr(gap));
}

}  // namespace

struct Splitter::Stage {
  std::unique_ptr<pcre2_code, FreeCode> code;
  const SplitStep* step;
};

Splitter::Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter::~Splitter() = default;

Result<Splitter> Splitter::create(std::string_view pre) {
  for (const SplitPreset& preset : kPresets) {
    if (preset.name != pre) continue;
    Splitter splitter;
    splitter.preset_ = &preset;
    for (const SplitStep& step : preset.steps) {
      splitter.stages_.push_back({compile(step.pattern), &step});
      BM_CHECK(splitter.stages_.back().code != nullptr);
    }
    return splitter;
  }
  return fail(Code::kUnsupported, "tokenizer.ggml.pre {} is not supported", quote_name(pre));
}

std::vector<std::string_view> Splitter::split(std::string_view text, SplitEngine engine) const {
  Matcher matcher;
  Words words = {text}, pieces;
  for (const Stage& stage : stages_) {
    pieces.clear();
    for (const std::string_view word : words) {
      if (engine == SplitEngine::kRegex)
        regex_words(stage.code.get(), *stage.step, matcher, word, pieces);
      else
        hand_words(*stage.step, word, 0, pieces);
    }
    words.swap(pieces);
  }
  return words;
}

bool Splitter::ignores_merges() const { return preset_->ignores_merges; }
bool Splitter::adds_bos() const { return preset_->adds_bos; }

std::vector<std::string> Splitter::known_names() {
  std::vector<std::string> names;
  for (const SplitPreset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

}  // namespace bm::models
