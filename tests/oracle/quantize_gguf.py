#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Rewrite a GGUF file with its matrices in another number format, for the tests.

    quantize_gguf.py IN.gguf OUT.gguf TYPE [--override REGEX=TYPE ...]

TYPE is one of F32 F16 BF16 Q8_0 Q4_0 Q4_K Q6_K.  Every tensor with two or more
dimensions is converted; vectors stay as they are.  --override gives the tensors
whose whole name matches REGEX another type, so that mixed files can be made.  A
matrix whose rows are not whole blocks of the format becomes F16, with a note.

The quantisers here are plain: each gives a valid encoding, chosen from the
extremes of a block, with no search for the best one.
"""

import argparse
import re
import sys

import numpy as np

import gguf_numpy as gg

# The number that general.file_type has for a file mostly of this type.
FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K": 14, "Q6_K": 18, "BF16": 32}

f32 = np.float32


def _bytes(a, dtype):
    return np.ascontiguousarray(a.astype(dtype)).view(np.uint8).reshape(len(a), -1)


def _inverse(d):
    return np.divide(f32(1), d, out=np.zeros_like(d), where=d != 0)


def _round(x, low, high):
    return np.clip(np.rint(x), low, high)


def _f32(x):
    return _bytes(x, "<f4")


def _f16(x):
    return _bytes(x, "<f2")


def _bf16(x):
    bits = x.view(np.uint32)  # round to nearest, ties to even
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded = np.where(np.isnan(x), (bits >> 16) | 0x40, rounded)
    return _bytes(rounded, "<u2")


def _q8_0(x):
    d = (np.abs(x).max(1, keepdims=True) / f32(127)).astype("<f2")
    q = _round(x * _inverse(d.astype(f32)), -127, 127)
    return np.hstack((_bytes(d, "<f2"), _bytes(q, np.int8)))


def _q4_0(x):
    # The value of greatest magnitude gets code 0, which stands for -8.
    extreme = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    d = (extreme / f32(-8)).astype("<f2")
    q = _round(x * _inverse(d.astype(f32)) + 8, 0, 15).astype(np.uint8)
    return np.hstack((_bytes(d, "<f2"), q[:, :16] | (q[:, 16:] << 4)))


def _q4_k(x):
    n = len(x)
    x = x.reshape(n, 8, 32)
    low = np.minimum(x.min(2), 0)
    step = (x.max(2) - low) / f32(15)
    d = (step.max(1, keepdims=True) / f32(63)).astype("<f2")
    dmin = ((-low).max(1, keepdims=True) / f32(63)).astype("<f2")
    scale = _round(step * _inverse(d.astype(f32)), 0, 63).astype(np.uint8)
    minimum = _round(-low * _inverse(dmin.astype(f32)), 0, 63).astype(np.uint8)
    d1 = d.astype(f32) * scale
    m1 = dmin.astype(f32) * minimum
    q = _round((x + m1[:, :, None]) * _inverse(d1)[:, :, None], 0, 15).astype(np.uint8)
    packed = np.hstack((
        scale[:, :4] | ((scale[:, 4:] >> 4) << 6),
        minimum[:, :4] | ((minimum[:, 4:] >> 4) << 6),
        (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4),
    ))
    q = q.reshape(n, 4, 2, 32)
    return np.hstack((_bytes(d, "<f2"), _bytes(dmin, "<f2"), packed,
                      (q[:, :, 0] | (q[:, :, 1] << 4)).reshape(n, 128)))


def _q6_k(x):
    n = len(x)
    x = x.reshape(n, 16, 16)
    # The value of greatest magnitude in a sub-block becomes -32: scales have signs.
    extreme = np.take_along_axis(x, np.abs(x).argmax(2)[:, :, None], 2)[:, :, 0]
    step = extreme / f32(-32)
    d = (np.abs(step).max(1, keepdims=True) / f32(127)).astype("<f2")
    scale = _round(step * _inverse(d.astype(f32)), -127, 127)
    q = _round(x * _inverse(d.astype(f32) * scale.astype(f32))[:, :, None] + 32, 0, 63)
    q = q.astype(np.uint8).reshape(n, 2, 4, 32)
    low = np.stack(((q[:, :, 0] & 15) | ((q[:, :, 2] & 15) << 4),
                    (q[:, :, 1] & 15) | ((q[:, :, 3] & 15) << 4)), 2)
    high = (q[:, :, 0] >> 4) | ((q[:, :, 1] >> 4) << 2) | ((q[:, :, 2] >> 4) << 4) | ((q[:, :, 3] >> 4) << 6)
    return np.hstack((low.reshape(n, 128), high.reshape(n, 64), _bytes(scale, np.int8), _bytes(d, "<f2")))


ENCODERS = {"F32": _f32, "F16": _f16, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _q4_0,
            "Q4_K": _q4_k, "Q6_K": _q6_k}


def quantize(values, type_name):
    """Bytes of the float32 array `values` in the given format; whole blocks only."""
    per_block = gg.TYPES[gg.TYPE_NUMBER[type_name]][1]
    x = np.ascontiguousarray(values, dtype=f32).reshape(-1, per_block)
    return ENCODERS[type_name](x).tobytes()


def main():
    ap = argparse.ArgumentParser(description="Rewrite a GGUF file with its matrices in another format.")
    ap.add_argument("input")
    ap.add_argument("output")
    ap.add_argument("type", choices=sorted(ENCODERS))
    ap.add_argument("--override", action="append", default=[], metavar="REGEX=TYPE")
    args = ap.parse_args()
    overrides = []
    for o in args.override:
        pattern, _, kind = o.rpartition("=")
        if kind not in ENCODERS or not pattern:
            ap.error(f"--override {o}: not REGEX=TYPE")
        overrides.append((re.compile(pattern), kind))

    g = gg.GGUF(args.input)
    tensors = []
    for t in g.tensors.values():
        kind = args.type if len(t.dims) > 1 else t.type
        for pattern, other in overrides:
            if pattern.fullmatch(t.name):
                kind = other
        if t.dims[0] % gg.TYPES[gg.TYPE_NUMBER[kind]][1]:
            print(f"note: {t.name}: rows of {t.dims[0]} do not fit {kind}; F16 instead", file=sys.stderr)
            kind = "F16"
        raw = g.raw(t.name).tobytes() if kind == t.type else quantize(g.get(t.name), kind)
        tensors.append((t.name, t.dims, kind, raw))
    metadata, kinds = dict(g.metadata), dict(g.kinds)
    metadata["general.file_type"], kinds["general.file_type"] = FILE_TYPE[args.type], (4, None)
    if args.type.startswith("Q"):
        metadata["general.quantization_version"], kinds["general.quantization_version"] = 2, (4, None)
    gg.write(args.output, metadata, kinds, tensors)


if __name__ == "__main__":
    main()
