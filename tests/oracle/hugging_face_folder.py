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
    "olmo": ("OlmoForCausalLM", True), "cohere2": ("Cohere2ForCausalLM", False),
}
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
}
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
MIXTRAL = {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}


def halves(w, heads):
    """Rows of every head: pairs (2i, 2i+1) become (i, i + d/2)."""
    shape = w.shape
    return w.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


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
        c["logits_scaling" if name == "granite" else "logit_scale"] = m["logit_scale"]
    if name == "mixtral":
        c["num_local_experts"] = c.pop("num_experts")
    if name == "qwen3moe":
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
    return c


def tensors_of(g, arch, name, config):
    turns = CLASSES[name][1]
    names = {**NAMES, **OWN.get(name, {})}
    for key, t in g.tensors.items():
        w = g.get(key)
        words = key.split(".")
        if words[-1] == "weight" and words[-2].endswith("norm") and (name.startswith("gemma") or name == "nemotron"):
            w = w - np.float32(1)
        if words[0] != "blk":
            outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[words[0]]
            yield f"{outer}.{words[1]}", w
            continue
        part, kind, block = words[2], words[3], f"model.layers.{words[1]}."
        if turns and part in ("attn_q", "attn_k"):
            w = halves(w, config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"])
        if part in EXPERTS:
            for e in range(len(w)):
                yield (f"{block}block_sparse_moe.experts.{e}.{MIXTRAL[part]}.{kind}" if name == "mixtral"
                       else f"{block}mlp.experts.{e}.{EXPERTS[part]}.{kind}"), w[e]
        elif part == "ffn_gate_inp_shexp":
            yield block + names[part] + "." + kind, w.reshape(1, -1)
        else:
            yield block + names[part] + "." + kind, w


def save(path, tensors, dtype):
    header, data, at = {}, [], 0
    for name, w in tensors:
        w = np.ascontiguousarray(w, "<f4")
        raw = (w.view("<u4") >> 16).astype("<u2").tobytes() if dtype == "BF16" else w.astype("<f2" if dtype == "F16" else "<f4").tobytes()
        header[name] = {"dtype": dtype, "shape": list(w.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def convert(source, out, name=None, dtype="F32", shards=1, extra=None):
    g = gg.GGUF(source)
    arch = g.metadata["general.architecture"]
    name = name or arch
    os.makedirs(out, exist_ok=True)
    config = {**config_of(g, arch, name), **(extra or {})}
    with open(f"{out}/config.json", "w") as f:
        json.dump(config, f)
    tensors = list(tensors_of(g, arch, name, config))
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


def random_models(folder, models):
    """Random weights of every model of `models`: names of CLASSES, and options of random_transformer.py."""
    import random_transformer
    for number, options in enumerate(models):
        name, *rest = options.split()
        path = f"{folder}/{number}.gguf"
        more = ["--tensor", "moe"] if name == "mixtral" else []
        sys.argv = ["random_transformer.py", path, "--arch", "llama" if name == "mixtral" else name, *more, *rest]
        random_transformer.main()
        convert(path, f"{folder}/{number}", name, shards=1 + number % 2)


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
