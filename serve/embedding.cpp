#include "serve/embedding.h"

#include <algorithm>
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

/// `norm`: see parse_native_embedding(). Source of the largest: llama.cpp, common_embd_normalize().
std::vector<float> normalized(std::span<const double> values, int32_t norm) {
  constexpr double kLargest = 32760;
  double sum = 0, largest = 0;
  for (const double v : values) {
    sum += norm == 2 ? v * v : std::pow(std::abs(v), norm);
    largest = std::max(largest, std::abs(v));
  }
  double scale = 1;
  if (norm == 0) scale = largest > 0 ? kLargest / largest : 0;
  if (norm > 0) scale = sum > 0 ? 1 / (norm == 2 ? std::sqrt(sum) : std::pow(sum, 1.0 / norm)) : 0;
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

ApiResult<std::vector<models::TokenPair>> Embedding::encode() const {
  std::vector<models::TokenPair> out;
  for (const std::vector<int32_t>& tokens : request_.token_lists) out.push_back({.tokens = tokens});
  const models::EmbeddingHead& head = model_.embedding_head();
  const std::optional<std::string> prompt = head.prompt_of(request_.prompt_name);
  if (!prompt)
    return tl::unexpected<ApiError>(ApiError{
        .message = head.prompt_names().empty() ? "this model has no prompts"
                                               : "this model's prompts are " + head.prompt_names(),
        .param = "prompt_name",
        .code = "invalid_value"});
  for (const std::string& text : request_.texts) {
    auto tokens = model_.tokenizer().encode(*prompt + text);
    if (!tokens) return tl::unexpected<ApiError>(api_error(tokens.error()));
    out.push_back({.tokens = std::move(*tokens)});
  }
  for (const models::TokenPair& text : out)
    if (auto error = outside_vocabulary(text.tokens, model_.tokenizer(), "input"))
      return tl::unexpected<ApiError>(std::move(*error));
  return out;
}

ApiResult<void> Embedding::pool(std::vector<models::TokenPair> lists,
                                const std::function<bool()>& is_wanted,
                                const std::function<ApiResult<void>(std::vector<double>)>& take) {
  for (size_t i = 0; i < lists.size(); ++i) {
    for (size_t k = inputs_.size(); k < std::min(lists.size(), i + kInFlight); ++k) {
      prompt_tokens_ += lists[k].tokens.size();
      Job job;
      job.prompt = std::move(lists[k].tokens);
      job.second = lists[k].second;
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
    auto made = model_.embedding_head().apply(input.values());
    if (!made) return tl::unexpected<ApiError>(api_error(made.error()));
    if (auto taken = take(std::move(*made)); !taken) return taken;
  }
  return {};
}

ApiResult<std::string> Embedding::wait(const std::function<bool()>& is_wanted) {
  if (model_.embedding_head().is_ranking())
    return tl::unexpected<ApiError>(
        ApiError{.message = "this model is a reranker: ask /v1/rerank", .param = "model"});
  auto lists = encode();
  if (!lists) return tl::unexpected<ApiError>(std::move(lists.error()));
  Json data = Json::array();
  const auto pooled = pool(std::move(*lists), is_wanted, [&](std::vector<double> made) {
    std::span<const double> all = made;
    if (request_.dimensions && *request_.dimensions > all.size())
      return ApiResult<void>(tl::unexpected<ApiError>(
          ApiError{.message = fmt::format("this model's embeddings have {} dimensions", all.size()),
                   .param = "dimensions",
                   .code = "invalid_value"}));
    if (request_.dimensions) all = all.first(*request_.dimensions);
    const std::vector<float> values = normalized(all, request_.norm);
    if (request_.is_native) {
      data.push_back({{"index", data.size()}, {"embedding", Json::array({values})}});
      return ApiResult<void>();
    }
    Json one{{"object", "embedding"}, {"index", data.size()}};
    if (request_.is_base64)
      one["embedding"] =
          base64({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    else
      one["embedding"] = values;
    data.push_back(std::move(one));
    return ApiResult<void>();
  });
  if (!pooled) return tl::unexpected<ApiError>(pooled.error());
  if (request_.is_native) return data.dump();
  const Json out{{"object", "list"},
                 {"data", std::move(data)},
                 {"model", model_.name()},
                 {"usage", {{"prompt_tokens", prompt_tokens_}, {"total_tokens", prompt_tokens_}}}};
  return out.dump();
}

namespace {

/// The two texts as the model's file wants them.
Result<models::TokenPair> encode_pair(const HostedModel& model, const std::string& query,
                                      const std::string& document) {
  const std::string& prompt = model.embedding_head().prompt();
  if (prompt.empty()) return model.tokenizer().encode_pair(query, document);
  // Control tokens are those of the prompt's own text.
  const size_t at_query = prompt.find("{query}"), at_document = prompt.find("{document}");
  models::EncodeOptions options;
  options.add_bos = options.add_eos = false;
  options.parse_special = true;
  if (at_query == prompt.npos || at_document == prompt.npos || at_document < at_query)
    return fail(Code::kUnsupported,
                "tokenizer.chat_template.rerank has no {{query}} with a {{document}} behind it");
  std::string text = prompt.substr(0, at_query);
  std::vector<models::TextRange> literal;
  const auto put = [&](const std::string& own) {
    literal.push_back({text.size(), text.size() + own.size()});
    text += own;
  };
  put(query);
  text += prompt.substr(at_query + 7, at_document - at_query - 7);
  put(document);
  text += prompt.substr(at_document + 10);
  options.literal = literal;
  return models::TokenPair{.tokens = BM_TRY(model.tokenizer().encode(text, options))};
}

}  // namespace

ApiResult<std::string> rerank(HostedModel& model, const RerankRequest& request,
                              const std::function<bool()>& is_wanted) {
  if (!model.embedding_head().is_ranking())
    return tl::unexpected<ApiError>(ApiError{
        .message = "this model is no reranker: its file has no pooling_type 4", .param = "model"});
  std::vector<models::TokenPair> lists;
  for (const std::string& document : request.documents) {
    auto tokens = encode_pair(model, request.query, document);
    if (!tokens) return tl::unexpected<ApiError>(api_error(tokens.error()));
    lists.push_back(std::move(*tokens));
  }
  Embedding pooling(model, {});
  std::vector<double> scores;
  const auto pooled = pooling.pool(std::move(lists), is_wanted, [&](std::vector<double> made) {
    scores.push_back(made[0]);
    return ApiResult<void>();
  });
  if (!pooled) return tl::unexpected<ApiError>(pooled.error());
  std::vector<size_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), request.top_n.value_or(UINT32_MAX)));
  Json results = Json::array();
  for (const size_t i : order) {
    Json one{{"index", i}, {request.is_tei ? "score" : "relevance_score", scores[i]}};
    if (request.has_documents && request.is_tei)
      one["text"] = request.documents[i];
    else if (request.has_documents)
      one["document"] = {{"text", request.documents[i]}};
    results.push_back(std::move(one));
  }
  if (request.is_tei) return results.dump(-1, ' ', false, Json::error_handler_t::replace);
  const size_t tokens = pooling.prompt_tokens();
  const Json out{{"model", model.name()},
                 {"object", "list"},
                 {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}},
                 {"results", std::move(results)}};
  return out.dump();
}

}  // namespace bm::serve
