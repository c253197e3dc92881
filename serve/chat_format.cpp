#include "serve/chat_format.h"

#include <algorithm>
#include <optional>

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kMistralCalls = "[TOOL_CALLS]", kMistralArgs = "[ARGS]";
constexpr std::string_view kGraniteCall = "<|tool_call|>", kPythonTag = "<|python_tag|>";
constexpr std::string_view kDeepSeekCalls = "<｜tool▁calls▁begin｜>",
                           kDeepSeekCallsEnd = "<｜tool▁calls▁end｜>",
                           kDeepSeekCall = "<｜tool▁call▁begin｜>",
                           kDeepSeekCallEnd = "<｜tool▁call▁end｜>",
                           kDeepSeekSep = "<｜tool▁sep｜>";
constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kEnd = "<|end|>",
                           kReturn = "<|return|>", kCallMade = "<|call|>", kStart = "<|start|>",
                           kConstrain = "<|constrain|>";

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// What stands between `open` and `close`, and removes it with all before; nothing without them.
std::optional<std::string_view> cut(std::string_view& text, std::string_view open,
                                    std::string_view close) {
  const size_t begin = text.find(open);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = text.find(close, begin + open.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view out = text.substr(begin + open.size(), end - begin - open.size());
  text.remove_prefix(end + close.size());
  return out;
}

/// A value that is written without quotes: JSON where it is JSON, otherwise a text.
Json loose_value(std::string_view text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(std::string(text)) : value;
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<std::string> ChatFormat::markers() const {
  std::vector<std::string> out;
  const auto add = [&](std::initializer_list<std::string_view> texts) {
    for (const std::string_view t : texts)
      if (!t.empty()) out.emplace_back(t);
  };
  add({think_open, think_close});
  switch (calls) {
    case CallSyntax::kHermes: add({kCall, kCallEnd}); break;
    case CallSyntax::kMistral: add({kMistralCalls, kMistralArgs}); break;
    case CallSyntax::kGranite: add({kGraniteCall}); break;
    case CallSyntax::kDeepSeek:
      add({kDeepSeekCalls, kDeepSeekCallsEnd, kDeepSeekCall, kDeepSeekCallEnd, kDeepSeekSep});
      break;
    case CallSyntax::kHarmony:
      add({kChannel, kMessage, kEnd, kReturn, kCallMade, kStart, kConstrain});
      break;
    case CallSyntax::kLlama: add({kPythonTag}); break;
  }
  return out;
}

ChatFormat detect_chat_format(std::string_view text) {
  const auto has = [&](std::string_view what) { return text.find(what) != std::string_view::npos; };
  ChatFormat out;
  if (has(kChannel) && has(kMessage)) {
    out.calls = CallSyntax::kHarmony;
    return out;
  }
  if (has(kMistralCalls))
    out.calls = CallSyntax::kMistral;
  else if (has(kDeepSeekCalls))
    out.calls = CallSyntax::kDeepSeek;
  else if (has(kGraniteCall))
    out.calls = CallSyntax::kGranite;
  else if (has(kCall))
    out.calls = CallSyntax::kHermes;
  constexpr std::pair<std::string_view, std::string_view> kThink[] = {
      {"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<seed:think>", "</seed:think>"}};
  for (const auto& [open, close] : kThink)
    if (has(open) || has(close)) {
      out.think_open = open;
      out.think_close = close;
      break;
    }
  return out;
}

// --- JsonCall ------------------------------------------------------------------------------------

JsonCall::State JsonCall::end_of_value() {
  const std::string value = std::exchange(value_, {});
  if (key_ == "name") {
    const Json name = Json::parse(value, nullptr, false);
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) return fail();
    name_ = name.get<std::string>();
  } else if ((key_ == "arguments" || key_ == "parameters") && !value.starts_with('{')) {
    // Some models write the object as a text.
    const Json text = Json::parse(value, nullptr, false);
    if (text.is_discarded()) return fail();
    arguments_ = text.is_string() ? text.get<std::string>()
                 : text.is_null() ? "{}"
                                  : json_text(text);
  }
  return state_;
}

JsonCall::State JsonCall::push(char c) {
  if (state_ != State::kMore) return state_;
  if (!has_begun_) {
    if (c == '{')
      has_begun_ = true;
    else if (!is_space(c))
      return fail();
    return state_;
  }
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  switch (place_) {
    case Place::kKey:
      if (value_.empty()) {
        if (is_space(c)) return state_;
        if (c == '}' && key_.empty()) return fail();
        if (c != '"') return fail();
        value_ = c;
        return state_;
      }
      value_ += c;
      if (std::exchange(is_escaped_, false)) return state_;
      if (c == '\\') is_escaped_ = true;
      if (c == '"') {
        const Json key = Json::parse(std::exchange(value_, {}), nullptr, false);
        if (!key.is_string()) return fail();
        key_ = key.get<std::string>();
        place_ = Place::kColon;
      }
      return state_;
    case Place::kColon:
      if (c == ':')
        place_ = Place::kValue;
      else if (!is_space(c))
        return fail();
      return state_;
    case Place::kValue: {
      if (value_.empty() && is_space(c)) return state_;
      const bool ends_bare = depth_ == 0 && !in_string_ && (c == ',' || c == '}' || is_space(c));
      if (ends_bare) {
        if (end_of_value() == State::kBad) return state_;
        place_ = Place::kComma;
        return push(c);
      }
      value_ += c;
      if (is_arguments && value_.front() == '{') arguments_ += c;
      if (in_string_) {
        if (std::exchange(is_escaped_, false)) return state_;
        if (c == '\\') is_escaped_ = true;
        if (c == '"') in_string_ = false;
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        --depth_;
      }
      if (in_string_ || depth_ > 0 || (c != '"' && c != '}' && c != ']')) return state_;
      // The braces of arguments may balance without being JSON.
      if (value_.front() == '{' && Json::parse(value_, nullptr, false).is_discarded())
        return fail();
      if (end_of_value() == State::kBad) return state_;
      place_ = Place::kComma;
      return state_;
    }
    case Place::kComma:
      if (c == ',') {
        place_ = Place::kKey;
      } else if (c == '}') {
        if (name_.empty()) return fail();
        if (arguments_.empty()) arguments_ = "{}";
        state_ = State::kDone;
      } else if (!is_space(c)) {
        return fail();
      }
      return state_;
  }
  return state_;
}

// --- ChatParser ----------------------------------------------------------------------------------

ChatParser::ChatParser(ChatFormat format, bool has_tools, bool is_reasoning)
    : format_(std::move(format)),
      has_tools_(has_tools),
      place_(format_.calls == CallSyntax::kHarmony ? Place::kHeader
             : is_reasoning                        ? Place::kReasoning
             : format_.think_open.empty()          ? Place::kContent
                                                   : Place::kStart),
      skips_space_(is_reasoning) {}

ChatPieces ChatParser::push(std::string_view text) {
  held_ += text;
  while (step()) {}
  return std::exchange(out_, {});
}

ChatPieces ChatParser::finish() {
  is_last_ = true;
  while (step()) {}
  if (!held_.empty() || (!raw_.empty() && sent_ == 0)) give_up();
  return std::exchange(out_, {});
}

bool ChatParser::step() {
  switch (place_) {
    case Place::kStart: return step_start();
    case Place::kReasoning: return step_reasoning();
    case Place::kContent: return step_content();
    case Place::kCalls: return step_calls();
    case Place::kJson: return step_json();
    case Place::kRaw: return step_raw();
    case Place::kCallEnd: return step_call_end();
    case Place::kPlain: out_.content += std::exchange(held_, {}); return false;
    case Place::kHeader: return step_header();
    case Place::kMessage: return step_message();
  }
  return false;
}

/// Whether what is held could still become `marker`.
bool ChatParser::awaits(std::string_view marker) const {
  return !is_last_ && held_.size() < marker.size() && marker.starts_with(held_);
}

/// False when only spaces are held, which are gone.
bool ChatParser::take_spaces() {
  held_.erase(0, static_cast<size_t>(std::ranges::find_if_not(held_, is_space) - held_.begin()));
  return !held_.empty();
}

/// How much is held that cannot be the beginning of a marker, nor the space before one.
size_t ChatParser::safe_length(std::initializer_list<std::string_view> markers) const {
  if (is_last_) return held_.size();
  size_t keep = 0;
  for (const std::string_view m : markers)
    for (size_t n = std::min(m.size() - 1, held_.size()); n > keep; --n)
      if (held_.ends_with(m.substr(0, n))) keep = n;
  size_t length = held_.size() - keep;
  while (length > 0 && is_space(held_[length - 1])) --length;
  return length;
}

bool ChatParser::give_up() {
  if (sent_ == 0) out_.content += raw_;
  out_.content += held_;
  raw_.clear();
  held_.clear();
  place_ = Place::kPlain;
  return false;
}

void ChatParser::begin_call(std::string_view name) {
  out_.calls.push_back({.index = calls_++, .name = std::string(name), .arguments = {}});
  sent_ = 0;
}

void ChatParser::add_arguments(std::string_view text) {
  if (text.empty()) return;
  if (out_.calls.empty() || out_.calls.back().index != calls_ - 1)
    out_.calls.push_back({.index = calls_ - 1, .name = {}, .arguments = {}});
  out_.calls.back().arguments += text;
  sent_ += text.size();
}

void ChatParser::add_call(std::string_view name, std::string_view arguments) {
  begin_call(name);
  add_arguments(arguments);
}

bool ChatParser::step_start() {
  const size_t text =
      static_cast<size_t>(std::ranges::find_if_not(held_, is_space) - held_.begin());
  const std::string_view rest = std::string_view(held_).substr(text);
  if (rest.starts_with(format_.think_open)) {
    held_.erase(0, text + format_.think_open.size());
    skips_space_ = true;
    place_ = Place::kReasoning;
    return true;
  }
  if (!is_last_ && rest.size() < format_.think_open.size() && format_.think_open.starts_with(rest))
    return false;
  place_ = Place::kContent;
  return true;
}

bool ChatParser::step_reasoning() {
  if (skips_space_ && !take_spaces()) return false;
  skips_space_ = false;
  const size_t at = held_.find(format_.think_close);
  if (at == std::string::npos) {
    const size_t n = safe_length({format_.think_close});
    out_.reasoning += held_.substr(0, n);
    held_.erase(0, n);
    return false;
  }
  std::string_view text = std::string_view(held_).substr(0, at);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  out_.reasoning += text;
  held_.erase(0, at + format_.think_close.size());
  skips_space_ = true;
  place_ = Place::kContent;
  return true;
}

bool ChatParser::step_content() {
  if (skips_space_ && !take_spaces()) return false;
  skips_space_ = false;
  if (!has_tools_) {
    place_ = Place::kPlain;
    return true;
  }
  std::string_view open;
  switch (format_.calls) {
    case CallSyntax::kHermes: open = kCall; break;
    case CallSyntax::kMistral: open = kMistralCalls; break;
    case CallSyntax::kGranite: open = kGraniteCall; break;
    case CallSyntax::kDeepSeek: open = kDeepSeekCalls; break;
    case CallSyntax::kHarmony:
    case CallSyntax::kLlama: break;
  }
  if (open.empty()) {  // the call is the whole answer
    const size_t first =
        static_cast<size_t>(std::ranges::find_if_not(held_, is_space) - held_.begin());
    const std::string_view rest = std::string_view(held_).substr(first);
    if (!is_last_ && rest.size() < kPythonTag.size() && kPythonTag.starts_with(rest)) return false;
    const size_t tag = rest.starts_with(kPythonTag) ? kPythonTag.size() : 0;
    if (tag == 0 && !rest.starts_with('{')) {
      place_ = Place::kPlain;
      return true;
    }
    raw_ = held_.substr(0, first + tag);
    sent_ = 0;
    held_.erase(0, first + tag);
    place_ = Place::kCalls;
    return true;
  }
  const size_t at = held_.find(open);
  if (at == std::string::npos) {
    const size_t n = safe_length({open});
    out_.content += held_.substr(0, n);
    held_.erase(0, n);
    return false;
  }
  std::string_view text = std::string_view(held_).substr(0, at);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  out_.content += text;
  raw_ = open;
  sent_ = 0;
  held_.erase(0, at + open.size());
  in_list_ = false;
  place_ = Place::kCalls;
  return true;
}

bool ChatParser::step_calls() {
  const size_t spaces =
      static_cast<size_t>(std::ranges::find_if_not(held_, is_space) - held_.begin());
  // Text after all, when what follows is no call.
  if (!raw_.empty()) raw_.append(held_, 0, spaces);
  if (!take_spaces()) return false;
  const auto start_json = [&] {
    json_ = {};
    sent_ = 0;
    place_ = Place::kJson;
    return true;
  };
  switch (format_.calls) {
    case CallSyntax::kHermes: return step_hermes();
    case CallSyntax::kDeepSeek: return step_deepseek();
    case CallSyntax::kLlama:
      // Several are divided by semicolons.
      if (calls_ > 0 && held_.front() == ';') {
        held_.erase(0, 1);
        return true;
      }
      return held_.front() == '{' ? start_json() : give_up();
    case CallSyntax::kMistral:
    case CallSyntax::kGranite: {
      const char c = held_.front();
      if (c == '[' && !in_list_ && !std::string_view(held_).starts_with(kMistralCalls)) {
        if (awaits(kMistralCalls)) return false;
        in_list_ = true;
        held_.erase(0, 1);
        return true;
      }
      if (in_list_ && c == ',') {
        held_.erase(0, 1);
        return true;
      }
      if (in_list_ && c == ']') {
        held_.erase(0, 1);
        raw_.clear();
        skips_space_ = true;
        place_ = Place::kContent;
        return true;
      }
      if (c == '{') return start_json();
      if (in_list_ || format_.calls == CallSyntax::kGranite) return give_up();
      if (std::string_view(held_).starts_with(kMistralCalls)) {
        held_.erase(0, kMistralCalls.size());
        return true;
      }
      // name[ARGS]{…}, in between perhaps [CALL_ID]….
      const size_t args = held_.find('{');
      if (args == std::string::npos) return is_last_ ? give_up() : false;
      const std::string head = held_.substr(0, args);
      const std::string name(trimmed(head.substr(0, head.find('['))));
      if (name.empty()) return give_up();
      begin_call(name);
      held_.erase(0, args);
      raw_.clear();
      depth_ = 0;
      place_ = Place::kRaw;
      return true;
    }
    case CallSyntax::kHarmony: break;
  }
  return give_up();
}

bool ChatParser::step_hermes() {
  if (held_.front() == '{') {
    json_ = {};
    sent_ = 0;
    place_ = Place::kJson;
    return true;
  }
  const size_t end = held_.find(kCallEnd);
  if (end == std::string::npos) return is_last_ ? give_up() : false;
  std::string_view body = std::string_view(held_).substr(0, end);
  Json arguments = Json::object();
  std::string name;
  if (body.starts_with("<function=")) {  // Qwen3-Coder
    const auto head = cut(body, "<function=", ">");
    name = std::string(trimmed(head.value_or("")));
    while (const auto parameter = cut(body, "<parameter=", "</parameter>")) {
      const size_t bracket = parameter->find('>');
      if (bracket == std::string_view::npos) break;
      std::string_view value = parameter->substr(bracket + 1);
      if (value.starts_with('\n')) value.remove_prefix(1);
      if (value.ends_with('\n')) value.remove_suffix(1);
      arguments[std::string(parameter->substr(0, bracket))] = loose_value(value);
    }
  } else {  // GLM: name, then <arg_key>, <arg_value>
    name = std::string(trimmed(body.substr(0, std::min(body.find('<'), body.find('\n')))));
    while (const auto key = cut(body, "<arg_key>", "</arg_key>")) {
      const auto value = cut(body, "<arg_value>", "</arg_value>");
      if (!value) break;
      arguments[std::string(*key)] = loose_value(*value);
    }
  }
  if (name.empty()) return give_up();
  add_call(name, json_text(arguments));
  held_.erase(0, end + kCallEnd.size());
  raw_.clear();
  skips_space_ = true;
  place_ = Place::kContent;
  return true;
}

bool ChatParser::step_deepseek() {
  if (std::string_view(held_).starts_with(kDeepSeekCallsEnd)) {
    held_.erase(0, kDeepSeekCallsEnd.size());
    skips_space_ = true;
    raw_.clear();
    place_ = Place::kContent;
    return true;
  }
  if (awaits(kDeepSeekCallsEnd) || awaits(kDeepSeekCall)) return false;
  const size_t end = held_.find(kDeepSeekCallEnd);
  if (end == std::string::npos) return is_last_ ? give_up() : false;
  std::string_view body = std::string_view(held_).substr(0, end);
  const auto head = cut(body, kDeepSeekCall, kDeepSeekSep);
  if (!head) return give_up();
  std::string name(trimmed(*head));
  std::string_view arguments = trimmed(body);
  if (const size_t fence = body.find("```json"); fence != std::string_view::npos) {  // R1 and V3
    name = std::string(trimmed(body.substr(0, fence)));
    arguments = body.substr(fence + 7);
    arguments = trimmed(arguments.substr(0, arguments.rfind("```")));
  }
  if (name.empty() || Json::parse(arguments, nullptr, false).is_discarded()) return give_up();
  add_call(name, arguments);
  held_.erase(0, end + kDeepSeekCallEnd.size());
  raw_.clear();
  return true;
}

bool ChatParser::step_json() {
  size_t i = 0;
  while (i < held_.size() && json_.state() == JsonCall::State::kMore) json_.push(held_[i++]);
  raw_.append(held_, 0, i);
  held_.erase(0, i);
  if (json_.state() == JsonCall::State::kBad) return give_up();
  // Arguments go out once there is a name to send them with.
  if (!json_.name().empty() && !json_.arguments().empty()) {
    if (sent_ == 0) begin_call(json_.name());
    add_arguments(std::string_view(json_.arguments()).substr(sent_));
  }
  if (json_.state() == JsonCall::State::kMore) return false;
  raw_.clear();
  place_ = format_.calls == CallSyntax::kHermes ? Place::kCallEnd : Place::kCalls;
  return true;
}

/// The closing marker of a call; a model that forgets it is understood.
bool ChatParser::step_call_end() {
  if (!take_spaces() || awaits(kCallEnd)) return false;
  if (held_.starts_with(kCallEnd)) held_.erase(0, kCallEnd.size());
  skips_space_ = true;
  place_ = Place::kContent;
  return true;
}

bool ChatParser::step_raw() {
  size_t i = 0;
  for (bool is_over = false; i < held_.size() && !is_over; ++i) {
    const char c = held_[i];
    if (in_string_) {
      if (std::exchange(is_escaped_, false)) continue;
      if (c == '\\') is_escaped_ = true;
      if (c == '"') in_string_ = false;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      is_over = --depth_ == 0;
    }
  }
  if (i == 0) return false;
  add_arguments(std::string_view(held_).substr(0, i));
  held_.erase(0, i);
  if (depth_ == 0) {
    place_ = Place::kCalls;
    return true;
  }
  return false;
}

// Harmony: <|channel|>NAME[ to=functions.F …]<|message|>TEXT<|end|><|start|>assistant…
bool ChatParser::step_header() {
  const size_t at = held_.find(kMessage);
  if (at == std::string::npos) {
    if (!is_last_) return false;
    // Half a header is nothing that anybody wants to read.
    if (held_.starts_with(kChannel) || held_.starts_with(kStart)) held_.clear();
    return give_up();
  }
  const std::string_view head = std::string_view(held_).substr(0, at);
  constexpr std::string_view kTo = "to=functions.";
  const size_t to = head.find(kTo);
  channel_ = head.find("analysis") != std::string_view::npos && to == std::string_view::npos
                 ? Channel::kAnalysis
                 : Channel::kFinal;
  if (to != std::string_view::npos && has_tools_) {
    channel_ = Channel::kCall;
    const std::string_view name = head.substr(to + kTo.size());
    begin_call(name.substr(0, name.find_first_of(" <")));
  }
  held_.erase(0, at + kMessage.size());
  place_ = Place::kMessage;
  return true;
}

bool ChatParser::step_message() {
  size_t at = std::string::npos, length = 0;
  for (const std::string_view m : {kEnd, kReturn, kCallMade, kStart})
    if (const size_t found = held_.find(m); found < at) {
      at = found;
      length = m.size();
    }
  size_t n = at;
  if (at == std::string::npos) {
    n = is_last_ ? held_.size() : safe_length({kEnd, kReturn, kCallMade, kStart});
  }
  const std::string_view text = std::string_view(held_).substr(0, n);
  if (channel_ == Channel::kAnalysis) out_.reasoning += text;
  if (channel_ == Channel::kFinal) out_.content += text;
  if (channel_ == Channel::kCall) add_arguments(text);
  if (at == std::string::npos) {
    held_.erase(0, n);
    return false;
  }
  held_.erase(0, n + length);
  place_ = Place::kHeader;
  return true;
}

}  // namespace bm::serve
