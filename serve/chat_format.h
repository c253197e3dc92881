#pragma once
// What models write around tool calls and reasoning, and how it is taken apart while it streams.
//
// Source of the forms: the chat templates of Qwen 2.5, 3 and 3-Coder, Hermes 2 Pro, GLM 4.5,
// Mistral Nemo and Small 3.2, Llama 3.1, Granite 3, DeepSeek R1 and V3.1; OpenAI's "harmony"
// format.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace bm::serve {

enum class CallSyntax : uint8_t {
  kHermes,    ///< <tool_call>{"name", "arguments"}</tool_call>, also Qwen3-Coder's and GLM's inside
  kMistral,   ///< [TOOL_CALLS][{"name", "arguments"}, …], or [TOOL_CALLS]name[ARGS]{…}
  kGranite,   ///< <|tool_call|>[{"name", "arguments"}, …]
  kDeepSeek,  ///< <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>…<｜tool▁sep｜>…
  kHarmony,   ///< channels; reasoning is one of them
  kLlama,     ///< {"name", "parameters"} as the whole answer; what unknown templates are taken for
};

/// How a model writes, by its chat template.
struct ChatFormat {
  CallSyntax calls = CallSyntax::kLlama;
  std::string think_open, think_close;  ///< empty: it does not reason in a place of its own
  /// Texts that may be control tokens, and are wanted as text.
  std::vector<std::string> markers() const;
};
ChatFormat detect_chat_format(std::string_view chat_template);

/// A piece of a call: `name` once, first, then pieces of `arguments`.
struct CallPiece {
  size_t index = 0;
  std::string name, arguments;
};
struct ChatPieces {
  std::string reasoning, content;
  std::vector<CallPiece> calls;
  bool is_empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

/// An object {"name": …, "arguments" or "parameters": {…}} that comes letter by letter.
class JsonCall {
 public:
  enum class State : uint8_t { kMore, kDone, kBad };
  State push(char c);
  State state() const { return state_; }
  /// Empty until it is known.
  const std::string& name() const { return name_; }
  /// The object so far, as the model wrote it.
  const std::string& arguments() const { return arguments_; }

 private:
  State fail() { return state_ = State::kBad; }
  State end_of_value();
  State state_ = State::kMore;
  std::string name_, arguments_, key_, value_;
  int depth_ = 0;  ///< within the value
  bool has_begun_ = false, in_string_ = false, is_escaped_ = false;
  enum class Place : uint8_t { kKey, kColon, kValue, kComma } place_ = Place::kKey;
};

/// Thread: one stream's.
class ChatParser {
 public:
  /// `has_tools`: calls are looked for. `is_reasoning`: the prompt has opened the reasoning.
  ChatParser(ChatFormat format, bool has_tools, bool is_reasoning);
  ChatPieces push(std::string_view text);
  /// What was held back. Calls that are not complete are text.
  ChatPieces finish();
  size_t call_count() const { return calls_; }
  /// Whether what comes next is reasoning.
  bool is_reasoning() const {
    return place_ == Place::kReasoning ||
           (place_ == Place::kMessage && channel_ == Channel::kAnalysis);
  }

 private:
  enum class Place : uint8_t {
    kStart,
    kReasoning,
    kContent,
    kCalls,    ///< within the markers, before a call
    kJson,     ///< in a JsonCall
    kRaw,      ///< in arguments that end with their object
    kCallEnd,  ///< behind a call of <tool_call>
    kPlain,    ///< nothing is looked for any more
    kHeader,   ///< of harmony
    kMessage,  ///< of harmony
  };
  bool step();
  bool step_start();
  bool step_reasoning();
  bool step_content();
  bool step_calls();
  bool step_hermes();
  bool step_deepseek();
  bool step_json();
  bool step_raw();
  bool step_call_end();
  bool step_header();
  bool step_message();
  bool take_spaces();
  bool awaits(std::string_view marker) const;
  void begin_call(std::string_view name);
  void add_arguments(std::string_view text);
  void add_call(std::string_view name, std::string_view arguments);
  /// All that is held becomes text; nothing is looked for any more.
  bool give_up();
  size_t safe_length(std::initializer_list<std::string_view> markers) const;

  ChatFormat format_;
  bool has_tools_;
  Place place_;
  bool is_last_ = false, skips_space_ = false, in_list_ = false;
  std::string held_, raw_;  ///< raw_: of the call that is being read
  JsonCall json_;
  size_t calls_ = 0, sent_ = 0;
  int depth_ = 0;
  bool in_string_ = false, is_escaped_ = false;
  enum class Channel : uint8_t { kFinal, kAnalysis, kCall } channel_ = Channel::kFinal;
  ChatPieces out_;
};

}  // namespace bm::serve
