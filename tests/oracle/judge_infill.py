#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama-server as the judge of /infill and /completion: a random model with tokens for gaps, its answers beside ours.

    judge_infill.py BUILD CHROOT

CHROOT: a folder with Debian sid's llama.cpp-tools, entered as root. Every request leaves one token to choose (top_k 1, or min_p 1 behind other samplers),
so that texts are comparable token by token, but for the end token that llama-server counts. Prints each request's answer; exits with 1 where prompt, tokens, text or kind of end differ.
"""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import gguf_numpy as gg  # noqa: E402
import judge_pooling  # noqa: E402
import random_transformer  # noqa: E402

ROLES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
EXTRA = [{"text": "import os\n", "filename": "a.py", "time": [1, 2]}, {"text": "z = 1\n"}]
GAP = {"input_prefix": "def f(x):\n", "input_suffix": "\n    return y\n", "input_extra": EXTRA, "prompt": "    y = ", "n_predict": 24, "cache_prompt": True}
GREEDY = {"top_k": 1, "samplers": ["top_k"]}
# What leaves the likeliest of what the samplers before it leave.
LIKELIEST = {"min_p": 1.0}
REQUESTS = {
    "greedy": ("/infill", {**GAP, **GREEDY}),
    "letters": ("/infill", {**GAP, "top_k": 1, "samplers": "k"}),
    "no extra": ("/infill", {**GAP, **GREEDY, "input_extra": []}),
    "long prefix": ("/infill", {**GAP, **GREEDY, "input_prefix": "abc def\n" * 250, "input_suffix": "x = 1\n" * 150}),
    "many extra": ("/infill", {**GAP, **GREEDY, "input_extra": [{"filename": f"{i}.py", "text": f"line {i}\n" * 20} for i in range(6)]}),
    "infill": ("/infill", {**GAP, **LIKELIEST, "top_k": 40, "top_p": 0.99, "samplers": ["top_k", "top_p", "infill", "min_p"]}),
    "infill, few": ("/infill", {**GAP, **LIKELIEST, "top_k": 3, "samplers": ["top_k", "infill", "min_p"]}),
    "infill, cold": ("/infill", {**GAP, **LIKELIEST, "top_k": 10, "temperature": 0.3, "samplers": ["temperature", "top_k", "infill", "min_p"]}),
    "infill, warm": ("/infill", {**GAP, **LIKELIEST, "top_k": 10, "temperature": 2.0, "samplers": ["temperature", "top_k", "infill", "min_p"]}),
    "stop": ("/infill", {**GAP, **GREEDY, "stop": ["bbb"]}),
    "penalties": ("/infill", {**GAP, **GREEDY, "repeat_penalty": 1.5, "repeat_last_n": 8, "samplers": ["penalties", "top_k"]}),
    "biased line": ("/infill", {**GAP, **GREEDY, "n_indent": 4, "logit_bias": {"13": 60.0}}),
    "completion": ("/completion", {"prompt": "hello", "n_predict": 8, **GREEDY}),
    "completion of tokens": ("/completion", {"prompt": [1, 80, 90, 100], "n_predict": 8, **GREEDY}),
    "fields": ("/infill", {**GAP, **GREEDY, "response_fields": ["content", "timings/prompt_n", "truncated", "generation_settings/top_k", "nothing", ""]}),
}


def model(path, scale):
    subprocess.run([sys.executable, f"{HERE}/random_transformer.py", path, "--arch", "llama", "--seed", "2", "--texts", "--vocab", "300", "--context", "4096"], check=True)
    g = gg.GGUF(path)
    tokens, kinds = list(g.metadata["tokenizer.ggml.tokens"]), list(g.metadata["tokenizer.ggml.token_type"])
    for i, name in enumerate(ROLES, 290):
        tokens[i], kinds[i] = name, 3
    for i in range(259, 290):  # texts that begin others
        tokens[i] = "ab"[i % 2] * (1 + i % 5) + "x" * ((i - 259) // 10) + ("" if i < 270 else str(i))
    tokens[259:290] = [t if tokens.index(t) == i else f"u{i}" for i, t in enumerate(tokens[259:290], 259)]
    weights = {name: g.get(name) for name in g.tensors}
    weights["output.weight"] = weights["output.weight"] * scale
    random_transformer.write(path, {**g.metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}, weights)


def main():
    build, chroot = sys.argv[1], os.path.abspath(sys.argv[2])
    path, is_bad = "/tmp/judge-infill.gguf", False
    for scale in (2, 4, 8):
        model(chroot + path, scale)
        asks = [(where, {**fields, "return_tokens": True}) for where, fields in REQUESTS.values()]
        theirs = judge_pooling.served_all(["chroot", chroot, "llama-server", "-m", path, "--port", "18971", "--host", "127.0.0.1", "-c", "4096", "-np", "1"], 18971, asks)
        ours = judge_pooling.served_all([f"{build}/bin/bellmetal", "serve", chroot + path, "--listen", "127.0.0.1:18972"], 18972, asks)
        for name, a, b in zip(REQUESTS, ours, theirs, strict=True):
            keys = ["content"] if name == "biased line" else ["content", "tokens", "tokens_evaluated", "stop_type", "stopping_word", "tokens_predicted", "truncated"]
            if b.get("stop_type") == "eos":  # its end is a token of the text
                b["tokens"], b["tokens_predicted"] = b["tokens"][:-1], b["tokens_predicted"] - 1
            is_good = all(a.get(k) == b.get(k) for k in keys)
            if name == "fields":
                is_good = list(a) == list(b) and is_good
            is_bad = is_bad or not is_good
            print(f"{scale} {name:22} {len(a.get('tokens', []))} tokens, {a.get('stop_type')}" + ("" if is_good else f"  <--\n   ours   {a}\n   theirs {b}"), flush=True)
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
