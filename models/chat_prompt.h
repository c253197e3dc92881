#pragma once
// From messages to tokens: a chat template's output, in which only the template can write control
// tokens, and what of it a sequence has seen already. No I/O.

#include <cstdint>
#include <string>
#include <vector>

#include "models/chat/chat_template.h"
#include "models/tokenizer.h"

namespace bm::models {

/// A rendered conversation. `literal` are the places where somebody's text (and not the template)
/// spells a control token, or a part of one at its edge.
struct ChatPrompt {
  std::string text;
  std::vector<TextRange> literal;
};

/// Renders and remembers what came from messages, tools, documents and variables: "<|im_end|>" in
/// a message is text. The strings go through the template with noncharacters (U+FDD0, U+FDD1)
/// around such places; those of the messages themselves become U+FFFD. bos_token and eos_token are
/// the tokenizer's unless `input` has others.
/// Errors: those of ChatTemplate::render(); kInvalidArgument when it writes nothing.
Result<ChatPrompt> render_chat(const ChatTemplate& chat_template, const ChatInput& input,
                               const Tokenizer& tokenizer, const ChatLimits& limits = {});

/// Tokens of prompt.text from byte `begin` on. At 0 with BOS where the model wants one and the
/// template has not written it.
Result<std::vector<int32_t>> encode_chat(const ChatPrompt& prompt, const Tokenizer& tokenizer,
                                         size_t begin = 0);

/// What has to be computed for a prompt after what was computed before it.
struct ChatFeed {
  bool is_fresh = true;  ///< the sequence starts anew: reset it first
  std::vector<int32_t> tokens;
};

/// The text a sequence holds: the last prompt and the answer to it. Where the next prompt goes on
/// from there, only what is new is computed. White space around the answer may differ: templates
/// trim it, the sequence keeps what the model wrote.
class ChatContext {
 public:
  /// Errors: those of encode_chat().
  Result<ChatFeed> plan(const ChatPrompt& prompt, const Tokenizer& tokenizer) const;
  /// The sequence was fed what plan() gave for `prompt`.
  void prompt_done(const ChatPrompt& prompt);
  /// The answer's text as it goes into the next messages, and its tokens that were not fed. Not
  /// `is_whole`: the sequence holds more than the text shows (a stop string), start anew.
  void answer_done(std::string text, std::vector<int32_t> not_fed, bool is_whole);
  void reset() { *this = {}; }

 private:
  bool is_valid_ = false;
  std::string prompt_, answer_;
  std::vector<int32_t> not_fed_;
};

}  // namespace bm::models
