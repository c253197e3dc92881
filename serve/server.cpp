#include "serve/server.h"

#include <netinet/in.h>
#include <poll.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>

#include "models/unicode.h"
#include "serve/completion.h"
#include "serve/embedding.h"
#include "serve/microhttpd.h"
#include "serve/page.h"
#include "serve/service.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJson = "application/json";
constexpr const char* kEvents = "text/event-stream";
constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kText = "text/plain; charset=utf-8";
/// Source: Prometheus, "Exposition formats".
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";
constexpr unsigned kRetryAfterSeconds = 1;
constexpr size_t kEventBlock = 16 << 10;
constexpr size_t kThreadStack = 8 << 20;  // as main() has: templates recurse
constexpr std::chrono::seconds kLastAnswers{1};

ApiError server_error(int status, std::string message, std::string code) {
  return {.status = status,
          .message = std::move(message),
          .type = "server_error",
          .param = "",
          .code = std::move(code)};
}

std::string random_id() {
  static std::atomic<uint64_t> count{0};
  static const uint64_t base = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return fmt::format("{:016x}{:08x}", base, ++count);
}

}  // namespace

void log_line(Json fields) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  Json line{{"time", fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                                 utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                                 now.tv_nsec / 1'000'000)}};
  line.update(fields);
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

struct Server::Impl {
  ServerOptions options;
  std::mutex mutex;
  Models hosted;  ///< guarded by `mutex`
  std::atomic<bool> is_draining{false};
  std::atomic<uint64_t> open_connections{0}, exchanges{0};
  std::array<std::atomic<uint64_t>, 6> answers{};  ///< by hundreds of the status
  MHD_Daemon* daemon = nullptr;

  ~Impl() {
    if (!daemon) return;
    // Those whom the models have just refused are being answered: a stop would cut them off.
    const Clock::time_point end = Clock::now() + kLastAnswers;
    while (exchanges != 0 && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    mhd().stop_daemon(daemon);
  }

  Models models() {
    const std::lock_guard lock(mutex);
    return hosted;
  }
  std::shared_ptr<HostedModel> find(const std::string& name) {
    const std::lock_guard lock(mutex);
    if (name.empty()) return hosted.front();
    const auto at = std::ranges::find(hosted, name, [](const auto& m) { return m->name(); });
    return at == hosted.end() ? nullptr : *at;
  }
};

namespace {

using Impl = Server::Impl;

/// A request of HTTP from its first header to its last byte.
struct Exchange {
  Impl& server;
  MHD_Connection* connection;
  std::string method, path, id = random_id(), body;
  Clock::time_point arrived = Clock::now();
  bool is_too_large = false, has_answer = false;
  bool has_nul = false;  ///< the target of the request, as "%00"
  int status = 0;
  std::shared_ptr<HostedModel> host;  ///< outlives what it computes
  std::unique_ptr<Completion> completion;
  std::string pending;  ///< events not sent yet
  std::string model;
  std::string allowed;  ///< methods of a path that is asked with another

  Exchange(Impl& s, MHD_Connection* c) : server(s), connection(c) { ++server.exchanges; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() { --server.exchanges; }

  /// What the answer allows pages to read it with; empty: nothing.
  std::string allowed_origin() const {
    const std::vector<std::string>& origins = server.options.cors_origins;
    const std::string_view origin = header(MHD_HTTP_HEADER_ORIGIN);
    if (origin.empty() || origins.empty()) return {};
    if (origins.front() == "*") return "*";
    return std::ranges::find(origins, origin) == origins.end() ? std::string()
                                                               : std::string(origin);
  }

  /// Of the query behind the path; empty: it is not there.
  std::string_view argument(const char* name) const {
    const char* value = mhd().lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name);
    return value ? value : std::string_view();
  }

  std::string_view header(const char* name) const {
    const char* value = mhd().lookup_connection_value(connection, MHD_HEADER_KIND, name);
    return value ? value : std::string_view();
  }

  /// Whether the client still listens. One that has shut down its sending side counts as gone.
  bool is_wanted() const {
    const MHD_ConnectionInfo* info =
        mhd().get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return false;
    pollfd p{.fd = info->connect_fd, .events = POLLRDHUP, .revents = 0};
    return ::poll(&p, 1, 0) == 0 || (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
  }

  MHD_Result send(int code, MHD_Response* response, const char* type) {
    if (!response) return MHD_NO;
    status = code;
    has_answer = true;
    if (type) mhd().add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    mhd().add_response_header(response, "X-Request-Id", id.c_str());
    mhd().add_response_header(response, "Cache-Control", "no-store");
    if (!server.options.cors_origins.empty()) {
      mhd().add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ORIGIN);
      if (const std::string origin = allowed_origin(); !origin.empty()) {
        mhd().add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN,
                                  origin.c_str());
        mhd().add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_EXPOSE_HEADERS,
                                  "X-Request-Id, X-Prefix-Hash, Retry-After");
      }
    }
    if (completion && !completion->prefix_hash().empty())
      mhd().add_response_header(response, "X-Prefix-Hash", completion->prefix_hash().c_str());
    if (code == 429 || code == 503)
      mhd().add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER,
                                std::to_string(kRetryAfterSeconds).c_str());
    if (code == 405) mhd().add_response_header(response, MHD_HTTP_HEADER_ALLOW, allowed.c_str());
    if (code == 401)
      mhd().add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    const MHD_Result done = mhd().queue_response(connection, static_cast<unsigned>(code), response);
    mhd().destroy_response(response);
    return done;
  }

  MHD_Result send(int code, std::string_view text, const char* type) {
    return send(code,
                mhd().create_response_from_buffer(text.size(), const_cast<char*>(text.data()),
                                                  MHD_RESPMEM_MUST_COPY),
                type);
  }

  MHD_Result refuse(const ApiError& error) { return send(error.status, error_body(error), kJson); }

  /// Past the library, which closes the connection afterwards.
  void answer_and_close(const ApiError& error) {
    const MHD_ConnectionInfo* info =
        mhd().get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info || std::exchange(has_answer, true)) return;
    status = error.status;
    const std::string text = error_body(error);
    const std::string answer = fmt::format(
        "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: {}\r\nX-Request-Id: {}\r\n"
        "Content-Length: {}\r\n\r\n{}",
        status, status == 413 ? "Content Too Large" : "Bad Request", kJson, id, text.size(), text);
    // Nothing has been sent of this answer, so a buffer that is full is of a client that reads
    // nothing.
    (void)!::send(info->connect_fd, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
};

/// ASCII alone, as HTTP's names of schemes and types are compared (RFC 9110, 5.6.2).
bool is_same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

/// The path of a request target, which may be a whole URL (RFC 9112, 3.2.2).
std::string_view path_of(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (!is_same_name(target.substr(0, kScheme.size()), kScheme)) return target;
  const size_t slash = target.find('/', kScheme.size());
  return slash == std::string_view::npos ? "/" : target.substr(slash);
}

/// What HTTP forbids in a head, and libmicrohttpd lets through. Without an unambiguous length what
/// comes behind the body would be another request to one reader than to the next.
/// Source: RFC 9112, 3.2 (Host), 6.1 (Transfer-Encoding), 6.3 (lengths).
std::optional<ApiError> check_framing(const Exchange& x, std::string_view version) {
  struct Seen {
    const char* length = nullptr;
    std::string_view encoding;
    uint32_t hosts = 0;
    bool is_ambiguous = false;
  } seen;
  const auto look = [](void* cls, MHD_ValueKind, const char* name, const char* value) {
    Seen& s = *static_cast<Seen*>(cls);
    if (!value) return MHD_YES;
    if (is_same_name(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
      if (s.length && std::string_view(s.length) != value) s.is_ambiguous = true;
      s.length = value;
    }
    if (is_same_name(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
      if (!s.encoding.empty()) s.is_ambiguous = true;
      s.encoding = value;
    }
    if (is_same_name(name, MHD_HTTP_HEADER_HOST)) ++s.hosts;
    return MHD_YES;
  };
  mhd().get_connection_values(x.connection, MHD_HEADER_KIND, look, &seen);
  if (x.has_nul) return ApiError{.message = "the target of the request holds a NUL (%00)"};
  if (seen.hosts > 1 || (seen.hosts == 0 && version != MHD_HTTP_VERSION_1_0))
    return ApiError{.message = "HTTP/1.1 wants one header Host"};
  if (seen.is_ambiguous)
    return ApiError{.message = "two headers Content-Length or Transfer-Encoding disagree"};
  if (seen.encoding.empty()) return std::nullopt;
  if (seen.length)
    return ApiError{.message = "Content-Length and Transfer-Encoding exclude each other"};
  if (!is_same_name(seen.encoding, "chunked"))
    return ApiError{.status = 501, .message = "the only Transfer-Encoding is chunked"};
  return std::nullopt;
}

/// Whether a Content-Type is JSON, whatever its parameters.
bool is_json(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return is_same_name(type, kJson);
}

/// What a client may have wrong before its body is looked at.
std::optional<ApiError> check_head(const Exchange& x, bool is_open, bool is_post) {
  const std::string& key = x.server.options.api_key;
  if (!is_open && !key.empty()) {
    std::string_view given = x.header(MHD_HTTP_HEADER_AUTHORIZATION);
    constexpr std::string_view kBearer = "Bearer ";
    bool is_bearer = is_same_name(given.substr(0, kBearer.size()), kBearer);
    if (is_bearer) given.remove_prefix(kBearer.size());
    // What Anthropic's clients send.
    if (given.empty() && !(given = x.header("X-Api-Key")).empty()) is_bearer = true;
    if (!equals_secret(given, key) || !is_bearer)
      return ApiError{.status = 401,
                      .message = "this server wants its API key: Authorization: Bearer",
                      .type = "authentication_error",
                      .param = "",
                      .code = "invalid_api_key"};
  }
  if (!is_post) return std::nullopt;
  // A page in a browser can send other types to this machine without asking.
  if (!is_json(x.header(MHD_HTTP_HEADER_CONTENT_TYPE)))
    return ApiError{.status = 415, .message = "the Content-Type must be application/json"};
  if (const std::string_view coding = x.header(MHD_HTTP_HEADER_CONTENT_ENCODING);
      !coding.empty() && !is_same_name(coding, "identity"))
    return ApiError{.status = 415,
                    .message = fmt::format("bodies must come as they are, without the "
                                           "Content-Encoding \"{}\"",
                                           coding)};
  const std::string_view length = x.header(MHD_HTTP_HEADER_CONTENT_LENGTH);
  if (!length.empty() &&
      (length.size() > 15 || std::stoull(std::string(length)) > x.server.options.body_bytes))
    return ApiError{
        .status = 413,
        .message = fmt::format("the body is larger than {} bytes", x.server.options.body_bytes)};
  return std::nullopt;
}

ApiError unknown_model(std::string_view name) {
  return {.status = 404,
          .message = fmt::format("there is no model \"{}\"", name),
          .param = "model",
          .code = "model_not_found"};
}

ApiResult<HostedModel*> ready_model(Exchange& x, const std::string& name) {
  x.host = x.server.find(name);
  HostedModel* const model = x.host.get();
  if (!model) return tl::unexpected<ApiError>(unknown_model(name));
  x.model = model->name();
  using enum HostedModel::State;
  const HostedModel::State state = model->state();
  if (state == kReady || state == kDraining) return model;
  return tl::unexpected<ApiError>(server_error(
      503, model->reason(), state == kLoading ? "model_loading" : "model_unavailable"));
}

// --- answers -------------------------------------------------------------------------------------

/// Why not all is ready; empty when it is.
std::string reasons_of(Exchange& x) {
  std::string reasons;
  if (x.server.is_draining) reasons = "the server is about to stop";
  for (const auto& m : x.server.models())
    if (const std::string reason = m->reason(); !reason.empty() && !x.server.is_draining)
      reasons += (reasons.empty() ? "" : "; ") + reason;
  return reasons;
}

MHD_Result answer_health(Exchange& x) {
  const std::string reasons = reasons_of(x);
  if (reasons.empty()) return x.send(200, R"({"status":"ok"})", kJson);
  return x.refuse(server_error(503, reasons, "unavailable"));
}

MHD_Result answer_ready(Exchange& x) {
  const std::string reasons = reasons_of(x);
  return reasons.empty() ? x.send(200, "ready\n", kText) : x.send(503, reasons + "\n", kText);
}

MHD_Result answer_live(Exchange& x) { return x.send(200, "alive\n", kText); }

MHD_Result answer_page(Exchange& x) {
  MHD_Response* const response = mhd().create_response_from_buffer(
      page().size(), const_cast<char*>(page().data()), MHD_RESPMEM_PERSISTENT);
  if (!response) return MHD_NO;
  mhd().add_response_header(response, "Content-Security-Policy", kPagePolicy);
  mhd().add_response_header(response, "X-Content-Type-Options", "nosniff");
  mhd().add_response_header(response, "Referrer-Policy", "no-referrer");
  return x.send(200, response, kHtml);
}

/// Under llama-server's names, of all models together.
std::string llama_metrics(Exchange& x) {
  uint64_t prompt = 0, cached = 0, predicted = 0, steps = 0, running = 0, waiting = 0;
  for (const auto& m : x.server.models()) {
    const Metrics& of = *m->metrics();
    prompt += of.prompt_tokens;
    cached += of.prefix_hits;
    predicted += of.generation_tokens;
    steps += of.steps;
    running += of.running;
    waiting += of.waiting;
  }
  std::string out;
  const auto add = [&](std::string_view name, std::string_view kind, std::string_view help,
                       uint64_t value) {
    out += fmt::format("# HELP llamacpp:{0} {1}\n# TYPE llamacpp:{0} {2}\nllamacpp:{0} {3}\n", name,
                       help, kind, value);
  };
  add("prompt_tokens_total", "counter", "Tokens of prompts that were computed.",
      prompt - std::min(prompt, cached));
  add("prompt_tokens_cached_total", "counter", "Tokens of prompts from the prefix cache.", cached);
  add("tokens_predicted_total", "counter", "Tokens generated.", predicted);
  add("n_decode_total", "counter", "Steps.", steps);
  add("requests_processing", "gauge", "Requests that run.", running);
  add("requests_deferred", "gauge", "Requests that wait.", waiting);
  return out;
}

MHD_Result answer_metrics(Exchange& x) {
  // Each family once, with the samples of all models below it.
  std::vector<std::pair<std::string, std::string>> families;
  const auto add = [&](std::string_view text) {
    std::string head;
    size_t family = 0;
    while (!text.empty()) {
      const size_t end = text.find('\n') + 1;
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end);
      if (line.starts_with("# HELP")) {
        head = line;
      } else if (line.starts_with("# TYPE")) {
        head += line;
        const auto at =
            std::ranges::find(families, head, &std::pair<std::string, std::string>::first);
        family = static_cast<size_t>(at - families.begin());
        if (at == families.end()) families.emplace_back(head, "");
      } else {
        families[family].second += line;
      }
    }
  };
  for (const auto& m : x.server.models()) add(m->metrics()->print(m->name()));
  std::string out;
  for (const auto& [head, samples] : families) out += head + samples;
  out +=
      "# HELP bellmetal:http_responses_total Answers, by class of status.\n"
      "# TYPE bellmetal:http_responses_total counter\n";
  for (size_t i = 1; i < x.server.answers.size(); ++i)
    out += fmt::format("bellmetal:http_responses_total{{class=\"{}xx\"}} {}\n", i,
                       x.server.answers[i].load());
  out += llama_metrics(x);
  out += fmt::format(
      "# HELP bellmetal:http_connections Open connections.\n"
      "# TYPE bellmetal:http_connections gauge\nbellmetal:http_connections {}\n",
      x.server.open_connections.load());
  return x.send(200, out, kPrometheus);
}

/// Source of the numbers: llama.cpp, enum llama_vocab_type; of a tokenizer.json: BPE.
int vocabulary_type(std::string_view model) {
  constexpr std::string_view kTypes[] = {"none", "llama", "gpt2", "bert", "t5", "rwkv"};
  const auto* at = std::ranges::find(kTypes, model);
  return at == std::end(kTypes) ? 2 : static_cast<int>(at - kTypes);
}

Json model_json(const HostedModel& m) {
  Json out{{"id", m.name()},         {"aliases", Json::array({m.name()})},
           {"tags", Json::array()},  {"object", "model"},
           {"created", m.created()}, {"owned_by", "bellmetal"}};
  if (m.state() == HostedModel::State::kLoading || m.context() == 0) return out;
  out["max_model_len"] = m.context();
  out["architecture"] = {{"input_modalities", {"text"}}, {"output_modalities", {"text"}}};
  const HostedModel::Facts& facts = m.facts();
  out["meta"] = {{"vocab_type", vocabulary_type(m.tokenizer().model())},
                 {"n_vocab", m.tokenizer().size()},
                 {"n_ctx", m.context()},
                 {"n_ctx_train", facts.trained_context},
                 {"n_embd", facts.width},
                 {"n_params", facts.parameters},
                 {"size", facts.bytes}};
  return out;
}

/// As Ollama lists a model; llama-server has it beside OpenAI's list.
Json listed_model(const HostedModel& m) {
  const bool is_loaded = m.state() != HostedModel::State::kLoading && m.context() != 0;
  return {{"name", m.name()},
          {"model", m.name()},
          {"modified_at", ""},
          {"size", ""},
          {"digest", ""},
          {"type", "model"},
          {"description", ""},
          {"tags", {""}},
          {"capabilities", {is_loaded && !m.writes_text() ? "embedding" : "completion"}},
          {"parameters", ""},
          {"details",
           {{"parent_model", ""},
            {"format", "gguf"},
            {"family", ""},
            {"families", {""}},
            {"parameter_size", ""},
            {"quantization_level", ""}}}};
}

MHD_Result answer_models(Exchange& x) {
  Json list = Json::array(), listed = Json::array();
  for (const auto& m : x.server.models()) {
    list.push_back(model_json(*m));
    listed.push_back(listed_model(*m));
  }
  const Json out{{"models", std::move(listed)}, {"object", "list"}, {"data", std::move(list)}};
  return x.send(200, out.dump(), kJson);
}

/// ?model=NAME says which; the first without.
MHD_Result answer_props(Exchange& x) {
  const auto found = ready_model(x, std::string(x.argument("model")));
  if (!found) return x.refuse(found.error());
  HostedModel& m = **found;
  const models::Tokenizer& text = m.tokenizer();
  const auto piece = [&](int32_t id) { return id >= 0 ? text.piece(id) : ""; };
  Json out{{"default_generation_settings",
            {{"params", Completion::default_settings(m)}, {"n_ctx", m.context()}}},
           {"total_slots", m.options().engine.batch.sequences},
           {"model_alias", m.name()},
           {"model_path", m.path()},
           {"modalities", {{"vision", false}, {"video", false}, {"audio", false}}},
           {"endpoint_slots", true},
           {"endpoint_props", false},
           {"endpoint_metrics", true},
           {"chat_template", m.facts().chat_template},
           {"bos_token", piece(text.bos())},
           {"eos_token", piece(text.eos())},
           {"build_info", "bellmetal-" BM_VERSION},
           {"is_sleeping", m.metrics()->unloaded != 0}};
  return x.send(200, out.dump(-1, ' ', false, Json::error_handler_t::replace), kJson);
}

/// Places that run: which of them a request has is nobody's business, how many are busy is.
MHD_Result answer_slots(Exchange& x) {
  const auto found = ready_model(x, std::string(x.argument("model")));
  if (!found) return x.refuse(found.error());
  HostedModel& m = **found;
  const uint64_t places = m.options().engine.batch.sequences, busy = m.metrics()->running;
  const std::string_view wants_one = x.argument("fail_on_no_slot");
  if (!wants_one.empty() && wants_one != "0" && busy >= places)
    return x.refuse(server_error(503, "no slot is free", "unavailable"));
  Json out = Json::array();
  for (uint64_t i = 0; i < places; ++i)
    out.push_back({{"id", i},
                   {"n_ctx", m.context()},
                   {"speculative", m.options().draft_tokens > 0},
                   {"is_processing", i < busy}});
  return x.send(200, out.dump(), kJson);
}

MHD_Result answer_adapters(Exchange& x) { return x.send(200, "[]", kJson); }

constexpr std::string_view kModelPath = "/v1/models/";

MHD_Result answer_model(Exchange& x) {
  const std::string name = x.path.substr(kModelPath.size());
  const auto model = name.empty() ? nullptr : x.server.find(name);
  if (!model) return x.refuse(unknown_model(name));
  return x.send(200, model_json(*model).dump(), kJson);
}

ssize_t read_events(void* cls, uint64_t /*position*/, char* buffer, size_t size) {
  Exchange& x = *static_cast<Exchange*>(cls);
  try {
    if (x.pending.empty()) {
      auto events = x.completion->next_events([&] { return x.is_wanted(); });
      if (!events) return MHD_CONTENT_READER_END_WITH_ERROR;
      if (events->empty()) return MHD_CONTENT_READER_END_OF_STREAM;
      x.pending = std::move(*events);
    }
    const size_t n = std::min(size, x.pending.size());
    std::copy_n(x.pending.data(), n, buffer);
    x.pending.erase(0, n);
    return static_cast<ssize_t>(n);
  } catch (const std::exception&) {
    return MHD_CONTENT_READER_END_WITH_ERROR;
  }
}

MHD_Result answer_generation(Exchange& x, ApiResult<GenerationRequest> request) {
  x.body = {};
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  const bool is_stream = request->is_stream;
  auto completion = Completion::start(**model, std::move(*request), x.id);
  if (!completion) return x.refuse(completion.error());
  x.completion = std::move(*completion);
  if (is_stream)
    return x.send(200,
                  mhd().create_response_from_callback(MHD_SIZE_UNKNOWN, kEventBlock, read_events,
                                                      &x, nullptr),
                  kEvents);
  const auto text = x.completion->wait([&] { return x.is_wanted(); });
  if (text) return x.send(200, *text, kJson);
  if (text.error().status != 499) return x.refuse(text.error());
  x.status = 499;
  return MHD_NO;  // nobody is there
}

MHD_Result answer_chat(Exchange& x) { return answer_generation(x, parse_chat(x.body)); }
MHD_Result answer_completion(Exchange& x) { return answer_generation(x, parse_completion(x.body)); }
MHD_Result answer_native_completion(Exchange& x) {
  return answer_generation(x, parse_native_completion(x.body));
}
MHD_Result answer_infill(Exchange& x) { return answer_generation(x, parse_infill(x.body)); }
MHD_Result answer_response(Exchange& x) { return answer_generation(x, parse_response(x.body)); }

MHD_Result answer_template(Exchange& x) {
  const auto request = parse_apply_template(x.body);
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  const auto prompt = (*model)->render_chat(*request);
  if (!prompt) return x.refuse(prompt.error());
  const Json out{{"prompt", prompt->text}};
  return x.send(200, out.dump(-1, ' ', false, Json::error_handler_t::replace), kJson);
}

MHD_Result answer_message(Exchange& x) { return answer_generation(x, parse_message(x.body)); }

MHD_Result answer_count(Exchange& x) {
  const auto request = parse_message(x.body);
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  const auto chat = (*model)->encode_chat(*request);
  if (!chat) return x.refuse(chat.error());
  return x.send(200, Json{{"input_tokens", chat->tokens.size()}}.dump(), kJson);
}

MHD_Result answer_embedding(Exchange& x, ApiResult<EmbeddingRequest> request) {
  x.body = {};
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  Embedding embedding(**model, std::move(*request));
  const auto text = embedding.wait([&] { return x.is_wanted(); });
  if (text) return x.send(200, *text, kJson);
  if (text.error().status != 499) return x.refuse(text.error());
  x.status = 499;
  return MHD_NO;  // nobody is there
}

MHD_Result answer_embedding(Exchange& x) { return answer_embedding(x, parse_embedding(x.body)); }
MHD_Result answer_native_embedding(Exchange& x) {
  return answer_embedding(x, parse_native_embedding(x.body));
}

MHD_Result answer_rerank(Exchange& x) {
  auto request = parse_rerank(x.body);
  x.body = {};
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  const auto text = rerank(**model, *request, [&] { return x.is_wanted(); });
  if (text) return x.send(200, *text, kJson);
  if (text.error().status != 499) return x.refuse(text.error());
  x.status = 499;
  return MHD_NO;
}

MHD_Result answer_tokenize(Exchange& x) {
  const auto request = parse_tokenize(x.body);
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  models::EncodeOptions options{.parse_special = request->parses_special};
  if (!request->add_special) options.add_bos = options.add_eos = false;
  const auto tokens = (*model)->tokenizer().encode(request->text, options);
  if (!tokens) return x.refuse(api_error(tokens.error()));
  Json out{{"count", tokens->size()}, {"max_model_len", (*model)->context()}, {"tokens", *tokens}};
  if (request->has_pieces) {
    Json& list = out["tokens"] = Json::array();
    for (const int32_t id : *tokens) {
      const std::string piece = (*model)->tokenizer().piece(id);
      list.push_back({{"id", id},
                      {"piece", models::is_valid_utf8(piece)
                                    ? Json(piece)
                                    : Json(std::vector<uint8_t>(piece.begin(), piece.end()))}});
    }
  }
  return x.send(200, out.dump(), kJson);
}

MHD_Result answer_detokenize(Exchange& x) {
  const auto request = parse_detokenize(x.body);
  if (!request) return x.refuse(request.error());
  const auto model = ready_model(x, request->model);
  if (!model) return x.refuse(model.error());
  if (const auto error = outside_vocabulary(request->tokens, (*model)->tokenizer(), "tokens"))
    return x.refuse(*error);
  const std::string text = (*model)->tokenizer().decode(
      request->tokens, {.render_special = true, .strip_space_prefix = true});
  // vLLM's name, and llama-server's.
  return x.send(200, Json{{"prompt", text}, {"content", text}}.dump(), kJson);
}

struct Route {
  std::string_view method, path;
  MHD_Result (*answer)(Exchange&);
  bool is_open = false;  ///< without a key
};
constexpr Route kRoutes[] = {
    {"GET", "/", answer_page, true},
    {"GET", "/livez", answer_live, true},
    {"GET", "/readyz", answer_ready, true},
    {"GET", "/health", answer_health, true},
    {"GET", "/v1/health", answer_health, true},
    {"GET", "/metrics", answer_metrics, true},
    {"GET", "/v1/models", answer_models},
    {"GET", "/models", answer_models},
    {"GET", kModelPath, answer_model},
    {"GET", "/props", answer_props},
    {"GET", "/slots", answer_slots},
    {"GET", "/lora-adapters", answer_adapters},
    {"POST", "/v1/chat/completions", answer_chat},
    {"POST", "/chat/completions", answer_chat},
    {"POST", "/v1/completions", answer_completion},
    {"POST", "/completion", answer_native_completion},
    {"POST", "/completions", answer_native_completion},
    {"POST", "/infill", answer_infill},
    {"POST", "/v1/responses", answer_response},
    {"POST", "/responses", answer_response},
    {"POST", "/v1/messages", answer_message},
    {"POST", "/v1/messages/count_tokens", answer_count},
    {"POST", "/apply-template", answer_template},
    {"POST", "/v1/embeddings", answer_embedding},
    {"POST", "/embedding", answer_native_embedding},
    {"POST", "/embeddings", answer_native_embedding},
    {"POST", "/v1/rerank", answer_rerank},
    {"POST", "/rerank", answer_rerank},
    {"POST", "/v1/reranking", answer_rerank},
    {"POST", "/reranking", answer_rerank},
    {"POST", "/tokenize", answer_tokenize},
    {"POST", "/detokenize", answer_detokenize},
};

bool is_at(const Route& route, std::string_view path) {
  return route.path == path || (route.path == kModelPath && path.starts_with(kModelPath));
}

const Route* find_route(const Exchange& x) {
  // HEAD is GET without the body, which libmicrohttpd leaves out.
  const std::string_view method = x.method == "HEAD" ? "GET" : std::string_view(x.method);
  for (const Route& r : kRoutes)
    if (r.method == method && is_at(r, x.path)) return &r;
  return nullptr;
}

/// Methods of the path of a request; empty: there is nothing.
std::string methods_of_path(const Exchange& x) {
  const auto at = std::ranges::find_if(kRoutes, [&](const Route& r) { return is_at(r, x.path); });
  if (at == std::end(kRoutes)) return {};
  return at->method == "GET" ? "GET, HEAD" : std::string(at->method);
}

/// A browser asks whether a page may ask.
bool is_preflight(const Exchange& x) {
  return x.method == "OPTIONS" && !x.server.options.cors_origins.empty() &&
         !x.header(MHD_HTTP_HEADER_ORIGIN).empty() &&
         !x.header(MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_METHOD).empty();
}

/// Without a key, which browsers do not send with this question; never with credentials.
/// Source: the Fetch standard, "CORS-preflight fetch".
MHD_Result answer_preflight(Exchange& x, const std::string& methods) {
  constexpr const char* kSeconds = "600";
  if (x.allowed_origin().empty())
    return x.refuse({.status = 403,
                     .message = fmt::format("pages of {} may not ask here: --cors-origin",
                                            x.header(MHD_HTTP_HEADER_ORIGIN))});
  MHD_Response* const response =
      mhd().create_response_from_buffer(0, nullptr, MHD_RESPMEM_PERSISTENT);
  if (!response) return MHD_NO;
  mhd().add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS,
                            methods.c_str());
  // "*" would leave Authorization out.
  if (const std::string names(x.header(MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_HEADERS));
      !names.empty())
    mhd().add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                              names.c_str());
  mhd().add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, kSeconds);
  return x.send(204, response, nullptr);
}

ApiError unknown_route(Exchange& x) {
  x.allowed = methods_of_path(x);
  const bool is_known = !x.allowed.empty();
  return {.status = is_known ? 405 : 404,
          .message = fmt::format("{} {} is not served here", x.method, x.path)};
}

/// What this thread, which is its connection's, reads or answers now.
thread_local Exchange* current = nullptr;

/// The request line is there; headers are not yet. Source: MHD_OPTION_URI_LOG_CALLBACK.
void* on_target(void* cls, const char* target, MHD_Connection* connection) {
  try {
    auto x = std::make_unique<Exchange>(*static_cast<Impl*>(cls), connection);
    x->path = path_of(target ? target : "");
    x->path.resize(std::min(x->path.find('?'), x->path.size()));
    // Unescaped it would end the text, and another target would be answered.
    x->has_nul = target && std::string_view(target).find("%00") != std::string_view::npos;
    current = x.release();  // given back to on_completed
    return current;
  } catch (const std::exception&) {
    return nullptr;
  }
}

MHD_Result handle(Impl& server, const char* url, const char* method, const char* version,
                  const char* data, size_t* size, void** cls) {
  Exchange& x = *static_cast<Exchange*>(*cls);
  if (x.method.empty()) {  // the headers are there
    x.method = method;
    x.path = path_of(url);
    if (const auto error = check_framing(x, version)) return x.refuse(*error);
    if (is_preflight(x))
      if (const std::string methods = methods_of_path(x); !methods.empty())
        return answer_preflight(x, methods);
    const Route* route = find_route(x);
    if (!route) return x.refuse(unknown_route(x));
    if (const auto error = check_head(x, route->is_open, route->method == "POST"))
      return x.refuse(*error);
    return MHD_YES;
  }
  if (x.has_answer) return MHD_YES;
  if (*size > 0) {
    // A client that goes on after that gets no answer.
    if (x.is_too_large) return MHD_NO;
    if (x.body.size() + *size > server.options.body_bytes) {
      x.is_too_large = true;
      x.body = {};
    } else {
      x.body.append(data, *size);
    }
    *size = 0;
    return MHD_YES;
  }
  if (x.is_too_large)
    return x.refuse(
        {.status = 413,
         .message = fmt::format("the body is larger than {} bytes", server.options.body_bytes)});
  return find_route(x)->answer(x);
}

MHD_Result on_request(void* cls, MHD_Connection* /*connection*/, const char* url,
                      const char* method, const char* version, const char* data, size_t* size,
                      void** state) {
  Exchange* x = static_cast<Exchange*>(*state);
  if (!x) return MHD_NO;  // there was no memory for it
  try {
    return handle(*static_cast<Impl*>(cls), url, method, version, data, size, state);
  } catch (const std::exception& e) {
    if (x->has_answer) return MHD_NO;
    try {
      return x->refuse(
          server_error(500, fmt::format("the server failed: {}", e.what()), "internal"));
    } catch (const std::exception&) {
      return MHD_NO;
    }
  }
}

std::string client_of(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      mhd().get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  char text[INET6_ADDRSTRLEN] = "";
  if (!info || !info->client_addr) return "";
  const sockaddr* address = info->client_addr;
  if (address->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);
  if (address->sa_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
                sizeof text);
  return text;
}

void log_access(const Exchange& x, MHD_RequestTerminationCode how) {
  const auto ms = [](double seconds) { return std::trunc(seconds * 1e6) / 1e3; };
  Json line{{"event", "request"}, {"id", x.id},     {"client", client_of(x.connection)},
            {"method", x.method}, {"path", x.path}, {"status", x.status}};
  line["duration_ms"] = ms(std::chrono::duration<double>(Clock::now() - x.arrived).count());
  if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK) line["aborted"] = true;
  if (!x.model.empty()) line["model"] = x.model;
  if (x.completion) {
    const Usage u = x.completion->usage();
    line["finish"] = u.finish;
    line["prompt_tokens"] = u.prompt_tokens;
    line["completion_tokens"] = u.completion_tokens;
    line["cached_tokens"] = u.cached_tokens;
    line["queue_ms"] = ms(u.timings.queue);
    line["prompt_ms"] = ms(u.timings.prompt);
    line["decode_ms"] = ms(u.timings.decode);
  }
  log_line(std::move(line));
}

/// Counts and logs what is over.
void record(const Exchange& x, MHD_RequestTerminationCode how) {
  Impl& server = x.server;
  if (x.status >= 100 && x.status < 600) ++server.answers[static_cast<size_t>(x.status / 100)];
  // Probes would drown the rest.
  const bool is_probe = x.status == 200 && find_route(x) && find_route(x)->is_open;
  if (!server.options.has_access_log || is_probe) return;
  try {
    log_access(x, how);
  } catch (const std::exception&) {
    return;  // without memory there is no line
  }
}

void on_completed(void* /*cls*/, MHD_Connection* /*connection*/, void** state,
                  MHD_RequestTerminationCode how) {
  const std::unique_ptr<Exchange> x(static_cast<Exchange*>(*state));
  *state = nullptr;
  current = nullptr;
  if (x) record(*x, how);
}

ApiError malformed(const ServerOptions& options, unsigned status) {
  ApiError error{.status = static_cast<int>(status)};
  if (status >= 500) error.type = "server_error";
  switch (status) {
    case 413:
      error.message = fmt::format("the body is larger than {} bytes", options.body_bytes);
      break;
    case 414:
    case 431:
      error.message = fmt::format("the {} of the request do{} not fit into {} bytes",
                                  status == 414 ? "target" : "headers", status == 414 ? "es" : "",
                                  options.header_bytes);
      break;
    case 505: error.message = "the server speaks HTTP/1.1 and HTTP/1.0"; break;
    default:
      error.message = status < 500
                          ? "the request is not HTTP/1.1: its first line, a header or a chunk of "
                            "its body is malformed"
                          : "the HTTP library failed";
  }
  return error;
}

/// See RefuseMalformed.
MHD_Result refuse_malformed(MHD_Connection* connection, unsigned status) {
  try {
    const MHD_ConnectionInfo* info =
        mhd().get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (!info || !info->socket_context) return MHD_NO;
    Impl& server = *static_cast<Impl*>(info->socket_context);
    const ApiError error = malformed(server.options, status);
    // 0.9.75 goes on after a wrong Content-Length, and writes the head of a queued answer twice.
    if (current && current->method.empty() && (status == 400 || status == 413)) {
      current->answer_and_close(error);
      return MHD_NO;
    }
    if (current) return current->has_answer ? MHD_NO : current->refuse(error);
    // There is no request line that could be read, so nobody else is told of its end.
    Exchange x(server, connection);
    const MHD_Result done = x.refuse(error);
    record(x, MHD_REQUEST_TERMINATED_COMPLETED_OK);
    return done;
  } catch (const std::exception&) {
    return MHD_NO;
  }
}

void on_connection(void* cls, MHD_Connection* /*connection*/, void** state,
                   MHD_ConnectionNotificationCode what) {
  *state = cls;
  std::atomic<uint64_t>& open = static_cast<Impl*>(cls)->open_connections;
  if (what == MHD_CONNECTION_NOTIFY_STARTED)
    ++open;
  else
    --open;
}

void ignore_log(void* /*cls*/, const char* /*format*/, va_list /*arguments*/) {}

}  // namespace

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

void Server::set_draining() { impl_->is_draining = true; }

void Server::replace(std::shared_ptr<HostedModel> next) {
  const std::lock_guard lock(impl_->mutex);
  for (auto& m : impl_->hosted)
    if (m->name() == next->name()) m.swap(next);
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Models models) {
  BM_TRY(load_mhd(refuse_malformed));
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->hosted = std::move(models);
  const ServerOptions& o = impl->options;
  constexpr unsigned kFlags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                              MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
  // The logger comes first: other options may already say something.
  impl->daemon = mhd().start_daemon(
      kFlags, 0, nullptr, nullptr, on_request, impl.get(), MHD_OPTION_EXTERNAL_LOGGER, ignore_log,
      nullptr, MHD_OPTION_URI_LOG_CALLBACK, on_target, impl.get(), MHD_OPTION_LISTEN_SOCKET,
      o.socket, MHD_OPTION_CONNECTION_LIMIT, o.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      o.header_bytes, MHD_OPTION_CONNECTION_TIMEOUT, o.idle_seconds, MHD_OPTION_THREAD_STACK_SIZE,
      kThreadStack, MHD_OPTION_NOTIFY_COMPLETED, on_completed, impl.get(),
      MHD_OPTION_NOTIFY_CONNECTION, on_connection, impl.get(), MHD_OPTION_END);
  if (!impl->daemon) return fail(Code::kIo, "libmicrohttpd does not start");
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace bm::serve
