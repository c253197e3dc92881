#include "serve/embedding.h"

#include <bit>
#include <cmath>
#include <condition_variable>

#include "serve/completion.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kLookEvery{20};
/// Inputs of one request that the scheduler has at a time; others get their turn in between.
constexpr size_t kInFlight = 4;

static_assert(std::endian::native == std::endian::little, "base64 answers are little-endian");

std::vector<float> normalized(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  std::vector<float> out;
  out.reserve(values.size());
  for (const double v : values) out.push_back(static_cast<float>(v * scale));
  return out;
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kLetters[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

class Embedding::Input final : public Listener {
 public:
  uint64_t id = 0;
  bool on_token(const ChosenToken& /*token*/) override { return false; }
  void on_embedding(std::vector<double> values) override {
    const std::lock_guard lock(mutex_);
    values_ = std::move(values);
  }
  void on_finish(Finish finish, const Timings& /*timings*/, const Error* error) override {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    if (error) error_ = *error;
    news_.notify_one();
  }
  bool wait(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return news_.wait_until(lock, deadline, [&] { return finish_.has_value(); });
  }
  bool is_finished() {
    const std::lock_guard lock(mutex_);
    return finish_.has_value();
  }
  // Once it is finished.
  Finish finish() const { return *finish_; }
  const std::optional<Error>& error() const { return error_; }
  const std::vector<double>& values() const { return values_; }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<double> values_;
  std::optional<Finish> finish_;
  std::optional<Error> error_;
};

Embedding::Embedding(HostedModel& model, EmbeddingRequest request)
    : model_(model), request_(std::move(request)) {}

Embedding::~Embedding() {
  for (const auto& input : inputs_)
    if (!input->is_finished()) model_.scheduler().cancel(input->id);
}

ApiResult<std::vector<std::vector<int32_t>>> Embedding::encode() const {
  std::vector<std::vector<int32_t>> out = request_.token_lists;
  for (const std::string& text : request_.texts) {
    auto tokens = model_.tokenizer().encode(text);
    if (!tokens) return tl::unexpected<ApiError>(api_error(tokens.error()));
    out.push_back(std::move(*tokens));
  }
  for (const std::vector<int32_t>& tokens : out)
    if (auto error = outside_vocabulary(tokens, model_.tokenizer(), "input"))
      return tl::unexpected<ApiError>(std::move(*error));
  return out;
}

ApiResult<std::string> Embedding::wait(const std::function<bool()>& is_wanted) {
  auto lists = encode();
  if (!lists) return tl::unexpected<ApiError>(std::move(lists.error()));
  Json data = Json::array();
  for (size_t i = 0; i < lists->size(); ++i) {
    for (size_t k = inputs_.size(); k < std::min(lists->size(), i + kInFlight); ++k) {
      prompt_tokens_ += (*lists)[k].size();
      Job job;
      job.prompt = std::move((*lists)[k]);
      job.max_tokens = 1;
      job.pooling = model_.pooling();
      auto input = std::make_shared<Input>();
      job.listener = input;
      const auto submitted = model_.scheduler().submit(std::move(job));
      if (!submitted) return tl::unexpected<ApiError>(submit_error(submitted.error()));
      input->id = *submitted;
      inputs_.push_back(std::move(input));
    }
    Input& input = *inputs_[i];
    while (!input.wait(Clock::now() + kLookEvery))
      if (!is_wanted())
        return tl::unexpected<ApiError>(ApiError{.status = 499, .message = "the client is gone"});
    if (input.finish() != Finish::kStop)
      return tl::unexpected<ApiError>(
          input.error() ? api_error(*input.error())
                        : api_error(Error{Code::kCancelled, "the server has stopped"}));
    std::span<const double> all = input.values();
    if (request_.dimensions && *request_.dimensions > all.size())
      return tl::unexpected<ApiError>(
          ApiError{.message = fmt::format("this model's embeddings have {} dimensions", all.size()),
                   .param = "dimensions",
                   .code = "invalid_value"});
    if (request_.dimensions) all = all.first(*request_.dimensions);
    const std::vector<float> values = normalized(all);
    Json one{{"object", "embedding"}, {"index", i}};
    if (request_.is_base64)
      one["embedding"] =
          base64({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    else
      one["embedding"] = values;
    data.push_back(std::move(one));
  }
  const Json out{{"object", "list"},
                 {"data", std::move(data)},
                 {"model", model_.name()},
                 {"usage", {{"prompt_tokens", prompt_tokens_}, {"total_tokens", prompt_tokens_}}}};
  return out.dump();
}

}  // namespace bm::serve
