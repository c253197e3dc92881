#include "models/chat_prompt.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "models/unicode.h"

namespace bm::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpen = "\xef\xb7\x90", kClose = "\xef\xb7\x91";  // U+FDD0, U+FDD1
constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr int kMaxDepth = 100;  // of JSON, as in chat_template.cpp

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// `text` with marks around what could be read as a control token.
std::string marked(std::string text, const Tokenizer& tokenizer) {
  replace_all(text, kOpen, kReplacement);
  replace_all(text, kClose, kReplacement);
  if (!is_valid_utf8(text)) return text;  // render() refuses it by name
  std::vector<TextRange> ranges = tokenizer.find_control(text);
  // At its edges the text may complete what the template begins, and the other way round.
  if (const size_t n = tokenizer.control_head(text)) ranges.push_back({0, n});
  if (const size_t n = tokenizer.control_tail(text))
    ranges.push_back({text.size() - n, text.size()});
  if (ranges.empty()) return text;
  std::sort(ranges.begin(), ranges.end(),
            [](const TextRange& a, const TextRange& b) { return a.begin < b.begin; });
  std::string out;
  size_t pos = 0;
  for (size_t i = 0; i < ranges.size();) {
    TextRange r = ranges[i];
    for (++i; i < ranges.size() && ranges[i].begin <= r.end; ++i)
      r.end = std::max(r.end, ranges[i].end);
    // Tokens may begin or end inside a character.
    while (r.begin > 0 && (text[r.begin] & 0xC0) == 0x80) --r.begin;
    while (r.end < text.size() && (text[r.end] & 0xC0) == 0x80) ++r.end;
    r.begin = std::max(r.begin, pos);
    out.append(text, pos, r.begin - pos).append(kOpen);
    out.append(text, r.begin, r.end - r.begin).append(kClose);
    pos = r.end;
  }
  return out.append(text, pos);
}

Json marked(const Json& json, const Tokenizer& tokenizer, int depth = 0) {
  if (depth > kMaxDepth) return json;  // render() refuses it
  if (json.is_string()) return marked(json.get_ref<const std::string&>(), tokenizer);
  if (json.is_array()) {
    Json out = Json::array();
    for (const Json& item : json) out.push_back(marked(item, tokenizer, depth + 1));
    return out;
  }
  if (!json.is_object()) return json;
  Json out = Json::object();
  for (const auto& [key, item] : json.items())
    out[marked(key, tokenizer)] = marked(item, tokenizer, depth + 1);
  return out;
}

/// The text without its marks, and where they stood. What lies behind a mark that lost its partner
/// (a template cut the text) is literal to the next mark, or to the end.
ChatPrompt without_marks(std::string_view text) {
  ChatPrompt out;
  std::optional<size_t> opened;
  const auto close = [&] {
    if (opened && *opened < out.text.size()) out.literal.push_back({*opened, out.text.size()});
    opened.reset();
  };
  for (size_t pos = 0; pos < text.size();) {
    const std::string_view rest = text.substr(pos);
    if (rest.starts_with(kOpen) || rest.starts_with(kClose)) {
      close();
      if (rest.starts_with(kOpen)) opened = out.text.size();
      pos += kOpen.size();
      continue;
    }
    out.text += text[pos++];
  }
  close();
  return out;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Where `text` goes on after `prompt` and `answer`; nothing when it does not begin with them.
std::optional<size_t> end_of_context(std::string_view text, std::string_view prompt,
                                     std::string_view answer) {
  if (!text.starts_with(prompt)) return std::nullopt;
  size_t pos = prompt.size();
  if (text.substr(pos).starts_with(answer)) return pos + answer.size();
  const std::string_view core = trimmed(answer);
  if (core.empty()) return std::nullopt;
  while (pos < text.size() && is_space(text[pos])) ++pos;
  if (!text.substr(pos).starts_with(core)) return std::nullopt;
  pos += core.size();
  // White space that the sequence has behind the answer is not computed twice.
  std::string_view tail = answer.substr(answer.find(core) + core.size());
  for (; !tail.empty() && pos < text.size() && text[pos] == tail.front(); ++pos)
    tail.remove_prefix(1);
  return pos;
}

}  // namespace

Result<ChatPrompt> render_chat(const ChatTemplate& chat_template, const ChatInput& input,
                               const Tokenizer& tokenizer, const ChatLimits& limits) {
  ChatInput safe = input;
  std::optional<Json> messages, tools, documents, variables;
  const auto mark = [&](const Json*& json, std::optional<Json>& copy) {
    if (json != nullptr) json = &copy.emplace(marked(*json, tokenizer));
  };
  mark(safe.messages, messages);
  mark(safe.tools, tools);
  mark(safe.documents, documents);
  mark(safe.variables, variables);
  if (!safe.bos_token && tokenizer.bos() >= 0) safe.bos_token = tokenizer.piece(tokenizer.bos());
  if (!safe.eos_token && tokenizer.eos() >= 0) safe.eos_token = tokenizer.piece(tokenizer.eos());
  ChatPrompt out = without_marks(BM_TRY(chat_template.render(safe, limits)));
  if (out.text.empty())
    return fail(Code::kInvalidArgument,
                "the chat template writes nothing for these messages: the model would answer none "
                "of them");
  return out;
}

Result<std::vector<int32_t>> encode_chat(const ChatPrompt& prompt, const Tokenizer& tokenizer,
                                         size_t begin) {
  std::vector<TextRange> literal;
  for (const TextRange& r : prompt.literal)
    if (r.end > begin) literal.push_back({std::max(r.begin, begin) - begin, r.end - begin});
  EncodeOptions options{.add_bos = false,
                        .add_eos = false,
                        .parse_special = true,
                        .literal = literal,
                        .is_continuation = begin > 0};
  std::vector<int32_t> tokens =
      BM_TRY(tokenizer.encode(std::string_view(prompt.text).substr(begin), options));
  const bool wants_bos = begin == 0 && tokenizer.adds_bos() && tokenizer.bos() >= 0;
  if (wants_bos && (tokens.empty() || tokens.front() != tokenizer.bos()))
    tokens.insert(tokens.begin(), tokenizer.bos());
  return tokens;
}

Result<ChatFeed> ChatContext::plan(const ChatPrompt& prompt, const Tokenizer& tokenizer) const {
  if (is_valid_) {
    const std::optional<size_t> end = end_of_context(prompt.text, prompt_, answer_);
    if (end) {
      ChatFeed feed{.is_fresh = false, .tokens = not_fed_};
      const std::vector<int32_t> more = BM_TRY(encode_chat(prompt, tokenizer, *end));
      feed.tokens.insert(feed.tokens.end(), more.begin(), more.end());
      if (!feed.tokens.empty()) return feed;
    }
  }
  return ChatFeed{.is_fresh = true, .tokens = BM_TRY(encode_chat(prompt, tokenizer))};
}

void ChatContext::prompt_done(const ChatPrompt& prompt) {
  is_valid_ = true;
  prompt_ = prompt.text;
  answer_.clear();
  not_fed_.clear();
}

void ChatContext::answer_done(std::string text, std::vector<int32_t> not_fed, bool is_whole) {
  is_valid_ = is_valid_ && is_whole;
  answer_ = std::move(text);
  not_fed_ = std::move(not_fed);
}

}  // namespace bm::models
