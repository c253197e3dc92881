"""Models of the tests with more metadata keys than they have."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes by type
INT32, FLOAT32, ARRAY = 5, 6, 9
ALIGNMENT = 32


def _entry(key, value):
    name = struct.pack("<Q", len(key)) + key.encode()
    if isinstance(value, list):
        return name + struct.pack("<IIQ", ARRAY, INT32, len(value)) + struct.pack(f"<{len(value)}i", *value)
    if isinstance(value, float):
        return name + struct.pack("<If", FLOAT32, value)
    return name + struct.pack("<Ii", INT32, value)


def add_keys(source, target, keys):
    """Writes `target`: the GGUF file `source` with `keys`, whole numbers, floats and lists of whole numbers."""
    with open(source, "rb") as file:
        data = file.read()
    tensors, count = struct.unpack_from("<QQ", data, 8)
    at = 24

    def text(at):
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    def skip(at, kind):
        if kind == 8:
            return text(at)
        if kind != ARRAY:
            return at + SIZES[kind]
        element, length = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(length):
            at = skip(at, element)
        return at
    for _ in range(count):
        at = text(at)
        at = skip(at + 4, struct.unpack_from("<I", data, at)[0])
    end = at
    for _ in range(tensors):
        at = text(at)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 4 + 8
    begin = (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    head = data[:16] + struct.pack("<Q", count + len(keys)) + data[24:end]
    head += b"".join(_entry(key, value) for key, value in keys.items()) + data[end:at]
    with open(target, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT) + data[begin:])
