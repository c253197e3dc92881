#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama.cpp as the judge of tokenizers in GGUF files: small vocabularies, random texts.

    judge_tokenizers.py BUILD CHROOT [--texts 400] [--seed 1] [NAME …]

CHROOT as for judge_models.py; BUILD has bin/model_tokens. NAME: a value of tokenizer.ggml.pre, or llama, t5, bert,
rwkv, gemma4, plamo2, plamo3, hybriddna, whitespace; without, all. Prints how many texts are cut into other tokens, with the first of them; exits with 1
where one is.
"""

import argparse
import ctypes
import itertools
import os
import random
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import random_texts  # noqa: E402

INSIDE = "/tmp/judge_tokenizers"
# "gpt2" with merges of characters, as Gemma 4's.
CHARACTER_PRES = ["granite-embed-multi-311m", "mmbert", "sarvam-moe"]
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def byte_alphabet():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelling, extra = {}, 256
    for b in range(256):
        spelling[b] = chr(b) if b in kept else chr(extra)
        extra += b not in kept
    return spelling


def byte_level(pre):
    spell = byte_alphabet()
    words = [[spell[b] for b in part.encode()] for t in random_texts.texts(300, 7) for part in re.findall(r"\s*\S+|\s+", t)]
    merges = random_texts.train(words, 500, 7)
    tokens = [(spell[b], NORMAL) for b in range(256)] + [(a + b, NORMAL) for a, b in dict.fromkeys(merges)]
    tokens = list(dict.fromkeys(tokens)) + [("<|begin|>", CONTROL), ("<|end|>", CONTROL), ("<tool>", USER)]
    n = len(tokens)
    return tokens, {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
                    "tokenizer.ggml.bos_token_id": n - 3, "tokenizer.ggml.eos_token_id": n - 2}


def marked_words():
    return [list(part.replace(" ", "▁")) for t in random_texts.texts(300, 7) for part in re.findall(r"[^\n]+|\n+", t)]


def sentence_pieces(model):
    """Characters and what merging makes of them; all steps of a merge are tokens, as SentencePiece has it."""
    words = marked_words()
    merges = random_texts.train(words, 500, 7)
    characters = sorted({c for w in words[:150] for c in w if c.isprintable()} | {"\n"})
    # Unigram models have no bytes: what is in no piece is unknown.
    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{b:02X}>", BYTE) for b in range(256)] if model != "t5" else []
    first = len(tokens)
    made = [a + b for a, b in merges if all(c in characters for c in a + b)]
    taken = {t for t, _ in tokens}
    made = [t for t in dict.fromkeys([*made, *characters, "▁"]) if t not in taken]
    tokens += [(t, NORMAL) for t in made] + [("<tool> x", USER)]
    scores = [0.0] * first + [-float(i) for i in range(len(made))] + [0.0]
    meta = {"tokenizer.ggml.model": model, "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0}
    if model == "gemma4":
        meta["tokenizer.ggml.merges"] = [f"{a} {b}" for a, b in merges if a + b in made]
        tokens += [("\n\n\n", NORMAL)] if "\n\n\n" not in made else []
        scores += [0.0] * (len(tokens) - len(scores))
    if model == "t5":
        rng = random.Random(3)
        meta["tokenizer.ggml.scores"] = [0.0] * first + [-rng.uniform(2, 12) * (1 + 1 / len(t)) for t in made] + [0.0]
        meta.update({"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True,
                     "tokenizer.ggml.remove_extra_whitespaces": True, "tokenizer.ggml.add_space_prefix": True})
    return tokens, meta


def word_pieces():
    rng = random.Random(5)
    words = {w.lower() for w in random_texts.WORDS if w}
    letters = sorted({c for w in words for c in w})
    pieces = {"▁" + w for w in words if rng.random() < 0.4} | {"▁" + c for c in letters} | {c for c in letters}
    for w in words:
        for _ in range(3):
            i, j = sorted((rng.randrange(len(w) + 1), rng.randrange(len(w) + 1)))
            if i < j:
                pieces.add(("▁" if i == 0 else "") + w[i:j])
    tokens = [("[PAD]", CONTROL), ("[UNK]", UNKNOWN), ("[CLS]", CONTROL), ("[SEP]", CONTROL), ("[MASK]", CONTROL)] + [(p, NORMAL) for p in sorted(pieces)]
    return tokens, {"tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "default", "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.bos_token_id": 2,
                    "tokenizer.ggml.cls_token_id": 2, "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.token_type_count": 2}


def rwkv():
    rng = random.Random(9)
    pieces = {bytes([b]) for b in range(256)}
    for t in random_texts.texts(200, 7):
        raw = t.encode()
        for _ in range(4):
            i = rng.randrange(len(raw))
            pieces.add(raw[i:i + rng.randrange(1, 7)])

    def spell(raw):  # as Python spells bytes, with the quotes that RWKV's own list has escaped
        return "".join(chr(b) if 32 <= b < 127 and b not in b"\\'\"" else {10: "\\n", 9: "\\t", 13: "\\r", 92: "\\\\", 39: "\\'"}.get(b, f"\\x{b:02x}")
                       for b in raw)
    tokens = [("<s>", CONTROL)] + [(spell(p), NORMAL) for p in sorted(pieces)]
    return tokens, {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.unknown_token_id": 0}


def plamo(model):
    """Pieces of texts with random scores. Texts have none of the control tokens: llama.cpp finds these in ordinary text."""
    rng = random.Random(13)
    words = [list(part) for t in random_texts.texts(300, 7) for part in re.findall(r"\s?\S+|\s+", t)]
    tokens = [("<|plamo:unk|>", UNKNOWN), ("<|plamo:bos|>", CONTROL), ("<|plamo:eos|>", CONTROL), ("<|plamo:pad|>", CONTROL)]
    tokens += [(f"<0x{b:02X}>", BYTE) for b in range(256)]
    first = len(tokens)
    made = ["".join(m) for m in random_texts.train(words, 500, 7)] + sorted({c for w in words[:150] for c in w}) + ["aa", "aaaa", "  ", "<|plamo:sep|>", "sep"]
    tokens += [(t, NORMAL) for t in dict.fromkeys(made) if "\0" not in t and not t.startswith("<0x")] + [("<tool> x", USER)]
    scores = [0.0] * first + [-rng.uniform(2, 12) * (1 + 1 / len(t)) for t, _ in tokens[first:]]
    return tokens, {"tokenizer.ggml.model": model, "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
                    "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": True}


PLAMO_TEXTS = ["<|plamo:sep|>hello", "a<|plamo:|>b", "<|plamo:no marker", "<|plamo:a b|>", "<|plamo:" + "x" * 64 + "|>y", "<|plamo:" + "x" * 65 + "|>y", "aaa", "aaaa",
               "baaaaab", "   x  y z", "\ufeffkeep", "pre\uee00post", "\uee00\uee00a\uee00", "<<<<|plamo:sep|>>>>>", "\n\n\n\n\n", "ああああああ<|plamo:あ|>", "-----aa----"]


def whitespace_words():
    words = [list(w.lower()) for t in random_texts.texts(300, 7) for w in t.split()]
    merges = random_texts.train(words, 500, 7)
    tokens = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN), ("<mask>", CONTROL), ("<0x20>", BYTE)]
    made = sorted({c for w in words[:150] for c in w}) + ["".join(m) for m in merges]
    tokens += [(t, NORMAL) for t in dict.fromkeys(made)] + [("<tool> x", USER)]
    return tokens, {"tokenizer.ggml.model": "whitespace", "tokenizer.ggml.pre": "whitespace", "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
                    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 3,
                    "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.normalizer.lowercase": True}


def dna(base):
    tokens, meta = base
    sixes = ["".join(letters) + "\ue000" for letters in itertools.product("ACGT", repeat=6)]
    return [*tokens, ("<dna>", NORMAL), ("</dna>", NORMAL), ("<oov>", NORMAL), *((s, NORMAL) for s in sixes)], {
        **meta, "tokenizer.ggml.model": "hybriddna", "tokenizer.ggml.pre": "qwen2"}


DNA_TEXTS = ["<dna>ACGTAC</dna>", "what is <dna>acgtacgtnn</dna> here? ACGTAC", "<dna>", "</dna>x", "a<dna>ACG", "<dna>ACGTACNNNNNN<dna>AC</dna></dna>", "<dna></dna>"]


def write(path, tokens, meta):
    import gguf_numpy as gg
    import numpy as np
    m = {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32, "llama.block_count": 1,
         "llama.feed_forward_length": 32, "llama.attention.head_count": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5,
         "tokenizer.ggml.tokens": [t for t, _ in tokens], "tokenizer.ggml.token_type": [k for _, k in tokens], **meta}

    def kind(key, v):
        if isinstance(v, list):
            return 9, 8 if isinstance(v[0], str) else 6 if isinstance(v[0], float) else 5
        return (7 if isinstance(v, bool) else 8 if isinstance(v, str) else 6 if isinstance(v, float) else 4), None
    t = {"token_embd.weight": (len(tokens), 32), "output_norm.weight": (32,), "blk.0.attn_norm.weight": (32,), "blk.0.ffn_norm.weight": (32,)}
    t.update({f"blk.0.{n}.weight": (32, 32) for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")})
    gg.write(path, m, {k: kind(k, v) for k, v in m.items()}, [(n, list(reversed(s)), "F32", np.zeros(s, "<f4").tobytes()) for n, s in t.items()])


def llama_cpp(path, texts_path, special):
    """Run inside CHROOT: prints lines of ids."""
    from llama_cpp_logits import Blob
    for name in ("libggml-base.so.0", "libggml.so.0"):
        ggml = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        if hasattr(ggml, "ggml_backend_load_all"):
            ggml.ggml_backend_load_all()
    llama = ctypes.CDLL("libllama.so.0")
    llama.llama_model_default_params.restype = Blob
    llama.llama_model_load_from_file.restype, llama.llama_model_load_from_file.argtypes = ctypes.c_void_p, (ctypes.c_char_p, Blob)
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"{path}: llama.cpp does not load it")
    llama.llama_model_get_vocab.restype, llama.llama_model_get_vocab.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    vocab = llama.llama_model_get_vocab(model)
    tokenize = llama.llama_tokenize
    tokenize.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool)
    out = (ctypes.c_int32 * 65536)()
    for raw in open(texts_path, "rb").read().split(b"\0"):
        n = tokenize(vocab, raw, len(raw), out, len(out), True, special)
        print(",".join(map(str, out[:n])))


def pre_names():
    with open(f"{HERE}/../../models/tokenizer_split.cpp") as f:
        return re.findall(r'^    \{"([^"]+)", k', f.read(), re.M)


def main():
    if sys.argv[1:2] == ["--inside"]:
        return llama_cpp(sys.argv[2], sys.argv[3], sys.argv[4] == "special")
    ap = argparse.ArgumentParser(description="llama.cpp as the judge of tokenizers.")
    ap.add_argument("build")
    ap.add_argument("chroot")
    ap.add_argument("names", nargs="*")
    ap.add_argument("--texts", type=int, default=400)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_intermixed_args()
    folder = os.path.abspath(a.chroot) + INSIDE
    os.makedirs(folder, exist_ok=True)
    for name in ("judge_tokenizers.py", "llama_cpp_logits.py", "random_texts.py"):
        with open(f"{HERE}/{name}") as source, open(f"{folder}/{name}", "w") as copy:
            copy.write(source.read())
    texts = random_texts.texts(a.texts, a.seed)
    rng = random.Random(a.seed)
    marks = ["<|end|>", "</s>", "<tool>", "<tool> x", "[SEP]", "[MASK]", "<s>"]
    with_marks = [t + rng.choice(marks) + rng.choice(texts) for t in texts[:60]]
    base = byte_level("")
    is_bad = False
    for name in a.names or ["llama", "gemma4", *CHARACTER_PRES, "t5", "bert", "rwkv", "plamo2", "plamo3", "hybriddna", "whitespace", *pre_names()]:
        if name in ("llama", "gemma4", "t5"):
            tokens, meta = sentence_pieces(name)
        elif name in CHARACTER_PRES:
            tokens, meta = sentence_pieces("gemma4")
            meta = {**meta, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name}
        elif name == "bert":
            tokens, meta = word_pieces()
        elif name == "rwkv":
            tokens, meta = rwkv()
        elif name.startswith("plamo"):
            tokens, meta = plamo(name)
        elif name == "hybriddna":
            tokens, meta = dna(base)
        elif name == "whitespace":
            tokens, meta = whitespace_words()
        else:
            tokens, meta = base[0], {**base[1], "tokenizer.ggml.pre": name}
        write(f"{folder}/vocab.gguf", tokens, meta)
        more = PLAMO_TEXTS if name.startswith("plamo") else DNA_TEXTS if name == "hybriddna" else []
        for mode, cases in (("plain", texts + more), ("special", with_marks)):
            with open(f"{folder}/texts", "wb") as f:
                f.write("\0".join(cases).encode())
            theirs = subprocess.run(["chroot", os.path.abspath(a.chroot), "python3", f"{INSIDE}/judge_tokenizers.py", "--inside", f"{INSIDE}/vocab.gguf",
                                     f"{INSIDE}/texts", mode], capture_output=True, text=True)
            ours = subprocess.run([f"{a.build}/bin/model_tokens", f"{folder}/vocab.gguf", f"{folder}/texts", *(["special"] if mode == "special" else [])],
                                  capture_output=True, text=True)
            if theirs.returncode or ours.returncode:
                is_bad = is_bad or not theirs.returncode
                print(f"{name:24} {mode:8}", "llama.cpp: " + theirs.stderr.strip().splitlines()[-3][-120:] if theirs.returncode else
                      "ours: " + ours.stderr.strip(), flush=True)
                break
            a_lines, b_lines = ours.stdout.split("\n"), theirs.stdout.split("\n")
            wrong = [i for i, t in enumerate(cases) if a_lines[i] != b_lines[i]]
            is_bad = is_bad or bool(wrong)
            print(f"{name:24} {mode:8} {len(wrong)} of {len(cases)}", flush=True)
            for i in wrong[:2]:
                print("   ", repr(cases[i]), "\n      ours  ", a_lines[i], "\n      theirs", b_lines[i])
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
