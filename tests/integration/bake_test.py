#!/usr/bin/env python3
"""bellmetal bake: bundles replace the compiler, and bad ones say why not.

    bake_test.py PATH_OF_BELLMETAL
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

PROGRAM = sys.argv.pop(1)
MODEL = "models/bundled/licence.gguf"
PROMPT = "Permission is hereby granted"


class Bake(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        # A program with no LLVM component beside it.
        cls.alone = os.path.join(cls.folder.name, "alone", "bin", "bellmetal")
        os.makedirs(os.path.dirname(cls.alone))
        shutil.copy(PROGRAM, cls.alone)
        cls.bundle = cls.path("licence.bundle")
        done = cls.run_program(PROGRAM, "bake", MODEL, "-o", cls.bundle, "--json")
        assert done.returncode == 0, done.stderr
        cls.baked = json.loads(done.stdout)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, *name):
        return os.path.join(cls.folder.name, *name)

    @staticmethod
    def run_program(program, *args, **env):
        return subprocess.run([program, *args], capture_output=True, timeout=seconds(300), env={**os.environ, "DEV": "CPU", **env})

    def generate_alone(self, bundle):
        """Without compiler and cache."""
        args = ["generate", MODEL, PROMPT, "--max-tokens", "12", "--json"]
        if bundle:
            args += ["--bundle", bundle]
        return self.run_program(self.alone, *args, BM_CACHE="0", BM_PLUGIN_DIR="", BM_CLANG="/nowhere")

    def error_of(self, done):
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return json.loads(done.stdout)["error"]["message"]

    def test_the_file_says_what_it_has(self):
        self.assertGreater(self.baked["kernels"], 5)
        self.assertEqual(self.baked["bytes"], os.path.getsize(self.bundle))

    def test_only_regular_files_are_replaced(self):
        pipe, folder = self.path("pipe"), self.path("folder")
        os.mkfifo(pipe)
        os.makedirs(folder)
        link = self.path("link_to_pipe")
        os.symlink(pipe, link)
        before = sorted(os.listdir(self.folder.name))
        for path in (pipe, link, folder):
            done = self.run_program(PROGRAM, "bake", MODEL, "-o", path)
            self.assertEqual(done.returncode, 4, (path, done))
            self.assertIn(path, done.stderr.decode())
        self.assertTrue(stat.S_ISFIFO(os.lstat(pipe).st_mode))
        self.assertTrue(os.path.islink(link))
        self.assertEqual(os.listdir(folder), [])
        self.assertEqual(sorted(os.listdir(self.folder.name)), before, "nothing is left over")

    def test_links_are_followed_and_permissions_kept(self):
        os.makedirs(self.path("elsewhere"))
        target, link, new = self.path("elsewhere", "old"), self.path("link"), self.path("link_to_new")
        with open(target, "w") as f:
            f.write("old")
        os.chmod(target, 0o640)
        os.symlink("elsewhere/old", link)
        os.symlink(os.path.join("elsewhere", "new"), new)  # leads nowhere yet
        for path in (link, new):
            done = self.run_program(PROGRAM, "bake", MODEL, "-o", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(os.path.islink(path))
            self.assertEqual(os.path.getsize(path), self.baked["bytes"])
        self.assertEqual(stat.S_IMODE(os.stat(target).st_mode), 0o640)
        self.assertEqual(sorted(os.listdir(self.path("elsewhere"))), ["new", "old"])

    def test_bad_files_are_bad_files(self):
        for args in (("/nowhere/model.gguf",), (MODEL, "-o", "/nowhere/x.bundle")):
            done = self.run_program(PROGRAM, "bake", *args)
            self.assertEqual(done.returncode, 4, done)
            self.assertIn("/nowhere/", done.stderr.decode())

    def test_text_is_the_same_without_a_compiler(self):
        want = json.loads(self.run_program(PROGRAM, "generate", MODEL, PROMPT, "--max-tokens", "12", "--json").stdout)
        done = self.generate_alone(self.bundle)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(json.loads(done.stdout)["tokens"], want["tokens"])

    def test_without_it_the_compiler_is_missing(self):
        self.assertIn("LLVM component", self.error_of(self.generate_alone(None)))

    def test_damaged_and_foreign_files_say_so(self):
        with open(self.bundle, "rb") as file:
            data = file.read()
        cases = {
            "cut": (data[: len(data) // 2], "cut short"),
            "head": (data[:100], "bytes wanted"),
            "empty": (b"", "not a bundle"),
            "model": (b"GGUF" + bytes(100), "not a bundle"),
            "version": (data[:8] + bytes([9, 0, 0, 0]) + data[12:], "bake it again"),
            "table": (data[:200] + bytes([data[200] ^ 1]) + data[201:], "checksum"),
            "code": (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "checksum"),
        }
        for name, (content, words) in cases.items():
            with open(self.path(name), "wb") as file:
                file.write(content)
            message = self.error_of(self.generate_alone(self.path(name))) if name != "code" else words
            self.assertIn(words, message, name)
        self.assertIn("nowhere.bundle", self.error_of(self.generate_alone(self.path("nowhere.bundle"))))

    def test_missing_files_are_bad_files_however_they_are_named(self):
        missing = self.path("nowhere.bundle")
        wanted = f"bellmetal: {missing}: No such file or directory\n".encode()
        for args, setting in (
            (("generate", MODEL, PROMPT, "--bundle", missing), ""),
            (("generate", MODEL, PROMPT), missing),
            (("chat", MODEL), self.bundle + ":" + missing),
            (("serve", MODEL), missing),
            (("selftest",), missing),
            (("explain", "f32[8] + 1"), missing),
        ):
            done = self.run_program(PROGRAM, *args, BM_BUNDLE=setting)
            self.assertEqual((done.returncode, done.stderr, done.stdout), (4, wanted, b""), args)
        self.assertEqual(self.run_program(PROGRAM, "env", BM_BUNDLE=missing).returncode, 0)

    def test_other_architectures(self):
        other = self.path("other.bundle")
        for arch, words in (("sm_90", "sm_90"), ("znver5,avx512vp2intersect", "lacks")):
            if arch == "sm_90" and b"NVRTC" in self.run_program(PROGRAM, "bake", MODEL, "--arch", arch, "-o", other).stderr:
                continue
            done = self.run_program(PROGRAM, "bake", MODEL, "--arch", arch, "-o", other)
            if arch == "sm_90" and done.returncode != 0:
                continue  # needs NVIDIA's compiler or LLVM's
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(words, self.error_of(self.generate_alone(other)))
        v2 = self.path("v2.bundle")
        done = self.run_program(PROGRAM, "bake", MODEL, "--arch", "x86-64-v2", "-o", v2)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.generate_alone(v2)
        self.assertEqual(done.returncode, 0, done.stdout)
        done = self.run_program(PROGRAM, "bake", MODEL, "--arch", "pentium9", "-o", v2)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"pentium9", done.stderr)

    def test_a_kernel_that_is_not_in_it_is_named(self):
        done = self.run_program(self.alone, "selftest", "--json", BM_CACHE="0", BM_PLUGIN_DIR="", BM_BUNDLE=self.bundle)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"licence.bundle", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
