#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The forward pass of a llama-architecture GGUF model in PyTorch: the oracle.

    llama_reference.py FILE.gguf --tokens 1,2,3 --out logits.f32 [--dtype float64]
    llama_reference.py FILE.gguf --tokens 1,2,3 --greedy 32

--out writes the logits of every position, [tokens, vocabulary], as little-endian
float32.  --greedy prints the next N tokens, each the most likely one (the lowest
number among equals), as a JSON list; an end-of-text token does not stop it.

The weights are dequantised by gguf_numpy and everything is then computed in the
chosen type, without a cache of keys and values and without any other shortcut, so
that the result is easy to trust and not fast.
"""

import argparse
import json
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_numpy  # noqa: E402


class Llama:
    def __init__(self, path, dtype=torch.float32):
        g = gguf_numpy.GGUF(path)
        m = g.metadata
        architecture = m["general.architecture"]
        if architecture != "llama":
            raise ValueError(f"{path}: architecture {architecture}, not llama")
        if m.get("llama.rope.scaling.type", "none") != "none":
            raise ValueError(f"{path}: scaled rotary positions are not supported")
        self.layers = m["llama.block_count"]
        self.heads = m["llama.attention.head_count"]
        self.kv_heads = m.get("llama.attention.head_count_kv", self.heads)
        self.eps = m["llama.attention.layer_norm_rms_epsilon"]
        dim = m["llama.embedding_length"]
        self.head_dim = m.get("llama.attention.key_length", dim // self.heads)
        self.rotated = m.get("llama.rope.dimension_count", self.head_dim)
        self.context = m["llama.context_length"]
        self.dtype = dtype
        self.w = {name: torch.from_numpy(g.get(name)).to(dtype) for name in g.tensors}

        i = torch.arange(0, self.rotated, 2, dtype=torch.float64)
        self.frequency = m.get("llama.rope.freq_base", 10000.0) ** (-i / self.rotated)
        if "rope_freqs.weight" in self.w:
            self.frequency = self.frequency / self.w["rope_freqs.weight"].double()

    def norm(self, x, name):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.w[name]

    def rotate(self, x):
        # x: [time, heads, head_dim].  Pair i is (x[2i], x[2i + 1]).
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * self.frequency
        cos, sin = angle.cos().to(self.dtype)[:, None, :], angle.sin().to(self.dtype)[:, None, :]
        out = x.clone()
        even, odd = x[..., 0:self.rotated:2], x[..., 1:self.rotated:2]
        out[..., 0:self.rotated:2] = even * cos - odd * sin
        out[..., 1:self.rotated:2] = even * sin + odd * cos
        return out

    def attention(self, h, p):
        t = h.shape[0]
        q = self.rotate((h @ self.w[p + "attn_q.weight"].T).view(t, self.heads, self.head_dim))
        k = self.rotate((h @ self.w[p + "attn_k.weight"].T).view(t, self.kv_heads, self.head_dim))
        v = (h @ self.w[p + "attn_v.weight"].T).view(t, self.kv_heads, self.head_dim)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        out = []
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, shared].T / self.head_dim ** 0.5
            weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
            out.append(weights @ v[:, shared])
        return torch.cat(out, -1) @ self.w[p + "attn_output.weight"].T

    def feed_forward(self, h, p):
        gate = h @ self.w[p + "ffn_gate.weight"].T
        up = h @ self.w[p + "ffn_up.weight"].T
        return (gate * torch.sigmoid(gate) * up) @ self.w[p + "ffn_down.weight"].T

    @torch.no_grad()
    def logits(self, tokens):
        x = self.w["token_embd.weight"][torch.tensor(tokens)]
        for n in range(self.layers):
            p = f"blk.{n}."
            x = x + self.attention(self.norm(x, p + "attn_norm.weight"), p)
            x = x + self.feed_forward(self.norm(x, p + "ffn_norm.weight"), p)
        x = self.norm(x, "output_norm.weight")
        return x @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def greedy(self, tokens, count):
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[-count:] if count else []


def main():
    ap = argparse.ArgumentParser(description="Reference forward pass of a llama GGUF model.")
    ap.add_argument("file")
    ap.add_argument("--tokens", required=True, help="token numbers, separated by commas")
    ap.add_argument("--out", metavar="LOGITS.f32")
    ap.add_argument("--greedy", type=int, metavar="N")
    ap.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    if args.out is None and args.greedy is None:
        ap.error("give --out or --greedy")
    torch.set_num_threads(args.threads)
    tokens = [int(t) for t in args.tokens.split(",")]
    model = Llama(args.file, getattr(torch, args.dtype))
    vocabulary = model.w["token_embd.weight"].shape[0]
    if not all(0 <= t < vocabulary for t in tokens):
        ap.error(f"token numbers must be from 0 to {vocabulary - 1}")
    if len(tokens) + (args.greedy or 0) > model.context:
        print(f"note: longer than the model's context of {model.context}", file=sys.stderr)
    if args.out:
        model.logits(tokens).to(torch.float32).numpy().astype("<f4").tofile(args.out)
    if args.greedy is not None:
        print(json.dumps(model.greedy(tokens, args.greedy)))


if __name__ == "__main__":
    main()
