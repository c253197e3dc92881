// What llama-server knows beyond OpenAI's fields and vLLM's, wherever text is generated: in its own
// form, in OpenAI's and in Anthropic's.
//
// Source of names, ranges and meaning: llama.cpp, tools/server/README.md and server-schema.cpp; of
// strangers: what SillyTavern 1.13 sends to llama-server.

#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;
using models::SamplerStep;

constexpr struct {
  const char* name;
  char letter;
  std::optional<SamplerStep> step;  ///< none: known, and does nothing here
} kSteps[] = {{"penalties", 'e', SamplerStep::kPenalties},
              {"dry", 'd', SamplerStep::kDry},
              {"top_n_sigma", 's', SamplerStep::kTopNSigma},
              {"top_k", 'k', SamplerStep::kTopK},
              {"typ_p", 'y', SamplerStep::kTypical},
              {"typical_p", 'y', SamplerStep::kTypical},
              {"top_p", 'p', SamplerStep::kTopP},
              {"min_p", 'm', SamplerStep::kMinP},
              {"xtc", 'x', SamplerStep::kXtc},
              {"temperature", 't', SamplerStep::kTemperature},
              {"temp", 't', SamplerStep::kTemperature},
              {"infill", 'i', SamplerStep::kInfill},
              // Both are off: adaptive_target below 0, and tfs_z 1, are all that is taken.
              {"adaptive_p", 'a', std::nullopt},
              {"tfs_z", 'f', std::nullopt}};
constexpr size_t kMostSteps = 32;

/// A list of names, or a text of letters.
void take_steps(Fields& f, GenerationRequest* r) {
  const Json* samplers = f.find("samplers");
  if (!samplers) return;
  const auto wrong = [&] {
    f.wrong("samplers",
            fmt::format("a list of at most {} of \"penalties\", \"dry\", \"top_n_sigma\", "
                        "\"top_k\", \"typ_p\", \"top_p\", \"min_p\", \"xtc\", \"temperature\" and "
                        "\"infill\", or their letters",
                        kMostSteps));
  };
  std::vector<SamplerStep> steps;
  const auto add = [&](const auto& is_it) {
    const auto* at = std::ranges::find_if(kSteps, is_it);
    if (at == std::end(kSteps)) return false;
    if (at->step) steps.push_back(*at->step);
    return true;
  };
  if (samplers->is_string()) {
    for (const char c : samplers->get_ref<const std::string&>())
      if (!add([&](const auto& s) { return s.letter == c; })) return wrong();
  } else if (samplers->is_array()) {
    for (const Json& one : *samplers)
      if (!one.is_string() || !add([&](const auto& s) { return one == s.name; })) return wrong();
  } else {
    return wrong();
  }
  if (steps.size() > kMostSteps) return wrong();
  r->steps = std::move(steps);
}

void take_penalty(Fields& f, GenerationRequest* r) {
  r->penalizes_prompt = r->native || f.find("repeat_penalty") || f.find("repeat_last_n");
  f.number("repeat_penalty", 0.01, 100, &r->repetition_penalty);
  std::optional<int32_t> window;
  f.integer("repeat_last_n", -1, 1 << 30, &window);
  if (window) r->repeat_window = *window < 0 ? UINT32_MAX : static_cast<uint32_t>(*window);
}

void take_mirostat(Fields& f, GenerationRequest* r) {
  f.integer("mirostat", 0, 2, &r->mirostat);
  f.number("mirostat_tau", 0.001, 100, &r->mirostat_tau);
  f.number("mirostat_eta", 0, 1, &r->mirostat_eta);
}

void take_schema(Fields& f, GenerationRequest* r) {
  if (const Json* schema = f.find("json_schema")) {
    r->schema_param = "json_schema";
    if (schema->is_object())
      r->schema = *schema;
    else
      f.wrong("json_schema", "a JSON schema");
  }
  if (!r->grammar.empty() && !r->schema.is_null())
    f.wrong("grammar", "absent beside 'json_schema'");
  const bool is_bound = !r->grammar.empty() || !r->schema.is_null();
  if (is_bound && r->steps && std::ranges::find(*r->steps, SamplerStep::kInfill) != r->steps->end())
    f.wrong("samplers", "without \"infill\" beside 'grammar' and 'json_schema'");
}

void take_probabilities(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  uint32_t count = 0;
  f.integer("n_probs", 0, limits.native_logprobs, &count);
  if (count > 0) {
    r->top_logprobs = count;
    r->has_native_logprobs = true;
  }
  f.flag("post_sampling_probs", &r->has_drawn_probabilities);
}

/// What changes the answer and cannot be had.
void refuse_llama_fields(Fields& f) {
  const auto cannot = [&](const char* name, const char* why) {
    f.fail(refuse(name, fmt::format("'{}' {}", name, why), "unsupported_parameter").value());
  };
  if (const Json* lora = f.find("lora"); lora && !(lora->is_array() && lora->empty()))
    cannot("lora",
           "must be an empty list: this server has no LoRA adapters; merge them into the "
           "model's file");
  if (const Json* target = f.find("adaptive_target");
      target && !(target->is_number() && target->get<double>() < 0))
    cannot("adaptive_target", "must be below 0: this server has no adaptive-p sampler");
  for (const char* name : {"reasoning_budget_tokens", "thinking_budget_tokens"})
    if (const Json* budget = f.find(name); budget && *budget != -1)
      cannot(name, "must be -1: this server does not end reasoning by force");
  for (const char* name : {"grammar_lazy", "reasoning_control"}) f.neutral(name, false);
  for (const char* name : {"grammar_triggers", "preserved_tokens", "image_data", "multimodal_data"})
    f.neutral(name, Json::array());
  // Of llama-server until 2024.
  f.neutral("tfs_z", 1);
  f.neutral("penalize_nl", true);
  f.neutral("system_prompt", "");
}

/// Hints: they change when and where an answer is computed, and what is told besides it.
void take_hints(Fields& f) {
  bool is_wanted = true;
  f.flag("cache_prompt", &is_wanted);  // the prefix cache gives the same bits either way
  int32_t prompt_ms = 0;               // llama-server does nothing with it either
  f.integer("t_max_prompt_ms", -1, 1 << 30, &prompt_ms);
  f.ignore({"id_slot", "slot_id", "n_keep", "n_discard", "n_cache_reuse", "sse_ping_interval",
            "backend_sampling", "adaptive_decay", "verbose", "speculative.n_max",
            "speculative.n_min", "speculative.p_min", "speculative.type", "user"});
}

}  // namespace

void take_llama_fields(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  take_steps(f, r);
  take_penalty(f, r);
  take_mirostat(f, r);
  f.integer("min_keep", 0, 1 << 20, &r->min_keep);
  take_schema(f, r);
  take_probabilities(f, limits, r);
  f.integer("n_indent", 0, 1 << 20, &r->indent);
  f.integer("t_max_predict_ms", -1, 1 << 30, &r->predict_ms);
  f.flag("timings_per_token", &r->has_timings_so_far);
  f.flag("return_progress", &r->has_progress);
  refuse_llama_fields(f);
  take_hints(f);
}

std::vector<SamplerStep> llama_steps() {
  using enum SamplerStep;
  return {kPenalties, kDry, kTopNSigma, kTopK, kTypical, kTopP, kMinP, kXtc, kTemperature};
}

std::string_view step_name(SamplerStep step) {
  const auto* at =
      std::ranges::find(kSteps, std::optional(step), [](const auto& s) { return s.step; });
  return at == std::end(kSteps) ? std::string_view() : at->name;
}

void ignore_strangers(Fields& f) {
  // Doubles of fields under llama-server's own names, and samplers that it does not have.
  f.ignore({"add_bos_token",
            "api_server",
            "api_type",
            "ban_eos_token",
            "banned_strings",
            "custom_token_bans",
            "dynamic_temperature",
            "dynatemp_high",
            "dynatemp_low",
            "epsilon_cutoff",
            "eta_cutoff",
            "grammar_string",
            "guidance_scale",
            "include_reasoning",
            "max_new_tokens",
            "max_tokens_second",
            "min_length",
            "mirostat_mode",
            "negative_prompt",
            "nsigma",
            "num_ctx",
            "num_predict",
            "rep_pen",
            "rep_pen_range",
            "rep_pen_slope",
            "repetition_penalty_range",
            "sampler_order",
            "sampler_seed",
            "skew",
            "skip_special_tokens",
            "smoothing_curve",
            "smoothing_factor",
            "stopping_strings",
            "tfs",
            "top_a",
            "truncation_length",
            "typical"});
}

}  // namespace bm::serve
