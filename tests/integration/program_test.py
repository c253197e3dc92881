#!/usr/bin/env python3
"""The bellmetal program from outside: output, exit codes, bad input, signals.

    program_test.py PATH_OF_BELLMETAL
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
MODEL = "models/bundled/licence.gguf"
PROMPT = "Permission is hereby granted"


def run(*args, env=None, timeout=300):
    return subprocess.run([PROGRAM, *args], capture_output=True, timeout=timeout, env={**os.environ, **(env or {})})


def run_json(*args, env=None, code=0):
    done = run(*args, "--json", env=env)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


class Generate(unittest.TestCase):
    def test_streams_text_that_reads_like_a_licence(self):
        done = run("generate", MODEL, PROMPT, "--max-tokens", "60")
        text = done.stdout.decode()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(PROMPT + ", free of charge, to any person", text)
        self.assertRegex(text.strip().splitlines()[-1], r"prefill [\d.]+ tokens/s .*decode [\d.]+ tokens/s .*first token after \d+ ms, CPU")

    def test_json_is_one_object_with_the_documented_keys(self):
        got = run_json("generate", MODEL, PROMPT, "--max-tokens", "8")
        for key in ("text", "tokens", "prompt_tokens", "prefill_tokens_per_s", "decode_tokens_per_s", "time_to_first_token_ms", "device"):
            self.assertIn(key, got)
        self.assertEqual(len(got["tokens"]), 8)
        self.assertEqual(got["prompt_tokens"], 29)
        self.assertGreater(got["decode_tokens_per_s"], 0)

    def test_greedy_text_is_the_same_on_every_device(self):
        want = run_json("generate", MODEL, PROMPT, "--max-tokens", "6", "--device", "CPU")["tokens"]
        self.assertEqual(run_json("generate", MODEL, PROMPT, "--max-tokens", "6", "--device", "CPU:CLANG")["tokens"], want)
        self.assertEqual(run_json("generate", MODEL, "The", "--max-tokens", "2", "--device", "REF")["tokens"],
                         run_json("generate", MODEL, "The", "--max-tokens", "2", "--device", "CPU")["tokens"])

    def test_greedy_text_on_opencl_is_the_same(self):
        if not any(d["name"] == "CL" and d["usable"] for d in run_json("devices")["devices"]):
            self.skipTest("no OpenCL device")
        want = run_json("generate", MODEL, PROMPT, "--max-tokens", "24", env={"DEV": "CPU"})["tokens"]
        got = run_json("generate", MODEL, PROMPT, "--max-tokens", "24", env={"DEV": "CL"})
        self.assertEqual(got["tokens"], want)
        self.assertTrue(got["device"].startswith("CL"))

    def test_a_seed_repeats_itself_and_another_does_not(self):
        args = ("generate", MODEL, PROMPT, "--max-tokens", "40", "--temperature", "1.5")
        a = run_json(*args, "--seed", "1")["tokens"]
        self.assertEqual(run_json(*args, "--seed", "1")["tokens"], a)
        self.assertNotEqual(run_json(*args, "--seed", "2")["tokens"], a)

    def test_runs_without_a_cache_and_without_jit(self):
        want = run_json("generate", MODEL, PROMPT, "--max-tokens", "4")["tokens"]
        for env in ({"BM_CACHE": "0"}, {"JIT": "0"}, {"JIT": "2"}, {"BM_CACHE_DIR": "/proc/nowhere"}, {"NO_MEMORY_PLANNER": "1"}, {"BM_THREADS": "1"}):
            self.assertEqual(run_json("generate", MODEL, PROMPT, "--max-tokens", "4", env=env)["tokens"], want, env)

    def test_a_prompt_longer_than_the_context_is_refused(self):
        done = run("generate", MODEL, "x" * 600, "--json")
        self.assertNotEqual(done.returncode, 0)
        got = json.loads(done.stdout)
        self.assertEqual(got["error"]["code"], "invalid_argument")
        self.assertIn("512", got["error"]["message"])

    def test_generation_stops_at_the_end_of_the_context(self):
        got = run_json("generate", MODEL, "x" * 500, "--max-tokens", "100")
        self.assertLessEqual(len(got["tokens"]), 13)

    def test_debug_2_prints_time_and_rates_per_kernel(self):
        done = run("generate", MODEL, PROMPT, "--max-tokens", "2", env={"DEBUG": "2", "JIT": "2"})
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr.decode(), r"us.*GFLOPS.*GB/s")

    def test_a_trace_is_valid_json(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            self.assertEqual(run("generate", MODEL, PROMPT, "--max-tokens", "2", env={"BM_PROFILE": path}).returncode, 0)
            with open(path) as f:
                trace = json.load(f)
            events = trace["traceEvents"] if isinstance(trace, dict) else trace
            self.assertTrue(any(e.get("ph") in ("X", "B") for e in events))

    def test_ctrl_c_ends_cleanly(self):
        child = subprocess.Popen([PROGRAM, "generate", MODEL, PROMPT, "--max-tokens", "100000", "--temperature", "1"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.read(40)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
        self.assertEqual(child.returncode, 130, err)
        self.assertIn(b"tokens/s", out)


class BadFiles(unittest.TestCase):
    """Every one ends with exit code 4 (or another error code), a message, and no crash."""

    def check(self, data, *mentions):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            f.write(data)
            f.flush()
            done = run("generate", f.name, "x")
            self.assertIn(done.returncode, (1, 2, 3, 4), done)
            message = done.stderr.decode()
            self.assertTrue(message.startswith("bellmetal: "), message)
            for m in mentions:
                self.assertIn(m, message)
            got = json.loads(run("generate", f.name, "x", "--json").stdout)
            self.assertIn("code", got["error"])

    def setUp(self):
        with open(MODEL, "rb") as f:
            self.good = f.read()

    def test_empty(self):
        self.check(b"")

    def test_not_gguf(self):
        self.check(b"#!/bin/sh\necho hello\n" * 10)

    def test_truncated_anywhere(self):
        for n in (4, 20, 100, 5000, 20000, len(self.good) // 2, len(self.good) - 1):
            self.check(self.good[:n])

    def test_counts_that_overflow(self):
        for at in (8, 16):
            data = bytearray(self.good)
            data[at:at + 8] = struct.pack("<Q", 2**63 + 1)
            self.check(bytes(data))

    def test_flipped_bytes_never_crash(self):
        import random
        rng = random.Random(5)
        for _ in range(25):
            data = bytearray(self.good)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(0, 12000)] = rng.randrange(256)
            with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
                f.write(data)
                f.flush()
                done = run("generate", f.name, "x", "--max-tokens", "1")
                self.assertIn(done.returncode, (0, 1, 2, 3, 4), done)

    def test_missing_file_and_folder(self):
        for path in ("/nonexistent/model.gguf", "/tmp"):
            done = run("generate", path, "x")
            self.assertEqual(done.returncode, 4, done)
            self.assertIn(path, done.stderr.decode())


class Usage(unittest.TestCase):
    def test_wrong_device_strings_say_what_was_meant(self):
        for name, mention in (("CPUU", "CPU"), ("CPU:LLVN", "LLVM"), ("XYZ", "XYZ")):
            done = run("generate", MODEL, "x", "--device", name)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(mention, done.stderr.decode())
            done = run("generate", MODEL, "x", env={"DEV": name})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(mention, done.stderr.decode())

    def test_a_memory_cap_is_an_error_with_numbers(self):
        done = run("generate", MODEL, "x", env={"BM_MEMORY_CAP": "64K"})
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr.decode(), r"\d")

    def test_every_command_has_help_and_json(self):
        for command in ("generate", "devices", "bench", "env", "selftest", "cache", "disasm"):
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn(b"--help", done.stdout)
        self.assertEqual(run("nonsense").returncode, 2)
        self.assertEqual(run("generate").returncode, 2)

    def test_devices(self):
        names = [d["name"] for d in run_json("devices")["devices"]]
        for name in ("CPU", "NULL", "REF"):
            self.assertIn(name, names)

    def test_env_and_cache(self):
        run_json("env")
        run_json("cache", "stats")

    def test_disasm(self):
        self.assertTrue(run_json("disasm")["kernels"])
        got = run_json("disasm", "add")
        self.assertIn("ret", got["kernels"][0]["assembly"])


class Selftest(unittest.TestCase):
    def test_passes_on_every_built_in_device(self):
        for device in ("CPU", "CPU:CLANG", "REF", "NULL"):
            got = run_json("selftest", "--device", device)
            self.assertTrue(got["ok"], got)
            self.assertGreaterEqual(len(got["checks"]), 10)

    def test_bench_rows(self):
        for suite in ("replay", "overhead"):
            for row in run_json("bench", suite)["rows"]:
                for key in ("name", "ours", "peer", "peer_name", "ratio", "goal"):
                    self.assertIn(key, row)

    def test_bench_cpu_measures_every_row_without_peers(self):
        names = run_json("bench", "cpu", "--list")["cases"]
        rows = run_json("bench", "cpu", "--tiny", "--no-peers", "--threads", "1,2")["rows"]
        self.assertEqual([r["name"] for r in rows], [n for n in names for _ in (1, 2)])
        self.assertEqual([r["threads"] for r in rows], [1, 2] * len(names))
        for row in rows:
            self.assertNotIn("problem", row)
            self.assertGreater(row["ours"], 0, row)

    def test_bench_gpu_measures_every_row_without_peers(self):
        names = run_json("bench", "gpu", "--list")["cases"]
        rows = run_json("bench", "gpu", "--tiny", "--no-peers", "--device", "CPU")["rows"]
        self.assertEqual([r["name"] for r in rows], names)
        for row in rows:
            self.assertNotIn("problem", row)
            self.assertGreater(row["ours"], 0, row)
            self.assertEqual(row["peers"], [])
            self.assertLess(row["relative_error"], 0.04)
            if row["unit"] == "GB/s":
                self.assertGreater(row["bounds"][0]["value"], 0, row)

    def test_bench_of_a_driver(self):
        for command in (("latency",), ("bandwidth", "--mib", "1"), ("matmul", "--size", "64")):
            got = run_json("bench", *command, "--device", "CPU")
            self.assertTrue(got["rows"])
            for row in got["rows"]:
                self.assertGreater(row["ours"], 0, row)
                self.assertIn(row["unit"], ("us", "GB/s", "TFLOP/s"))


if __name__ == "__main__":
    unittest.main()
