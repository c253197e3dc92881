#pragma once
// An answer in the form of Anthropic's "Messages": blocks of thinking, text and calls that are
// written one after the other, and the events that tell of them.
//
// Source: Anthropic's API reference, "Messages", "Streaming Messages".

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "serve/chat_format.h"
#include "serve/request.h"

namespace bm::serve {

/// Thread: one connection's. Functions return the text of events, for a stream.
class MessageWriter {
 public:
  using Json = nlohmann::ordered_json;
  /// `id`: of the request, without a prefix.
  MessageWriter(std::string id, std::string model);

  /// Before anything else. `input_tokens`: of the prompt.
  std::string begin(size_t input_tokens);
  std::string push(const ChatPieces& pieces);
  /// `stop_reason`: as Anthropic names it. `stopped_by`: the text that ended the answer; empty:
  /// none.
  std::string finish(std::string_view stop_reason, const std::string& stopped_by, Json usage);
  /// Ends a stream that has begun.
  std::string fail(const ApiError& error) const;
  /// The answer as it is now: after finish() the whole one.
  Json message() const;

 private:
  std::string open(std::string_view type, Json block);
  std::string close();
  std::string delta(std::string_view type, std::string_view name, const std::string& text);

  std::string id_, model_;
  Json blocks_ = Json::array(), usage_, stop_reason_, stop_sequence_;
  std::string open_;        ///< type of the block that is being written; empty: none
  std::string arguments_;   ///< of the call that is being written
  size_t call_ = SIZE_MAX;  ///< its number
};

}  // namespace bm::serve
