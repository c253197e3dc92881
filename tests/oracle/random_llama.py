#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write a GGUF model with random weights and the given hyper-parameters, for the tests.

    random_llama.py OUT.gguf [--arch qwen3] [--dim 48] [--heads 6] … [--seed 1]

It has no vocabulary of texts: tokens are numbers.
"""

import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_numpy as gg  # noqa: E402


def main():
    ap = argparse.ArgumentParser(description="Random GGUF model.")
    ap.add_argument("out")
    ap.add_argument("--arch", default="llama", choices=("llama", "qwen2", "qwen3", "gemma"))
    for name, value in (("dim", 48), ("heads", 6), ("kv-heads", 2), ("head-dim", 0), ("layers", 2), ("ffn", 80),
                        ("vocab", 61), ("context", 64), ("seed", 1)):
        ap.add_argument("--" + name, type=int, default=value)
    ap.add_argument("--base", type=float, default=10000.0)
    ap.add_argument("--linear-scale", type=float, default=0.0)
    ap.add_argument("--rope-factors", action="store_true")
    ap.add_argument("--untied", action="store_true")
    ap.add_argument("--biases", action="store_true", help="wherever a matrix can have one")
    a = ap.parse_args()
    rng = np.random.default_rng(a.seed)
    head = a.head_dim or a.dim // a.heads
    p = a.arch + "."
    metadata = {
        "general.architecture": a.arch, p + "context_length": a.context, p + "embedding_length": a.dim,
        p + "block_count": a.layers, p + "feed_forward_length": a.ffn, p + "attention.head_count": a.heads,
        p + "attention.head_count_kv": a.kv_heads, p + "attention.key_length": head, p + "attention.value_length": head,
        p + "attention.layer_norm_rms_epsilon": 1e-6, p + "rope.freq_base": a.base, p + "rope.dimension_count": head,
    }
    if a.linear_scale:
        metadata[p + "rope.scaling.type"] = "linear"
        metadata[p + "rope.scaling.factor"] = a.linear_scale

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / columns ** 0.5).astype(np.float32)

    def gain(n):
        return (1 + 0.3 * rng.standard_normal(n)).astype(np.float32)

    t = {"token_embd.weight": matrix(a.vocab, a.dim), "output_norm.weight": gain(a.dim)}
    if a.untied:
        t["output.weight"] = matrix(a.vocab, a.dim)
    if a.rope_factors:
        t["rope_freqs.weight"] = rng.uniform(1, 8, head // 2).astype(np.float32)
    for n in range(a.layers):
        b = f"blk.{n}."
        t[b + "attn_norm.weight"] = gain(a.dim)
        t[b + "attn_q.weight"] = matrix(a.heads * head, a.dim)
        t[b + "attn_k.weight"] = matrix(a.kv_heads * head, a.dim)
        t[b + "attn_v.weight"] = matrix(a.kv_heads * head, a.dim)
        t[b + "attn_output.weight"] = matrix(a.dim, a.heads * head)
        if a.arch == "qwen2":
            for name, heads in (("attn_q", a.heads), ("attn_k", a.kv_heads), ("attn_v", a.kv_heads)):
                t[b + name + ".bias"] = (0.2 * rng.standard_normal(heads * head)).astype(np.float32)
        if a.arch == "qwen3":
            t[b + "attn_q_norm.weight"] = gain(head)
            t[b + "attn_k_norm.weight"] = gain(head)
        t[b + "ffn_norm.weight"] = gain(a.dim)
        t[b + "ffn_gate.weight"] = matrix(a.ffn, a.dim)
        t[b + "ffn_up.weight"] = matrix(a.ffn, a.dim)
        t[b + "ffn_down.weight"] = matrix(a.dim, a.ffn)
    if a.biases:
        biases(t, rng)
    write(a.out, metadata, t)


def biases(t, rng):
    """A bias for every matrix but the embeddings."""
    for name in [n for n in t if n.endswith(".weight") and t[n].ndim == 2 and n != "token_embd.weight"]:
        t[name[:-len("weight")] + "bias"] = (0.2 * rng.standard_normal(t[name].shape[0])).astype(np.float32)


def write(path, metadata, tensors):
    kinds = {}
    for key, value in metadata.items():
        if isinstance(value, list):
            kinds[key] = (9, 7 if isinstance(value[0], bool) else 6 if isinstance(value[0], float) else 8 if isinstance(value[0], str)
                          else 5 if key.endswith("token_type") else 4)  # llama.cpp wants these with a sign
            continue
        kinds[key] = (7, None) if isinstance(value, bool) else (8, None) if isinstance(value, str) else (6, None) if isinstance(value, float) else (4, None)
    listed = [(name, list(reversed(x.shape)), "F32", x.tobytes()) for name, x in tensors.items()]
    gg.write(path, metadata, kinds, listed)


if __name__ == "__main__":
    main()
