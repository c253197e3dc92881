#pragma once
// An answer in the form of OpenAI's interface "Responses": a list of items (reasoning, messages,
// calls) that are written one after the other, and the events that tell of them.
//
// Source: OpenAI's API reference, "Responses", "Streaming events".

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "serve/chat_format.h"
#include "serve/request.h"

namespace bm::serve {

/// Thread: one connection's. Functions return the text of events, for a stream.
class ResponseWriter {
 public:
  using Json = nlohmann::ordered_json;
  /// `id`: of the request, without a prefix. `fields`: of the request, repeated in the answer.
  ResponseWriter(std::string id, int64_t created, std::string model, Json fields);

  /// Before anything else.
  std::string begin();
  /// `logprobs`: of the tokens of this piece; a list, or null where nobody wants them.
  std::string push(const ChatPieces& pieces, const Json& logprobs);
  /// `is_cut`: by max_output_tokens.
  std::string finish(bool is_cut, Json usage);
  /// Ends a stream that has begun.
  std::string fail(const ApiError& error);
  /// The answer as it is now: after finish() the whole one.
  Json response() const;

 private:
  std::string event(std::string_view type, Json fields);
  std::string state_event(std::string_view type);
  /// Of the item that is being written.
  std::string item_event(std::string_view type, Json fields);
  std::string open(std::string_view type, std::string_view prefix, Json fields);
  std::string close(std::string_view status);
  /// `part`: type of the content's one part.
  std::string add_text(std::string_view part, const std::string& text);
  Json& item() { return output_.back(); }
  bool is_open(std::string_view type) const { return open_ == type; }

  std::string id_, model_;
  int64_t created_;
  Json fields_, output_ = Json::array(), usage_, error_, incomplete_;
  std::string status_ = "in_progress";
  std::string open_;            ///< type of the item that is being written; empty: none
  Json logprobs_;               ///< of tokens whose text is still to come
  std::optional<size_t> call_;  ///< number of the call that is being written
  uint64_t sequence_ = 0;
};

}  // namespace bm::serve
