#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hugging Face's tokenizers library as the judge of tokenizer.json: the shapes of published files, random texts.

    judge_tokenizer_json.py BUILD NODE_MODULES [--texts 300] [--seed 1] [NAME …]

NODE_MODULES: a folder in which `npm install tokenizers` has been run, its node_modules; node runs the library. BUILD has
bin/model_tokens. Prints how many texts are cut into other tokens; exits with 1 where one is.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import judge_tokenizers  # noqa: E402
import random_texts  # noqa: E402
import gguf_numpy as gg  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def added(vocab, *names, **more):
    return [{"id": len(vocab) + i, "content": name, "special": name.startswith(("<|", "[", "<s", "</s")), "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, **more} for i, name in enumerate(names)]


def template(vocab_id, before, after):
    def one(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [*map(one, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(one, after)],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [vocab_id[name]], "tokens": [name]} for name in {*before, *after}}}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(**options):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **options}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def make(model, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": model, **parts}


def shapes():
    tokens, meta = judge_tokenizers.byte_level("")
    texts = [t for t, kind in tokens if kind == judge_tokenizers.NORMAL]
    vocab, merges = {t: i for i, t in enumerate(texts)}, meta["tokenizer.ggml.merges"]
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
           "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}
    extra = added(vocab, "<|begin|>", "<|end|>", "<tool>")
    ids = {x["content"]: x["id"] for x in extra}
    yield "gpt2", make(bpe, pre_tokenizer=byte_level(use_regex=True), added_tokens=extra)
    yield "gpt2-prefix", make(bpe, pre_tokenizer=byte_level(use_regex=True, add_prefix_space=True), added_tokens=extra)
    yield "llama3", make({**bpe, "ignore_merges": True}, pre_tokenizer=sequence("pretokenizers", split(LLAMA3), byte_level()), added_tokens=extra,
                         post_processor=sequence("processors", byte_level(), template(ids, ["<|begin|>"], [])))
    yield "merges-as-pairs", make({**bpe, "merges": [m.split(" ") for m in merges]}, pre_tokenizer=byte_level(use_regex=True), added_tokens=extra)
    yield "qwen2", make(bpe, normalizer={"type": "NFC"}, pre_tokenizer=sequence("pretokenizers", split(QWEN2), byte_level()), added_tokens=extra)
    yield "o200k", make(bpe, pre_tokenizer=sequence("pretokenizers", split(O200K), byte_level()), added_tokens=extra)
    yield "deepseek3", make(bpe, normalizer=sequence("normalizers"), added_tokens=extra, pre_tokenizer=sequence(
        "pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"),
        split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
        byte_level()))
    yield "deepseek-coder", make(bpe, added_tokens=extra, pre_tokenizer=sequence(
        "pretokenizers", split("[\\r\\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True},
        byte_level()))
    yield "falcon", make(bpe, added_tokens=extra, pre_tokenizer=sequence(
        "pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(use_regex=True), {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]")))
    yield "starcoder", make(bpe, added_tokens=extra, pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)))
    yield "bloom", make(bpe, added_tokens=extra, pre_tokenizer=sequence("pretokenizers", split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), byte_level()))
    yield "roberta", make(bpe, added_tokens=added(vocab, "<s>", "</s>") + added([*vocab, 0, 0], "<mask>", lstrip=True, normalized=True),
                          pre_tokenizer=byte_level(use_regex=True), post_processor={"type": "RobertaProcessing", "sep": ["</s>", len(vocab) + 1], "cls": ["<s>", len(vocab)],
                                                                                   "trim_offsets": True, "add_prefix_space": False})
    tokens, meta = judge_tokenizers.sentence_pieces("gemma4")
    vocab = {t: i for i, (t, _) in enumerate(tokens)}
    spm = {**bpe, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab, "merges": meta["tokenizer.ggml.merges"]}
    own = [{"id": i, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
           for i, name in enumerate(("<unk>", "<s>", "</s>"))]
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    yield "llama2", make(spm, normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, mark), added_tokens=own, post_processor=template(vocab, ["<s>"], []))
    yield "gemma", make(spm, normalizer=mark, pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                        added_tokens=own, post_processor=template(vocab, ["<s>"], []))
    yield "mistral", make(spm, pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, added_tokens=own)
    yield "no-fallback", make({**spm, "byte_fallback": False, "fuse_unk": False}, pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                              added_tokens=own)
    yield "fused-unknown", make({**spm, "byte_fallback": False}, pre_tokenizer={"type": "Whitespace"}, added_tokens=own)
    tokens, meta = judge_tokenizers.sentence_pieces("t5")
    pieces = [[t, s] for (t, _), s in zip(tokens, meta["tokenizer.ggml.scores"])]
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    for name, scheme, cut in (("t5", "always", True), ("xlmr", "first", True), ("never", "never", True), ("whole", "always", False)):
        yield name, make(unigram, normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
                         pre_tokenizer=sequence("pretokenizers", *([{"type": "WhitespaceSplit"}] if name == "xlmr" else []),
                                                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}),
                         added_tokens=own, post_processor=template({"</s>": 2}, [], ["</s>"]))
    yield "unigram-bytes", make({**unigram, "byte_fallback": True}, pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                                added_tokens=own)
    tokens, meta = judge_tokenizers.word_pieces()
    names = [t if kind != judge_tokenizers.NORMAL else t[1:] if t.startswith("▁") else "##" + t for t, kind in tokens]
    vocab = {t: i for i, t in enumerate(dict.fromkeys(names))}
    own = [{"id": vocab[n], "content": n, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
           for n in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    piece = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}
    for name, lower, accents, chinese in (("bert", True, None, True), ("bert-cased", False, None, True), ("bert-accents", True, False, True),
                                          ("bert-words", True, True, False)):
        yield name, make(piece, normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lower},
                         pre_tokenizer={"type": "BertPreTokenizer"}, added_tokens=own, post_processor=template(vocab, ["[CLS]"], ["[SEP]"]))
    yield "wordpiece-sequence", make(piece, normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}),
                                     pre_tokenizer=sequence("pretokenizers", {"type": "Whitespace"}, {"type": "Punctuation", "behavior": "Isolated"}), added_tokens=own)
    yield "strip", make(piece, normalizer=sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKD"}),
                        pre_tokenizer={"type": "WhitespaceSplit"}, added_tokens=own)


def main():
    ap = argparse.ArgumentParser(description="Hugging Face's tokenizers as the judge of tokenizer.json.")
    ap.add_argument("build")
    ap.add_argument("modules")
    ap.add_argument("names", nargs="*")
    ap.add_argument("--texts", type=int, default=300)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_intermixed_args()
    texts = random_texts.texts(a.texts, a.seed)
    is_bad = False
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/texts", "wb") as f:
            f.write("\0".join(texts).encode())
        for name, root in shapes():
            if a.names and name not in a.names:
                continue
            text = json.dumps(root)
            with open(f"{folder}/tokenizer.json", "w") as f:
                f.write(text)
            gg.write(f"{folder}/file.gguf", {"tokenizer.huggingface.json": text}, {"tokenizer.huggingface.json": (8, None)}, [])
            theirs = subprocess.run(["node", f"{HERE}/huggingface_tokens.mjs", a.modules, f"{folder}/tokenizer.json", f"{folder}/texts"], capture_output=True, text=True)
            ours = subprocess.run([f"{a.build}/bin/model_tokens", f"{folder}/file.gguf", f"{folder}/texts", "special"], capture_output=True, text=True)
            if theirs.returncode or ours.returncode:
                is_bad = True
                print(f"{name:24}", "library: " + (re.findall(r"Error: .*", theirs.stderr) or [theirs.stderr[-200:]])[0] if theirs.returncode else "ours: " + ours.stderr.strip(), flush=True)
                continue
            x, y = ours.stdout.split("\n"), theirs.stdout.split("\n")
            wrong = [i for i in range(len(texts)) if x[i] != y[i]]
            is_bad = is_bad or bool(wrong)
            print(f"{name:24} {len(wrong)} of {len(texts)}", flush=True)
            for i in wrong[:2]:
                print("   ", repr(texts[i]), "\n      ours  ", x[i], "\n      theirs", y[i])
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
