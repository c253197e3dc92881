#include "models/llama_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>

#include "models/model_error.h"
#include "runtime/target.h"

namespace bm::models {
namespace {

constexpr uint32_t kMaxBlocks = 4096;
constexpr uint32_t kMaxWidth = 1u << 20;
constexpr uint32_t kMaxContext = 1u << 24;

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

/// Keys under every architecture's prefix that from_gguf() reads.
constexpr std::string_view kReadKeys[] = {"context_length",
                                          "embedding_length",
                                          "block_count",
                                          "feed_forward_length",
                                          "expert_count",
                                          "expert_used_count",
                                          "expert_feed_forward_length",
                                          "expert_shared_feed_forward_length",
                                          "expert_shared_count",
                                          "expert_weights_scale",
                                          "expert_weights_norm",
                                          "expert_gating_func",
                                          "expert_group_count",
                                          "expert_group_used_count",
                                          "leading_dense_block_count",
                                          "interleave_moe_layer_step",
                                          "attention.head_count",
                                          "attention.head_count_kv",
                                          "attention.key_length",
                                          "attention.value_length",
                                          "attention.layer_norm_rms_epsilon",
                                          "attention.layer_norm_epsilon",
                                          "attention.causal",
                                          "rope.dimension_count",
                                          "rope.freq_base",
                                          "rope.scaling.type",
                                          "rope.scaling.factor",
                                          "rope.scaling.attn_factor",
                                          "rope.scaling.original_context_length",
                                          "rope.scaling.yarn_ext_factor",
                                          "rope.scaling.yarn_attn_factor",
                                          "rope.scaling.yarn_beta_fast",
                                          "rope.scaling.yarn_beta_slow",
                                          "rope.scale_linear",
                                          "nextn_predict_layers"};
/// What of a text an embedding takes; whoever makes embeddings reads it.
constexpr std::string_view kPoolingKey = "pooling_type";
/// Keys that change no result: what a tensor's shape says again, how the model was trained, how the
/// file was made. Source: gguf.md of ggml, "LLM".
constexpr std::string_view kIdleKeys[] = {
    "vocab_size",      "tensor_data_layout", "rope.scaling.finetuned", "classifier.output_labels",
    "dense_2_feat_in", "dense_2_feat_out",   "dense_3_feat_in",        "dense_3_feat_out"};

bool has_key(const Architecture& row, std::string_view key) {
  const std::vector<std::string_view> words = runtime::split_words(row.keys);
  return std::find(words.begin(), words.end(), key) != words.end();
}

/// A key that is not understood may ask for other arithmetic than ours.
Status check_keys(const GgufFile& file, const Architecture& row, const std::string& p) {
  const auto is_in = [](std::string_view key, const auto& list) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
  };
  for (const auto& [key, value] : file.metadata()) {
    // Weights rotated before they were quantised: activations have to be rotated as well.
    if (key.starts_with("prism."))
      return fail(Code::kUnsupported, "metadata {} is not understood: weights are kept rotated",
                  quote_name(key));
    if (!key.starts_with(p)) continue;
    const std::string_view name = key.substr(p.size());
    if (!is_in(name, kReadKeys) && !is_in(name, kIdleKeys) && name != kPoolingKey &&
        !has_key(row, name))
      return fail(Code::kUnsupported,
                  "metadata {} is not understood: the model may need what is not done here",
                  quote_name(key));
  }
  return {};
}

/// Result of a key of this architecture; of others, and where the file lacks it, `fallback`.
Result<float> scale_or(const GgufFile& file, const LlamaConfig& c, const char* name,
                       float fallback) {
  if (!has_key(*c.row, name)) return fallback;
  const std::string key = c.architecture + "." + name;
  const float value = BM_TRY(file.get_f32(key, fallback));
  if (!std::isfinite(value) || value < 0)
    return fail(Code::kCorrupt, "metadata {} {} is not positive", key, value);
  return value;
}

/// What positions are divided by. Source: llama.cpp, llama-model.cpp, load_hparams(): a factor
/// without a type is linear, `scale_linear` is its name in older files, and 0 means none.
Status read_rope_scaling(const GgufFile& file, const std::string& p, LlamaConfig* c) {
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
  RopeConfig& r = c->rope;
  r.magnitude = BM_TRY(file.get_f32(p + "rope.scaling.attn_factor", 1.0F));
  if (!(r.magnitude > 0) || !std::isfinite(r.magnitude))
    return fail(Code::kCorrupt, "metadata {}rope.scaling.attn_factor {} is not positive", p,
                r.magnitude);
  r.original_context = BM_TRY(
      need_or(file, p + "rope.scaling.original_context_length", c->context_length, kMaxContext));
  // Converters of Phi and MiniCPM do not always say so.
  r.is_longrope = kind == "longrope" || file.find_tensor("rope_factors_long.weight") != nullptr;
  if (kind == "none") return {};
  if (kind != "linear" && !kind.empty() && kind != "yarn" && kind != "longrope")
    return fail(Code::kUnsupported,
                "metadata {}: {} is not supported (known: none, linear, yarn, longrope)", type,
                quote_name(kind));
  if (scale != 0) r.scale = scale;
  if (kind != "yarn") return {};
  r.is_yarn = true;
  r.extrapolation = BM_TRY(file.get_f32(p + "rope.scaling.yarn_ext_factor", 1.0F));
  r.beta_fast = BM_TRY(
      file.get_f32(p + "rope.scaling.yarn_beta_fast", c->architecture == "grok" ? 8.0F : 32.0F));
  r.beta_slow = BM_TRY(file.get_f32(p + "rope.scaling.yarn_beta_slow", 1.0F));
  r.is_untruncated = BM_TRY(file.get_bool("bellmetal.rope.untruncated", false));
  const float attention = BM_TRY(file.get_f32(p + "rope.scaling.yarn_attn_factor", 1.0F));
  if (!(r.scale >= 1) || !(r.extrapolation >= 0) || !(r.extrapolation <= 1) || !(r.beta_slow > 0) ||
      !(r.beta_fast >= r.beta_slow) || !(attention > 0) || !std::isfinite(attention))
    return fail(Code::kCorrupt,
                "metadata {}rope.scaling: factor {}, yarn_ext_factor {}, yarn_beta_fast {}, "
                "yarn_beta_slow {}, yarn_attn_factor {} fit no scaling of positions",
                p, r.scale, r.extrapolation, r.beta_fast, r.beta_slow, attention);
  // Source: YaRN (Peng and others, 2023), section 3.4.
  r.magnitude *= attention * (1 + 0.1F * std::log(r.scale));
  return {};
}

/// An array of booleans, or of numbers in their place, one a block: which see a window. Blocks that
/// guess may be listed after the others.
Result<std::vector<uint32_t>> read_pattern(const GgufFile& file, const std::string& key,
                                           uint32_t blocks, uint32_t drafts) {
  const GgufValue& value = *file.find(key);
  const GgufArray& array = value.array;
  if (value.type != GgufType::kArray ||
      (array.count != blocks && array.count != uint64_t{blocks} + drafts))
    return fail(Code::kCorrupt, "metadata {} is not a list of {} booleans", key, blocks);
  std::vector<uint32_t> out;
  if (array.element == GgufType::kBool)
    for (const std::byte b : array.raw) out.push_back(std::to_integer<uint32_t>(b));
  else
    for (const int32_t n : BM_TRY(file.get_i32s(key))) out.push_back(n != 0 ? 1 : 0);
  out.resize(blocks);
  return out;
}

/// Which blocks see a window of the text, and which of them rotate by another base.
Status read_blocks(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const std::string key = p + "attention.sliding_window", pattern = key + "_pattern";
  const bool is_encoder = c->row->has(kNoLogits);
  c->is_causal = BM_TRY(file.get_bool(p + "attention.causal", !is_encoder));
  if (is_encoder && c->is_causal)
    return fail(Code::kUnsupported, "metadata {}attention.causal is true: encoders see all", p);
  const bool is_gemma2 = c->architecture == "gemma2";
  const bool is_chunked = c->row->has(kChunked);
  uint32_t window = 0;
  if (has_key(*c->row, "attention.sliding_window"))
    window = BM_TRY(file.get_u32(key, is_gemma2 ? 4096 : is_chunked ? 8192 : 0));
  const auto is_recurrent = [](const BlockConfig& b) { return b.is_recurrent; };
  if (!c->is_causal && std::ranges::any_of(c->blocks, is_recurrent))
    return fail(Code::kUnsupported,
                "metadata {}attention.causal is false: blocks with a state go from token to token",
                p);
  if (window == 0) {
    for (uint32_t i = 0; i < c->block_count; ++i)
      c->blocks[i].is_rotated = !c->row->has(kNoRopeInEveryFourth) || (i + 1) % 4 != 0;
    c->local_rope = c->rope;
    return {};
  }
  uint32_t period = c->row->window_period;
  std::vector<uint32_t> local;
  if (const GgufValue* value =
          has_key(*c->row, "attention.sliding_window_pattern") ? file.find(pattern) : nullptr) {
    if (value->type == GgufType::kArray)
      local = BM_TRY(read_pattern(file, pattern, c->block_count, c->draft_block_count));
    else
      period = BM_TRY(file.get_u32(pattern));
  }
  for (uint32_t i = 0; i < c->block_count; ++i) {
    BlockConfig& b = c->blocks[i];
    const bool is_last_global = !c->row->has(kGlobalFirst);
    b.is_local = !local.empty()   ? local[i] != 0
                 : is_last_global ? period == 0 || i % period + 1 < period
                                  : period != 1 && (period == 0 || i % period != 0);
    (is_chunked ? b.chunk : b.window) = b.is_local ? window : 0;
    b.is_rotated = b.is_local || !(c->row->has(kNoRopeInGlobal) || is_chunked);
  }
  if (is_chunked) {
    c->temperature_length =
        BM_TRY(need_or(file, p + "attention.temperature_length", 8192, kMaxContext));
    c->temperature_scale = BM_TRY(scale_or(file, *c, "attention.temperature_scale", 0.1F));
    c->temperature_offset = 1;
  }
  // Gemma 3 rotates windows by the base of its predecessors; none of the files scales positions
  // there. Source: llama.cpp, src/models/gemma3.cpp, olmo2.cpp.
  c->local_rope = c->rope;
  const bool is_gemma3 = c->architecture == "gemma3" || c->architecture == "gemma-embedding";
  const bool is_gemma4 = c->architecture == "gemma3n" || c->architecture == "gemma4" ||
                         c->architecture == "gemma-embedding2";
  const bool is_plamo = c->architecture == "plamo3";
  const bool is_plain = c->row->has(kPlainLocalRope);
  if (is_gemma3 || is_gemma4 || is_plamo || is_plain) c->local_rope = RopeConfig{};
  if (is_plain) c->local_rope.base = c->rope.base;
  // Factors that leave most of a head as it is are those of blocks that see all.
  c->local_rope.has_factors = c->architecture != "gemma4" && c->architecture != "step35";
  if (has_key(*c->row, "rope.freq_base_swa"))
    c->local_rope.base = BM_TRY(file.get_f32(p + "rope.freq_base_swa", c->local_rope.base));
  return {};
}

/// Source: llama.cpp, src/models/k2-horizon.cpp.
Status read_horizon(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const uint32_t experts = BM_TRY(file.get_u32(p + "attention.value_expert_count", 0));
  if (experts > 0)
    return fail(Code::kUnsupported,
                "metadata {}attention.value_expert_count {}: values made by experts are not "
                "supported",
                p, experts);
  const std::string key = p + "attention.group_norm_groups";
  c->norm_groups = std::max(1u, BM_TRY(file.get_u32(key, 1)));
  if (c->embedding_length % c->norm_groups != 0)
    return fail(Code::kCorrupt, "metadata {} {} does not divide {}embedding_length {}", key,
                c->norm_groups, p, c->embedding_length);
  c->gate_sharpness = 0.69314718F;
  return {};
}

/// Factors that a few families multiply with. Source: llama.cpp, load_arch_hparams() of each.
Status read_scales(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const float width = static_cast<float>(c->embedding_length);
  const bool is_minicpm = c->architecture.starts_with("minicpm");
  if (c->row->has(kScaledEmbedding)) c->embedding_scale = std::sqrt(width);
  // Numbers of Grok 1, whose files lack these keys. Source: llama.cpp, src/models/grok.cpp.
  const bool is_grok = c->architecture == "grok";
  c->embedding_scale = BM_TRY(scale_or(file, *c, "embedding_scale",
                                       is_minicpm ? 12.0F
                                       : is_grok  ? 78.38367176906169F
                                                  : c->embedding_scale));
  const float blocks = static_cast<float>(c->block_count);
  c->residual_scale =
      BM_TRY(scale_or(file, *c, "residual_scale", is_minicpm ? 1.4F / std::sqrt(blocks) : 1.0F));
  c->logit_scale = BM_TRY(scale_or(file, *c, "logit_scale",
                                   is_minicpm ? 256.0F / width
                                   : is_grok  ? 0.5773502691896257F
                                              : 1.0F));
  // 0 stands for "not given".
  for (float* scale : {&c->embedding_scale, &c->residual_scale, &c->logit_scale})
    if (*scale == 0) *scale = 1;
  if (c->row->has(kDividedLogits)) c->logit_scale = 1 / c->logit_scale;
  float per_head = static_cast<float>(c->head_length);
  if ((c->architecture == "gemma2" && c->block_count == 46) ||
      (c->architecture == "gemma3" && c->block_count == 62))
    per_head = static_cast<float>(c->embedding_length / c->head_count);
  if (c->row->has(kTemperature)) {
    c->temperature_scale = BM_TRY(scale_or(file, *c, "attention.temperature_scale", 0));
    c->temperature_length = BM_TRY(
        need_or(file, p + "attention.temperature_length", c->rope.original_context, kMaxContext));
  }
  c->value_scale = BM_TRY(scale_or(file, *c, "attention.value_scale", 1));
  if (c->value_scale == 0) c->value_scale = 1;
  c->attention_scale = BM_TRY(scale_or(file, *c, "attention.scale", 0));
  if (is_grok)
    c->attention_scale = BM_TRY(scale_or(file, *c, "attention.output_scale", 0.08838834764831845F));
  if (c->architecture == "jais") c->attention_scale = 1 / per_head;
  if (c->row->has(kUnscaledScores) && c->attention_scale == 0) c->attention_scale = 1;
  if (c->attention_scale == 0) c->attention_scale = 1 / std::sqrt(per_head);
  // DeepSeek leaves rotations as long as they were and sharpens the scores instead. Source: its
  // modeling_deepseek.py, yarn_get_mscale(); the key is a tenth of mscale_all_dim.
  const float multiplier = BM_TRY(scale_or(file, *c, "rope.scaling.yarn_log_multiplier", 0));
  if (c->rope.is_yarn && multiplier > 0) {
    const float sharpness = 1 + multiplier * std::log(c->rope.scale);
    // Mistral 3 has mscale_all_dim itself there, and its scores stay as they are. Source:
    // llama.cpp, src/llama-context.cpp, get_mscale().
    const bool is_mistral = c->architecture == "mistral3";
    if (is_mistral) c->rope.magnitude /= 1 + 0.1F * multiplier * std::log(c->rope.scale);
    if (!is_mistral) c->attention_scale *= sharpness * sharpness;
    if (!is_mistral) c->rope.magnitude /= 1 + 0.1F * std::log(c->rope.scale);
  }
  const bool is_gemma2 = c->architecture == "gemma2";
  const bool is_capped = is_gemma2 || c->architecture == "gemma3n" || c->architecture == "gemma4";
  c->attention_softcap = BM_TRY(scale_or(file, *c, "attn_logit_softcapping",
                                         is_gemma2 ? 50.0F
                                         : is_grok ? 30.0F
                                                   : 0.0F));
  c->logit_softcap =
      BM_TRY(scale_or(file, *c, "final_logit_softcapping", is_capped ? 30.0F : 0.0F));
  c->qkv_limit = BM_TRY(scale_or(file, *c, "attention.clamp_kqv", 0));
  if (c->architecture == "k2-horizon") BM_TRY(read_horizon(file, p, c));
  // In encoders half of them are of what comes later; half of each kind are of one distance each.
  const std::string key = p + "attention.relative_buckets_count";
  const bool may_have = has_key(*c->row, "attention.relative_buckets_count");
  if (c->row->has(kDistanceBias) || (may_have && file.find(key) != nullptr)) {
    c->distance_buckets = BM_TRY(need(file, key, 128));
    if (c->distance_buckets % 4 != 0)
      return fail(Code::kCorrupt, "metadata {} {} is not a multiple of 4", key,
                  c->distance_buckets);
    if (c->head_count_kv != c->head_count)
      return fail(Code::kUnsupported,
                  "metadata {}attention.head_count_kv {} is not the number of heads, {}", p,
                  c->head_count_kv, c->head_count);
  }
  if (has_key(*c->row, "attention.relative_span")) {
    c->relative.span = BM_TRY(need(file, p + "attention.relative_span", 1u << 16));
    c->relative.limit = BM_TRY(file.get_u32(p + "attention.relative_limit", 0));
    const std::string parts(BM_TRY(file.get_string(p + "attention.relative_parts", "c2p p2c")));
    c->relative.of_query = parts.find("c2p") != parts.npos;
    c->relative.of_key = parts.find("p2c") != parts.npos;
    if (c->relative.limit != 0 && c->relative.limit <= c->relative.span / 2 + 1)
      return fail(Code::kCorrupt, "metadata {0}attention.relative_limit {1} is too small for {2}",
                  p, c->relative.limit, c->relative.span);
    // What is compared has as many parts, each of which has a share in the scores.
    c->attention_scale =
        1 / std::sqrt(static_cast<float>(c->head_length) *
                      static_cast<float>(1 + int{c->relative.of_query} + int{c->relative.of_key}));
  }
  if (c->row->has(kAlibi))
    c->alibi_bias = BM_TRY(scale_or(file, *c, "attention.max_alibi_bias", 8));
  c->is_parallel = c->row->has(kParallelBlock);
  if (has_key(*c->row, "use_parallel_residual"))
    c->is_parallel =
        BM_TRY(file.get_bool(p + "use_parallel_residual", c->architecture == "gptneox"));
  return {};
}

Result<Gating> read_gating(const GgufFile& file, const std::string& p, const Architecture& row) {
  const Gating usual = row.has(kSigmoidGating)    ? Gating::kSigmoid
                       : row.has(kSelectedGating) ? Gating::kSoftmaxOfSelected
                                                  : Gating::kSoftmax;
  const std::string key = p + "expert_gating_func";
  const uint32_t number = BM_TRY(file.get_u32(key, static_cast<uint32_t>(usual)));
  if (number == 0) return usual;
  if (number > static_cast<uint32_t>(Gating::kSoftmaxOfSelected))
    return fail(Code::kUnsupported, "metadata {} {} is not known (1 to 3 are)", key, number);
  return static_cast<Gating>(number);
}

/// Hidden units of the expert that all tokens have, and of the others. Source: llama.cpp,
/// load_arch_tensors() of each.
Status read_expert_lengths(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  ExpertConfig& e = c->experts;
  // Older files of these say how much all experts of a token have together.
  const bool is_sum = c->architecture == "qwen2moe" || c->architecture == "qwen3moe" ||
                      c->architecture == "glm4moe" || c->architecture == "grovemoe";
  e.length =
      BM_TRY(need_or(file, p + "expert_feed_forward_length",
                     is_sum ? c->feed_forward_length / e.used : c->feed_forward_length, kMaxWidth));
  const uint32_t shared_count = BM_TRY(file.get_u32(p + "expert_shared_count", 0));
  uint32_t shared = 0;
  if (c->row->has(kSharedExpert))
    shared = c->row->has(kWeightedInputs) ? e.length : c->feed_forward_length;
  const bool is_counted = shared_count > 0 && shared_count <= kMaxWidth / e.length;
  if (shared_count > 0 && !is_counted)
    return fail(Code::kCorrupt, "metadata {}expert_shared_count {} is too large", p, shared_count);
  // Hunyuan counts shared experts and has one matrix of the length of a dense block.
  if (is_counted && !c->row->has(kSharedExpert)) shared = shared_count * e.length;
  if (c->architecture == "hy_v3" && shared == 0) shared = e.length;
  e.shared_length = BM_TRY(file.get_u32(p + "expert_shared_feed_forward_length", shared));
  // Ling 2 says how long one shared expert is, and how many there are.
  if (c->architecture == "bailingmoe2" && is_counted && e.shared_length <= kMaxWidth &&
      e.shared_length != shared)
    e.shared_length = static_cast<uint32_t>(
        std::min<uint64_t>(uint64_t{e.shared_length} * shared_count, uint64_t{kMaxWidth} + 1));
  if (e.shared_length == 0) e.shared_length = shared;
  if (e.shared_length > kMaxWidth)
    return fail(Code::kCorrupt, "metadata {}expert_shared_feed_forward_length {} is too large", p,
                e.shared_length);
  return {};
}

Status read_experts(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  ExpertConfig& e = c->experts;
  e.count = BM_TRY(file.get_u32(p + "expert_count", 0));
  if (e.count == 0) return {};
  if (!c->row->has(kExperts))
    return fail(Code::kUnsupported,
                "metadata {}expert_count: {} models with experts are not supported", p,
                c->architecture);
  e.used = BM_TRY(file.get_u32(p + "expert_used_count"));
  if (e.count > kMaxWidth || e.used == 0 || e.used > e.count)
    return fail(Code::kCorrupt,
                "metadata {0}expert_used_count {1} does not fit {0}expert_count {2}", p, e.used,
                e.count);
  BM_TRY(read_expert_lengths(file, p, c));
  e.gating = BM_TRY(read_gating(file, p, *c->row));
  e.is_normalised =
      BM_TRY(file.get_bool(p + "expert_weights_norm", c->row->has(kNormalisedExperts)));
  e.scale = BM_TRY(file.get_f32(p + "expert_weights_scale", 1.0F));
  if (e.scale == 0) e.scale = 1;  // not given
  if (!std::isfinite(e.scale) || e.scale < 0)
    return fail(Code::kCorrupt, "metadata {}expert_weights_scale {} is not positive", p, e.scale);
  e.softcap = BM_TRY(scale_or(file, *c, "router_logit_softcapping", 0));
  for (const char* name : {"moe_latent_size", "expert_latent_length"})
    if (has_key(*c->row, name) && file.find(p + name) != nullptr)
      e.latent = BM_TRY(file.get_u32(p + name));
  if (e.latent > kMaxWidth)
    return fail(Code::kCorrupt, "metadata {}moe_latent_size {} is too large", p, e.latent);
  if (has_key(*c->row, "experts_per_group")) {
    e.adjugate.each = BM_TRY(need(file, p + "experts_per_group", e.count));
    e.adjugate.length = BM_TRY(need(file, p + "expert_chunk_feed_forward_length", kMaxWidth));
    e.adjugate.scale = BM_TRY(scale_or(file, *c, "expert_group_scale", 0.05F));
    if (e.count % e.adjugate.each != 0)
      return fail(Code::kCorrupt,
                  "metadata {0}experts_per_group {1} does not divide {0}expert_count {2}", p,
                  e.adjugate.each, e.count);
  }
  e.groups = std::max(1u, BM_TRY(file.get_u32(p + "expert_group_count", 1)));
  e.groups_used = e.groups;
  if (e.groups > 1) e.groups_used = BM_TRY(file.get_u32(p + "expert_group_used_count"));
  if (e.count % e.groups != 0 || e.groups_used == 0 || e.groups_used > e.groups ||
      e.used > e.count / e.groups * e.groups_used || (e.groups > 1 && e.count / e.groups < 2))
    return fail(Code::kCorrupt,
                "metadata {0}expert_group_count {1} and {0}expert_group_used_count {2} do not fit "
                "{3} of {4} experts",
                p, e.groups, e.groups_used, e.used, e.count);
  const uint32_t leading = BM_TRY(file.get_u32(p + "leading_dense_block_count", 0));
  const uint32_t step = BM_TRY(need_or(file, p + "interleave_moe_layer_step", 1, kMaxBlocks));
  // Source: llama.cpp, src/models/bert.cpp.
  const bool is_sparse = c->architecture == "nomic-bert-moe";
  const uint32_t every = is_sparse ? BM_TRY(need(file, p + "moe_every_n_layers", kMaxBlocks)) : 0;
  for (uint32_t i = 0; i < c->block_count; ++i) {
    bool has_experts = is_sparse ? i % every == 1 : i >= leading && (i + 1) % step == 0;
    // Jamba's files do not say which; their tensors do.
    if (c->row->has(kMamba) || c->row->has(kExpertsBesideDense) || c->architecture == "mimo2")
      has_experts = file.find_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", i)) != nullptr;
    c->blocks[i].has_experts = has_experts && c->blocks[i].has_feed_forward;
    if (c->architecture == "cohere2moe" && i < leading) c->blocks[i].is_rotated = true;
  }
  return {};
}

/// Files that keep the two factors of keys and values apart have the lengths of the compressed
/// heads under the usual keys, and those of real ones under others.
Status read_latent(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (!c->row->has(kLatent)) return {};
  LatentConfig& l = c->latent;
  l.rank = BM_TRY(need(file, p + "attention.kv_lora_rank", kMaxWidth));
  l.query_rank = BM_TRY(file.get_u32(p + "attention.q_lora_rank", 0));
  const bool is_split = has_key(*c->row, "attention.key_length_mla") &&
                        file.find(p + "attention.key_length_mla") != nullptr;
  const std::string suffix = is_split ? "_mla" : "";
  c->head_length = BM_TRY(need(file, p + "attention.key_length" + suffix, kMaxWidth));
  l.value_length = BM_TRY(need(file, p + "attention.value_length" + suffix, kMaxWidth));
  if (l.query_rank > kMaxWidth || c->rope_length >= c->head_length || c->rope_length % 2 != 0)
    return fail(Code::kCorrupt,
                "metadata {0}rope.dimension_count {1}, {0}attention.q_lora_rank {2}: no latent "
                "attention with heads of {3}",
                p, c->rope_length, l.query_rank, c->head_length);
  return {};
}

/// Which blocks of GLM have an indexer, 1, or share that of a block before, 0. Files that do not
/// say so are of GLM 5, whose blocks all have one, or of 5.2, by the context they are for. Source:
/// llama.cpp, src/models/glm-dsa.cpp.
Result<std::vector<uint32_t>> read_indexer_types(const GgufFile& file, const std::string& p,
                                                 const LlamaConfig& c) {
  const std::string key = p + "attention.indexer.types";
  if (const GgufValue* value = file.find(key); value && value->type == GgufType::kArray)
    return read_pattern(file, key, c.block_count, c.draft_block_count);
  const bool has_key_here = file.find(key) != nullptr;
  const bool is_own = has_key_here && BM_TRY(file.get_u32(key)) != 0;
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < c.block_count; ++i)
    out.push_back(has_key_here ? is_own : c.context_length < 1048576 || i < 2 || (i - 2) % 4 == 0);
  return out;
}

Status read_indexer(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (!c->row->has(kIndexed)) return {};
  const std::string q = p + "attention.indexer.";
  // Some files of Hy 4 have none.
  const bool is_hunyuan = c->architecture == "hy_v4";
  if (is_hunyuan && BM_TRY(file.get_u32(q + "top_k", 0)) == 0) return {};
  IndexerConfig& x = c->indexer;
  x.chosen = BM_TRY(need(file, q + "top_k", kMaxContext));
  const bool has_blocks = has_key(*c->row, "attention.indexer.block_size");
  if (has_blocks) x.block = BM_TRY(need(file, q + "block_size", kMaxContext));
  const uint64_t whole = uint64_t{x.chosen} * x.block;
  if (whole >= c->context_length) return {};
  c->indexed_from = static_cast<uint32_t>(whole);
  x.heads = BM_TRY(need(file, q + "head_count", kMaxWidth));
  x.length = BM_TRY(need(file, q + "key_length", kMaxWidth));
  if (has_blocks) x.local = BM_TRY(file.get_u32(q + "local_blocks", 0));
  if (x.length < c->rope_length || x.length % 2 != 0 ||
      (has_blocks && x.heads != c->head_count_kv) || (!has_blocks && c->latent.query_rank == 0))
    return fail(Code::kUnsupported,
                "metadata {0}head_count {1}, {0}key_length {2}: no indexer of a model with {3} "
                "heads of keys, of which {4} components are rotated",
                q, x.heads, x.length, c->head_count_kv, c->rope_length);
  x.rope_style = c->architecture == "deepseek32" ? RopeStyle::kHalves
                 : has_blocks                    ? c->rope_style
                                                 : RopeStyle::kInterleaved;
  x.rotates_tail = is_hunyuan;
  std::vector<uint32_t> is_own(c->block_count, 1);
  const bool has_types = has_key(*c->row, "attention.indexer.types") &&
                         (!is_hunyuan || file.find(q + "types") != nullptr);
  if (has_types) is_own = BM_TRY(read_indexer_types(file, p, *c));
  const uint32_t first = has_blocks ? BM_TRY(file.get_u32(p + "leading_dense_block_count", 0)) : 0;
  for (uint32_t i = first; i < c->block_count; ++i)
    c->blocks[i].indexer = is_own[i] != 0 ? Indexer::kOwn : Indexer::kShared;
  if (first < c->block_count && is_own[first] == 0)
    return fail(Code::kCorrupt, "metadata {}types: block {} has no block before it to share with",
                q, first);
  return {};
}

/// Numbers of a key for every block: an array of them, or one for all.
Status read_floats(const GgufFile& file, const std::string& key, LlamaConfig* c,
                   const std::function<void(BlockConfig&, float)>& put,
                   bool may_be_infinite = false) {
  const GgufValue* value = file.find(key);
  const bool is_array = value != nullptr && value->type == GgufType::kArray;
  std::vector<float> values(c->block_count);
  if (is_array) {
    const GgufArray& array = value->array;
    const uint64_t with_drafts = uint64_t{c->block_count} + c->draft_block_count;
    if (array.element != GgufType::kFloat32 ||
        (array.count != c->block_count && array.count != with_drafts))
      return fail(Code::kCorrupt, "metadata {} is not a list of {} numbers", key, c->block_count);
    std::memcpy(values.data(), array.raw.data(), values.size() * sizeof(float));
  } else {
    std::fill(values.begin(), values.end(), BM_TRY(file.get_f32(key)));
  }
  for (uint32_t i = 0; i < c->block_count; ++i) {
    if (std::isnan(values[i]) || (!may_be_infinite && std::isinf(values[i])))
      return fail(Code::kCorrupt, "metadata {} {} is no number", key, values[i]);
    put(c->blocks[i], values[i]);
  }
  return {};
}

/// What a token has between blocks, and what blocks read of it.
Status read_streams(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (has_key(*c->row, "attn_res.block_size")) {
    c->kept_every = BM_TRY(file.get_u32(p + "attn_res.block_size"));
    if (c->kept_every > kMaxBlocks)
      return fail(Code::kCorrupt, "metadata {}attn_res.block_size {} is too large", p,
                  c->kept_every);
  }
  if (!has_key(*c->row, "hyper_connection.count")) return {};
  c->hyper.count = BM_TRY(need(file, p + "hyper_connection.count", 64));
  c->hyper.epsilon = BM_TRY(scale_or(file, *c, "hyper_connection.epsilon", 0));
  c->hyper.magnitude = BM_TRY(scale_or(file, *c, "hyper_connection.magnitude", 1));
  return {};
}

Status read_activation(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  c->activation = c->row->activation;
  if (c->activation == Activation::kSitu) {
    c->situ.beta = BM_TRY(scale_or(file, *c, "activation.situ_beta", 0));
    c->situ.linear_beta = BM_TRY(file.get_f32(p + "activation.situ_linear_beta", 0));
    if (c->situ.beta == 0 || !std::isfinite(c->situ.linear_beta))
      return fail(Code::kCorrupt,
                  "metadata {0}activation.situ_beta {1}, situ_linear_beta {2} cap "
                  "nothing",
                  p, c->situ.beta, c->situ.linear_beta);
  }
  if (has_key(*c->row, "hidden_activation")) {
    const std::string key = p + "hidden_activation";
    const bool is_gelu = c->row->activation == Activation::kGelu;
    const std::string_view name = BM_TRY(file.get_string(key, is_gelu ? "gelu" : "silu"));
    if (name != "gelu" && name != "silu" && name != "relu2")
      return fail(Code::kUnsupported, "metadata {}: {} is not supported (known: gelu, silu, relu2)",
                  key, quote_name(name));
    c->activation = name == "silu"   ? Activation::kSilu
                    : name == "gelu" ? Activation::kGelu
                                     : Activation::kReluSquared;
  }
  if (c->activation == Activation::kGelu && BM_TRY(file.get_bool("bellmetal.gelu.exact", false)))
    c->activation = Activation::kExactGelu;
  // The first T5 has no gate. Source: llama.cpp, src/models/t5.cpp.
  if (c->row->has(kDistanceBias) &&
      file.find_tensor(c->block_prefix(0) + "ffn_gate.weight") == nullptr)
    c->activation = Activation::kRelu;
  if (c->activation != Activation::kXielu) return {};
  const auto softplus = [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  // Keys without a prefix. Source: llama.cpp, src/models/apertus.cpp, ggml_xielu().
  BM_TRY(read_floats(file, "xielu.beta", c, [](auto& b, float v) { b.xielu.beta = v; }));
  BM_TRY(read_floats(file, "xielu.eps", c, [](auto& b, float v) { b.xielu.eps = v; }));
  BM_TRY(read_floats(file, "xielu.alpha_p", c,
                     [&](auto& b, float v) { b.xielu.alpha_p = softplus(v); }));
  return read_floats(file, "xielu.alpha_n", c,
                     [&](auto& b, float v) { b.xielu.alpha_n = b.xielu.beta + softplus(v); });
}

Status read_delta_net(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  RecurrentConfig& r = c->recurrent;
  r.kernel = BM_TRY(need(file, p + "ssm.conv_kernel", 1024));
  r.length = r.keys = BM_TRY(need(file, p + "ssm.state_size", kMaxWidth));
  r.heads = BM_TRY(need(file, p + "ssm.time_step_rank", kMaxWidth));
  r.groups = BM_TRY(need(file, p + "ssm.group_count", kMaxWidth));
  const uint32_t inner = BM_TRY(need(file, p + "ssm.inner_size", kMaxWidth));
  if (r.kernel < 2 || r.heads % r.groups != 0 || uint64_t{r.heads} * r.length != inner)
    return fail(Code::kCorrupt,
                "metadata {0}ssm: inner_size {1}, state_size {2}, time_step_rank {3}, group_count "
                "{4}, conv_kernel {5} make no delta network",
                p, inner, r.length, r.heads, r.groups, r.kernel);
  r.channels = inner + 2 * r.groups * r.length;
  const std::string list = p + "attention.recurrent_layers";
  const uint32_t all = c->block_count + c->draft_block_count;
  std::vector<uint32_t> chosen;
  if (const GgufValue* value = file.find(list); value && value->type == GgufType::kArray)
    chosen = BM_TRY(read_pattern(file, list, all, 0));
  const uint32_t period = BM_TRY(need_or(file, p + "full_attention_interval", 4, kMaxBlocks));
  for (uint32_t i = 0; i < c->block_count; ++i) {
    c->blocks[i].is_recurrent = chosen.empty() ? (i + 1) % period != 0 : chosen[i] != 0;
    c->blocks[i].has_attention = !c->blocks[i].is_recurrent;
  }
  return {};
}

/// Source: llama.cpp, src/models/mamba.cpp, mamba2.cpp, load_arch_hparams().
Status read_mamba(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (std::ranges::none_of(c->blocks, [](const BlockConfig& b) { return b.is_recurrent; }))
    return {};
  RecurrentConfig& r = c->recurrent;
  const bool is_first = c->row->has(kMamba);
  const uint32_t inner = BM_TRY(need(file, p + "ssm.inner_size", kMaxWidth)),
                 rank = BM_TRY(need(file, p + "ssm.time_step_rank", kMaxWidth));
  r.kernel = BM_TRY(need(file, p + "ssm.conv_kernel", 1024));
  r.keys = BM_TRY(need(file, p + "ssm.state_size", kMaxWidth));
  r.groups = is_first ? 1 : BM_TRY(need(file, p + "ssm.group_count", kMaxWidth));
  r.heads = is_first ? inner : rank;
  r.length = inner / r.heads;
  const uint64_t channels = is_first ? inner : inner + 2 * uint64_t{r.groups} * r.keys;
  if (r.kernel < 2 || r.inner() != inner || r.heads % r.groups != 0 || channels > kMaxWidth)
    return fail(Code::kCorrupt,
                "metadata {0}ssm: inner_size {1}, state_size {2}, time_step_rank {3}, group_count "
                "{4}, conv_kernel {5} make no state space",
                p, inner, r.keys, rank, r.groups, r.kernel);
  r.channels = static_cast<uint32_t>(channels);
  if (is_first) r.step_rank = rank;
  if (has_key(*c->row, "ssm.dt_b_c_rms"))
    r.has_plain_norms = BM_TRY(file.get_bool(p + "ssm.dt_b_c_rms", false));
  return {};
}

/// Source: llama.cpp, src/models/rwkv6.cpp, rwkv7.cpp, load_arch_hparams().
Status read_rwkv(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  RecurrentConfig& r = c->recurrent;
  const bool is_seventh = c->row->has(kRwkv7), has_mix = c->row->has(kChannelMix);
  r.length = r.keys = BM_TRY(need(file, p + "wkv.head_size", kMaxWidth));
  if (c->embedding_length % r.length != 0)
    return fail(Code::kCorrupt,
                "metadata {0}embedding_length {1} is not a multiple of {0}wkv.head_size {2}", p,
                c->embedding_length, r.length);
  r.heads = c->embedding_length / r.length;
  // Of the token before: what the recurrence read, and what the feed-forward did.
  r.kernel = 2;
  const uint32_t shifts = has_mix ? 2 : 1;
  r.channels = c->embedding_length * shifts;
  const uint32_t said = BM_TRY(file.get_u32(p + "token_shift_count", shifts));
  if (said != shifts)
    return fail(Code::kUnsupported, "metadata {}token_shift_count {} is not supported (known: {})",
                p, said, shifts);
  r.has_bonus = !is_seventh && has_mix;
  r.vectors = is_seventh ? 6 : 4;
  r.groups = r.heads;
  if (!is_seventh && !has_mix) {
    r.groups = BM_TRY(file.get_u32(p + "attention.head_count_kv", 0));
    if (r.groups == 0) r.groups = r.heads;
    if (r.groups > r.heads || r.heads % r.groups != 0)
      return fail(Code::kCorrupt, "metadata {}attention.head_count_kv {} does not divide {} heads",
                  p, r.groups, r.heads);
  }
  const uint32_t every = BM_TRY(file.get_u32(p + "rescale_every_n_layers", 0));
  // Only the graph of the sixth version does so.
  r.halved_every = r.has_bonus ? every : 0;
  return {};
}

/// Source: llama.cpp, src/models/kimi-linear.cpp, bailingmoe3.cpp, kimi-k3.cpp,
/// load_arch_hparams().
Status read_key_decay(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  RecurrentConfig& r = c->recurrent;
  if (std::ranges::none_of(c->blocks, [](const BlockConfig& b) { return b.is_recurrent; }))
    return {};
  r.kernel = BM_TRY(need(file, p + "ssm.conv_kernel", 1024));
  r.length = r.keys = BM_TRY(need(file, p + "kda.head_dim", kMaxWidth));
  r.heads = r.groups = c->head_count;
  if (r.kernel < 2 || r.inner() > kMaxWidth)
    return fail(Code::kCorrupt,
                "metadata {0}ssm.conv_kernel {1}, {0}kda.head_dim {2} make no delta network", p,
                r.kernel, r.length);
  r.channels = static_cast<uint32_t>(3 * r.inner());
  r.decays_by_keys = true;
  if (!has_key(*c->row, "kda.gate_lower_bound")) return {};
  const std::string bound = p + "kda.gate_lower_bound";
  if (c->architecture == "kimi-k3" && file.find(bound) == nullptr) return {};
  r.decay_floor = BM_TRY(file.get_f32(bound));
  if (!(r.decay_floor < 0) || !std::isfinite(r.decay_floor))
    return fail(Code::kCorrupt, "metadata {} {} is not negative", bound, r.decay_floor);
  if (has_key(*c->row, "kda.safe_gate") && !BM_TRY(file.get_bool(p + "kda.safe_gate", true)))
    return fail(Code::kUnsupported, "metadata {}kda.safe_gate is false: decays without a bound", p);
  return {};
}

/// A number of each block, given once for all or as a list; 0 in blocks that lack what it counts.
/// Where there is any it is the same, or `may_differ`. `common`: the largest.
Result<std::vector<uint32_t>> read_counts(const GgufFile& file, const std::string& key,
                                          uint32_t blocks, uint32_t* common,
                                          bool may_differ = false, uint32_t drafts = 0) {
  const GgufValue* value = file.find(key);
  if (value == nullptr || value->type != GgufType::kArray) {
    *common = BM_TRY(need(file, key, kMaxWidth));
    return std::vector<uint32_t>(blocks, *common);
  }
  const std::vector<int32_t> list = BM_TRY(file.get_i32s(key));
  if (list.size() != blocks && list.size() != size_t{blocks} + drafts)
    return fail(Code::kCorrupt, "metadata {} is not a list of {} numbers", key, blocks);
  std::vector<uint32_t> out;
  *common = 0;
  for (const int32_t n : std::span(list).first(blocks)) {
    const auto count = static_cast<uint32_t>(n);
    if (n < 0 || (!may_differ && count != 0 && *common != 0 && count != *common))
      return fail(Code::kUnsupported, "metadata {}: {} in one block, {} in another", key, n,
                  *common);
    if (count > kMaxWidth) return fail(Code::kCorrupt, "metadata {}: {} is too large", key, n);
    *common = std::max(*common, count);
    out.push_back(count);
  }
  return out;
}

Status read_feed_forward_length(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const std::string key = p + "feed_forward_length";
  if (c->row->has(kNoFeedForward)) {
    for (BlockConfig& b : c->blocks) b.has_feed_forward = false;
    return {};
  }
  if (c->row->has(kOneOfThree)) {
    const auto lengths = BM_TRY(read_counts(file, key, c->block_count, &c->feed_forward_length,
                                            false, c->draft_block_count));
    for (size_t i = 0; i < lengths.size(); ++i) {
      c->blocks[i].has_feed_forward = lengths[i] != 0;
      c->blocks[i].feed_forward_length = lengths[i];
    }
    return {};
  }
  if (c->row->has(kUnevenBlocks) && file.find(key) != nullptr) {
    const auto lengths = BM_TRY(read_counts(file, key, c->block_count, &c->feed_forward_length,
                                            true, c->draft_block_count));
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] == 0 && !c->row->has(kMayLackAttention))
        return fail(Code::kUnsupported, "metadata {}: block {} has no feed-forward", key, i);
      c->blocks[i].has_feed_forward = lengths[i] != 0;
      c->blocks[i].feed_forward_length = lengths[i];
    }
    return {};
  }
  // Files whose blocks all have experts may lack it.
  const uint32_t expert_length = BM_TRY(file.get_u32(p + "expert_feed_forward_length", 0));
  c->feed_forward_length = expert_length == 0
                               ? BM_TRY(need(file, key, kMaxWidth))
                               : BM_TRY(need_or(file, key, expert_length, kMaxWidth));
  // The first Qwen counts the rows of gate and up together.
  if (c->architecture == "qwen") c->feed_forward_length /= 2;
  for (BlockConfig& b : c->blocks)
    b.feed_forward_length =
        c->architecture == "arctic" ? c->embedding_length : c->feed_forward_length;
  return {};
}

/// Heads that may differ from block to block; their lengths may be others in those with a window.
Status read_uneven_heads(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const std::string count_key = p + "attention.head_count", kv_key = count_key + "_kv";
  const uint32_t drafts = c->draft_block_count;
  const auto counts =
      BM_TRY(read_counts(file, count_key, c->block_count, &c->head_count, true, drafts));
  const bool has_kv = file.find(kv_key) != nullptr;
  const auto kv_counts =
      has_kv ? BM_TRY(read_counts(file, kv_key, c->block_count, &c->head_count_kv, true, drafts))
             : counts;
  c->head_count_kv = std::ranges::max(kv_counts);
  for (uint32_t i = 0; i < c->block_count; ++i) {
    BlockConfig& b = c->blocks[i];
    b.has_attention = counts[i] != 0 && kv_counts[i] != 0;
    b.is_linear = counts[i] != 0 && kv_counts[i] == 0;
    if (!b.has_attention && !c->row->has(kMayLackAttention))
      return fail(Code::kUnsupported, "metadata {}: block {} has no heads", kv_key, i);
    // Nothing here was ever compared with a model that has such blocks.
    if (!b.has_feed_forward && counts[i] != 0)
      return fail(Code::kUnsupported,
                  "metadata {}feed_forward_length: block {} has heads and no feed-forward", p, i);
    // Of blocks without, those of others: nothing is made of them.
    c->head_kinds.push_back({.count = b.has_attention ? counts[i] : c->head_count,
                             .count_kv = b.has_attention ? kv_counts[i] : c->head_count_kv});
    b.heads = i;
  }
  if (c->head_count_kv == 0)
    return fail(Code::kUnsupported, "metadata {}: no block has attention", kv_key);
  return {};
}

/// Which blocks have heads alike; their lengths. After read_blocks().
Status number_head_kinds(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const std::string local_key = p + "attention.key_length_swa";
  uint32_t local_length = c->head_length;
  if (has_key(*c->row, "attention.key_length_swa")) {
    local_length = BM_TRY(need_or(file, local_key, c->head_length, kMaxWidth));
    const uint32_t values = BM_TRY(file.get_u32(p + "attention.value_length_swa", local_length));
    if (values != local_length)
      return fail(Code::kUnsupported, "metadata {}attention.value_length_swa {} differs from {}", p,
                  values, local_length);
  }
  const std::vector<HeadKind> each = std::move(c->head_kinds);
  c->head_kinds.clear();
  for (BlockConfig& b : c->blocks) {
    HeadKind kind{.count = c->head_count,
                  .count_kv = c->head_count_kv,
                  .length = c->head_length,
                  .value_length = 0};
    if (!each.empty()) kind = each[b.heads];
    kind.length = b.is_local ? local_length : c->head_length;
    kind.value_length = c->row->has(kShortValues) ? c->value_length : kind.length;
    const auto at = std::ranges::find(c->head_kinds, kind);
    b.heads = static_cast<uint32_t>(at - c->head_kinds.begin());
    if (at == c->head_kinds.end()) c->head_kinds.push_back(kind);
  }
  c->head_length = std::max(c->head_length, local_length);
  c->local_rope.length = c->rope.length = c->rope_length;
  // Blocks that see all rotate half of what the others do. Source: llama.cpp, step35.cpp.
  if (c->architecture == "step35") c->rope.length = c->rope_length /= 2;
  if (has_key(*c->row, "rope.dimension_count_swa"))
    c->local_rope.length = BM_TRY(need_or(file, p + "rope.dimension_count_swa",
                                          std::min(local_length, c->local_rope.length), kMaxWidth));
  return {};
}

/// What single families say of single blocks. Source: llama.cpp, src/models/granite-swa.cpp,
/// step35.cpp, and of its limits build_moe_ffn() and build_ffn().
Status read_details(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const std::string pattern = p + "attention.rope_pattern";
  if (has_key(*c->row, "attention.rope_pattern") && file.find(pattern) != nullptr) {
    const auto rotated = BM_TRY(read_pattern(file, pattern, c->block_count, c->draft_block_count));
    for (uint32_t i = 0; i < c->block_count; ++i) c->blocks[i].is_rotated = rotated[i] != 0;
  }
  if (!has_key(*c->row, "swiglu_clamp_exp")) return {};
  // Early files do not say so. Source: llama.cpp, src/models/maple.cpp.
  if (c->architecture == "maple")
    for (BlockConfig& b : c->blocks) b.expert_limit = 7;
  if (file.find(p + "swiglu_clamp_exp") != nullptr)
    BM_TRY(read_floats(file, p + "swiglu_clamp_exp", c,
                       [](BlockConfig& b, float v) { b.expert_limit = v; }));
  if (file.find(p + "swiglu_clamp_shexp") != nullptr)
    BM_TRY(read_floats(file, p + "swiglu_clamp_shexp", c,
                       [](BlockConfig& b, float v) { b.limit = v; }));
  return {};
}

/// The last blocks may have no keys and values of their own: they read those of the last block
/// before them that sees as much. Source: transformers, modeling_gemma3n.py, Gemma3nTextAttention.
Status read_shared_kv(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  for (uint32_t i = 0; i < c->block_count; ++i) c->blocks[i].kv_block = i;
  if (!has_key(*c->row, "attention.shared_kv_layers")) return {};
  const std::string key = p + "attention.shared_kv_layers";
  const uint32_t shared = BM_TRY(file.get_u32(key, 0));
  if (shared >= c->block_count)
    return fail(Code::kCorrupt, "metadata {} {} is not below {}block_count {}", key, shared, p,
                c->block_count);
  const uint32_t first = c->block_count - shared;
  for (uint32_t i = first; i < c->block_count; ++i) {
    BlockConfig& b = c->blocks[i];
    b.kv_block = first;
    while (b.kv_block > 0 && c->blocks[b.kv_block - 1].is_local != b.is_local) --b.kv_block;
    if (b.kv_block-- == 0)
      return fail(Code::kCorrupt, "metadata {} {}: no block before {} sees as much as it", key,
                  shared, i);
    const HeadKind &mine = c->heads_of(i), &theirs = c->heads_of(b.kv_block);
    if (mine.count_kv != theirs.count_kv || mine.length != theirs.length)
      return fail(Code::kCorrupt, "metadata {} {}: blocks {} and {} have other heads", key, shared,
                  i, b.kv_block);
  }
  return {};
}

/// What Gemma 3n has besides. Source: transformers, modeling_gemma3n.py.
Status read_altup(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (c->row->has(kLayerInputs)) {
    const std::string key = p + "embedding_length_per_layer_input";
    c->layer_input_length = BM_TRY(file.get_u32(key, 0));
    if (c->layer_input_length > kMaxWidth || (c->row->has(kAltup) && c->layer_input_length == 0))
      return fail(Code::kCorrupt, "metadata {}: {} is outside 1 to {}", key, c->layer_input_length,
                  kMaxWidth);
  }
  if (!c->row->has(kAltup)) return {};
  c->altup.count = BM_TRY(need_or(file, p + "altup.num_inputs", 4, 64));
  if (c->altup.count < 2) return fail(Code::kCorrupt, "metadata {}altup.num_inputs is 1", p);
  const uint32_t active = BM_TRY(file.get_u32(p + "altup.active_idx", 0));
  if (active != 0)
    return fail(Code::kUnsupported, "metadata {}altup.active_idx {} is not supported (known: 0)", p,
                active);
  // Its 95th percentile: what llama.cpp gives the first ten blocks, whatever files say.
  const std::string key = p + "activation_sparsity_scale";
  for (uint32_t i = 0; i < c->block_count && i < 10; ++i) c->blocks[i].sparsity = 1.6448536F;
  if (file.find(key) == nullptr) return {};
  return read_floats(
      file, key, c, [](BlockConfig& b, float v) { b.sparsity = std::isfinite(v) ? v : 0.0F; },
      true);
}

/// Heads of keys, a number for all blocks or a list; blocks without are recurrent. After
/// read_feed_forward_length().
Status read_heads(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  const Architecture& row = *c->row;
  if (row.has(kNoAttention)) {
    for (BlockConfig& b : c->blocks) b.is_recurrent = true, b.has_attention = false;
    // Nothing is made of them: the least that fits.
    c->head_count = c->head_count_kv = 1;
    c->head_length = c->rope_length = 2;
    return {};
  }
  const std::string key = p + "attention.head_count_kv";
  if (row.has(kUnevenBlocks)) return read_uneven_heads(file, p, c);
  c->head_count = BM_TRY(need(file, p + "attention.head_count", kMaxWidth));
  const GgufValue* value = file.find(key);
  if (value == nullptr || value->type != GgufType::kArray) {
    c->head_count_kv = BM_TRY(need_or(file, key, c->head_count, kMaxWidth));
    if (row.has(kBesideAttention))
      for (BlockConfig& b : c->blocks) b.is_recurrent = true;
    return {};
  }
  const auto counts = BM_TRY(
      read_counts(file, key, c->block_count, &c->head_count_kv, false, c->draft_block_count));
  const bool is_one = row.has(kOneOfThree),
             may_lack = row.has(kShortConvolution) || row.has(kMamba) || row.has(kKeyDecay) ||
                        (row.has(kMamba2) && !row.has(kBesideAttention));
  for (size_t i = 0; i < counts.size(); ++i) {
    BlockConfig& b = c->blocks[i];
    if (counts[i] == 0 && !may_lack)
      return fail(Code::kUnsupported, "metadata {}: block {} has no heads", key, i);
    b.has_attention = counts[i] != 0;
    b.is_recurrent =
        row.has(kBesideAttention) || (!b.has_attention && !(is_one && b.has_feed_forward));
    if (is_one && b.has_attention && b.has_feed_forward)
      return fail(Code::kUnsupported, "metadata {}: block {} has heads and a feed-forward", key, i);
  }
  if (c->head_count_kv == 0)
    return fail(Code::kUnsupported, "metadata {}: no block has attention", key);
  return {};
}

Status read_head_lengths(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (!file.find(p + "attention.key_length") && c->embedding_length % c->head_count != 0)
    return fail(Code::kCorrupt,
                "metadata {0}embedding_length {1} is not a multiple of {0}attention.head_count {2}",
                p, c->embedding_length, c->head_count);
  c->head_length = BM_TRY(
      need_or(file, p + "attention.key_length", c->embedding_length / c->head_count, kMaxWidth));
  const uint32_t value_length = BM_TRY(file.get_u32(p + "attention.value_length", c->head_length));
  c->value_length = value_length;
  const bool may_differ = c->row->has(kLatent) || (c->row->has(kShortValues) && value_length > 0 &&
                                                   value_length < c->head_length);
  if (value_length != c->head_length && !may_differ)
    return fail(Code::kUnsupported,
                "metadata {}attention.value_length {} differs from the key length {}", p,
                value_length, c->head_length);
  // Its files say 0, the part of a latent head. Source: llama.cpp, src/models/deepseek2.cpp.
  const bool is_ocr = c->architecture == "deepseek2-ocr";
  c->rope_length =
      is_ocr ? c->head_length
             : BM_TRY(need_or(file, p + "rope.dimension_count", c->head_length, kMaxWidth));
  return {};
}

Status read_recurrences(const GgufFile& file, const std::string& p, LlamaConfig* c) {
  if (c->row->has(kDeltaNet)) return read_delta_net(file, p, c);
  if (c->row->has(kMamba) || c->row->has(kMamba2)) return read_mamba(file, p, c);
  if (c->row->has(kKeyDecay)) return read_key_decay(file, p, c);
  if (c->row->has(kRwkv6) || c->row->has(kRwkv7)) return read_rwkv(file, p, c);
  if (std::ranges::none_of(c->blocks, [](const BlockConfig& b) { return b.is_recurrent; }))
    return {};
  c->recurrent.kernel = BM_TRY(need(file, p + "shortconv.l_cache", 1024));
  if (c->recurrent.kernel < 2) return fail(Code::kCorrupt, "metadata {}shortconv.l_cache is 1", p);
  c->recurrent.channels = c->embedding_length;
  return {};
}

std::string epsilon_key(const LlamaConfig& c) {
  return c.architecture + (c.norm == NormKind::kRms ? ".attention.layer_norm_rms_epsilon"
                                                    : ".attention.layer_norm_epsilon");
}

Status check_consistency(const LlamaConfig& c, const std::string& p) {
  for (const HeadKind& kind : c.head_kinds) {
    if (kind.count % kind.count_kv != 0)
      return fail(Code::kCorrupt,
                  "metadata {0}attention.head_count {1} is not a multiple of "
                  "{0}attention.head_count_kv {2}",
                  p, kind.count, kind.count_kv);
    if (kind.length % 2 != 0)
      return fail(Code::kCorrupt, "head length {} is odd; rotary positions need pairs",
                  kind.length);
  }
  for (const BlockConfig& b : c.blocks) {
    const uint32_t rotated = (b.is_local ? c.local_rope : c.rope).length,
                   length = c.head_kinds[b.heads].length;
    if (rotated > length || rotated % 2 != 0)
      return fail(Code::kCorrupt,
                  "metadata {}rope.dimension_count {} does not fit the head length {}", p, rotated,
                  length);
  }
  if (!(c.norm_epsilon > 0) || !(c.norm_epsilon < 1))
    return fail(Code::kCorrupt, "metadata {} {} is not in (0, 1)", epsilon_key(c), c.norm_epsilon);
  for (const float base : {c.rope.base, c.local_rope.base})
    if (!(base > 0) || !std::isfinite(base))
      return fail(Code::kCorrupt, "metadata {}rope.freq_base {} is not positive", p, base);
  return {};
}

}  // namespace

Result<LlamaConfig> LlamaConfig::from_gguf(const GgufFile& file) {
  LlamaConfig c;
  c.architecture = std::string(BM_TRY(file.get_string("general.architecture")));
  c.row = BM_TRY(find_architecture(c.architecture));
  const std::string p = c.architecture + ".";
  c.rope_style = c.row->rope_style;
  if (c.rope_style == RopeStyle::kInterleaved &&
      BM_TRY(file.get_bool("bellmetal.rope.halves", false)))
    c.rope_style = RopeStyle::kHalves;
  // Of models with pictures the converter lays pairs in halves. Source: llama.cpp,
  // src/models/glm4.cpp.
  if (c.architecture == "glm4" && file.find(p + "rope.dimension_sections") != nullptr) {
    const auto sections = BM_TRY(file.get_i32s(p + "rope.dimension_sections"));
    if (std::ranges::any_of(sections, [](int32_t n) { return n != 0; }))
      c.rope_style = RopeStyle::kHalves;
  }
  BM_TRY(check_keys(file, *c.row, p));
  c.context_length = BM_TRY(need(file, p + "context_length", kMaxContext));
  c.embedding_length = BM_TRY(need(file, p + "embedding_length", kMaxWidth));
  c.output_length = c.embedding_length;
  if (has_key(*c.row, "embedding_length_out"))
    c.output_length =
        BM_TRY(need_or(file, p + "embedding_length_out", c.embedding_length, kMaxWidth));
  c.block_count = BM_TRY(need(file, p + "block_count", kMaxBlocks));
  c.draft_block_count = BM_TRY(file.get_u32(p + "nextn_predict_layers", 0));
  if (c.draft_block_count >= c.block_count)
    return fail(Code::kCorrupt,
                "metadata {0}nextn_predict_layers {1} is not below {0}block_count {2}", p,
                c.draft_block_count, c.block_count);
  c.block_count -= c.draft_block_count;
  if (c.row->has(kEncoderDecoder)) {
    c.encoder_block_count = c.block_count;
    c.block_count += BM_TRY(need_or(file, p + "decoder_block_count", c.block_count, kMaxBlocks));
    c.start_token = static_cast<int32_t>(BM_TRY(file.get_u32(p + "decoder_start_token_id", 0)));
  }
  if (has_key(*c.row, "num_loops")) {
    const uint32_t loops = BM_TRY(need_or(file, p + "num_loops", 1, kMaxBlocks));
    if (loops > 1) c.loop_length = c.block_count;
    if (uint64_t{loops} * c.block_count > kMaxBlocks)
      return fail(Code::kCorrupt, "metadata {}num_loops {} is too large", p, loops);
    c.block_count *= loops;
    c.has_loop_norm = !BM_TRY(file.get_bool(p + "skip_loop_final_norm", false));
  }
  c.norm = c.row->norm;
  // Which norm such a file has, its key says. Source: llama.cpp, src/models/cohere2moe.cpp.
  if (c.architecture == "cohere2moe" && file.find(p + "attention.layer_norm_rms_epsilon"))
    c.norm = NormKind::kRms;
  c.blocks.resize(c.block_count);
  BM_TRY(read_feed_forward_length(file, p, &c));
  BM_TRY(read_heads(file, p, &c));
  if (!c.row->has(kNoAttention)) BM_TRY(read_head_lengths(file, p, &c));
  BM_TRY(read_latent(file, p, &c));
  BM_TRY(read_recurrences(file, p, &c));
  c.norm_epsilon = BM_TRY(file.get_f32(epsilon_key(c), 1e-5F));
  c.rope.base = BM_TRY(file.get_f32(p + "rope.freq_base", 10000.0F));
  BM_TRY(read_rope_scaling(file, p, &c));
  // Source: llama.cpp, src/models/hunyuan-vl.cpp.
  if (const float alpha = BM_TRY(scale_or(file, c, "rope.scaling.alpha", 0)); alpha > 0) {
    const float length = static_cast<float>(c.head_length);
    c.rope.base *= std::pow(alpha, length / (length - 2));
  }
  BM_TRY(read_blocks(file, p, &c));
  BM_TRY(read_details(file, p, &c));
  BM_TRY(number_head_kinds(file, p, &c));
  BM_TRY(read_shared_kv(file, p, &c));
  BM_TRY(read_altup(file, p, &c));
  BM_TRY(read_streams(file, p, &c));
  if (c.row->has(kRopeSwitch) && !BM_TRY(file.get_bool(p + "rope.scaling.finetuned", true)))
    for (BlockConfig& b : c.blocks) b.is_rotated = false;
  BM_TRY(read_activation(file, p, &c));
  BM_TRY(read_experts(file, p, &c));
  // Llama 4 Scout; Maverick is the one with 128 experts. Source: llama.cpp, src/models/llama4.cpp.
  c.has_l2_norm = c.row->has(kChunked) && c.experts.count != 128;
  BM_TRY(read_scales(file, p, &c));
  // Baichuan's larger model has ALiBi, and nothing in its files says so. Source: llama.cpp,
  // src/models/baichuan.cpp.
  if (c.architecture == "baichuan" && c.block_count == 40) {
    c.alibi_bias = 8;
    for (BlockConfig& b : c.blocks) b.is_rotated = false;
  }
  // After what is scaled by the length that the model was trained for.
  BM_TRY(read_indexer(file, p, &c));
  c.has_tied_output = file.find_tensor("output.weight") == nullptr;
  const GgufTensor& embedding = *BM_TRY(file.tensor("token_embd.weight"));
  if (embedding.rank != 2 || embedding.dims[1] == 0 || embedding.dims[1] > kMaxContext)
    return fail(Code::kCorrupt, "tensor token_embd.weight is not a table of tokens");
  c.vocab_size = static_cast<uint32_t>(embedding.dims[1]);
  // Source: llama.cpp, src/llama-vocab.cpp, get_suppress_tokens(); numbers that are no tokens have
  // no effect there.
  if (file.find("tokenizer.ggml.suppress_tokens") != nullptr)
    for (const int32_t token : BM_TRY(file.get_i32s("tokenizer.ggml.suppress_tokens")))
      if (token >= 0 && static_cast<uint32_t>(token) < c.vocab_size) c.suppressed.push_back(token);
  if (c.start_token < 0 || static_cast<uint32_t>(c.start_token) >= c.vocab_size)
    return fail(Code::kCorrupt, "metadata {}decoder_start_token_id {} is outside the vocabulary", p,
                c.start_token);
  // Embeddings that make logits too are as large as those of what is read. Source: transformers,
  // modeling_t5.py, T5ForConditionalGeneration.
  if (c.row->has(kEncoderDecoder) && c.has_tied_output)
    c.logit_scale = 1 / std::sqrt(static_cast<float>(c.embedding_length));
  BM_TRY(check_consistency(c, p));
  return c;
}

}  // namespace bm::models
