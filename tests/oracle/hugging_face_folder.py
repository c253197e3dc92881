#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A folder of Hugging Face with the weights of a GGUF file: config.json and safetensors, for the tests.

    hugging_face_folder.py IN.gguf OUT [--dtype BF16] [--shards 2]
    hugging_face_folder.py --random FOLDER "llama" "mixtral" …     FOLDER/0.gguf and FOLDER/0, then 1, and so on

Written from transformers' configuration_*.py and modeling_*.py: names as they are there, rotary pairs in
halves, gains of Gemma's norms less one. Weights must survive the number format: F32 always do.
"""

import argparse
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_numpy as gg  # noqa: E402

# Architecture: class, and whether the file has rotary pairs side by side where the folder has halves.
CLASSES = {
    "llama": ("LlamaForCausalLM", True), "qwen2": ("Qwen2ForCausalLM", False), "qwen3": ("Qwen3ForCausalLM", False),
    "gemma": ("GemmaForCausalLM", False), "gemma2": ("Gemma2ForCausalLM", False), "gemma3": ("Gemma3ForCausalLM", False),
    "phi3": ("Phi3ForCausalLM", False), "olmo2": ("Olmo2ForCausalLM", False), "olmoe": ("OlmoeForCausalLM", False),
    "qwen3moe": ("Qwen3MoeForCausalLM", False), "qwen2moe": ("Qwen2MoeForCausalLM", False), "granite": ("GraniteForCausalLM", True),
    "command-r": ("CohereForCausalLM", False), "starcoder2": ("Starcoder2ForCausalLM", False), "smollm3": ("SmolLM3ForCausalLM", True),
    "arcee": ("ArceeForCausalLM", True), "stablelm": ("StableLmForCausalLM", False), "seed_oss": ("SeedOssForCausalLM", False),
    "mixtral": ("MixtralForCausalLM", True), "glm4": ("Glm4ForCausalLM", False), "nemotron": ("NemotronForCausalLM", False),
    "olmo": ("OlmoForCausalLM", True), "cohere2": ("Cohere2ForCausalLM", False), "gpt2": ("GPT2LMHeadModel", False),
    "gptneox": ("GPTNeoXForCausalLM", False), "falcon": ("FalconForCausalLM", False), "gpt-oss": ("GptOssForCausalLM", False),
    "deepseek2": ("DeepseekV2ForCausalLM", False), "deepseek3": ("DeepseekV3ForCausalLM", False),
    "exaone4": ("Exaone4ForCausalLM", False), "glm4moe": ("Glm4MoeForCausalLM", False), "qwen3next": ("Qwen3NextForCausalLM", False),
    "mistral3": ("Mistral3ForConditionalGeneration", True), "lfm2": ("Lfm2ForCausalLM", False), "lfm2moe": ("Lfm2MoeForCausalLM", False),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", False), "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", False),
    "granitemoe": ("GraniteMoeForCausalLM", True), "granitehybrid": ("GraniteMoeHybridForCausalLM", True),
    "gemma3n": ("Gemma3nForConditionalGeneration", False), "qwen3.5": ("Qwen3_5MoeForCausalLM", False),
    "bert": ("BertModel", False), "bert-rank": ("BertForSequenceClassification", False), "roberta": ("XLMRobertaModel", False), "nomic-bert": ("NomicBertModel", False),
    "mpnet": ("MPNetModel", False), "deberta-v2": ("DebertaV2Model", False), "jina-bert-v3": ("JinaEmbeddingsV3Model", False), "nomic-bert-moe": ("NomicBertModel", False),
    "modern-bert": ("ModernBertModel", False), "eurobert": ("EuroBertModel", False), "gemma-embedding": ("Gemma3TextModel", False),
}
ENCODERS = ("bert", "bert-rank", "roberta", "mpnet", "deberta-v2", "jina-bert-v3", "nomic-bert-moe", "nomic-bert", "modern-bert", "eurobert", "gemma-embedding")
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
OWN = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"}, "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "gemma2": {"ffn_norm": "pre_feedforward_layernorm"}, "gemma3": {"ffn_norm": "pre_feedforward_layernorm"},
    "glm4": {"ffn_up": "mlp.gate_up_proj", "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
    "mixtral": {"ffn_gate_inp": "block_sparse_moe.gate"},
    "gpt2": {"attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc",
             "ffn_down": "mlp.c_proj"},
    "gptneox": {"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h",
                "ffn_down": "mlp.dense_4h_to_h"},
    "falcon": {"attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense", "ffn_up": "mlp.dense_h_to_4h",
               "ffn_down": "mlp.dense_4h_to_h"},
    "gpt-oss": {"ffn_gate_inp": "mlp.router"},
    "deepseek2": {"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
                  "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
                  "attn_kv_b": "self_attn.kv_b_proj", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
                  "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj"},
}
OWN["deepseek3"] = OWN["deepseek2"]
LFM = {"attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
       "attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1", "ffn_down": "feed_forward.w2", "ffn_up": "feed_forward.w3",
       "ffn_gate_inp": "feed_forward.gate"}
HUNYUAN = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm", "ffn_gate_inp": "mlp.gate.wg",
           "ffn_gate_shexp": "mlp.shared_mlp.gate_proj", "ffn_up_shexp": "mlp.shared_mlp.up_proj", "ffn_down_shexp": "mlp.shared_mlp.down_proj"}
GRANITE = {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_shexp": "shared_mlp.output_linear"}
OWN.update({
    "lfm2": LFM, "lfm2moe": LFM, "hunyuan-dense": HUNYUAN, "hunyuan-moe": HUNYUAN, "granitemoe": GRANITE, "granitehybrid": GRANITE,
    "glm4moe": {part: OWN["deepseek2"][part] for part in ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")},
    "gemma3n": {"ffn_norm": "pre_feedforward_layernorm", "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection",
                "post_norm": "post_per_layer_input_norm", "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
                "laurel_post_norm": "laurel.post_laurel_norm", "altup_router": "altup.modality_router", "altup_router_norm": "altup.router_norm",
                "altup_predict_coef": "altup.prediction_coefs", "altup_correct_coef": "altup.correction_coefs"}})
BERT = {"attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value", "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm", "ffn_up": "intermediate.dense", "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm"}
OWN.update({
    "bert": BERT, "bert-rank": BERT, "roberta": BERT, "gemma-embedding": {"ffn_norm": "pre_feedforward_layernorm"},
    "nomic-bert": {"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1", "layer_output_norm": "norm2",
                   "ffn_up": "mlp.fc11", "ffn_gate": "mlp.fc12", "ffn_down": "mlp.fc2"},
    "mpnet": {**BERT, "attn_q": "attention.attn.q", "attn_k": "attention.attn.k", "attn_v": "attention.attn.v", "attn_output": "attention.attn.o",
              "attn_output_norm": "attention.LayerNorm"},
    "deberta-v2": {**BERT, "attn_q": "attention.self.query_proj", "attn_k": "attention.self.key_proj", "attn_v": "attention.self.value_proj"},
    "jina-bert-v3": {"attn_qkv": "mixer.Wqkv", "attn_output": "mixer.out_proj", "attn_output_norm": "norm1", "layer_output_norm": "norm2",
                     "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    "nomic-bert-moe": {"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1", "layer_output_norm": "norm2",
                       "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2", "ffn_gate_inp": "mlp.router.layer"},
    "modern-bert": {"attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo", "attn_norm": "attn_norm", "ffn_norm": "mlp_norm", "ffn_up": "mlp.Wi",
                    "ffn_down": "mlp.Wo"}})
# Of blocks with a state; kernels get a dimension more.
STATES = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt": "dt_bias", "ssm_norm": "norm", "ssm_out": "out_proj", "ssm_in": "in_proj", "ssm_ba": "in_proj_ba",
          "ssm_conv1d": "conv1d"}
OUTER = {
    "gpt2": {"token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f"},
    "gptneox": {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
    "falcon": {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f"},
}
BLOCKS = {"gpt2": "transformer.h.", "gptneox": "gpt_neox.layers.", "falcon": "transformer.h."}
OUTER.update(dict.fromkeys(("lfm2", "lfm2moe"), {"token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"}))
OUTER["gemma3n"] = {"per_layer_token_embd": "model.embed_tokens_per_layer", "per_layer_model_proj": "model.per_layer_model_projection",
                    "per_layer_proj_norm": "model.per_layer_projection_norm"}
EMBEDDINGS = {"token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
              "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm"}
OUTER.update({
    "bert": {part: "bert." + name for part, name in EMBEDDINGS.items()}, "roberta": {part: "roberta." + name for part, name in EMBEDDINGS.items()},
    "nomic-bert": {**EMBEDDINGS, "token_embd_norm": "emb_ln"}, "eurobert": {"token_embd": "model.embed_tokens", "output_norm": "model.norm"},
    "modern-bert": {"token_embd": "model.embeddings.tok_embeddings", "token_embd_norm": "model.embeddings.norm", "output_norm": "model.final_norm"},
    "gemma-embedding": {"token_embd": "embed_tokens", "output_norm": "norm"}})
OUTER["bert-rank"] = OUTER["bert"]
OUTER["mpnet"] = {part: "mpnet." + name for part, name in EMBEDDINGS.items()}
OUTER["deberta-v2"] = {**{part: "deberta." + name for part, name in EMBEDDINGS.items()}, "rel_embd": "deberta.encoder.rel_embeddings",
                       "rel_embd_norm": "deberta.encoder.LayerNorm"}
OUTER["jina-bert-v3"] = {part: "roberta." + name for part, name in {**EMBEDDINGS, "token_embd_norm": "emb_ln"}.items()}
OUTER["nomic-bert-moe"] = OUTER["nomic-bert"]
BLOCKS.update({"bert": "bert.encoder.layer.", "bert-rank": "bert.encoder.layer.", "roberta": "roberta.encoder.layer.", "mpnet": "mpnet.encoder.layer.",
               "deberta-v2": "deberta.encoder.layer.",
               "jina-bert-v3": "roberta.encoder.layers.", "nomic-bert-moe": "encoder.layers.", "nomic-bert": "encoder.layers.", "gemma-embedding": "layers."})
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
MIXTRAL = {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}


def halves(w, heads):
    """Rows of every head: pairs (2i, 2i+1) become (i, i + d/2)."""
    shape = w.shape
    return w.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def grouped(w, heads, kv):
    """Rows of queries, keys and values → of every key-value head its queries, its key and its value."""
    size = len(w) // (heads + 2 * kv)
    q, k, v = np.split(w.reshape(heads + 2 * kv, size, *w.shape[1:]), [heads, heads + kv])
    q = q.reshape(kv, heads // kv, *q.shape[1:])
    return np.concatenate([q, k[:, None], v[:, None]], 1).reshape(w.shape)


def mxfp4(w):
    """(codes [..., n/32, 16], exponents [..., n/32]) of numbers that a GGUF file in MXFP4 holds exactly."""
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    blocks = w.reshape(*w.shape[:-1], -1, 32)
    exponent = np.full(blocks.shape[:-1], 99)
    for e in range(9, -20, -1):
        exponent = np.where(np.isin(np.abs(np.ldexp(blocks, -e)), grid).all(-1), e, exponent)
    assert (exponent < 99).all()
    units = np.ldexp(blocks, -exponent[..., None])
    codes = np.searchsorted(grid, np.abs(units)).astype(np.uint8) | (np.signbit(units).astype(np.uint8) << 3)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent + 127).astype(np.uint8)


def own_keys(c, m, name):
    """Keys of families that share few with the others."""
    kv = c.get("num_key_value_heads")
    if isinstance(kv, list):
        c["num_key_value_heads"] = max(kv)
        c["layer_types"] = ["full_attention" if count else "conv" for count in kv]
    if name.startswith("lfm2"):
        c["norm_eps"], c["conv_L_cache"], c["block_auto_adjust_ff_dim"] = c.pop("rms_norm_eps"), m["shortconv.l_cache"], False
        c["num_dense_layers"] = m.get("leading_dense_block_count")
    if name == "glm4moe":
        c["n_routed_experts"], c["n_shared_experts"] = c.pop("num_experts"), m["expert_shared_count"]
        c["first_k_dense_replace"], c["routed_scaling_factor"] = m["leading_dense_block_count"], m["expert_weights_scale"]
    if name in ("qwen3next", "qwen3.5"):
        c["linear_conv_kernel_dim"], c["linear_key_head_dim"] = m["ssm.conv_kernel"], m["ssm.state_size"]
        c["linear_num_key_heads"], c["linear_num_value_heads"] = m["ssm.group_count"], m["ssm.time_step_rank"]
        c["linear_value_head_dim"] = m["ssm.inner_size"] // m["ssm.time_step_rank"]
        c["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(m["block_count"])]
    if name == "hunyuan-moe":
        layers = m["block_count"]
        c["moe_topk"], c["moe_intermediate_size"] = [c.pop("num_experts_per_tok")] * layers, [c["intermediate_size"]] * layers
    if name.startswith("granite"):
        c["num_local_experts"] = c.pop("num_experts", 0)
    if name == "granitehybrid":
        c["layer_types"] = [{"conv": "mamba", "full_attention": "attention"}[t] for t in c["layer_types"]]
        c["shared_intermediate_size"] = c.pop("shared_expert_intermediate_size")
        c["mamba_n_heads"], c["mamba_d_head"] = m["ssm.time_step_rank"], m["ssm.inner_size"] // m["ssm.time_step_rank"]
        c["mamba_n_groups"], c["mamba_d_state"], c["mamba_d_conv"] = m["ssm.group_count"], m["ssm.state_size"], m["ssm.conv_kernel"]
        c["position_embedding_type"] = "rope" if m["rope.scaling.finetuned"] else None
    if name == "exaone4":
        c["sliding_window"] = c.get("sliding_window")
    if name == "mistral3":
        del c["partial_rotary_factor"]
        if "rope_scaling" in c:
            c["rope_parameters"] = {**c.pop("rope_scaling"), "rope_theta": c.pop("rope_theta"), "mscale": 1.0, "mscale_all_dim": 1.0,
                                    "llama_4_scaling_beta": m["attention.temperature_scale"]}
    if name == "gemma3n":
        c["hidden_size_per_layer_input"], c["num_kv_shared_layers"] = m["embedding_length_per_layer_input"], m["attention.shared_kv_layers"]
        c["intermediate_size"] = [c["intermediate_size"]] * m["block_count"]
        c["activation_sparsity_pattern"] = [0.95 if s > 0 else 0.0 for s in m["activation_sparsity_scale"]]
        c["vocab_size_per_layer_input"] = c["vocab_size"] = m["vocab_size"]
    if name in ENCODERS:
        for key in ("tie_word_embeddings", "partial_rotary_factor"):
            c.pop(key)
        c["hidden_act"] = "silu" if name in ("nomic-bert", "eurobert") else "gelu_new"  # what a GGUF file of these has
    if name in ("gptneox", "falcon"):
        c["hidden_act"] = "gelu_new"  # likewise
    if name == "bert-rank":
        c["id2label"], c["hidden_act"] = {"0": "LABEL_0"}, "gelu"
    if name == "deberta-v2":  # as microsoft/deberta-v3-base has it
        c.update(relative_attention=True, position_biased_input=False, share_att_key=True, norm_rel_ebd="layer_norm", pos_att_type="p2c|c2p",
                 position_buckets=m["attention.relative_span"], max_relative_positions=m["attention.relative_limit"])
    if name == "mpnet":
        c["max_position_embeddings"], c["pad_token_id"], c["relative_attention_num_buckets"] = c["max_position_embeddings"] + 2, 1, 32
    if name == "nomic-bert-moe":  # as Nomic's own file names them
        for ours, theirs in (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
                             ("intermediate_size", "n_inner"), ("num_experts_per_tok", "moe_top_k"), ("rope_theta", "rotary_emb_base"),
                             ("layer_norm_eps", "layer_norm_epsilon"), ("hidden_act", "activation_function")):
            c[theirs] = c.pop(ours)
        c["moe_every_n_layers"], c["moe_normalize_expert_weights"] = m["moe_every_n_layers"], False
    if name == "roberta":
        c["max_position_embeddings"], c["pad_token_id"] = c["max_position_embeddings"] + 4, 3
    if name == "nomic-bert":
        c["rotary_emb_base"], c["activation_function"] = c.pop("rope_theta"), "swiglu"
        c.pop("hidden_act")
    if name == "modern-bert":
        c["local_attention"], c["norm_eps"] = c.pop("sliding_window"), c.pop("layer_norm_eps")
        c["hidden_activation"] = c.pop("hidden_act")
        c["rope_parameters"] = {"full_attention": {"rope_type": "default", "rope_theta": c.pop("rope_theta")},
                                "sliding_attention": {"rope_type": "default", "rope_theta": m["rope.freq_base_swa"]}}
    if name == "gemma-embedding":
        c["use_bidirectional_attention"] = True
    if name == "gpt2":
        for ours, theirs in (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
                             ("max_position_embeddings", "n_positions"), ("intermediate_size", "n_inner")):
            c[theirs] = c.pop(ours)
        c["layer_norm_epsilon"] = c.pop("layer_norm_eps")
        c["activation_function"] = "gelu_new"
    if name == "gptneox":
        c["rotary_pct"], c["rotary_emb_base"] = c.pop("partial_rotary_factor"), c.pop("rope_theta")
        c["use_parallel_residual"] = m["use_parallel_residual"]
    if name == "falcon":
        c["ffn_hidden_size"], c["num_kv_heads"] = c.pop("intermediate_size"), c.pop("num_key_value_heads")
        c["multi_query"] = c["new_decoder_architecture"] = c["num_kv_heads"] != 1
    if name == "gpt-oss":
        c["num_local_experts"] = c.pop("num_experts")
        c["intermediate_size"] = c.pop("moe_intermediate_size")
        if "rope_scaling" in c:
            c["rope_scaling"]["truncate"] = True
    if name.startswith("deepseek"):
        c["n_routed_experts"] = c.pop("num_experts")
        c["qk_rope_head_dim"] = m["rope.dimension_count"]
        c["qk_nope_head_dim"] = m["attention.key_length"] - c["qk_rope_head_dim"]
        c["v_head_dim"], c["kv_lora_rank"] = m["attention.value_length"], m["attention.kv_lora_rank"]
        c["q_lora_rank"] = m.get("attention.q_lora_rank")
        del c["partial_rotary_factor"], c["head_dim"]
        c["first_k_dense_replace"], c["n_shared_experts"] = m["leading_dense_block_count"], m["expert_shared_count"]
        c["routed_scaling_factor"] = m["expert_weights_scale"]
        c["norm_topk_prob"] = bool(m.get("expert_weights_norm", False))
        c["n_group"], c["topk_group"] = m.get("expert_group_count", 1), m.get("expert_group_used_count", 1)
        if name == "deepseek2":
            c["topk_method"] = "greedy"
        if "rope_scaling" in c and "rope.scaling.yarn_log_multiplier" in m:
            c["rope_scaling"]["mscale"] = c["rope_scaling"]["mscale_all_dim"] = 10 * m["rope.scaling.yarn_log_multiplier"]


def config_of(g, arch, name):
    m = {k[len(arch) + 1:]: v for k, v in g.metadata.items() if k.startswith(arch + ".")}
    heads, width = m["attention.head_count"], m["embedding_length"]
    c = {"architectures": [CLASSES[name][0]], "hidden_size": width, "num_hidden_layers": m["block_count"],
         "intermediate_size": m["feed_forward_length"], "num_attention_heads": heads, "num_key_value_heads": m["attention.head_count_kv"],
         "head_dim": m.get("attention.key_length", width // heads), "max_position_embeddings": m["context_length"],
         "tie_word_embeddings": "output.weight" not in g.tensors, "rope_theta": m.get("rope.freq_base", 10000.0)}
    for ours, theirs in (("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
                         ("attention.sliding_window", "sliding_window"), ("attn_logit_softcapping", "attn_logit_softcapping"),
                         ("final_logit_softcapping", "final_logit_softcapping"), ("expert_count", "num_experts"),
                         ("expert_used_count", "num_experts_per_tok"), ("expert_feed_forward_length", "moe_intermediate_size"),
                         ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"), ("embedding_scale", "embedding_multiplier"),
                         ("residual_scale", "residual_multiplier"), ("attention.scale", "attention_multiplier"),
                         ("attention.clamp_kqv", "clip_qkv")):
        if ours in m:
            c[theirs] = m[ours]
    if "attention.layer_norm_epsilon" in m:
        c[{"starcoder2": "norm_epsilon", "nemotron": "norm_eps"}.get(name, "layer_norm_eps")] = m["attention.layer_norm_epsilon"]
    if "logit_scale" in m:
        c["logits_scaling" if name.startswith("granite") else "logit_scale"] = m["logit_scale"]
    if name == "mixtral":
        c["num_local_experts"] = c.pop("num_experts")
    if name in ("qwen3moe", "qwen3next", "lfm2moe", "glm4moe"):  # Qwen 3.5 says nothing of it
        c["norm_topk_prob"] = True
    if name.startswith("gemma"):
        c["query_pre_attn_scalar"] = c["head_dim"]
        c["hidden_act"] = "gelu_pytorch_tanh"
    if name == "phi3":
        c["original_max_position_embeddings"] = c["max_position_embeddings"]
    rotated = m.get("rope.dimension_count", c["head_dim"])
    c["partial_rotary_factor"] = rotated / c["head_dim"]
    if m.get("rope.scaling.type") == "linear":
        c["rope_scaling"] = {"rope_type": "linear", "factor": m["rope.scaling.factor"]}
    if m.get("rope.scaling.type") == "yarn":
        c["rope_scaling"] = {"rope_type": "yarn", "factor": m["rope.scaling.factor"],
                             "original_max_position_embeddings": m["rope.scaling.original_context_length"]}
    own_keys(c, m, name)
    if name in ENCODERS:
        c["vocab_size"] = len(g.get("token_embd.weight"))
        if "token_types.weight" in g.tensors:
            c["type_vocab_size"] = len(g.get("token_types.weight"))
    if name in ("mistral3", "gemma3n"):  # with pictures
        tie = c.pop("tie_word_embeddings")
        c = {"architectures": c.pop("architectures"), "text_config": {**c, "tie_word_embeddings": tie}}
    return c


def tensors_of(g, arch, name, config, packed=False):
    turns = CLASSES[name][1]
    names = {**NAMES, **OWN.get(name, {})}
    for key, t in g.tensors.items():
        w = g.get(key)
        words = key.split(".")
        is_less = name in ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron", "qwen3next", "qwen3.5")
        if words[-1] == "weight" and words[-2].endswith("norm") and words[-2] != "ssm_norm" and is_less:
            w = w - np.float32(1)
        if words[0].startswith("rope_f"):
            continue  # config.json says it
        if words[0] in ("altup_proj", "altup_unembd_proj"):
            stem = {"altup_proj": "model.altup_projections", "altup_unembd_proj": "model.altup_unembed_projections"}[words[0]]
            for i in range(len(w)):
                yield f"{stem}.{i}.weight", w[i]
            continue
        if words[0] != "blk":
            if words[0] == "cls":
                yield ("classifier." if words[1] == "output" else "bert.pooler.dense.") + words[-1], w
                continue
            if name in ("roberta", "mpnet") and words[0] == "position_embd":  # no text has the first ones
                w = np.concatenate([np.full((config["pad_token_id"] + 1, w.shape[1]), 7, np.float32), w])
            outer = OUTER.get(name, {}).get(words[0]) or {
                "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[words[0]]
            yield f"{outer}.{words[1]}", w
            continue
        part, kind, block = words[2], (words + ["weight"])[3], f"{BLOCKS.get(name, 'model.layers.')}{words[1]}."
        if part == "attn_rel_b":
            yield "mpnet.encoder.relative_attention_bias.weight", w
            continue
        if part == "bellmetal":
            yield block + "mlp.experts.bias", w
            continue
        if name == "nomic-bert-moe" and part in EXPERTS:  # one below the other, the second with its rows
            both = w.swapaxes(1, 2) if part == "ffn_down_exps" else w
            yield block + "mlp.experts.mlp.w" + ("2" if part == "ffn_down_exps" else "1"), both.reshape(-1, both.shape[2])
            continue
        if part == "exp_probs_b":
            yield block + ("feed_forward.expert_bias" if name == "lfm2moe" else "mlp.gate.e_score_correction_bias"), w
            continue
        if part == "altup_correct_scale":
            yield block + "altup.correct_output_scale", w
            continue
        if part == "shortconv":
            yield f"{block}conv.{kind}.weight", w[:, None] if kind == "conv" else w
            continue
        if name == "qwen3.5" and part == "ssm_ba":  # of every head of keys those of its heads of values
            both = w.reshape(config["linear_num_key_heads"], 2, -1, w.shape[1])
            for i, letter in enumerate("ba"):
                yield f"{block}linear_attn.in_proj_{letter}.weight", both[:, i].reshape(-1, w.shape[1])
            continue
        if name == "qwen3.5" and part in ("attn_qkv", "attn_gate"):
            yield f"{block}linear_attn.in_proj_{'z' if part == 'attn_gate' else 'qkv'}.weight", w
            continue
        if name == "qwen3.5" and part in EXPERTS:
            if part == "ffn_gate_exps":
                yield block + "mlp.experts.gate_up_proj", np.concatenate([w, g.get(key.replace("ffn_gate_", "ffn_up_"))], 1)
            elif part == "ffn_down_exps":
                yield block + "mlp.experts.down_proj", w
            continue
        if part in STATES:
            stem = block + ("mamba." if name == "granitehybrid" else "linear_attn.") + STATES[part]
            w = np.log(-w).reshape(-1) if part == "ssm_a" else w[:, None] if part == "ssm_conv1d" and kind == "weight" else w
            yield stem if part in ("ssm_a", "ssm_d", "ssm_dt") else f"{stem}.{kind}", w.reshape(-1) if part in ("ssm_norm", "ssm_d") else w
            continue
        if name == "qwen3next" and part in ("attn_qkv", "attn_gate"):
            if part == "attn_qkv":  # of every head of keys its query, its key, its values and their gates
                groups, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
                q, k, v = np.split(w, [groups * keys, 2 * groups * keys])
                parts = [x.reshape(groups, -1, x.shape[1]) for x in (q, k, v, g.get(key.replace("attn_qkv", "attn_gate")))]
                yield block + "linear_attn.in_proj_qkvz.weight", np.concatenate(parts, 1).reshape(-1, w.shape[1])
            continue
        if name.startswith("granite") and part in ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_exps"):
            if part == "ffn_down_exps":
                yield block + "block_sparse_moe.output_linear.weight", w
            elif part.startswith("ffn_gate"):
                stem = "block_sparse_moe" if part.endswith("_exps") else "shared_mlp"
                yield f"{block}{stem}.input_linear.weight", np.concatenate([w, g.get(key.replace("ffn_gate_", "ffn_up_"))], -2)
            continue
        if part == "attn_sinks":
            yield block + "self_attn.sinks", w
            continue
        if name == "gpt-oss" and part in EXPERTS:
            if part == "ffn_up_exps":
                continue  # with the gates
            both = w if part == "ffn_down_exps" else np.stack([w, g.get(key.replace("ffn_gate_", "ffn_up_"))], 2).reshape(
                len(w), 2 * w.shape[1], *w.shape[2:])
            stem = block + "mlp.experts." + ("down_proj" if part == "ffn_down_exps" else "gate_up_proj")
            if kind == "bias":
                yield stem + "_bias", both
            elif packed:
                yield from zip((stem + "_blocks", stem + "_scales"), mxfp4(both))
            else:
                yield stem, both.swapaxes(1, 2)
            continue
        if name == "gpt2" and kind == "weight" and w.ndim == 2:
            w = w.T
        if part == "attn_qkv" and name in ("gptneox", "falcon"):
            heads = config["num_attention_heads"]
            w = grouped(w, heads, config.get("num_kv_heads", heads))
        if turns and part in ("attn_q", "attn_k"):
            w = halves(w, config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"])
        if part in EXPERTS:
            for e in range(len(w)):
                if name == "lfm2moe":
                    yield f"{block}feed_forward.experts.{e}.{MIXTRAL[part]}.{kind}", w[e]
                    continue
                yield (f"{block}block_sparse_moe.experts.{e}.{MIXTRAL[part]}.{kind}" if name == "mixtral"
                       else f"{block}mlp.experts.{e}.{EXPERTS[part]}.{kind}"), w[e]
        elif part == "ffn_gate_inp_shexp":
            yield block + names[part] + "." + kind, w.reshape(1, -1)
        else:
            yield block + names[part] + "." + kind, w


def save(path, tensors, dtype):
    header, data, at = {}, [], 0
    for name, w in tensors:
        if w.dtype == np.uint8:
            raw = np.ascontiguousarray(w).tobytes()
            header[name] = {"dtype": "U8", "shape": list(w.shape), "data_offsets": [at, at + len(raw)]}
            at += len(raw)
            data.append(raw)
            continue
        w = np.ascontiguousarray(w, "<f4")
        raw = (w.view("<u4") >> 16).astype("<u2").tobytes() if dtype == "BF16" else w.astype("<f2" if dtype == "F16" else "<f4").tobytes()
        header[name] = {"dtype": dtype, "shape": list(w.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def convert(source, out, name=None, dtype="F32", shards=1, extra=None, packed=False):
    g = gg.GGUF(source)
    arch = g.metadata["general.architecture"]
    name = name or arch
    os.makedirs(out, exist_ok=True)
    config = {**config_of(g, arch, name), **({"quantization_config": {"quant_method": "mxfp4"}} if packed else {}), **(extra or {})}
    with open(f"{out}/config.json", "w") as f:
        json.dump(config, f)
    tensors = list(tensors_of(g, arch, name, config.get("text_config", config), packed))
    if "text_config" in config:
        tensors = [("model.language_model." + key.removeprefix("model.") if key.startswith("model.") else key, w) for key, w in tensors]
        tensors.append(("model.vision_tower.patch.weight", np.zeros((2, 2), np.float32)))
    if shards == 1:
        save(f"{out}/model.safetensors", tensors, dtype)
        return
    weight_map = {}
    for s in range(shards):
        file = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        own = tensors[s::shards]
        save(f"{out}/{file}", own, dtype)
        weight_map.update({key: file for key, _ in own})
    with open(f"{out}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)


def on_grid(path):
    """Experts become numbers that MXFP4 holds, still in float32."""
    import random_transformer
    g = gg.GGUF(path)
    grid = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    tensors = {name: g.get(name) for name in g.tensors}
    for name, w in tensors.items():
        if name.endswith("_exps.weight"):
            scale = np.ldexp(np.float32(1), -4 - np.arange(w.shape[1]) % 3)[:, None]
            tensors[name] = grid[np.abs((w / scale)[..., None] - grid).argmin(-1)] * scale
    random_transformer.write(path, g.metadata, tensors)


def with_llama3(path):
    """Frequencies of Llama 3, as transformers' _compute_llama3_parameters() has them; the config that asks for them."""
    import random_transformer
    g = gg.GGUF(path)
    tensors = {name: g.get(name) for name in g.tensors}
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    count = len(tensors["rope_freqs.weight"])
    plain = g.metadata.get("llama.rope.freq_base", 10000.0) ** -(np.arange(count) / count)
    length = 2 * np.pi / plain
    smooth = (512 / length - 1) / 3
    between = (1 - smooth) * plain / 8 + smooth * plain
    new = np.where(length > 512, plain / 8, np.where(length < 128, plain, between))
    assert len({*(length > 512), *(length < 128)}) == 2 and ((length <= 512) & (length >= 128)).any(), length
    tensors["rope_freqs.weight"] = (plain / new).astype(np.float32)
    random_transformer.write(path, g.metadata, tensors)
    return {"rope_scaling": scaling}


def with_longrope(path):
    """Factors of LongRoPE as lists, and the length of rotations by transformers' formula."""
    import random_transformer
    g = gg.GGUF(path)
    tensors = {name: g.get(name) for name in g.tensors}
    whole, first = g.metadata["phi3.context_length"], g.metadata["phi3.rope.scaling.original_context_length"]
    g.metadata["phi3.rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(whole / first) / np.log(first)))
    random_transformer.write(path, g.metadata, tensors)
    return {"original_max_position_embeddings": first, "rope_scaling": {
        "type": "longrope", **{f"{kind}_factor": tensors[f"rope_factors_{kind}.weight"].tolist() for kind in ("long", "short")}}}


def with_alpha(path):
    """Hunyuan's base of rotations for long texts: alpha^(d / (d - 2)) times the one that is told."""
    import random_transformer
    g = gg.GGUF(path)
    length = g.metadata["hunyuan-dense.embedding_length"] // g.metadata["hunyuan-dense.attention.head_count"]
    g.metadata["hunyuan-dense.rope.freq_base"] = 10000.0 * 50.0 ** (length / (length - 2))
    random_transformer.write(path, g.metadata, {name: g.get(name) for name in g.tensors})
    return {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}}


def random_models(folder, models):
    """Random weights of every model of `models`: names of CLASSES, and options of random_transformer.py."""
    import random_transformer
    for number, options in enumerate(models):
        name, *rest = options.split()
        path = f"{folder}/{number}.gguf"
        packed = name == "gpt-oss-mxfp4"
        change = {"llama-llama3": with_llama3, "phi3-longrope": with_longrope, "hunyuan-dense-alpha": with_alpha,
                  "exaone4-letters": lambda path: {"sliding_window_pattern": "LLG"},
                  "lfm2-indices": lambda path: {"layer_types": None, "full_attn_idxs": [2, 4]}}.get(name)
        more = ["--tensor", "distances"] if name == "mpnet" else ["--tensor", "sumbias"] if name == "nomic-bert-moe" else []
        for suffix in ("-mxfp4", "-llama3", "-longrope", "-alpha", "-letters", "-indices"):
            name = name.removesuffix(suffix)
        arch = {"mixtral": "llama", "deepseek3": "deepseek2", "roberta": "bert", "bert-rank": "bert", "mpnet": "bert", "qwen3.5": "qwen3next"}.get(name, name)
        more += ["--tensor", "moe"] if name == "mixtral" else []
        sys.argv = ["random_transformer.py", path, "--arch", arch, *more, *rest]
        random_transformer.main()
        if packed:
            on_grid(path)
        extra = change(path) if change else None
        convert(path, f"{folder}/{number}", name, shards=1 + number % 2, extra=extra, packed=packed)


def main():
    if sys.argv[1:2] == ["--random"]:
        return random_models(sys.argv[2], sys.argv[3:])
    ap = argparse.ArgumentParser()
    ap.add_argument("gguf")
    ap.add_argument("out")
    ap.add_argument("--name", help="of CLASSES, where it is not the architecture's: mixtral")
    ap.add_argument("--dtype", default="F32", choices=["F32", "F16", "BF16"])
    ap.add_argument("--shards", type=int, default=1)
    ap.add_argument("--config", default="{}", help="JSON that is put into config.json")
    a = ap.parse_args()
    convert(a.gguf, a.out, a.name, a.dtype, a.shards, json.loads(a.config))


if __name__ == "__main__":
    main()
