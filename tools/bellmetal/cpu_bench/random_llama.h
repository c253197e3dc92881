#pragma once
// GGUF files of llama models with random weights: as large as asked for, of no use but for speed.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/quant.h"
#include "runtime/base/result.h"

namespace bm::cli {

struct RandomLlama {
  models::GgmlType format = models::GgmlType::kF32;  ///< of every matrix; vectors are F32
  uint32_t embedding = 1024, layers = 16, heads = 16, kv_heads = 8;
  uint32_t feed_forward = 2816, vocabulary = 32'000, context = 512;

  uint64_t parameters() const;
};

/// "F32", "F16", "BF16", and every quantised format by ggml's name. Errors: kInvalidArgument naming
/// them.
Result<models::GgmlType> random_llama_format(const std::string& name);

/// Rows of random blocks, their values about 1 / sqrt(columns).
std::vector<std::byte> random_blocks(models::GgmlType format, uint64_t rows, uint64_t columns);

/// Hands the file to `write` piece by piece, the same for the same arguments. Errors: those of
/// `write`; kInvalidArgument when rows are not whole blocks of the format.
Status write_random_llama(const std::function<Status(std::span<const std::byte>)>& write,
                          const RandomLlama& model);

}  // namespace bm::cli
