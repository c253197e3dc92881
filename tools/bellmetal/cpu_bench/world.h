#pragma once
// What the cases of `bench cpu` are made in: sizes, threads, device, and the peers found.

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tensor/jit.h"
#include "tools/bellmetal/cpu_bench/ggml.h"
#include "tools/bellmetal/cpu_bench/limits.h"
#include "tools/bellmetal/cpu_bench/llama_bench.h"
#include "tools/bellmetal/cpu_bench/onednn.h"
#include "tools/bellmetal/cpu_bench/onnxruntime.h"
#include "tools/bellmetal/cpu_bench/openblas.h"
#include "tools/bellmetal/cpu_bench/python_peer.h"
#include "tools/bellmetal/cpu_bench/temporary_file.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

class World {
 public:
  World(const CpuBenchOptions& options, uint32_t threads);
  ~World();

  uint32_t threads() const { return threads_; }
  const std::string& device() const { return options_.device; }
  bool is_tiny() const { return options_.is_tiny; }
  const CpuBenchOptions& options() const { return options_; }
  /// `n`, or what stands for it in a tiny run.
  int64_t size(int64_t n) const { return is_tiny() ? (n + 31) / 32 : n; }
  Team& team();

  // Opened on first use; nullptr where a peer is missing, which is noted once.
  OpenBlas* openblas();
  OneDnn* onednn();
  PythonPeer* python();
  OnnxRuntime* onnxruntime();
  Ggml* ggml();
  LlamaBench* llama_bench();
  LlamaBench* ik_llama_bench();  ///< only where --peer says
  /// Path of a peer given with --peer NAME=PATH; empty: none was given.
  std::string path_of(const std::string& peer) const;

  void note(std::string text);
  const std::vector<std::string>& notes() const { return notes_; }

  /// Evenly spread values, the same for the same seed, on our device.
  Tensor random(const Shape& shape, uint32_t seed, float low = -1, float high = 1);
  /// Gives the Python peer a tensor of ours.
  Status share(const std::string& name, const Tensor& t);

 private:
  template <class T>
  struct Peer {
    bool is_tried = false;
    std::unique_ptr<T> it;
  };
  template <class T>
  T* open(Peer<T>& peer, const char* name);

  CpuBenchOptions options_;
  uint32_t threads_;
  std::unique_ptr<Team> team_;
  Peer<OpenBlas> openblas_;
  Peer<OneDnn> onednn_;
  Peer<PythonPeer> python_;
  Peer<OnnxRuntime> onnxruntime_;
  Peer<Ggml> ggml_;
  Peer<LlamaBench> llama_bench_, ik_llama_bench_;
  std::vector<std::string> notes_;
};

/// Host memory of a realised tensor on a CPU device.
const float* floats(const Tensor& t);

/// Captured once and replayed: the work of `function` on tensors that stay the same. Results stay
/// valid until the next call.
template <class F>
class Replay {
 public:
  Replay(F function, std::vector<Tensor> inputs)
      : step_([function](const std::vector<Tensor>& in) { return function(in); }),
        inputs_(std::move(inputs)) {
    step_.capture(inputs_);
  }
  void run() {
    step_(inputs_);
    unwrap(inputs_[0].device().synchronize());
  }
  /// The first tensor of the result, on the host.
  std::vector<float> values() {
    const Tensor out = step_(inputs_);
    return out.cast(DType::kF32).data<float>();
  }

 private:
  Jit<std::function<Tensor(const std::vector<Tensor>&)>> step_;
  std::vector<Tensor> inputs_;
};
template <class F>
auto make_replay(F function, std::vector<Tensor> inputs) {
  return std::make_shared<Replay<F>>(std::move(function), std::move(inputs));
}

/// Largest difference, as a share of the largest magnitude wanted. NaN and wrong sizes are
/// infinitely wrong.
double relative_error(std::span<const float> got, std::span<const float> want);

}  // namespace bm::cli
