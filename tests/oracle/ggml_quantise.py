#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A GGUF file with its matrices quantised by ggml's library, and one with what it makes of them in float32.

    ggml_quantise.py IN.gguf OUT.gguf OUT_F32.gguf TYPE

Needs ggml's library (Debian sid: libggml0). TYPE as in gguf_numpy.TYPES; every value counts the same where a
quantiser asks how much values count.
"""

import ctypes
import sys

import numpy as np

import gguf_numpy as gg
from ggml_dequantise import Traits


def main():
    source, out, out_f32, kind = sys.argv[1:]
    ggml = ctypes.CDLL("libggml-base.so.0")
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, integer, integer, integer, pointer]
    number = gg.TYPE_NUMBER[kind]
    _, values, size = gg.TYPES[number]
    g = gg.GGUF(source)
    blocks, floats = [], []
    for t in g.tensors.values():
        w = np.ascontiguousarray(g.get(t.name), "<f4")
        if len(t.dims) < 2 or t.dims[0] % values:
            blocks.append((t.name, t.dims, "F32", w.tobytes()))
            floats.append(blocks[-1])
            continue
        rows, columns = w.size // t.dims[0], t.dims[0]
        raw = ctypes.create_string_buffer(w.size // values * size)
        counts = np.ones(w.size, "<f4")
        ggml.ggml_quantize_chunk(number, w.ctypes.data, raw, 0, rows, columns, counts.ctypes.data)
        back = np.zeros(w.size, "<f4")
        ggml.ggml_get_type_traits(number).contents.to_float(raw, back.ctypes.data, w.size)
        blocks.append((t.name, t.dims, kind, raw.raw))
        floats.append((t.name, t.dims, "F32", back.tobytes()))
    gg.write(out, g.metadata, g.kinds, blocks)
    gg.write(out_f32, g.metadata, g.kinds, floats)


if __name__ == "__main__":
    main()
