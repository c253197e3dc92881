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
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/hugging_face_modules.h"
#include "models/hugging_face_names.h"
#include "models/json_text.h"
#include "models/model_error.h"
#include "models/safetensors.h"
#include "runtime/base/half.h"

namespace bm::models {

using namespace folder_traits;

using nlohmann::json;

namespace {

constexpr size_t kMaxConfigBytes = 4u << 20;

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
    {"moe_topk", "num_experts_per_tok"},
    {"block_ff_dim", "intermediate_size"},
    {"tie_embedding", "tie_word_embeddings"},
    {"experts_per_token", "num_experts_per_tok"},
    {"dim", "hidden_size"},
    {"hidden_dim", "intermediate_size"},
    {"n_layers", "num_hidden_layers"},
    {"n_heads", "num_attention_heads"},
    {"local_attention", "sliding_window"},
    {"global_attn_every_n_layers", "sliding_window_pattern"},
    {"global_rope_theta", "rope_theta"},
    {"local_rope_theta", "rope_local_base_freq"},
    {"moe_top_k", "num_experts_per_tok"},
    {"moe_normalize_expert_weights", "norm_topk_prob"},
};

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
    const auto asked = (*names)[0].get<std::string>();
    model_ = BM_TRY(find_folder_model(asked));
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
      // What sees may share its matrix with the model of language in it, or name its own.
      may_be_tied_ = outer.value("tie_word_embeddings", json(true)) == true;
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
    if (architecture_is("nomic-bert") && BM_TRY(u32("moe_every_n_layers")).value_or(0) > 0)
      model_ = &nomic_with_experts();
    json whole = json::parse(model_->defaults);
    for (const auto& [key, value] : config_.items())
      if (!value.is_null() || key == "sliding_window") whole[key] = value;
    config_ = std::move(whole);
    file_.version_ = 3;
    file_.shard_count_ = 1;
    if (architecture_is("granitehybrid") && !has_layers_of("mamba")) {
      attention_alone_ = *model_;
      attention_alone_.architecture =
          BM_TRY(u32("num_local_experts")).value_or(0) > 0 ? "granitemoe" : "granite";
      model_ = &attention_alone_;
    }
    modules_ = BM_TRY(read_folder_modules(folder_));
    if (asked != model_->name && !modules_.pooling)
      return fail(Code::kUnsupported,
                  "{}config.json: {} is {} without what makes text of hidden states, and there is "
                  "no modules.json that says how they become a vector",
                  folder_, quote_name(asked), model_->name);
    BM_TRY(read_config());
    if (is_encoder()) BM_TRY(read_encoder());
    BM_TRY(read_rope());
    BM_TRY(read_experts());
    BM_TRY(read_tensors());
    BM_TRY(read_tokenizer());
    BM_TRY(read_pooling());
    file_.owner_ = std::move(store_);
    return std::move(file_);
  }

 private:
  struct Store {
    std::deque<std::string> texts;
    std::deque<std::vector<std::byte>> buffers;
    SafetensorsFile weights;
    std::deque<SafetensorsFile> dense;
    std::vector<Mapping> mappings;
  };

  bool architecture_is(std::string_view name) const { return model_->architecture == name; }
  bool is_encoder() const { return (model_->words & kEncoder) != 0; }
  bool ranks() const { return (model_->words & kRanks) != 0; }

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
    // A list says it for every layer.
    if (value->is_array() && !value->empty()) {
      const auto differs = [&](const json& one) { return one != (*value)[0]; };
      if (std::ranges::any_of(*value, differs))
        return fail(Code::kUnsupported,
                    "{}config.json: \"{}\" differs between layers, which is not supported", folder_,
                    key);
      value = &(*value)[0];
    }
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

  bool has_layers_of(const char* type) const {
    const json* types = find("layer_types");
    return types != nullptr && types->is_array() &&
           std::ranges::find(*types, json(type)) != types->end();
  }

  /// What `number` makes of the text for every layer of layer_types.
  template <typename T, typename Number>
  Result<std::vector<T>> by_layer(Number number) const {
    const json* types = find("layer_types");
    if (types == nullptr || !types->is_array() || types->size() != blocks_)
      return wrong("layer_types", "a list with a text for every layer");
    std::vector<T> out;
    for (const json& type : *types)
      out.push_back(number(type.is_string() ? type.get_ref<const std::string&>() : std::string()));
    return out;
  }

  template <typename T>
  void set_list(const std::string& key, GgufType type, std::span<const T> list) {
    const auto bytes = std::as_bytes(list);
    const std::vector<std::byte>& kept = store_->buffers.emplace_back(bytes.begin(), bytes.end());
    set(key, GgufType::kArray).array = {type, list.size(), kept, {}, {}};
  }

  Status set_real(const char* theirs, const char* ours) {
    if (const auto value = BM_TRY(real(config_, theirs))) set_f32(own(ours), *value);
    return {};
  }

  /// A family of functions; of GELU which one it is. Of Gemma older files name the other.
  Status read_activation() {
    const json* value = find("hidden_act");
    if (value == nullptr) value = find("hidden_activation");
    if (value == nullptr) return {};
    if (!value->is_string()) return wrong("hidden_act", "a text");
    const auto& name = value->get_ref<const std::string&>();
    const std::string_view arch = model_->architecture;
    const bool is_gelu = arch.starts_with("gemma") || arch == "gpt2" || arch == "gptneox" ||
                         arch == "falcon" || arch == "phi2" || arch == "starcoder2" ||
                         arch == "bert" || arch == "deberta-v2" || arch == "jina-bert-v3" ||
                         arch == "nomic-bert-moe" || (arch == "modern-bert" && name != "silu");
    const bool is_squared = arch == "arcee" || arch == "nemotron";
    const bool is_known = is_gelu      ? name.starts_with("gelu") || name == "quick_gelu"
                          : is_squared ? name == "relu2"
                                       : name == "silu" || name == "swish" ||
                                             (arch == "nomic-bert" && name == "swiglu");
    if (is_known && name != "quick_gelu" && name != "gelu_10") {
      const bool is_exact = name == "gelu" || name == "gelu_python";
      if (is_exact && !arch.starts_with("gemma")) set_bool("bellmetal.gelu.exact", true);
      if (arch == "modern-bert") set_text(own("hidden_activation"), is_gelu ? "gelu" : "silu");
      return {};
    }
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
    BM_TRY(read_activation());
    blocks_ = BM_TRY(need("num_hidden_layers"));
    if (blocks_ > kMaxFolderBlocks) return wrong("num_hidden_layers", "a number of layers");
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
    set_u32(own("context_length"), BM_TRY(positions()));
    const bool is_fourfold = (architecture_is("gpt2") || architecture_is("falcon")) &&
                             find("intermediate_size") == nullptr;
    set_u32(own("feed_forward_length"), is_fourfold ? 4 * width : BM_TRY(feed_forward_length()));
    set_u32(own("attention.head_count"), heads);
    set_u32(own("attention.head_count_kv"), kv);
    set_u32(own("attention.key_length"), head_);
    set_u32(own("attention.value_length"), head_);
    BM_TRY(set_real("rms_norm_eps", "attention.layer_norm_rms_epsilon"));
    const bool is_lfm = architecture_is("lfm2") || architecture_is("lfm2moe");
    for (const char* key : {"layer_norm_eps", "norm_epsilon", "norm_eps"})
      BM_TRY(set_real(
          key, is_lfm ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"));
    BM_TRY(set_real("rope_theta", "rope.freq_base"));
    const std::string_view arch = model_->architecture;
    if (model_->words & kTurnedHalves) set_bool("bellmetal.rope.halves", true);
    if (arch == "gemma3" || arch == "gemma3n" || arch == "gemma-embedding" || arch == "modern-bert")
      BM_TRY(set_real("rope_local_base_freq", "rope.freq_base_swa"));
    if (arch.starts_with("gemma2") || arch == "gemma3" || arch == "gemma-embedding") {
      for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
        if (arch == "gemma-embedding" || (arch == "gemma3" && key[0] == 'a')) continue;
        set_f32(own(key), BM_TRY(real(config_, key)).value_or(0));
      }
      if (const auto scalar = BM_TRY(real(config_, "query_pre_attn_scalar")); scalar && *scalar > 0)
        set_f32(own("attention.scale"), 1 / std::sqrt(*scalar));
    }
    if (arch.starts_with("granite")) {
      BM_TRY(set_real("embedding_multiplier", "embedding_scale"));
      BM_TRY(set_real("residual_multiplier", "residual_scale"));
      BM_TRY(set_real("attention_multiplier", "attention.scale"));
      BM_TRY(set_real("logits_scaling", "logit_scale"));
    }
    if (arch == "command-r" || arch == "cohere2") BM_TRY(set_real("logit_scale", "logit_scale"));
    if (arch == "olmo") BM_TRY(set_real("clip_qkv", "attention.clamp_kqv"));
    if (arch == "stablelm" || arch == "gptneox")
      set_bool(own("use_parallel_residual"), BM_TRY(flag("use_parallel_residual")));
    for (const char* key : {"qk_layernorm", "conv_bias", "mamba_proj_bias"})
      if (BM_TRY(flag(key)))
        return fail(Code::kUnsupported, "{}config.json: \"{}\" is not supported", folder_, key);
    if (arch == "falcon" && (BM_TRY(flag("alibi")) || !BM_TRY(flag("parallel_attn"))))
      return fail(Code::kUnsupported,
                  "{}config.json: \"alibi\" and blocks without \"parallel_attn\" are not supported",
                  folder_);
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "attention_in_fp32_only"})
      if (arch == "gpt2" && BM_TRY(flag(key)))
        return fail(Code::kUnsupported, "{}config.json: \"{}\" is not supported", folder_, key);
    if (arch == "deepseek2") BM_TRY(read_latent());
    if (is_lfm) BM_TRY(read_short_convolutions(kv));
    if (arch == "qwen3next") BM_TRY(read_delta_net());
    if (arch == "granitehybrid") BM_TRY(read_state_spaces(kv));
    if (arch == "granitehybrid" || model_ == &attention_alone_) {
      const json* positions = find("position_embedding_type");
      set_bool(own("rope.scaling.finetuned"), positions != nullptr && *positions == "rope");
    }
    if (arch == "gemma3n") BM_TRY(read_gemma3n());
    return read_windows();
  }

  /// Positions that a text may have.
  Result<uint32_t> positions() {
    uint32_t count = BM_TRY(need("max_position_embeddings"));
    if (model_->words & kPositionsBehindPadding) {
      first_position_ = BM_TRY(u32("pad_token_id")).value_or(1) + 1;
      if (first_position_ >= count) return wrong("max_position_embeddings", "above pad_token_id");
      count -= first_position_;
    }
    // Longer texts are for rotations that grow with them.
    if (model_->name == std::string_view("NomicBertModel") && find("n_positions") != nullptr)
      count = std::min(count, BM_TRY(u32("max_trained_positions")).value_or(2048));
    return count;
  }

  /// Source: transformers, configuration_bert.py and its kin; Nomic's
  /// configuration_hf_nomic_bert.py.
  Status read_encoder() {
    set_bool(own("attention.causal"), false);
    // Jina's own class of XLM-RoBERTa, with adapters of low rank.
    if (const json* kind = find("position_embedding_type"); kind != nullptr && *kind == "rotary")
      return fail(Code::kUnsupported,
                  "{}config.json: \"position_embedding_type\" rotary of a {} is not supported; of "
                  "Jina Embeddings 3 folders of the class JinaEmbeddingsV3Model are read",
                  folder_, model_->name);
    if (const json* kind = find("position_embedding_type"); kind != nullptr && *kind != "absolute")
      return fail(Code::kUnsupported,
                  "{}config.json: \"position_embedding_type\" other than \"absolute\" is not "
                  "supported",
                  folder_);
    for (const char* key : {"is_decoder", "add_cross_attention", "sinusoidal_pos_embds", "prenorm",
                            "rotary_emb_interleaved"})
      if (BM_TRY(flag(key)))
        return fail(Code::kUnsupported, "{}config.json: \"{}\" is not supported", folder_, key);
    if (architecture_is("deberta-v2")) BM_TRY(read_distances());
    if (architecture_is("nomic-bert-moe"))
      set_u32(own("moe_every_n_layers"), BM_TRY(need("moe_every_n_layers")));
    if (const auto buckets = BM_TRY(u32("relative_attention_num_buckets"))) {
      if (*buckets != 32)  // transformers' own code counts so many whatever is said
        return wrong("relative_attention_num_buckets", "32");
      set_u32(own("attention.relative_buckets_count"), *buckets);
    }
    if (const auto embedded = BM_TRY(u32("embedding_size"));
        embedded && *embedded != BM_TRY(need("hidden_size")))
      return fail(Code::kUnsupported,
                  "{}config.json: \"embedding_size\" other than \"hidden_size\" is not supported",
                  folder_);
    if (BM_TRY(real(config_, "rotary_emb_fraction")).value_or(1) != 1)
      return wrong("rotary_emb_fraction", "1");
    if (architecture_is("gemma-embedding") && !BM_TRY(flag("use_bidirectional_attention")))
      return fail(Code::kUnsupported,
                  "{}config.json: \"use_bidirectional_attention\" is not true: this model writes "
                  "text; its class is Gemma3ForCausalLM",
                  folder_);
    return ranks() ? read_classifier() : Status{};
  }

  /// Source: transformers, configuration_deberta_v2.py, modeling_deberta_v2.py.
  Status read_distances() {
    const auto refuse = [&](const char* what) {
      return fail(Code::kUnsupported, "{}config.json: {} is not supported", folder_, what);
    };
    if (!BM_TRY(flag("relative_attention"))) return refuse("\"relative_attention\" false");
    if (BM_TRY(flag("position_biased_input"))) return refuse("\"position_biased_input\" true");
    if (!BM_TRY(flag("share_att_key"))) return refuse("\"share_att_key\" false");
    if (BM_TRY(u32("conv_kernel_size")).value_or(0) > 0) return refuse("\"conv_kernel_size\"");
    const json* normed = find("norm_rel_ebd");
    if (*normed != "layer_norm" && *normed != "none")
      return refuse("\"norm_rel_ebd\" other than \"layer_norm\" and \"none\"");
    const json* kinds = find("pos_att_type");
    std::string parts;
    if (kinds != nullptr && kinds->is_string()) parts = kinds->get<std::string>();
    if (kinds != nullptr && kinds->is_array())
      for (const json& kind : *kinds)
        parts += (kind.is_string() ? kind.get<std::string>() : "") + " ";
    if (parts.find("c2p") == parts.npos && parts.find("p2c") == parts.npos)
      return wrong("pos_att_type", "c2p, p2c, or both");
    set_text(own("attention.relative_parts"), parts);
    const auto number = [&](const char* key) -> Result<uint32_t> {
      const json* value = find(key);
      if (!value->is_number_integer() || *value > (1 << 16)) return wrong(key, "a number");
      return *value < 1 ? 0u : value->get<uint32_t>();
    };
    const uint32_t buckets = BM_TRY(number("position_buckets")),
                   told = BM_TRY(number("max_relative_positions")),
                   longest = told > 0 ? told : BM_TRY(need("max_position_embeddings"));
    set_u32(own("attention.relative_span"), buckets > 0 ? buckets : longest);
    if (buckets > 0) set_u32(own("attention.relative_limit"), longest);
    return {};
  }

  Status read_classifier() {
    // Source: transformers, configuration_utils.py: two labels unless something else is said.
    const json* labels = find("id2label");
    const size_t count = labels != nullptr && labels->is_object()
                             ? labels->size()
                             : BM_TRY(u32("num_labels")).value_or(2);
    if (count != 1)
      return fail(
          Code::kUnsupported,
          "{}config.json: {} labels (\"id2label\"): {} is read as a reranker, which has one "
          "label; classifying texts is not supported",
          folder_, count, model_->name);
    const std::string_view name = model_->name;
    if (name.starts_with("DistilBert")) set_text("bellmetal.cls.activation", "relu");
    if (name.starts_with("Deberta") && *find("pooler_hidden_act") != "gelu")
      return fail(Code::kUnsupported,
                  "{}config.json: \"pooler_hidden_act\" other than \"gelu\" is not supported",
                  folder_);
    if (name.starts_with("Deberta") || name.starts_with("Electra") || name.starts_with("EuroBert"))
      set_text("bellmetal.cls.activation", "gelu");
    if (architecture_is("eurobert")) {
      const json* pooling = find("classifier_pooling");
      if (*pooling != "bos" && *pooling != "mean")
        return fail(Code::kUnsupported,
                    "{}config.json: \"classifier_pooling\" other than \"bos\" and \"mean\" is "
                    "not supported",
                    folder_);
      set_u32("bellmetal.rank_pooling",
              static_cast<uint32_t>(*pooling == "mean" ? PoolingType::kMean : PoolingType::kFirst));
    }
    if (!architecture_is("modern-bert")) return {};
    const json* pooling = find("classifier_pooling");
    if (*pooling != "cls" && *pooling != "mean") return wrong("classifier_pooling", "cls or mean");
    set_u32("bellmetal.rank_pooling",
            static_cast<uint32_t>(*pooling == "mean" ? PoolingType::kMean : PoolingType::kFirst));
    if (*find("classifier_activation") != "gelu")
      return fail(Code::kUnsupported,
                  "{}config.json: \"classifier_activation\" other than \"gelu\" is not supported",
                  folder_);
    return {};
  }

  /// What of a text its vector is made of, and what becomes of that.
  Status read_pooling() {
    if (ranks()) {
      set_u32(own("pooling_type"), static_cast<uint32_t>(PoolingType::kRank));
      return {};
    }
    if (modules_.pooling) set_u32(own("pooling_type"), static_cast<uint32_t>(*modules_.pooling));
    BM_TRY(read_prompts());
    if (BM_TRY(is_qwen_reranker())) return read_yes_and_no();
    if (modules_.score)
      return fail(Code::kUnsupported,
                  "{}modules.json: LogitScore is supported of Qwen3-Reranker alone, and neither "
                  "the folder's name nor README.md names that",
                  folder_);
    return {};
  }

  /// What is written before texts. Source: sentence-transformers, SentenceTransformer.encode().
  Status read_prompts() {
    constexpr const char* kFile = "config_sentence_transformers.json";
    if (!modules_.pooling || !exists(kFile)) return {};
    const json all = BM_TRY(read_json(kFile));
    const json prompts = all.value("prompts", json());
    if (prompts.is_null()) return {};
    const auto corrupt = [&](const char* what) {
      return fail(Code::kCorrupt, "{}{}: {}", folder_, kFile, what);
    };
    bool has_text = false;
    if (!prompts.is_object()) return corrupt("\"prompts\" is no object");
    for (const auto& [name, text] : prompts.items()) {
      if (!text.is_string()) return corrupt("\"prompts\" has what is no text");
      has_text = has_text || !text.get_ref<const std::string&>().empty();
    }
    const json chosen = all.value("default_prompt_name", json());
    if (!chosen.is_null() && (!chosen.is_string() || !prompts.contains(chosen.get<std::string>())))
      return corrupt("\"default_prompt_name\" is none of \"prompts\"");
    if (has_text && !modules_.pools_prompt)
      return fail(Code::kUnsupported,
                  "{}: pooling without prompts (\"include_prompt\" false) is not supported; "
                  "without \"prompts\" in {} the model is read",
                  folder_, kFile);
    const json kept = {{"prompts", prompts}, {"default", chosen}};
    set_text("bellmetal.prompts", kept.dump(-1, ' ', false, json::error_handler_t::replace));
    return {};
  }

  /// Its config.json is that of any Qwen 3. Source: llama.cpp, convert_hf_to_gguf.py,
  /// _is_qwen3_reranker().
  Result<bool> is_qwen_reranker() const {
    if (!architecture_is("qwen3") || modules_.pooling) return false;
    const auto name = file_.metadata_.find("general.name");
    std::string own(name == file_.metadata_.end() ? "" : name->second.text);
    std::ranges::transform(own, own.begin(), [](unsigned char c) { return std::tolower(c); });
    if (own.find("qwen3-reranker") != std::string::npos) return true;
    if (!exists("README.md")) return false;
    const Mapping file = BM_TRY(Mapping::open_file(folder_ + "README.md"));
    return std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size())
               .find("# Qwen3-Reranker") != std::string_view::npos;
  }

  /// A score is the share of "yes" in the probabilities of "yes" and "no". Source: the model card
  /// of Qwen3-Reranker.
  Status read_yes_and_no() {
    std::array<uint32_t, 2> ids{};
    if (modules_.score) {
      ids = {modules_.score->yes, modules_.score->no};
    } else {
      const json root =
          json::parse(file_.metadata_["tokenizer.huggingface.json"].text, nullptr, false);
      const json model = root.is_object() ? root.value("model", json::object()) : json::object();
      const json vocab = model.is_object() ? model.value("vocab", json::object()) : json::object();
      for (size_t i = 0; i < 2; ++i) {
        const json id = vocab.is_object() ? vocab.value(i == 0 ? "yes" : "no", json()) : json();
        if (!id.is_number_unsigned() || id > INT32_MAX)
          return fail(Code::kCorrupt, "{}tokenizer.json has no tokens \"yes\" and \"no\"", folder_);
        ids[i] = id.get<uint32_t>();
      }
    }
    const GgufTensor* table = file_.find_tensor("output.weight");
    if (table == nullptr) table = &*BM_TRY(file_.tensor("token_embd.weight"));
    const GgufTensor from = *table;
    if (from.rank != 2 || std::max(ids[0], ids[1]) >= from.dims[1])
      return fail(Code::kCorrupt, "{}: tensor {} has no rows {} and {}", folder_, from.name, ids[0],
                  ids[1]);
    const size_t bytes = from.data.size() / from.dims[1];
    std::vector<std::byte>& rows = store_->buffers.emplace_back();
    for (const uint32_t id : ids) {
      const auto row = from.data.subspan(id * bytes, bytes);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    add("cls.output.weight", from.type, {2, from.dims[0]}, rows);
    file_.tensor_index_.emplace(file_.tensors_.back().name, file_.tensors_.size() - 1);
    set_u32(own("pooling_type"), static_cast<uint32_t>(PoolingType::kRank));
    set_text("tokenizer.chat_template.rerank",
             "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
             "Query and the Instruct provided. Note that the answer can only be \"yes\" or "
             "\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve "
             "relevant passages that answer the query\n<Query>: {query}\n<Document>: "
             "{document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    return {};
  }

  Status add_dense() {
    for (size_t i = 0; i < modules_.dense.size(); ++i) {
      const auto& [path, has_tanh] = modules_.dense[i];
      const SafetensorsFile& file = store_->dense.emplace_back(BM_TRY(SafetensorsFile::open(path)));
      const std::string name = fmt::format("dense_{}", i + 2);
      if (file.find("linear.weight") == nullptr)
        return fail(Code::kCorrupt, "{}: tensor \"linear.weight\" is missing", path);
      for (const SafeTensor& t : file.tensors()) {
        if (t.name != "linear.weight" && t.name != "linear.bias")
          return fail(Code::kUnsupported, "{}: tensor {} is not known", path, quote_name(t.name));
        BM_TRY(add_tensor(name + t.name.substr(6), t));
      }
      if (has_tanh) set_bool(fmt::format("bellmetal.{}.tanh", name), true);
    }
    return {};
  }

  /// Hidden units of a dense feed-forward.
  Result<uint32_t> feed_forward_length() const {
    // Granite 4 without experts has the expert that all tokens have elsewhere.
    if (std::string_view(model_->name) == "GraniteMoeHybridForCausalLM" &&
        BM_TRY(u32("num_local_experts")).value_or(0) == 0)
      return need("shared_intermediate_size");
    const uint32_t length = BM_TRY(need("intermediate_size"));
    if (!architecture_is("lfm2") || !BM_TRY(flag("block_auto_adjust_ff_dim"))) return length;
    // Source: transformers, modeling_lfm2.py, Lfm2MLP.
    const double factor = BM_TRY(real(config_, "block_ffn_dim_multiplier")).value_or(1);
    const uint32_t multiple = BM_TRY(need("block_multiple_of"));
    const double third = std::floor(factor * std::floor(2.0 * length / 3));
    if (!(third >= 1) || third > (1u << 24)) return wrong("block_ffn_dim_multiplier", "a factor");
    return (static_cast<uint32_t>(third) + multiple - 1) / multiple * multiple;
  }

  /// Source: transformers, configuration_lfm2.py.
  Status read_short_convolutions(uint32_t kv) {
    set_u32(own("shortconv.l_cache"), BM_TRY(need("conv_L_cache")));
    std::vector<uint32_t> heads(blocks_, 0);
    if (find("layer_types") != nullptr) {
      heads = BM_TRY(by_layer<uint32_t>(
          [&](const std::string& type) { return type == "full_attention" ? kv : 0; }));
    } else {
      const json* chosen = find("full_attn_idxs");
      if (chosen == nullptr || !chosen->is_array())
        return wrong("full_attn_idxs", "a list of layers");
      for (const json& layer : *chosen) {
        if (!layer.is_number_integer() || layer < 0 || layer >= blocks_)
          return wrong("full_attn_idxs", "a list of layers");
        heads[layer.get<uint32_t>()] = kv;
      }
    }
    set_list<uint32_t>(own("attention.head_count_kv"), GgufType::kUint32, heads);
    return {};
  }

  /// Source: transformers, configuration_qwen3_next.py.
  Status read_delta_net() {
    keys_ = BM_TRY(need("linear_key_head_dim"));
    groups_ = BM_TRY(need("linear_num_key_heads"));
    values_ = BM_TRY(need("linear_value_head_dim"));
    const uint32_t heads = BM_TRY(need("linear_num_value_heads"));
    if (heads % groups_ != 0) return wrong("linear_num_key_heads", "a divisor of the value heads");
    each_ = heads / groups_;
    set_u32(own("ssm.conv_kernel"), BM_TRY(need("linear_conv_kernel_dim")));
    set_u32(own("ssm.state_size"), keys_);
    set_u32(own("ssm.group_count"), groups_);
    set_u32(own("ssm.time_step_rank"), heads);
    set_u32(own("ssm.inner_size"), values_ * heads);
    if (find("layer_types") == nullptr) {
      set_u32(own("full_attention_interval"), BM_TRY(u32("full_attention_interval")).value_or(4));
      return {};
    }
    const auto recurrent = BM_TRY(by_layer<uint8_t>([](const std::string& type) {
      return type == "linear_attention" ? uint8_t{1} : uint8_t{0};
    }));
    set_list<uint8_t>(own("attention.recurrent_layers"), GgufType::kBool, recurrent);
    return {};
  }

  /// Source: transformers, configuration_granitemoehybrid.py.
  Status read_state_spaces(uint32_t kv) {
    const uint32_t heads = BM_TRY(need("mamba_n_heads"));
    const json* length = find("mamba_d_head");
    const bool is_told = length != nullptr && length->is_number();
    const uint32_t inner = is_told ? heads * BM_TRY(need("mamba_d_head"))
                                   : BM_TRY(need("mamba_expand")) * BM_TRY(need("hidden_size"));
    // transformers normalises all groups together; with one it is the same.
    if (BM_TRY(need("mamba_n_groups")) != 1)
      return fail(Code::kUnsupported, "{}config.json: \"mamba_n_groups\" above 1 is not supported",
                  folder_);
    set_u32(own("ssm.conv_kernel"), BM_TRY(need("mamba_d_conv")));
    set_u32(own("ssm.state_size"), BM_TRY(need("mamba_d_state")));
    set_u32(own("ssm.group_count"), 1);
    set_u32(own("ssm.inner_size"), inner);
    set_u32(own("ssm.time_step_rank"), heads);
    // Steps are clamped to it; nothing lies outside of (0, infinity).
    if (const json* limit = find("time_step_limit"))
      if (!limit->is_array() || limit->size() != 2 || (*limit)[0] != 0 || (*limit)[1].is_number())
        return fail(Code::kUnsupported, "{}config.json: \"time_step_limit\" is not supported",
                    folder_);
    const auto counts = BM_TRY(
        by_layer<uint32_t>([&](const std::string& type) { return type == "attention" ? kv : 0; }));
    set_list<uint32_t>(own("attention.head_count_kv"), GgufType::kUint32, counts);
    return {};
  }

  /// Source: transformers, configuration_gemma3n.py, Gemma3nTextConfig.
  Status read_gemma3n() {
    set_u32(own("embedding_length_per_layer_input"), BM_TRY(need("hidden_size_per_layer_input")));
    set_u32(own("attention.shared_kv_layers"), BM_TRY(u32("num_kv_shared_layers")).value_or(0));
    stacked_ = BM_TRY(need("altup_num_inputs")) - 1;
    set_u32(own("altup.num_inputs"), stacked_ + 1);
    set_u32(own("altup.active_idx"), BM_TRY(u32("altup_active_idx")).value_or(0));
    BM_TRY(set_real("final_logit_softcapping", "final_logit_softcapping"));
    const json* shares = find("activation_sparsity_pattern");
    std::vector<float> scales(blocks_, -std::numeric_limits<float>::infinity());
    for (uint32_t i = 0; i < blocks_; ++i) {
      const json share = shares == nullptr     ? json(i < 10 ? 0.95 : 0.0)
                         : shares->is_number() ? *shares
                         : !shares->is_array() ? json()
                         : shares->size() > i  ? (*shares)[i]
                                               : json();
      if (!share.is_number() || share < 0 || share >= 1)
        return wrong("activation_sparsity_pattern", "a share for every layer");
      if (share > 0) scales[i] = static_cast<float>(normal_quantile(share.get<double>()));
    }
    set_list<float>(own("activation_sparsity_scale"), GgufType::kFloat32, scales);
    return {};
  }

  /// Below how many standard deviations above the mean `share` of a normal distribution lies.
  static double normal_quantile(double share) {
    double low = -40, high = 40;
    while (true) {
      const double middle = low + (high - low) / 2;
      if (middle <= low || middle >= high) return middle;
      (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
    }
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
    if (architecture_is("mistral3") && window && *window < BM_TRY(need("max_position_embeddings")))
      return fail(Code::kUnsupported, "{}config.json: \"sliding_window\" is not supported here",
                  folder_);
    if (!window || *window == 0 || !(model_->words & (kOwnWindows | kPlainWindow))) return {};
    set_u32(own("attention.sliding_window"), *window);
    if (model_->words & kPlainWindow) return {};
    const json* pattern = find("sliding_window_pattern");
    if (find("layer_types") != nullptr) {
      const auto local = BM_TRY(by_layer<uint8_t>([](const std::string& type) {
        return type == "sliding_attention" ? uint8_t{1} : uint8_t{0};
      }));
      set_list<uint8_t>(own("attention.sliding_window_pattern"), GgufType::kBool, local);
    } else if (pattern != nullptr && pattern->is_string()) {  // EXAONE's: "LLLG"
      const auto& letters = pattern->get_ref<const std::string&>();
      if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
        return wrong("sliding_window_pattern", "a number, or letters L and G");
      std::vector<uint8_t> local;
      for (uint32_t i = 0; i < blocks_; ++i)
        local.push_back(letters[i % letters.size()] == 'L' ? 1 : 0);
      set_list<uint8_t>(own("attention.sliding_window_pattern"), GgufType::kBool, local);
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
    if (kind == "dynamic" && scaling->contains("alpha")) return read_alpha(*scaling);
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

  /// Hunyuan's: a larger base for all lengths. Source: transformers, modeling_hunyuan_v1_dense.py,
  /// HunYuanDenseV1RotaryEmbedding.
  Status read_alpha(const json& scaling) {
    const double alpha = BM_TRY(real(scaling, "alpha")).value_or(0),
                 base = BM_TRY(real(config_, "rope_theta")).value_or(10000);
    if (alpha == 0) return {};
    if (!(alpha > 0) || head_ <= 2) return wrong("rope_scaling", "dynamic's: a positive \"alpha\"");
    set_f32(own("rope.freq_base"), base * std::pow(alpha, head_ / (head_ - 2.0)));
    return {};
  }

  Status read_yarn(const json& scaling, double factor) {
    // DeepSeek's: rotations keep their length where both are equal, and the scores are sharpened.
    const double own_scale = BM_TRY(real(scaling, "mscale")).value_or(0),
                 all = BM_TRY(real(scaling, "mscale_all_dim")).value_or(0);
    const bool is_mistral = architecture_is("mistral3");
    if (own_scale != all || (all != 0 && !architecture_is("deepseek2") && !is_mistral))
      return fail(Code::kUnsupported,
                  "{}config.json: rope_scaling \"mscale\" other than \"mscale_all_dim\" is not "
                  "supported",
                  folder_);
    if (all != 0) set_f32(own("rope.scaling.yarn_log_multiplier"), is_mistral ? all : 0.1 * all);
    if (const auto growth = BM_TRY(real(scaling, "llama_4_scaling_beta")); growth && is_mistral)
      set_f32(own("attention.temperature_scale"), *growth);
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
    // Dense models of Hunyuan say that they have one.
    if (BM_TRY(u32(count_key)).value_or(0) == 0 || architecture_is("hunyuan-dense")) return {};
    if (architecture_is("deepseek2") || architecture_is("glm4moe")) BM_TRY(read_deepseek_experts());
    if (architecture_is("lfm2moe")) {
      set_u32(own("leading_dense_block_count"), BM_TRY(u32("num_dense_layers")).value_or(2));
      set_u32(own("expert_gating_func"), 2);
      BM_TRY(set_real("routed_scaling_factor", "expert_weights_scale"));
    }
    if (architecture_is("gpt-oss") || architecture_is("nomic-bert-moe"))
      set_u32(own("expert_feed_forward_length"), BM_TRY(need("intermediate_size")));
    experts_ = BM_TRY(need(count_key));
    if (experts_ > kMaxFolderExperts) return wrong(count_key, "a number of experts");
    set_u32(own("expert_count"), experts_);
    set_u32(own("expert_used_count"), BM_TRY(need("num_experts_per_tok")));
    if (const auto length = BM_TRY(u32("moe_intermediate_size")))
      set_u32(own("expert_feed_forward_length"), *length);
    for (const char* key : {"shared_expert_intermediate_size", "shared_intermediate_size"})
      if (const auto length = BM_TRY(u32(key)))
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
      FolderPlace place = place_of(*model_, blocks_, t.name);
      if (place.name.empty()) continue;
      if (place.name == "output.weight") {
        has_output = true;
        if (is_tied) continue;
      }
      if (t.shape.size() > 4)
        return fail(Code::kUnsupported, "tensor {} has {} dimensions", quote_name(t.name),
                    t.shape.size());
      if (place.part) {
        std::vector<const SafeTensor*>& parts = stacks[place.name];
        parts.resize(std::max<size_t>(parts.size(), *place.part + 1));
        parts[*place.part] = &t;
        continue;
      }
      if (BM_TRY(add_fused_experts(t))) continue;
      if (const size_t at = place.name.find("ssm_ba_"); at != std::string::npos) {
        rates_[place.name.substr(0, at)][place.name.ends_with("alpha.weight")] = &t;
        continue;
      }
      BM_TRY(add_tensor(std::move(place.name), t));
    }
    BM_TRY(add_packed_experts());
    BM_TRY(add_rates());
    BM_TRY(add_dense());
    if (!is_tied && !has_output && !may_be_tied_ && !is_encoder() && !modules_.pooling)
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
    if (name == "per_layer_token_embd.weight") BM_TRY(add_rows(&t));
    if (name == "position_embd.weight" && first_position_ > 0) {
      if (t.shape.size() != 2 || t.shape[0] <= first_position_)
        return fail(Code::kCorrupt, "tensor {} has no {} rows", quote_name(t.name),
                    first_position_ + 1);
      t.data = t.data.subspan(t.data.size() / t.shape[0] * first_position_);
      t.shape[0] -= first_position_;
    }
    const bool is_block = name.starts_with("blk.");
    if (is_block && model_->words & kTransposed && t.shape.size() == 2) {
      t.data = transposed(t.data, t.shape[0], t.shape[1], ggml_type_info(type).block_bytes);
      std::swap(t.shape[0], t.shape[1]);
    }
    if (model_->words & kGroupedHeads && name.find(".attn_qkv.") != std::string::npos)
      BM_TRY(ungroup(&t));
    if (BM_TRY(add_parts(name, type, t))) return {};
    // Kernels of convolutions over tokens: [channels, 1, tokens].
    const bool is_kernel = t.shape.size() == 3 && t.shape[1] == 1 && name.ends_with(".weight");
    if (is_kernel) t.shape.erase(t.shape.begin() + 1);
    // A row of a matrix that gives one number is kept as a vector.
    const bool is_row = name.ends_with("ffn_gate_inp_shexp.weight");
    if (t.shape.size() != 1 && !is_row && !is_kernel) {
      add(std::move(name), type, t.shape, t.data);
      return {};
    }
    uint64_t count = 1;
    for (const uint64_t d : t.shape) count *= d;
    std::vector<float> values(static_cast<size_t>(count));
    BM_TRY(dequantize_row(type, t.data, values));
    const bool is_state_norm = name.ends_with("ssm_norm.weight"), is_rate = name.ends_with("ssm_a");
    if (model_->words & kGainsFromOne && name.ends_with("norm.weight") && !is_state_norm)
      for (float& v : values) v += 1;
    if (is_rate)
      for (float& v : values) v = -std::exp(v);
    std::vector<uint64_t> shape = is_kernel ? t.shape : std::vector<uint64_t>{count};
    if (architecture_is("granitehybrid") && (is_rate || name.ends_with("ssm_d")))
      shape = {count, 1};
    if (architecture_is("granitehybrid") && is_state_norm) shape = {1, count};
    add_floats(std::move(name), std::move(shape), values);
    return {};
  }

  /// Of a delta network: of every head of keys the rows of its β, then those of its α.
  Status add_rates() {
    for (const auto& [block, parts] : rates_) {
      const auto& [beta, alpha] = parts;
      const uint64_t heads = uint64_t{groups_} * each_;
      if (beta == nullptr || alpha == nullptr || beta->shape != alpha->shape ||
          beta->dtype != alpha->dtype || beta->shape.size() != 2 || beta->shape[0] != heads)
        return fail(Code::kCorrupt, "{}: {}linear_attn.in_proj_b and in_proj_a are not of {} heads",
                    folder_, block, heads);
      const size_t bytes = beta->data.size() / groups_;
      std::vector<std::byte>& rows = store_->buffers.emplace_back();
      for (uint64_t g = 0; g < groups_; ++g)
        for (const SafeTensor* part : parts) {
          const auto from = part->data.subspan(g * bytes, bytes);
          rows.insert(rows.end(), from.begin(), from.end());
        }
      add(block + "ssm_ba.weight", BM_TRY(ggml_type_of(*beta)), {2 * heads, beta->shape[1]}, rows);
    }
    return {};
  }

  /// Rows of `t` in runs of lengths `runs`, over and over: those of run `chosen`.
  std::span<const std::byte> rows_of(const SafeTensor& t, std::span<const uint64_t> runs,
                                     std::initializer_list<size_t> chosen) {
    uint64_t rows = 1, period = 0;
    for (size_t i = 0; i + 1 < t.shape.size(); ++i) rows *= t.shape[i];
    for (const uint64_t run : runs) period += run;
    const size_t bytes = t.data.size() / rows;
    std::vector<std::byte>& out = store_->buffers.emplace_back();
    for (const size_t wanted : chosen) {
      uint64_t first = 0;
      for (size_t i = 0; i < wanted; ++i) first += runs[i];
      for (uint64_t at = first; at + runs[wanted] <= rows; at += period) {
        const auto from = t.data.subspan(at * bytes, runs[wanted] * bytes);
        out.insert(out.end(), from.begin(), from.end());
      }
    }
    return out;
  }

  /// Whether `t` is several tensors of a GGUF file; they are added.
  Result<bool> add_parts(const std::string& name, GgmlType type, const SafeTensor& t) {
    const std::string block = name.substr(0, name.rfind('.', name.size() - 8) + 1);
    if (name.ends_with("attn_qkv_and_gate.weight")) {
      const uint64_t runs[] = {keys_, keys_, uint64_t{each_} * values_, uint64_t{each_} * values_};
      const uint64_t inner = groups_ * runs[2];
      if (t.shape.size() != 2 || t.shape[0] != 2 * (uint64_t{groups_} * keys_ + inner))
        return fail(Code::kCorrupt, "tensor {}: rows are not of {} key heads", quote_name(t.name),
                    groups_);
      add(block + "attn_qkv.weight", type, {t.shape[0] - inner, t.shape[1]},
          rows_of(t, runs, {0, 1, 2}));
      add(block + "attn_gate.weight", type, {inner, t.shape[1]}, rows_of(t, runs, {3}));
      return true;
    }
    // Nomic's experts one below the other, [experts · units, embedding]; the second's products are
    // with its rows.
    if (architecture_is("nomic-bert-moe") && name.ends_with("_exps.weight")) {
      if (t.shape.size() != 2 || t.shape[0] % experts_ != 0 || t.data.empty())
        return fail(Code::kCorrupt, "tensor {}: not of {} experts", quote_name(t.name), experts_);
      const uint64_t units = t.shape[0] / experts_, width = t.shape[1];
      if (name.ends_with("ffn_up_exps.weight")) {
        add(name, type, {experts_, units, width}, t.data);
        return true;
      }
      const size_t bytes = t.data.size() / experts_;
      const uint64_t size = ggml_type_info(type).block_bytes;
      std::vector<std::byte>& all = store_->buffers.emplace_back();
      for (uint64_t e = 0; e < experts_; ++e) {
        const auto one = transposed(t.data.subspan(e * bytes, bytes), units, width, size);
        all.insert(all.end(), one.begin(), one.end());
        store_->buffers.pop_back();
      }
      add(name, type, {experts_, width, units}, all);
      return true;
    }
    const bool is_shared = name.ends_with("ffn_gate_and_up_shexp.weight");
    if (is_shared || name.ends_with("ffn_gate_and_up_exps.weight")) {
      std::vector<uint64_t> shape = t.shape;
      if (shape.size() != (is_shared ? 2 : 3) || shape[shape.size() - 2] % 2 != 0 || t.data.empty())
        return fail(Code::kCorrupt, "tensor {}: not of gates and ups", quote_name(t.name));
      const uint64_t half = shape[shape.size() - 2] /= 2, runs[] = {half, half};
      const char* const end = !is_shared     ? "_exps.weight"
                              : experts_ > 0 ? "_shexp.weight"
                                             : ".weight";
      add(block + "ffn_gate" + end, type, shape, rows_of(t, runs, {0}));
      add(block + "ffn_up" + end, type, shape, rows_of(t, runs, {1}));
      return true;
    }
    if (name.ends_with("ffn_down_shexp.weight") && experts_ == 0) {
      add(block + "ffn_down.weight", type, t.shape, t.data);
      return true;
    }
    return false;
  }

  /// Tokens of sound and pictures have the row of token 0. Source: transformers,
  /// modeling_gemma3n.py, Gemma3nModel.forward().
  Status add_rows(SafeTensor* t) {
    const uint64_t all = BM_TRY(need("vocab_size"));
    if (t->shape.size() != 2 || t->shape[0] == 0 || t->shape[0] >= all) return {};
    const size_t bytes = t->data.size() / t->shape[0];
    std::vector<std::byte>& out = store_->buffers.emplace_back(t->data.begin(), t->data.end());
    const std::span<const std::byte> first = t->data.first(bytes);
    for (; t->shape[0] < all; ++t->shape[0]) out.insert(out.end(), first.begin(), first.end());
    t->data = out;
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
    const auto layer = take_number(&number, kMaxFolderBlocks);
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
    const uint64_t count = name.starts_with("blk.") ? experts_ : stacked_;
    if (parts.size() != count)
      return fail(Code::kCorrupt, "{}: there are {} of {}, config.json says {}", folder_,
                  parts.size(), name, count);
    std::vector<std::byte>& all = store_->buffers.emplace_back();
    for (const SafeTensor* part : parts) {
      if (part == nullptr || part->shape != parts[0]->shape || part->dtype != parts[0]->dtype ||
          part->shape.size() != 2)
        return fail(Code::kCorrupt, "{}: parts of {} are missing or differ", folder_, name);
      all.insert(all.end(), part->data.begin(), part->data.end());
    }
    add(name, BM_TRY(ggml_type_of(*parts[0])), {count, parts[0]->shape[0], parts[0]->shape[1]},
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
  const FolderModel* model_ = nullptr;
  FolderModel attention_alone_{};  ///< Granite 4 without state spaces is Granite 3
  bool may_be_tied_ = false;       ///< lm_head.weight may be missing, whatever the text's part says
  uint32_t blocks_ = 0, head_ = 0, groups_ = 1, experts_ = 0;
  uint32_t keys_ = 0, values_ = 0, each_ = 0;  ///< of a delta network's heads; values' per keys'
  uint32_t first_position_ = 0;                ///< rows of the table of positions that no text has
  FolderModules modules_;
  uint32_t stacked_ = 0;  ///< matrices that are one tensor, of no block
  std::map<std::string, std::array<const SafeTensor*, 2>> packed_;  ///< blocks and scales, by place
  std::map<std::string, std::array<const SafeTensor*, 2>> rates_;   ///< β and α, by block
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
