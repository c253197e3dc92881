#include "models/llama_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "models/model_error.h"

namespace bm::models {
namespace {

struct Family {
  const char* name;
  RopeStyle rope_style;
  Activation activation;
  bool has_scaled_embedding;  ///< embeddings are multiplied by sqrt(embedding_length)
};

// Source: llama.cpp, llama-model.cpp (llama_model_rope_type and the graph builders of each model).
constexpr Family kFamilies[] = {
    {"llama", RopeStyle::kInterleaved, Activation::kSilu, false},
    {"qwen2", RopeStyle::kHalves, Activation::kSilu, false},
    {"qwen3", RopeStyle::kHalves, Activation::kSilu, false},
    {"gemma", RopeStyle::kHalves, Activation::kGelu, true},
};

constexpr uint32_t kMaxBlocks = 4096;
constexpr uint32_t kMaxWidth = 1u << 20;
constexpr uint32_t kMaxContext = 1u << 24;

Result<const Family*> find_family(std::string_view name) {
  std::string known;
  for (const Family& f : kFamilies) {
    if (name == f.name) return &f;
    known += std::string(known.empty() ? "" : ", ") + f.name;
  }
  return fail(Code::kUnsupported, "model architecture \"{}\" is not supported (known: {})", name,
              known);
}

Result<uint32_t> ranged(const GgufFile& file, const std::string& key, uint32_t value,
                        uint32_t max) {
  (void)file;
  if (value == 0 || value > max)
    return fail(Code::kCorrupt, "metadata {}: {} is outside 1 to {}", key, value, max);
  return value;
}

Result<uint32_t> need(const GgufFile& file, const std::string& key, uint32_t max) {
  return ranged(file, key, BM_TRY(file.get_u32(key)), max);
}

Result<uint32_t> need_or(const GgufFile& file, const std::string& key, uint32_t fallback,
                         uint32_t max) {
  return ranged(file, key, BM_TRY(file.get_u32(key, fallback)), max);
}

/// Keys under the architecture's prefix that from_gguf() reads.
constexpr std::string_view kReadKeys[] = {"context_length",
                                          "embedding_length",
                                          "block_count",
                                          "feed_forward_length",
                                          "expert_count",
                                          "attention.head_count",
                                          "attention.head_count_kv",
                                          "attention.key_length",
                                          "attention.value_length",
                                          "attention.layer_norm_rms_epsilon",
                                          "attention.causal",
                                          "attention.sliding_window",
                                          "rope.dimension_count",
                                          "rope.freq_base",
                                          "rope.scaling.type",
                                          "rope.scaling.factor",
                                          "rope.scaling.attn_factor",
                                          "rope.scale_linear"};
/// Keys that change no result: what a tensor's shape says again, how the model was trained, how the
/// file was made. Source: gguf.md of ggml, "LLM".
constexpr std::string_view kIdleKeys[] = {"vocab_size", "expert_used_count", "tensor_data_layout",
                                          "rope.scaling.original_context_length",
                                          "rope.scaling.finetuned"};

/// A key that is not understood may ask for other arithmetic than ours.
Status check_keys(const GgufFile& file, const std::string& p) {
  const auto is_in = [](std::string_view key, const auto& list) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
  };
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(p)) continue;
    const std::string_view name = key.substr(p.size());
    if (!is_in(name, kReadKeys) && !is_in(name, kIdleKeys))
      return fail(Code::kUnsupported,
                  "metadata {} is not understood: the model may need what is not done here",
                  quote_name(key));
  }
  return {};
}

/// What is read only to be refused when it asks for something.
Status check_attention(const GgufFile& file, const std::string& p, uint32_t context) {
  if (!BM_TRY(file.get_bool(p + "attention.causal", true)))
    return fail(Code::kUnsupported,
                "metadata {}attention.causal is false: models whose tokens see later ones are not "
                "supported",
                p);
  const uint32_t window = BM_TRY(file.get_u32(p + "attention.sliding_window", 0));
  if (window != 0 && window < context)
    return fail(Code::kUnsupported,
                "metadata {}attention.sliding_window: {} of {} positions; attention to a part of "
                "the text is not supported",
                p, window, context);
  const float factor = BM_TRY(file.get_f32(p + "rope.scaling.attn_factor", 1.0F));
  if (factor != 1.0F)
    return fail(Code::kUnsupported, "metadata {}rope.scaling.attn_factor {} is not supported", p,
                factor);
  return {};
}

/// What positions are divided by. Source: llama.cpp, llama-model.cpp, load_hparams(): a factor
/// without a type is linear, `scale_linear` is its name in older files, and 0 means none.
Result<float> read_rope_scale(const GgufFile& file, const std::string& p) {
  const std::string type = p + "rope.scaling.type", factor = p + "rope.scaling.factor",
                    old_factor = p + "rope.scale_linear";
  const std::string_view kind = BM_TRY(file.get_string(type, "linear"));
  const float old_scale = BM_TRY(file.get_f32(old_factor, 1.0F));
  const float scale = BM_TRY(file.get_f32(factor, old_scale));
  if (!(scale >= 0) || !std::isfinite(scale))
    return fail(Code::kCorrupt, "metadata {} {} is not positive", factor, scale);
  if (file.find(old_factor) != nullptr && old_scale != scale)
    return fail(Code::kCorrupt, "metadata {} is {}, {} is {}", factor, scale, old_factor,
                old_scale);
  if (kind == "none") return 1.0F;
  if (kind == "linear" || kind.empty()) return scale == 0 ? 1.0F : scale;
  return fail(Code::kUnsupported, "metadata {}: {} is not supported (known: none, linear)", type,
              quote_name(kind));
}

Status check_consistency(const LlamaConfig& c, const std::string& p) {
  if (c.head_count % c.head_count_kv != 0)
    return fail(
        Code::kCorrupt,
        "metadata {0}attention.head_count {1} is not a multiple of {0}attention.head_count_kv {2}",
        p, c.head_count, c.head_count_kv);
  if (c.head_length % 2 != 0)
    return fail(Code::kCorrupt, "head length {} is odd; rotary positions need pairs",
                c.head_length);
  if (c.rope_length > c.head_length || c.rope_length % 2 != 0)
    return fail(Code::kCorrupt,
                "metadata {}rope.dimension_count {} does not fit the head length {}", p,
                c.rope_length, c.head_length);
  if (c.rope_style == RopeStyle::kHalves && c.rope_length != c.head_length)
    return fail(Code::kUnsupported,
                "metadata {}rope.dimension_count {}: rotating a part of a head ({}) is not "
                "supported for {}",
                p, c.rope_length, c.head_length, c.architecture);
  if (!(c.norm_epsilon > 0) || !(c.norm_epsilon < 1))
    return fail(Code::kCorrupt, "metadata {}attention.layer_norm_rms_epsilon {} is not in (0, 1)",
                p, c.norm_epsilon);
  if (!(c.rope_base > 0) || !std::isfinite(c.rope_base))
    return fail(Code::kCorrupt, "metadata {}rope.freq_base {} is not positive", p, c.rope_base);
  return {};
}

}  // namespace

Result<LlamaConfig> LlamaConfig::from_gguf(const GgufFile& file) {
  LlamaConfig c;
  c.architecture = std::string(BM_TRY(file.get_string("general.architecture")));
  const Family& family = *BM_TRY(find_family(c.architecture));
  const std::string p = c.architecture + ".";
  if (BM_TRY(file.get_u32(p + "expert_count", 0)) > 0)
    return fail(Code::kUnsupported,
                "metadata {}expert_count: mixture-of-experts models are not supported", p);
  BM_TRY(check_keys(file, p));
  c.context_length = BM_TRY(need(file, p + "context_length", kMaxContext));
  c.embedding_length = BM_TRY(need(file, p + "embedding_length", kMaxWidth));
  c.block_count = BM_TRY(need(file, p + "block_count", kMaxBlocks));
  c.feed_forward_length = BM_TRY(need(file, p + "feed_forward_length", kMaxWidth));
  c.head_count = BM_TRY(need(file, p + "attention.head_count", kMaxWidth));
  c.head_count_kv = BM_TRY(need_or(file, p + "attention.head_count_kv", c.head_count, kMaxWidth));
  if (!file.find(p + "attention.key_length") && c.embedding_length % c.head_count != 0)
    return fail(Code::kCorrupt,
                "metadata {0}embedding_length {1} is not a multiple of {0}attention.head_count {2}",
                p, c.embedding_length, c.head_count);
  c.head_length = BM_TRY(
      need_or(file, p + "attention.key_length", c.embedding_length / c.head_count, kMaxWidth));
  const uint32_t value_length = BM_TRY(file.get_u32(p + "attention.value_length", c.head_length));
  if (value_length != c.head_length)
    return fail(Code::kUnsupported,
                "metadata {}attention.value_length {} differs from the key length {}", p,
                value_length, c.head_length);
  c.rope_length = BM_TRY(need_or(file, p + "rope.dimension_count", c.head_length, kMaxWidth));
  c.norm_epsilon = BM_TRY(file.get_f32(p + "attention.layer_norm_rms_epsilon", 1e-5F));
  c.rope_base = BM_TRY(file.get_f32(p + "rope.freq_base", 10000.0F));
  c.rope_scale = BM_TRY(read_rope_scale(file, p));
  BM_TRY(check_attention(file, p, c.context_length));
  c.rope_style = family.rope_style;
  c.activation = family.activation;
  if (family.has_scaled_embedding)
    c.embedding_scale = std::sqrt(static_cast<float>(c.embedding_length));
  c.has_tied_output = file.find_tensor("output.weight") == nullptr;
  const GgufTensor& embedding = *BM_TRY(file.tensor("token_embd.weight"));
  if (embedding.rank != 2 || embedding.dims[1] == 0 || embedding.dims[1] > kMaxContext)
    return fail(Code::kCorrupt, "tensor token_embd.weight is not a table of tokens");
  c.vocab_size = static_cast<uint32_t>(embedding.dims[1]);
  BM_TRY(check_consistency(c, p));
  return c;
}

}  // namespace bm::models
