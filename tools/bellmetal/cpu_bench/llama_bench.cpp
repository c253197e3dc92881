#include "tools/bellmetal/cpu_bench/llama_bench.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tensor/exception.h"

namespace bm::cli {
namespace {

/// A word of the shell, whatever is in it.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

bool is_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return ::access(program.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace

Result<std::string> run_command(const std::string& command) {
  std::FILE* in = ::popen(command.c_str(), "r");
  if (!in) return fail(Code::kNotFound, "{}: could not be started", command);
  std::string out;
  std::array<char, 4096> chunk;
  for (size_t n = 0; (n = std::fread(chunk.data(), 1, chunk.size(), in)) > 0;)
    out.append(chunk.data(), n);
  const int end = ::pclose(in);
  if (end != 0) return fail(Code::kInternal, "{}: ended with status {}", command, end);
  return out;
}

Result<std::unique_ptr<LlamaBench>> LlamaBench::open(const std::string& program, uint32_t threads) {
  auto out = std::make_unique<LlamaBench>();
  out->program_ = program.empty() ? "llama-bench" : program;
  out->threads_ = threads;
  if (!is_in_path(out->program_))
    return fail(Code::kNotFound,
                "{} is not there; put llama-bench into PATH or give --peer llama-bench=PATH and "
                "--peer ik-llama-bench=PATH",
                out->program_);
  return out;
}

Contender LlamaBench::contender(std::string name, const std::string& model, uint32_t prompt,
                                uint32_t decode, const std::string& extra) const {
  const std::string command =
      fmt::format("{} -m {} -p {} -n {} -t {} -r 2 -o json {} 2>/dev/null", quoted(program_),
                  quoted(model), prompt, decode, threads_, extra);
  const double tokens = prompt + decode;
  Contender out{std::move(name), [command, tokens](int) {
                  const auto rows =
                      nlohmann::json::parse(unwrap(run_command(command)), nullptr, false);
                  if (!rows.is_array() || rows.empty() || !rows[0].contains("avg_ts"))
                    raise(Code::kInternal, "{}: no JSON with avg_ts", command);
                  return tokens / rows[0].at("avg_ts").get<double>();
                }};
  out.is_whole = true;
  return out;
}

}  // namespace bm::cli
