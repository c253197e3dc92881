#!/usr/bin/env python3
"""`bellmetal inspect` against a reader of GGUF files of its own.

    inspect_test.py PATH_OF_BELLMETAL
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
MODEL = "models/bundled/licence.gguf"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of metadata by type
F32, F16 = 0, 1


def inspect(*arguments):
    return subprocess.run([PROGRAM, "inspect", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def read_gguf(path):
    """Keys, and of every tensor its name, dimensions as in the file and type."""
    with open(path, "rb") as file:
        data = file.read()
    at = 4

    def take(form):
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length:at].decode()

    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            element, count = take("I"), take("Q")
            for _ in range(count):
                skip(element)
        else:
            at += SIZES[kind]

    assert data[:4] == b"GGUF" and take("I") == 3
    tensors, keys = take("Q"), take("Q")
    names = []
    for _ in range(keys):
        names.append(text())
        skip(take("I"))
    found = []
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        found.append((name, dims, take("I")))
        take("Q")
    return names, found


class Inspect(unittest.TestCase):
    def test_a_device_that_there_is_not_is_a_mistake(self):
        for device in ("FOO", "CPU;FOO", "NULL:PXT::sm_90"):
            out = inspect(MODEL, "--device", device)
            self.assertEqual((out.returncode, out.stdout), (2, ""), out)
            self.assertRegex(out.stderr, "CPU NV AMD|PTX")

    def test_what_is_in_the_file_is_shown(self):
        keys, tensors = read_gguf(MODEL)
        out = inspect(MODEL, "--json")
        self.assertEqual(out.returncode, 0, out.stderr)
        shown = json.loads(out.stdout)
        self.assertEqual(set(shown["metadata"]), set(keys))
        expected = []
        for name, dims, kind in tensors:
            values = 1
            for n in dims:
                values *= n
            expected.append((name, {F32: "F32", F16: "F16"}[kind], dims[::-1], values * {F32: 4, F16: 2}[kind]))
        self.assertEqual([(t["name"], t["type"], t["shape"], t["bytes"]) for t in shown["tensors"]], expected)
        table = inspect(MODEL).stdout
        for name, *_ in expected:
            self.assertIn(name, table)
        self.assertNotIn(expected[3][0], inspect(MODEL, "--no-tensors").stdout)
        self.assertNotIn("tensors", json.loads(inspect(MODEL, "--no-tensors", "--json").stdout))

    def test_memory_grows_with_the_context_and_shrinks_with_the_cache_type(self):
        def memory(*arguments):
            out = inspect(MODEL, "--json", "--no-tensors", *arguments)
            self.assertEqual(out.returncode, 0, out.stderr)
            (device,) = json.loads(out.stdout)["memory"]
            return device
        full, short, small = memory(), memory("--ctx-size", "256"), memory("--cache-type", "int8")
        self.assertEqual((full["context"], short["context"]), (512, 256))
        self.assertEqual(full["cache_bytes"], 2 * short["cache_bytes"])
        self.assertLess(small["cache_bytes_per_1000_tokens"], full["cache_bytes_per_1000_tokens"])
        self.assertGreaterEqual(full["needed_bytes"], full["weight_bytes"] + full["cache_bytes"])
        # Float16 matrices are used as they are stored.
        _, tensors = read_gguf(MODEL)
        self.assertAlmostEqual(full["weight_bytes"] / sum(dims[0] * (dims[1:] or [1])[0] * 2 for _, dims, _ in tensors), 1, delta=0.05)

    def test_what_cannot_be_read_is_refused_with_its_cause(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cut.gguf")
            with open(MODEL, "rb") as file, open(path, "wb") as cut:
                cut.write(file.read(5000))
            empty = os.path.join(folder, "empty")
            for ending in (".gguf", ".safetensors"):
                open(empty + ending, "wb").close()
            for file, cause in [(path, "cut.gguf"), ("README.md", "not a GGUF file"), ("/dev/null", "not a regular file"),
                                (os.path.join(folder, "none.gguf"), "No such file"),
                                (empty + ".gguf", "is empty"), (empty + ".safetensors", "fetch it again")]:
                out = inspect(file)
                self.assertEqual((out.returncode, out.stdout), (4, ""), file)
                self.assertIn(cause, out.stderr)
        long = inspect(MODEL, "--ctx-size", "100000")
        self.assertEqual(long.returncode, 0)  # what is in it is known all the same
        self.assertIn("exceeds the 512 positions", long.stdout)


if __name__ == "__main__":
    unittest.main()
