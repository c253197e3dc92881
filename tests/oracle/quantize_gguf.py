#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Rewrite a GGUF file with its matrices in another number format, for the tests.

    quantize_gguf.py IN.gguf OUT.gguf TYPE [--override REGEX=TYPE ...]

TYPE is one of F32 F16 BF16 Q8_0 Q4_0 Q5_0 Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4.  Every tensor with two or more
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
FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q5_0": 8, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18, "IQ4_NL": 25,
             "IQ4_XS": 30, "BF16": 32, "MXFP4": 38}

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


def _q5_0(x):
    extreme = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    d = (extreme / f32(-16)).astype("<f2")
    q = _round(x * _inverse(d.astype(f32)) + 16, 0, 31).astype(np.uint8)
    high = np.packbits(q >> 4, axis=1, bitorder="little")
    return np.hstack((_bytes(d, "<f2"), high, (q[:, :16] & 15) | ((q[:, 16:] & 15) << 4)))


def _k_with_minima(x, most):
    """Blocks of 256 as Q4_K and Q5_K have them: header and codes up to `most`, [blocks, 8, 32]."""
    n = len(x)
    x = x.reshape(n, 8, 32)
    low = np.minimum(x.min(2), 0)
    step = (x.max(2) - low) / f32(most)
    d = (step.max(1, keepdims=True) / f32(63)).astype("<f2")
    dmin = ((-low).max(1, keepdims=True) / f32(63)).astype("<f2")
    scale = _round(step * _inverse(d.astype(f32)), 0, 63).astype(np.uint8)
    minimum = _round(-low * _inverse(dmin.astype(f32)), 0, 63).astype(np.uint8)
    d1 = d.astype(f32) * scale
    m1 = dmin.astype(f32) * minimum
    q = _round((x + m1[:, :, None]) * _inverse(d1)[:, :, None], 0, most).astype(np.uint8)
    packed = np.hstack((
        scale[:, :4] | ((scale[:, 4:] >> 4) << 6),
        minimum[:, :4] | ((minimum[:, 4:] >> 4) << 6),
        (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4),
    ))
    return np.hstack((_bytes(d, "<f2"), _bytes(dmin, "<f2"), packed)), q


def _low_halves(q):
    q = (q & 15).reshape(len(q), 4, 2, 32)
    return (q[:, :, 0] | (q[:, :, 1] << 4)).reshape(len(q), 128)


def _q4_k(x):
    header, q = _k_with_minima(x, 15)
    return np.hstack((header, _low_halves(q)))


def _q5_k(x):
    header, q = _k_with_minima(x, 31)
    high = ((q >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(1, dtype=np.uint8)
    return np.hstack((header, high, _low_halves(q)))


def _nearest(x, book):
    """Codes of the entries of `book` that are nearest."""
    order = np.argsort(book, kind="stable")
    between = (book[order][1:] + book[order][:-1]) / 2
    return order[np.searchsorted(between, x)].astype(np.uint8)


def _halves(q):
    half = q.shape[-1] // 2
    return q[..., :half] | (q[..., half:] << 4)


def _iq4_nl(x):
    extreme = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    d = (extreme / f32(-127)).astype("<f2")
    return np.hstack((_bytes(d, "<f2"), _halves(_nearest(x * _inverse(d.astype(f32)), gg.IQ4_BOOK))))


def _iq4_xs(x):
    n = len(x)
    x = x.reshape(n, 8, 32)
    extreme = np.take_along_axis(x, np.abs(x).argmax(2)[:, :, None], 2)[:, :, 0]
    step = extreme / f32(-127)
    d = (np.abs(step).max(1, keepdims=True) / f32(31)).astype("<f2")
    scale = _round(step * _inverse(d.astype(f32)), -32, 31)
    q = _nearest(x * _inverse(d.astype(f32) * scale)[:, :, None], gg.IQ4_BOOK)
    code = (scale + 32).astype(np.uint16)
    high = ((code >> 4) << (2 * np.arange(8, dtype=np.uint16))).sum(1, dtype=np.uint16)[:, None]
    low = (code & 15).astype(np.uint8).reshape(n, 4, 2)
    return np.hstack((_bytes(d, "<f2"), _bytes(high, "<u2"), low[:, :, 0] | (low[:, :, 1] << 4), _halves(q).reshape(n, 128)))


def _mxfp4(x):
    # Powers of two that the extreme of a block is at most six times of. Source: OCP MX 1.0, section 6.3.
    extreme = np.abs(x).max(1, keepdims=True)
    e = np.floor(np.log2(np.maximum(extreme, f32(1e-30)))) - 2
    scale = np.exp2(e).astype(f32)
    return np.hstack(((e + 127).astype(np.uint8), _halves(_nearest(2 * x / scale, gg.MXFP4_BOOK))))


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


ENCODERS = {"F32": _f32, "F16": _f16, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _q4_0, "Q5_0": _q5_0,
            "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
            "MXFP4": _mxfp4}


def quantize(values, type_name):
    """Bytes of the float32 array `values` in the given format; whole blocks only."""
    per_block = gg.TYPES[gg.TYPE_NUMBER[type_name]][1]
    x = np.ascontiguousarray(values, dtype=f32).reshape(-1, per_block)
    return ENCODERS[type_name](x).tobytes()


# Whose rounding would choose other experts, and what is added to scores: files have them in floating point.
KEPT = re.compile(r".*(_norm|ffn_gate_inp|ffn_gate_inp_shexp|attn_rel_b)\.weight")


def quantise_matrices(source, out, kind):
    """All matrices in one format, or where their rows are not whole blocks of it in Q8_0, or not at all."""
    g = gg.GGUF(source)
    tensors, used = [], set()
    for t in g.tensors.values():
        fits = [k for k in (kind, "Q8_0") if t.dims[0] % gg.TYPES[gg.TYPE_NUMBER[k]][1] == 0]
        new = fits[0] if len(t.dims) > 1 and fits and t.name.endswith(".weight") and not KEPT.fullmatch(t.name) else t.type
        used.add(new)
        tensors.append((t.name, t.dims, new, g.raw(t.name).tobytes() if new == t.type else quantize(g.get(t.name), new)))
    if kind not in used:
        raise ValueError(f"{source}: no matrix has rows of whole blocks of {kind}")
    gg.write(out, g.metadata, g.kinds, tensors)


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
