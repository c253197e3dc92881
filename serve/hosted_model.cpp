#include "serve/hosted_model.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/device_list.h"
#include "serve/draft_model.h"

namespace bm::serve {
namespace {

std::vector<int32_t> end_tokens(const models::Tokenizer& tokenizer) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < tokenizer.size(); ++i)
    if (tokenizer.is_end_of_generation(static_cast<int32_t>(i)))
      out.push_back(static_cast<int32_t>(i));
  return out;
}

}  // namespace

HostedModel::HostedModel(HostedModelOptions options)
    : options_(std::move(options)),
      created_(std::time(nullptr)),
      metrics_(options_.metrics ? options_.metrics : std::make_shared<Metrics>()) {
  loader_ = std::thread([this] {
    Status status;
    // Settings belong to a thread, and this one opens the device.
    std::optional<ScopedSetting> threads;
    if (options_.engine.threads > 0)
      threads.emplace("BM_THREADS", std::to_string(options_.engine.threads));
    try {
      status = load();
    } catch (const std::exception&) {
      status = tl::unexpected<Error>(error_of_exception("loading a model"));
    }
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    loaded_.notify_all();
  });
}

HostedModel::~HostedModel() { loader_.join(); }

Status HostedModel::load() {
  auto opened = BM_TRY(models::GgufFile::open(options_.path));
  auto file = std::make_shared<const models::GgufFile>(std::move(opened));
  tokenizer_ = BM_TRY(models::Tokenizer::from_gguf(*file));
  sampler_defaults_ = models::sampler_defaults(*file);
  std::string text;
  if (!options_.chat_template.empty()) {
    std::ifstream in(options_.chat_template, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    if (!in) return fail(Code::kIo, "{}: cannot be read", options_.chat_template);
    text = std::move(out).str();
  } else if (const models::GgufValue* own = file->find("tokenizer.chat_template")) {
    text = std::string(own->text);
  }
  knows_developers_ = text.find("developer") != std::string::npos;
  const bool has_template =
      !options_.chat_template.empty() || file->find("tokenizer.chat_template");
  if (!has_template) {
    template_problem_ = "this model has no chat template; give one by --chat-template";
  } else if (auto parsed = models::ChatTemplate::parse(text)) {
    template_ = std::move(*parsed);
  } else if (!options_.chat_template.empty()) {
    return tl::unexpected<Error>(std::move(parsed.error()).within(options_.chat_template));
  } else {
    template_problem_ = "this model's chat template is not understood: " + parsed.error().message;
  }
  if (template_) facts_.chat_template = text;
  for (const models::GgufTensor& t : file->tensors()) {
    facts_.parameters += t.value_count;
    facts_.bytes += t.data.size();
  }
  if (const models::GgufValue* architecture = file->find("general.architecture")) {
    const auto number = [&](const char* key) {
      return file->get_u32(fmt::format("{}.{}", architecture->text, key), 0).value_or(0);
    };
    facts_.trained_context = number("context_length");
    facts_.width = number("embedding_length");
  }
  bool has_pooling = false;
  // Source of the numbers: llama.cpp, enum llama_pooling_type.
  if (const models::GgufValue* architecture = file->find("general.architecture")) {
    const models::GgufValue* type = file->find(std::string(architecture->text) + ".pooling_type");
    has_pooling = type != nullptr;
    if (type && type->bits == 1) pooling_ = Pooling::kMean;
    if (type && type->bits == 2) pooling_ = Pooling::kFirst;
  }
  format_ = detect_chat_format(text);
  const auto is_control = [&](const std::string& marker) {
    const std::optional<int32_t> id = tokenizer_->find(marker);
    return id && tokenizer_->is_special(*id);
  };
  has_control_calls_ = std::ranges::any_of(format_.markers(), is_control);
  has_control_reasoning_ = format_.calls == CallSyntax::kHarmony
                               ? has_control_calls_
                               : is_control(format_.think_open) || is_control(format_.think_close);
  LlamaEngineOptions engine_options = options_.engine;
  engine_options.path = options_.path;
  auto engine = BM_TRY(make_llama_engine(file, engine_options, tokenizer_->size()));
  if (!engine->writes_text() && !has_pooling) pooling_ = Pooling::kMean;
  // An encoder's first token stands for the text; what sees only what is before it has the last.
  embedding_head_ = BM_TRY(models::EmbeddingHead::from_gguf(*file));
  if (embedding_head_.is_ranking())
    pooling_ = engine->writes_text()          ? Pooling::kLast
               : embedding_head_.reads_mean() ? Pooling::kMean
                                              : Pooling::kFirst;
  context_ = engine->context();
  writes_text_ = engine->writes_text();
  std::shared_ptr<Drafter> drafter;
  if (options_.draft_tokens > 0 && engine->has_states())
    log("serve", LogLevel::kWarning,
        "{} is recurrent and decodes without guesses: a wrong one could not be taken back; leave "
        "--draft-tokens at 0",
        options_.path);
  const bool is_guessed_for = options_.draft_tokens > 0 && !engine->has_states();
  if (is_guessed_for && options_.draft_model.empty()) drafter = std::make_shared<LookupDrafter>();
  if (is_guessed_for && !options_.draft_model.empty())
    drafter = BM_TRY(make_draft_model({.path = options_.draft_model,
                                       .device = runtime::device_list(options_.engine.device)[0],
                                       .sequences = options_.engine.batch.sequences,
                                       .context = context_,
                                       .vocabulary = tokenizer_->size()}));
  // An encoder's tokens see the whole text: in pieces each would be a text of its own.
  const uint32_t piece = engine->writes_text() ? options_.engine.batch.piece : 0;
  scheduler_ =
      std::make_unique<Scheduler>(std::move(engine),
                                  Scheduler::Options{.queue_limit = options_.queue_limit,
                                                     .has_prefix_cache = options_.has_prefix_cache,
                                                     .end_tokens = end_tokens(*tokenizer_),
                                                     .draft_tokens = options_.draft_tokens,
                                                     .prompt_piece = piece,
                                                     .drafter = std::move(drafter),
                                                     .idle_unload = options_.idle_unload},
                                  metrics_.get());
  return {};
}

Status HostedModel::wait_loaded() {
  std::unique_lock lock(mutex_);
  loaded_.wait(lock, [&] { return status_.has_value(); });
  return *status_;
}

HostedModel::State HostedModel::state() const {
  const std::lock_guard lock(mutex_);
  if (!status_) return State::kLoading;
  if (!*status_) return State::kFailed;
  switch (scheduler_->health()) {
    case Health::kReady: return State::kReady;
    case Health::kDraining: return State::kDraining;
    case Health::kDeviceLost: return State::kDeviceLost;
    case Health::kDeviceGone: return State::kDeviceGone;
  }
  __builtin_unreachable();
}

std::string HostedModel::reason() const {
  switch (state()) {
    case State::kReady: return {};
    case State::kLoading: return options_.name + ": the model is being loaded";
    case State::kDraining: return options_.name + ": the server is about to stop";
    case State::kDeviceLost:
    case State::kDeviceGone:
      return options_.name + ": the device is lost: " + scheduler_->health_reason();
    case State::kFailed: {
      const std::lock_guard lock(mutex_);
      return options_.name + ": " + status_->error().message;
    }
  }
  __builtin_unreachable();
}

models::InfillVocabulary HostedModel::infill_vocabulary() const {
  const models::Tokenizer& text = *tokenizer_;
  return {.is_end = [&text](int32_t id) { return text.is_end_of_generation(id); },
          .piece = [&text](int32_t id) { return text.is_special(id) ? "" : text.piece(id); },
          .end = text.eot() >= 0 ? text.eot() : text.eos()};
}

std::shared_ptr<const models::GrammarVocabulary> HostedModel::vocabulary() {
  const std::lock_guard lock(vocabulary_mutex_);
  if (vocabulary_) return vocabulary_;
  std::vector<std::string> pieces(tokenizer_->size());
  std::vector<int32_t> ends;
  const std::vector<std::string> markers = format_.markers();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    std::string piece = tokenizer_->piece(id);
    if (tokenizer_->is_end_of_generation(id))
      ends.push_back(id);
    else if (!tokenizer_->is_special(id) || std::ranges::find(markers, piece) != markers.end())
      pieces[i] = std::move(piece);
  }
  vocabulary_ = std::make_shared<const models::GrammarVocabulary>(pieces, std::move(ends));
  return vocabulary_;
}

namespace {

/// OpenAI's clients send the arguments of calls as texts of JSON; templates are written for the
/// objects (Hugging Face's apply_chat_template), a few for the texts.
nlohmann::ordered_json with_call_objects(const nlohmann::ordered_json& messages) {
  nlohmann::ordered_json out = messages;
  for (auto& m : out) {
    const auto calls = m.find("tool_calls");
    if (calls == m.end() || !calls->is_array()) continue;
    for (auto& call : *calls) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
        continue;
      auto& function = call["function"];
      const auto text = function.find("arguments");
      if (text == function.end() || !text->is_string()) continue;
      auto value =
          nlohmann::ordered_json::parse(text->get_ref<const std::string&>(), nullptr, false);
      if (value.is_object()) *text = std::move(value);
    }
  }
  return out;
}

bool has_null_content(const nlohmann::ordered_json& messages) {
  return std::ranges::any_of(messages, [](const auto& m) { return m.at("content").is_null(); });
}

nlohmann::ordered_json with_empty_contents(nlohmann::ordered_json messages) {
  for (auto& m : messages)
    if (m["content"].is_null()) m["content"] = "";
  return messages;
}

/// OpenAI's name of who was `system`.
nlohmann::ordered_json with_system_role(nlohmann::ordered_json messages) {
  for (auto& m : messages)
    if (m["role"] == "developer") m["role"] = "system";
  return messages;
}

/// Whether the answer is the rest of the last message; see GenerationRequest::goes_on.
bool goes_on(const GenerationRequest& request, CallSyntax calls) {
  if (request.messages.empty()) return false;
  const nlohmann::ordered_json& last = request.messages.back();
  const auto content = last.find("content");
  const bool has_text = last["role"] == "assistant" && content != last.end() &&
                        content->is_string() && !content->get_ref<const std::string&>().empty() &&
                        !last.contains("tool_calls");
  // A message of channels begins with the name of one, which the client does not know.
  return request.goes_on.value_or(has_text && calls != CallSyntax::kHarmony);
}

size_t count(std::string_view text, std::string_view word) {
  size_t out = 0;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    ++out;
  return out;
}

}  // namespace

Result<models::ChatPrompt> HostedModel::render(models::ChatInput input,
                                               const nlohmann::ordered_json& messages) const {
  const nlohmann::ordered_json with_objects = with_call_objects(messages);
  input.messages = &with_objects;
  auto prompt = models::render_chat(*template_, input, *tokenizer_);
  if (prompt || with_objects == messages) return prompt;
  input.messages = &messages;
  auto with_texts = models::render_chat(*template_, input, *tokenizer_);
  return with_texts ? std::move(with_texts) : std::move(prompt);
}

ApiResult<models::ChatPrompt> HostedModel::render_chat(const GenerationRequest& request) const {
  const auto refuse = [](std::string message, const char* param) {
    return tl::unexpected<ApiError>(ApiError{.message = std::move(message), .param = param});
  };
  if (!template_) return refuse(template_problem_, "messages");
  const bool has_tools = !request.tools.is_null() && !request.tools.empty() &&
                         request.tool_choice != ToolChoice::kNone;
  if (has_tools && !template_->reads("tools"))
    return refuse("this model's chat template knows no tools", "tools");
  models::ChatInput input;
  // Templates that do not know developers would leave out what they say.
  nlohmann::ordered_json messages =
      knows_developers_ ? request.messages : with_system_role(request.messages);
  nlohmann::ordered_json begun;
  if (goes_on(request, format_.calls)) {
    begun = std::move(messages.back());
    messages.erase(messages.size() - 1);
    if (format_.calls == CallSyntax::kHarmony || begun.contains("tool_calls") ||
        !begun.value("content", nlohmann::ordered_json()).is_string())
      return refuse(
          format_.calls == CallSyntax::kHarmony
              ? "a message of this model, which writes in channels, cannot be gone on with"
              : "the last message has no text that could be gone on with",
          "continue_final_message");
  }
  input.add_generation_prompt = request.has_generation_prompt || !begun.is_null();
  if (has_tools) input.tools = &request.tools;
  if (!request.template_variables.is_null()) input.variables = &request.template_variables;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &input.now);
  auto prompt = render(input, messages);
  // Some templates ask whether a content is none (DeepSeek's), others write it whatever it is:
  // they fail, or write "None".
  if (has_null_content(messages)) {
    auto with_texts = render(input, with_empty_contents(messages));
    if (with_texts && (!prompt || count(prompt->text, "None") > count(with_texts->text, "None")))
      prompt = std::move(with_texts);
  }
  if (!prompt) return refuse("the chat template refuses: " + prompt.error().message, "messages");
  if (!begun.is_null()) go_on(begun, &*prompt);
  return std::move(*prompt);
}

/// Writes the beginning of the answer, as templates write what was thought and said.
void HostedModel::go_on(const nlohmann::ordered_json& begun, models::ChatPrompt* prompt) const {
  const auto put = [&](const std::string& own) {
    prompt->literal.push_back({prompt->text.size(), prompt->text.size() + own.size()});
    prompt->text += own;
  };
  const nlohmann::ordered_json thought = begun.value("reasoning_content", nlohmann::ordered_json());
  const bool is_open = has_opened_reasoning(prompt->text);
  const bool has_thought = thought.is_string() && !thought.get_ref<const std::string&>().empty();
  if (!format_.think_open.empty() && (is_open || has_thought)) {
    if (!is_open) prompt->text += format_.think_open + "\n";
    if (has_thought) {
      put(thought.get<std::string>());
      prompt->text += "\n";
    }
    prompt->text += format_.think_close + "\n\n";
  }
  put(begun["content"].get<std::string>());
}

bool HostedModel::has_opened_reasoning(std::string_view text) const {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return !format_.think_open.empty() && text.ends_with(format_.think_open);
}

ApiResult<HostedModel::EncodedChat> HostedModel::encode_chat(
    const GenerationRequest& request) const {
  const auto prompt = render_chat(request);
  if (!prompt) return tl::unexpected<ApiError>(prompt.error());
  auto tokens = models::encode_chat(*prompt, *tokenizer_);
  if (!tokens)
    return tl::unexpected<ApiError>(
        ApiError{.message = tokens.error().message, .param = "messages"});
  // What a message begins with may end in the same text without being reasoning.
  return EncodedChat{
      .tokens = std::move(*tokens),
      .is_reasoning = !goes_on(request, format_.calls) && has_opened_reasoning(prompt->text)};
}

void HostedModel::stop() {
  (void)wait_loaded();
  if (scheduler_) scheduler_->stop();
}

bool HostedModel::drain(Clock::time_point deadline) {
  // A model that still loads was asked nothing.
  if (state() == State::kLoading) return true;
  return !scheduler_ || scheduler_->drain(deadline);
}

}  // namespace bm::serve
