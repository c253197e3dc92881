#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random models and their logits by PyTorch, many in one process: importing torch costs seconds.

    architecture_references.py FOLDER TOKENS "llama" "falcon --tensor attn_norm_2" …

TOKENS: separated by commas. Writes FOLDER/0.gguf and FOLDER/0.f32, then 1, and so on: options of
random_transformer.py, and the logits of every position, [tokens, vocabulary] little-endian float32. One more
option is "--type Q4_K": matrices in that format, and the logits of what they stand for.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import llama_reference  # noqa: E402
import quantize_gguf  # noqa: E402
import random_transformer  # noqa: E402

folder, tokens, *models = sys.argv[1:]
for number, options in enumerate(models):
    path = os.path.join(folder, f"{number}.gguf")
    options, _, kind = options.partition(" --type ")
    sys.argv = ["random_transformer.py", path, "--arch", *options.split()]
    random_transformer.main()
    if kind:
        os.rename(path, path + ".f32")
        quantize_gguf.quantise_matrices(path + ".f32", path, kind)
        os.remove(path + ".f32")
    logits = llama_reference.Llama(path).logits([int(t) for t in tokens.split(",")])
    logits.numpy().astype("<f4").tofile(os.path.join(folder, f"{number}.f32"))
