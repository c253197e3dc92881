#pragma once
// onnxruntime as a peer, through its C API.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/bellmetal/cpu_bench/library.h"

namespace bm::cli {

class OnnxRuntime {
 public:
  class Session {
   public:
    virtual ~Session() = default;
    /// From input "x" to output "y". Throws Exception.
    virtual void run() = 0;
    virtual std::vector<float> result() = 0;
  };

  /// `path`: the library; empty: the usual names. Errors: kNotFound with the remedy.
  static Result<std::unique_ptr<OnnxRuntime>> open(const std::string& path, uint32_t threads);
  virtual ~OnnxRuntime() = default;
  /// `model`: bytes of an ONNX model; `input` is copied.
  virtual Result<std::unique_ptr<Session>> load(const std::string& model,
                                                const std::vector<float>& input,
                                                const std::vector<int64_t>& shape,
                                                size_t outputs) = 0;
};

}  // namespace bm::cli
