#include "tools/bellmetal/cpu_bench/python_peer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tensor/exception.h"
#include "tools/bellmetal/cpu_bench/python_peer_script.h"
#include "tools/bellmetal/cpu_bench/temporary_file.h"

namespace bm::cli {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

Result<std::unique_ptr<PythonPeer>> PythonPeer::open(const std::string& program, uint32_t threads) {
  std::vector<std::string> programs{"python3", "/usr/bin/python3"};
  if (!program.empty()) programs = {program};
  std::string why;
  for (const std::string& p : programs) {
    auto peer = start(p, threads);
    if (peer && !(*peer)->versions_.torch.empty()) return peer;
    why = fmt::format("{} has no PyTorch{}", p, peer ? "" : " (" + peer.error().message + ")");
  }
  return fail(Code::kNotFound, "{}; install python3-torch or give --peer python=PROGRAM", why);
}

Result<std::unique_ptr<PythonPeer>> PythonPeer::start(const std::string& program,
                                                      uint32_t threads) {
  std::array<int, 2> to{}, from{};
  if (::pipe2(to.data(), O_CLOEXEC) != 0) return fail(Code::kIo, "no pipe for {}", program);
  if (::pipe2(from.data(), O_CLOEXEC) != 0) {
    ::close(to[0]);
    ::close(to[1]);
    return fail(Code::kIo, "no pipe for {}", program);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(to[0], 0);
    ::dup2(from[1], 1);
    ::execlp(program.c_str(), program.c_str(), "-c", kPythonPeerScript, nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  std::unique_ptr<PythonPeer> peer(new PythonPeer);
  peer->child_ = child;
  peer->to_ = to[1];
  peer->from_ = from[0];
  if (child < 0) return fail(Code::kIo, "{} could not be started", program);
  const Json hello = BM_TRY(peer->ask({{"op", "hello"}, {"threads", threads}}));
  peer->versions_ = {hello.at("python"), hello.at("torch"), hello.at("onnxruntime"),
                     hello.at("compile")};
  return peer;
}

PythonPeer::~PythonPeer() {
  if (to_ >= 0) ::close(to_);  // the script ends with its input
  if (from_ >= 0) ::close(from_);
  if (child_ > 0) ::waitpid(child_, nullptr, 0);
}

Result<Json> PythonPeer::ask(const Json& command) {
  const std::string line = command.dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    // A child that has ended must be an error here, not a signal.
    struct sigaction ignore = {}, before = {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, &before);
    const ssize_t n = ::write(to_, line.data() + sent, line.size() - sent);
    ::sigaction(SIGPIPE, &before, nullptr);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::kIo, "python3 ended");
    sent += static_cast<size_t>(n);
  }
  size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    std::array<char, 4096> chunk;
    const ssize_t n = ::read(from_, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::kIo, "python3 ended");
    buffer_.append(chunk.data(), static_cast<size_t>(n));
  }
  Json answer = Json::parse(buffer_.substr(0, end), nullptr, false);
  buffer_.erase(0, end + 1);
  if (answer.is_discarded()) return fail(Code::kInternal, "python3 gave no JSON");
  if (answer.contains("error"))
    return fail(Code::kInternal, "python3: {}", answer["error"].get<std::string>());
  return answer;
}

Status PythonPeer::use_gpu(uint32_t unit) {
  BM_TRY(ask({{"op", "use_gpu"}, {"unit", unit}}));
  return {};
}

Status PythonPeer::load(const std::string& name, std::span<const std::byte> bytes,
                        const std::vector<int64_t>& shape, const std::string& dtype) {
  const auto file = BM_TRY(TemporaryFile::create());
  BM_TRY(file->write(bytes));
  BM_TRY(ask({{"op", "load"},
              {"name", name},
              {"path", file->path()},
              {"dtype", dtype},
              {"shape", shape}}));
  return {};
}

Status PythonPeer::define(const std::string& name, const std::string& expression,
                          bool is_compiled) {
  BM_TRY(ask(
      {{"op", "define"}, {"name", name}, {"expression", expression}, {"compile", is_compiled}}));
  return {};
}

double PythonPeer::run(const std::string& name, int calls) {
  return unwrap(ask({{"op", "run"}, {"name", name}, {"calls", calls}})).at("seconds");
}

Result<std::vector<float>> PythonPeer::result(const std::string& name) {
  const auto file = BM_TRY(TemporaryFile::create());
  const Json answer = BM_TRY(ask({{"op", "result"}, {"name", name}, {"path", file->path()}}));
  std::vector<float> values(answer.at("count").get<size_t>());
  std::ifstream in(file->path(), std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
  if (!in) return fail(Code::kIo, "{}: could not be read", file->path());
  return values;
}

Status PythonPeer::clear() {
  BM_TRY(ask({{"op", "clear"}}));
  return {};
}

Result<std::vector<Contender>> PythonPeer::contenders(const std::string& name,
                                                      const std::string& expression) {
  std::vector<Contender> out;
  BM_TRY(define(name, expression));
  out.push_back({"PyTorch", [this, name](int calls) { return run(name, calls); }});
  if (!versions_.has_compile) return out;
  BM_TRY(define(name + ", compiled", expression, true));
  out.push_back(
      {"torch.compile", [this, name](int calls) { return run(name + ", compiled", calls); }});
  return out;
}

}  // namespace bm::cli
