#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A minimal GGUF reader and writer in numpy: the oracle of the tests.

Written from the published description of the file format, and sharing no code
with the program, so that the two can be held against each other.  Dequantisation
gives the float32 values of the published ggml reference, bit for bit:

    F16, BF16   exact widening
    Q8_0        y = d * q                       blocks of 32
    Q4_0        y = d * (q - 8)                 blocks of 32
    Q4_K        y = (d * sc) * q - (dmin * m)   blocks of 256, eight sub-blocks
    Q6_K        y = (d * sc) * (q - 32)         blocks of 256, sixteen sub-blocks
    Q5_0        y = d * (q - 16)                blocks of 32, fifth bits apart
    Q5_K        as Q4_K, fifth bits apart       blocks of 256, eight sub-blocks
    IQ4_NL      y = d * book[q]                 blocks of 32
    IQ4_XS      y = (d * (sc - 32)) * book[q]   blocks of 256, eight sub-blocks
    MXFP4       y = 2^(e - 128) * book[q]       blocks of 32, E2M1 times two

Each product above fits in the 24 bits of a float32 (11 bits of d, at most 8 of
the scale, at most 8 of q; of IQ4_XS 6 and 8), so the only rounding is that of the
subtraction in Q4_K and Q5_K; a fused multiply-add gives the same bits.

    gguf_numpy.py FILE --list [--json]
    gguf_numpy.py FILE --tensor NAME --raw OUT.f32

The raw output is little-endian float32 in file order: the first GGUF dimension
is the fastest, so a matrix of dimensions [in, out] comes row by row.
"""

import argparse
import json
import math
import os
import struct
import sys

import numpy as np

# type number: (name, values per block, bytes per block)
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    8: ("Q8_0", 32, 34),
    6: ("Q5_0", 32, 22),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
# Formats that are written and listed, but not dequantised here: ggml's library is their judge (judge_formats.py).
TYPES.update({
    3: ("Q4_1", 32, 20), 7: ("Q5_1", 32, 24), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
})
TYPE_NUMBER = {name: number for number, (name, _, _) in TYPES.items()}

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


# --- dequantisation: uint8 [blocks, bytes] -> float32 [blocks, values] --------

def _half(raw):
    return raw.copy().view("<f2").astype(np.float32)  # raw: [blocks, 2] -> [blocks, 1]


def _f32(raw):
    return raw.copy().view("<f4").astype(np.float32)


def _bf16(raw):
    return (raw.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw):
    return _half(raw[:, 0:2]) * raw[:, 2:34].copy().view(np.int8).astype(np.float32)


def _q4_0(raw):
    low, high = raw[:, 2:18] & 15, raw[:, 2:18] >> 4
    q = np.concatenate((low, high), axis=1).astype(np.float32) - np.float32(8)
    return _half(raw[:, 0:2]) * q


def unpack_k4_scales(s):
    """The eight 6-bit scales and eight 6-bit minima of a Q4_K block, from 12 bytes."""
    a, b, c = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = np.concatenate((a & 63, (c & 15) | ((a >> 6) << 4)), axis=1)
    minimum = np.concatenate((b & 63, (c >> 4) | ((b >> 6) << 4)), axis=1)
    return scale, minimum


def _q4_k(raw):
    n = len(raw)
    scale, minimum = unpack_k4_scales(raw[:, 4:16])
    d1 = _half(raw[:, 0:2]) * scale.astype(np.float32)
    m1 = _half(raw[:, 2:4]) * minimum.astype(np.float32)
    # Four groups of 32 bytes; the low halves are one sub-block, the high the next.
    bytes_ = raw[:, 16:144].reshape(n, 4, 32)
    q = np.stack((bytes_ & 15, bytes_ >> 4), axis=2).reshape(n, 8, 32).astype(np.float32)
    return (d1[:, :, None] * q - m1[:, :, None]).reshape(n, 256)


def _q6_k(raw):
    n = len(raw)
    low = raw[:, 0:128].reshape(n, 2, 2, 32)     # half of the block, pair, position
    high = raw[:, 128:192].reshape(n, 2, 32)
    quarter = [
        (low[:, :, 0] & 15) | ((high & 3) << 4),
        (low[:, :, 1] & 15) | (((high >> 2) & 3) << 4),
        (low[:, :, 0] >> 4) | (((high >> 4) & 3) << 4),
        (low[:, :, 1] >> 4) | ((high >> 6) << 4),
    ]
    q = np.stack(quarter, axis=2).reshape(n, 16, 16).astype(np.float32) - np.float32(32)
    scale = raw[:, 192:208].copy().view(np.int8).astype(np.float32)
    return ((_half(raw[:, 208:210]) * scale)[:, :, None] * q).reshape(n, 256)


def _q5_0(raw):
    high = np.unpackbits(raw[:, 2:6], axis=1, bitorder="little")  # of value 0 first
    low = np.concatenate((raw[:, 6:22] & 15, raw[:, 6:22] >> 4), axis=1)
    return _half(raw[:, 0:2]) * ((low | (high << 4)).astype(np.float32) - np.float32(16))


def _q5_k(raw):
    n = len(raw)
    scale, minimum = unpack_k4_scales(raw[:, 4:16])
    d1 = _half(raw[:, 0:2]) * scale.astype(np.float32)
    m1 = _half(raw[:, 2:4]) * minimum.astype(np.float32)
    bytes_ = raw[:, 48:176].reshape(n, 4, 32)
    low = np.stack((bytes_ & 15, bytes_ >> 4), axis=2).reshape(n, 8, 32)
    # Bit s of byte i is the fifth of value i of sub-block s.
    high = (raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    q = (low | (high << 4)).astype(np.float32)
    return (d1[:, :, None] * q - m1[:, :, None]).reshape(n, 256)


# Source: ggml-common.h, kvalues_iq4nl; OCP MX 1.0, table of E2M1, times two.
IQ4_BOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MXFP4_BOOK = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _nibbles(raw):
    return np.concatenate((raw & 15, raw >> 4), axis=-1)


def _iq4_nl(raw):
    return _half(raw[:, 0:2]) * IQ4_BOOK[_nibbles(raw[:, 2:18])]


def _iq4_xs(raw):
    n = len(raw)
    high = raw[:, 2:4].copy().view("<u2").astype(np.int32)
    low = np.stack((raw[:, 4:8] & 15, raw[:, 4:8] >> 4), axis=2).reshape(n, 8).astype(np.int32)
    scale = low | (((high >> (2 * np.arange(8))) & 3) << 4)
    d = _half(raw[:, 0:2]) * (scale - 32).astype(np.float32)
    return (d[:, :, None] * IQ4_BOOK[_nibbles(raw[:, 8:136].reshape(n, 8, 16))]).reshape(n, 256)


def _mxfp4(raw):
    return np.exp2(raw[:, 0:1].astype(np.float32) - np.float32(128)) * MXFP4_BOOK[_nibbles(raw[:, 1:17])]


DECODERS = {"F32": _f32, "F16": _half, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _q4_0, "Q5_0": _q5_0,
            "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
            "MXFP4": _mxfp4}


def dequantize(raw, type_name):
    """float32 values of `raw` (bytes or uint8 array) in the given format."""
    _, _, block_bytes = TYPES[TYPE_NUMBER[type_name]]
    raw = np.frombuffer(raw, np.uint8).reshape(-1, block_bytes)
    return DECODERS[type_name](raw).reshape(-1)


# --- reader -----------------------------------------------------------------

class Tensor:
    def __init__(self, name, type_name, dims, offset, size):
        self.name, self.type, self.dims = name, type_name, dims
        self.offset, self.size = offset, size  # absolute file offset, bytes


class GGUF:
    """metadata: dict; kinds: key -> (type, element type or None); tensors: dict by name."""

    def __init__(self, path):
        self.data = np.memmap(path, np.uint8, "r")
        self.pos = 0
        if bytes(self._take(4)) != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file")
        self.version = self._scalar("I")
        if self.version not in (2, 3):
            raise ValueError(f"{path}: GGUF version {self.version} is not supported")
        tensor_count, entry_count = self._scalar("Q"), self._scalar("Q")
        self.metadata, self.kinds, self.tensors = {}, {}, {}
        for _ in range(entry_count):
            key, kind = self._string(), self._scalar("I")
            element = None
            if kind == ARRAY:
                element, length = self._scalar("I"), self._scalar("Q")
                value = [self._value(element) for _ in range(length)]
            else:
                value = self._value(kind)
            self.metadata[key], self.kinds[key] = value, (kind, element)
        infos = []
        for _ in range(tensor_count):
            name, rank = self._string(), self._scalar("I")
            dims = [self._scalar("Q") for _ in range(rank)]
            infos.append((name, dims, self._scalar("I"), self._scalar("Q")))
        self.alignment = self.metadata.get("general.alignment", 32)
        base = self.pos + -self.pos % self.alignment
        for name, dims, number, offset in infos:
            if number not in TYPES:
                raise ValueError(f"{path}: tensor {name} has type {number}, not supported here")
            type_name, per_block, block_bytes = TYPES[number]
            if dims and dims[0] % per_block:
                raise ValueError(f"{path}: tensor {name}: row of {dims[0]} is not whole blocks")
            size = math.prod(dims) // per_block * block_bytes
            if offset % self.alignment or base + offset + size > len(self.data):
                raise ValueError(f"{path}: tensor {name} is misaligned or outside the file")
            self.tensors[name] = Tensor(name, type_name, dims, base + offset, size)

    def _take(self, n):
        if self.pos + n > len(self.data):
            raise ValueError("the file ends too early")
        self.pos += n
        return self.data[self.pos - n:self.pos]

    def _scalar(self, code):
        return struct.unpack("<" + code, bytes(self._take(struct.calcsize("<" + code))))[0]

    def _string(self):
        return bytes(self._take(self._scalar("Q"))).decode("utf-8")

    def _value(self, kind):
        if kind == STRING:
            return self._string()
        if kind not in SCALARS:
            raise ValueError(f"metadata type {kind} is not supported")
        return self._scalar(SCALARS[kind])

    def raw(self, name):
        t = self.tensors[name]
        return np.array(self.data[t.offset:t.offset + t.size])

    def get(self, name):
        """Dequantised float32 array, slowest dimension first: a matrix is [out, in]."""
        t = self.tensors[name]
        return dequantize(self.raw(name), t.type).reshape(t.dims[::-1])


# --- writer -----------------------------------------------------------------

def _pack(kind, value):
    if kind == STRING:
        raw = value.encode("utf-8")
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack("<" + SCALARS[kind], value)


def write(path, metadata, kinds, tensors):
    """metadata and kinds as in GGUF; tensors: list of (name, dims, type name, raw bytes)."""
    alignment = metadata.get("general.alignment", 32)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, element = kinds[key]
        head += [_pack(STRING, key), struct.pack("<I", kind)]
        if kind == ARRAY:
            head.append(struct.pack("<IQ", element, len(value)))
            head += [_pack(element, v) for v in value]
        else:
            head.append(_pack(kind, value))
    offset = 0
    for name, dims, type_name, raw in tensors:
        head += [_pack(STRING, name), struct.pack("<I", len(dims)), struct.pack(f"<{len(dims)}Q", *dims),
                 struct.pack("<IQ", TYPE_NUMBER[type_name], offset)]
        offset += len(raw) + -len(raw) % alignment
    head = b"".join(head)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % alignment))
        for _, _, _, raw in tensors:
            f.write(bytes(raw) + b"\0" * (-len(raw) % alignment))


# --- command line -----------------------------------------------------------

def main():
    ap = argparse.ArgumentParser(description="List or dump the contents of a GGUF file.")
    ap.add_argument("file")
    ap.add_argument("--list", action="store_true", help="print metadata and tensors")
    ap.add_argument("--json", action="store_true", help="print the list as JSON")
    ap.add_argument("--tensor", metavar="NAME")
    ap.add_argument("--raw", metavar="OUT.f32", help="where the tensor's float32 values go")
    args = ap.parse_args()
    if bool(args.tensor) != bool(args.raw) or not (args.list or args.tensor):
        ap.error("give --list, or --tensor with --raw")
    try:
        g = GGUF(args.file)
    except (OSError, ValueError) as e:
        sys.exit(f"gguf_numpy: {e}")
    if args.tensor:
        if args.tensor not in g.tensors:
            sys.exit(f"gguf_numpy: {args.file} has no tensor {args.tensor}")
        g.get(args.tensor).astype("<f4").tofile(args.raw)
    if args.list:
        rows = [{"name": t.name, "type": t.type, "dims": t.dims, "offset": t.offset, "bytes": t.size}
                for t in g.tensors.values()]
        if args.json:
            print(json.dumps({"version": g.version, "alignment": g.alignment,
                              "metadata": g.metadata, "tensors": rows}))
        else:
            for key, value in g.metadata.items():
                if isinstance(value, list):
                    value = f"[{len(value)}] " + ", ".join(map(repr, value[:4])) + (", ..." if len(value) > 4 else "")
                print(f"{key} = {value}")
            for r in rows:
                print(f"{r['name']:32} {r['type']:5} {r['dims']} at {r['offset']}, {r['bytes']} bytes")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
