#include "serve/hosted_model.h"

#include <ctime>
#include <fstream>
#include <sstream>

#include "models/chat_prompt.h"
#include "runtime/base/out_of_memory.h"

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
    : options_(std::move(options)), created_(std::time(nullptr)) {
  loader_ = std::thread([this] {
    Status status;
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
  if (text.empty()) {
    template_problem_ = "this model has no chat template; give one by --chat-template";
  } else if (auto parsed = models::ChatTemplate::parse(text)) {
    template_ = std::move(*parsed);
  } else if (!options_.chat_template.empty()) {
    return tl::unexpected<Error>(std::move(parsed.error()).within(options_.chat_template));
  } else {
    template_problem_ = "this model's chat template is not understood: " + parsed.error().message;
  }
  auto engine = BM_TRY(make_llama_engine(file, options_.engine, tokenizer_->size()));
  context_ = engine->context();
  scheduler_ =
      std::make_unique<Scheduler>(std::move(engine),
                                  Scheduler::Options{.queue_limit = options_.queue_limit,
                                                     .has_prefix_cache = options_.has_prefix_cache,
                                                     .end_tokens = end_tokens(*tokenizer_)},
                                  &metrics_);
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
  }
  __builtin_unreachable();
}

std::string HostedModel::reason() const {
  switch (state()) {
    case State::kReady: return {};
    case State::kLoading: return options_.name + ": the model is being loaded";
    case State::kDraining: return options_.name + ": the server is about to stop";
    case State::kDeviceLost:
      return options_.name + ": the device is lost: " + scheduler_->health_reason();
    case State::kFailed: {
      const std::lock_guard lock(mutex_);
      return options_.name + ": " + status_->error().message;
    }
  }
  __builtin_unreachable();
}

ApiResult<std::vector<int32_t>> HostedModel::encode_chat(const GenerationRequest& request) const {
  const auto refuse = [](std::string message, const char* param) {
    return tl::unexpected<ApiError>(ApiError{.message = std::move(message), .param = param});
  };
  if (!template_) return refuse(template_problem_, "messages");
  if (!request.tools.is_null() && !request.tools.empty() && !template_->reads("tools"))
    return refuse("this model's chat template knows no tools", "tools");
  models::ChatInput input;
  input.messages = &request.messages;
  if (!request.tools.is_null() && !request.tools.empty()) input.tools = &request.tools;
  if (!request.template_variables.is_null()) input.variables = &request.template_variables;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &input.now);
  const auto prompt = models::render_chat(*template_, input, *tokenizer_);
  if (!prompt) return refuse("the chat template refuses: " + prompt.error().message, "messages");
  auto tokens = models::encode_chat(*prompt, *tokenizer_);
  if (!tokens) return refuse(tokens.error().message, "messages");
  return std::move(*tokens);
}

void HostedModel::stop() {
  (void)wait_loaded();
  if (scheduler_) scheduler_->stop();
}

bool HostedModel::drain(Clock::time_point deadline) {
  {
    std::unique_lock lock(mutex_);
    if (!loaded_.wait_until(lock, deadline, [&] { return status_.has_value(); })) return false;
  }
  return !scheduler_ || scheduler_->drain(deadline);
}

}  // namespace bm::serve
