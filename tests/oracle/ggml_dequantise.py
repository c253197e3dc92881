#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hashes of what ggml makes of blocks of random bytes: the numbers in quant_test.cpp.

    ggml_dequantise.py [--library libggml-base.so.0]

Needs ggml's library (Debian sid: libggml0). One line for every type of blocks: its number, name, values and
bytes of a block, and the FNV-1a hash of the float32 bits of 1024 blocks, every NaN taken as 0x7fc00000. The
bytes are the top ones of a linear congruential generator that starts from the type's number.
"""

import argparse
import ctypes

import numpy as np

BLOCKS = 1024


class Traits(ctypes.Structure):
    """The beginning of struct ggml_type_traits (ggml.h)."""
    _fields_ = [("name", ctypes.c_char_p), ("values", ctypes.c_int64), ("interleaved", ctypes.c_int64), ("bytes", ctypes.c_size_t),
                ("is_quantised", ctypes.c_bool), ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


def random_bytes(count, seed):
    out, state = bytearray(count), seed
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = state >> 56
    return bytes(out)


def fnv1a(words):
    out = 0xcbf29ce484222325
    for w in words:
        out = (out ^ int(w)) * 0x100000001b3 % 2**64
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--library", default="libggml-base.so.0")
    ggml = ctypes.CDLL(ap.parse_args().library)
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    for number in range(43):
        traits = ggml.ggml_get_type_traits(number).contents
        if not traits.is_quantised or traits.name in (b"q8_1", b"q8_K"):
            continue
        values = BLOCKS * traits.values
        raw = random_bytes(BLOCKS * traits.bytes, number)
        out = np.zeros(values, "<f4")
        traits.to_float(raw, out.ctypes.data, values)
        bits = out.view("<u4").copy()
        bits[np.isnan(out)] = 0x7fc00000
        print(f"    {{{number}, \"{traits.name.decode()}\", {traits.values}, {traits.bytes}, 0x{fnv1a(bits):016x}}},")


if __name__ == "__main__":
    main()
