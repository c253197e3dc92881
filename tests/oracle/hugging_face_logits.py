#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small random models of transformers' classes: a folder as save_pretrained() writes it, and its logits.

    hugging_face_logits.py OUT TOKENS [CLASS …]     TOKENS: ids with commas

Writes OUT/CLASS-N-S/ and OUT/CLASS-N-S.f32 (all positions, float32) for every configuration N of a class below, with seed S.
Runs where transformers and PyTorch are: tests/oracle/judge_hugging_face.py.
"""

import json
import os
import sys
import traceback

import torch
import transformers

MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "sliding_window": 5}
YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}}
LLAMA3 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 32}}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
MISTRAL3 = {"mistral3": {"model_type": "mistral"}, "ministral3": {"model_type": "ministral3", "rope_parameters": {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}}
HYBRID = {"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16,
          "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8, "shared_intermediate_size": 48, "embedding_multiplier": 2.0,
          "logits_scaling": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
          "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, **EXPERTS}
# Deviations of gates are those of a sample here, as in llama.cpp, and of all in transformers: of many there is no difference.
GEMMA3N = {"num_hidden_layers": 5, "intermediate_size": [8192] * 5, "head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64,
           "altup_num_inputs": 4, "altup_active_idx": 0, "laurel_rank": 8, "num_kv_shared_layers": 2, "sliding_window": 5,
           "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0],
           "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}

# Class: what its configuration has beyond SMALL, a dictionary for each model; "edit": what is put into config.json after it was written.
MODELS = {
    "LlamaForCausalLM": [{}, LLAMA3, YARN], "MistralForCausalLM": [{"sliding_window": 6}], "ArceeForCausalLM": [{}],
    "MixtralForCausalLM": [{"num_local_experts": 4, "num_experts_per_tok": 2}],
    "CohereForCausalLM": [{}, {"use_qk_norm": True}], "Cohere2ForCausalLM": [MIXED], "GemmaForCausalLM": [{"head_dim": 16}],
    "Gemma2ForCausalLM": [{"head_dim": 16, **MIXED}], "Gemma3ForCausalLM": [{"head_dim": 16, **MIXED}],
    "DeepseekV2ForCausalLM": [LATENT],
    "DeepseekV3ForCausalLM": [{**LATENT, "n_group": 2, "topk_group": 1}],
    "FalconForCausalLM": [{"num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 96}, {"ffn_hidden_size": 96}],
    "GPT2LMHeadModel": [{"n_positions": 512}], "GPTNeoXForCausalLM": [{}], "GptOssForCausalLM": [{"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, **MIXED}],
    "Glm4ForCausalLM": [{"head_dim": 16}], "GraniteForCausalLM": [{"embedding_multiplier": 2.0, "logits_scaling": 3.0, "residual_multiplier": 0.5}],
    "NemotronForCausalLM": [{"head_dim": 16}], "OlmoForCausalLM": [{}], "Olmo2ForCausalLM": [{}], "Olmo3ForCausalLM": [MIXED],
    "OlmoeForCausalLM": [{"num_experts": 4, "num_experts_per_tok": 2}], "PhiForCausalLM": [{}], "Phi3ForCausalLM": [{"pad_token_id": 0}],
    "Qwen2ForCausalLM": [{}], "Qwen2MoeForCausalLM": [{"num_experts": 4, "shared_expert_intermediate_size": 48, **EXPERTS}],
    "Qwen3ForCausalLM": [{"head_dim": 16}], "Qwen3MoeForCausalLM": [{"num_experts": 4, "head_dim": 16, "norm_topk_prob": True, **EXPERTS}],
    "SeedOssForCausalLM": [{"head_dim": 16}], "SmolLM3ForCausalLM": [{}], "StableLmForCausalLM": [{}], "Starcoder2ForCausalLM": [{"sliding_window": 6}],
    "Exaone4ForCausalLM": [
        MIXED, {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 5,
                "edit": {"layer_types": None, "sliding_window_pattern": "LLLG"}},
        {"layer_types": ["full_attention"] * 4, "sliding_window": None, **LLAMA3}],
    "Glm4MoeForCausalLM": [{"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 16, "use_qk_norm": True, **EXPERTS},
                           {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 2, "head_dim": 16, "attention_bias": True,
                            "routed_scaling_factor": 1.5, **EXPERTS}],
    "Qwen3NextForCausalLM": [{"head_dim": 32, "num_experts": 4, "shared_expert_intermediate_size": 48, "linear_num_key_heads": 2,
                              "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, **EXPERTS}],
    "Qwen3_5ForCausalLM": [{"head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}],
    "Qwen3_5MoeForCausalLM": [{"head_dim": 32, "num_experts": 4, "shared_expert_intermediate_size": 48, "linear_num_key_heads": 2,
                               "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, **EXPERTS}],
    "Mistral3ForConditionalGeneration": [MISTRAL3["mistral3"], MISTRAL3["ministral3"]],
    "Ministral3ForCausalLM": [MISTRAL3["ministral3"]],
    "Lfm2ForCausalLM": [{"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
                        {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "block_auto_adjust_ff_dim": True, "conv_bias": False,
                         "block_multiple_of": 16, "intermediate_size": 144}],
    "Lfm2MoeForCausalLM": [{"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1, "num_experts": 4, **EXPERTS}],
    "HunYuanDenseV1ForCausalLM": [{"head_dim": 16}, {"head_dim": 16, "rope_parameters": {
        "rope_type": "dynamic", "alpha": 50.0, "rope_theta": 10000.0, "factor": 1.0}}],
    "HunYuanMoEV1ForCausalLM": [{"head_dim": 16, "num_experts": 4, "moe_topk": [2, 2, 2, 2]}],
    "GraniteMoeHybridForCausalLM": [{**HYBRID, "num_local_experts": 0, "position_embedding_type": None},
                                    {**HYBRID, "num_local_experts": 4, "num_experts_per_tok": 2, "position_embedding_type": "rope"},
                                    {**HYBRID, "layer_types": ["attention"] * 4, "num_local_experts": 0, "position_embedding_type": "rope"},
                                    {**HYBRID, "layer_types": ["attention"] * 4, "num_local_experts": 4, "num_experts_per_tok": 2}],
    "GraniteMoeForCausalLM": [{"num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 2.0, "attention_multiplier": 0.2}],
    "GraniteMoeSharedForCausalLM": [{"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48, "attention_multiplier": 0.2}],
    "Gemma3nForCausalLM": [GEMMA3N, {**GEMMA3N, "activation_sparsity_pattern": None, "num_kv_shared_layers": 0}],
}
SMALL = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
         "max_position_embeddings": 512, "pad_token_id": 0}
# These have other names for it, or heads in one number only.
WITHOUT = {name: ("num_key_value_heads", "intermediate_size")[:count] for name, count in (("FalconForCausalLM", 2), ("GPT2LMHeadModel", 2),
                                                                                          ("GPTNeoXForCausalLM", 1))}


def build(name, options):
    """A model with weights far enough from their first values that every part of it counts."""
    kind = getattr(transformers, name)
    options = {**{key: value for key, value in SMALL.items() if key not in WITHOUT.get(name, ())}, **options}
    if name == "Mistral3ForConditionalGeneration":
        seen = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 28, "patch_size": 14}
        config = transformers.Mistral3Config(text_config=options, vision_config={"model_type": "pixtral", **seen}, image_token_id=63)
    else:
        config = kind.config_class(**options)
    config._attn_implementation = "eager"
    model = kind(config).float().eval()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not value.is_floating_point() or key.endswith("inv_freq"):
                continue
            noise = torch.randn_like(value)
            if value.dim() < 2 or key.endswith((".sinks", "correct_output_scale")):
                value.add_(0.2 * noise)
            else:
                value.copy_(noise * (2.0 / value.shape[-1]) ** 0.5 if "embed" not in key and "wte" not in key else noise)
    return model


def main():
    out, tokens, *chosen = sys.argv[1:]
    ids = torch.tensor([[int(t) for t in tokens.split(",")]])
    for name in chosen or sorted(MODELS):
        for number, options in enumerate(MODELS[name]):
            options = dict(options)
            edit = options.pop("edit", {})
            has_experts = any("experts" in key for key in options)
            for seed in range(3 if has_experts else 1):
                path = os.path.join(out, f"{name}-{number}-{seed}")
                torch.manual_seed(1 + number + 100 * seed)
                try:
                    model = build(name, options)
                    with torch.no_grad():
                        logits = model(input_ids=ids, use_cache=False).logits[0]
                    model.save_pretrained(path)
                    with open(path + "/config.json") as f:
                        config = {**json.load(f), **edit}
                    with open(path + "/config.json", "w") as f:
                        json.dump({key: value for key, value in config.items() if value is not None or key == "sliding_window"}, f)
                    logits.float().numpy().tofile(path + ".f32")
                except Exception:  # the judge names the model that could not be made
                    with open(path + ".error", "w") as f:
                        f.write(traceback.format_exc())


if __name__ == "__main__":
    main()
