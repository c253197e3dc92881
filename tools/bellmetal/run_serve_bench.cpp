// bellmetal bench serve: this server and others answer the same streams, in turn.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "tools/bellmetal/cpu_bench/random_llama.h"
#include "tools/bellmetal/cpu_bench/temporary_file.h"
#include "tools/bellmetal/exit_code.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/stream_client.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kFirstToken = 3, kTokens = 250;  // of prompts: every vocabulary has these
// TIMEOUT: llama-server took 9 s to load 0.9 GB on a busy machine; 120 covers a slow disk.
constexpr std::chrono::seconds kReadyWithin{120};

/// A server as a process of its own; it ends with the object.
class ServerProcess {
 public:
  static Result<std::unique_ptr<ServerProcess>> start(std::string name,
                                                      std::vector<std::string> command,
                                                      uint16_t port) {
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const Clock::time_point begin = Clock::now();
    const pid_t parent = ::getpid(), pid = ::fork();
    if (pid < 0) return fail(Code::kIo, "fork: {}", std::strerror(errno));
    if (pid == 0) {
      // It ends with us, also when a signal ends us.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const int nothing = ::open("/dev/null", O_RDWR);
      ::dup2(nothing, 1);
      ::dup2(nothing, 2);
      ::execvp(arguments[0], arguments.data());
      ::_exit(127);
    }
    std::unique_ptr<ServerProcess> out(new ServerProcess(std::move(name), pid, port));
    while (!answers(port, "/health")) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) == pid) {
        out->pid_ = -1;
        return fail(Code::kNotFound, "{}: ended with status {} before it was ready", command[0],
                    WIFEXITED(status) ? WEXITSTATUS(status) : -1);
      }
      if (Clock::now() - begin > kReadyWithin)
        return fail(Code::kTimeout, "{}: not ready after {} s", command[0], kReadyWithin.count());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    out->ready_ms_ = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    return out;
  }
  ~ServerProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const std::string& name() const { return name_; }
  uint16_t port() const { return port_; }
  double ready_ms() const { return ready_ms_; }

 private:
  ServerProcess(std::string name, pid_t pid, uint16_t port)
      : name_(std::move(name)), pid_(pid), port_(port) {}
  std::string name_;
  pid_t pid_;
  uint16_t port_;
  double ready_ms_ = 0;
};

/// What clients of one server saw.
struct Seen {
  std::vector<double> first_ms, gaps_ms;
  double seconds = 0;
  uint64_t tokens = 0;

  static double quantile(std::vector<double> v, double q) {
    if (v.empty()) return 0;
    std::ranges::sort(v);
    return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
  }
  nlohmann::ordered_json json() const {
    return {{"first_token_ms_p50", quantile(first_ms, 0.5)},
            {"first_token_ms_p99", quantile(first_ms, 0.99)},
            {"gap_ms_p50", quantile(gaps_ms, 0.5)},
            {"gap_ms_p99", quantile(gaps_ms, 0.99)},
            {"tokens_per_second", seconds > 0 ? static_cast<double>(tokens) / seconds : 0}};
  }
};

/// `clients` at a time, each `rounds` requests with prompts of its own.
Status measure(const ServerProcess& server, uint32_t clients, const ServeBenchOptions& o,
               uint64_t seed, Seen* seen) {
  std::vector<Result<StreamTimes>> results(size_t{clients} * o.rounds,
                                           fail(Code::kInternal, "not run"));
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  for (uint32_t c = 0; c < clients; ++c)
    threads.emplace_back([&, c] {
      for (uint32_t round = 0; round < o.rounds; ++round) {
        const size_t at = size_t{c} * o.rounds + round;
        std::mt19937_64 random(seed * 1'000'003 + at);
        std::vector<uint32_t> prompt(o.prompt_tokens);
        for (uint32_t& t : prompt) t = static_cast<uint32_t>(kFirstToken + random() % kTokens);
        const nlohmann::ordered_json body{{"prompt", prompt},
                                          {"max_tokens", o.tokens},
                                          {"temperature", 0},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}},
                                          {"ignore_eos", true}};
        results[at] = stream_completion(server.port(), body.dump());
      }
    });
  for (std::thread& t : threads) t.join();
  seen->seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  for (const auto& r : results) {
    if (!r) return tl::unexpected<Error>(Error(r.error()).within(server.name()));
    if (r->first_ms) seen->first_ms.push_back(*r->first_ms);
    seen->gaps_ms.insert(seen->gaps_ms.end(), r->gaps_ms.begin(), r->gaps_ms.end());
    seen->tokens += r->tokens;
  }
  return {};
}

Result<nlohmann::ordered_json> bench(const ServeBenchOptions& o) {
  std::unique_ptr<TemporaryFile> file;
  std::string model = o.model;
  if (model.empty()) {
    RandomLlama random{.format = BM_TRY(random_llama_format(o.format))};
    file = BM_TRY(TemporaryFile::create(/*is_large=*/true));
    BM_TRY(
        write_random_llama([&](std::span<const std::byte> b) { return file->write(b); }, random));
    model = file->path();
  }
  const uint32_t most = *std::ranges::max_element(o.clients);
  const uint32_t context = o.prompt_tokens + o.tokens + 8;
  const std::string threads =
      std::to_string(o.threads > 0 ? o.threads : std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::unique_ptr<ServerProcess>> servers;
  uint16_t port = BM_TRY(free_port());
  std::vector<std::string> ours{"/proc/self/exe",
                                "serve",
                                "bench=" + model,
                                "--listen",
                                fmt::format("127.0.0.1:{}", port),
                                "--sequences",
                                std::to_string(most),
                                "--ctx",
                                std::to_string(context),
                                "--threads",
                                threads,
                                "--no-access-log"};
  if (!o.device.empty()) ours.insert(ours.end(), {"--device", o.device});
  servers.push_back(BM_TRY(ServerProcess::start("bellmetal", ours, port)));
  for (const std::string& text : o.peers) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos)
      return fail(Code::kInvalidArgument, "--peer {}: NAME=PATH is meant", text);
    port = BM_TRY(free_port());
    // The context is that of all slots together.
    servers.push_back(BM_TRY(
        ServerProcess::start(text.substr(0, equals),
                             {text.substr(equals + 1), "-m", model, "--host", "127.0.0.1", "--port",
                              std::to_string(port), "-np", std::to_string(most), "-c",
                              std::to_string(context * most), "-t", threads, "--no-webui"},
                             port)));
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::vector<double> start;
  for (const auto& s : servers) start.push_back(s->ready_ms());
  uint64_t seed = std::random_device{}();
  for (const auto& s : servers) {  // what is compiled or touched at first use
    Seen ignored;
    for (const uint32_t clients : o.clients) BM_TRY(measure(*s, clients, o, ++seed, &ignored));
  }
  for (const uint32_t clients : o.clients) {
    std::vector<Seen> seen(servers.size());
    for (uint32_t turn = 0; turn < o.turns; ++turn, ++seed)
      for (size_t i = 0; i < servers.size(); ++i)
        BM_TRY(measure(*servers[i], clients, o, seed * 17, &seen[i]));
    nlohmann::ordered_json row{{"clients", clients}};
    for (size_t i = 0; i < servers.size(); ++i) row[servers[i]->name()] = seen[i].json();
    rows.push_back(std::move(row));
  }
  nlohmann::ordered_json out{{"model", o.model.empty() ? "random " + o.format : o.model},
                             {"prompt_tokens", o.prompt_tokens},
                             {"tokens", o.tokens},
                             {"threads", std::stoul(threads)},
                             {"start_to_ready_ms", nlohmann::ordered_json::object()},
                             {"rows", std::move(rows)}};
  for (size_t i = 0; i < servers.size(); ++i)
    out["start_to_ready_ms"][servers[i]->name()] = start[i];
  return out;
}

void print(const nlohmann::ordered_json& r) {
  fmt::print("{}, prompts of {} tokens, {} generated, {} threads\n", r["model"].get<std::string>(),
             r["prompt_tokens"].get<int>(), r["tokens"].get<int>(), r["threads"].get<int>());
  for (const auto& [name, ms] : r["start_to_ready_ms"].items())
    fmt::print("{}: ready after {:.0f} ms\n", name, ms.get<double>());
  fmt::print("\n{:>7}  {:<14} {:>17} {:>17} {:>9}\n{:>7}  {:<14} {:>8} {:>8} {:>8} {:>8} {:>9}\n",
             "clients", "server", "first token, ms", "between, ms", "tokens/s", "", "", "p50",
             "p99", "p50", "p99", "");
  for (const auto& row : r["rows"])
    for (const auto& [name, s] : row.items()) {
      if (!s.is_object()) continue;
      const auto value = [&](const char* key) { return s[key].get<double>(); };
      fmt::print("{:>7}  {:<14} {:>8.1f} {:>8.1f} {:>8.2f} {:>8.2f} {:>9.1f}\n",
                 row["clients"].get<int>(), name, value("first_token_ms_p50"),
                 value("first_token_ms_p99"), value("gap_ms_p50"), value("gap_ms_p99"),
                 value("tokens_per_second"));
    }
}

}  // namespace

int run_serve_bench(const ServeBenchOptions& o) {
  const auto result = bench(o);
  if (!result) return report(result.error(), o.json);
  if (o.json)
    fmt::print("{}\n", result->dump(2));
  else
    print(*result);
  return kOk;
}

}  // namespace bm::cli
