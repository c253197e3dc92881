#!/usr/bin/env python3
"""Batches over paged caches for architectures that the bundled model is not: as one sequence alone, and the same bits in any company.

usage: batch_architectures.py LLAMA_BATCH_TEST [--daily N]    an N-th of them, another one every day

Random models of random_transformer.py: experts, sinks, windows, chunks, temperatures, latent attention, states.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ARCHITECTURES = ["qwen3moe", "gpt-oss", "llama4", "gemma3", "deepseek2", "minicpm3", "qwen3next", "qwen35", "lfm2",
                 "mamba", "falcon-h1", "granitehybrid", "jamba", "nemotron_h", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "kimi-linear", "bailingmoe3", "kimi-k3", "hy_v4", "grovemoe", "grok", "gemma3n --layers 10 --key attention.shared_kv_layers=3", "gemma4",
                 "afmoe", "arctic", "bitnet", "deci", "openelm", "smallthinker",
                 "glm-dsa --key attention.indexer.top_k=40 --key attention.indexer.head_count=8 --key attention.indexer.types=1,0,1",
                 "minimax-m3 --key attention.indexer.top_k=4 --key attention.indexer.block_size=16", "muse-glimmer",
                 "granite_swa", "laguna", "mimo2", "nanbeige", "plamo3", "step35",
                 "mistral4 --key attention.temperature_scale=0.1 --key attention.temperature_length=50"]
# Whose weights every pass reads: not divided over devices.
WHOLE = {"nanbeige"}

parser = argparse.ArgumentParser()
parser.add_argument("test")
parser.add_argument("--daily", type=int, default=1)
ARGUMENTS = parser.parse_args()
try:
    import numpy  # noqa: F401
except ImportError:
    print("skipped: no NumPy")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    for options in ARCHITECTURES[int(time.time()) // 86400 % ARGUMENTS.daily::ARGUMENTS.daily]:
        name = options.split()[0]
        model = os.path.join(folder, name + ".gguf")
        subprocess.run([sys.executable, os.path.join(HERE, "random_transformer.py"), model, "--arch", *options.split(), "--vocab", "256",
                        "--context", "512"], check=True)
        done = subprocess.run([ARGUMENTS.test, "--gtest_brief=1", "--gtest_filter=-*DividedAmongDevices*" if name in WHOLE else "--gtest_filter=*"], env={**os.environ, "BM_BATCH_MODEL": model}, check=False)
        if done.returncode != 0:
            sys.exit(f"{name}: exit code {done.returncode}")
        print(f"{name}: equal")
