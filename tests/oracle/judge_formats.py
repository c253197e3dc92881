#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama.cpp as the judge of every number format: a random model quantised by ggml, our logits beside its own.

    judge_formats.py BUILD CHROOT [TYPE …]

CHROOT: as for judge_models.py. For every type: how far the logits of blocks are from those of the same weights as
float32, ours and llama.cpp's, as the root of the mean square over positions 17 to 32 relative to the largest logit.
Exits with 1 where ours are farther than llama.cpp's by more than a tenth. TYPE+scales: every matrix has a scale beside
those of its blocks, as files of NVFP4 have.
"""

import os
import shutil
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import gguf_numpy as gg  # noqa: E402

INSIDE = "/tmp/judge"
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 64, 32)]


def theirs(chroot, name):
    run = subprocess.run(["chroot", chroot, "python3", f"{INSIDE}/llama_cpp_logits.py", f"{INSIDE}/{name}.gguf", "--tokens",
                          ",".join(map(str, TOKENS)), "--out", f"{INSIDE}/{name}.theirs"], stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        raise RuntimeError("llama.cpp: " + " | ".join(run.stderr.strip().splitlines()[-3:]))
    return np.fromfile(f"{chroot}{INSIDE}/{name}.theirs", "<f4").reshape(32, -1)[16:]


def ours(build, folder, name):
    run = subprocess.run([f"{build}/bin/model_logits", f"{folder}/{name}.gguf", f"{folder}/{name}.ours", "17", *map(str, TOKENS)],
                         stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        raise RuntimeError("ours: " + run.stderr.strip())
    return np.fromfile(f"{folder}/{name}.ours", "<f4").reshape(16, -1)


def main():
    build, chroot, *chosen = sys.argv[1:]
    folder = os.path.abspath(chroot) + INSIDE
    os.makedirs(folder, exist_ok=True)
    for script in ("gguf_numpy.py", "ggml_dequantise.py", "ggml_quantise.py", "llama_cpp_logits.py"):
        shutil.copy(f"{HERE}/{script}", folder)
    for name, options in (("random", []), ("random+scales", ["--tensor", "scales"])):
        subprocess.run([sys.executable, f"{HERE}/random_transformer.py", f"{folder}/{name}.gguf", "--arch", "llama", "--dim", "512", "--heads", "8",
                        "--ffn", "1024", "--layers", "2", *options], check=True)
    is_bad = False
    for kind in chosen or [name for name, values, _ in gg.TYPES.values() if values > 1] + ["NVFP4+scales"]:
        wanted, plus, scales = kind.partition("+")
        try:
            subprocess.run(["chroot", chroot, "python3", f"{INSIDE}/ggml_quantise.py", f"{INSIDE}/random{plus}{scales}.gguf",
                            f"{INSIDE}/blocks.gguf", f"{INSIDE}/floats.gguf", wanted], check=True)
            exact = ours(build, folder, "floats")
            scale = np.abs(exact).max()
            own, other = (float(np.sqrt(((x - exact) ** 2).mean()) / scale)
                          for x in (ours(build, folder, "blocks"), theirs(chroot, "blocks")))
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print(f"{kind:8} {e}", flush=True)
            is_bad = True
            continue
        is_good = own <= 1.1 * other
        is_bad = is_bad or not is_good
        print(f"{kind:12} ours {own:.2e}  llama.cpp {other:.2e}{'' if is_good else '  <--'}", flush=True)
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
