#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama-server as the judge of rerankers and of dense layers behind embeddings: random models, its answers beside ours.

    judge_pooling.py BUILD CHROOT

CHROOT: a folder with Debian sid's llama.cpp-tools, entered as root. Prints the largest difference of scores, or of components of vectors; exits with 1
where one is above 0.01 (llama.cpp rounds activations of some products to float16), or where documents are ranked otherwise.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = [("bert", "cls"), ("modern-bert", "clsnorm"), ("qwen3", "yesno"), ("gemma-embedding", "dense2")]
QUERY = "what is a panda?"
DOCUMENTS = ["hi", "it is a bear", "The giant panda (Ailuropoda melanoleuca) is a bear species endemic to China.", "", "panda panda"]


def ask(port, path, fields):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def served_all(command, port, asks):
    """The answers of a server that `command` starts to pairs of path and fields."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            for _ in range(600):
                if server.poll() is not None:
                    sys.exit(server.stderr.read()[-1500:])
                try:
                    return [ask(port, path, fields) for path, fields in asks]
                except urllib.error.HTTPError as error:
                    if error.code != 503:
                        sys.exit(f"{command[0]}: {error.read().decode()[:500]}")
                except OSError:
                    pass
                time.sleep(0.1)
        finally:
            server.terminate()
    sys.exit(f"{command}: no answer")


def served(command, port, path, fields):
    return served_all(command, port, [(path, fields)])[0]


def values_of(answer):
    if "results" in answer:
        return [r["index"] for r in answer["results"]], [r["relevance_score"] for r in sorted(answer["results"], key=lambda r: r["index"])]
    return [], [v for d in answer["data"] for v in d["embedding"]]


def main():
    build, chroot = sys.argv[1], os.path.abspath(sys.argv[2])
    is_bad = False
    for number, (arch, kind) in enumerate(MODELS):
        path = f"/tmp/judge-{arch}.gguf"
        subprocess.run([sys.executable, f"{HERE}/random_transformer.py", chroot + path, "--arch", arch, "--seed", str(number + 1), "--tensor", kind, "--texts",
                        "--vocab", "300", "--context", "512"], check=True)
        is_rank = kind != "dense2"
        fields = {"query": QUERY, "documents": DOCUMENTS} if is_rank else {"input": [d for d in DOCUMENTS if d]}
        where = "/v1/rerank" if is_rank else "/v1/embeddings"
        theirs = served(["chroot", chroot, "llama-server", "-m", path, "--port", "18971", "--host", "127.0.0.1", "--reranking" if is_rank else "--embeddings",
                         "-c", "512", "-np", "1"], 18971, where, fields)
        ours = served([f"{build}/bin/bellmetal", "serve", chroot + path, "--listen", "127.0.0.1:18972"], 18972, where, fields)
        (their_order, b), (our_order, a) = values_of(theirs), values_of(ours)
        difference = max(abs(x - y) for x, y in zip(a, b, strict=True))
        is_good = difference < 0.01 and their_order == our_order and theirs["usage"] == ours["usage"]
        is_bad = is_bad or not is_good
        print(f"{arch:16} {kind:8} {len(a)} numbers, {difference:.1e}, order {our_order}, tokens {ours['usage']['prompt_tokens']}"
              + ("" if is_good else f"  <-- {their_order} {theirs['usage']} {b[:5]} {a[:5]}"), flush=True)
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
