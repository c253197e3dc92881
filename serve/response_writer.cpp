#include "serve/response_writer.h"

#include <ctime>

#include <fmt/format.h>

namespace bm::serve {
namespace {

constexpr std::string_view kReasoningItem = "reasoning", kMessageItem = "message",
                           kCallItem = "function_call";

nlohmann::ordered_json text_part(std::string_view type, std::string_view text) {
  nlohmann::ordered_json out{{"type", type}, {"text", text}};
  if (type == "output_text") {
    out["annotations"] = nlohmann::ordered_json::array();
    out["logprobs"] = nlohmann::ordered_json::array();
  }
  return out;
}

}  // namespace

ResponseWriter::ResponseWriter(std::string id, int64_t created, std::string model, Json fields)
    : id_(std::move(id)), model_(std::move(model)), created_(created), fields_(std::move(fields)) {}

ResponseWriter::Json ResponseWriter::response() const {
  Json out{{"id", "resp_" + id_},
           {"object", "response"},
           {"created_at", created_},
           {"status", status_},
           {"background", false},
           {"completed_at", status_ == "completed" ? Json(std::time(nullptr)) : Json()},
           {"error", error_},
           {"incomplete_details", incomplete_},
           {"model", model_},
           {"output", output_},
           {"previous_response_id", nullptr},
           {"store", false},
           {"truncation", "disabled"},
           {"usage", usage_}};
  out.update(fields_);
  return out;
}

std::string ResponseWriter::event(std::string_view type, Json fields) {
  Json out{{"type", type}, {"sequence_number", sequence_++}};
  out.update(fields);
  // Pieces of characters are no UTF-8.
  return fmt::format("event: {}\ndata: {}\n\n", type,
                     out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string ResponseWriter::state_event(std::string_view type) {
  return event(type, {{"response", response()}});
}

std::string ResponseWriter::item_event(std::string_view type, Json fields) {
  Json out{{"item_id", item()["id"]}, {"output_index", output_.size() - 1}};
  out.update(fields);
  return event(type, std::move(out));
}

std::string ResponseWriter::begin() {
  return state_event("response.created") + state_event("response.in_progress");
}

std::string ResponseWriter::open(std::string_view type, std::string_view prefix, Json fields) {
  std::string out = close("completed");
  Json one{{"id", fmt::format("{}_{}_{}", prefix, id_, output_.size())},
           {"type", type},
           {"status", "in_progress"}};
  one.update(fields);
  output_.push_back(std::move(one));
  open_ = type;
  return out + event("response.output_item.added",
                     {{"output_index", output_.size() - 1}, {"item", item()}});
}

std::string ResponseWriter::close(std::string_view status) {
  if (open_.empty()) return {};
  std::string out;
  if (is_open(kCallItem)) {
    call_.reset();
    out = item_event("response.function_call_arguments.done",
                     {{"name", item()["name"]}, {"arguments", item()["arguments"]}});
  } else {
    Json& part = item()["content"][0];
    Json done{{"content_index", 0}, {"text", part["text"]}};
    if (is_open(kMessageItem)) {
      if (logprobs_.is_array())
        for (Json& one : logprobs_) part["logprobs"].push_back(std::move(one));
      logprobs_ = Json();
      done["logprobs"] = part["logprobs"];
    }
    out = item_event(
        is_open(kMessageItem) ? "response.output_text.done" : "response.reasoning_text.done",
        std::move(done));
    out += item_event("response.content_part.done", {{"content_index", 0}, {"part", part}});
  }
  item()["status"] = status;
  open_.clear();
  return out + event("response.output_item.done",
                     {{"output_index", output_.size() - 1}, {"item", item()}});
}

std::string ResponseWriter::add_text(std::string_view type, const std::string& text) {
  const bool is_message = type == kMessageItem;
  const std::string_view part = is_message ? "output_text" : "reasoning_text";
  std::string out;
  if (!is_open(type)) {
    Json fields = Json::object();
    if (is_message)
      fields["role"] = "assistant";
    else
      fields["summary"] = Json::array();
    fields["content"] = Json::array();
    out = open(type, is_message ? "msg" : "rs", std::move(fields));
    item()["content"].push_back(text_part(part, ""));
    out += item_event("response.content_part.added",
                      {{"content_index", 0}, {"part", item()["content"][0]}});
  }
  Json& content = item()["content"][0];
  content["text"].get_ref<std::string&>() += text;
  Json delta{{"content_index", 0}, {"delta", text}};
  if (is_message) {
    delta["logprobs"] = logprobs_.is_array() ? logprobs_ : Json::array();
    for (const Json& one : delta["logprobs"]) content["logprobs"].push_back(one);
    logprobs_ = Json();
  }
  return out +
         item_event(is_message ? "response.output_text.delta" : "response.reasoning_text.delta",
                    std::move(delta));
}

std::string ResponseWriter::push(const ChatPieces& pieces, const Json& logprobs) {
  std::string out;
  if (logprobs.is_array())
    for (const Json& one : logprobs) logprobs_.push_back(one);
  if (!pieces.reasoning.empty()) out += add_text(kReasoningItem, pieces.reasoning);
  // They belong to the text of messages alone.
  if (pieces.content.empty() && (!pieces.reasoning.empty() || !pieces.calls.empty()))
    logprobs_ = Json();
  if (!pieces.content.empty()) out += add_text(kMessageItem, pieces.content);
  for (const CallPiece& call : pieces.calls) {
    if (call_ != call.index) {
      out += open(kCallItem, "fc",
                  {{"call_id", fmt::format("call_{}_0_{}", id_, call.index)},
                   {"name", call.name},
                   {"arguments", ""}});
      call_ = call.index;
    }
    if (call.arguments.empty()) continue;
    item()["arguments"].get_ref<std::string&>() += call.arguments;
    out += item_event("response.function_call_arguments.delta", {{"delta", call.arguments}});
  }
  return out;
}

std::string ResponseWriter::finish(bool is_cut, Json usage) {
  std::string out = close(is_cut ? "incomplete" : "completed");
  usage_ = std::move(usage);
  status_ = is_cut ? "incomplete" : "completed";
  if (is_cut) incomplete_ = {{"reason", "max_output_tokens"}};
  return out + state_event("response." + status_);
}

std::string ResponseWriter::fail(const ApiError& error) {
  std::string out = close("incomplete");
  status_ = "failed";
  error_ = {{"code", error.code.empty() ? "server_error" : error.code},
            {"message", error.message},
            {"type", error.type}};
  return out + state_event("response.failed");
}

}  // namespace bm::serve
