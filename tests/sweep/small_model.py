"""A language model of 30 KB: the corner of each matrix of a model in F16, one layer.

What a program does with it is what it does with any model, in a tenth of the time: loading, kernels of every kind, cache, sampling.
"""

import struct

SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SHAPE = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 2, "attention.head_count_kv": 1,
         "rope.dimension_count": 16, "context_length": 32}
# How much of a dimension is kept: the embedding, the keys and the values, the layer's inside.
ROWS = {"attn_k": 16, "attn_v": 16, "ffn_gate": 32, "ffn_up": 32}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def text(self):
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length:self.at]

    def skip_value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, count = self.take("IQ")
            for _ in range(count):
                self.skip_value(inner)
        else:
            self.at += struct.calcsize(SIZES[kind])


def text(value):
    return struct.pack("<Q", len(value)) + value


def cut(source, to):
    """Writes `to` from the file `source`: a llama in GGUF 3 whose vocabulary stays."""
    with open(source, "rb") as f:
        r = Reader(f.read())
    magic, version, tensors, keys = r.take("4sIQQ")
    assert magic == b"GGUF" and version == 3
    head = b""
    for _ in range(keys):
        start = r.at
        key = r.text()
        kind = r.take("I")
        small = SHAPE.get(key.decode().partition(".")[2])
        r.skip_value(kind)
        head += text(key) + struct.pack("<II", kind, small) if small else r.data[start:r.at]
    infos = []
    for _ in range(tensors):
        name = r.text()
        count = r.take("I")
        shape = [r.take("Q") for _ in range(count)]
        infos.append((name, shape, *r.take("IQ")))
    first = -(-r.at // 32) * 32
    listed, data = b"", b""
    kept = [i for i in infos if not i[0].startswith(b"blk.") or i[0].startswith(b"blk.0.")]
    for name, shape, kind, offset in kept:
        width = {0: 4, 1: 2}[kind]
        columns, rows = shape[0], shape[1] if len(shape) > 1 else 1
        part = name.decode().split(".")[-2]
        small = [32, rows if part == "token_embd" else ROWS.get(part, 32)][:len(shape)]
        data += b"\0" * (-len(data) % 32)
        listed += text(name) + struct.pack(f"<I{len(small)}QIQ", len(small), *small, kind, len(data))
        for row in range(small[1] if len(small) > 1 else 1):
            at = first + offset + row * columns * width
            values = r.data[at:at + small[0] * width]
            if part == "token_embd":
                # As they are, the embeddings outweigh the layer, and each token is followed by itself.
                values = struct.pack(f"<{small[0]}e", *(x / 512 for x in struct.unpack(f"<{small[0]}e", values)))
            data += values
    out = struct.pack("<4sIQQ", magic, version, len(kept), keys) + head + listed
    with open(to, "wb") as f:
        f.write(out + b"\0" * (-len(out) % 32) + data)
