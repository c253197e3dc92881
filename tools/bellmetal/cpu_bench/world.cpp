#include "tools/bellmetal/cpu_bench/world.h"

#include <algorithm>
#include <cmath>

#include "tools/bellmetal/cpu_bench/cases.h"

namespace bm::cli {

World::World(const CpuBenchOptions& options, uint32_t threads)
    : options_(options), threads_(threads) {
  if (options_.device.empty()) options_.device = "CPU";
}
World::~World() = default;

Team& World::team() {
  if (!team_) team_ = std::make_unique<Team>(threads_);
  return *team_;
}

template <class T>
T* World::open(Peer<T>& peer, const char* name) {
  if (peer.is_tried || !options_.has_peers) return peer.it.get();
  peer.is_tried = true;
  try {
    peer.it = unwrap(T::open(path_of(name), threads_));
  } catch (const std::exception& e) {  // a program that answers nonsense throws what JSON throws
    note(fmt::format("no {}: {}", name, e.what()));
  }
  return peer.it.get();
}

OpenBlas* World::openblas() { return open(openblas_, "openblas"); }
OneDnn* World::onednn() { return open(onednn_, "onednn"); }
PythonPeer* World::python() { return open(python_, "python"); }
OnnxRuntime* World::onnxruntime() { return open(onnxruntime_, "onnxruntime"); }
Ggml* World::ggml() { return open(ggml_, "ggml"); }
LlamaBench* World::llama_bench() { return open(llama_bench_, "llama-bench"); }
LlamaBench* World::ik_llama_bench() {
  if (path_of("ik-llama-bench").empty()) return nullptr;
  return open(ik_llama_bench_, "ik-llama-bench");
}

std::string World::path_of(const std::string& peer) const {
  for (const std::string& given : options_.peers)
    if (given.starts_with(peer + "=")) return given.substr(peer.size() + 1);
  return "";
}

void World::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end())
    notes_.push_back(std::move(text));
}

Tensor World::random(const Shape& shape, uint32_t seed, float low, float high) {
  std::vector<float> values(static_cast<size_t>(max_elements(shape)));
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (float& v : values) {
    // A linear congruential generator; Knuth's multiplier.
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    v = low + (high - low) * static_cast<float>(state >> 40) * 0x1p-24F;
  }
  return Tensor::from(values, shape, device());
}

Status World::share(const std::string& name, const Tensor& t) {
  std::vector<int64_t> shape;
  for (const SymInt& s : t.shape()) shape.push_back(s.max());
  const std::string dtype = t.dtype() == DType::kBF16  ? "bfloat16"
                            : t.dtype() == DType::kF16 ? "float16"
                                                       : "float32";
  return python()->load(name, t.bytes(), shape, dtype);
}

const float* floats(const Tensor& t) { return reinterpret_cast<const float*>(t.buffer().host()); }

double relative_error(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return INFINITY;
  double largest = 0, error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (std::isnan(difference)) return INFINITY;
    error = std::max(error, difference);
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
  }
  return largest > 0 ? error / largest : error;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& part : {limit_cases, gemm_cases, gemv_cases, row_cases, net_cases,
                           attention_cases, quant_cases, llama_cases, runtime_cases})
    for (Case& c : part()) all.push_back(std::move(c));
  return all;
}

}  // namespace bm::cli
