#pragma once
// PyTorch and onnxruntime as peers: a python3 process that runs a small script of ours and takes
// one JSON object a line.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/base/result.h"
#include "tools/bellmetal/cpu_bench/contest.h"

namespace bm::cli {

class PythonPeer {
 public:
  struct Versions {
    std::string python, torch, onnxruntime;  ///< empty: not installed
    bool has_compile = false;                ///< torch.compile
  };

  /// Starts `program`, or the first of PATH's python3 and /usr/bin/python3 that has PyTorch.
  /// Errors: kNotFound with the remedy.
  static Result<std::unique_ptr<PythonPeer>> open(const std::string& program, uint32_t threads);
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  const Versions& versions() const { return versions_; }

  /// Tensors loaded from now on are on a GPU, by CUDA's count. Errors: kInternal (PyTorch sees
  /// none).
  Status use_gpu(uint32_t unit);
  /// Gives the process a tensor called `name`. `dtype`: numpy's name, "float32".
  Status load(const std::string& name, std::span<const std::byte> bytes,
              const std::vector<int64_t>& shape, const std::string& dtype = "float32");
  /// A function of loaded tensors, as Python over `torch` as `torch` and its functional module as
  /// `F`: "F.softmax(x, -1)".
  Status define(const std::string& name, const std::string& expression, bool is_compiled = false);
  /// Runs a defined function `calls` times; seconds as Python's clock sees them. Throws Exception.
  double run(const std::string& name, int calls);
  /// Result of a defined function as float32.
  Result<std::vector<float>> result(const std::string& name);
  /// Forgets all tensors and functions.
  Status clear();

  /// Sends one command and gives the answer. Errors: kInternal with the script's message, kIo when
  /// the process ended.
  Result<nlohmann::ordered_json> ask(const nlohmann::ordered_json& command);

  /// Contenders "PyTorch" and, where it exists, "torch.compile" of an expression over what is
  /// loaded; the name of the first is also what result() takes.
  Result<std::vector<Contender>> contenders(const std::string& name, const std::string& expression);

 private:
  PythonPeer() = default;
  static Result<std::unique_ptr<PythonPeer>> start(const std::string& program, uint32_t threads);
  pid_t child_ = -1;
  int to_ = -1, from_ = -1;
  std::string buffer_;
  Versions versions_;
};

}  // namespace bm::cli
