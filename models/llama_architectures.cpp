#include "models/llama_architectures.h"

#include <string>

namespace bm::models {
namespace {

constexpr auto kNone = RopeStyle::kNone, kInter = RopeStyle::kInterleaved,
               kHalves = RopeStyle::kHalves;
constexpr auto kRms = NormKind::kRms, kLayer = NormKind::kLayer;
constexpr auto kGated = FeedForward::kGated, kFused = FeedForward::kFused,
               kPlain = FeedForward::kPlain;
constexpr auto kSilu = Activation::kSilu, kGelu = Activation::kGelu,
               kRelu2 = Activation::kReluSquared, kClamped = Activation::kClampedSwiglu,
               kXielu = Activation::kXielu, kRelu = Activation::kRelu, kSitu = Activation::kSitu;
constexpr uint64_t kMoe = kExperts, kNormMoe = kExperts | kNormalisedExperts,
                   kDelta = kDeltaNet | kLateFeedForwardNorm,
                   kGemma3n = kScaledEmbedding | kPostNorms | kUnevenBlocks | kLayerInputs |
                              kAltup | kUnscaledScores | kValueNorm,
                   kGemma4 = kScaledEmbedding | kPostNorms | kUnevenBlocks | kLayerInputs |
                             kUnscaledScores | kValueNorm | kNormMoe | kExpertsBesideDense,
                   kRwkv = kNoAttention | kEmbeddingNorm | kChannelMix,
                   kEncoder = kNormsAfterSums | kNoLogits | kEmbeddingNorm;

constexpr const char *kWindow = "attention.sliding_window",
                     *kWindows = "attention.sliding_window attention.sliding_window_pattern";
// Pictures and videos tell positions in parts; those of text are the same in all.
constexpr const char* kSections = "rope.dimension_sections n_deepstack_layers";
#define BM_STATE_KEYS \
  "ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count"
#define BM_LATENT_KEYS                                                     \
  "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla " \
  "attention.value_length_mla rope.scaling.yarn_log_multiplier"
constexpr const char* kLatentKeys =
    BM_LATENT_KEYS " attention.temperature_length attention.temperature_scale";
#define BM_INDEXER_KEYS                                         \
  " attention.indexer.head_count attention.indexer.key_length " \
  "attention.indexer.top_k"
#define BM_SHIFT_KEYS "wkv.head_size token_shift_count rescale_every_n_layers"
#define BM_RANK_KEYS                                    \
  "attention.decay_lora_rank attention.iclr_lora_rank " \
  "attention.value_residual_mix_lora_rank attention.gate_lora_rank"
constexpr const char *kRwkv6Keys = BM_SHIFT_KEYS " time_mix_extra_dim time_decay_extra_dim",
                     *kRwkv7Keys = BM_SHIFT_KEYS " " BM_RANK_KEYS;
#define BM_SCALES "embedding_scale residual_scale logit_scale attention.scale"
// Of Granite 4 without state spaces the converter says how large they would be, and of models with
// pictures which blocks these go to.
constexpr const char *kGraniteKeys = BM_SCALES " " BM_STATE_KEYS " deepstack_mapping",
                     *kStateKeys = BM_STATE_KEYS,
                     *kDeltaKeys = BM_STATE_KEYS
                     " attention.recurrent_layers full_attention_interval rope.dimension_sections";

// Source: llama.cpp, the files of src/models (norms, order of a block, activations) and
// llama_model_rope_type() of src/llama-model.cpp.
constexpr Architecture kArchitectures[] = {
    {"llama", kInter, kRms, kGated, kSilu, kNormMoe, 0, kWindow},
    {"afmoe", kHalves, kRms, kGated, kSilu,
     kScaledEmbedding | kPostNorms | kMoe | kSigmoidGating | kGatedAttention | kNoRopeInGlobal |
         kNoRopeInEveryFourth,
     4, kWindows},
    {"apertus", kHalves, kRms, kPlain, kXielu, 0, 0, ""},
    {"arcee", kInter, kRms, kPlain, kRelu2, 0, 0, ""},
    {"arctic", kInter, kRms, kGated, kSilu, kNormMoe | kExpertsOfInput, 0, ""},
    {"arwkv7", kNone, kRms, kGated, kSilu, kRwkv7 | kNoAttention, 0, kRwkv7Keys},
    {"baichuan", kInter, kRms, kGated, kSilu, 0, 0, ""},
    {"bailingmoe", kInter, kRms, kGated, kSilu, kMoe, 0, ""},
    {"bailingmoe2", kHalves, kRms, kGated, kSilu, kMoe, 0, ""},
    {"bailingmoe3", kInter, kRms, kGated, kSilu, kMoe | kLatent | kKeyDecay | kGatedAttention, 0,
     "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla "
     "attention.value_length_mla ssm.conv_kernel kda.head_dim kda.safe_gate kda.gate_lower_bound "
     "swiglu_clamp_exp swiglu_clamp_shexp"},
    // MPNet is BERT whose scores have a number for each distance; only folders have it.
    {"bert", kNone, kLayer, kPlain, kGelu, kEncoder | kPositionTable, 0,
     "attention.relative_buckets_count"},
    {"bitnet", kHalves, kRms, kGated, kSilu, kSubNorms, 0, "hidden_activation"},
    {"bloom", kNone, kLayer, kPlain, kGelu, kAlibi | kEmbeddingNorm, 0, ""},
    {"chatglm", kInter, kRms, kFused, kSilu, 0, 0, ""},
    {"codeshell", kHalves, kLayer, kPlain, kGelu, 0, 0, ""},
    {"cohere2", kInter, kLayer, kGated, kSilu, kParallelBlock | kNoRopeInGlobal, 4,
     "logit_scale attention.sliding_window attention.sliding_window_pattern"},
    {"cohere2moe", kInter, kLayer, kGated, kSilu,
     kParallelBlock | kNoRopeInGlobal | kGlobalFirst | kMoe | kSigmoidGating | kHalvedExperts, 4,
     "logit_scale attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa"},
    {"command-r", kInter, kLayer, kGated, kSilu, kParallelBlock, 0, "logit_scale"},
    {"dbrx", kHalves, kLayer, kGated, kSilu, kNormMoe | kAttentionOutputNorm, 0,
     "attention.clamp_kqv"},
    {"deci", kInter, kRms, kGated, kSilu, kUnevenBlocks | kMayLackAttention, 0, ""},
    {"deepseek", kInter, kRms, kGated, kSilu, kMoe, 0, ""},
    {"deepseek2", kInter, kRms, kGated, kSilu, kMoe | kLatent | kTemperature, 0, kLatentKeys},
    {"deepseek2-ocr", kHalves, kRms, kGated, kSilu, kMoe, 0, ""},
    {"deepseek32", kInter, kRms, kGated, kSilu, kMoe | kLatent | kSigmoidGating | kIndexed, 0,
     BM_LATENT_KEYS BM_INDEXER_KEYS},
    // Of folders alone.
    {"deberta-v2", kNone, kLayer, kPlain, kGelu, kEncoder, 0,
     "attention.relative_span attention.relative_limit attention.relative_parts"},
    {"dots1", kHalves, kRms, kGated, kSilu, kMoe, 0, ""},
    {"ernie4_5", kInter, kRms, kGated, kSilu, 0, 0, ""},
    {"ernie4_5-moe", kInter, kRms, kGated, kSilu, kNormMoe, 0, ""},
    {"eurobert", kHalves, kRms, kGated, kSilu, kNoLogits, 0, ""},
    {"exaone", kHalves, kRms, kGated, kSilu, 0, 0, ""},
    {"exaone4", kHalves, kRms, kGated, kSilu, kPostNorms | kNoPreNorms | kNoRopeInGlobal, 4,
     kWindows},
    {"exaone-moe", kHalves, kRms, kGated, kSilu, kMoe | kSigmoidGating | kNoRopeInGlobal, 4,
     "attention.sliding_window attention.sliding_window_pattern"},
    {"falcon", kHalves, kLayer, kPlain, kGelu, kParallelBlock | kSecondAttentionNorm, 0, ""},
    {"falcon-h1", kHalves, kRms, kGated, kSilu, kMamba2 | kBesideAttention, 0, kStateKeys},
    {"gemma", kHalves, kRms, kGated, kGelu, kScaledEmbedding, 0, ""},
    {"gemma2", kHalves, kRms, kGated, kGelu, kScaledEmbedding | kPostNorms, 2,
     "attention.sliding_window attention.sliding_window_pattern attn_logit_softcapping "
     "final_logit_softcapping attention.scale"},
    {"gemma3", kHalves, kRms, kGated, kGelu, kScaledEmbedding | kPostNorms, 6,
     "attention.sliding_window attention.sliding_window_pattern final_logit_softcapping "
     "rope.freq_base_swa attention.scale"},
    {"gemma-embedding", kHalves, kRms, kGated, kGelu, kScaledEmbedding | kPostNorms | kNoLogits, 6,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "attention.scale"},
    {"gemma-embedding2", kHalves, kRms, kGated, kGelu,
     kScaledEmbedding | kPostNorms | kUnevenBlocks | kLayerInputs | kUnscaledScores | kValueNorm |
         kNoLogits,
     6,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "embedding_length_per_layer_input embedding_length_out attention.key_length_swa "
     "attention.value_length_swa rope.dimension_count_swa"},
    {"gemma3n", kHalves, kRms, kGated, kGelu, kGemma3n, 5,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "final_logit_softcapping attention.shared_kv_layers embedding_length_per_layer_input "
     "altup.active_idx altup.num_inputs activation_sparsity_scale"},
    {"gemma4", kHalves, kRms, kGated, kGelu, kGemma4, 6,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "final_logit_softcapping attention.shared_kv_layers embedding_length_per_layer_input "
     "attention.key_length_swa attention.value_length_swa rope.dimension_count_swa"},
    {"glm-dsa", kInter, kRms, kGated, kSilu, kMoe | kLatent | kSigmoidGating | kIndexed, 0,
     BM_LATENT_KEYS BM_INDEXER_KEYS " attention.indexer.types rope.dimension_sections"},
    {"glm4", kInter, kRms, kFused, kSilu, kPostNorms, 0, "rope.dimension_sections"},
    {"glm4moe", kHalves, kRms, kGated, kSilu, kMoe | kSigmoidGating | kLateFeedForwardNorm, 0,
     "rope.dimension_sections"},
    {"gpt-oss", kHalves, kRms, kGated, kClamped,
     kMoe | kSelectedGating | kLateFeedForwardNorm | kSinks, 2, kWindows},
    {"gpt2", kNone, kLayer, kPlain, kGelu, kPositionTable, 0, ""},
    {"gptneox", kHalves, kLayer, kPlain, kGelu, 0, 0, "use_parallel_residual"},
    {"granite", kInter, kRms, kGated, kSilu, kDividedLogits | kRopeSwitch, 0, kGraniteKeys},
    {"granite_swa", kInter, kRms, kGated, kSilu, kDividedLogits | kNormMoe | kSinks, 0,
     BM_SCALES " attention.sliding_window attention.sliding_window_pattern "
               "attention.rope_pattern"},
    {"granitehybrid", kInter, kRms, kGated, kSilu,
     kDividedLogits | kRopeSwitch | kNormMoe | kMamba2, 0, BM_SCALES " " BM_STATE_KEYS},
    {"granitemoe", kInter, kRms, kGated, kSilu, kDividedLogits | kRopeSwitch | kNormMoe, 0,
     kGraniteKeys},
    {"grok", kHalves, kRms, kGated, kGelu, kPostNorms | kNormMoe | kDenseToo, 0,
     "embedding_scale logit_scale attention.output_scale attn_logit_softcapping "
     "router_logit_softcapping final_logit_softcapping attention.temperature_length"},
    {"grovemoe", kHalves, kRms, kGated, kSilu, kNormMoe, 0,
     "expert_chunk_feed_forward_length experts_per_group expert_group_scale"},
    {"hunyuan-dense", kHalves, kRms, kGated, kSilu, kLateHeadNorms, 0, ""},
    {"hunyuan-moe", kHalves, kRms, kGated, kSilu, kNormMoe | kSharedExpert | kLateHeadNorms, 0, ""},
    {"hunyuan_vl", kHalves, kRms, kGated, kSilu, kLateHeadNorms, 0,
     "rope.dimension_sections rope.scaling.alpha"},
    {"hy_v3", kHalves, kRms, kGated, kSilu, kMoe | kSigmoidGating, 0, ""},
    {"hy_v4", kInter, kRms, kGated, kSilu, kMoe | kLatent | kSinks | kGatedAttention | kIndexed, 0,
     "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla "
     "attention.value_length_mla swiglu_clamp_exp hyper_connection.count hyper_connection.epsilon "
     "hyper_connection.magnitude" BM_INDEXER_KEYS " attention.indexer.types"},
    {"internlm2", kInter, kRms, kGated, kSilu, 0, 0, ""},
    {"jais", kNone, kLayer, kGated, kSilu, kAlibi, 0, "attention.max_alibi_bias"},
    {"jais2", kHalves, kLayer, kPlain, kRelu2, 0, 0, ""},
    {"jamba", kNone, kRms, kGated, kSilu, kMoe | kMamba, 0, kStateKeys},
    {"jina-bert-v2", kNone, kLayer, kGated, kGelu, kEncoder | kAlibi | kTensorsTellFeedForward, 0,
     ""},
    {"jina-bert-v3", kHalves, kLayer, kPlain, kGelu, kEncoder, 0, ""},
    {"k2-horizon", kHalves, kRms, kGated, kSilu,
     kMoe | kSigmoidGating | kGatedAttention | kSoftplusGate, 0,
     "attention.group_norm_groups attention.value_expert_count "
     "attention.value_expert_used_count moe_every_n_layers"},
    {"kimi-linear", kNone, kRms, kGated, kSilu, kNormMoe | kLatent | kKeyDecay, 0,
     "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla "
     "attention.value_length_mla ssm.conv_kernel kda.head_dim"},
    {"kimi-k3", kNone, kRms, kGated, kSitu, kMoe | kLatent | kKeyDecay | kGatedAttention, 0,
     "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla "
     "attention.value_length_mla ssm.conv_kernel kda.head_dim kda.gate_lower_bound "
     "attn_res.block_size expert_latent_length activation.situ_beta activation.situ_linear_beta"},
    {"laguna", kHalves, kRms, kGated, kSilu,
     kUnevenBlocks | kMoe | kSigmoidGating | kGatedAttention | kSoftplusGate | kGlobalFirst |
         kPlainLocalRope,
     4,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "rope.dimension_count_swa"},
    {"lfm2", kHalves, kRms, kGated, kSilu, kShortConvolution, 0, "shortconv.l_cache"},
    {"lfm2moe", kHalves, kRms, kGated, kSilu, kShortConvolution | kNormMoe | kSigmoidGating, 0,
     "shortconv.l_cache"},
    {"llama-embed", kInter, kRms, kGated, kSilu, kNormMoe | kNoLogits, 0, kWindow},
    {"maincoder", kInter, kRms, kGated, kSilu, kLateHeadNorms, 0, ""},
    {"mamba", kNone, kRms, kGated, kSilu, kMamba | kNoAttention | kNoFeedForward, 0,
     BM_STATE_KEYS " ssm.dt_b_c_rms"},
    {"mamba2", kNone, kRms, kGated, kSilu, kMamba2 | kNoAttention | kNoFeedForward, 0, kStateKeys},
    {"maion-coder", kHalves, kRms, kGated, kSilu, kPostNorms | kNormMoe | kNoRopeInGlobal, 0,
     "attention.sliding_window attention.sliding_window_pattern moe_latent_size"},
    {"maple", kHalves, kRms, kGated, kSilu, kNormMoe | kNoRopeInGlobal, 0,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "swiglu_clamp_exp"},
    {"mellum", kHalves, kRms, kGated, kSilu, kNormMoe | kPlainLocalRope, 4,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa"},
    {"mimo2", kHalves, kRms, kGated, kSilu,
     kUnevenBlocks | kNormMoe | kSigmoidGating | kMayHaveSinks | kPlainLocalRope | kShortValues, 0,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "attention.value_scale"},
    {"minicpm", kInter, kRms, kGated, kSilu, kDividedLogits, 0,
     "embedding_scale residual_scale logit_scale"},
    {"llama4", kInter, kRms, kGated, kSilu,
     kMoe | kSigmoidGating | kSharedExpert | kWeightedInputs | kChunked, 4,
     "attention.sliding_window attention.temperature_length attention.temperature_scale"},
    {"minicpm3", kHalves, kRms, kGated, kSilu, kLatent, 0,
     "attention.q_lora_rank attention.kv_lora_rank"},
    {"minimax-m2", kHalves, kRms, kGated, kSilu, kNormMoe, 0, ""},
    {"minimax-m3", kHalves, kRms, kGated, kClamped, kMoe | kSigmoidGating | kIndexed, 0,
     BM_INDEXER_KEYS " attention.indexer.block_size attention.indexer.local_blocks"},
    {"mistral3", kInter, kRms, kGated, kSilu, kNormMoe | kTemperature, 0,
     "attention.temperature_length attention.temperature_scale "
     "rope.scaling.yarn_log_multiplier"},
    {"mistral4", kInter, kRms, kGated, kSilu, kMoe | kLatent | kTemperature, 0, kLatentKeys},
    {"modern-bert", kHalves, kLayer, kFused, kGelu, kEmbeddingNorm | kNoLogits | kGlobalFirst, 3,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "hidden_activation"},
    {"mpt", kNone, kLayer, kPlain, kGelu, kAlibi, 0,
     "attention.clamp_kqv attention.max_alibi_bias"},
    {"muse-glimmer", kInter, kRms, kGated, kSilu, kPostNorms | kGatedAttention | kNoRopeInGlobal, 4,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa logit_scale "
     "final_logit_softcapping"},
    {"nanbeige", kInter, kRms, kGated, kSilu, 0, 0,
     "attention.head_dim num_loops skip_loop_final_norm"},
    {"nemotron", kHalves, kLayer, kPlain, kRelu2, 0, 0, ""},
    {"nemotron_h", kNone, kRms, kPlain, kRelu2, kMamba2 | kOneOfThree, 0, kStateKeys},
    {"nemotron_h_moe", kNone, kRms, kPlain, kRelu2, kMamba2 | kOneOfThree | kMoe | kSigmoidGating,
     0, BM_STATE_KEYS " moe_latent_size"},
    {"neo-bert", kInter, kRms, kFused, kSilu, kNoLogits, 0, ""},
    {"nomic-bert", kHalves, kLayer, kGated, kSilu, kEncoder, 0, ""},
    {"nomic-bert-moe", kHalves, kLayer, kPlain, kGelu, kEncoder | kMoe, 0, "moe_every_n_layers"},
    {"olmo", kInter, kLayer, kGated, kSilu, kNormsWithoutGain, 0, "attention.clamp_kqv"},
    {"olmo2", kHalves, kRms, kGated, kSilu, kPostNorms | kNoPreNorms | kPlainLocalRope, 4,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa"},
    {"olmoe", kHalves, kRms, kGated, kSilu, kMoe, 0, ""},
    {"openelm", kHalves, kRms, kGated, kSilu, kUnevenBlocks, 0, ""},
    {"orion", kHalves, kLayer, kGated, kSilu, 0, 0, ""},
    {"paddleocr", kHalves, kRms, kGated, kSilu, 0, 0, kSections},
    {"pangu-embedded", kHalves, kRms, kGated, kSilu, 0, 0, ""},
    {"phi2", kHalves, kLayer, kPlain, kGelu, kParallelBlock, 0, ""},
    {"phi3", kHalves, kRms, kFused, kSilu, 0, 0, kWindow},
    {"phimoe", kHalves, kRms, kGated, kSilu, kNormMoe, 0, kWindow},
    {"plamo", kHalves, kRms, kGated, kSilu, kParallelBlock, 0, ""},
    {"plamo3", kHalves, kRms, kFused, kSilu, kPostNorms | kUnevenBlocks | kShortValues, 8,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa"},
    {"plm", kInter, kRms, kPlain, kRelu2, kLatent, 0, "attention.kv_lora_rank"},
    {"qwen", kHalves, kRms, kGated, kSilu, 0, 0, ""},
    {"qwen2", kHalves, kRms, kGated, kSilu, 0, 0, ""},
    {"qwen2moe", kHalves, kRms, kGated, kSilu, kMoe | kSharedExpert | kGatedSharedExpert, 0, ""},
    {"qwen2vl", kHalves, kRms, kGated, kSilu, 0, 0, kSections},
    {"qwen3", kHalves, kRms, kGated, kSilu, 0, 0, ""},
    {"qwen3moe", kHalves, kRms, kGated, kSilu, kNormMoe, 0, ""},
    {"qwen35", kHalves, kRms, kGated, kSilu, kDelta, 0, kDeltaKeys},
    {"qwen35moe", kHalves, kRms, kGated, kSilu,
     kDelta | kNormMoe | kSharedExpert | kGatedSharedExpert, 0, kDeltaKeys},
    {"qwen3next", kHalves, kRms, kGated, kSilu,
     kDelta | kNormMoe | kSharedExpert | kGatedSharedExpert, 0, kDeltaKeys},
    {"qwen3vl", kHalves, kRms, kGated, kSilu, 0, 0, kSections},
    {"qwen3vlmoe", kHalves, kRms, kGated, kSilu, kNormMoe, 0, kSections},
    {"refact", kNone, kRms, kGated, kSilu, kAlibi, 0, ""},
    {"rwkv6", kNone, kLayer, kPlain, kRelu2, kRwkv6 | kRwkv, 0, kRwkv6Keys},
    {"rwkv6qwen2", kNone, kRms, kGated, kSilu, kRwkv6 | kNoAttention, 0, kRwkv6Keys},
    {"rwkv7", kNone, kLayer, kPlain, kRelu2, kRwkv7 | kRwkv, 0, kRwkv7Keys},
    {"seed_oss", kHalves, kRms, kGated, kSilu, kLateFeedForwardNorm, 0, ""},
    {"smallthinker", kHalves, kRms, kGated, kRelu,
     kNormMoe | kSigmoidGating | kEarlyRouter | kNoRopeInGlobal | kGlobalFirst, 4, kWindows},
    {"smollm3", kInter, kRms, kGated, kSilu, kNoRopeInEveryFourth, 0, ""},
    {"spark2_5", kHalves, kRms, kGated, kGelu, kUnevenBlocks | kGatedAttention, 0,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "rope.dimension_count_swa"},
    {"stablelm", kHalves, kLayer, kGated, kSilu, kMayLackFeedForwardNorm, 0,
     "use_parallel_residual"},
    {"starcoder", kNone, kLayer, kPlain, kGelu, kPositionTable, 0, ""},
    {"starcoder2", kHalves, kLayer, kPlain, kGelu, 0, 0, kWindow},
    {"step35", kHalves, kRms, kGated, kSilu,
     kUnevenBlocks | kMoe | kSigmoidGating | kGatedAttention | kPlainLocalRope, 0,
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "rope.dimension_count_swa swiglu_clamp_exp swiglu_clamp_shexp moe_every_n_layers"},
    {"t5", kNone, kRms, kGated, kGelu,
     kEncoderDecoder | kDistanceBias | kUnscaledScores | kTensorsTellFeedForward, 0,
     "attention.relative_buckets_count decoder_block_count decoder_start_token_id"},
    {"t5encoder", kNone, kRms, kGated, kGelu,
     kNoLogits | kDistanceBias | kUnscaledScores | kTensorsTellFeedForward, 0,
     "attention.relative_buckets_count"},
    {"xverse", kInter, kRms, kGated, kSilu, 0, 0, ""},
};

/// Files that are no language model of the kind known here, and what they are instead or need
/// besides. With the rows above but deberta-v2 these are all names of llama.cpp (libllama 0.7.0,
/// llama-arch.cpp).
struct Refused {
  const char *name, *why;
};
constexpr const char* kStreams =
    "its streams of residuals (hyper-connections) mix otherwise than those that are supported";
constexpr const char *kDiffuses = "it fills in a text in steps, in any order (diffusion)",
                     *kGuesses = "it guesses tokens for another model and is none by itself",
                     *kSpeaks = "it makes sound";
constexpr Refused kRefused[] = {
    {"chameleon", "it writes texts and pictures by one vocabulary, queries normalised otherwise"},
    {"clef", "it chooses among given answers and writes no text"},
    {"clip", "it is the part of a model that reads pictures and sound (a mmproj file)"},
    {"cogvlm", "it has matrices of its own for pictures"},
    {"deepseek4", kStreams},
    {"dflash", kGuesses},
    {"dots3note", "its blocks have latent attention with an indexer or heads with gates"},
    {"dream", kDiffuses},
    {"eagle3", kGuesses},
    {"gemma4-assistant", kGuesses},
    {"glm5-next", kStreams},
    {"gptj", "nothing is known of its files but the name"},
    {"graniteswitch", "tokens switch adapters of low rank on"},
    {"hrm_text", "its prompts see themselves as a whole, and two stacks of blocks take turns"},
    {"llada", kDiffuses},
    {"llada-moe", kDiffuses},
    {"minimax-01", "states that decay by constants (lightning attention) are not supported"},
    {"plamo2", "its state spaces normalise steps, keys and queries in an order of their own"},
    {"pockettts", kSpeaks},
    {"qwen3tts", kSpeaks},
    {"qwen4exp", kStreams},
    {"rnd1", kDiffuses},
    {"talkie", "every block adds the embeddings again"},
    {"vllm-decision2", "it chooses among given answers and writes no text"},
    {"wavtokenizer-dec", kSpeaks},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

Result<const Architecture*> find_architecture(std::string_view name) {
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (name == row.name) return &row;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  for (const Refused& refused : kRefused)
    if (name == refused.name)
      return fail(Code::kUnsupported, "model architecture \"{}\" is not supported: {}", name,
                  refused.why);
  return fail(Code::kUnsupported, "model architecture \"{}\" is not supported (known: {})", name,
              known);
}

}  // namespace bm::models
