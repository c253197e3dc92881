#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama.cpp as the judge of every architecture: random models, our logits beside its own.

    judge_models.py BUILD CHROOT [ARCHITECTURE …]

CHROOT: a folder with Debian sid's libllama0 and python3-numpy, entered as root. A prompt of 17 tokens is fed
at once and 15 more one by one; positions 17 to 32 are compared. Of encoders the hidden states of all tokens are. Prints the largest difference relative to
the largest logit; exits with 1 where one is above 0.02 (llama.cpp keeps keys and values in float16, and
rounds activations of some products). That rounding may also make another expert the best of two that are
almost as good: of models with experts one of three seeds must agree, and the number of seeds is printed.
"""

import os
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from random_transformer import ARCHITECTURES  # noqa: E402

# Baichuan's two sizes differ in how positions are told, and llama.cpp knows them by their blocks.
# The windows of two are numbers in its source: these see the whole text. Its loop over the states of RWKV 7 is made for heads of 64.
WIDE = ["--dim", "128", "--key", "wkv.head_size=64"]
# The experts that groups of GroveMoE share read something else there than in the authors' code: they count nothing.
PLAIN = {"baichuan": ["--layers", "32"], "grovemoe": ["--key", "expert_group_scale=0.0"], **dict.fromkeys(("rwkv7", "arwkv7"), WIDE), **dict.fromkeys(("exaone-moe", "smallthinker"), ["--key", "attention.sliding_window=100"])}
SINGLE = {"plm"}
ENCODERS = {"bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert", "nomic-bert",
            "nomic-bert-moe", "t5encoder", "gemma-embedding2"}
# Options of random_transformer.py beyond the plain model.
VARIANTS = {
    "llama": [["--tensor", "moe"], ["--tensor", "rope_freqs"], ["--key", "rope.scaling.type=yarn", "--key", "rope.scaling.factor=4.0", "--key",
               "rope.scaling.original_context_length=32"], ["--key", "rope.scaling.type=linear", "--key", "rope.scaling.factor=4.0"],
              ["--key", "rope.scaling.attn_factor=1.19"]],
    "phi3": [["--tensor", "rope_long", "--tensor", "rope_short", "--key", "rope.scaling.original_context_length=32", "--key",
              "rope.scaling.attn_factor=1.19"], ["--tensor", "rope_long", "--tensor", "rope_short", "--key", "rope.scaling.type=longrope", "--key",
              "rope.scaling.original_context_length=512", "--key", "rope.scaling.attn_factor=1.19"],
             ["--tensor", "rope_long", "--tensor", "rope_short", "--key", "rope.scaling.type=longrope", "--key",
              "rope.scaling.original_context_length=32", "--key", "rope.scaling.attn_factor=1.19"]],
    "falcon": [["--tensor", "attn_norm_2"]],
    "stablelm": [["--tensor", "headqknorm"], ["--without", "ffn_norm"]],
    "command-r": [["--tensor", "headqknorm", "--layers", "64"]],
    "olmo2": [["--key", "attention.sliding_window=5"]],
    "qwen2": [["--key", "rope.scaling.type=yarn", "--key", "rope.scaling.factor=4.0", "--key", "rope.scaling.original_context_length=32"]],
    "gptneox": [["--key", "use_parallel_residual=false"]],
    # Llama.cpp takes a file without inputs of the blocks to have none; values without a matrix are what keys are made of.
    "gemma4": [["--tensor", "moe", "--key", "embedding_length_per_layer_input=0", "--key", "attention.shared_kv_layers=0"],
               ["--without", "blk.2.attn_v"]],
    "gemma2": [["--layers", "46"]],
    # Groups by two, as in DeepSeek-V3: llama.cpp does so for V2 too, whose authors' code does not.
    "deepseek2": [["--tensor", "split", "--tensor", "probsbias", "--key", "expert_gating_func=2", "--key", "expert_weights_norm=true"],
                  ["--tensor", "plainq", "--layers", "27", "--key", "leading_dense_block_count=25"],
                  ["--tensor", "probsbias", "--key", "expert_gating_func=2", "--key", "expert_group_count=3", "--key",
                   "expert_group_used_count=2"],
                  ["--key", "rope.scaling.type=yarn", "--key", "rope.scaling.factor=4.0", "--key",
                   "rope.scaling.original_context_length=32", "--key", "rope.scaling.yarn_log_multiplier=0.0707"]],
    "baichuan": [["--layers", "40"]],
    "mamba": [["--key", "ssm.dt_b_c_rms=true"]],
    "falcon-h1": [["--without", "ssm_norm"]],
    "granitehybrid": [["--key", "rope.scaling.finetuned=true"]],
    "granite": [["--key", "rope.scaling.finetuned=false"]],
    "rwkv6": [["--tensor", "apart"]],
    "grok": [["--tensor", "dense"]],
    "qwen3": [["--tensor", "scales"]],
    "qwen3moe": [["--tensor", "scales"]],
    "arwkv7": [["--tensor", "nogate", *WIDE], ["--tensor", "mixnorm", *WIDE]],
    "glm4moe": [["--tensor", "nextn"], ["--key", "rope.dimension_sections=2,1,1,0"]],
    "glm4": [["--key", "rope.dimension_sections=2,1,1,0"]],
    "minicpm3": [["--tensor", "rope_long", "--tensor", "rope_short", "--key", "rope.scaling.original_context_length=512"]],
    # Attention reads 8 of up to 32 positions, or two blocks of 8. Its indexer's keys are float16: of two almost as good either may be read.
    "deepseek32": [["--key", "attention.indexer.top_k=8", "--key", "attention.indexer.head_count=8"]],
    "glm-dsa": [["--tensor", "nextn"], ["--key", "attention.indexer.top_k=8", "--key", "attention.indexer.head_count=8"],
                ["--key", "attention.indexer.top_k=8", "--key", "attention.indexer.head_count=8", "--key", "attention.indexer.types=1,0,1"]],
    "minimax-m3": [["--key", "attention.indexer.top_k=2", "--key", "attention.indexer.block_size=8"]],
    "hy_v3": [["--tensor", "nextn"]],
    "bailingmoe3": [["--tensor", "plainq"]],
    "kimi-k3": [["--tensor", "plainq", "--without", "attn_gate"]],
    "hy_v4": [["--tensor", "indexer", "--key", "attention.indexer.top_k=8", "--key", "attention.indexer.head_count=8", "--key",
               "attention.indexer.key_length=16", "--key", "attention.indexer.types=1,0,1"]],
    "nemotron_h_moe": [["--key", "moe_latent_size=32"]],
    "muse-glimmer": [["--key", "attention.sliding_window=64"]],
    # Tied matrices make other logits here, as in the authors' code: they are divided by the root of the width.
    # Blocks in unequal numbers it makes no context of.
    "t5": [["--tensor", "plainup", "--tensor", "biases"]],
    "t5encoder": [["--tensor", "plainup", "--tensor", "biases"], ["--key", "attention.relative_buckets_count=32"]],
    "exaone4": [["--layers", "64", "--key", "attention.sliding_window=5"]],
    "jina-bert-v2": [["--tensor", "attn_norm_2", "--tensor", "wholeqknorm"], ["--tensor", "fusedup"], ["--tensor", "plainup"]],
    "modern-bert": [["--key", "hidden_activation=silu"]],
    "mistral4": [["--tensor", "split", "--key", "rope.scaling.type=yarn", "--key", "rope.scaling.factor=4.0", "--key",
                  "rope.scaling.original_context_length=16", "--key", "rope.scaling.yarn_log_multiplier=0.1", "--key",
                  "attention.temperature_scale=0.1", "--key", "attention.temperature_length=16"]],
    "deci": [["--tensor", "rope_freqs"]],
    "cohere2moe": [["--key", "attention.layer_norm_rms_epsilon=0.00001"]],
    "granite_swa": [["--tensor", "moe"]],
    "mimo2": [["--tensor", "qkv"]],
    "k2-horizon": [["--without", "attn_gate"]],
    "nanbeige": [["--key", "skip_loop_final_norm=true"]],
    "step35": [["--tensor", "rope_freqs"]],
    "mistral3": [["--key", "rope.scaling.type=yarn", "--key", "rope.scaling.factor=4.0", "--key", "rope.scaling.original_context_length=16",
                  "--key", "rope.scaling.yarn_log_multiplier=1.0", "--key", "attention.temperature_scale=0.1"]],
    "phimoe": [["--tensor", "rope_long", "--tensor", "rope_short", "--key", "rope.scaling.type=longrope", "--key",
                "rope.scaling.original_context_length=512", "--key", "rope.scaling.attn_factor=1.19"]],
}


def judge(build, chroot, arch, options, number):
    inside, name = "/tmp/judge", f"{arch}-{number}.gguf"
    folder = chroot + inside
    os.makedirs(folder, exist_ok=True)
    is_encoder = arch in ENCODERS
    options = options + ["--key", "pooling_type=0"] if is_encoder else options
    subprocess.run([sys.executable, f"{HERE}/random_transformer.py", f"{folder}/{name}", "--arch", arch, "--seed", str(number + 1),
                    *options], check=True)
    rng = np.random.default_rng(number)
    tokens = [int(t) for t in rng.integers(0, 64, 32)]
    with open(f"{HERE}/llama_cpp_logits.py") as source, open(f"{folder}/logits.py", "w") as copy:
        copy.write(source.read())
    theirs = subprocess.run(["chroot", chroot, "python3", f"{inside}/logits.py", f"{inside}/{name}", "--tokens",
                             ",".join(map(str, tokens)), "--out", f"{inside}/theirs"] + ["--hidden"] * is_encoder + ["--single"] * (arch in SINGLE), stderr=subprocess.PIPE, text=True)
    if theirs.returncode != 0:
        return "llama.cpp: " + " | ".join(theirs.stderr.strip().splitlines()[-3:])
    ours = subprocess.run([f"{build}/bin/model_logits", f"{folder}/{name}", f"{folder}/ours", "17", *map(str, tokens)],
                          stderr=subprocess.PIPE, text=True)
    if ours.returncode != 0:
        return "ours: " + ours.stderr.strip()
    rows = 32 if is_encoder else 16
    a = np.fromfile(f"{folder}/ours", "<f4").reshape(rows, -1)
    b = np.fromfile(f"{folder}/theirs", "<f4").reshape(32, -1)[-rows:]
    return float(np.abs(a - b).max() / np.abs(b).max())


def main():
    build, chroot, *chosen = sys.argv[1:]
    is_bad = False
    for arch in chosen or sorted(ARCHITECTURES):
        for number, options in enumerate([PLAIN.get(arch, [])] + VARIANTS.get(arch, [])):
            has_experts = "moe" in ARCHITECTURES[arch].split() + options
            for attempt in range(3 if has_experts else 1):
                found = judge(build, os.path.abspath(chroot), arch, options, number + 100 * attempt)
                is_good = isinstance(found, float) and found < 0.02
                if is_good:
                    break
            is_bad = is_bad or not is_good
            print(f"{arch:12} {' '.join(options):60} {found if isinstance(found, str) else f'{found:.2e}'}{'' if is_good else '  <--'}"
                  + (f" ({attempt + 1} seeds)" if attempt else ""),
                  flush=True)
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
