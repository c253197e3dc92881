#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The logits of a GGUF model by llama.cpp's library: a judge that nobody here wrote.

    llama_cpp_logits.py FILE.gguf --tokens 1,2,3 --out logits.f32 [--hidden] [--single]

Writes the logits of every position, [tokens, vocabulary], as little-endian float32; tokens are fed
one by one. --hidden: of encoders, the hidden states of the text as a whole, [tokens, embedding length];
the file's pooling_type must be 0. Needs libllama.so.0 (Debian sid: libllama0). The structures of its parameters are passed
through as they come from its own defaults, so no layout is known here.
"""

import argparse
import ctypes
import sys


class Blob(ctypes.Structure):
    """More than any structure that the library takes or gives by value."""
    _fields_ = [("bytes", ctypes.c_uint64 * 128)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("file")
    ap.add_argument("--tokens", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--hidden", action="store_true")
    ap.add_argument("--single", action="store_true", help="no room for more than a token at once: PLM's graph is not made for more")
    ap.add_argument("--library", default="libllama.so.0")
    args = ap.parse_args()
    tokens = [int(t) for t in args.tokens.split(",")]

    for name in ("libggml-base.so.0", "libggml.so.0"):
        try:
            ggml = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if hasattr(ggml, "ggml_backend_load_all"):
            ggml.ggml_backend_load_all()
    llama = ctypes.CDLL(args.library)

    def function(name, result, *arguments):
        f = getattr(llama, name)
        f.restype, f.argtypes = result, arguments
        return f

    pointer = ctypes.c_void_p
    function("llama_backend_init", None)()
    # Its log goes to stderr.
    model_params = function("llama_model_default_params", Blob)()
    model = function("llama_model_load_from_file", pointer, ctypes.c_char_p, Blob)(args.file.encode(), model_params)
    if not model:
        sys.exit(f"{args.file}: llama.cpp does not load it")
    context_params = function("llama_context_default_params", Blob)()
    if args.single:  # n_ctx, n_batch, n_ubatch come first in llama.h
        numbers = ctypes.cast(ctypes.byref(context_params), ctypes.POINTER(ctypes.c_uint32))
        numbers[1] = numbers[2] = 1
    context = function("llama_init_from_model", pointer, pointer, Blob)(model, context_params)
    if not context:
        sys.exit(f"{args.file}: llama.cpp makes no context of it")
    vocab = function("llama_model_get_vocab", pointer, pointer)(model)
    size = function("llama_vocab_n_tokens", ctypes.c_int32, pointer)(vocab)
    get_one = function("llama_batch_get_one", Blob, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32)
    decode = function("llama_decode", ctypes.c_int32, pointer, Blob)
    logits = function("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), pointer, ctypes.c_int32)
    if args.hidden:
        function("llama_set_embeddings", None, pointer, ctypes.c_bool)(context, True)
        width = function("llama_model_n_embd_out", ctypes.c_int32, pointer)(model)
        row = function("llama_get_embeddings_ith", ctypes.POINTER(ctypes.c_float), pointer, ctypes.c_int32)
        text = (ctypes.c_int32 * len(tokens))(*tokens)
        # T5's half that encodes is one of two, and has a call of its own.
        has_encoder = function("llama_model_has_encoder", ctypes.c_bool, pointer)(model)
        encode = function("llama_encode", ctypes.c_int32, pointer, Blob) if has_encoder else decode
        if encode(context, get_one(text, len(tokens))) != 0:
            sys.exit(f"{args.file}: llama.cpp cannot encode the text")
        with open(args.out, "wb") as out:
            for i in range(len(tokens)):
                out.write(ctypes.string_at(row(context, i), 4 * width))
        return
    # Of T5 the same text is read and written.
    if function("llama_model_has_encoder", ctypes.c_bool, pointer)(model):
        text = (ctypes.c_int32 * len(tokens))(*tokens)
        if function("llama_encode", ctypes.c_int32, pointer, Blob)(context, get_one(text, len(tokens))) != 0:
            sys.exit(f"{args.file}: llama.cpp cannot encode the text")
    with open(args.out, "wb") as out:
        for token in tokens:
            one = (ctypes.c_int32 * 1)(token)
            if decode(context, get_one(one, 1)) != 0:
                sys.exit(f"{args.file}: llama.cpp cannot compute token {token}")
            values = logits(context, -1)
            out.write(ctypes.string_at(values, 4 * size))


if __name__ == "__main__":
    main()
