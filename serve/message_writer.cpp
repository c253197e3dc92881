#include "serve/message_writer.h"

#include <fmt/format.h>

namespace bm::serve {
namespace {

constexpr std::string_view kThinkingBlock = "thinking", kTextBlock = "text",
                           kToolBlock = "tool_use";

std::string message_event(std::string_view type, nlohmann::ordered_json fields) {
  nlohmann::ordered_json out{{"type", type}};
  out.update(fields);
  // Pieces of characters are no UTF-8.
  return fmt::format("event: {}\ndata: {}\n\n", type,
                     out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

MessageWriter::MessageWriter(std::string id, std::string model)
    : id_(std::move(id)), model_(std::move(model)) {}

MessageWriter::Json MessageWriter::message() const {
  return {{"id", "msg_" + id_},
          {"type", "message"},
          {"role", "assistant"},
          {"content", blocks_},
          {"model", model_},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", usage_}};
}

std::string MessageWriter::begin(size_t input_tokens) {
  usage_ = {{"cache_read_input_tokens", 0}, {"input_tokens", input_tokens}, {"output_tokens", 0}};
  return message_event("message_start", {{"message", message()}});
}

std::string MessageWriter::open(std::string_view type, Json block) {
  std::string out = close();
  Json whole{{"type", type}};
  whole.update(block);
  blocks_.push_back(std::move(whole));
  open_ = type;
  return out + message_event("content_block_start",
                             {{"index", blocks_.size() - 1}, {"content_block", blocks_.back()}});
}

std::string MessageWriter::close() {
  if (open_.empty()) return {};
  if (open_ == kToolBlock) {
    Json input = Json::parse(arguments_, nullptr, false);
    // What the model wrote is no object: the client sees it as it is.
    blocks_.back()["input"] = input.is_object() ? std::move(input) : Json(arguments_);
    arguments_.clear();
  }
  open_.clear();
  return message_event("content_block_stop", {{"index", blocks_.size() - 1}});
}

std::string MessageWriter::delta(std::string_view type, std::string_view name,
                                 const std::string& text) {
  return message_event("content_block_delta",
                       {{"index", blocks_.size() - 1}, {"delta", {{"type", type}, {name, text}}}});
}

std::string MessageWriter::push(const ChatPieces& pieces) {
  std::string out;
  const auto add = [&](std::string_view block, std::string_view name, const std::string& text) {
    if (text.empty()) return;
    if (open_ != block) {
      Json fields{{name, ""}};
      if (block == kThinkingBlock) fields["signature"] = "";  // nothing is signed
      out += open(block, std::move(fields));
    }
    blocks_.back()[std::string(name)].get_ref<std::string&>() += text;
    out += delta(fmt::format("{}_delta", name), name, text);
  };
  add(kThinkingBlock, "thinking", pieces.reasoning);
  add(kTextBlock, "text", pieces.content);
  for (const CallPiece& call : pieces.calls) {
    if (call_ != call.index) {
      out += open(kToolBlock, {{"id", fmt::format("toolu_{}_{}", id_, call.index)},
                               {"name", call.name},
                               {"input", Json::object()}});
      call_ = call.index;
    }
    if (call.arguments.empty()) continue;
    arguments_ += call.arguments;
    out += delta("input_json_delta", "partial_json", call.arguments);
  }
  return out;
}

std::string MessageWriter::finish(std::string_view stop_reason, const std::string& stopped_by,
                                  Json usage) {
  std::string out = close();
  usage_ = std::move(usage);
  stop_reason_ = stop_reason;
  if (!stopped_by.empty()) stop_sequence_ = stopped_by;
  return out +
         message_event(
             "message_delta",
             {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
              {"usage", usage_}}) +
         message_event("message_stop", Json::object());
}

std::string MessageWriter::fail(const ApiError& error) const {
  return message_event("error", {{"error", {{"type", error.type}, {"message", error.message}}}});
}

}  // namespace bm::serve
