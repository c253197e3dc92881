#include "tools/bellmetal/cpu_bench/random_llama.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "models/gguf.h"
#include "models/quant_blocks.h"

namespace bm::cli {
namespace {

using models::GgmlType;
using models::GgufType;

constexpr uint64_t kAlignment = 32;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return state_ ^ state_ >> 29;
  }
  /// In [-1, 1).
  float even() { return static_cast<float>(next() >> 40) * 0x1p-23F - 1; }
  void fill(std::byte* to, size_t bytes) {
    for (; bytes >= 8; bytes -= 8, to += 8) put(to, next());
    const uint64_t last = next();
    std::memcpy(to, &last, bytes);
  }
  template <class T>
  static void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof(value));
  }

 private:
  uint64_t state_;
};

uint16_t half(float value) {
  std::array<std::byte, 2> bytes;
  if (!models::quantize_row(GgmlType::kF16, {&value, 1}, bytes)) return 0;
  return std::bit_cast<uint16_t>(bytes);
}

/// Where formats keep float16 factors, for the ones whose other scales may be anything. Layouts:
/// ggml, ggml-common.h, block_*.
std::vector<size_t> factors_of(GgmlType format) {
  switch (format) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ5_K: return {0, 2};
    case GgmlType::kQ2_K: return {80, 82};
    case GgmlType::kQ3_K: return {108};
    case GgmlType::kTQ1_0: return {52};
    case GgmlType::kTQ2_0: return {64};
    case GgmlType::kMXFP4:
    case GgmlType::kNVFP4:
    case GgmlType::kIQ1_M: return {};
    default: return {0};
  }
}

/// One of the other formats: small numbers, but of no certain size.
void make_any_block(GgmlType format, float size, std::byte* block) {
  for (const size_t at : factors_of(format)) Random::put(block + at, half(size / 512));
  if (format == GgmlType::kMXFP4) block[0] = std::byte{120};
  if (format == GgmlType::kNVFP4) std::memset(block, 8, 4);
  if (format == GgmlType::kIQ1_M)  // its factor lies in the top nibbles of four words
    for (size_t s = 0; s < 4; ++s)
      block[49 + 2 * s] = (block[49 + 2 * s] & std::byte{15}) |
                          static_cast<std::byte>((half(size / 64) >> 4 * s & 15) << 4);
}

/// One block with random codes whose values have about the deviation `size`. Layouts: ggml,
/// ggml-common.h, block_q8_0, block_q4_0, block_q4_K, block_q6_K.
void make_block(GgmlType format, float size, Random& random, std::byte* block, size_t bytes) {
  random.fill(block, bytes);
  constexpr std::array kKnown = {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K,
                                 GgmlType::kQ6_K};
  if (std::ranges::find(kKnown, format) == kKnown.end()) return make_any_block(format, size, block);
  if (format == GgmlType::kQ8_0) Random::put(block, half(size / 74));
  if (format == GgmlType::kQ4_0) Random::put(block, half(size / 4.6F));
  if (format == GgmlType::kQ4_K) {
    // All eight scales and minima are 32, so that a code c stands for 32 · d · (c - 7.5).
    constexpr std::array<uint8_t, 12> kScales = {32, 32, 32, 32, 32, 32, 32, 32, 0, 0, 0, 0};
    std::array<uint8_t, 12> scales = kScales;
    // The last four hold their low bits here; their high bits lie above the first four's.
    for (size_t i = 0; i < 8; ++i) scales[i] = static_cast<uint8_t>(32 | 2 << 6);
    const float d = size / (32 * 4.6F);
    Random::put(block, half(d));
    Random::put(block + 2, half(d * 7.5F));
    std::memcpy(block + 4, scales.data(), scales.size());
  }
  if (format == GgmlType::kQ6_K) {
    std::memset(block + 192, 64, 16);
    Random::put(block + 208, half(size / (64 * 18.5F)));
  }
}

/// The upper part of a float32 as float16, without rounding; what is too small is 0.
uint16_t short_float(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  const uint32_t sign = bits >> 16 & 0x8000, rest = (bits & 0x7fffffff) >> 13;
  constexpr uint32_t kBias = (127 - 15) << 10;
  return static_cast<uint16_t>(rest > kBias + 1024 ? sign | (rest - kBias) : sign);
}

void make_row(GgmlType format, float size, Random& random, std::vector<std::byte>& row,
              uint64_t values) {
  const models::GgmlTypeInfo& info = models::ggml_type_info(format);
  row.resize(values / info.block_values * info.block_bytes);
  if (info.block_values == 1) {
    for (uint64_t i = 0; i < values; ++i) {
      const float v = size * 1.7F * random.even();
      if (format == GgmlType::kF32)
        Random::put(row.data() + 4 * i, v);
      else if (format == GgmlType::kF16)
        Random::put(row.data() + 2 * i, short_float(v));
      else  // BF16: the upper half
        Random::put(row.data() + 2 * i, static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
    }
    return;
  }
  for (size_t at = 0; at < row.size(); at += info.block_bytes)
    make_block(format, size, random, row.data() + at, info.block_bytes);
}

struct TensorPlan {
  std::string name;
  uint64_t rows, columns;  ///< rows 0: a vector
  GgmlType format;
  uint64_t bytes, offset;
};

std::vector<TensorPlan> plan(const RandomLlama& m) {
  std::vector<TensorPlan> out;
  uint64_t offset = 0;
  const auto add = [&](std::string name, uint64_t rows, uint64_t columns) {
    const GgmlType format = rows == 0 ? GgmlType::kF32 : m.format;
    const auto& info = models::ggml_type_info(format);
    const uint64_t bytes =
        std::max<uint64_t>(rows, 1) * (columns / info.block_values * info.block_bytes);
    out.push_back({std::move(name), rows, columns, format, bytes, offset});
    offset += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  const uint64_t kv = uint64_t{m.embedding} / m.heads * m.kv_heads;
  add("token_embd.weight", m.vocabulary, m.embedding);
  for (uint32_t i = 0; i < m.layers; ++i) {
    const std::string b = fmt::format("blk.{}.", i);
    add(b + "attn_norm.weight", 0, m.embedding);
    add(b + "attn_q.weight", m.embedding, m.embedding);
    add(b + "attn_k.weight", kv, m.embedding);
    add(b + "attn_v.weight", kv, m.embedding);
    add(b + "attn_output.weight", m.embedding, m.embedding);
    add(b + "ffn_norm.weight", 0, m.embedding);
    add(b + "ffn_gate.weight", m.feed_forward, m.embedding);
    add(b + "ffn_up.weight", m.feed_forward, m.embedding);
    add(b + "ffn_down.weight", m.embedding, m.feed_forward);
  }
  add("output_norm.weight", 0, m.embedding);
  add("output.weight", m.vocabulary, m.embedding);
  return out;
}

/// The part of the file in front of the tensors. Source: ggml repository, docs/gguf.md.
class Header {
 public:
  template <class T>
  void raw(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    text_.append(bytes, sizeof(value));
  }
  void string(std::string_view s) {
    raw(uint64_t{s.size()});
    text_ += s;
  }
  void key(std::string_view name, GgufType type) {
    string(name);
    raw(static_cast<uint32_t>(type));
    ++keys_;
  }
  void u32(std::string_view name, uint32_t v) { key(name, GgufType::kUint32), raw(v); }
  void f32(std::string_view name, float v) { key(name, GgufType::kFloat32), raw(v); }
  void text(std::string_view name, std::string_view v) { key(name, GgufType::kString), string(v); }
  void array(std::string_view name, GgufType element, uint64_t count) {
    key(name, GgufType::kArray);
    raw(static_cast<uint32_t>(element));
    raw(count);
  }
  uint64_t keys() const { return keys_; }
  std::string& bytes() { return text_; }

 private:
  std::string text_;
  uint64_t keys_ = 0;
};

/// Tokens that spell nothing: three special ones, one per byte, and numbers.
void add_vocabulary(Header& h, uint32_t count) {
  h.text("tokenizer.ggml.model", "llama");
  h.array("tokenizer.ggml.tokens", GgufType::kString, count);
  for (uint32_t i = 0; i < count; ++i) {
    constexpr std::array kSpecial = {"<unk>", "<s>", "</s>"};
    h.string(i < 3     ? kSpecial[i]
             : i < 259 ? fmt::format("<0x{:02X}>", i - 3)
                       : fmt::format("t{}", i));
  }
  h.array("tokenizer.ggml.scores", GgufType::kFloat32, count);
  for (uint32_t i = 0; i < count; ++i) h.raw(-static_cast<float>(i));
  h.array("tokenizer.ggml.token_type", GgufType::kInt32, count);
  // Source: llama.h, enum llama_token_type: unknown 2, control 3, byte 6, normal 1.
  for (uint32_t i = 0; i < count; ++i) h.raw(int32_t{i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1});
  h.u32("tokenizer.ggml.bos_token_id", 1);
  h.u32("tokenizer.ggml.eos_token_id", 2);
  h.u32("tokenizer.ggml.unknown_token_id", 0);
}

Header metadata(const RandomLlama& m) {
  Header h;
  h.text("general.architecture", "llama");
  h.text("general.name", "random");
  h.u32("general.quantization_version", 2);
  h.u32("llama.context_length", m.context);
  h.u32("llama.embedding_length", m.embedding);
  h.u32("llama.block_count", m.layers);
  h.u32("llama.feed_forward_length", m.feed_forward);
  h.u32("llama.attention.head_count", m.heads);
  h.u32("llama.attention.head_count_kv", m.kv_heads);
  h.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  h.f32("llama.rope.freq_base", 10000);
  h.u32("llama.rope.dimension_count", m.embedding / m.heads);
  h.u32("llama.vocab_size", m.vocabulary);
  add_vocabulary(h, m.vocabulary);
  return h;
}

std::string file_start(const RandomLlama& m, const std::vector<TensorPlan>& tensors) {
  Header values = metadata(m), start;
  start.bytes() = "GGUF";
  start.raw(uint32_t{3});
  start.raw(uint64_t{tensors.size()});
  start.raw(values.keys());
  start.bytes() += values.bytes();
  for (const TensorPlan& t : tensors) {
    start.string(t.name);
    start.raw(uint32_t{t.rows == 0 ? 1U : 2U});
    start.raw(t.columns);
    if (t.rows != 0) start.raw(t.rows);
    start.raw(static_cast<uint32_t>(t.format));
    start.raw(t.offset);
  }
  start.bytes().resize((start.bytes().size() + kAlignment - 1) / kAlignment * kAlignment);
  return std::move(start.bytes());
}

}  // namespace

uint64_t RandomLlama::parameters() const {
  uint64_t sum = 0;
  for (const TensorPlan& t : plan(*this)) sum += std::max<uint64_t>(t.rows, 1) * t.columns;
  return sum;
}

Result<GgmlType> random_llama_format(const std::string& name) {
  constexpr uint32_t kTypes = 64;
  std::string known = "F32, F16, BF16";
  for (uint32_t number = 0; number < kTypes; ++number) {
    const models::GgmlTypeInfo* info = models::find_ggml_type(number);
    if (info == nullptr) continue;
    const bool is_plain = info->type == GgmlType::kF32 || info->type == GgmlType::kF16 ||
                          info->type == GgmlType::kBF16;
    if (!is_plain && models::find_block_format(info->type) == nullptr) continue;
    if (info->name == name) return info->type;
    if (!is_plain) known += std::string(", ") + info->name;
  }
  return fail(Code::kInvalidArgument, "format {}: one of {}", name, known);
}

std::vector<std::byte> random_blocks(GgmlType format, uint64_t rows, uint64_t columns) {
  Random random(rows);
  std::vector<std::byte> out, row;
  for (uint64_t r = 0; r < rows; ++r) {
    make_row(format, 1 / std::sqrt(static_cast<float>(columns)), random, row, columns);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

Status write_random_llama(const std::function<Status(std::span<const std::byte>)>& write,
                          const RandomLlama& m) {
  constexpr size_t kPiece = size_t{1} << 20;
  const uint64_t block = models::ggml_type_info(m.format).block_values;
  if (m.embedding % block != 0 || m.feed_forward % block != 0)
    return fail(Code::kInvalidArgument, "rows of {} and {} values are not whole blocks of {}",
                m.embedding, m.feed_forward, block);
  const std::vector<TensorPlan> tensors = plan(m);
  std::vector<std::byte> pending, row;
  const auto add = [&](std::span<const std::byte> bytes) -> Status {
    pending.insert(pending.end(), bytes.begin(), bytes.end());
    if (pending.size() < kPiece) return {};
    BM_TRY(write(pending));
    pending.clear();
    return {};
  };
  const std::string start = file_start(m, tensors);
  BM_TRY(add(std::as_bytes(std::span(start))));
  for (const TensorPlan& t : tensors) {
    Random random(t.offset + 1);
    for (uint64_t r = 0; r < std::max<uint64_t>(t.rows, 1); ++r) {
      if (t.rows == 0) {
        const std::vector<float> ones(t.columns, 1.0F);
        row.assign(std::as_bytes(std::span(ones)).begin(), std::as_bytes(std::span(ones)).end());
      } else {
        const float size = 1 / std::sqrt(static_cast<float>(t.columns));
        make_row(t.format, size, random, row, t.columns);
      }
      BM_TRY(add(row));
    }
    constexpr std::array<std::byte, kAlignment> kZeros{};
    BM_TRY(add(std::span(kZeros).first((kAlignment - t.bytes % kAlignment) % kAlignment)));
  }
  return write(pending);
}

}  // namespace bm::cli
