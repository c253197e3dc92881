// A folder of Hugging Face as a GGUF file: keys of config.json and names of tensors, by tables.
#include "models/hugging_face.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/json_text.h"
#include "models/model_error.h"
#include "models/safetensors.h"
#include "runtime/base/half.h"

namespace bm::models {

using nlohmann::json;

namespace {

constexpr size_t kMaxConfigBytes = 4u << 20;
constexpr uint32_t kMaxBlocks = 4096, kMaxExperts = 4096;

enum Word : uint32_t {
  kTurnedHalves = 1,    ///< rotary pairs lie in halves, where files of this architecture have pairs
  kGainsFromOne = 2,    ///< gains of norms are kept less one
  kPostNorms = 4,       ///< post_attention_layernorm is what its name says
  kBlockExperts = 8,    ///< experts w1, w2, w3 of a block_sparse_moe
  kOwnWindows = 16,     ///< sliding_window holds for the layers that layer_types or a pattern names
  kPlainWindow = 32,    ///< sliding_window holds for all
  kTransposed = 64,     ///< matrices of blocks are [columns, rows]
  kGroupedHeads = 128,  ///< queries, key and value of a group of heads follow each other
};

struct Model {
  const char* name;  ///< config.json, "architectures"
  const char* architecture;
  uint32_t words;
  const char* defaults;  ///< what transformers takes for keys that are left out
};

// Source: transformers, configuration_*.py (defaults), modeling_*.py (order of rotary pairs).
constexpr Model kModels[] = {
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
};

/// Older names of keys, and those of single families.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"n_embd", "hidden_size"},
    {"n_layer", "num_hidden_layers"},
    {"n_head", "num_attention_heads"},
    {"n_head_kv", "num_key_value_heads"},
    {"num_kv_heads", "num_key_value_heads"},
    {"n_positions", "max_position_embeddings"},
    {"n_inner", "intermediate_size"},
    {"ffn_hidden_size", "intermediate_size"},
    {"layer_norm_epsilon", "layer_norm_eps"},
    {"activation_function", "hidden_act"},
    {"activation", "hidden_act"},
    {"rotary_pct", "partial_rotary_factor"},
    {"rotary_emb_base", "rope_theta"},
    {"n_routed_experts", "num_experts"},
    {"experts_per_token", "num_experts_per_tok"},
};

Result<const Model*> find_model(std::string_view name) {
  std::string known;
  for (const Model& model : kModels) {
    if (name == model.name) return &model;
    known += std::string(known.empty() ? "" : ", ") + model.name;
  }
  return fail(Code::kUnsupported, "config.json: architecture {} is not supported (known: {})",
              quote_name(name), known);
}

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

/// Behind "mlp.experts.E." and "block_sparse_moe.experts.E.".
constexpr Name kExpertNames[] = {
    {"gate_proj.weight", "ffn_gate_exps.weight"}, {"up_proj.weight", "ffn_up_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"}, {"w1.weight", "ffn_gate_exps.weight"},
    {"w3.weight", "ffn_up_exps.weight"},          {"w2.weight", "ffn_down_exps.weight"},
};

/// A number below `limit` and a dot at the front of `text`, which are taken off.
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

struct Place {
  std::string name;  ///< in a GGUF file; empty: the tensor has no use
  std::optional<uint32_t> expert;
};

/// Names that are not known stay as they are: loading refuses what has no use.
/// `blocks`: those behind guess the token after the next, and have no use here.
Place place_of(const Model& model, uint32_t blocks, std::string_view name) {
  std::string_view rest = name;
  // Models that see have a model of language in them.
  for (const std::string_view part : {"vision_tower.", "multi_modal_projector.", "visual."})
    if (name.starts_with(part) || name.starts_with("model." + std::string(part))) return {};
  std::string own;
  if (take_prefix(&rest, "model.language_model."))
    own = "model." + std::string(rest);
  else if (take_prefix(&rest, "language_model."))
    own = rest;
  if (!own.empty()) rest = own;
  if (rest.ends_with("rotary_emb.inv_freq")) return {};
  if (!take_prefix(&rest, "transformer.")) take_prefix(&rest, "gpt_neox.");
  for (const Name& n : kOuterNames)
    if (take_prefix(&rest, n.theirs)) return {std::string(n.ours) + std::string(rest), {}};
  if (!take_prefix(&rest, "model.layers.") && !take_prefix(&rest, "h.") &&
      !take_prefix(&rest, "layers."))
    return {std::string(name), {}};
  const auto layer = take_number(&rest, kMaxBlocks);
  if (!layer) return {std::string(name), {}};
  if (std::ranges::find(kIdle, rest) != std::end(kIdle) || *layer >= blocks) return {};
  const std::string block = fmt::format("blk.{}.", *layer);
  if (take_prefix(&rest, "post_attention_layernorm."))
    return {block +
                (model.words & kPostNorms && !std::string_view(model.name).starts_with("Glm4")
                     ? "post_attention_norm."
                     : "ffn_norm.") +
                std::string(rest),
            {}};
  if (take_prefix(&rest, "mlp.experts.") || take_prefix(&rest, "block_sparse_moe.experts."))
    if (const auto expert = take_number(&rest, kMaxExperts))
      for (const Name& n : kExpertNames)
        if (rest == n.theirs) return {block + std::string(n.ours), expert};
  for (const Name& n : kBlockNames)
    if (take_prefix(&rest, n.theirs)) return {block + std::string(n.ours) + std::string(rest), {}};
  return {std::string(name), {}};
}

Result<GgmlType> ggml_type_of(const SafeTensor& t) {
  switch (t.dtype) {
    case SafeDtype::kF32: return GgmlType::kF32;
    case SafeDtype::kF16: return GgmlType::kF16;
    case SafeDtype::kBF16: return GgmlType::kBF16;
    case SafeDtype::kF64: return GgmlType::kF64;
    default:
      return fail(Code::kUnsupported, "tensor {}: weights of {} are not supported",
                  quote_name(t.name), safe_dtype_name(t.dtype));
  }
}

}  // namespace

/// Puts a GgufFile together; everything it points to lies in `store_`.
class HuggingFaceModel {
 public:
  explicit HuggingFaceModel(std::string folder) : folder_(std::move(folder)) {
    if (!folder_.ends_with('/')) folder_ += '/';
  }

  Result<GgufFile> open_tokenizer() {
    // Only what ends a text is there.
    if (exists("config.json")) config_ = BM_TRY(read_json("config.json"));
    if (const auto text = config_.find("text_config"); text != config_.end() && text->is_object())
      config_ = json(*text);
    file_.version_ = 3;
    file_.shard_count_ = 1;
    BM_TRY(read_tokenizer());
    file_.owner_ = std::move(store_);
    return std::move(file_);
  }

  Result<GgufFile> open() {
    if (!exists("config.json"))
      return fail(Code::kNotFound,
                  "{}config.json is missing: a folder must be a model of Hugging Face", folder_);
    config_ = BM_TRY(read_json("config.json"));
    const auto names = config_.find("architectures");
    if (names == config_.end() || !names->is_array() || names->empty() || !(*names)[0].is_string())
      return fail(Code::kCorrupt, "{}config.json: no \"architectures\"", folder_);
    model_ = BM_TRY(find_model((*names)[0].get_ref<const std::string&>()));
    // Experts of gpt-oss are blocks that GGUF files have, too.
    if (const auto quantised = config_.find("quantization_config");
        quantised != config_.end() && !quantised->is_null() &&
        !(architecture_is("gpt-oss") && quantised->is_object() &&
          quantised->value("quant_method", json()) == "mxfp4"))
      return fail(Code::kUnsupported,
                  "{}config.json: weights with a quantization_config are not supported", folder_);
    if (const auto text = config_.find("text_config"); text != config_.end() && text->is_object()) {
      const json outer = config_;
      config_ = *text;
      if (!config_.contains("tie_word_embeddings") && outer.contains("tie_word_embeddings"))
        config_["tie_word_embeddings"] = outer["tie_word_embeddings"];
    }
    // transformers 5 keeps what concerns positions together.
    if (const auto rope = config_.find("rope_parameters");
        rope != config_.end() && rope->is_object()) {
      json parameters = *rope;
      // And of layers with a window apart from the others.
      if (parameters.contains("full_attention") && parameters["full_attention"].is_object()) {
        const json local = parameters.value("sliding_attention", json::object());
        if (local.is_object() && local.contains("rope_theta"))
          config_["rope_local_base_freq"] = local["rope_theta"];
        parameters = json(parameters["full_attention"]);
      }
      if (parameters.contains("rope_theta")) config_["rope_theta"] = parameters["rope_theta"];
      if (parameters.contains("partial_rotary_factor"))
        config_["partial_rotary_factor"] = parameters["partial_rotary_factor"];
      if (find("rope_scaling") == nullptr) config_["rope_scaling"] = parameters;
    }
    for (const auto& [older, name] : kAliases)
      if (config_.contains(older) && !config_[older].is_null() && !config_.contains(name))
        config_[name] = config_[older];
    json whole = json::parse(model_->defaults);
    for (const auto& [key, value] : config_.items())
      if (!value.is_null() || key == "sliding_window") whole[key] = value;
    config_ = std::move(whole);
    file_.version_ = 3;
    file_.shard_count_ = 1;
    BM_TRY(read_config());
    BM_TRY(read_rope());
    BM_TRY(read_experts());
    BM_TRY(read_tensors());
    BM_TRY(read_tokenizer());
    file_.owner_ = std::move(store_);
    return std::move(file_);
  }

 private:
  struct Store {
    std::deque<std::string> texts;
    std::deque<std::vector<std::byte>> buffers;
    SafetensorsFile weights;
    std::vector<Mapping> mappings;
  };

  bool architecture_is(std::string_view name) const { return model_->architecture == name; }

  bool exists(const std::string& name) const {
    struct stat seen{};
    return stat((folder_ + name).c_str(), &seen) == 0 && S_ISREG(seen.st_mode);
  }

  Result<json> read_json(const std::string& name) {
    const Mapping file = BM_TRY(Mapping::open_file(folder_ + name));
    return parse_json_object(
               {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
               kMaxConfigBytes)
        .map_error([&](Error e) { return std::move(e).within(folder_ + name); });
  }

  // --- metadata ---------------------------------------------------------------------------------

  std::string_view keep(std::string text) { return store_->texts.emplace_back(std::move(text)); }

  GgufValue& set(const std::string& key, GgufType type) {
    GgufValue& value = file_.metadata_[keep(key)];
    value.type = type;
    return value;
  }
  std::string own(const char* key) const { return std::string(model_->architecture) + "." + key; }
  void set_u32(const std::string& key, uint32_t number) {
    set(key, GgufType::kUint32).bits = number;
  }
  void set_f32(const std::string& key, double number) {
    set(key, GgufType::kFloat32).bits = std::bit_cast<uint32_t>(static_cast<float>(number));
  }
  void set_bool(const std::string& key, bool is) { set(key, GgufType::kBool).bits = is ? 1 : 0; }
  void set_text(const std::string& key, std::string text) {
    set(key, GgufType::kString).text = keep(std::move(text));
  }

  tl::unexpected<Error> wrong(const char* key, const char* wanted) const {
    return fail(Code::kCorrupt, "{}config.json: \"{}\" is not {}", folder_, key, wanted);
  }

  const json* find(const char* key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<std::optional<uint32_t>> u32(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::optional<uint32_t>();
    if (!value->is_number_integer() || *value < 0 || *value > UINT32_MAX)
      return wrong(key, "a whole number below 2^32");
    return std::optional<uint32_t>(value->get<uint32_t>());
  }

  Result<uint32_t> need(const char* key) const {
    const auto value = BM_TRY(u32(key));
    if (!value || *value == 0 || *value > (1u << 24))
      return wrong(key, "a number from 1 to 16777216");
    return *value;
  }

  Result<std::optional<double>> real(const json& from, const char* key) const {
    const auto value = from.find(key);
    if (value == from.end() || value->is_null()) return std::optional<double>();
    if (!value->is_number() || !std::isfinite(value->get<double>())) return wrong(key, "a number");
    return std::optional<double>(value->get<double>());
  }

  Result<bool> flag(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return wrong(key, "true or false");
    return value->get<bool>();
  }

  Status set_real(const char* theirs, const char* ours) {
    if (const auto value = BM_TRY(real(config_, theirs))) set_f32(own(ours), *value);
    return {};
  }

  /// Only a family of functions: which approximation of GELU is meant changes the last bits alone.
  Status check_activation() const {
    const json* value = find("hidden_act");
    if (value == nullptr) value = find("hidden_activation");
    if (value == nullptr) return {};
    if (!value->is_string()) return wrong("hidden_act", "a text");
    const auto& name = value->get_ref<const std::string&>();
    const std::string_view arch = model_->architecture;
    const bool is_gelu = arch.starts_with("gemma") || arch == "gpt2" || arch == "gptneox" ||
                         arch == "falcon" || arch == "phi2" || arch == "starcoder2";
    const bool is_squared = arch == "arcee" || arch == "nemotron";
    const bool is_known = is_gelu      ? name.starts_with("gelu") || name == "quick_gelu"
                          : is_squared ? name == "relu2"
                                       : name == "silu" || name == "swish";
    if (is_known && name != "quick_gelu") return {};
    return fail(Code::kUnsupported, "{}config.json: \"hidden_act\" {} is not supported here",
                folder_, quote_name(name));
  }

  Status read_config() {
    set_text("general.architecture", model_->architecture);
    const size_t end = folder_.find_last_not_of('/');
    const size_t begin = end == std::string::npos ? end : folder_.rfind('/', end);
    if (end != std::string::npos)
      set_text("general.name",
               folder_.substr(begin == std::string::npos ? 0 : begin + 1,
                              end - (begin == std::string::npos ? 0 : begin + 1) + 1));
    BM_TRY(check_activation());
    blocks_ = BM_TRY(need("num_hidden_layers"));
    if (blocks_ > kMaxBlocks) return wrong("num_hidden_layers", "a number of layers");
    const uint32_t width = BM_TRY(need("hidden_size")), heads = BM_TRY(need("num_attention_heads"));
    uint32_t kv = BM_TRY(u32("num_key_value_heads")).value_or(heads);
    if (architecture_is("falcon") && !BM_TRY(flag("new_decoder_architecture")))
      kv = BM_TRY(flag("multi_query")) ? 1 : heads;
    if (kv == 0 || heads % kv != 0) return wrong("num_key_value_heads", "a divisor of the heads");
    groups_ = kv;
    head_ = BM_TRY(u32("head_dim")).value_or(width / heads);
    if (head_ == 0) return wrong("head_dim", "positive");
    set_u32(own("block_count"), blocks_);
    set_u32(own("embedding_length"), width);
    set_u32(own("context_length"), BM_TRY(need("max_position_embeddings")));
    const bool is_fourfold = (architecture_is("gpt2") || architecture_is("falcon")) &&
                             find("intermediate_size") == nullptr;
    set_u32(own("feed_forward_length"),
            is_fourfold ? 4 * width : BM_TRY(need("intermediate_size")));
    set_u32(own("attention.head_count"), heads);
    set_u32(own("attention.head_count_kv"), kv);
    set_u32(own("attention.key_length"), head_);
    set_u32(own("attention.value_length"), head_);
    BM_TRY(set_real("rms_norm_eps", "attention.layer_norm_rms_epsilon"));
    for (const char* key : {"layer_norm_eps", "norm_epsilon", "norm_eps"})
      BM_TRY(set_real(key, "attention.layer_norm_epsilon"));
    BM_TRY(set_real("rope_theta", "rope.freq_base"));
    const std::string_view arch = model_->architecture;
    if (model_->words & kTurnedHalves) set_bool("bellmetal.rope.halves", true);
    if (arch == "gemma3") BM_TRY(set_real("rope_local_base_freq", "rope.freq_base_swa"));
    if (arch.starts_with("gemma2") || arch == "gemma3") {
      for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
        if (arch == "gemma3" && key[0] == 'a') continue;
        set_f32(own(key), BM_TRY(real(config_, key)).value_or(0));
      }
      if (const auto scalar = BM_TRY(real(config_, "query_pre_attn_scalar")); scalar && *scalar > 0)
        set_f32(own("attention.scale"), 1 / std::sqrt(*scalar));
    }
    if (arch == "granite") {
      BM_TRY(set_real("embedding_multiplier", "embedding_scale"));
      BM_TRY(set_real("residual_multiplier", "residual_scale"));
      BM_TRY(set_real("attention_multiplier", "attention.scale"));
      BM_TRY(set_real("logits_scaling", "logit_scale"));
    }
    if (arch == "command-r" || arch == "cohere2") BM_TRY(set_real("logit_scale", "logit_scale"));
    if (arch == "olmo") BM_TRY(set_real("clip_qkv", "attention.clamp_kqv"));
    if (arch == "stablelm") {
      set_bool(own("use_parallel_residual"), BM_TRY(flag("use_parallel_residual")));
      if (BM_TRY(flag("qk_layernorm")))
        return fail(Code::kUnsupported, "{}config.json: \"qk_layernorm\" is not supported",
                    folder_);
    }
    if (arch == "gptneox")
      set_bool(own("use_parallel_residual"), BM_TRY(flag("use_parallel_residual")));
    if (arch == "falcon" && (BM_TRY(flag("alibi")) || !BM_TRY(flag("parallel_attn"))))
      return fail(Code::kUnsupported,
                  "{}config.json: \"alibi\" and blocks without \"parallel_attn\" are not supported",
                  folder_);
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "attention_in_fp32_only"})
      if (arch == "gpt2" && BM_TRY(flag(key)))
        return fail(Code::kUnsupported, "{}config.json: \"{}\" is not supported", folder_, key);
    if (arch == "deepseek2") BM_TRY(read_latent());
    return read_windows();
  }

  /// Multi-head latent attention. Source: transformers, configuration_deepseek_v2.py and _v3.py.
  Status read_latent() {
    const uint32_t plain = BM_TRY(need("qk_nope_head_dim")),
                   turned = BM_TRY(need("qk_rope_head_dim"));
    head_ = plain + turned;
    set_u32(own("attention.key_length"), head_);
    set_u32(own("attention.value_length"), BM_TRY(need("v_head_dim")));
    set_u32(own("attention.kv_lora_rank"), BM_TRY(need("kv_lora_rank")));
    if (const auto rank = BM_TRY(u32("q_lora_rank"))) set_u32(own("attention.q_lora_rank"), *rank);
    config_["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(head_);
    if (find("rope_interleave") != nullptr && !BM_TRY(flag("rope_interleave")))
      return fail(Code::kUnsupported, "{}config.json: \"rope_interleave\" false is not supported",
                  folder_);
    return {};
  }

  /// Which layers see a window.
  Status read_windows() {
    const auto window = BM_TRY(u32("sliding_window"));
    if (find("use_sliding_window") != nullptr && BM_TRY(flag("use_sliding_window")) &&
        !(model_->words & (kOwnWindows | kPlainWindow)))
      return fail(Code::kUnsupported, "{}config.json: \"use_sliding_window\" is not supported here",
                  folder_);
    if (!window || *window == 0 || !(model_->words & (kOwnWindows | kPlainWindow))) return {};
    set_u32(own("attention.sliding_window"), *window);
    if (model_->words & kPlainWindow) return {};
    if (const json* types = find("layer_types")) {
      if (!types->is_array() || types->size() != blocks_)
        return wrong("layer_types", "a list with a text for every layer");
      std::vector<std::byte>& local = store_->buffers.emplace_back();
      for (const json& type : *types)
        local.push_back(std::byte{type == "sliding_attention" ? uint8_t{1} : uint8_t{0}});
      GgufValue& value = set(own("attention.sliding_window_pattern"), GgufType::kArray);
      value.array = {GgufType::kBool, blocks_, local, {}, {}};
    } else if (const auto period = BM_TRY(u32("sliding_window_pattern"))) {
      set_u32(own("attention.sliding_window_pattern"), *period);
    }
    return {};
  }

  // --- rotary positions -------------------------------------------------------------------------

  Status read_rope() {
    const double share = BM_TRY(real(config_, "partial_rotary_factor")).value_or(1);
    if (!(share > 0) || share > 1) return wrong("partial_rotary_factor", "in (0, 1]");
    const auto rotated = static_cast<uint32_t>(static_cast<double>(head_) * share + 1e-6);
    set_u32(own("rope.dimension_count"), rotated);
    const json* scaling = find("rope_scaling");
    if (scaling == nullptr) return {};
    if (!scaling->is_object()) return wrong("rope_scaling", "an object");
    const auto named =
        scaling->contains("rope_type") ? scaling->find("rope_type") : scaling->find("type");
    if (named == scaling->end() || !named->is_string()) return {};
    const auto& kind = named->get_ref<const std::string&>();
    const double factor = BM_TRY(real(*scaling, "factor")).value_or(1);
    // NTK scaling begins behind the positions that the model was made for.
    if (kind == "default" || kind == "dynamic") return {};
    const double original = BM_TRY(real(*scaling, "original_max_position_embeddings"))
                                .value_or(BM_TRY(real(config_, "original_max_position_embeddings"))
                                              .value_or(BM_TRY(need("max_position_embeddings"))));
    if (!(factor > 0) || !(original >= 1) || original > 1e9)
      return wrong("rope_scaling", "a scaling of positions");
    if (kind == "linear") {
      set_text(own("rope.scaling.type"), "linear");
      set_f32(own("rope.scaling.factor"), factor);
      return {};
    }
    set_u32(own("rope.scaling.original_context_length"), static_cast<uint32_t>(original));
    if (kind == "llama3") return add_llama3_factors(*scaling, rotated, factor, original);
    if (kind == "yarn") return read_yarn(*scaling, factor);
    if (kind == "longrope" || kind == "su") return read_longrope(*scaling, rotated, original);
    return fail(Code::kUnsupported, "{}config.json: rope_scaling {} is not supported", folder_,
                quote_name(kind));
  }

  Status read_yarn(const json& scaling, double factor) {
    // DeepSeek's: rotations keep their length where both are equal, and the scores are sharpened.
    const double own_scale = BM_TRY(real(scaling, "mscale")).value_or(0),
                 all = BM_TRY(real(scaling, "mscale_all_dim")).value_or(0);
    if (own_scale != all || (all != 0 && !architecture_is("deepseek2")))
      return fail(Code::kUnsupported,
                  "{}config.json: rope_scaling \"mscale\" other than \"mscale_all_dim\" is not "
                  "supported",
                  folder_);
    if (all != 0) set_f32(own("rope.scaling.yarn_log_multiplier"), 0.1 * all);
    if (const auto truncates = scaling.find("truncate"); truncates != scaling.end()) {
      if (!truncates->is_boolean()) return wrong("rope_scaling", "yarn's: \"truncate\"");
      if (!truncates->get<bool>()) set_bool("bellmetal.rope.untruncated", true);
    }
    set_text(own("rope.scaling.type"), "yarn");
    set_f32(own("rope.scaling.factor"), factor);
    if (const auto fast = BM_TRY(real(scaling, "beta_fast")))
      set_f32(own("rope.scaling.yarn_beta_fast"), *fast);
    if (const auto slow = BM_TRY(real(scaling, "beta_slow")))
      set_f32(own("rope.scaling.yarn_beta_slow"), *slow);
    if (const auto attention = BM_TRY(real(scaling, "attention_factor")))
      set_f32(own("rope.scaling.yarn_attn_factor"), *attention / (1 + 0.1 * std::log(factor)));
    return {};
  }

  /// Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters().
  Status add_llama3_factors(const json& scaling, uint32_t rotated, double factor, double original) {
    const double low = BM_TRY(real(scaling, "low_freq_factor")).value_or(1),
                 high = BM_TRY(real(scaling, "high_freq_factor")).value_or(4),
                 base = BM_TRY(real(config_, "rope_theta")).value_or(10000);
    if (!(low > 0) || !(high > low) || !(base > 0)) return wrong("rope_scaling", "llama3's");
    std::vector<float> factors;
    for (uint32_t i = 0; i < rotated / 2; ++i) {
      const double frequency = std::pow(base, -2.0 * i / rotated);
      const double length = 2 * 3.14159265358979323846 / frequency;
      const double smooth = (original / length - low) / (high - low);
      factors.push_back(static_cast<float>(length < original / high ? 1
                                           : length > original / low
                                               ? factor
                                               : 1 / ((1 - smooth) / factor + smooth)));
    }
    add_floats("rope_freqs.weight", {factors.size()}, factors);
    return {};
  }

  /// Source: transformers, modeling_rope_utils.py, _compute_longrope_parameters().
  Status read_longrope(const json& scaling, uint32_t rotated, double original) {
    for (const auto& [theirs, ours] : {std::pair{"long_factor", "rope_factors_long.weight"},
                                       std::pair{"short_factor", "rope_factors_short.weight"}}) {
      const auto list = scaling.find(theirs);
      if (list == scaling.end() || !list->is_array() || list->size() != rotated / 2)
        return wrong("rope_scaling", "longrope's: a factor for every pair");
      std::vector<float> factors;
      for (const json& f : *list) {
        if (!f.is_number()) return wrong("rope_scaling", "longrope's: a factor for every pair");
        factors.push_back(f.get<float>());
      }
      add_floats(ours, {factors.size()}, factors);
    }
    set_text(own("rope.scaling.type"), "longrope");
    const double whole = BM_TRY(need("max_position_embeddings"));
    const double scale = whole / original;
    const double usual = scale <= 1 ? 1 : std::sqrt(1 + std::log(scale) / std::log(original));
    set_f32(own("rope.scaling.attn_factor"),
            BM_TRY(real(scaling, "attention_factor")).value_or(usual));
    return {};
  }

  // --- experts ----------------------------------------------------------------------------------

  Status read_experts() {
    const char* count_key = find("num_local_experts") ? "num_local_experts" : "num_experts";
    if (find(count_key) == nullptr) return {};
    if (architecture_is("deepseek2")) BM_TRY(read_deepseek_experts());
    if (architecture_is("gpt-oss"))
      set_u32(own("expert_feed_forward_length"), BM_TRY(need("intermediate_size")));
    experts_ = BM_TRY(need(count_key));
    if (experts_ > kMaxExperts) return wrong(count_key, "a number of experts");
    set_u32(own("expert_count"), experts_);
    set_u32(own("expert_used_count"), BM_TRY(need("num_experts_per_tok")));
    if (const auto length = BM_TRY(u32("moe_intermediate_size")))
      set_u32(own("expert_feed_forward_length"), *length);
    if (const auto length = BM_TRY(u32("shared_expert_intermediate_size")))
      set_u32(own("expert_shared_feed_forward_length"), *length);
    if (find("norm_topk_prob") != nullptr)
      set_bool(own("expert_weights_norm"), BM_TRY(flag("norm_topk_prob")));
    const json* dense = find("mlp_only_layers");
    if ((dense != nullptr && !(dense->is_array() && dense->empty())) ||
        BM_TRY(u32("decoder_sparse_step")).value_or(1) != 1)
      return fail(
          Code::kUnsupported,
          "{}config.json: \"mlp_only_layers\" and \"decoder_sparse_step\" are not supported",
          folder_);
    return {};
  }

  /// Source: DeepSeek's modeling_deepseek.py, MoEGate.
  Status read_deepseek_experts() {
    if (const auto shared = BM_TRY(u32("n_shared_experts")))
      set_u32(own("expert_shared_count"), *shared);
    BM_TRY(set_real("routed_scaling_factor", "expert_weights_scale"));
    set_u32(own("leading_dense_block_count"), BM_TRY(u32("first_k_dense_replace")).value_or(0));
    const json* scoring = find("scoring_func");
    const bool is_sigmoid = scoring != nullptr && *scoring == "sigmoid";
    if (!is_sigmoid && (scoring == nullptr || *scoring != "softmax"))
      return wrong("scoring_func", "softmax or sigmoid");
    set_u32(own("expert_gating_func"), is_sigmoid ? 2 : 1);
    const json* method = find("topk_method");
    const auto groups = BM_TRY(u32("n_group")), used = BM_TRY(u32("topk_group"));
    if (method != nullptr && *method != "greedy" && groups && used && *groups > 1) {
      set_u32(own("expert_group_count"), *groups);
      set_u32(own("expert_group_used_count"), *used);
    }
    if (BM_TRY(u32("moe_layer_freq")).value_or(1) != 1)
      return fail(Code::kUnsupported, "{}config.json: \"moe_layer_freq\" is not supported",
                  folder_);
    return {};
  }

  // --- weights ----------------------------------------------------------------------------------

  void add(std::string name, GgmlType type, std::vector<uint64_t> shape,
           std::span<const std::byte> data) {
    GgufTensor t;
    t.name = keep(std::move(name));
    t.type = type;
    t.rank = static_cast<uint32_t>(shape.size());
    t.value_count = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      t.dims[i] = shape[shape.size() - 1 - i];
      t.value_count *= t.dims[i];
    }
    t.data = data;
    file_.tensors_.push_back(t);
  }

  void add_floats(std::string name, std::vector<uint64_t> shape, std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    std::vector<std::byte>& own = store_->buffers.emplace_back(bytes.begin(), bytes.end());
    add(std::move(name), GgmlType::kF32, std::move(shape), own);
  }

  Status read_tensors() {
    const bool has_index = exists("model.safetensors.index.json");
    if (!has_index && !exists("model.safetensors"))
      return fail(Code::kNotFound,
                  "{}: neither model.safetensors nor model.safetensors.index.json is there",
                  folder_);
    store_->weights = BM_TRY(SafetensorsFile::open(
        folder_ + (has_index ? "model.safetensors.index.json" : "model.safetensors")));
    const bool is_tied = BM_TRY(flag("tie_word_embeddings"));
    bool has_output = false;
    std::map<std::string, std::vector<const SafeTensor*>> stacks;
    for (const SafeTensor& t : store_->weights.tensors()) {
      Place place = place_of(*model_, blocks_, t.name);
      if (place.name.empty()) continue;
      if (place.name == "output.weight") {
        has_output = true;
        if (is_tied) continue;
      }
      if (t.shape.size() > 4)
        return fail(Code::kUnsupported, "tensor {} has {} dimensions", quote_name(t.name),
                    t.shape.size());
      if (place.expert) {
        std::vector<const SafeTensor*>& parts = stacks[place.name];
        parts.resize(std::max<size_t>(parts.size(), *place.expert + 1));
        parts[*place.expert] = &t;
        continue;
      }
      if (BM_TRY(add_fused_experts(t))) continue;
      BM_TRY(add_tensor(std::move(place.name), t));
    }
    BM_TRY(add_packed_experts());
    if (!is_tied && !has_output)
      return fail(Code::kCorrupt, "{}: tensor \"lm_head.weight\" is missing", folder_);
    for (const auto& [name, parts] : stacks) BM_TRY(add_stack(name, parts));
    for (size_t i = 0; i < file_.tensors_.size(); ++i)
      if (!file_.tensor_index_.emplace(file_.tensors_[i].name, i).second)
        return fail(Code::kCorrupt, "{}: two tensors are {}", folder_,
                    quote_name(file_.tensors_[i].name));
    return {};
  }

  Status add_tensor(std::string name, const SafeTensor& from) {
    SafeTensor t = from;
    const GgmlType type = BM_TRY(ggml_type_of(t));
    const bool is_block = name.starts_with("blk.");
    if (is_block && model_->words & kTransposed && t.shape.size() == 2) {
      t.data = transposed(t.data, t.shape[0], t.shape[1], ggml_type_info(type).block_bytes);
      std::swap(t.shape[0], t.shape[1]);
    }
    if (model_->words & kGroupedHeads && name.find(".attn_qkv.") != std::string::npos)
      BM_TRY(ungroup(&t));
    // A row of a matrix that gives one number is kept as a vector.
    const bool is_row = name.ends_with("ffn_gate_inp_shexp.weight");
    if (t.shape.size() != 1 && !is_row) {
      add(std::move(name), type, t.shape, t.data);
      return {};
    }
    uint64_t count = 1;
    for (const uint64_t d : t.shape) count *= d;
    std::vector<float> values(static_cast<size_t>(count));
    BM_TRY(dequantize_row(type, t.data, values));
    if (model_->words & kGainsFromOne && name.ends_with("norm.weight"))
      for (float& v : values) v += 1;
    add_floats(std::move(name), {count}, values);
    return {};
  }

  /// [rows, columns] of numbers of `size` bytes → [columns, rows].
  std::span<const std::byte> transposed(std::span<const std::byte> data, uint64_t rows,
                                        uint64_t columns, uint64_t size) {
    std::vector<std::byte>& out = store_->buffers.emplace_back(data.size());
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < columns; ++c)
        std::memcpy(&out[(c * rows + r) * size], &data[(r * columns + c) * size], size);
    return out;
  }

  /// Rows of `groups_` groups (queries, key, value) → all queries, then all keys, then all values.
  Status ungroup(SafeTensor* t) {
    const uint64_t heads = BM_TRY(need("num_attention_heads")), each = heads / groups_,
                   rows = (heads + 2 * groups_) * head_;
    if (t->shape.empty() || t->shape[0] != rows)
      return fail(Code::kCorrupt, "tensor {}: {} rows instead of {}", quote_name(t->name),
                  t->shape.empty() ? 0 : t->shape[0], rows);
    const size_t bytes = t->data.size() / (heads + 2 * groups_);  // of a head
    std::vector<std::byte>& out = store_->buffers.emplace_back();
    out.reserve(t->data.size());
    const auto put = [&](uint64_t group, uint64_t head) {
      const auto from = t->data.subspan((group * (each + 2) + head) * bytes, bytes);
      out.insert(out.end(), from.begin(), from.end());
    };
    for (uint64_t g = 0; g < groups_; ++g)
      for (uint64_t h = 0; h < each; ++h) put(g, h);
    for (const uint64_t part : {each, each + 1})
      for (uint64_t g = 0; g < groups_; ++g) put(g, part);
    t->data = out;
    return {};
  }

  // gpt-oss: all experts in one tensor, gates and ups in turn.

  static constexpr std::string_view kFusedPart = ".mlp.experts.";

  /// Every second row from `first` on of [experts, rows, …].
  std::span<const std::byte> halved(std::span<const std::byte> data, uint64_t rows_of_all,
                                    uint64_t first) {
    const size_t bytes = data.size() / rows_of_all;
    std::vector<std::byte>& out = store_->buffers.emplace_back();
    out.reserve(data.size() / 2);
    for (uint64_t r = first; r < rows_of_all; r += 2) {
      const auto row = data.subspan(r * bytes, bytes);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  void add_gates_and_ups(const std::string& block, const char* end, GgmlType type,
                         std::vector<uint64_t> shape, std::span<const std::byte> data) {
    const uint64_t rows = shape[0] * shape[1];
    shape[1] /= 2;
    add(block + "ffn_gate_exps." + end, type, shape, halved(data, rows, 0));
    add(block + "ffn_up_exps." + end, type, shape, halved(data, rows, 1));
  }

  /// Whether `t` is a tensor of all experts; it is added, or kept until its scales are there.
  Result<bool> add_fused_experts(const SafeTensor& t) {
    const size_t at = t.name.find(kFusedPart);
    std::string_view number = t.name;
    if (!architecture_is("gpt-oss") || at == std::string::npos ||
        !take_prefix(&number, "model.layers."))
      return false;
    const auto layer = take_number(&number, kMaxBlocks);
    if (!layer) return false;
    const std::string block = fmt::format("blk.{}.", *layer);
    const std::string_view part = std::string_view(t.name).substr(at + kFusedPart.size());
    if (part.ends_with("_blocks") || part.ends_with("_scales")) {
      packed_[block + std::string(part.substr(0, part.rfind('_')))][part.ends_with("_scales")] = &t;
      return true;
    }
    const bool is_bias = part.ends_with("_bias"), is_both = part.starts_with("gate_up_proj");
    if (t.shape.size() != (is_bias ? 2u : 3u) || t.shape[0] != experts_ || t.data.empty() ||
        (is_both && t.shape.back() % 2 != 0))
      return fail(Code::kCorrupt, "tensor {}: not of {} experts", quote_name(t.name), experts_);
    const GgmlType type = BM_TRY(ggml_type_of(t));
    std::vector<uint64_t> shape = t.shape;
    std::span<const std::byte> data = t.data;
    if (!is_bias) {
      const uint64_t size = ggml_type_info(type).block_bytes;
      const size_t bytes = data.size() / experts_;
      std::vector<std::byte>& all = store_->buffers.emplace_back();
      for (uint64_t e = 0; e < experts_; ++e) {
        const auto one = transposed(t.data.subspan(e * bytes, bytes), shape[1], shape[2], size);
        all.insert(all.end(), one.begin(), one.end());
        store_->buffers.pop_back();
      }
      data = all;
      std::swap(shape[1], shape[2]);
    }
    const char* const end = is_bias ? "bias" : "weight";
    if (is_both)
      add_gates_and_ups(block, end, type, shape, data);
    else
      add(block + "ffn_down_exps." + end, type, shape, data);
    return true;
  }

  /// Experts in MXFP4: [experts, rows, blocks, 16] bytes, two values that follow each other in a
  /// byte, and [experts, rows, blocks] exponents. ggml's block has the exponent first, and values j
  /// and j + 16 in a byte. Source: transformers, integrations/mxfp4.py; ggml-common.h.
  Status add_packed_experts() {
    constexpr uint64_t kBytes = 16;
    for (const auto& [name, parts] : packed_) {
      const SafeTensor *codes = parts[0], *scales = parts[1];
      if (codes == nullptr || scales == nullptr || codes->shape.size() != 4 ||
          scales->shape.size() != 3 || codes->shape[3] != kBytes || codes->shape[0] != experts_ ||
          !std::equal(scales->shape.begin(), scales->shape.end(), codes->shape.begin()) ||
          codes->dtype != SafeDtype::kU8 || scales->dtype != SafeDtype::kU8)
        return fail(Code::kCorrupt, "{}: {} is not {} experts in MXFP4", folder_, name, experts_);
      const size_t blocks = scales->data.size();
      std::vector<std::byte>& all = store_->buffers.emplace_back(blocks * (kBytes + 1));
      for (size_t b = 0; b < blocks; ++b) {
        std::byte* to = &all[b * (kBytes + 1)];
        *to++ = scales->data[b];
        const auto from = codes->data.subspan(b * kBytes, kBytes);
        const auto value = [&](size_t i) {
          return i % 2 == 0 ? from[i / 2] & std::byte{15} : from[i / 2] >> 4;
        };
        for (size_t j = 0; j < kBytes; ++j) to[j] = value(j) | value(j + 16) << 4;
      }
      const std::vector<uint64_t> shape = {experts_, codes->shape[1], codes->shape[2] * 32};
      const std::string block = name.substr(0, name.rfind('.') + 1);
      if (name.ends_with("gate_up_proj"))
        add_gates_and_ups(block, "weight", GgmlType::kMXFP4, shape, all);
      else
        add(block + "ffn_down_exps.weight", GgmlType::kMXFP4, shape, all);
    }
    return {};
  }

  /// Matrices of the experts one after the other. They lie apart in the files: this is a copy.
  Status add_stack(const std::string& name, std::span<const SafeTensor* const> parts) {
    if (parts.size() != experts_)
      return fail(Code::kCorrupt, "{}: {} experts have a {}, config.json says {}", folder_,
                  parts.size(), name, experts_);
    std::vector<std::byte>& all = store_->buffers.emplace_back();
    for (const SafeTensor* part : parts) {
      if (part == nullptr || part->shape != parts[0]->shape || part->dtype != parts[0]->dtype ||
          part->shape.size() != 2)
        return fail(Code::kCorrupt, "{}: experts of {} are missing or differ", folder_, name);
      all.insert(all.end(), part->data.begin(), part->data.end());
    }
    add(name, BM_TRY(ggml_type_of(*parts[0])), {experts_, parts[0]->shape[0], parts[0]->shape[1]},
        all);
    return {};
  }

  // --- texts ------------------------------------------------------------------------------------

  /// The text of a token: written as such, or as an added token.
  static std::optional<std::string> token_text(const json& from, const char* key) {
    const auto found = from.find(key);
    if (found == from.end()) return std::nullopt;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
      return (*found)["content"].get<std::string>();
    return std::nullopt;
  }

  Status read_tokenizer() {
    if (exists("tokenizer.json")) {
      store_->mappings.push_back(BM_TRY(Mapping::open_file(folder_ + "tokenizer.json")));
      const auto bytes = store_->mappings.back().bytes();
      set("tokenizer.huggingface.json", GgufType::kString).text = {
          reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    } else {
      // Whoever needs no tokenizer is not told.
      set_text("bellmetal.missing_tokenizer", folder_ + "tokenizer.json");
    }
    json tokens = json::object();
    if (exists("tokenizer_config.json")) tokens = BM_TRY(read_json("tokenizer_config.json"));
    for (const char* role : {"bos_token", "eos_token"})
      if (const auto text = token_text(tokens, role))
        set_text(std::string("bellmetal.") + role, *text);
    BM_TRY(read_end_tokens());
    if (exists("chat_template.jinja")) {
      const Mapping file = BM_TRY(Mapping::open_file(folder_ + "chat_template.jinja"));
      set_text("tokenizer.chat_template",
               {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
      return {};
    }
    const auto found = tokens.find("chat_template");
    if (found == tokens.end()) return {};
    if (found->is_string()) set_text("tokenizer.chat_template", found->get<std::string>());
    if (found->is_array())
      for (const json& named : *found)
        if (named.is_object() && named.value("name", json()) == "default" &&
            named.contains("template") && named["template"].is_string())
          set_text("tokenizer.chat_template", named["template"].get<std::string>());
    return {};
  }

  /// How tokens are to be chosen, by the keys that GGUF files have for it.
  /// Source of the names: transformers, GenerationConfig; llama.cpp's gguf-py/gguf/metadata.py.
  void read_sampling(const json& from) {
    constexpr struct {
      const char *theirs, *ours;
    } kNumbers[] = {{"temperature", "temp"},
                    {"top_p", "top_p"},
                    {"min_p", "min_p"},
                    {"repetition_penalty", "penalty_repeat"}};
    const auto key = [](const char* name) { return std::string("general.sampling.") + name; };
    for (const auto& [theirs, ours] : kNumbers)
      if (const auto value = from.find(theirs); value != from.end() && value->is_number())
        set_f32(key(ours), value->get<double>());
    if (const auto top_k = from.find("top_k");
        top_k != from.end() && top_k->is_number_integer() && *top_k >= 0 && *top_k <= INT32_MAX)
      set_u32(key("top_k"), top_k->get<uint32_t>());
    if (const auto tokens = from.find("suppress_tokens");
        tokens != from.end() && tokens->is_array() && !tokens->empty())
      set_ids("tokenizer.ggml.suppress_tokens", *tokens);
  }

  /// Those of `list` that are ids; nothing where there are none.
  void set_ids(const char* key, const json& list) {
    std::vector<std::byte>& ids = store_->buffers.emplace_back();
    for (const json& id : list) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) continue;
      const auto number = id.get<uint32_t>();
      const auto bytes = std::as_bytes(std::span(&number, 1));
      ids.insert(ids.end(), bytes.begin(), bytes.end());
    }
    if (ids.empty()) return;
    GgufValue& value = set(key, GgufType::kArray);
    value.array = {GgufType::kUint32, ids.size() / 4, ids, {}, {}};
  }

  /// What ends a text: one id or several.
  Status read_end_tokens() {
    json from = config_;
    if (exists("generation_config.json")) {
      const json own = BM_TRY(read_json("generation_config.json"));
      if (own.contains("eos_token_id")) from = own;
      read_sampling(own);
    }
    const auto found = from.find("eos_token_id");
    if (found == from.end()) return {};
    set_ids("bellmetal.end_token_ids", found->is_array() ? *found : json::array({*found}));
    return {};
  }

  std::string folder_;
  json config_;
  const Model* model_ = nullptr;
  uint32_t blocks_ = 0, head_ = 0, groups_ = 1, experts_ = 0;
  std::map<std::string, std::array<const SafeTensor*, 2>> packed_;  ///< blocks and scales, by place
  GgufFile file_;
  std::shared_ptr<Store> store_ = std::make_shared<Store>();
};

bool is_folder(const std::string& path) {
  struct stat seen{};
  return stat(path.c_str(), &seen) == 0 && S_ISDIR(seen.st_mode);
}

Result<GgufFile> open_hugging_face_tokenizer(const std::string& folder) {
  return HuggingFaceModel(folder).open_tokenizer();
}

Result<GgufFile> open_hugging_face(const std::string& folder) {
  return HuggingFaceModel(folder).open();
}

}  // namespace bm::models
