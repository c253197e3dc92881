#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The forward pass of a GGUF model in PyTorch: the oracle, of every architecture that is known.

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

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_numpy  # noqa: E402
import rwkv_reference  # noqa: E402


LAYER_NORM = {"cohere2moe", "jais2", "bloom", "cohere2", "command-r", "dbrx", "falcon", "gpt2", "gptneox", "mpt", "nemotron", "olmo", "orion", "phi2",
              "stablelm", "starcoder", "starcoder2", "codeshell", "jais", "bert", "deberta-v2", "jina-bert-v2", "jina-bert-v3", "nomic-bert",
              "nomic-bert-moe", "modern-bert", "rwkv6", "rwkv7"}
INTERLEAVED = {"bailingmoe3", "hy_v4", "muse-glimmer", "deepseek32", "glm-dsa", "cohere2moe", "granite_swa", "nanbeige", "arctic", "deci", "maincoder", "mistral4", "plm", "llama", "arcee", "chatglm", "cohere2", "command-r", "glm4", "granite", "internlm2", "minicpm", "olmo",
               "smollm3", "xverse", "baichuan", "bailingmoe", "deepseek", "deepseek2", "ernie4_5", "ernie4_5-moe", "granitemoe",
               "llama4", "mistral3", "neo-bert", "llama-embed", "granitehybrid"}
HALVES = {"grovemoe", "maion-coder", "plamo", "maple", "k2-horizon", "spark2_5", "deepseek2-ocr", "hy_v3", "minimax-m3", "eurobert", "plamo3", "laguna", "mimo2", "step35", "afmoe", "bitnet", "exaone-moe", "hunyuan_vl", "jais2", "mellum", "openelm", "paddleocr", "smallthinker", "exaone", "falcon", "gemma", "gemma2", "gemma3", "gptneox", "nemotron", "olmo2", "orion", "phi2", "phi3", "qwen2",
          "qwen3", "seed_oss", "stablelm", "starcoder2", "dbrx", "dots1", "glm4moe", "gpt-oss", "hunyuan-moe", "minicpm3", "olmoe",
          "qwen2moe", "qwen3moe", "apertus", "bailingmoe2", "codeshell", "exaone4", "hunyuan-dense", "minimax-m2", "pangu-embedded",
          "phimoe", "qwen", "qwen2vl", "qwen3vl", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "qwen3vlmoe", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "modern-bert",
          "gemma-embedding", "falcon-h1", "gemma3n", "gemma4", "gemma-embedding2", "grok"}
UNROTATED = {"deberta-v2", "t5", "t5encoder", "bloom", "gpt2", "mpt", "starcoder", "jais", "refact", "bert", "jina-bert-v2", "mamba", "mamba2", "jamba", "nemotron_h",
             "nemotron_h_moe", "kimi-linear", "kimi-k3", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
# x = norm(x + f(x)), and no logits.
ENCODERS = {"bert", "deberta-v2", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe"}
GELU = ENCODERS - {"nomic-bert"} | {"spark2_5", "t5", "t5encoder", "gemma-embedding2", "grok", "gemma3n", "gemma4", "codeshell", "modern-bert", "gemma-embedding", "bloom", "falcon", "gemma", "gemma2", "gemma3", "gpt2", "gptneox", "mpt", "phi2", "starcoder", "starcoder2"}
PARALLEL = {"plamo", "cohere2moe", "cohere2", "command-r", "falcon", "phi2"}
WINDOW_PERIOD = {"muse-glimmer": 4, "cohere2moe": 4, "laguna": 4, "afmoe": 4, "exaone-moe": 4, "mellum": 4, "smallthinker": 4, "gemma3n": 5, "exaone4": 4, "gemma-embedding": 6, "modern-bert": 3, "cohere2": 4, "gemma2": 2, "gemma3": 6, "olmo2": 4, "gpt-oss": 2, "llama4": 4}
# Weights of a token's experts sum to 1, where the file does not say.
NORMALISED = {"grovemoe", "maion-coder", "maple", "kimi-linear", "grok", "granite_swa", "mimo2", "arctic", "mellum", "smallthinker", "llama", "gemma4", "dbrx", "ernie4_5-moe", "granitemoe", "hunyuan-moe", "qwen3moe", "minimax-m2", "phimoe", "qwen3vlmoe", "qwen35moe", "qwen3next",
              "lfm2moe", "granitehybrid"}
SIGMOID = {"k2-horizon", "glm-dsa", "hy_v3", "cohere2moe", "laguna", "mimo2", "step35", "afmoe", "exaone-moe", "smallthinker", "lfm2moe", "nemotron_h_moe", "glm4moe", "llama4"}


class Llama:
    def __init__(self, path, dtype=torch.float32):
        g = gguf_numpy.GGUF(path)
        m = g.metadata
        a = self.arch = m["general.architecture"]
        if a not in INTERLEAVED | HALVES | UNROTATED:
            raise ValueError(f"{path}: architecture {a} is not known here")
        self.all = m
        self.meta = lambda key, default=None: m.get(f"{a}.{key}", default)
        self.layers = self.meta("block_count") - self.meta("nextn_predict_layers", 0)
        self.heads = self.meta("attention.head_count") or 1
        if isinstance(self.heads, list):
            self.heads = max(self.heads)
        self.kv_heads = self.meta("attention.head_count_kv", self.heads)
        if isinstance(self.kv_heads, list):  # 0: no attention in that block
            self.kv_heads = max(self.kv_heads)
        self.eps = self.meta(f"attention.layer_norm_{'' if a in LAYER_NORM else 'rms_'}epsilon", 1e-5)
        self.dim = self.meta("embedding_length")
        self.head_dim = self.meta("attention.key_length", self.dim // self.heads)
        self.rotated = self.meta("rope.dimension_count", self.head_dim) or self.head_dim
        self.context = self.meta("context_length")
        self.dtype = dtype
        self.w = {name: torch.from_numpy(g.get(name)).to(dtype) for name in g.tensors}
        self.window = self.meta("attention.sliding_window", 8192 if a == "llama4" else 0)
        self.rank = self.meta("attention.kv_lora_rank", 0)
        if self.rank:
            suffix = "_mla" if self.meta("attention.key_length_mla") else ""
            self.head_dim, self.value_dim = self.meta("attention.key_length" + suffix), self.meta("attention.value_length" + suffix)
        self.scale = self.meta("attention.scale", 0) or self.head_dim ** -0.5
        if (a, self.layers) in (("gemma2", 46), ("gemma3", 62)):
            self.scale = (self.dim // self.heads) ** -0.5
        if a == "jais":
            self.scale = 1 / self.head_dim
        if a in ("gemma3n", "gemma4", "gemma-embedding2", "t5", "t5encoder"):
            self.scale = 1.0
        if a == "grok":
            self.scale = self.meta("attention.output_scale")
        self.encoder_layers = 0
        if a == "t5":  # the decoder's blocks are numbered behind the encoder's
            self.encoder_layers = self.layers
            self.layers += self.meta("decoder_block_count", self.layers)

            def named(name):
                side, *rest = name.split(".")
                if len(rest) < 2 or rest[0] != "blk":
                    return name
                number = int(rest[1]) + (self.encoder_layers if side == "dec" else 0)
                return f"blk.{number}." + ".".join(rest[2:]).replace("attn_o.", "attn_output.")
            self.w = {named(name): value for name, value in self.w.items()}
        if a == "t5encoder":
            self.w = {name.replace("enc.blk.", "blk.").replace("attn_o.", "attn_output."): value for name, value in self.w.items()}
        self.is_causal = self.meta("attention.causal", a != "t5encoder")
        self.parallel = a in PARALLEL or (a == "gptneox" and self.meta("use_parallel_residual", True))
        if a == "stablelm":
            self.parallel = "blk.0.ffn_norm.weight" not in self.w
        self.make_frequencies()

    def make_frequencies(self):
        self.rotated_locally = self.meta("rope.dimension_count_swa", self.rotated)
        if self.arch == "step35":
            self.rotated //= 2
        self.rotated_globally = self.rotated
        i = torch.arange(0, self.rotated, 2, dtype=torch.float64)
        base = self.meta("rope.freq_base", 10000.0) * self.meta("rope.scaling.alpha", 1.0) ** (self.head_dim / (self.head_dim - 2))
        plain = base ** (-i / self.rotated)
        # LongRoPE: which factors is a matter of the room for text, not of the text.
        is_long = self.meta("context_length", 0) > self.meta("rope.scaling.original_context_length", float("inf"))
        for name in ("rope_freqs", "rope_factors_long" if is_long else "rope_factors_short"):
            if name + ".weight" in self.w:
                plain = plain / self.w[name + ".weight"].double()[:len(plain)]
        kind, factor = self.meta("rope.scaling.type", "none"), self.meta("rope.scaling.factor", 1.0)
        self.magnitude = self.meta("rope.scaling.attn_factor", 1.0)
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise ValueError(f"rope scaling {kind} is not known here")
        self.frequency = plain / factor if kind == "linear" else plain
        if kind == "yarn":
            # A pair that turns more than 32 times within the original context is fast, less than once slow.
            turns = self.meta("rope.scaling.original_context_length") * plain / (2 * torch.pi)
            at = torch.log(turns[0] / turns) / torch.log(turns[0] / turns[1]) if len(turns) > 1 else turns * 0
            first = max((torch.log(turns[0] / 32) / torch.log(turns[0] / turns[1])).floor().item(), 0)
            last = min((torch.log(turns[0]) / torch.log(turns[0] / turns[1])).ceil().item(), self.rotated - 1)
            slow = ((at - first) / max(last - first, 0.001)).clamp(0, 1)
            self.frequency = plain * (1 - slow) + plain / factor * slow
            grown = torch.log(torch.tensor(factor)).item()
            multiplier = self.meta("rope.scaling.yarn_log_multiplier", 0.0)
            if multiplier and self.arch == "mistral3":
                self.magnitude *= (1 + 0.1 * grown) / (1 + 0.1 * multiplier * grown)
            elif multiplier:
                self.scale *= (1 + multiplier * grown) ** 2
            else:
                self.magnitude *= 1 + 0.1 * grown
        local_base = self.meta("rope.freq_base_swa", 10000.0 if self.arch in ("gemma3", "gemma-embedding") else base)
        if self.arch in ("gemma3n", "gemma4", "gemma-embedding2", "laguna", "mimo2", "spark2_5", "step35", "plamo3"):
            i = torch.arange(0, self.rotated_locally, 2, dtype=torch.float64)
            self.local_frequency = self.meta("rope.freq_base_swa", 10000.0) ** (-i / (2 * len(i)))
            return
        self.local_frequency = self.frequency if self.arch not in ("gemma3", "olmo2", "mellum", "gemma-embedding", "modern-bert", "muse-glimmer", "maple") else local_base ** (-i / self.rotated)

    def plain_norm(self, x, eps):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        if not name.endswith("ffn_gate_inp"):
            y = y * self.w.get(name + ".scale", 1)
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x, name):
        if self.arch == "olmo":
            return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        gain = self.w[name + ".weight" if name + ".weight" in self.w else name]
        if self.arch in LAYER_NORM and not self.meta("attention.layer_norm_rms_epsilon"):
            x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + self.eps) * gain
            return x + self.w[name + ".bias"] if name + ".bias" in self.w else x
        groups = self.meta("attention.group_norm_groups", 1) if x.ndim == 2 else 1
        parts = x.unflatten(-1, (groups, -1))
        x = (parts * torch.rsqrt((parts * parts).mean(-1, keepdim=True) + self.eps)).flatten(-2) * gain
        return x + self.w[name + ".bias"] if name + ".bias" in self.w else x

    def rotate(self, x, layer, are_halves=None):
        # x: [time, heads, head_dim].  Pair i is (x[2i], x[2i + 1]), or (x[i], x[i + half]).
        is_local = self.is_local(layer)
        if self.arch in UNROTATED or self.has_alibi() or not self.meta("rope.scaling.finetuned", True) or (self.arch == "llama4" and not is_local and self.window) or self.is_unrotated(layer) or (self.arch in ("maion-coder", "maple", "cohere2", "afmoe", "exaone-moe", "muse-glimmer", "smallthinker") and not is_local) or (self.arch == "exaone4" and self.window and not is_local) or (self.arch == "smollm3" and layer % 4 == 3):
            return x
        frequency = self.local_frequency if is_local else self.frequency
        magnitude = 1.0 if is_local and self.arch in ("gemma3", "olmo2", "mellum", "laguna") else self.magnitude
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * frequency
        cos, sin = ((magnitude * f(angle)).to(self.dtype)[:, None, :] for f in (torch.cos, torch.sin))
        out = x.clone()
        is_halved = self.arch in HALVES or (self.arch == "glm4" and any(self.meta("rope.dimension_sections", [])))
        if is_halved if are_halves is None else are_halves:
            half = self.rotated // 2
            first, second = x[..., :half], x[..., half:self.rotated]
            out[..., :half] = first * cos - second * sin
            out[..., half:self.rotated] = first * sin + second * cos
            return out
        even, odd = x[..., 0:self.rotated:2], x[..., 1:self.rotated:2]
        out[..., 0:self.rotated:2] = even * cos - odd * sin
        out[..., 1:self.rotated:2] = even * sin + odd * cos
        return out

    def has_alibi(self):
        return self.arch in ("bloom", "mpt", "jais", "refact", "jina-bert-v2") or (self.arch == "baichuan" and self.layers == 40)

    def is_unrotated(self, layer):
        if self.arch == "cohere2moe":
            return not self.is_local(layer) and layer >= self.meta("leading_dense_block_count")
        return not self.of_layer("attention.rope_pattern", layer, True)

    def of_layer(self, key, layer, default=None):
        value = self.meta(key, default)
        return value[layer] if isinstance(value, list) else value

    def is_local(self, layer):
        period = self.meta("attention.sliding_window_pattern", WINDOW_PERIOD.get(self.arch, 0))
        if isinstance(period, list):
            return period[layer]
        if self.arch in ("modern-bert", "smallthinker", "laguna", "cohere2moe"):  # the first of a period sees all
            return bool(self.window) and layer % period != 0
        return bool(self.window) and (period == 0 or layer % period < period - 1)

    def heads_of(self, y, name, heads):
        """[time, heads, head_dim], normalised where there is a norm: of all heads together, or of each."""
        t = y.shape[0]
        if name + "_norm.weight" not in self.w:
            return y.view(t, heads, self.head_dim)
        gain = self.w[name + "_norm.weight"]
        if self.arch == "k2-horizon":  # of every head, one after the other
            return self.plain_norm(y.view(t, heads, self.head_dim), self.eps) * gain.view(heads, self.head_dim)
        if gain.ndim == 1 and gain.shape[0] == heads * self.head_dim and heads > 1:
            return self.norm(y, name + "_norm").view(t, heads, self.head_dim)
        return self.norm(y.view(t, heads, self.head_dim), name + "_norm")

    def attention(self, h, layer):
        t, p = h.shape[0], f"blk.{layer}."
        if self.rank:
            return self.latent_attention(h, layer)
        if self.arch in ("deci", "laguna", "mimo2", "openelm", "spark2_5", "step35"):
            self.heads, self.kv_heads = self.of_layer("attention.head_count", layer), self.of_layer("attention.head_count_kv", layer)
            self.rotated = self.rotated_locally if self.is_local(layer) else self.rotated_globally
            if self.kv_heads == 0:
                return self.linear(h, p + "attn_output")
        if self.arch in ("gemma4", "gemma-embedding2"):  # blocks that see all have other heads
            suffix = "_swa" if self.is_local(layer) else ""
            self.head_dim, self.rotated = self.meta("attention.key_length" + suffix), self.meta("rope.dimension_count" + suffix)
            self.kv_heads = self.of_layer("attention.head_count_kv", layer)
        if p + "ssm_beta.weight" in self.w or p + "ssm_ba.weight" in self.w:
            return self.delta_net(h, p)
        if p + "shortconv.conv.weight" in self.w:
            b, c, x = self.linear(h, p + "shortconv.in_proj").chunk(3, -1)
            return self.linear(c * self.convolve(b * x, p + "shortconv.conv"), p + "shortconv.out_proj")
        value_dim = self.meta("attention.value_length", self.head_dim) if self.arch in ("mimo2", "plamo3") else self.head_dim
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if p + "attn_qkv.weight" in self.w:
            q, k, v = self.linear(h, p + "attn_qkv").split([q_size, kv_size, self.kv_heads * value_dim], -1)
        elif self.arch in ("gemma3n", "gemma4", "gemma-embedding2"):
            # The last blocks read the keys and values of the last one before them that sees as much.
            first, source = self.layers - self.meta("attention.shared_kv_layers", 0), layer
            if layer >= first:
                source = max(i for i in range(first) if self.is_local(i) == self.is_local(layer))
            q = self.linear(h, p + "attn_q")
            if source == layer:
                k = self.linear(h, p + "attn_k")
                self.kept[layer] = k, self.linear(h, p + "attn_v") if p + "attn_v.weight" in self.w else k
            k, v = self.kept[source]
            v = v.view(t, self.kv_heads, self.head_dim)
            v = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + self.eps)
        else:
            q, k, v = (self.linear(h, p + "attn_" + name) for name in "qkv")
        gate = None
        if q.shape[-1] == 2 * q_size:  # of every head: queries, then what its result is multiplied with
            q, gate = (part.reshape(t, q_size) for part in q.view(t, self.heads, 2, self.head_dim).unbind(2))
        limit = self.meta("attention.clamp_kqv", 0)
        if limit:
            q, k, v = (x.clamp(-limit, limit) for x in (q, k, v))
        if self.arch in ("hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "maincoder"):  # rotated first
            q, k = (self.rotate(x.view(t, -1, self.head_dim), layer) for x in (q, k))
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        else:
            q = self.rotate(self.heads_of(q, p + "attn_q", self.heads), layer)
            k = self.rotate(self.heads_of(k, f"blk.{source}.attn_k" if self.arch in ("gemma3n", "gemma4", "gemma-embedding2") else p + "attn_k", self.kv_heads), layer)
        if self.arch == "llama4" and (self.is_local(layer) or not self.window):
            if self.meta("expert_count") != 128:
                q, k = (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) for x in (q, k))
        elif self.arch == "llama4":
            length, strength = self.meta("attention.temperature_length", 8192), self.meta("attention.temperature_scale", 0.1)
            place = torch.arange(1, t + 1, dtype=self.dtype)
            q = q * (1 + strength * torch.log(1 + torch.floor(place / length)))[:, None, None]
        if self.arch == "mistral3":
            q = q * self.temperature(t)[:, None, None]
        if p + "attn_gate.weight" in self.w:
            gate = self.linear(h, p + "attn_gate")
            if gate.shape[-1] == self.heads:
                gate = gate.repeat_interleave(self.head_dim, -1)
        v = v.view(t, self.kv_heads, value_dim) * self.meta("attention.value_scale", 1.0)
        distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
        is_causal = self.is_causal and layer >= self.encoder_layers
        hidden = distance < 0 if is_causal else distance != distance
        if not is_causal:  # half a window on either side
            distance = distance.abs()
            if self.is_local(layer):
                hidden = distance > self.window // 2
        elif self.is_local(layer) and self.arch == "llama4":
            chunk = torch.arange(t) // self.window
            hidden = hidden | (chunk[:, None] != chunk[None, :])
        elif self.is_local(layer):
            hidden = hidden | (distance >= self.window)
        out, seen_by_all = [], hidden
        self.choose(h, layer)
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            if self.meta("attention.indexer.top_k"):
                hidden = seen_by_all | ~self.chosen[shared % len(self.chosen)]
            scores = q[:, head] @ k[:, shared].T * self.scale
            cap = self.meta("attn_logit_softcapping", 0)
            scores = cap * torch.tanh(scores / cap) if cap else scores
            if self.has_alibi():
                scores = scores - self.slope(head) * distance.to(self.dtype)
            if self.meta("attention.relative_span"):  # disentangled: what distances say
                said = self.relative(p, q[:, head], k[:, shared], head)
                scores = (scores / self.scale + sum(said)) / (self.head_dim * (1 + len(said))) ** 0.5
            if self.meta("attention.relative_buckets_count"):  # T5's, and MPNet's
                own = p + "attn_rel_b.weight"
                first = f"blk.{self.encoder_layers if is_causal else 0}.attn_rel_b.weight"
                scores = scores + self.w[own if own in self.w else first][self.buckets(t, is_causal), head]
            scores = scores.masked_fill(hidden, float("-inf"))
            if p + "attn_sinks.weight" in self.w:  # one more score, without a value
                scores = torch.cat([scores, self.w[p + "attn_sinks.weight"][head].expand(t, 1)], -1)
            weights = torch.softmax(scores, -1)[:, :t]
            out.append(weights @ v[:, shared])
        out = torch.cat(out, -1)
        if p + "attn_sub_norm.weight" in self.w:
            out = self.norm(out, p + "attn_sub_norm")
        if gate is not None:
            out = out * (torch.nn.functional.softplus(gate) if self.arch == "laguna" else torch.log2(1 + 2 ** gate) if self.arch == "k2-horizon" else torch.sigmoid(gate))
        return self.linear(out, p + "attn_output")

    def cross_attention(self, h, layer):
        """Of what is written over what became of the text that was read."""
        p = f"blk.{layer}.cross_attn_"
        q, k, v = (self.linear(x, p + name).view(len(x), self.heads, self.head_dim) for x, name in
                   ((self.norm(h, p + "norm"), "q"), (self.encoded, "k"), (self.encoded, "v")))
        weights = torch.softmax(torch.einsum("thd,shd->hts", q, k) * self.scale, -1)
        return self.linear(torch.einsum("hts,shd->thd", weights, v).reshape(len(h), -1), p + ("output" if p + "output.weight" in self.w else "o"))

    def relative(self, p, q, k, head):
        """DeBERTa: what queries say of the distances to keys, and these of keys, [query, key] each."""
        span, limit, t = self.meta("attention.relative_span"), self.meta("attention.relative_limit", 0), len(q)
        at = torch.arange(t)
        distance = at[:, None] - at[None, :]
        number, half = distance.clone(), span // 2
        for i, j in (distance.abs() > half).nonzero().tolist() if limit else []:
            d = abs(int(distance[i, j]))
            far = half + int(np.ceil(np.log(np.float32(d / half)) / np.log(np.float32((limit - 1) / half)) * np.float32(half - 1)))
            number[i, j] = far if distance[i, j] > 0 else -far
        number = (number + span).clamp(0, 2 * span - 1)
        known = self.norm(self.w["rel_embd.weight"], "rel_embd_norm") if "rel_embd_norm.weight" in self.w else self.w["rel_embd.weight"]
        own = slice(head * self.head_dim, (head + 1) * self.head_dim)
        parts = self.meta("attention.relative_parts", "c2p p2c")
        out = []
        if "c2p" in parts:
            out.append((q @ self.linear(known, p + "attn_k")[:, own].T).gather(1, number))
        if "p2c" in parts:
            out.append((self.linear(known, p + "attn_q")[:, own] @ k.T).gather(0, number))
        return out

    def buckets(self, t, is_causal=False):
        """[query, key]: which of T5's learned numbers a distance has."""
        at = torch.arange(t)
        behind = at[None, :] - at[:, None]
        if is_causal:
            behind = behind.clamp(max=0)
        half = self.meta("attention.relative_buckets_count") // (1 if is_causal else 2)
        distance, exact = behind.abs(), half // 2
        grown = torch.log(distance.clamp(min=1).double() / exact) / torch.log(torch.tensor(128.0, dtype=torch.float64) / exact)
        far = (exact + (grown * (half - exact)).long()).clamp(max=half - 1)
        return torch.where(distance < exact, distance, far) + half * (behind > 0)

    def temperature(self, t):
        """What queries are multiplied with at every position: they grow by the text's length."""
        length = self.meta("attention.temperature_length", self.meta("rope.scaling.original_context_length", self.context))
        return 1 + self.meta("attention.temperature_scale", 0.0) * torch.log(1 + torch.floor(torch.arange(t, dtype=self.dtype) / length))

    def convolve(self, x, name):
        """Causal, each channel alone: a token and those before it."""
        w = self.w[name + ".weight"]
        padded = torch.cat([x.new_zeros(w.shape[1] - 1, x.shape[1]), x])
        return sum(padded[i:i + len(x)] * w[:, i] for i in range(w.shape[1]))

    def delta_net(self, h, p):
        """The recurrence as it is written in the paper, token by token."""
        length, heads, groups = (self.meta("ssm." + key) for key in ("state_size", "time_step_rank", "group_count"))
        mixed = self.convolve(self.linear(h, p + "attn_qkv"), p + "ssm_conv1d")
        mixed = mixed * torch.sigmoid(mixed)
        q, k, v = mixed.split([groups * length, groups * length, heads * length], -1)
        q, k = (x.view(-1, groups, length) for x in (q, k))
        q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True)).clamp(min=self.eps) for x in (q, k))
        if p + "ssm_ba.weight" in self.w:  # heads of a group lie side by side
            q, k = (x.repeat_interleave(heads // groups, 1) for x in (q, k))
            beta, alpha = (x.reshape(-1, heads) for x in self.linear(h, p + "ssm_ba").view(-1, groups, 2, heads // groups).unbind(2))
        else:
            q, k = (x.repeat(1, heads // groups, 1) for x in (q, k))
            beta, alpha = self.linear(h, p + "ssm_beta"), self.linear(h, p + "ssm_alpha")
        decay = torch.exp(self.w[p + "ssm_a"] * torch.nn.functional.softplus(alpha + self.w[p + "ssm_dt.bias"]))
        beta, v = torch.sigmoid(beta), v.view(-1, heads, length)
        state, out = h.new_zeros(heads, length, length), []
        for t in range(len(h)):
            state = state * decay[t][:, None, None]
            change = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + torch.einsum("hv,hk->hvk", change, k[t])
            out.append(torch.einsum("hvk,hk->hv", state, q[t]) / length ** 0.5)
        gate = self.linear(h, p + "attn_gate").view(-1, heads, length)
        out = self.norm(torch.stack(out), p + "ssm_norm") * gate * torch.sigmoid(gate)
        return self.linear(out.reshape(len(h), -1), p + "ssm_out")

    def key_decay_net(self, h, p):
        """Kimi Delta Attention, token by token: a decay for every component of the keys."""
        size, silu = self.meta("kda.head_dim"), torch.nn.functional.silu

        def heads(x):
            return x.view(len(h), -1, size)

        def convolved(name):
            w = self.w[p + f"ssm_conv1d_{name}.weight"].reshape(-1, self.meta("ssm.conv_kernel"))
            x = self.linear(h, p + "attn_" + name)
            padded = torch.cat([x.new_zeros(w.shape[1] - 1, x.shape[1]), x])
            return heads(silu(sum(padded[i:i + len(x)] * w[:, i] for i in range(w.shape[1]))))

        q, k, v = (convolved(name) for name in "qkv")
        q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True)).clamp(min=self.eps) for x in (q, k))
        def made(name):
            y = self.linear(h, p + name + ("_a" if p + name + "_a.weight" in self.w else ""))
            return self.linear(y, p + name + "_b") if p + name + "_b.weight" in self.w else y

        step, rate = made("ssm_f") + self.w[p + "ssm_dt.bias"], self.w[p + "ssm_a"].view(1, -1, 1)
        floor = self.meta("kda.gate_lower_bound")
        decay = torch.exp(heads(torch.nn.functional.softplus(step)) * rate if floor is None else floor * torch.sigmoid(heads(step) * rate.abs()))
        beta = torch.sigmoid(self.linear(h, p + "ssm_beta"))
        state, out = h.new_zeros(q.shape[1], size, size), []
        for t in range(len(h)):
            state = state * decay[t][:, None, :]
            change = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + torch.einsum("hv,hk->hvk", change, k[t])
            out.append(torch.einsum("hvk,hk->hv", state, q[t]) / size ** 0.5)
        gate = torch.sigmoid(made("ssm_g"))
        return self.linear(self.norm(torch.stack(out), p + "ssm_norm").flatten(1) * gate, p + "attn_output")

    def mamba(self, h, p):
        """Selective state spaces, token by token: h = exp(dt A) h + dt x B, y = h C + D x."""
        inner, n, rank, groups = (self.meta("ssm." + key) for key in ("inner_size", "state_size", "time_step_rank", "group_count"))
        is_first, t = p + "ssm_x.weight" in self.w, len(h)
        silu, softplus = torch.nn.functional.silu, torch.nn.functional.softplus
        both = self.linear(h, p + "ssm_in")
        if is_first:
            x, z = both.split([inner, inner], -1)
        else:
            z, x, dt = both.split([inner, inner + 2 * groups * n, rank], -1)
        x = silu(self.convolve(x, p + "ssm_conv1d") + self.w[p + "ssm_conv1d.bias"])
        if is_first:
            dt, b, c = self.linear(x, p + "ssm_x").split([rank, n, n], -1)
            if p + "ssm_b_norm.weight" in self.w:
                dt, b, c = (self.norm(value, p + f"ssm_{name}_norm") for value, name in ((dt, "dt"), (b, "b"), (c, "c")))
            elif self.meta("ssm.dt_b_c_rms"):
                dt, b, c = (value * torch.rsqrt((value * value).mean(-1, keepdim=True) + self.eps) for value in (dt, b, c))
            heads, dt = inner, self.linear(dt, p + "ssm_dt")
            b, c = (value.view(t, 1, n).expand(t, heads, n) for value in (b, c))
        else:
            heads, dt = rank, dt + self.w[p + "ssm_dt.bias"]
            x, b, c = x.split([inner, groups * n, groups * n], -1)
            b, c = (value.view(t, groups, n).repeat_interleave(heads // groups, 1) for value in (b, c))
        dt, x = softplus(dt), x.reshape(t, heads, -1)
        a, d = self.w[p + "ssm_a"].view(heads, -1), self.w[p + "ssm_d"].view(heads, 1)
        state, out = h.new_zeros(heads, x.shape[-1], n), []
        for i in range(t):
            state = state * torch.exp(dt[i][:, None] * a)[:, None, :] + (dt[i][:, None] * x[i])[:, :, None] * b[i][:, None, :]
            out.append((state * c[i][:, None, :]).sum(-1) + d * x[i])
        y = torch.stack(out).reshape(t, inner) * silu(z)
        if p + "ssm_norm.weight" in self.w:
            y = y.view(t, groups, -1)
            y = (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + self.eps) * self.w[p + "ssm_norm.weight"]).reshape(t, inner)
        return self.linear(y, p + "ssm_out")

    def latent_attention(self, h, layer):
        """As in the paper, keys and values of every head written out: nothing is absorbed."""
        t, p = h.shape[0], f"blk.{layer}."
        plain = self.head_dim - self.rotated
        if p + "attn_q_a.weight" in self.w:
            q = self.linear(self.norm(self.linear(h, p + "attn_q_a"), p + "attn_q_a_norm"), p + "attn_q_b")
        else:
            q = self.linear(h, p + "attn_q")
        self.choose(h, layer)
        q = q.view(t, self.heads, self.head_dim)
        both = self.linear(h, p + "attn_kv_a_mqa")
        c = self.norm(both[:, :self.rank], p + "attn_kv_a_norm")
        k_turned, q_turned = both[:, self.rank:].reshape(t, 1, self.rotated), q[..., plain:]
        if self.arch not in UNROTATED:
            k_turned, q_turned = self.rotate(k_turned, layer), self.rotate(q_turned, layer)
        if p + "attn_kv_b.weight" in self.w:
            k, v = self.linear(c, p + "attn_kv_b").view(t, self.heads, plain + self.value_dim).split([plain, self.value_dim], -1)
        else:
            k = torch.einsum("tr,hrp->thp", c, self.w[p + "attn_k_b.weight"])
            v = torch.einsum("tr,hvr->thv", c, self.w[p + "attn_v_b.weight"])
        q = torch.cat([q[..., :plain], q_turned], -1) * self.temperature(t)[:, None, None]
        k = torch.cat([k, k_turned.expand(t, self.heads, self.rotated)], -1)
        hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        if self.meta("attention.indexer.top_k"):
            hidden = hidden | ~self.chosen[0]
        scores = (torch.einsum("thd,shd->hts", q, k) * self.scale).masked_fill(hidden, float("-inf"))
        if p + "attn_sinks.weight" in self.w:  # one more score, without a value
            scores = torch.cat([scores, self.w[p + "attn_sinks.weight"].view(-1, 1, 1).expand(-1, t, 1)], -1)
        weights = torch.softmax(scores, -1)[..., :t]
        out = torch.einsum("hts,shv->thv", weights, v)
        if p + "attn_gate.weight" in self.w:  # of every head, or of every result
            out = out * torch.sigmoid(self.linear(h, p + "attn_gate")).view(t, self.heads, -1)
        return self.linear(out.reshape(t, -1), p + "attn_output")

    @staticmethod
    def best(scores, k):
        """Which of the last axis are the k largest, the first of equal ones."""
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)

    def choose(self, h, layer):
        """self.chosen, [heads or 1, query, key]: what attention may read. A block may go by what one before it chose."""
        if not self.meta("attention.indexer.top_k"):
            return
        p, t = f"blk.{layer}.indexer.", len(h)
        heads, size, top, each = (self.meta("attention.indexer." + key, 1) for key in ("head_count", "key_length", "top_k", "block_size"))
        if self.of_layer("attention.indexer.types", layer, 1) == 0 and self.arch in ("glm-dsa", "hy_v4"):
            return
        visible = torch.tril(torch.ones(t, t, dtype=torch.bool))
        if self.arch == "minimax-m3":
            if p + "q_proj.weight" not in self.w:
                self.chosen = torch.ones(1, t, t, dtype=torch.bool)
                return
            q = self.rotate(self.norm(self.linear(h, p + "q_proj").view(t, heads, size), p + "q_norm"), layer)
            k = self.rotate(self.norm(self.linear(h, p + "k_proj").view(t, 1, size), p + "k_norm"), layer)
            scores = torch.einsum("thd,sd->hts", q, k[:, 0]).masked_fill(~visible, float("-inf"))
            count = -(-t // each)
            scores = torch.nn.functional.pad(scores, (0, count * each - t), value=float("-inf")).view(heads, t, count, each).amax(-1)
            own, number = torch.arange(t)[:, None] // each, torch.arange(count)[None, :]
            scores = scores.masked_fill((number <= own) & (number > own - self.meta("attention.indexer.local_blocks", 0)), float("inf"))
            self.chosen = self.best(scores, top).repeat_interleave(each, -1)[..., :t]
            return
        name = f"blk.{layer}.attn_q_a"
        compressed, are_halves = self.norm(self.linear(h, name), name + "_norm"), self.arch == "deepseek32"

        def turned(x):
            first = size - self.rotated if self.arch == "hy_v4" else 0  # what is rotated comes last
            return torch.cat([x[..., :first], self.rotate(x[..., first:], layer, are_halves)], -1)
        q = turned(self.linear(compressed, p + "attn_q_b").view(t, heads, size))
        k = torch.nn.functional.layer_norm(self.linear(h, p + "attn_k"), (size,), self.w[p + "k_norm.weight"], self.w[p + "k_norm.bias"],
                                           self.eps if self.arch == "hy_v4" else 1e-6)
        k = turned(k.view(t, 1, size))[:, 0]
        scores = (torch.relu(torch.einsum("thd,sd->ths", q, k)) * self.linear(h, p + "proj")[:, :, None]).sum(1)
        self.chosen = self.best(scores.masked_fill(~visible, float("-inf")), top)[None]

    def slope(self, head):
        bias, power = self.meta("attention.max_alibi_bias", 8.0), 1 << (self.heads.bit_length() - 1)
        return 2 ** (-bias * (head + 1) / power) if head < power else 2 ** (-bias / 2 * (2 * (head - power) + 1) / power)

    def swiglu(self, gate, up, limit=0):
        if self.arch == "kimi-k3":
            beta, linear = self.meta("activation.situ_beta"), self.meta("activation.situ_linear_beta")
            up = linear * torch.tanh(up / linear) if linear else up
            return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * up
        if self.arch == "grok":
            return self.gelu(gate) * up
        if limit and self.arch in ("maple", "hy_v4"):
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return gate * torch.sigmoid(gate) * up
        if limit:
            return (gate * torch.sigmoid(gate)).clamp(max=limit) * up.clamp(-limit, limit)
        if self.arch in ("gpt-oss", "minimax-m3"):
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
            return gate * torch.sigmoid(1.702 * gate) * (up + 1)
        return (torch.relu(gate) if self.arch == "smallthinker" else gate * torch.sigmoid(gate)) * up

    def route(self, x, p):
        """Experts of one token and their weights."""
        logits, cap = self.linear(x, p + "ffn_gate_inp"), self.meta("router_logit_softcapping", 0)
        logits = cap * torch.tanh(logits / cap) if cap else logits
        kind = self.meta("expert_gating_func", 3 if self.arch == "gpt-oss" else 2 if self.arch in SIGMOID else 1)
        scores = {1: torch.softmax(logits, -1), 2: torch.sigmoid(logits), 3: logits}[kind]
        ranks = logits if self.arch == "llama4" else scores
        groups = self.meta("expert_group_count", 1)
        bias = self.w.get(p + "exp_probs_b.bias", self.w.get(p + "exp_probs_b"))
        ranks = ranks if bias is None else ranks + bias
        if groups > 1:
            parts = ranks.view(groups, -1)
            best = parts.max(-1).values if bias is None else parts.topk(2).values.sum(-1)
            keep = best.topk(self.meta("expert_group_used_count")).indices
            ranks = torch.stack([part if g in keep else part * 0 - float("inf") for g, part in enumerate(parts)]).view(-1)
        chosen = ranks.topk(self.meta("expert_used_count")).indices
        weights = scores[chosen]
        weights = torch.softmax(weights, -1) if kind == 3 else weights
        if self.meta("expert_weights_norm", self.arch in NORMALISED):
            weights = weights / weights.sum()
        return chosen.tolist(), weights * (self.meta("expert_weights_scale", 0) or 1)

    def xielu(self, x, layer):
        """After the paper: alpha_p x² + beta x above zero, alpha_n (exp(min(x, eps)) - 1) - alpha_n x + beta x below."""
        p, n, beta, eps = (value[layer] if isinstance(value, list) else value
                           for value in (self.all["xielu." + key] for key in ("alpha_p", "alpha_n", "beta", "eps")))
        p = torch.nn.functional.softplus(torch.tensor(p, dtype=torch.float64)).item()
        n = beta + torch.nn.functional.softplus(torch.tensor(n, dtype=torch.float64)).item()
        return torch.where(x > 0, p * x * x, n * (torch.expm1(x.clamp(max=eps)) - x)) + beta * x

    def mix(self, h, p, routed=None):
        out = []
        for x, r in zip(h, h if routed is None else routed):
            total = 0
            for expert, weight in zip(*self.route(r, p)):
                def product(y, name):
                    y = self.w[p + f"ffn_{name}_exps.weight"][expert] @ y
                    if p + f"ffn_{name}_exps.scale" in self.w:
                        y = y * self.w[p + f"ffn_{name}_exps.scale"][expert]
                    bias = self.w.get(p + f"ffn_{name}_exps.bias")
                    return y if bias is None else y + bias[expert]
                y = x * weight if self.arch == "llama4" else x
                few = p + ("ffn_routed_" if self.arch == "kimi-k3" else "ffn_latent_")
                if few + "down.weight" in self.w:  # experts of few components
                    y = self.linear(y, few + "down")
                if p + "ffn_gate_up_exps.weight" in self.w:
                    y = product(self.swiglu(*product(y, "gate_up").chunk(2)), "down")
                elif p + "ffn_gate_exps.weight" in self.w:
                    limit = self.of_layer("swiglu_clamp_exp", int(p.split(".")[1]), 0)
                    y = product(self.swiglu(product(y, "gate"), product(y, "up"), limit), "down")
                else:
                    y = product(torch.relu(product(y, "up")) ** 2 if self.arch == "nemotron_h_moe" else self.gelu(product(y, "up")), "down")
                total = total + (y if self.arch == "llama4" else y * weight)
            if p + "bellmetal.ffn_exps.bias" in self.w:
                total = total + self.w[p + "bellmetal.ffn_exps.bias"]
            if few + "norm.weight" in self.w:
                total = self.norm(total, few + "norm")
            if few + "up.weight" in self.w:
                total = self.linear(total, few + "up")
            if self.arch == "grovemoe":  # each group of experts shares one more
                for expert, weight in zip(*self.route(r, p)):
                    gate, up, down = (self.w[p + f"ffn_{name}_chexps.weight"][expert // self.meta("experts_per_group")] for name in ("gate", "up", "down"))
                    total = total + self.meta("expert_group_scale") * weight * (down @ self.swiglu(gate @ x, up @ x))
            if p + "ffn_up_shexp.weight" in self.w:
                gate_up = self.linear(x, p + "ffn_up_shexp").chunk(2, -1)
                shared = self.linear(self.swiglu(*gate_up), p + "ffn_down_shexp") if self.arch == "granite_swa" else self.linear(torch.relu(self.linear(x, p + "ffn_up_shexp")) ** 2, p + "ffn_down_shexp") if (
                    p + "ffn_gate_shexp.weight" not in self.w) else self.linear(self.swiglu(self.linear(x, p + "ffn_gate_shexp"), self.linear(x, p + "ffn_up_shexp"),
                                                 self.of_layer("swiglu_clamp_shexp", int(p.split(".")[1]), 0)),
                                     p + "ffn_down_shexp")
                gate = self.w.get(p + "ffn_gate_inp_shexp.weight")
                total = total + (shared if gate is None else shared * torch.sigmoid(gate @ x))
                if self.arch == "cohere2moe":
                    total = total / 2
            out.append(total)
        return torch.stack(out)

    @staticmethod
    def gelu(x):  # the tanh form
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)))

    def feed_forward(self, h, p):
        if p + "ffn_down_exps.weight" not in self.w:
            return self.dense(h, p)
        if self.arch == "grok" and p + "ffn_up.weight" in self.w:
            return (self.mix(h, p) + self.dense(h, p)) / 2 ** 0.5
        return self.mix(h, p)

    def dense(self, h, p):
        def active(x):
            if self.arch == "apertus":
                return self.xielu(x, int(p.split(".")[1]))
            if self.arch in GELU and self.meta("hidden_activation") != "silu":
                return self.gelu(x)
            return torch.relu(x) ** 2 if self.arch in ("arcee", "nemotron", "nemotron_h", "jais2", "plm") or self.meta("hidden_activation") == "relu2" else x * torch.sigmoid(x)
        up = self.linear(h, p + "ffn_up")
        if self.arch in ("t5", "t5encoder") and p + "ffn_gate.weight" not in self.w:
            return self.linear(torch.relu(up), p + "ffn_down")
        if p + "ffn_gate.weight" in self.w:
            gate = self.linear(h, p + "ffn_gate")
            inner = self.swiglu(gate, up) if self.arch in ("minimax-m3", "kimi-k3") else active(gate) * up
            if p + "ffn_sub_norm.weight" in self.w:
                inner = self.norm(inner, p + "ffn_sub_norm")
        elif self.w[p + "ffn_up.weight"].shape[0] == 2 * self.w[p + "ffn_down.weight"].shape[1]:
            gate, up = up.chunk(2, -1)
            inner = active(gate) * up
        else:
            inner = active(up)
        return self.linear(inner, p + "ffn_down")

    def routed_beside_dense(self, y, p):
        """Gemma 4: experts and a dense feed-forward, each with norms of its own."""
        dense = self.norm(self.dense(self.norm(y, p + "ffn_norm"), p), p + "post_ffw_norm_1")
        read, out = self.norm(y, p + "pre_ffw_norm_2"), []
        plain = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + self.eps) * self.w[p + "ffn_gate_inp.scale"] * self.dim ** -0.5
        for x, r in zip(read, plain):
            total = 0
            for expert, weight in zip(*self.route(r, p)):
                gate, up, down = (self.w[p + f"ffn_{name}_exps.weight"][expert] for name in ("gate", "up", "down"))
                total = total + weight * self.w[p + "ffn_down_exps.scale"][expert] * (down @ (self.gelu(gate @ x) * (up @ x)))
            out.append(total)
        return dense + self.norm(torch.stack(out), p + "post_ffw_norm_2")

    def layer_input(self, x, layer):
        p, n = f"blk.{layer}.", self.meta("embedding_length_per_layer_input")
        gate = self.gelu(self.linear(x, p + "inp_gate"))
        return self.norm(self.linear(gate * self.own[:, layer * n:(layer + 1) * n], p + "proj"), p + "post_norm")

    def start_layer_inputs(self, tokens, x):
        n = self.meta("embedding_length_per_layer_input")
        made = self.linear(x, "per_layer_model_proj") * self.dim ** -0.5
        self.own = self.norm(made.view(len(tokens), -1, n), "per_layer_proj_norm").view(len(tokens), -1)
        if "per_layer_token_embd.weight" in self.w:
            self.own = (self.own + self.w["per_layer_token_embd.weight"][torch.tensor(tokens)] * n ** 0.5) * 2 ** -0.5

    def altup_block(self, vectors, layer):
        """[4, time, dim]: the first is computed, the others are predicted and corrected."""
        p = f"blk.{layer}."

        def modalities(x):
            return torch.tanh(self.linear(self.norm(x, p + "altup_router_norm") / self.dim, p + "altup_router"))
        shares = self.linear(modalities(vectors[0]), p + "altup_predict_coef").view(-1, 4, 4)  # [time, to, from]
        predicted = vectors + torch.einsum("tji,itd->jtd", shares, vectors)
        active = predicted[0]
        h = self.norm(active, p + "attn_norm")
        laurel = h + self.norm(self.linear(self.linear(h, p + "laurel_l"), p + "laurel_r"), p + "laurel_post_norm")
        y = active + self.norm(self.attention(h, layer), p + "post_attention_norm")
        y = (y + laurel) * 2 ** -0.5
        f = self.norm(y, p + "ffn_norm")
        gate, strength = self.linear(f, p + "ffn_gate"), self.of_layer("activation_sparsity_scale", layer)
        if strength > 0:
            gate = torch.relu(gate - gate.mean(-1, keepdim=True) - strength * gate.std(-1, keepdim=True))
        y = y + self.norm(self.linear(self.gelu(gate) * self.linear(f, p + "ffn_up"), p + "ffn_down"), p + "post_ffw_norm")
        corrections = self.linear(modalities(y), p + "altup_correct_coef") + 1
        out = predicted + torch.einsum("tj,td->jtd", corrections, y - active)
        out[1:] = out[1:] + self.layer_input(out[0] * self.w[p + "altup_correct_scale.weight"], layer)
        return out

    def hyper_shares(self, x, name):
        """x [time, vectors, dim] → shares of the vectors, [kinds, time, vectors]."""
        mixes = self.linear(self.plain_norm(x.flatten(1), self.eps), name + "fn")
        scale, base = self.w[name + "scale.weight"], self.w[name + "base.weight"]
        kinds = mixes.view(len(x), len(scale), -1).transpose(0, 1)
        shares = torch.sigmoid(kinds * scale[:, None, None] + base.view(len(scale), 1, -1))
        shares = torch.cat([shares[:1], shares[1:] * self.meta("hyper_connection.magnitude")])
        return shares + self.meta("hyper_connection.epsilon")

    def hyper_blocks(self, x):
        """Weights of a token's own say what a half of a block reads of its vectors and adds to each."""
        x = x[:, None].repeat(1, self.meta("hyper_connection.count"), 1)
        for layer in range(self.layers):
            p = f"blk.{layer}."
            for name, norm, compute in (("hc_attn_", "attn_norm", lambda h: self.attention(h, layer)), ("hc_ffn_", "ffn_norm", lambda h: self.feed_forward(h, p))):
                read, added = self.hyper_shares(x, p + name)
                x = x + added[..., None] * compute(self.norm((read[..., None] * x).sum(1), p + norm))[:, None]
        return (self.hyper_shares(x, "output_hc_")[0][..., None] * x).sum(1)

    def keeping_blocks(self, x):
        """Blocks read mixtures of what earlier ones have read and of the sum since then."""
        kept = []

        def mixed(x, name):
            stack = torch.stack([*kept, x])
            scores = (self.plain_norm(stack, self.eps) * self.w[name + ".weight"]).sum(-1)
            return (torch.softmax(scores, 0)[..., None] * stack).sum(0)
        for layer in range(self.layers):
            p = f"blk.{layer}."
            read = mixed(x, p + "attn_res_score") if kept else x
            is_keeping = layer % self.meta("attn_res.block_size") == 0
            if is_keeping:
                kept.append(x)
            h = self.norm(read, p + "attn_norm")
            y = self.key_decay_net(h, p) if p + "ssm_f_a.weight" in self.w else self.attention(h, layer)
            x = y if is_keeping else x + y
            x = x + self.feed_forward(self.norm(mixed(x, p + "ffn_res_score"), p + "ffn_norm"), p)
        return mixed(x, "output_res_score")

    def altup_blocks(self, x):
        def length(y):
            return (y * y).mean(-1, keepdim=True).sqrt()
        others = torch.einsum("jed,td->jte", self.w["altup_proj.weight"], x)
        vectors = torch.cat([x[None], others * (length(x) / length(others))])
        for layer in range(self.layers):
            vectors = self.altup_block(vectors, layer)
        others = torch.einsum("jed,jtd->jte", self.w["altup_unembd_proj.weight"], vectors[1:])
        return (vectors[0] + (others * (length(vectors[0]) / length(others))).sum(0)) / 4

    def block(self, x, layer):
        p = f"blk.{layer}."
        if "rwkv" in self.arch:
            return rwkv_reference.block(self, x, layer)
        if self.arch in ENCODERS:
            y = self.norm(x + self.attention(x, layer), p + "attn_output_norm")
            if p + "attn_norm_2.weight" in self.w:
                y = self.norm(y + x, p + "attn_norm_2")
            return self.norm(y + self.feed_forward(y, p), p + "layer_output_norm")
        if self.arch == "arctic":
            y = x + self.attention(self.norm(x, p + "attn_norm"), layer)
            return y + self.dense(self.norm(y, p + "ffn_norm"), p) + self.mix(self.norm(x, p + "ffn_norm_exps"), p)
        if self.arch == "smallthinker":
            y = x + self.attention(self.norm(x, p + "attn_norm"), layer)
            return y + self.mix(self.norm(y, p + "ffn_norm"), p, x)
        if self.arch == "deci":
            if p + "attn_norm.weight" in self.w:
                x = x + self.attention(self.norm(x, p + "attn_norm"), layer)
            return x + self.dense(self.norm(x, p + "ffn_norm"), p) if p + "ffn_norm.weight" in self.w else x
        if self.arch == "muse-glimmer":  # what is added has an epsilon of its own
            y = x + self.plain_norm(self.attention(self.norm(x, p + "attn_norm"), layer), 1e-8) * self.w[p + "post_attention_norm.weight"]
            return y + self.plain_norm(self.dense(self.norm(y, p + "ffn_norm"), p), 1e-8) * self.w[p + "post_ffw_norm.weight"]
        residual = self.meta("residual_scale", 1.4 / self.layers ** 0.5 if "minicpm" in self.arch else 1.0)
        lacks_norms = self.arch in ("olmo2", "exaone4")
        h = x if lacks_norms or (self.arch == "modern-bert" and layer == 0) else self.norm(x, p + "attn_norm")
        read = self.norm(x, p + "attn_norm_2") if p + "attn_norm_2.weight" in self.w else h
        if self.arch.startswith(("mamba", "nemotron_h")):
            has_state, has_heads = p + "ssm_in.weight" in self.w, p + "attn_q.weight" in self.w
            return x + (self.mamba(h, p) if has_state else self.attention(h, layer) if has_heads else self.feed_forward(h, p))
        y = 0
        if p + "ssm_in.weight" in self.w:
            y = self.mamba(h, p)
        if p + "ssm_f_a.weight" in self.w:
            y = self.key_decay_net(h, p)
        elif p + "ssm_in.weight" not in self.w or p + "attn_q.weight" in self.w:
            y = y + self.attention(read, layer)
        if self.arch == "grok":
            y = x + self.norm(y, p + "attn_output_norm")
            late = p + ("layer_output_norm" if p + "layer_output_norm.weight" in self.w else "post_ffw_norm")
            return y + self.norm(self.feed_forward(self.norm(y, p + "ffn_norm"), p), late)
        after = p + "post_attention_norm"
        late = self.arch in ("seed_oss", "glm4moe", "gpt-oss", "qwen35", "qwen35moe", "qwen3next")
        before = after if late else p + "attn_output_norm" if self.arch == "dbrx" else p + "ffn_norm"
        if (after + ".weight" in self.w or after in self.w) and not late:
            y = self.norm(y, after)
        y = x + y * residual
        if p + "cross_attn_norm.weight" in self.w:
            y = y + self.cross_attention(y, layer)
        if self.parallel:
            f = self.norm(x, p + "ffn_norm") if p + "ffn_norm.weight" in self.w else h
        else:
            f = y if lacks_norms else self.norm(y, before)
        f = self.routed_beside_dense(y, p) if self.arch == "gemma4" and p + "ffn_down_exps.weight" in self.w else self.feed_forward(f, p)
        if p + "post_ffw_norm.weight" in self.w or p + "post_ffw_norm" in self.w:
            f = self.norm(f, p + "post_ffw_norm")
        y = y + f * residual
        if p + "inp_gate.weight" in self.w:
            y = y + self.layer_input(y, layer)
        return y * self.w.get(p + "layer_output_scale.weight", 1)

    @torch.no_grad()
    def logits(self, tokens):
        x = self.w["token_embd.weight"][torch.tensor(tokens)]
        if self.arch.startswith("gemma") or self.arch == "afmoe":
            x = x * self.dim ** 0.5
        x = x * self.meta("embedding_scale", 12.0 if "minicpm" in self.arch else 1.0)
        if "position_embd.weight" in self.w:
            x = x + self.w["position_embd.weight"][:len(tokens)]
        if "token_types.weight" in self.w:
            x = x + self.w["token_types.weight"][0]
        if "token_embd_norm.weight" in self.w and not self.arch.startswith("lfm2"):
            x = self.norm(x, "token_embd_norm")
        if self.arch == "muse-glimmer":
            x = self.plain_norm(x, self.eps)
        self.kept = {}
        if "per_layer_model_proj.weight" in self.w:
            self.start_layer_inputs(tokens, x)
        if "altup_proj.weight" in self.w:
            x = self.altup_blocks(x)
        elif "output_hc_fn.weight" in self.w:
            x = self.hyper_blocks(x)
        elif "output_res_score.weight" in self.w:
            x = self.keeping_blocks(x)
        else:
            if self.encoder_layers:  # the same text is read and written
                read = x
                for layer in range(self.encoder_layers):
                    read = self.block(read, layer)
                self.encoded = self.norm(read, "enc.output_norm")
            loops = self.meta("num_loops", 1)
            for i in range(loops):
                for layer in range(self.encoder_layers, self.layers):
                    x = self.block(x, layer)
                if i + 1 < loops and not self.meta("skip_loop_final_norm"):
                    x = self.norm(x, "output_norm")
        if self.arch in ENCODERS:
            return x
        x = self.norm(x, "dec.output_norm" if self.arch == "t5" else "enc.output_norm" if self.arch in ("neo-bert", "t5encoder") else "token_embd_norm" if self.arch.startswith("lfm2") else "output_norm")
        if self.arch == "gemma-embedding2":
            return self.linear(x, "output")
        if not self.is_causal:
            return x
        out = self.linear(x, "output") if "output.weight" in self.w else x @ self.w["token_embd.weight"].T
        if self.arch == "t5" and "output.weight" not in self.w:
            out = out * self.dim ** -0.5
        scale = self.meta("logit_scale", 256.0 / self.dim if "minicpm" in self.arch else 1.0)
        out = out / scale if self.arch in ("granite", "granitemoe", "granitehybrid", "granite_swa", "minicpm") else out * scale
        cap = self.meta("final_logit_softcapping", 30.0 if self.arch == "gemma3n" else 0)
        return cap * torch.tanh(out / cap) if cap else out

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
