// Classes of transformers, and what becomes of their tensors' names: by tables.
#include "models/hugging_face_names.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "models/model_error.h"

namespace bm::models {

using namespace folder_traits;

namespace {

// Source: transformers, configuration_*.py, as kModels.
constexpr const char* kGemma3nDefaults =
    R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_attention_heads":8,
        "num_key_value_heads":2,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
        "sliding_window":512,"sliding_window_pattern":5,"rope_theta":1e6,
        "rope_local_base_freq":10000.0,"final_logit_softcapping":30.0,
        "hidden_size_per_layer_input":256,"altup_num_inputs":4,"altup_active_idx":0,
        "num_kv_shared_layers":15,"tie_word_embeddings":true})";
constexpr const char* kGraniteMoeDefaults =
    R"({"rms_norm_eps":1e-6,"max_position_embeddings":2048,"embedding_multiplier":1.0,
        "logits_scaling":1.0,"residual_multiplier":1.0,"attention_multiplier":1.0,
        "num_local_experts":8,"num_experts_per_tok":2,"shared_intermediate_size":0,
        "mamba_n_heads":128,"mamba_n_groups":1,"mamba_d_state":256,"mamba_d_conv":4,
        "mamba_expand":2})";
constexpr const char* kLfm2Defaults =
    R"({"norm_eps":1e-5,"max_position_embeddings":128000,"num_key_value_heads":8,
        "rope_theta":1e6,"conv_L_cache":3,"block_multiple_of":256,"block_ffn_dim_multiplier":1.0,
        "block_auto_adjust_ff_dim":true,"norm_topk_prob":true,"tie_word_embeddings":true})";
constexpr const char* kBertDefaults =
    R"({"layer_norm_eps":1e-12,"max_position_embeddings":512,"hidden_act":"gelu",
        "intermediate_size":3072,"type_vocab_size":2,"pad_token_id":0})";
constexpr const char* kRobertaDefaults =
    R"({"layer_norm_eps":1e-12,"max_position_embeddings":512,"hidden_act":"gelu",
        "intermediate_size":3072,"type_vocab_size":2,"pad_token_id":1})";
constexpr const char* kDistilBertDefaults =
    R"({"layer_norm_eps":1e-12,"max_position_embeddings":512,"hidden_act":"gelu",
        "hidden_size":768,"num_hidden_layers":6,"num_attention_heads":12,
        "intermediate_size":3072})";
constexpr const char* kMpnetDefaults =
    R"({"layer_norm_eps":1e-12,"max_position_embeddings":512,"hidden_act":"gelu",
        "hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,
        "intermediate_size":3072,"pad_token_id":1,"relative_attention_num_buckets":32})";
constexpr const char* kJinaV3Defaults =
    R"({"layer_norm_eps":1e-5,"max_position_embeddings":8194,"hidden_act":"gelu",
        "hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,
        "intermediate_size":4096,"type_vocab_size":1,"rope_theta":20000.0})";
constexpr const char* kElectraDefaults =
    R"({"layer_norm_eps":1e-12,"max_position_embeddings":512,"hidden_act":"gelu",
        "hidden_size":256,"num_hidden_layers":12,"num_attention_heads":4,
        "intermediate_size":1024,"type_vocab_size":2,"embedding_size":128})";
constexpr const char* kDebertaDefaults =
    R"({"layer_norm_eps":1e-7,"max_position_embeddings":512,"hidden_act":"gelu",
        "hidden_size":1536,"num_hidden_layers":24,"num_attention_heads":24,
        "intermediate_size":6144,"position_biased_input":true,"max_relative_positions":-1,
        "position_buckets":-1,"pooler_hidden_act":"gelu","norm_rel_ebd":"none"})";
constexpr const char* kModernBertDefaults =
    R"({"norm_eps":1e-5,"max_position_embeddings":8192,"hidden_activation":"gelu",
        "intermediate_size":1152,"sliding_window":128,"sliding_window_pattern":3,
        "rope_theta":160000.0,"rope_local_base_freq":10000.0,"classifier_pooling":"cls",
        "classifier_activation":"gelu"})";
constexpr const char* kNomicDefaults =
    R"({"layer_norm_eps":1e-12,"max_position_embeddings":2048,"hidden_act":"silu",
        "rope_theta":1000.0,"type_vocab_size":2})";
// Nomic's second, with experts in every second block. Source: configuration_hf_nomic_bert.py.
constexpr const char* kNomicExpertDefaults =
    R"({"layer_norm_eps":1e-5,"max_position_embeddings":2048,"hidden_act":"gelu",
        "rope_theta":10000.0,"type_vocab_size":1,"num_experts":8,"num_experts_per_tok":2,
        "norm_topk_prob":false})";
constexpr const char* kEuroBertDefaults =
    R"({"rms_norm_eps":1e-5,"max_position_embeddings":8192,"hidden_act":"silu",
        "classifier_pooling":"late"})";
// Heads of values lie as Qwen3-Next's do, by groups of keys; GGUF files of qwen35 have another
// order, and are the same otherwise.
constexpr const char* kQwen35Defaults =
    R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":4,
        "head_dim":256,"partial_rotary_factor":0.25,"linear_conv_kernel_dim":4,
        "linear_key_head_dim":128,"linear_value_head_dim":128,"linear_num_key_heads":16,
        "linear_num_value_heads":32})";
constexpr const char* kQwen35MoeDefaults =
    R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":2,
        "head_dim":256,"partial_rotary_factor":0.25,"linear_conv_kernel_dim":4,
        "linear_key_head_dim":128,"linear_value_head_dim":128,"linear_num_key_heads":16,
        "linear_num_value_heads":32,"num_experts":256,"num_experts_per_tok":8,
        "norm_topk_prob":true,"moe_intermediate_size":512,"intermediate_size":512,
        "shared_expert_intermediate_size":512})";
constexpr const char* kMinistral3Defaults =
    R"({"rms_norm_eps":1e-5,"max_position_embeddings":131072,"num_key_value_heads":8,
        "head_dim":128,"rope_theta":1e6})";

// Source: transformers, configuration_*.py (defaults), modeling_*.py (order of rotary pairs).
constexpr FolderModel kModels[] = {
    {"LlamaForCausalLM", "llama", kTurnedHalves,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":2048})"},
    {"MistralForCausalLM", "llama", kTurnedHalves | kPlainWindow,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":131072,"num_key_value_heads":8,
         "sliding_window":4096})"},
    {"MixtralForCausalLM", "llama", kTurnedHalves | kBlockExperts | kPlainWindow,
     R"({"rms_norm_eps":1e-5,"rope_theta":1e6,"max_position_embeddings":131072,
         "num_key_value_heads":8,"num_local_experts":8,"num_experts_per_tok":2})"},
    {"ArceeForCausalLM", "arcee", kTurnedHalves,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":4096,"hidden_act":"relu2"})"},
    {"CohereForCausalLM", "command-r", 0,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":8192,"logit_scale":0.0625,
         "tie_word_embeddings":true})"},
    {"Cohere2ForCausalLM", "cohere2", kOwnWindows,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":8192,"logit_scale":0.0625,
         "sliding_window":4096,"sliding_window_pattern":4,"tie_word_embeddings":true})"},
    {"GemmaForCausalLM", "gemma", kGainsFromOne,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":8192,"num_attention_heads":16,
         "num_key_value_heads":16,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
         "tie_word_embeddings":true})"},
    {"Gemma2ForCausalLM", "gemma2", kGainsFromOne | kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":8192,"num_attention_heads":8,
         "num_key_value_heads":4,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
         "query_pre_attn_scalar":256,"sliding_window":4096,"sliding_window_pattern":2,
         "final_logit_softcapping":30.0,"attn_logit_softcapping":50.0,
         "tie_word_embeddings":true})"},
    {"Gemma3ForCausalLM", "gemma3", kGainsFromOne | kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":131072,"num_attention_heads":8,
         "num_key_value_heads":4,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
         "query_pre_attn_scalar":256,"sliding_window":4096,"sliding_window_pattern":6,
         "rope_theta":1e6,"rope_local_base_freq":10000.0,"tie_word_embeddings":true})"},
    {"Gemma3ForConditionalGeneration", "gemma3", kGainsFromOne | kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":131072,"num_attention_heads":8,
         "num_key_value_heads":4,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
         "query_pre_attn_scalar":256,"sliding_window":4096,"sliding_window_pattern":6,
         "rope_theta":1e6,"rope_local_base_freq":10000.0,"tie_word_embeddings":true})"},
    {"DeepseekV2ForCausalLM", "deepseek2", 0,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":2048,"routed_scaling_factor":1.0,
         "scoring_func":"softmax","first_k_dense_replace":0})"},
    {"DeepseekV3ForCausalLM", "deepseek2", 0,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":4096,"routed_scaling_factor":2.5,
         "scoring_func":"sigmoid","topk_method":"noaux_tc","norm_topk_prob":true,
         "first_k_dense_replace":3,"n_group":8,"topk_group":4})"},
    {"FalconForCausalLM", "falcon", kGroupedHeads,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":2048,"multi_query":true,
         "parallel_attn":true,"hidden_act":"gelu","tie_word_embeddings":true})"},
    {"GPT2LMHeadModel", "gpt2", kTransposed,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":1024,"hidden_act":"gelu_new",
         "tie_word_embeddings":true})"},
    {"GPTNeoXForCausalLM", "gptneox", kGroupedHeads,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":2048,"partial_rotary_factor":0.25,
         "use_parallel_residual":true,"hidden_act":"gelu"})"},
    {"GptOssForCausalLM", "gpt-oss", kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":131072,"num_key_value_heads":8,
         "head_dim":64,"rope_theta":150000.0,"sliding_window":128,"sliding_window_pattern":2,
         "num_local_experts":128,"num_experts_per_tok":4})"},
    {"Glm4ForCausalLM", "glm4", kPostNorms,
     R"({"rms_norm_eps":1.5625e-7,"max_position_embeddings":131072,"partial_rotary_factor":0.5})"},
    {"GraniteForCausalLM", "granite", kTurnedHalves,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":2048,"embedding_multiplier":1.0,
         "logits_scaling":1.0,"residual_multiplier":1.0,"attention_multiplier":1.0})"},
    {"NemotronForCausalLM", "nemotron", kGainsFromOne,
     R"({"norm_eps":1e-5,"max_position_embeddings":4096,"partial_rotary_factor":0.5,
         "hidden_act":"relu2"})"},
    {"OlmoForCausalLM", "olmo", kTurnedHalves,
     R"({"max_position_embeddings":2048,"layer_norm_eps":1e-5})"},
    {"Olmo2ForCausalLM", "olmo2", kPostNorms,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":2048})"},
    {"Olmo3ForCausalLM", "olmo2", kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":2048,"sliding_window":4096,
         "sliding_window_pattern":4})"},
    {"OlmoeForCausalLM", "olmoe", 0,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":4096,"num_experts":64,
         "num_experts_per_tok":8})"},
    {"PhiForCausalLM", "phi2", 0,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":2048,"partial_rotary_factor":0.5,
         "hidden_act":"gelu_new"})"},
    {"Phi3ForCausalLM", "phi3", kPlainWindow,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":4096,
         "original_max_position_embeddings":4096})"},
    {"Qwen2ForCausalLM", "qwen2", 0,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":32})"},
    {"Qwen2MoeForCausalLM", "qwen2moe", 0,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":16,
         "num_experts":60,"num_experts_per_tok":4})"},
    {"Qwen3ForCausalLM", "qwen3", 0,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":32,
         "head_dim":128})"},
    {"Qwen3MoeForCausalLM", "qwen3moe", 0,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":4,
         "num_experts":128,"num_experts_per_tok":8})"},
    {"SeedOssForCausalLM", "seed_oss", kPostNorms,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":524288})"},
    {"SmolLM3ForCausalLM", "smollm3", kTurnedHalves,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"rope_theta":2e6,
         "num_key_value_heads":4,"tie_word_embeddings":true})"},
    {"StableLmForCausalLM", "stablelm", 0,
     R"({"layer_norm_eps":1e-5,"max_position_embeddings":4096,"partial_rotary_factor":0.25,
         "use_parallel_residual":false})"},
    {"Starcoder2ForCausalLM", "starcoder2", kPlainWindow,
     R"({"norm_epsilon":1e-5,"max_position_embeddings":4096,"num_key_value_heads":2,
         "hidden_act":"gelu_pytorch_tanh","tie_word_embeddings":true})"},
    {"Exaone4ForCausalLM", "exaone4", kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":2048,"num_key_value_heads":32,
         "sliding_window":4096,"sliding_window_pattern":4})"},
    {"Gemma3nForCausalLM", "gemma3n", kPostNorms | kOwnWindows, kGemma3nDefaults},
    {"Gemma3nForConditionalGeneration", "gemma3n", kPostNorms | kOwnWindows, kGemma3nDefaults},
    {"Glm4MoeForCausalLM", "glm4moe", kPostNorms,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":131072,"num_key_value_heads":8,
         "partial_rotary_factor":0.5,"num_experts":128,"num_experts_per_tok":8,
         "moe_intermediate_size":1408,"n_shared_experts":1,"routed_scaling_factor":1.0,
         "first_k_dense_replace":1,"norm_topk_prob":true,"scoring_func":"sigmoid"})"},
    {"GraniteMoeForCausalLM", "granitemoe", kTurnedHalves, kGraniteMoeDefaults},
    {"GraniteMoeSharedForCausalLM", "granitemoe", kTurnedHalves, kGraniteMoeDefaults},
    {"GraniteMoeHybridForCausalLM", "granitehybrid", kTurnedHalves, kGraniteMoeDefaults},
    {"HunYuanDenseV1ForCausalLM", "hunyuan-dense", 0,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":2048})"},
    {"HunYuanMoEV1ForCausalLM", "hunyuan-moe", 0,
     R"({"rms_norm_eps":1e-5,"max_position_embeddings":2048,"num_experts":1,"moe_topk":1})"},
    {"Lfm2ForCausalLM", "lfm2", 0, kLfm2Defaults},
    {"Lfm2MoeForCausalLM", "lfm2moe", 0, kLfm2Defaults},
    {"Ministral3ForCausalLM", "mistral3", kTurnedHalves, kMinistral3Defaults},
    {"Mistral3ForConditionalGeneration", "mistral3", kTurnedHalves, kMinistral3Defaults},
    {"Qwen3NextForCausalLM", "qwen3next", kGainsFromOne | kPostNorms,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":32768,"num_key_value_heads":2,
         "head_dim":256,"partial_rotary_factor":0.25,"num_experts":512,"num_experts_per_tok":10,
         "norm_topk_prob":true,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,
         "linear_value_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,
         "moe_intermediate_size":512,"shared_expert_intermediate_size":512})"},
    {"Qwen3_5ForCausalLM", "qwen3next", kGainsFromOne | kPostNorms, kQwen35Defaults},
    {"Qwen3_5ForConditionalGeneration", "qwen3next", kGainsFromOne | kPostNorms, kQwen35Defaults},
    {"Qwen3_5MoeForCausalLM", "qwen3next", kGainsFromOne | kPostNorms, kQwen35MoeDefaults},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3next", kGainsFromOne | kPostNorms,
     kQwen35MoeDefaults},
    {"BertModel", "bert", kEncoder, kBertDefaults},
    {"BertForMaskedLM", "bert", kEncoder, kBertDefaults},
    {"BertForPreTraining", "bert", kEncoder, kBertDefaults},
    {"BertForSequenceClassification", "bert", kEncoder | kRanks, kBertDefaults},
    {"RobertaModel", "bert", kEncoder | kPositionsBehindPadding, kRobertaDefaults},
    {"RobertaForMaskedLM", "bert", kEncoder | kPositionsBehindPadding, kRobertaDefaults},
    {"RobertaForSequenceClassification", "bert", kEncoder | kPositionsBehindPadding | kRanks,
     kRobertaDefaults},
    {"XLMRobertaModel", "bert", kEncoder | kPositionsBehindPadding, kRobertaDefaults},
    {"XLMRobertaForMaskedLM", "bert", kEncoder | kPositionsBehindPadding, kRobertaDefaults},
    {"XLMRobertaForSequenceClassification", "bert", kEncoder | kPositionsBehindPadding | kRanks,
     kRobertaDefaults},
    {"CamembertModel", "bert", kEncoder | kPositionsBehindPadding, kRobertaDefaults},
    {"CamembertForMaskedLM", "bert", kEncoder | kPositionsBehindPadding, kRobertaDefaults},
    {"CamembertForSequenceClassification", "bert", kEncoder | kPositionsBehindPadding | kRanks,
     kRobertaDefaults},
    {"DistilBertModel", "bert", kEncoder, kDistilBertDefaults},
    {"DistilBertForMaskedLM", "bert", kEncoder, kDistilBertDefaults},
    {"DistilBertForSequenceClassification", "bert", kEncoder | kRanks, kDistilBertDefaults},
    {"MPNetModel", "bert", kEncoder | kPositionsBehindPadding, kMpnetDefaults},
    {"MPNetForMaskedLM", "bert", kEncoder | kPositionsBehindPadding, kMpnetDefaults},
    {"MPNetForSequenceClassification", "bert", kEncoder | kPositionsBehindPadding | kRanks,
     kMpnetDefaults},
    {"DebertaV2Model", "deberta-v2", kEncoder, kDebertaDefaults},
    {"DebertaV2ForMaskedLM", "deberta-v2", kEncoder, kDebertaDefaults},
    {"DebertaV2ForSequenceClassification", "deberta-v2", kEncoder | kRanks, kDebertaDefaults},
    {"ElectraModel", "bert", kEncoder, kElectraDefaults},
    {"ElectraForSequenceClassification", "bert", kEncoder | kRanks, kElectraDefaults},
    {"JinaEmbeddingsV3Model", "jina-bert-v3", kEncoder | kNormsBehindSums, kJinaV3Defaults},
    {"JinaEmbeddingsV3ForMaskedLM", "jina-bert-v3", kEncoder | kNormsBehindSums, kJinaV3Defaults},
    {"JinaEmbeddingsV3ForSequenceClassification", "jina-bert-v3",
     kEncoder | kNormsBehindSums | kRanks, kJinaV3Defaults},
    {"ModernBertModel", "modern-bert", kEncoder | kOwnWindows, kModernBertDefaults},
    {"ModernBertForMaskedLM", "modern-bert", kEncoder | kOwnWindows, kModernBertDefaults},
    {"ModernBertForSequenceClassification", "modern-bert", kEncoder | kOwnWindows | kRanks,
     kModernBertDefaults},
    {"NomicBertModel", "nomic-bert", kEncoder | kNormsBehindSums, kNomicDefaults},
    {"EuroBertModel", "eurobert", kEncoder, kEuroBertDefaults},
    {"EuroBertForMaskedLM", "eurobert", kEncoder, kEuroBertDefaults},
    {"EuroBertForSequenceClassification", "eurobert", kEncoder | kRanks, kEuroBertDefaults},
    {"Gemma3TextModel", "gemma-embedding", kEncoder | kGainsFromOne | kPostNorms | kOwnWindows,
     R"({"rms_norm_eps":1e-6,"max_position_embeddings":131072,"num_attention_heads":8,
         "num_key_value_heads":4,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
         "query_pre_attn_scalar":256,"sliding_window":4096,"sliding_window_pattern":6,
         "rope_theta":1e6,"rope_local_base_freq":10000.0})"},
};

// --- tensors -----------------------------------------------------------------------------------

struct Name {
  std::string_view theirs, ours;
};

constexpr Name kOuterNames[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"model.final_layernorm.", "output_norm."},
    {"lm_head.", "output."},
    {"wte.", "token_embd."},
    {"wpe.", "position_embd."},
    {"word_embeddings.", "token_embd."},
    {"embed_in.", "token_embd."},
    {"ln_f.", "output_norm."},
    {"final_layer_norm.", "output_norm."},
    {"embed_out.", "output."},
    {"model.embedding_norm.", "token_embd_norm."},
    {"model.embed_tokens_per_layer.", "per_layer_token_embd."},
    {"model.per_layer_model_projection.", "per_layer_model_proj."},
    {"model.per_layer_projection_norm.", "per_layer_proj_norm."},
    // Of classes that end in Model.
    {"embed_tokens.", "token_embd."},
    {"norm.", "output_norm."},
};

// Of encoders, whose classes put a prefix before all that the encoder alone has, too.
constexpr std::string_view kEncoderPrefixes[] = {
    "bert.",    "roberta.", "distilbert.",         "mpnet.",
    "electra.", "deberta.", "jina_embeddings_v3.", "nomic_bert.",
    "model.",   "encoder."};
constexpr Name kEncoderNames[] = {
    {"embeddings.word_embeddings.", "token_embd."},
    {"embeddings.tok_embeddings.", "token_embd."},
    {"embeddings.position_embeddings.", "position_embd."},
    {"embeddings.token_type_embeddings.", "token_types."},
    {"embeddings.LayerNorm.", "token_embd_norm."},
    {"embeddings.norm.", "token_embd_norm."},
    {"emb_ln.", "token_embd_norm."},
    {"relative_attention_bias.", "blk.0.attn_rel_b."},
    {"rel_embeddings.", "rel_embd."},
    {"LayerNorm.", "rel_embd_norm."},
    {"final_norm.", "output_norm."},
    {"embed_tokens.", "token_embd."},
    {"norm.", "output_norm."},
};
/// Behind "layer.N." and "layers.N.".
constexpr Name kEncoderBlockNames[] = {
    {"attention.self.query.", "attn_q."},
    {"attention.self.key.", "attn_k."},
    {"attention.self.value.", "attn_v."},
    {"attention.output.dense.", "attn_output."},
    {"attention.output.LayerNorm.", "attn_output_norm."},
    {"intermediate.dense.", "ffn_up."},
    {"output.dense.", "ffn_down."},
    {"output.LayerNorm.", "layer_output_norm."},
    // DistilBERT's.
    {"attention.q_lin.", "attn_q."},
    {"attention.k_lin.", "attn_k."},
    {"attention.v_lin.", "attn_v."},
    {"attention.out_lin.", "attn_output."},
    {"sa_layer_norm.", "attn_output_norm."},
    {"ffn.lin1.", "ffn_up."},
    {"ffn.lin2.", "ffn_down."},
    {"output_layer_norm.", "layer_output_norm."},
    // DeBERTa's.
    {"attention.self.query_proj.", "attn_q."},
    {"attention.self.key_proj.", "attn_k."},
    {"attention.self.value_proj.", "attn_v."},
    // MPNet's.
    {"attention.attn.q.", "attn_q."},
    {"attention.attn.k.", "attn_k."},
    {"attention.attn.v.", "attn_v."},
    {"attention.attn.o.", "attn_output."},
    {"attention.LayerNorm.", "attn_output_norm."},
    // Of Nomic's second: experts one after the other; the bias is of all together.
    {"mlp.router.layer.", "ffn_gate_inp."},
    {"mlp.experts.mlp.w1", "ffn_up_exps.weight"},
    {"mlp.experts.mlp.w2", "ffn_down_exps.weight"},
    {"mlp.experts.bias", "bellmetal.ffn_exps.bias"},
    // ModernBERT's and Nomic's.
    {"attn.Wqkv.", "attn_qkv."},
    {"attn.Wo.", "attn_output."},
    {"attn.out_proj.", "attn_output."},
    {"attn_norm.", "attn_norm."},
    {"mlp_norm.", "ffn_norm."},
    {"mlp.Wi.", "ffn_up."},
    {"mlp.Wo.", "ffn_down."},
    // Jina's third, as save_pretrained() writes it.
    {"mixer.Wqkv.", "attn_qkv."},
    {"mixer.out_proj.", "attn_output."},
    {"mlp.fc11.", "ffn_up."},
    {"mlp.fc12.", "ffn_gate."},
    {"norm1.", "attn_output_norm."},
    {"norm2.", "layer_output_norm."},
    {"post_mlp_layernorm.", "layer_output_norm."},
};
/// What classifiers have behind the encoder. The first that fits counts.
constexpr Name kClassifierNames[] = {
    {"pooler.dense.", "cls."},
    {"pre_classifier.", "cls."},
    {"classifier.dense.", "cls."},
    {"head.dense.", "cls."},
    {"head.norm.", "cls.norm."},
    {"dense.", "cls."},
    {"classifier.out_proj.", "cls.output."},
    {"classifier.", "cls.output."},
};
/// Heads that guess masked tokens or the next sentence, and numbers that are made anew.
constexpr std::string_view kEncoderIdle[] = {"lm_predictions.",
                                             "mask_predictions.",
                                             "cls.predictions.",
                                             "cls.seq_relationship.",
                                             "lm_head.",
                                             "decoder.",
                                             "vocab_",
                                             "embeddings.position_ids",
                                             "embeddings.token_type_ids"};

/// Matrices with a number each that are one tensor.
constexpr Name kOuterStacks[] = {
    {"model.altup_projections.", "altup_proj.weight"},
    {"model.altup_unembed_projections.", "altup_unembd_proj.weight"},
};

/// Behind "model.layers.N.", "h.N." and "layers.N.".
constexpr Name kBlockNames[] = {
    {"ln_1.", "attn_norm."},
    {"ln_2.", "ffn_norm."},
    {"ln_mlp.", "attn_norm."},
    {"ln_attn.", "attn_norm_2."},
    {"attn.c_attn.", "attn_qkv."},
    {"attn.c_proj.", "attn_output."},
    {"attention.query_key_value.", "attn_qkv."},
    {"attention.dense.", "attn_output."},
    {"self_attention.query_key_value.", "attn_qkv."},
    {"self_attention.dense.", "attn_output."},
    {"mlp.dense_h_to_4h.", "ffn_up."},
    {"mlp.dense_4h_to_h.", "ffn_down."},
    {"self_attn.q_a_proj.", "attn_q_a."},
    {"self_attn.q_a_layernorm.", "attn_q_a_norm."},
    {"self_attn.q_b_proj.", "attn_q_b."},
    {"self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa."},
    {"self_attn.kv_a_layernorm.", "attn_kv_a_norm."},
    {"self_attn.kv_b_proj.", "attn_kv_b."},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"self_attn.out_proj.", "attn_output."},
    {"self_attn.q_layernorm.", "attn_q_norm."},
    {"self_attn.k_layernorm.", "attn_k_norm."},
    {"self_attn.query_layernorm.", "attn_q_norm."},
    {"self_attn.key_layernorm.", "attn_k_norm."},
    {"operator_norm.", "attn_norm."},
    {"ffn_norm.", "ffn_norm."},
    {"conv.conv.", "shortconv.conv."},
    {"conv.in_proj.", "shortconv.in_proj."},
    {"conv.out_proj.", "shortconv.out_proj."},
    {"feed_forward.w1.", "ffn_gate."},
    {"feed_forward.w2.", "ffn_down."},
    {"feed_forward.w3.", "ffn_up."},
    {"feed_forward.gate.", "ffn_gate_inp."},
    {"feed_forward.expert_bias", "exp_probs_b.bias"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.conv1d.", "ssm_conv1d."},
    {"linear_attn.in_proj_ba.", "ssm_ba."},
    {"linear_attn.in_proj_qkvz.", "attn_qkv_and_gate."},
    {"linear_attn.in_proj_qkv.", "attn_qkv."},
    {"linear_attn.in_proj_z.", "attn_gate."},
    {"linear_attn.in_proj_b.", "ssm_ba_beta."},
    {"linear_attn.in_proj_a.", "ssm_ba_alpha."},
    {"mlp.experts.gate_up_proj", "ffn_gate_and_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"linear_attn.norm.", "ssm_norm."},
    {"linear_attn.out_proj.", "ssm_out."},
    {"mamba.A_log", "ssm_a"},
    {"mamba.D", "ssm_d"},
    {"mamba.dt_bias", "ssm_dt.bias"},
    {"mamba.conv1d.", "ssm_conv1d."},
    {"mamba.in_proj.", "ssm_in."},
    {"mamba.norm.", "ssm_norm."},
    {"mamba.out_proj.", "ssm_out."},
    {"altup.correct_output_scale", "altup_correct_scale.weight"},
    {"altup.correction_coefs.", "altup_correct_coef."},
    {"altup.modality_router.", "altup_router."},
    {"altup.prediction_coefs.", "altup_predict_coef."},
    {"altup.router_norm.", "altup_router_norm."},
    {"laurel.linear_left.", "laurel_l."},
    {"laurel.linear_right.", "laurel_r."},
    {"laurel.post_laurel_norm.", "laurel_post_norm."},
    {"per_layer_input_gate.", "inp_gate."},
    {"per_layer_projection.", "proj."},
    {"post_per_layer_input_norm.", "post_norm."},
    {"mlp.gate.wg.", "ffn_gate_inp."},
    {"mlp.shared_mlp.gate_proj.", "ffn_gate_shexp."},
    {"mlp.shared_mlp.up_proj.", "ffn_up_shexp."},
    {"mlp.shared_mlp.down_proj.", "ffn_down_shexp."},
    {"block_sparse_moe.router.layer.", "ffn_gate_inp."},
    {"block_sparse_moe.input_linear.", "ffn_gate_and_up_exps."},
    {"block_sparse_moe.output_linear.", "ffn_down_exps."},
    {"shared_mlp.input_linear.", "ffn_gate_and_up_shexp."},
    {"shared_mlp.output_linear.", "ffn_down_shexp."},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.router.", "ffn_gate_inp."},
    {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp."},
    {"mlp.shared_experts.up_proj.", "ffn_up_shexp."},
    {"mlp.shared_experts.down_proj.", "ffn_down_shexp."},
    {"input_layernorm.", "attn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.qkv_proj.", "attn_qkv."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.dense.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"pre_feedforward_layernorm.", "ffn_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {"post_self_attn_layernorm.", "post_attention_norm."},
    {"post_mlp_layernorm.", "post_ffw_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
    {"mlp.gate_up_proj.", "ffn_up."},
    {"mlp.c_fc.", "ffn_up."},
    {"mlp.c_proj.", "ffn_down."},
    {"mlp.fc1.", "ffn_up."},
    {"mlp.fc2.", "ffn_down."},
    {"mlp.gate.", "ffn_gate_inp."},
    {"block_sparse_moe.gate.", "ffn_gate_inp."},
    {"mlp.shared_expert_gate.", "ffn_gate_inp_shexp."},
    {"mlp.shared_expert.gate_proj.", "ffn_gate_shexp."},
    {"mlp.shared_expert.up_proj.", "ffn_up_shexp."},
    {"mlp.shared_expert.down_proj.", "ffn_down_shexp."},
};

/// Behind the number of a block: masks and frequencies that are made anew.
constexpr std::string_view kIdle[] = {"attn.bias", "attn.masked_bias", "attention.bias",
                                      "attention.masked_bias"};

/// Behind "mlp.experts.E.", "block_sparse_moe.experts.E." and "feed_forward.experts.E.".
constexpr Name kExpertNames[] = {
    {"gate_proj.weight", "ffn_gate_exps.weight"}, {"up_proj.weight", "ffn_up_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"}, {"w1.weight", "ffn_gate_exps.weight"},
    {"w3.weight", "ffn_up_exps.weight"},          {"w2.weight", "ffn_down_exps.weight"},
};

}  // namespace

const FolderModel& nomic_with_experts() {
  static constexpr FolderModel kModel = {"NomicBertModel", "nomic-bert-moe",
                                         kEncoder | kNormsBehindSums, kNomicExpertDefaults};
  return kModel;
}

Result<const FolderModel*> find_folder_model(std::string_view name) {
  std::string known;
  const std::string with_head =
      name.ends_with("Model") ? std::string(name.substr(0, name.size() - 5)) + "ForCausalLM" : "";
  for (const FolderModel& model : kModels) {
    if (name == model.name) return &model;
    known += std::string(known.empty() ? "" : ", ") + model.name;
  }
  for (const FolderModel& model : kModels)
    if (with_head == model.name) return &model;
  return fail(Code::kUnsupported, "config.json: architecture {} is not supported (known: {})",
              quote_name(name), known);
}

std::optional<uint32_t> take_number(std::string_view* text, uint32_t limit) {
  uint32_t number = 0;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || at == end || *at != '.' || number >= limit) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(at - text->data()) + 1);
  return number;
}

bool take_prefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

namespace {

FolderPlace encoder_place_of(const FolderModel& model, uint32_t blocks, std::string_view name) {
  std::string_view rest = name;
  for (const std::string_view prefix : kEncoderPrefixes) take_prefix(&rest, prefix);
  if (rest.ends_with("rotary_emb.inv_freq")) return {};
  for (const std::string_view idle : kEncoderIdle)
    if (rest.starts_with(idle) || name.starts_with(idle)) return {};
  for (const Name& n : kClassifierNames)
    if (take_prefix(&rest, n.theirs))
      return model.words & kRanks ? FolderPlace{std::string(n.ours) + std::string(rest), {}}
                                  : FolderPlace{};
  // Older files name gain and bias of a norm so.
  std::string own(rest);
  if (own.ends_with(".gamma")) own.replace(own.size() - 5, 5, "weight");
  if (own.ends_with(".beta")) own.replace(own.size() - 4, 4, "bias");
  rest = own;
  for (const Name& n : kEncoderNames)
    if (take_prefix(&rest, n.theirs)) return {std::string(n.ours) + std::string(rest), {}};
  take_prefix(&rest, "transformer.");
  if (!take_prefix(&rest, "layer.") && !take_prefix(&rest, "layers."))
    return {std::string(name), {}};
  const auto layer = take_number(&rest, kMaxFolderBlocks);
  if (!layer || *layer >= blocks) return {std::string(name), {}};
  const std::string block = fmt::format("blk.{}.", *layer);
  if (take_prefix(&rest, "post_attention_layernorm."))
    return {block +
                (model.words & kNormsBehindSums ? "attn_output_norm."
                 : model.words & kPostNorms     ? "post_attention_norm."
                                                : "ffn_norm.") +
                std::string(rest),
            {}};
  for (const std::span<const Name> table :
       {std::span<const Name>(kEncoderBlockNames), std::span<const Name>(kBlockNames)})
    for (const Name& n : table)
      if (take_prefix(&rest, n.theirs))
        return {block + std::string(n.ours) + std::string(rest), {}};
  return {std::string(name), {}};
}

}  // namespace

FolderPlace place_of(const FolderModel& model, uint32_t blocks, std::string_view name) {
  if (model.words & kEncoder) return encoder_place_of(model, blocks, name);
  std::string_view rest = name;
  // Models that see have a model of language in them.
  for (const std::string_view part : {"vision_tower.", "multi_modal_projector.", "visual.",
                                      "audio_tower.", "embed_vision.", "embed_audio."})
    if (name.starts_with(part) || name.starts_with("model." + std::string(part))) return {};
  if (name.starts_with("mtp.")) return {};
  std::string own;
  if (take_prefix(&rest, "model.language_model."))
    own = "model." + std::string(rest);
  else if (take_prefix(&rest, "language_model."))
    own = rest;
  if (!own.empty()) rest = own;
  if (rest.ends_with("rotary_emb.inv_freq")) return {};
  if (!take_prefix(&rest, "transformer.")) take_prefix(&rest, "gpt_neox.");
  for (const auto& [theirs, ours] : kOuterStacks)
    if (take_prefix(&rest, theirs)) {
      const auto part = take_number(&rest, kMaxFolderExperts);
      return part && rest == "weight" ? FolderPlace{std::string(ours), part}
                                      : FolderPlace{std::string(name), {}};
    }
  for (const Name& n : kOuterNames)
    if (take_prefix(&rest, n.theirs)) return {std::string(n.ours) + std::string(rest), {}};
  if (!take_prefix(&rest, "model.layers.") && !take_prefix(&rest, "h.") &&
      !take_prefix(&rest, "layers."))
    return {std::string(name), {}};
  const auto layer = take_number(&rest, kMaxFolderBlocks);
  if (!layer) return {std::string(name), {}};
  if (std::ranges::find(kIdle, rest) != std::end(kIdle) || *layer >= blocks) return {};
  const std::string block = fmt::format("blk.{}.", *layer);
  if (take_prefix(&rest, "post_attention_layernorm."))
    return {block +
                (model.words & kPostNorms && std::string_view(model.architecture) != "glm4"
                     ? "post_attention_norm."
                     : "ffn_norm.") +
                std::string(rest),
            {}};
  if (std::string_view part = rest; take_prefix(&part, "mlp.experts.") ||
                                    take_prefix(&part, "block_sparse_moe.experts.") ||
                                    take_prefix(&part, "feed_forward.experts."))
    if (const auto expert = take_number(&part, kMaxFolderExperts))
      for (const Name& n : kExpertNames)
        if (part == n.theirs) return {block + std::string(n.ours), expert};
  for (const Name& n : kBlockNames)
    if (take_prefix(&rest, n.theirs)) return {block + std::string(n.ours) + std::string(rest), {}};
  return {std::string(name), {}};
}

}  // namespace bm::models
