// Models of the tests, loaded, and results of Python's references beside them.
#pragma once
#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/gguf.h"
#include "models/llama_session.h"

namespace bm::models {

constexpr const char* kPython = "/usr/bin/python3";

inline std::shared_ptr<const GgufFile> open(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) throw std::runtime_error(file.error().message);
  return std::make_shared<const GgufFile>(std::move(*file));
}

inline std::shared_ptr<const Llama> load(const std::string& path, const std::string& device,
                                         uint32_t context = 0, bool keep_blocks = true) {
  auto model = Llama::load(
      open(path),
      {.device = device, .context = context, .progress = {}, .keep_blocks = keep_blocks});
  if (!model) throw std::runtime_error(model.error().message);
  return *model;
}

/// Keys and values as they were computed, where results are compared closely.
inline LlamaSession::Options exact() { return {.cache_type = DType::kF32}; }

/// Models with an encoder read the text that they are fed then.
inline void begin(LlamaSession& session, std::span<const int32_t> tokens) {
  if (!session.has_encoder()) return;
  const Status done = session.encode(tokens);
  if (!done) throw std::runtime_error(done.error().message);
}

inline bool has_torch() {
  static const bool found = std::system("/usr/bin/python3 -c 'import torch' >/dev/null 2>&1") == 0;
  return found;
}

inline std::vector<float> read_floats(const std::string& path, size_t count) {
  std::vector<float> values(count);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
  if (!in) throw std::runtime_error("short file " + path);
  return values;
}

/// Largest difference relative to the largest logit.
inline double distance(std::span<const float> a, std::span<const float> b) {
  double worst = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return worst / scale;
}

}  // namespace bm::models
