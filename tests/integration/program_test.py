#!/usr/bin/env python3
"""The bellmetal program from outside: output, exit codes, bad input, signals.

    program_test.py PATH_OF_BELLMETAL
"""

import atexit
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from gguf_keys import add_keys
from limits import seconds

PROGRAM = sys.argv.pop(1)
NOBODY = 65534
# A user whom no other process is: the kernel counts processes by user, those of other tests too.
SOMEBODY = 60000 + os.getpid() % 5000
MODEL = "models/bundled/licence.gguf"
PROMPT = "Permission is hereby granted"


def for_everyone():
    """Root's tests run the program as other users too, who cannot enter a build below a folder such as /root: a copy then."""
    global PROGRAM, MODEL
    folder, is_reachable = os.path.dirname(os.path.abspath(PROGRAM)), True
    while folder != "/":
        is_reachable = is_reachable and os.stat(folder).st_mode & 0o005 == 0o005
        folder = os.path.dirname(folder)
    if is_reachable or os.getuid() != 0:
        return
    copy = tempfile.mkdtemp(prefix="bm-program-")
    atexit.register(shutil.rmtree, copy)
    os.chmod(copy, 0o755)
    plugins = os.environ.get("BM_PLUGIN_DIR", os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(PROGRAM))), "lib"))
    for name in os.listdir(plugins):
        if name.startswith("libbellmetal"):
            shutil.copy2(os.path.join(plugins, name), copy)
    os.environ["BM_PLUGIN_DIR"] = copy
    PROGRAM, MODEL = shutil.copy2(PROGRAM, copy), shutil.copy2(MODEL, copy)


def run(*args, env=None, timeout=seconds(300)):
    return subprocess.run([PROGRAM, *args], capture_output=True, timeout=timeout, env={**os.environ, **(env or {})})


def run_json(*args, env=None, code=0):
    done = run(*args, "--json", env=env)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


class Generate(unittest.TestCase):
    def test_streams_text_that_reads_like_a_licence(self):
        done = run("generate", MODEL, PROMPT, "--max-tokens", "60")
        text, said = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertTrue(text.startswith(", free of charge, to any person"), text)
        self.assertTrue(said.startswith(PROMPT), said)
        self.assertRegex(said.strip().splitlines()[-1], r"prefill [\d.]+ tokens/s .*decode [\d.]+ tokens/s .*first token after \d+ ms, CPU")

    def test_what_the_file_recommends_goes_behind_options(self):
        prompt = "Zebras"  # which it has not learned by heart
        plain = run_json("generate", MODEL, prompt, "--max-tokens", "16")
        warm = run_json("generate", MODEL, prompt, "--max-tokens", "16", "--temperature", "1.5", "--top-k", "30")
        self.assertNotEqual(plain["tokens"], warm["tokens"])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.gguf")
            add_keys(MODEL, path, {"general.sampling.temp": 1.5, "general.sampling.top_k": 30})
            self.assertEqual(run_json("generate", path, prompt, "--max-tokens", "16")["tokens"], warm["tokens"])
            self.assertEqual(run_json("generate", path, prompt, "--max-tokens", "16", "--temp", "0")["tokens"], plain["tokens"])
            add_keys(MODEL, path, {"tokenizer.ggml.suppress_tokens": [plain["tokens"][0]]})
            self.assertNotIn(plain["tokens"][0], run_json("generate", path, prompt, "--max-tokens", "16", "--temp", "0")["tokens"])

    def test_a_pipe_gets_the_text_and_nothing_else(self):
        done = run("generate", MODEL, PROMPT, "--max-tokens", "20")
        want = run_json("generate", MODEL, PROMPT, "--max-tokens", "20")["text"]
        self.assertEqual(done.stdout.decode(), want if want.endswith("\n") else want + "\n")

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
        out, err = child.communicate(timeout=seconds(30))
        self.assertEqual(child.returncode, 130, err)
        self.assertIn(b"tokens/s", err)


class Limits(unittest.TestCase):
    """What the system gives too little of is an error with a line, or is not needed."""

    def limited(self, *args, limits, env=None, timeout=seconds(300)):
        with tempfile.TemporaryDirectory() as cache:
            os.chmod(cache, 0o700)
            if os.getuid() == 0 and any(kind == resource.RLIMIT_NPROC for kind, _ in limits):
                os.chown(cache, SOMEBODY, SOMEBODY)

            def apply():
                for kind, value in limits:
                    resource.setrlimit(kind, value if isinstance(value, tuple) else (value, value))
                    if kind == resource.RLIMIT_NPROC and os.getuid() == 0:  # root is not bound by it
                        os.setgroups([])
                        os.setgid(SOMEBODY)
                        os.setuid(SOMEBODY)

            return subprocess.run([PROGRAM, *args], capture_output=True, timeout=timeout, preexec_fn=apply,
                                  env={**os.environ, "BM_CACHE_DIR": cache, **(env or {})})

    def test_a_small_stack_is_not_needed(self):
        done = self.limited("generate", MODEL, PROMPT, "--max-tokens", "2", limits=[(resource.RLIMIT_STACK, 64 << 10)])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_compiler_that_dies_of_a_small_stack_is_told_as_such(self):
        if shutil.which("clang-19") is None:
            self.skipTest("no clang-19")
        done = self.limited("generate", MODEL, PROMPT, "--max-tokens", "1", "--device", "CPU:CLANG",
                            limits=[(resource.RLIMIT_STACK, 64 << 10)])
        self.assertNotEqual(done.returncode, 0, done)
        self.assertIn(b"stack limit of 64 KiB: raise it", done.stderr.splitlines()[-1], done)
        # Where only the soft limit is small the program raises it for its compilers.
        done = self.limited("generate", MODEL, PROMPT, "--max-tokens", "1", "--device", "CPU:CLANG",
                            limits=[(resource.RLIMIT_STACK, (64 << 10, 8 << 20))])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_too_little_memory_is_an_error_that_says_how_much(self):
        found = set()
        for mib in (96, 192, 320):
            done = self.limited("generate", MODEL, PROMPT, "--max-tokens", "2", limits=[(resource.RLIMIT_AS, mib << 20)])
            self.assertIn(done.returncode, (0, 1, 3), done)
            said = done.stderr.decode().strip().splitlines()
            if done.returncode == 1:
                found.add(said[-1])
        for line in found:
            self.assertRegex(line, r"bellmetal: .*(out of memory|[Cc]annot allocate memory|bytes)", found)

    def test_no_further_thread_is_only_slower(self):
        done = self.limited("generate", MODEL, PROMPT, "--max-tokens", "2", limits=[(resource.RLIMIT_NPROC, 1)])
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.limited("selftest", limits=[(resource.RLIMIT_NPROC, 1)])
        self.assertEqual(done.returncode, 1, done.stdout)  # one of its checks is about threads
        self.assertIn(b"a thread cannot be started", done.stdout)

    def test_files_that_may_not_grow_are_errors_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle = os.path.join(folder, "kernels.bundle")
            done = self.limited("bake", MODEL, "-o", bundle, limits=[(resource.RLIMIT_FSIZE, 8 << 10)])
            self.assertIn(done.returncode, (1, 4), done)
            self.assertIn(b"kernels.bundle", done.stderr.splitlines()[-1])
            self.assertEqual(os.listdir(folder), [])
        done = self.limited("generate", MODEL, PROMPT, "--max-tokens", "2", limits=[(resource.RLIMIT_FSIZE, 8 << 10)])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_more_threads_than_the_machine_can_use_are_left_out(self):
        done = run("generate", MODEL, PROMPT, "--max-tokens", "2", env={"BM_THREADS": "4096", "DEV": "CPU"}, timeout=seconds(120))
        self.assertEqual(done.returncode, 0, done.stderr)
        if 4 * len(os.sched_getaffinity(0)) < 4096:
            self.assertEqual(done.stderr.count(b"BM_THREADS=4096"), 1, done.stderr)


class Privileges(unittest.TestCase):
    """What a deployed program does is one process of an ordinary user."""

    def setUp(self):
        try:
            can_trace = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0
        except FileNotFoundError:
            can_trace = False
        if not can_trace:
            self.skipTest("strace is not installed or may not trace here")

    def traced(self, calls, *command):
        """Lines of strace about the command and its children, as an ordinary user."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o711)
            log, cache = os.path.join(folder, "log"), os.path.join(folder, "cache")
            os.mkdir(cache, 0o700)

            drop = []
            if os.getuid() == 0:
                os.chown(cache, NOBODY, NOBODY)
                drop = ["-u", "nobody"]
            done = subprocess.run(["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=" + calls, "-e", "signal=none", "-o", log, *drop,
                                   *(a.replace("@CACHE@", cache) for a in command)], capture_output=True, timeout=300,
                                  env={**os.environ, "BM_CACHE_DIR": cache, "HOME": cache})
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(log, encoding="utf-8") as lines:
                return list(lines)

    def executed(self, *args):
        """Files that are executed, the program first."""
        calls = [re.search(r'execve(?:at)?\((?:[^"]*)"([^"]*)"', line) for line in self.traced("execve,execveat", PROGRAM, *args)
                 if " = 0" in line]
        return [call.group(1) for call in calls if call]

    def test_generate_executes_no_other_program(self):
        generate = ("generate", os.path.abspath(MODEL), PROMPT, "--max-tokens", "2", "--device")
        self.assertEqual(self.executed(*generate, "CPU:LLVM"), [PROGRAM])
        if shutil.which("clang-19"):
            self.assertGreater(len(self.executed(*generate, "CPU:CLANG")), 1, "the test would see a compiler")

    def test_commands_open_no_socket(self):
        """Nothing is fetched, asked or reported: no command but the server opens a socket of any kind."""
        model = os.path.abspath(MODEL)
        devices = ["CPU:LLVM"] + (["CPU:CLANG"] if shutil.which("clang-19") else [])
        commands = [("generate", model, PROMPT, "--max-tokens", "2", "--device", device) for device in devices]
        commands += [("version",), ("devices",), ("doctor",), ("env",), ("inspect", model), ("tokenize", model, PROMPT), ("cache", "stats"),
                     ("bake", model, "-o", "@CACHE@/kernels.bundle"), ("selftest", "--device", "CPU:LLVM")]
        for command in commands:
            with self.subTest(command[0]):
                self.assertEqual(self.traced("%network", PROGRAM, *command), [])
        connect = ("bash", "-c", "exec 3<>/dev/udp/127.0.0.1/9")
        self.assertIn("AF_INET", "".join(self.traced("%network", *connect)), "the test would see a socket")


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

    def test_weights_that_give_nan(self):
        # The last tensor's last values: all bits set is NaN in every float format.
        data = bytearray(self.good)
        data[-4096:] = b"\xff" * 4096
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            f.write(data)
            f.flush()
            done = run("generate", f.name, "x", "--device", "CPU")
            self.assertEqual(done.returncode, 4, done)
            self.assertIn("model gives NaN", done.stderr.decode())
            self.assertIn(f.name, done.stderr.decode())
            error = run_json("generate", f.name, "x", "--device", "CPU", code=4)["error"]
            self.assertIn("model gives NaN", error["message"])
            self.assertIn(f.name, error["message"])

    def test_a_folder_says_which_file_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            def write(name, value):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    json.dump(value, file)
            for command in (("generate", folder, "a"), ("inspect", folder), ("bake", folder), ("chat", folder)):
                done = run(*command)
                self.assertEqual(done.returncode, 4, done)
                self.assertIn(folder + "/config.json is missing", done.stderr.decode())
            done = run("tokenize", folder, "a")
            self.assertEqual(done.returncode, 4, done)
            self.assertIn(folder + "/tokenizer.json is missing", done.stderr.decode())
            # The tokenizer needs no weights, and no configuration.
            write("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})
            self.assertEqual(run("tokenize", folder, "abb", "--ids").stdout, b"2,1\n")
            write("config.json", {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8,
                                  "num_attention_heads": 2, "vocab_size": 3, "max_position_embeddings": 64, "rms_norm_eps": 1e-5})
            self.assertEqual(run("tokenize", folder, "abb", "--ids").stdout, b"2,1\n")
            done = run("generate", folder, "a")
            self.assertEqual(done.returncode, 4, done)
            self.assertIn("model.safetensors", done.stderr.decode())

    def test_missing_file_and_folder(self):
        for path in ("/nonexistent/model.gguf", "/tmp"):
            done = run("generate", path, "x")
            self.assertEqual(done.returncode, 4, done)
            self.assertIn(path, done.stderr.decode())


class LostOutput(unittest.TestCase):
    """What could not be written is an error of every command."""

    COMMANDS = (("generate", MODEL, PROMPT, "--max-tokens", "4"), ("devices",), ("env",), ("version",), ("--version",), ("--help",),
                ("generate", "--help"), ("selftest", "--device", "REF"), ("disasm",), ("cache", "stats"),
                ("bench", "cpu", "--list"), ("bench", "gpu", "--list"),
                ("explain", "relu(f32[8, 8])", "--no-measure", "--device", "CPU"))

    def run_to(self, out, *args):
        return subprocess.run([PROGRAM, *args], stdout=out, stderr=subprocess.PIPE, timeout=seconds(300))

    def test_a_full_disk(self):
        with open("/dev/full", "w") as full:
            for command in self.COMMANDS:
                for form in ((), ("--json",)):
                    if form and any(c.startswith("--") and c in ("--version", "--help") for c in command):
                        continue
                    done = self.run_to(full, *command, *form)
                    self.assertEqual(done.returncode, 1, (command, form, done.stderr))
                    self.assertIn(b"stdout", done.stderr, (command, form))

    def test_a_closed_stdout(self):
        for command in (("env",), ("devices", "--json"), ("generate", MODEL, PROMPT, "--max-tokens", "2")):
            done = subprocess.run(["/bin/sh", "-c", 'exec "$0" "$@" >&-', PROGRAM, *command], stderr=subprocess.PIPE, timeout=seconds(300))
            self.assertEqual(done.returncode, 1, (command, done.stderr))

    def test_a_stderr_that_takes_nothing_changes_no_exit_code(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, "generate", "/nonexistent", "x"], stdout=subprocess.PIPE, stderr=full, timeout=seconds(300))
            self.assertEqual(done.returncode, 4)
            done = subprocess.run([PROGRAM, "nonsense"], stdout=subprocess.PIPE, stderr=full, timeout=seconds(300))
            self.assertEqual(done.returncode, 2)


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

    def test_help_is_a_command_too(self):
        self.assertEqual(run("help").stdout, run("--help").stdout)
        for command in (("serve",), ("gpu", "boot"), ("bench", "cpu"), ("help",)):
            asked = run("help", *command)
            self.assertEqual((asked.returncode, asked.stdout), (0, run(*command, "--help").stdout), command)
        for words, mention in ((("nonsense",), "nonsense"), (("serv",), "serve"), (("gpu", "boo"), "boot"), (("serve", "x"), "x")):
            done = run("help", *words)
            self.assertEqual((done.returncode, done.stdout), (2, b""), words)
            self.assertIn(mention, done.stderr.decode())

    def test_arguments_that_are_too_many_are_no_commands(self):
        for command in (("inspect", MODEL, "other"), ("tokenize", MODEL, "text", "other"), ("disasm", "a", "other")):
            done = run(*command)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn('"other" is one argument too many', done.stderr.decode())

    def test_devices(self):
        names = [d["name"] for d in run_json("devices")["devices"]]
        for name in ("CPU", "NULL", "REF"):
            self.assertIn(name, names)

    def test_a_plain_listing_loads_no_opencl_driver(self):
        """An ICD may bring a compiler of 60 MB; its file tells that it is installed."""
        done = run("devices", "--json", env={"LD_DEBUG": "files"})
        row = next(d for d in json.loads(done.stdout)["devices"] if d["driver"] == "CL")
        for library in (b"libpocl", b"libLLVM", b"libclang"):
            self.assertNotIn(library, done.stderr)
        asked = run_json("devices", "CL")["devices"]
        self.assertTrue(all(d["asked"] for d in asked))
        self.assertEqual(row["usable"], asked[0]["usable"])
        if row["usable"]:
            self.assertFalse(row["asked"])
            self.assertRegex(row["description"], r"^installed: \w.*\.icd \(")
            self.assertIn("bellmetal devices CL", run("devices").stdout.decode())
        # Where the environment names drivers only the loader knows what comes of it.
        row = next(d for d in run_json("devices", env={"OCL_ICD_VENDORS": "/nonexistent"})["devices"] if d["driver"] == "CL")
        self.assertTrue(row["asked"])
        self.assertFalse(row["usable"])

    def test_drivers_that_are_not_asked_load_nothing(self):
        """An OpenCL driver brings a compiler: most of the memory of `devices`."""
        done = run("devices", "cpu", "REF", "--json", env={"LD_DEBUG": "files"})
        self.assertEqual([d["name"] for d in json.loads(done.stdout)["devices"]], ["CPU", "REF"])
        self.assertNotIn(b"libOpenCL", done.stderr)
        self.assertNotIn(b"libcuda", done.stderr)
        self.assertNotIn(b"libLLVM", done.stderr)
        done = run("devices", "CPPU")
        self.assertEqual(done.returncode, 2)
        self.assertIn('did you mean "CPU"?', done.stderr.decode())

    def test_a_simulated_machine_is_said_and_not_judged(self):
        # The simulators tell those they start; the CPU stands for their device here.
        for machine, is_simulated in (("CPU", True), ("AMD", False)):
            got = run_json("bench", "replay", "--device", "CPU", env={"SIM_MACHINE": machine})
            self.assertEqual(got["simulated"], is_simulated)
            self.assertEqual(any(row["goal"] for row in got["rows"]), not is_simulated)
            for row in got["rows"]:
                self.assertEqual(row["clock"], "host")

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


class Bench(unittest.TestCase):
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
            # What a bundle leaves of compiling may be less than this machine can tell.
            self.assertGreaterEqual(row["ours"], 0 if "bundle" in row["name"] else 1e-9, row)

    def test_a_peer_that_dies_loses_no_row(self):
        hello = json.dumps({"python": "3", "torch": "9.9", "onnxruntime": "", "compile": False})
        for script in (f"#!/bin/sh\nread x\necho '{hello}'\n", "#!/bin/sh\nread x\necho '{}'\n"):
            with tempfile.TemporaryDirectory() as folder:
                fake = os.path.join(folder, "python")
                with open(fake, "w") as f:
                    f.write(script)
                os.chmod(fake, 0o755)
                got = run_json("bench", "cpu", "--tiny", "--threads", "1", "--only", "softmax", "--peer", "python=" + fake)
                self.assertTrue(got["rows"])
                for row in got["rows"]:
                    self.assertNotIn("problem", row)
                    self.assertGreater(row["ours"], 0, row)
                self.assertTrue(any("python" in note.lower() or "pytorch" in note.lower() for note in got["notes"]), got["notes"])

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

    def test_bench_matmul_ends_after_its_seconds(self):
        # The default size on a CPU, of which a run takes a fraction of a second; 23 runs of 8192 took minutes.
        got = run_json("bench", "matmul", "--seconds", "0", "--device", "CPU")
        self.assertEqual([r["ours"] > 0 for r in got["rows"]], [True, True])
        self.assertIn("1024 x 1024 x 1024", got["rows"][0]["name"])
        for wrong in ("nan", "-1", "x"):
            self.assertEqual(run("bench", "matmul", "--seconds", wrong).returncode, 2)


if __name__ == "__main__":
    for_everyone()
    unittest.main()
