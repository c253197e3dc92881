#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The forward pass of a GGUF model in PyTorch: the oracle. Architectures llama, qwen2, qwen3, gemma.

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
        a = m["general.architecture"]
        if a not in ("llama", "qwen2", "qwen3", "gemma"):
            raise ValueError(f"{path}: architecture {a} is not known here")
        # llama rotates neighbours, the others rotate the halves of a head against each other.
        self.rotates_halves = a != "llama"
        self.is_gemma = a == "gemma"
        self.layers = m[a + ".block_count"]
        self.heads = m[a + ".attention.head_count"]
        self.kv_heads = m.get(a + ".attention.head_count_kv", self.heads)
        self.eps = m[a + ".attention.layer_norm_rms_epsilon"]
        self.dim = m[a + ".embedding_length"]
        self.head_dim = m.get(a + ".attention.key_length", self.dim // self.heads)
        self.rotated = m.get(a + ".rope.dimension_count", self.head_dim)
        self.context = m[a + ".context_length"]
        scaling = m.get(a + ".rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise ValueError(f"{path}: rope scaling {scaling} is not known here")
        self.position_scale = m.get(a + ".rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
        self.dtype = dtype
        self.w = {name: torch.from_numpy(g.get(name)).to(dtype) for name in g.tensors}

        i = torch.arange(0, self.rotated, 2, dtype=torch.float64)
        self.frequency = m.get(a + ".rope.freq_base", 10000.0) ** (-i / self.rotated)
        if "rope_freqs.weight" in self.w:
            self.frequency = self.frequency / self.w["rope_freqs.weight"].double()

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x, name):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.w[name]

    def rotate(self, x):
        # x: [time, heads, head_dim].  Pair i is (x[2i], x[2i + 1]), or (x[i], x[i + half]).
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] / self.position_scale * self.frequency
        cos, sin = angle.cos().to(self.dtype)[:, None, :], angle.sin().to(self.dtype)[:, None, :]
        out = x.clone()
        if self.rotates_halves:
            half = self.rotated // 2
            first, second = x[..., :half], x[..., half:self.rotated]
            out[..., :half] = first * cos - second * sin
            out[..., half:self.rotated] = first * sin + second * cos
            return out
        even, odd = x[..., 0:self.rotated:2], x[..., 1:self.rotated:2]
        out[..., 0:self.rotated:2] = even * cos - odd * sin
        out[..., 1:self.rotated:2] = even * sin + odd * cos
        return out

    def attention(self, h, p):
        t = h.shape[0]

        def project(name, heads):
            y = self.linear(h, p + name).view(t, heads, self.head_dim)
            return self.norm(y, p + name + "_norm.weight") if p + name + "_norm.weight" in self.w else y

        q = self.rotate(project("attn_q", self.heads))
        k = self.rotate(project("attn_k", self.kv_heads))
        v = project("attn_v", self.kv_heads)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        out = []
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, shared].T / self.head_dim ** 0.5
            weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
            out.append(weights @ v[:, shared])
        return self.linear(torch.cat(out, -1), p + "attn_output")

    def feed_forward(self, h, p):
        gate = self.linear(h, p + "ffn_gate")
        up = self.linear(h, p + "ffn_up")
        if self.is_gemma:  # the tanh form of gelu
            inner = 0.7978845608028654 * (gate + 0.044715 * gate ** 3)
            active = 0.5 * gate * (1 + torch.tanh(inner))
        else:
            active = gate * torch.sigmoid(gate)
        return self.linear(active * up, p + "ffn_down")

    @torch.no_grad()
    def logits(self, tokens):
        x = self.w["token_embd.weight"][torch.tensor(tokens)]
        if self.is_gemma:
            x = x * self.dim ** 0.5
        for n in range(self.layers):
            p = f"blk.{n}."
            x = x + self.attention(self.norm(x, p + "attn_norm.weight"), p)
            x = x + self.feed_forward(self.norm(x, p + "ffn_norm.weight"), p)
        x = self.norm(x, "output_norm.weight")
        if "output.weight" in self.w:
            return self.linear(x, "output")
        return x @ self.w["token_embd.weight"].T

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
