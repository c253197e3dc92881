#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Logits behind a long text, in float64 by NumPy: for models of random_llama.py (llama).

    long_context_reference.py FILE.gguf --count 8192 --last 3 --out logits.f64

Token i is (31·i² + 17·i + 5) mod the vocabulary. Writes the logits of the last positions, [last, vocabulary]. A block of queries at a
time, so that no matrix of all scores is ever whole.
"""

import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_numpy as gg  # noqa: E402


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("file")
    ap.add_argument("--count", type=int, required=True)
    ap.add_argument("--last", type=int, default=3)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    file = gg.GGUF(a.file)
    meta = lambda key: file.metadata["llama." + key]  # noqa: E731
    get = lambda name: file.get(name + ".weight").astype(np.float64)  # noqa: E731
    heads, kv_heads, width = meta("attention.head_count"), meta("attention.head_count_kv"), meta("attention.key_length")
    layers, epsilon, base = meta("block_count"), meta("attention.layer_norm_rms_epsilon"), meta("rope.freq_base")
    embedding = get("token_embd")
    number = np.arange(a.count, dtype=np.int64)
    x = embedding[(31 * number * number + 17 * number + 5) % len(embedding)]

    angles = number[:, None] * base ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(v, gain):
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + epsilon) * gain

    def rotated(v, first):
        v = v.reshape(len(v), -1, width)
        c, s = cos[first:first + len(v)], sin[first:first + len(v)]
        out = np.empty_like(v)
        out[..., 0::2] = v[..., 0::2] * c - v[..., 1::2] * s
        out[..., 1::2] = v[..., 1::2] * c + v[..., 0::2] * s
        return out

    for n in range(layers):
        b = f"blk.{n}."
        # Only the last positions of the last block are asked for.
        first = a.count - a.last if n + 1 == layers else 0
        h = norm(x, get(b + "attn_norm"))
        keys = rotated(h @ get(b + "attn_k").T, 0)
        values = (h @ get(b + "attn_v").T).reshape(a.count, kv_heads, width)
        queries = rotated(h[first:] @ get(b + "attn_q").T, first)
        joined = np.empty((a.count - first, heads, width))
        step = 256
        for at in range(0, a.count - first, step):
            end = min(at + step, a.count - first)
            seen = first + end
            hidden = number[:seen] > (number[first + at:first + end])[:, None]
            for head in range(heads):
                kv = head // (heads // kv_heads)
                scores = queries[at:end, head] @ keys[:seen, kv].T / np.sqrt(width)
                scores[hidden] = -np.inf
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                joined[at:end, head] = scores @ values[:seen, kv] / scores.sum(-1, keepdims=True)
        x = x[first:] + joined.reshape(len(joined), -1) @ get(b + "attn_output").T
        h = norm(x, get(b + "ffn_norm"))
        gate = h @ get(b + "ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ get(b + "ffn_up").T)) @ get(b + "ffn_down").T
    (norm(x, get("output_norm")) @ embedding.T).tofile(a.out)


if __name__ == "__main__":
    main()
