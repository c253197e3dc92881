#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A trained model that somebody published, beside the program it was published with: llama2.c.

    judge_llama2c.py ABS_BUILD RUN CHECKPOINT TOKENIZER [--tokens 150] [--device CPU:CLANG …] [--keep OUT.gguf]

RUN is llama2.c's `run`, CHECKPOINT a file of its version 0 (stories260K.bin), TOKENIZER its vocabulary (tok512.bin). The
weights become a GGUF file, and both programs write greedily after the same beginning. Equal texts are demanded of every
device; `sim-amd` and `sim-nv` are the simulated machines. The file's order of tensors: export.py of llama2.c, legacy_export().
"""

import argparse
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from random_llama import write  # noqa: E402

BEGINNING = "Once upon a time"


def read_checkpoint(path):
    """Hyper-parameters as GGUF metadata, tensors by their names there."""
    with open(path, "rb") as f:
        data = f.read()
    dim, hidden, layers, heads, kv_heads, vocab, positions = struct.unpack("<7i", data[:28])
    values = iter_tensors(np.frombuffer(data, np.float32, offset=28))
    head = dim // heads
    t = {"token_embd.weight": values(abs(vocab), dim)}
    stacks = [("attn_norm", dim), ("attn_q", dim, dim), ("attn_k", kv_heads * head, dim), ("attn_v", kv_heads * head, dim),
              ("attn_output", dim, dim), ("ffn_norm", dim), ("ffn_gate", hidden, dim), ("ffn_down", dim, hidden), ("ffn_up", hidden, dim)]
    for name, *shape in stacks:
        stack = values(layers, *shape)
        t |= {f"blk.{n}.{name}.weight": stack[n] for n in range(layers)}
    t["output_norm.weight"] = values(dim)
    values(2, positions * head // 2)  # cosines and sines
    if vocab < 0:
        t["output.weight"] = values(-vocab, dim)
    return {"general.architecture": "llama", "llama.context_length": positions, "llama.embedding_length": dim,
            "llama.block_count": layers, "llama.feed_forward_length": hidden, "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv_heads, "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": head}, t


def iter_tensors(values):
    at = 0

    def take(*shape):
        nonlocal at
        count = int(np.prod(shape))
        if at + count > len(values):
            sys.exit("the checkpoint ends too early: is it one of version 0?")
        at += count
        return values[at - count:at].reshape(shape)
    return take


def read_tokenizer(path):
    with open(path, "rb") as f:
        data = f.read()
    tokens, scores, types, at = [], [], [], 4
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        text = data[at + 8:at + 8 + length]
        at += 8 + length
        n = len(tokens)
        # Numbers 0 to 2 are control tokens, the next 256 single bytes.
        tokens.append(("<unk>", "<s>", "</s>")[n] if n < 3 else f"<0x{n - 3:02X}>" if n < 259 else text.decode().replace(" ", "\u2581"))
        scores.append(float(score))
        types.append((2, 3, 3)[n] if n < 3 else 6 if n < 259 else 1)
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": types, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": True}


def main():
    ap = argparse.ArgumentParser()
    for name in ("build", "run", "checkpoint", "tokenizer"):
        ap.add_argument(name)
    ap.add_argument("--tokens", type=int, default=150)
    ap.add_argument("--device", action="append")
    ap.add_argument("--keep", help="where the GGUF file stays")
    a = ap.parse_args()
    metadata, tensors = read_checkpoint(a.checkpoint)
    bellmetal = os.path.join(a.build, "bin", "bellmetal")
    environment = {**os.environ, "BM_PLUGIN_DIR": os.path.join(a.build, "lib")}
    theirs = subprocess.run([a.run, a.checkpoint, "-z", a.tokenizer, "-t", "0.0", "-n", "100000", "-i", BEGINNING],
                            check=True, capture_output=True).stdout
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model = a.keep or os.path.join(folder, "model.gguf")
        write(model, metadata | read_tokenizer(a.tokenizer), tensors)
        for device in a.device or ["CPU:LLVM", "CPU:CLANG", "REF", "sim-amd", "sim-nv"]:
            front, name = ([os.path.join(a.build, "bin", device)], []) if device.startswith("sim-") else ([], ["--device", device])
            ours = subprocess.run([*front, bellmetal, "generate", model, BEGINNING, "--temperature", "0", "--max-tokens", str(a.tokens), *name],
                                  env=environment, check=True, capture_output=True).stdout.rstrip(b"\n")
            is_equal = theirs.startswith(BEGINNING.encode() + ours)
            failed += not is_equal
            print(f"{device}: {len(ours)} bytes, {'equal' if is_equal else 'DIFFERENT: ' + repr(ours)}", flush=True)
    if failed:
        print("llama2.c:", theirs)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
