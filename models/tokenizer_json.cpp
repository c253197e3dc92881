// The models of a tokenizer.json (BPE, Unigram, WordPiece, WordLevel), its added tokens, and what
// it puts around a text.
#include "models/tokenizer_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/json_text.h"
#include "models/model_error.h"
#include "models/tokenizer_bytes.h"
#include "models/tokenizer_trie.h"

namespace bm::models {

using nlohmann::json;

namespace {

constexpr size_t kMaxFileBytes = 512u << 20;
constexpr int64_t kMaxTokens = 1 << 24;
constexpr size_t kMaxTokenBytes = 4096;
constexpr uint32_t kNone = UINT32_MAX;
constexpr std::string_view kFile = "tokenizer.json";

tl::unexpected<Error> corrupt(const std::string& what) {
  return fail(Code::kCorrupt, "{}: {}", kFile, what);
}

const json* find(const json& from, const char* key) {
  const auto found = from.find(key);
  return found == from.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const json& from, const char* key) {
  const json* found = find(from, key);
  return found && found->is_string() ? found->get<std::string>() : std::string();
}

bool flag_of(const json& from, const char* key, bool fallback) {
  const json* found = find(from, key);
  return found && found->is_boolean() ? found->get<bool>() : fallback;
}

using Ids = std::unordered_map<std::string_view, int32_t>;

/// What every model shares: words, and the ids of texts that words may become.
class JsonModel : public TokenModel {
 public:
  JsonModel(const Vocab& vocab, TextSteps steps, Ids ids)
      : vocab_(vocab), steps_(std::move(steps)), ids_(std::move(ids)) {}

  void encode(std::string_view text, bool starts_text, std::vector<int32_t>& out) const override {
    encode_at(text, starts_text, starts_text, false, out);
  }
  void encode_at(std::string_view text, bool, bool is_first, bool is_continued,
                 std::vector<int32_t>& out) const override {
    for (const std::string& word :
         steps_.run(text, {.is_first = is_first, .is_continued = is_continued}))
      if (!word.empty()) encode_word(word, out);
  }

 protected:
  virtual void encode_word(const std::string& word, std::vector<int32_t>& out) const = 0;

  int32_t id_of(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? -1 : found->second;
  }
  void push_unknown(std::vector<int32_t>& out) const {
    if (vocab_.unknown >= 0) out.push_back(vocab_.unknown);
  }

  const Vocab& vocab_;
  TextSteps steps_;
  Ids ids_;  // keys view Token::text
};

struct Merge {
  uint32_t rank = 0;
  int32_t result = -1;
};

struct BpeRules {
  std::unordered_map<uint64_t, Merge> merges;
  bool has_byte_fallback = false, fuses_unknown = false, ignores_merges = false;

  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
};

/// Source: tokenizers, models/bpe/model.rs (merge_word) and word.rs (merge_all).
class JsonBpe final : public JsonModel {
 public:
  JsonBpe(const Vocab& vocab, TextSteps steps, Ids ids, BpeRules rules)
      : JsonModel(vocab, std::move(steps), std::move(ids)), rules_(std::move(rules)) {}

 private:
  struct Symbol {
    int32_t id;  // below 0: merged into the one before
    uint32_t previous, next;
  };
  struct Candidate {
    uint32_t rank, left, right;
    int32_t left_id, right_id;  // as queued; others now mean that it is outdated
  };
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
  };

  void encode_word(const std::string& word, std::vector<int32_t>& out) const override {
    if (rules_.ignores_merges)
      if (const int32_t id = id_of(word); id >= 0) return out.push_back(id);
    std::vector<Symbol> symbols = symbols_of(word);
    std::vector<Candidate> heap;
    const auto queue = [&](uint32_t left, uint32_t right) {
      if (left == kNone || right == kNone) return;
      const int32_t a = symbols[left].id, b = symbols[right].id;
      const auto found = rules_.merges.find(BpeRules::key(a, b));
      if (found == rules_.merges.end()) return;
      heap.push_back({found->second.rank, left, right, a, b});
      std::push_heap(heap.begin(), heap.end(), Later());
    };
    for (uint32_t i = 1; i < symbols.size(); ++i) queue(i - 1, i);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), Later());
      const Candidate c = heap.back();
      heap.pop_back();
      Symbol &left = symbols[c.left], &right = symbols[c.right];
      if (left.id != c.left_id || right.id != c.right_id || left.next != c.right) continue;
      left.id = rules_.merges.at(BpeRules::key(c.left_id, c.right_id)).result;
      left.next = right.next;
      right.id = -1;
      if (right.next != kNone) symbols[right.next].previous = c.left;
      queue(left.previous, c.left);
      queue(c.left, left.next);
    }
    for (const Symbol& s : symbols)
      if (s.id >= 0) out.push_back(s.id);
  }

  std::vector<Symbol> symbols_of(const std::string& word) const {
    std::vector<Symbol> out;
    bool was_unknown = false;
    const auto push = [&](int32_t id) {
      const auto at = static_cast<uint32_t>(out.size());
      if (at > 0) out.back().next = at;
      out.push_back({id, at == 0 ? kNone : at - 1, kNone});
    };
    for (size_t pos = 0; pos < word.size();) {
      const std::string_view c = std::string_view(word).substr(pos, decode_utf8(word, pos).length);
      pos += c.size();
      const int32_t id = id_of(c);
      bool is_unknown = false;
      if (id >= 0) {
        push(id);
      } else if (rules_.has_byte_fallback && has_bytes(c)) {
        for (const char b : c) push(vocab_.byte_tokens[static_cast<uint8_t>(b)]);
      } else if (vocab_.unknown >= 0) {
        if (!(rules_.fuses_unknown && was_unknown)) push(vocab_.unknown);
        is_unknown = true;
      }
      was_unknown = is_unknown;
    }
    return out;
  }

  bool has_bytes(std::string_view c) const {
    return std::all_of(c.begin(), c.end(),
                       [&](char b) { return vocab_.byte_tokens[static_cast<uint8_t>(b)] >= 0; });
  }

  BpeRules rules_;
};

/// Source: tokenizers, models/unigram/model.rs (encode_optimized); what no piece covers costs ten
/// more than the rarest.
class JsonUnigram final : public JsonModel {
 public:
  /// `scores`: by number, as the file writes them; in float32 other sums than the library's would
  /// be equal.
  JsonUnigram(const Vocab& vocab, TextSteps steps, Ids ids, std::vector<double> scores,
              bool has_byte_fallback)
      : JsonModel(vocab, std::move(steps), std::move(ids)),
        scores_(std::move(scores)),
        has_byte_fallback_(has_byte_fallback) {
    scores_.resize(vocab.tokens.size());  // added tokens have none
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& [text, id] : ids_) {
      trie_.insert(text, id);
      lowest = std::min(lowest, scores_[static_cast<size_t>(id)]);
    }
    unknown_score_ = (ids_.empty() ? 0 : lowest) - 10;
  }

 private:
  struct Best {
    double score = -std::numeric_limits<double>::infinity();
    size_t begin = 0;
    int32_t id = -1;
  };

  void encode_word(const std::string& word, std::vector<int32_t>& out) const override {
    std::vector<Best> best(word.size() + 1);
    best[0].score = 0;
    for (size_t pos = 0; pos < word.size();) {
      const size_t length = decode_utf8(word, pos).length;
      bool has_single = false;
      const auto offer = [&](size_t end, double score, int32_t id) {
        if (score > best[end].score) best[end] = {score, pos, id};
      };
      const double before = best[pos].score;
      trie_.prefixes(word, pos, [&](size_t n, int32_t id) {
        has_single = has_single || n == length;
        offer(pos + n, before + scores_[static_cast<size_t>(id)], id);
      });
      if (!has_single) offer(pos + length, before + unknown_score_, -1);
      pos += length;
    }
    std::vector<std::pair<size_t, size_t>> path;  // ends and where they begin, from the last
    for (size_t end = word.size(); end > 0; end = best[end].begin)
      path.emplace_back(end, best[end].begin);
    std::reverse(path.begin(), path.end());
    for (size_t i = 0; i < path.size(); ++i) {
      const int32_t id = best[path[i].first].id;
      if (id >= 0) {
        out.push_back(id);
        continue;
      }
      const size_t begin = path[i].second;
      while (i + 1 < path.size() && best[path[i + 1].first].id < 0) ++i;  // one piece of them all
      const std::string_view piece = std::string_view(word).substr(begin, path[i].first - begin);
      if (has_byte_fallback_)
        append_byte_fallback(vocab_, piece, out);
      else
        push_unknown(out);
    }
  }

  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  bool has_byte_fallback_;
};

/// Source: tokenizers, models/wordpiece/mod.rs.
class JsonWordPiece final : public JsonModel {
 public:
  JsonWordPiece(const Vocab& vocab, TextSteps steps, Ids ids, std::string prefix, size_t longest)
      : JsonModel(vocab, std::move(steps), std::move(ids)),
        prefix_(std::move(prefix)),
        longest_(longest) {}

 private:
  void encode_word(const std::string& word, std::vector<int32_t>& out) const override {
    size_t characters = 0;
    for (size_t pos = 0; pos < word.size(); pos += decode_utf8(word, pos).length) ++characters;
    if (characters > longest_) return push_unknown(out);
    const size_t start = out.size();
    std::string piece;
    for (size_t begin = 0; begin < word.size();) {
      size_t end = word.size();
      int32_t found = -1;
      for (; end > begin; --end) {
        piece = (begin > 0 ? prefix_ : std::string()) + word.substr(begin, end - begin);
        if ((found = id_of(piece)) >= 0) break;
      }
      if (found < 0) {
        out.resize(start);
        return push_unknown(out);
      }
      out.push_back(found);
      begin = end;
    }
  }

  std::string prefix_;
  size_t longest_;
};

class JsonWordLevel final : public JsonModel {
 public:
  using JsonModel::JsonModel;

 private:
  void encode_word(const std::string& word, std::vector<int32_t>& out) const override {
    const int32_t id = id_of(word);
    if (id >= 0)
      out.push_back(id);
    else
      push_unknown(out);
  }
};

// --- reading -----------------------------------------------------------------------------------

class Loader {
 public:
  Loader(const GgufFile& file, Vocab& vocab) : file_(file), vocab_(vocab) {}

  Result<std::unique_ptr<TokenModel>> run(std::vector<int32_t>* ends) {
    const std::string_view text = BM_TRY(file_.get_string("tokenizer.huggingface.json"));
    root_ = BM_TRY(parse_json_object(text, kMaxFileBytes).map_error([](Error e) {
      return std::move(e).within(std::string(kFile));
    }));
    const json* model = find(root_, "model");
    if (model == nullptr || !model->is_object()) return corrupt("no \"model\"");
    model_ = model;
    vocab_.byte_tokens.fill(-1);
    kind_ = text_of(*model, "type");
    if (kind_.empty())  // older files: by what the model has
      kind_ = find(*model, "merges")                      ? "BPE"
              : find(*model, "continuing_subword_prefix") ? "WordPiece"
                                                          : "WordLevel";
    BM_TRY(read_vocab());
    BM_TRY(read_added_tokens());
    TextSteps steps;
    if (const json* n = find(root_, "normalizer")) BM_TRY(steps.add_normalizer(*n));
    if (const json* p = find(root_, "pre_tokenizer")) BM_TRY(steps.add_pre_tokenizer(*p));
    BM_TRY(read_roles(ends));
    is_byte_level_ = steps.is_byte_level();
    vocab_.add_space_prefix = steps.puts_space() || kind_ == "WordPiece";
    BM_TRY(read_decoder());
    fill_bytes();
    Ids ids = index();
    return make(std::move(steps), std::move(ids));
  }

 private:
  Status put(int64_t id, std::string text) {
    if (id < 0 || id >= kMaxTokens) return corrupt(fmt::format("token id {}", id));
    if (text.size() > kMaxTokenBytes)
      return corrupt(fmt::format("token {} is {} bytes long", id, text.size()));
    const auto at = static_cast<size_t>(id);
    if (at >= vocab_.tokens.size()) vocab_.tokens.resize(at + 1, unused());
    Token& token = vocab_.tokens[at];
    if (!token.text.empty() && token.text != text)
      return corrupt(
          fmt::format("token {} is {} and {}", id, quote_name(token.text), quote_name(text)));
    token.text = std::move(text);
    token.type = TokenType::kNormal;
    return {};
  }

  static Token unused() {
    Token token;
    token.type = TokenType::kUnused;
    return token;
  }

  Status read_vocab() {
    const json* vocab = find(*model_, "vocab");
    if (kind_ == "Unigram") {
      if (vocab == nullptr || !vocab->is_array()) return corrupt("no vocabulary");
      for (const json& entry : *vocab) {
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
            !entry[1].is_number() || !std::isfinite(entry[1].get<double>()))
          return corrupt("an entry of the vocabulary is no pair of text and score");
        const auto id = static_cast<int64_t>(vocab_.tokens.size());
        BM_TRY(put(id, entry[0].get<std::string>()));
        scores_.push_back(entry[1].get<double>());
      }
    } else {
      if (vocab == nullptr || !vocab->is_object()) return corrupt("no vocabulary");
      // Ids decide how many tokens there are: not many more than there are texts.
      const auto most = static_cast<int64_t>(vocab->size()) * 4 + 65536;
      for (const auto& [text, id] : vocab->items()) {
        if (!id.is_number_integer() || id < 0 || id >= most)
          return corrupt(fmt::format("token {} has no id", quote_name(text)));
        BM_TRY(put(id.get<int64_t>(), text));
      }
    }
    if (vocab_.tokens.empty()) return corrupt("an empty vocabulary");
    return {};
  }

  Status read_added_tokens() {
    const json* added = find(root_, "added_tokens");
    if (added == nullptr) return {};
    if (!added->is_array()) return corrupt("\"added_tokens\" is no list");
    for (const json& a : *added) {
      const json* id = a.is_object() ? find(a, "id") : nullptr;
      if (id == nullptr || !id->is_number_integer()) return corrupt("an added token without an id");
      const auto number = id->get<int64_t>();
      if (number > static_cast<int64_t>(vocab_.tokens.size()) + 65536)
        return corrupt(
            fmt::format("added token {} in a vocabulary of {}", number, vocab_.tokens.size()));
      const std::string text = text_of(a, "content");
      if (text.empty()) continue;
      if (flag_of(a, "single_word", false))
        return fail(Code::kUnsupported, "{}: added token {} with \"single_word\" is not supported",
                    kFile, quote_name(text));
      if (number >= 0 && static_cast<size_t>(number) < vocab_.tokens.size())
        vocab_.tokens[static_cast<size_t>(number)].text.clear();  // as in the library, it wins
      BM_TRY(put(number, text));
      Token& token = vocab_.tokens[static_cast<size_t>(number)];
      token.type = flag_of(a, "special", false) ? TokenType::kControl : TokenType::kUserDefined;
      token.strips_left = flag_of(a, "lstrip", false);
      token.strips_right = flag_of(a, "rstrip", false);
    }
    return {};
  }

  int32_t id_of(std::string_view text) const {
    if (text.empty()) return -1;
    for (size_t i = vocab_.tokens.size(); i-- > 0;)
      if (vocab_.tokens[i].text == text) return static_cast<int32_t>(i);
    return -1;
  }

  Status read_roles(std::vector<int32_t>* ends) {
    if (const json* id = find(*model_, "unk_id"); id && id->is_number_integer()) {
      const auto number = id->get<int64_t>();
      if (!vocab_.is_valid(number)) return corrupt("\"unk_id\" is no token");
      vocab_.unknown = static_cast<int32_t>(number);
    } else {
      vocab_.unknown = id_of(text_of(*model_, "unk_token"));
    }
    if (vocab_.unknown >= 0) {
      Token& token = vocab_.tokens[static_cast<size_t>(vocab_.unknown)];
      if (token.type != TokenType::kControl) token.type = TokenType::kUnknown;
    }
    const auto named = [&](const char* key) -> int32_t {
      const GgufValue* value = file_.find(key);
      return value ? id_of(value->text) : -1;
    };
    vocab_.bos = named("bellmetal.bos_token");
    vocab_.eos = named("bellmetal.eos_token");
    if (file_.find("bellmetal.end_token_ids") != nullptr)
      for (const uint32_t id : BM_TRY(file_.get_u32s("bellmetal.end_token_ids")))
        if (vocab_.is_valid(id)) ends->push_back(static_cast<int32_t>(id));
    if (vocab_.eos < 0 && !ends->empty()) vocab_.eos = ends->front();
    for (const int32_t id : {vocab_.bos, vocab_.eos})
      if (id >= 0) vocab_.tokens[static_cast<size_t>(id)].type = TokenType::kControl;
    if (const json* processor = find(root_, "post_processor")) return read_processor(*processor);
    return {};
  }

  /// What stands around a single text: at most a token on each side.
  Status read_processor(const json& from) {
    if (!from.is_object()) return corrupt("\"post_processor\" is no object");
    const std::string type = text_of(from, "type");
    if (type == "Sequence") {
      const json* list = find(from, "processors");
      if (list == nullptr || !list->is_array() || list->size() > 16)
        return corrupt("a post_processor without a list");
      for (const json& p : *list) {
        if (text_of(p, "type") == "Sequence") return corrupt("nested post_processors");
        BM_TRY(read_processor(p));
      }
      return {};
    }
    if (type == "ByteLevel") return {};
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      const auto pair_id = [&](const char* key) -> int32_t {
        const json* pair = find(from, key);
        return pair && pair->is_array() && !pair->empty() && (*pair)[0].is_string()
                   ? id_of((*pair)[0].get<std::string>())
                   : -1;
      };
      const int32_t cls = pair_id("cls"), sep = pair_id("sep");
      const PairPlace a{}, b{.is_second = true};
      if (cls >= 0 && sep >= 0 && type == "RobertaProcessing")
        vocab_.pair = {{.token = cls}, a, {.token = sep}, {.token = sep}, b, {.token = sep}};
      if (cls >= 0 && sep >= 0 && type == "BertProcessing")
        vocab_.pair = {{.token = cls},
                       a,
                       {.token = sep},
                       {.is_second = true, .kind = 1},
                       {.token = sep, .kind = 1}};
      return surround(cls, sep);
    }
    if (type != "TemplateProcessing")
      return fail(Code::kUnsupported, "{}: post_processor {} is not supported", kFile,
                  quote_name(type));
    const json* single = find(from, "single");
    if (single == nullptr || !single->is_array()) return corrupt("a template without \"single\"");
    int32_t before = -1, after = -1;
    bool is_behind = false;
    for (const json& item : *single) {
      if (!item.is_object()) return corrupt("a template of other things than objects");
      if (item.contains("Sequence")) {
        is_behind = true;
        continue;
      }
      const json* special = find(item, "SpecialToken");
      if (special == nullptr) return corrupt("a template of unknown items");
      const int32_t id = template_id(from, text_of(*special, "id"));
      int32_t& side = is_behind ? after : before;
      if (id < 0 || side >= 0)
        return fail(Code::kUnsupported,
                    "{}: a post_processor with more than a known token on a side is not supported",
                    kFile);
      side = id;
    }
    if (const json* pair = find(from, "pair")) BM_TRY(read_pair(from, *pair));
    return surround(before, after);
  }

  /// What stands around two texts, and which kinds of tokens all of it is.
  Status read_pair(const json& from, const json& pair) {
    if (!pair.is_array() || pair.size() > 64)
      return corrupt("a template whose \"pair\" is no list");
    std::vector<PairPlace> places;
    uint32_t kind = 0;
    for (const json& item : pair) {
      const bool is_text = item.is_object() && item.contains("Sequence");
      const json* own =
          item.is_object() ? find(item, is_text ? "Sequence" : "SpecialToken") : nullptr;
      const json* told = own && own->is_object() ? find(*own, "type_id") : nullptr;
      if (told == nullptr || !told->is_number_unsigned())
        return corrupt("a template whose \"pair\" has unknown items");
      PairPlace place{.is_second = is_text && text_of(*own, "id") == "B",
                      .kind = told->get<uint32_t>()};
      if (!is_text) place.token = template_id(from, text_of(*own, "id"));
      if ((!is_text && place.token < 0) || place.kind < kind || place.kind > 1)
        return fail(Code::kUnsupported,
                    "{}: a post_processor whose \"pair\" has unknown tokens, or kinds in another "
                    "order than 0 and 1, is not supported",
                    kFile);
      kind = place.kind;
      places.push_back(place);
    }
    vocab_.pair = std::move(places);
    return {};
  }

  int32_t template_id(const json& from, const std::string& name) const {
    const json* all = find(from, "special_tokens");
    const json* own = all && all->is_object() ? find(*all, name.c_str()) : nullptr;
    const json* ids = own && own->is_object() ? find(*own, "ids") : nullptr;
    if (ids && ids->is_array() && ids->size() == 1 && (*ids)[0].is_number_integer() &&
        vocab_.is_valid((*ids)[0].get<int64_t>()))
      return (*ids)[0].get<int32_t>();
    return id_of(name);
  }

  Status surround(int32_t before, int32_t after) {
    if (before >= 0) vocab_.bos = before, vocab_.add_bos = true;
    if (after >= 0) vocab_.eos = after, vocab_.add_eos = true;
    for (const int32_t id : {before, after})
      if (id >= 0) vocab_.tokens[static_cast<size_t>(id)].type = TokenType::kControl;
    return {};
  }

  /// What the bytes of tokens are: decoders that work on every token alone.
  Status read_decoder() {
    std::vector<const json*> list;
    if (const json* decoder = find(root_, "decoder")) list.push_back(decoder);
    for (size_t i = 0; i < list.size() && list.size() < 64; ++i) {
      const json& d = *list[i];
      if (!d.is_object()) return corrupt("\"decoder\" is no object");
      const std::string type = text_of(d, "type");
      if (type == "Sequence") {
        if (const json* inner = find(d, "decoders"); inner && inner->is_array())
          for (const json& one : *inner) list.push_back(&one);
      } else if (type == "ByteLevel") {
        is_byte_level_ = true;
      } else if (type == "Metaspace") {
        mark_ =
            text_of(d, "replacement").empty() ? std::string(kSpaceMark) : text_of(d, "replacement");
      } else if (type == "Replace") {
        const json* pattern = find(d, "pattern");
        if (text_of(d, "content") == " " && pattern && pattern->is_object())
          mark_ = text_of(*pattern, "String");
      } else if (type == "WordPiece") {
        piece_prefix_ = text_of(d, "prefix").empty() ? "##" : text_of(d, "prefix");
      } else if (type == "Strip") {
        vocab_.add_space_prefix = vocab_.add_space_prefix || text_of(d, "content") == " ";
      } else if (type != "ByteFallback" && type != "Fuse") {
        return fail(Code::kUnsupported, "{}: decoder {} is not supported", kFile, quote_name(type));
      }
    }
    return {};
  }

  void fill_bytes() {
    const ByteAlphabet alphabet;
    const bool has_bytes = flag_of(*model_, "byte_fallback", false);
    for (size_t i = 0; i < vocab_.tokens.size(); ++i) {
      Token& token = vocab_.tokens[i];
      token.bytes = token.text;
      const bool is_added = token.type == TokenType::kUserDefined;
      if (token.type != TokenType::kNormal && !(is_added && !mark_.empty())) continue;
      if (const auto byte = has_bytes && !is_added ? parse_byte_token(token.text) : std::nullopt) {
        token.type = TokenType::kByte;
        token.bytes.assign(1, static_cast<char>(*byte));
        vocab_.byte_tokens[*byte] = static_cast<int32_t>(i);
        continue;
      }
      if (is_byte_level_) {
        if (is_added) continue;
        if (auto bytes = alphabet.decode(token.text)) token.bytes = std::move(*bytes);
      } else if (!piece_prefix_.empty()) {
        token.bytes = token.text.starts_with(piece_prefix_)
                          ? token.text.substr(piece_prefix_.size())
                          : " " + token.text;
      } else if (!mark_.empty()) {
        std::string bytes;
        for (size_t pos = 0; pos < token.text.size();) {
          const bool is_mark = token.text.compare(pos, mark_.size(), mark_) == 0;
          bytes += is_mark ? ' ' : token.text[pos];
          pos += is_mark ? mark_.size() : 1;
        }
        token.bytes = std::move(bytes);
      }
    }
  }

  /// Texts that a prompt may become: never control, unknown or byte tokens. Those of added tokens
  /// are found before words are made, and by the model too.
  Ids index() {
    Ids ids;
    for (size_t i = 0; i < vocab_.tokens.size(); ++i) {
      const Token& token = vocab_.tokens[i];
      const auto id = static_cast<int32_t>(i);
      if (token.text.empty()) continue;
      const bool is_plain =
          token.type == TokenType::kNormal || token.type == TokenType::kUserDefined;
      (is_plain ? vocab_.by_text : vocab_.special_by_text).insert_or_assign(token.text, id);
      if (!is_plain) continue;
      vocab_.longest = std::max(vocab_.longest, token.text.size());
      ids.insert_or_assign(token.text, id);
    }
    return ids;
  }

  Result<std::unique_ptr<TokenModel>> make(TextSteps steps, Ids ids) {
    const bool has_bytes = flag_of(*model_, "byte_fallback", false);
    if (kind_ == "Unigram")
      return std::make_unique<JsonUnigram>(vocab_, std::move(steps), std::move(ids),
                                           std::move(scores_), has_bytes);
    if (kind_ == "WordLevel")
      return std::make_unique<JsonWordLevel>(vocab_, std::move(steps), std::move(ids));
    if (kind_ == "WordPiece") {
      const json* prefix = find(*model_, "continuing_subword_prefix");
      const json* longest = find(*model_, "max_input_chars_per_word");
      const bool has_longest =
          longest && longest->is_number_integer() && *longest > 0 && *longest <= 1000;
      return std::make_unique<JsonWordPiece>(
          vocab_, std::move(steps), std::move(ids),
          prefix && prefix->is_string() ? prefix->get<std::string>() : "##",
          has_longest ? longest->get<size_t>() : 100);
    }
    if (kind_ != "BPE")
      return fail(Code::kUnsupported, "{}: model {} is not supported", kFile, quote_name(kind_));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(*model_, key).empty())
        return fail(Code::kUnsupported, "{}: \"{}\" is not supported", kFile, key);
    BpeRules rules;
    rules.has_byte_fallback = has_bytes;
    rules.fuses_unknown = flag_of(*model_, "fuse_unk", false);
    rules.ignores_merges = flag_of(*model_, "ignore_merges", false);
    BM_TRY(read_merges(ids, &rules));
    return std::make_unique<JsonBpe>(vocab_, std::move(steps), std::move(ids), std::move(rules));
  }

  /// "left right", or a list of the two. Both and what they make are tokens.
  Status read_merges(const Ids& ids, BpeRules* rules) const {
    const json* merges = find(*model_, "merges");
    if (merges == nullptr || !merges->is_array()) return corrupt("no merges");
    const auto id = [&](std::string_view text) {
      const auto found = ids.find(text);
      if (found != ids.end()) return found->second;
      const auto special = vocab_.special_by_text.find(text);
      return special == vocab_.special_by_text.end() ? -1 : special->second;
    };
    uint32_t rank = 0;
    for (const json& m : *merges) {
      std::string left, right;
      if (m.is_string()) {
        const auto& text = m.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != text.npos) left = text.substr(0, space), right = text.substr(space + 1);
      } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        left = m[0].get<std::string>();
        right = m[1].get<std::string>();
      }
      const int32_t a = id(left), b = id(right), both = id(left + right);
      if (a < 0 || b < 0 || both < 0)
        return corrupt(fmt::format("merge {} is not of tokens: {} and {}", rank, quote_name(left),
                                   quote_name(right)));
      rules->merges.insert_or_assign(BpeRules::key(a, b), Merge{rank++, both});
    }
    return {};
  }

  const GgufFile& file_;
  Vocab& vocab_;
  std::vector<double> scores_;  ///< of a Unigram model, by number
  json root_;
  const json* model_ = nullptr;
  std::string kind_, mark_, piece_prefix_;
  bool is_byte_level_ = false;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> make_json_model(const GgufFile& file, Vocab& vocab,
                                                    std::vector<int32_t>* ends) {
  return Loader(file, vocab).run(ends);
}

}  // namespace bm::models
