#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""transformers as the judge of folders: small random models of its classes, our logits beside its own.

    judge_hugging_face.py BUILD CHROOT [CLASS …]

CHROOT: a folder with Debian sid's python3-transformers, entered as root. A prompt of 17 tokens is fed at once and 15 more one by one; positions
17 to 32 are compared. Prints the largest difference relative to the largest logit; exits with 1 where one is above 0.004 (keys and values are
float16 here). That rounding may make another expert the best of two that are almost as good: of models with experts one of three seeds must agree.
"""

import os
import shutil
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


LIMIT = 0.004


def compare(build, path, tokens):
    """The difference, or what went wrong."""
    if os.path.exists(path + ".error"):
        with open(path + ".error") as f:
            return "transformers: " + f.read().strip().splitlines()[-1]
    ours = subprocess.run([f"{build}/bin/model_logits", path, path + ".ours", "17", *tokens], stderr=subprocess.PIPE, text=True)
    if ours.returncode != 0:
        return "ours: " + ours.stderr.strip()
    a, b = np.fromfile(path + ".ours", "<f4").reshape(16, -1), np.fromfile(path + ".f32", "<f4").reshape(32, -1)[16:]
    return float(np.abs(a - b).max() / np.abs(b).max())


def main():
    build, chroot, *chosen = sys.argv[1:]
    inside = "/tmp/judge_hugging_face"
    folder = os.path.abspath(chroot) + inside
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    shutil.copy(f"{HERE}/hugging_face_logits.py", folder)
    tokens = [str(t) for t in np.random.default_rng(5).integers(1, 62, 32)]
    made = subprocess.run(["chroot", chroot, "python3", f"{inside}/hugging_face_logits.py", inside, ",".join(tokens), *chosen],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        sys.exit(made.stdout)
    models = {}
    for name in sorted(n for n in os.listdir(folder) if n.endswith((".f32", ".error"))):
        models.setdefault(name.rsplit("-", 1)[0], []).append(f"{folder}/{os.path.splitext(name)[0]}")
    is_bad = False
    for name, seeds in models.items():
        found = [compare(build, path, tokens) for path in seeds]
        good = [f for f in found if isinstance(f, float) and f < LIMIT]
        is_bad = is_bad or not good
        text = ", ".join(f if isinstance(f, str) else f"{f:.1e}" for f in found)
        print(f"{name:36} {text[:150]}{'' if good else '  <--'}", flush=True)
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
