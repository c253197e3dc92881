#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""transformers as the judge of folders of encoders and rerankers: what `bellmetal serve` answers beside its own vectors and scores.

    judge_encoders.py BUILD CHROOT [NAME …]

CHROOT: a folder with Debian sid's python3-transformers, entered as root. Small random models (hugging_face_vectors.py), texts of up to 900 tokens, and
300 random texts whose tokens are compared. Prints the largest difference of a vector's components, or of scores; exits with 1 where one is above 1e-4,
or 4e-3 of models that write text (their keys and values are float16 here), or where tokens differ.
"""

import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import judge_pooling  # noqa: E402

PORT = 18973


def main():
    build, chroot, *chosen = sys.argv[1:]
    inside = "/tmp/judge_encoders"
    folder = os.path.abspath(chroot) + inside
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for script in ("hugging_face_vectors.py", "hugging_face_logits.py", "random_texts.py"):
        shutil.copy(f"{HERE}/{script}", folder)
    made = subprocess.run(["chroot", chroot, "python3", f"{inside}/hugging_face_vectors.py", inside, *chosen],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        sys.exit(made.stdout)
    is_bad = False
    for file in sorted(f for f in os.listdir(folder) if f.endswith((".json", ".error"))):
        name = file.rsplit(".", 1)[0]
        with open(f"{folder}/{file}") as f:
            text = f.read()
        if file.endswith(".error"):
            print(f"{name:20} transformers: {text.strip().splitlines()[-1][:200]}  <--", flush=True)
            is_bad = True
            continue
        want = json.loads(text)
        is_rank = "scores" in want
        asks = [("/tokenize", {"prompt": t}) for t, _ in want["samples"]]
        asks.append(("/v1/rerank", {"query": want["query"], "documents": want["documents"]}) if is_rank else ("/v1/embeddings", {"input": want["texts"]}))
        try:
            *tokens, answer = judge_pooling.served_all([f"{build}/bin/bellmetal", "serve", f"{folder}/{name}", "--listen", f"127.0.0.1:{PORT}"], PORT, asks)
        except SystemExit as error:
            print(f"{name:20} {str(error).strip()[-300:]}  <--", flush=True)
            is_bad = True
            continue
        wrong = [(t, ids, got["tokens"]) for (t, ids), got in zip(want["samples"], tokens, strict=True) if ids != got["tokens"]]
        numbers = want["scores"] if is_rank else [v for vector in want["vectors"] for v in vector]
        ours = judge_pooling.values_of(answer)[1]
        difference = max(abs(x - y) for x, y in zip(numbers, ours, strict=True))
        limit = 4e-3 if name.startswith(("qwen", "Qwen", "mistral")) else 1e-4
        is_good = difference < limit and not wrong
        is_bad = is_bad or not is_good
        print(f"{name:20} {len(numbers):4} numbers, {difference:.1e}; texts of up to {want['most']} tokens; {len(wrong)} of {len(tokens)} texts have other tokens"
              f"{'' if is_good else '  <--'}", flush=True)
        for t, theirs, got in wrong[:2]:
            print("   ", repr(t), "\n      ours  ", got, "\n      theirs", theirs)
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
