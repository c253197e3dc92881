#!/usr/bin/env python3
"""Signals at random moments: the program ends soon, with the right code, and leaves nothing lying about.

    interrupt_test.py PATH_OF_BELLMETAL [SIM_NV SIM_AMD] [--rounds N] [--longest-delay SECONDS] [--figures] [-k TEST]

--figures prints how long each command took to end after its first Ctrl-C, and asserts no time.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from limits import seconds

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("simulators", nargs="*")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--longest-delay", type=float, default=3, help="seconds a command runs before its signal, at most")
parser.add_argument("--figures", action="store_true")
OPTIONS, REST = parser.parse_known_args()
PROGRAM = os.path.abspath(OPTIONS.program)
MODEL = os.path.abspath("models/bundled/licence.gguf")
SEED = random.randrange(1 << 32)
RANDOM = random.Random(SEED)

LONG = ["generate", MODEL, "Permission is hereby granted", "--max-tokens", "100000", "--temperature", "1"]
COMMANDS = {
    "generate CPU": [PROGRAM, *LONG, "--device", "CPU"],
    "generate CPU:CLANG": [PROGRAM, *LONG, "--device", "CPU:CLANG"],
    "generate REF": [PROGRAM, *LONG, "--device", "REF"],
    "selftest CPU": [PROGRAM, "selftest", "--device", "CPU"],
    "selftest REF": [PROGRAM, "selftest", "--device", "REF"],
    "bench replay": [PROGRAM, "bench", "replay", "--device", "CPU"],
    "bench overhead": [PROGRAM, "bench", "overhead", "--device", "CPU"],
    "bake": [PROGRAM, "bake", MODEL, "-o", "OUT"],
    "serve CPU": [PROGRAM, "serve", MODEL, "--listen", "127.0.0.1:0", "--device", "CPU"],
    "serve CPU:CLANG": [PROGRAM, "serve", MODEL, "--listen", "127.0.0.1:0", "--device", "CPU:CLANG"],
}
for simulator in OPTIONS.simulators:
    name = os.path.basename(simulator)
    COMMANDS[name + " selftest"] = [os.path.abspath(simulator), PROGRAM, "selftest"]
    COMMANDS[name + " generate"] = [os.path.abspath(simulator), PROGRAM, *LONG]


class Run:
    """A command in a process group of its own, with folders of its own for everything temporary."""

    def __init__(self, command, **env):
        self.held = tempfile.TemporaryDirectory()
        self.folders = {name: os.path.join(self.held.name, name) for name in ("tmp", "out", "cache")}
        for folder in self.folders.values():
            os.mkdir(folder, 0o700)
        out = os.path.join(self.folders["out"], "model.bundle")
        environment = {**os.environ, "TMPDIR": self.folders["tmp"], "BM_CACHE_DIR": self.folders["cache"], **env}
        self.error = tempfile.TemporaryFile()
        self.child = subprocess.Popen([out if word == "OUT" else word for word in command], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=self.error, env=environment, process_group=0)

    def end(self, number, to_group):
        """Sends a signal as kill does or as a terminal does to a job; seconds until the command's end."""
        start = time.monotonic()
        (os.killpg if to_group else os.kill)(self.child.pid, number)
        self.child.wait(timeout=seconds(120))
        return time.monotonic() - start

    def said(self):
        self.error.seek(0)
        return self.error.read().decode(errors="replace")

    def leftovers(self):
        """What still lies about once those who clean up after a killed process had their time."""
        deadline = time.monotonic() + 20
        while True:
            found = [os.path.join(name, entry) for name in ("tmp", "out") for entry in os.listdir(self.folders[name])]
            if not found or time.monotonic() > deadline:
                return [f for f in found if f != "out/model.bundle"]
            time.sleep(0.02)

    def close(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self.error.close()
        self.held.cleanup()


def seconds_to_start():
    start = time.monotonic()
    subprocess.run([PROGRAM, "version"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


class Signals(unittest.TestCase):
    def setUp(self):
        # A loaded machine starts and ends processes late.
        self.limit = max(4, 30 * seconds_to_start())

    def run_and_end(self, name, number, to_group=False, delay=None, **env):
        run = Run(COMMANDS[name], **env)
        self.addCleanup(run.close)
        delay = RANDOM.uniform(0.0, OPTIONS.longest_delay) if delay is None else delay
        where = f"{name}, signal {number} after {delay:.3f} s, seed {SEED}"
        try:
            run.child.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            pass
        if run.child.poll() is not None:
            self.assertEqual(run.child.returncode, 0, where + ": " + run.said())  # it was done before
        else:
            seconds = run.end(number, to_group)
            self.assertIn(run.child.returncode, (0, -number, 128 + number), where + ": " + run.said())
            self.assertLess(seconds, self.limit, where)
        self.assertEqual(run.leftovers(), [], where)

    def test_the_first_ctrl_c_ends_every_command_soon(self):
        for name in COMMANDS:
            for _ in range(OPTIONS.rounds):
                with self.subTest(name):
                    self.run_and_end(name, signal.SIGINT)

    def test_ctrl_c_of_a_terminal_reaches_a_whole_job(self):
        for name in COMMANDS:
            with self.subTest(name):
                self.run_and_end(name, signal.SIGINT, to_group=True)

    def test_other_signals_leave_nothing_behind_either(self):
        names = [n for n in COMMANDS if "CLANG" in n or "sim-" in n or n == "bake"]
        for name in names:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGKILL):
                if "serve" in name and number in (signal.SIGHUP, signal.SIGPIPE):
                    continue  # the first loads its models anew, the second is one client's end
                with self.subTest(name, number=number):
                    self.run_and_end(name, number)


def print_figures():
    for name, command in COMMANDS.items():
        seconds = []
        while len(seconds) < OPTIONS.rounds:
            run = Run(command)
            time.sleep(RANDOM.uniform(0.0, OPTIONS.longest_delay))
            if run.child.poll() is None:
                seconds.append(run.end(signal.SIGINT, to_group=False))
            run.close()
        seconds.sort()
        print(f"{name:22} {len(seconds)} times: median {seconds[len(seconds) // 2] * 1e3:4.0f} ms, longest {seconds[-1] * 1e3:4.0f} ms", flush=True)


if __name__ == "__main__":
    if OPTIONS.figures:
        print_figures()
    else:
        unittest.main(argv=[sys.argv[0], *REST])
