#pragma once
// Chat templates: how a model wants messages written, as the Jinja text that model files carry.
//
// The interpreter is our own and knows the part of Jinja 3.1 that templates are written in, with
// the environment that Hugging Face's apply_chat_template gives them (trim_blocks, lstrip_blocks,
// loop controls, an immutable sandbox: lists and dicts have no method that changes them). It
// reaches no file, clock or network, and everything it does is bounded.
//
// Different from Jinja: a name that a block sets below is looked up outside until then (Jinja has
// it undefined); integers are of 64 bits; keys of dicts are scalars; `safe` and `escape` give plain
// strings; a filter or test that is not known is refused when the template is parsed, not when it
// is met.

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "runtime/base/result.h"

namespace bm::models {

struct ChatLimits {
  uint64_t steps =
      20'000'000;  ///< about one per node of the syntax tree, and one per 16 bytes of text made
  size_t heap_bytes =
      256 << 20;  ///< of all values made, none of which is given back before the end
  size_t output_bytes = 16 << 20;
};

/// What a template is rendered with. Objects keep the order of their keys: templates print them.
struct ChatInput {
  const nlohmann::ordered_json* messages = nullptr;   ///< list of {role, content, …}
  const nlohmann::ordered_json* tools = nullptr;      ///< list of JSON schemas; none without
  const nlohmann::ordered_json* documents = nullptr;  ///< of retrieval; none without
  const nlohmann::ordered_json* variables =
      nullptr;  ///< object of further variables, such as enable_thinking
  bool add_generation_prompt = true;
  std::optional<std::string> bos_token, eos_token;  ///< undefined without
  std::tm now = {};                                 ///< local time, for strftime_now
};

class ChatTemplate {
 public:
  /// Errors: kInvalidArgument (no template, or an empty one), kUnsupported (tag, filter or test
  /// that is not known), naming row and column.
  static Result<ChatTemplate> parse(std::string_view text);

  /// The prompt. Thread-safe.
  /// Errors: kInvalidArgument naming row and column: what the template itself refuses
  /// (raise_exception), a mistake in it, or a limit; kUnsupported: Python that is not part of the
  /// subset.
  Result<std::string> render(const ChatInput& input, const ChatLimits& limits = {}) const;

  /// Whether the template reads the variable `name` (tools, enable_thinking, …) somewhere.
  bool reads(std::string_view name) const;

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Parsed;
  explicit ChatTemplate(std::unique_ptr<Parsed> parsed);
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace bm::models
