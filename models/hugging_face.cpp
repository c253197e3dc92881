// A folder of Hugging Face as a GGUF file: keys of config.json and names of tensors, by tables.
#include "models/hugging_face.h"

#include <sys/stat.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>
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
  kTurnedHalves = 1,  ///< rotary pairs lie in halves, where files of this architecture have pairs
  kGainsFromOne = 2,  ///< gains of norms are kept less one
  kPostNorms = 4,     ///< post_attention_layernorm is what its name says
  kBlockExperts = 8,  ///< experts w1, w2, w3 of a block_sparse_moe
  kOwnWindows = 16,   ///< sliding_window holds for the layers that layer_types or a pattern names
  kPlainWindow = 32,  ///< sliding_window holds for all
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
};

/// Behind "model.layers.N.".
constexpr Name kBlockNames[] = {
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
Place place_of(const Model& model, std::string_view name) {
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
  for (const Name& n : kOuterNames)
    if (take_prefix(&rest, n.theirs)) return {std::string(n.ours) + std::string(rest), {}};
  if (!take_prefix(&rest, "model.layers.")) return {std::string(name), {}};
  const auto layer = take_number(&rest, kMaxBlocks);
  if (!layer) return {std::string(name), {}};
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

  Result<GgufFile> open() {
    config_ = BM_TRY(read_json("config.json"));
    const auto names = config_.find("architectures");
    if (names == config_.end() || !names->is_array() || names->empty() || !(*names)[0].is_string())
      return fail(Code::kCorrupt, "{}config.json: no \"architectures\"", folder_);
    model_ = BM_TRY(find_model((*names)[0].get_ref<const std::string&>()));
    if (const auto quantised = config_.find("quantization_config");
        quantised != config_.end() && !quantised->is_null())
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
      if (!config_.contains("rope_scaling")) config_["rope_scaling"] = parameters;
    }
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
    const bool is_gelu = arch.starts_with("gemma") || arch == "phi2" || arch == "starcoder2";
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
    const uint32_t kv = BM_TRY(u32("num_key_value_heads")).value_or(heads);
    head_ = BM_TRY(u32("head_dim")).value_or(width / heads);
    if (head_ == 0) return wrong("head_dim", "positive");
    set_u32(own("block_count"), blocks_);
    set_u32(own("embedding_length"), width);
    set_u32(own("context_length"), BM_TRY(need("max_position_embeddings")));
    set_u32(own("feed_forward_length"), BM_TRY(need("intermediate_size")));
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
    return read_windows();
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
    const auto rotated = static_cast<uint32_t>(static_cast<double>(head_) * share);
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
    for (const char* key : {"mscale", "mscale_all_dim", "truncate"})
      if (scaling.contains(key) && !(scaling[key].is_boolean() && scaling[key].get<bool>()))
        return fail(Code::kUnsupported, "{}config.json: rope_scaling \"{}\" is not supported",
                    folder_, key);
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
      Place place = place_of(*model_, t.name);
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
      BM_TRY(add_tensor(std::move(place.name), t));
    }
    if (!is_tied && !has_output)
      return fail(Code::kCorrupt, "{}: tensor \"lm_head.weight\" is missing", folder_);
    for (const auto& [name, parts] : stacks) BM_TRY(add_stack(name, parts));
    for (size_t i = 0; i < file_.tensors_.size(); ++i)
      if (!file_.tensor_index_.emplace(file_.tensors_[i].name, i).second)
        return fail(Code::kCorrupt, "{}: two tensors are {}", folder_,
                    quote_name(file_.tensors_[i].name));
    return {};
  }

  Status add_tensor(std::string name, const SafeTensor& t) {
    const GgmlType type = BM_TRY(ggml_type_of(t));
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

  /// What ends a text: one id or several.
  Status read_end_tokens() {
    json from = config_;
    if (exists("generation_config.json")) {
      const json own = BM_TRY(read_json("generation_config.json"));
      if (own.contains("eos_token_id")) from = own;
    }
    const auto found = from.find("eos_token_id");
    if (found == from.end()) return {};
    std::vector<std::byte>& ids = store_->buffers.emplace_back();
    for (const json& id : found->is_array() ? *found : json::array({*found})) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) continue;
      const auto number = id.get<uint32_t>();
      const auto bytes = std::as_bytes(std::span(&number, 1));
      ids.insert(ids.end(), bytes.begin(), bytes.end());
    }
    if (ids.empty()) return {};
    GgufValue& value = set("bellmetal.end_token_ids", GgufType::kArray);
    value.array = {GgufType::kUint32, ids.size() / 4, ids, {}, {}};
    return {};
  }

  std::string folder_;
  json config_;
  const Model* model_ = nullptr;
  uint32_t blocks_ = 0, head_ = 0, experts_ = 0;
  GgufFile file_;
  std::shared_ptr<Store> store_ = std::make_shared<Store>();
};

bool is_hugging_face_folder(const std::string& path) {
  struct stat seen{};
  if (stat(path.c_str(), &seen) != 0 || !S_ISDIR(seen.st_mode)) return false;
  return stat((path + "/config.json").c_str(), &seen) == 0;
}

Result<GgufFile> open_hugging_face(const std::string& folder) {
  return HuggingFaceModel(folder).open();
}

}  // namespace bm::models
