#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <system_error>
#include <thread>

#include <nlohmann/json.hpp>

#include "models/gguf.h"
#include "models/llama_config.h"
#include "runtime/base/env.h"
#include "runtime/device.h"
#include "runtime/device_list.h"
#include "serve/model_file.h"
#include "serve/server.h"
#include "serve/service.h"
#include "tools/bellmetal/exit_code.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/text_model.h"

namespace bm::cli {
namespace {

using serve::Clock;
using serve::HostedModel;

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}
sigset_t held_signals() {
  sigset_t set = stop_signals();
  sigaddset(&set, SIGHUP);
  return set;
}

void end_at_once(int /*signal*/) { ::_exit(kInterrupted); }

/// SIGTERM, SIGINT and SIGHUP wait until they are asked for, in all threads started from here on.
class HeldSignals {
 public:
  HeldSignals() {
    const sigset_t set = held_signals();
    pthread_sigmask(SIG_BLOCK, &set, &previous_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// The one that has come within `time`; at most 0: none.
  static int wait(std::chrono::milliseconds time) {
    const sigset_t set = held_signals();
    const timespec limit{time.count() / 1000, time.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&set, nullptr, &limit);
  }

  /// From now on another one ends the process where it stands.
  static void end_at_the_next() {
    struct sigaction action{};
    action.sa_handler = end_at_once;
    for (const int signal : {SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
    const sigset_t set = stop_signals();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }

 private:
  sigset_t previous_{};
};

using Models = serve::Server::Models;

/// Of a MODEL, which may be NAME=FILE. A file whose name holds "=" is one all the same.
std::string path_of(const std::string& text) {
  const size_t equals = std::filesystem::exists(text) ? std::string::npos : text.find('=');
  return equals == std::string::npos ? text : text.substr(equals + 1);
}

/// What would otherwise look like a fault of a model's file, when it is loaded.
/// Errors: kInvalidArgument naming --device, --ctx or --cors-origin.
Status check_options(const ServeOptions& o) {
  BM_TRY(serve::check_origins(o.cors_origins));
  if (!o.device.empty())
    for (const std::string& name : runtime::device_list(o.device))
      BM_TRY(runtime::check_device_name(name));
  for (const std::string& text : o.models) {
    const std::string path = path_of(text);
    // Loading tells what is wrong with a file.
    const auto file = models::GgufFile::open(path);
    if (!file) continue;
    const auto config = models::LlamaConfig::from_gguf(*file);
    if (config && o.context > config->context_length)
      return fail(Code::kInvalidArgument,
                  "{}: --ctx {} exceeds the {} positions the model was made for", path, o.context,
                  config->context_length);
  }
  return {};
}

Result<Models> host_models(const ServeOptions& o) {
  Models out;
  std::set<std::string> names;
  for (const std::string& text : o.models) {
    serve::HostedModelOptions m;
    m.path = path_of(text);
    m.name = m.path == text ? std::filesystem::path(text).stem().string()
                            : text.substr(0, text.size() - m.path.size() - 1);
    if (!names.insert(m.name).second)
      return fail(Code::kInvalidArgument, "two models are named \"{}\"; give names: NAME=FILE",
                  m.name);
    m.chat_template = o.chat_template;
    m.engine = {.device = o.device,
                .context = o.context,
                .threads = o.threads,
                .batch = {.sequences = o.sequences,
                          .cache_bytes = uint64_t{o.cache_mib} << 20,
                          .cache_type = cache_dtype(o.cache_type),
                          .piece = o.prompt_piece}};
    m.queue_limit = o.queue;
    m.draft_tokens = o.draft_tokens;
    m.draft_model = o.draft_model;
    m.has_prefix_cache = !o.has_no_prefix_cache;
    m.idle_unload = std::chrono::seconds(o.idle_unload_seconds);
    out.push_back(std::make_shared<HostedModel>(std::move(m)));
  }
  return out;
}

/// Models whose files have changed, loaded beside those that answer meanwhile.
class Reload {
 public:
  /// Loads all of `models` anew; nothing while an earlier reload goes on.
  void begin(const Models& models) {
    if (!coming_.empty()) return;
    serve::log_line({{"event", "reloading"}});
    for (const auto& m : models) {
      serve::HostedModelOptions options = m->options();
      options.metrics = m->metrics();
      coming_.push_back(std::make_shared<HostedModel>(std::move(options)));
    }
  }

  /// Puts those that are loaded in place, and ends those that nobody uses any more.
  void step(serve::Server& server, Models* models) {
    std::erase_if(coming_, [&](std::shared_ptr<HostedModel>& next) {
      if (next->state() == HostedModel::State::kLoading) return false;
      const auto old = std::ranges::find(*models, next->name(), &HostedModel::name);
      if (next->state() == HostedModel::State::kFailed) {
        serve::log_line({{"event", "reload_failed"},
                         {"model", next->name()},
                         {"reason", next->wait_loaded().error().message}});
        return true;
      }
      server.replace(next);
      serve::log_line({{"event", "reloaded"}, {"model", next->name()}});
      retired_.push_back(std::exchange(*old, std::move(next)));
      return true;
    });
    std::erase_if(retired_, [](const auto& m) { return m.use_count() == 1; });
  }

  bool is_going_on() const { return !coming_.empty() || !retired_.empty(); }
  /// Models that requests may still wait for.
  const Models& retired() const { return retired_; }

 private:
  Models coming_, retired_;
};

/// Tells who reads the log that a model's file is another than the one that answers. It is loaded
/// when somebody says so: a copy that takes long looks finished in between.
class ModelFiles {
 public:
  explicit ModelFiles(const Models& models) {
    for (const auto& m : models) files_.push_back({m->name(), m->path(), FileWatch(m->path())});
  }
  void look() {
    for (File& f : files_)
      if (f.watch.has_changed())
        serve::log_line({{"event", "model_changed"},
                         {"model", f.name},
                         {"path", f.path},
                         {"reason", "the file is not the one that was loaded; SIGHUP loads it"}});
  }

 private:
  using FileWatch = serve::FileWatch;
  struct File {
    std::string name, path;
    FileWatch watch;
  };
  std::vector<File> files_;
};

/// Whether all that was asked was answered within `bound`.
bool drain_models(const Models& models, std::chrono::seconds bound) {
  const Clock::time_point deadline = Clock::now() + bound;
  bool is_empty = true;
  for (const auto& m : models) is_empty = m->drain(deadline) && is_empty;
  serve::log_line({{"event", "drained"}, {"complete", is_empty}});
  return is_empty;
}

/// Ends the models' threads. False: `bound` was over before. Loading and compiling cannot be
/// stopped, nobody waits for them, and they leave nothing behind.
bool stop_models(const Models& models, std::chrono::milliseconds bound) {
  const auto done = std::make_shared<std::promise<void>>();
  const auto stop = [models, done] {
    for (const auto& m : models) m->stop();
    done->set_value();
  };
  std::thread stopping;
  try {
    stopping = std::thread(stop);
  } catch (const std::system_error&) {  // no thread is to be had: as long as it takes
    stop();
    return true;
  }
  if (done->get_future().wait_for(bound) == std::future_status::ready) return stopping.join(), true;
  stopping.detach();
  return false;
}

}  // namespace

int run_serve(const ServeOptions& o) {
  std::optional<ScopedSetting> threads;
  if (o.threads > 0) threads.emplace("BM_THREADS", std::to_string(o.threads));
  serve::ServerOptions options{.body_bytes = size_t{o.body_mib} << 20,
                               .connections = o.connections,
                               .idle_seconds = o.idle_seconds,
                               .has_access_log = !o.has_no_access_log,
                               .cors_origins = o.cors_origins};
  if (!o.api_key_file.empty()) {
    auto key = serve::read_api_key(o.api_key_file);
    if (!key) return report_file(key.error(), o.api_key_file, o.json);
    options.api_key = std::move(*key);
  }
  const auto address = serve::parse_address(o.listen);
  if (!address) return report(address.error(), o.json), kUsage;
  const HeldSignals signals;
  const auto socket = serve::open_listener(*address);
  if (!socket) return report(socket.error(), o.json);
  if (!socket->is_loopback && options.api_key.empty() && !o.allows_anyone) {
    report(Error{Code::kInvalidArgument,
                 socket->url + " can be reached from other machines: give --api-key-file, or "
                               "--allow-anyone"},
           o.json);
    return kUsage;
  }
  if (const Status fits = check_options(o); !fits) return report(fits.error(), o.json);
  options.socket = socket->fd;
  auto hosted = host_models(o);
  if (!hosted) return report(hosted.error(), o.json), kUsage;
  Models models = std::move(*hosted);
  ModelFiles files(models);
  auto server = serve::Server::start(std::move(options), models);
  if (!server) return report(server.error(), o.json);
  serve::log_line({{"event", "listening"}, {"url", socket->url}, {"pid", ::getpid()}});
  // Answers while models load; failing to load ends the program.
  int code = kOk, asked = 0;
  bool is_ready = false;
  Reload reload;
  while (asked == 0 && code == kOk) {
    const bool is_calm = is_ready && !reload.is_going_on();
    const int signal = HeldSignals::wait(std::chrono::milliseconds(is_calm ? 500 : 5));
    if (signal > 0 && signal != SIGHUP) {
      asked = signal;
      continue;
    }
    if (is_calm && signal <= 0) files.look();
    if (signal == SIGHUP && is_ready) {
      files = ModelFiles(models);
      reload.begin(models);
    }
    reload.step(**server, &models);
    // Another process can have the device; who manages services starts one.
    for (const auto& m : models)
      if (m->state() == HostedModel::State::kDeviceGone) {
        serve::log_line({{"event", "device_gone"}, {"reason", m->reason()}});
        code = kDeviceFailed;
      }
    if (is_ready || code != kOk) continue;
    is_ready = true;
    for (const auto& m : models) {
      const HostedModel::State state = m->state();
      is_ready = is_ready && state != HostedModel::State::kLoading;
      if (state == HostedModel::State::kFailed)
        code = report_file(m->wait_loaded().error(), m->path(), o.json);
    }
    if (!is_ready || code != kOk) continue;
    serve::log_line({{"event", "ready"}, {"url", socket->url}});
    serve::notify_manager("READY=1\nSTATUS=answering at " + socket->url);
  }
  HeldSignals::end_at_the_next();
  (*server)->set_draining();
  serve::notify_manager("STOPPING=1\nSTATUS=answering the last requests");
  serve::log_line({{"event", "stopping"}, {"drain_seconds", o.drain_seconds}});
  models.insert(models.end(), reload.retired().begin(), reload.retired().end());
  const bool is_empty =
      drain_models(models, std::chrono::seconds(code == kOk ? o.drain_seconds : 0));
  if (is_empty) server->reset();  // the last answers are on their way whole
  // TIMEOUT: who manages services has time for a card that is shut down; who presses Ctrl-C has
  // not. A model whose requests were not done answers them first.
  constexpr std::chrono::milliseconds kManagedGrace{2000};
  const std::chrono::milliseconds bound = !is_empty         ? std::chrono::seconds(60)
                                          : asked == SIGINT ? kInterruptGrace
                                                            : kManagedGrace;
  const bool is_stopped = stop_models(models, bound);
  if (!is_stopped) {
    serve::log_line({{"event", "stopped"}, {"reason", "in the middle of a step nobody waits for"}});
    ::_exit(code);  // its thread uses what would be destroyed here
  }
  server->reset();
  serve::log_line({{"event", "stopped"}});
  return code;
}

}  // namespace bm::cli
