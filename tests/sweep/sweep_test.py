#!/usr/bin/env python3
"""What sweep.py says of a program that hangs or leaves processes, and that it ends all of them."""

import argparse
import os
import struct
import tempfile
import time
import unittest

import sweep

# Each starts a process in a group of its own, as the product does with compilers.
CHILD = "import os, sys, time; os.setpgrp(); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
PROGRAM = """#!/usr/bin/python3
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}, sys.argv[2]])
while not os.path.exists(sys.argv[2]) or not os.path.getsize(sys.argv[2]):
    time.sleep(0.01)
with open(sys.argv[2] + ".session", "w") as f:
    f.write(str(os.getsid(0)))
if sys.argv[1] == "hang":
    time.sleep(600)
"""


def is_running(pid):
    stat = sweep.read(f"/proc/{pid}/stat")
    return stat != b"" and stat.rsplit(b")", 1)[-1].split()[0] != b"Z"


class Processes(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = held.name
        os.mkdir(held.name + "/bin")
        with open(held.name + "/bin/bellmetal", "w", encoding="ascii") as f:
            f.write(PROGRAM.format(child=CHILD))
        os.chmod(held.name + "/bin/bellmetal", 0o755)

    def run_fake(self, how, limit):
        """Outcome of a run, and the child's id."""
        runs = sweep.Sweep(argparse.Namespace(build=self.folder, limit=limit, debug_hangs=False))
        self.addCleanup(os.rmdir, runs.root)
        path = self.folder + "/child"
        outcome = runs.run(sweep.Subject(how, [how, path], "CPU:LLVM"))
        with open(path, encoding="ascii") as f:
            pid = int(f.read())
        deadline = time.monotonic() + 60
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        return outcome, pid

    def test_a_hung_program_ends_with_its_children(self):
        outcome, child = self.run_fake("hang", 5)
        self.assertEqual(outcome["kind"], "hang")
        self.assertFalse(is_running(child))

    def test_a_process_left_behind_is_named_and_ended(self):
        outcome, child = self.run_fake("leave", 60)
        self.assertEqual(outcome["kind"], "leftover")
        self.assertEqual(outcome["left"], [child])
        self.assertFalse(is_running(child))

    def test_programs_run_in_the_session_of_the_sweep(self):
        self.run_fake("leave", 60)
        with open(self.folder + "/child.session", encoding="ascii") as f:
            self.assertEqual(int(f.read()), os.getsid(0))


class Vendors(unittest.TestCase):
    """A death counts as another library's where the innermost frame is its, not where it is anywhere on the stack."""

    def test_the_innermost_frame_decides(self):
        runtimes = "libfailing_calls.so +1\nlibc.so.6 abort+d3\nlibstdc++.so.6 +1\n"
        self.assertEqual(sweep.vendor_of(runtimes + "libpocl.so.2.10.0 +69\nbellmetal +79\n"), "libpocl")
        self.assertIsNone(sweep.vendor_of(runtimes + "bellmetal +79\nlibpocl.so.2.10.0 +69\nbellmetal +12\n"))
        self.assertIsNone(sweep.vendor_of(runtimes))
        self.assertIsNone(sweep.vendor_of(""))

    def judged(self, died, planted, failed):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("tmp", "out", "cache"):
                os.mkdir(folder + "/" + name)
            with open(folder + "/report", "wb") as f:
                f.write(struct.pack("<66Q", 1, failed, *[0] * 64) + planted.ljust(8192, b"\0") + died.ljust(8192, b"\0"))
            runs = sweep.Sweep(argparse.Namespace(build=folder, limit=1, debug_hangs=False))
            self.addCleanup(os.rmdir, runs.root)
            return runs.judge(sweep.Subject("x", ["generate"], "CL"), folder, (b"", b""), -11, False, [], None, False)["kind"]

    def test_their_crash_after_a_failed_call_of_ours_is_ours(self):
        theirs, ours = b"libpocl.so.2.10.0 +69\nbellmetal +79\n", b"libc.so.6 +1\nbellmetal +79\n"
        self.assertEqual(self.judged(theirs, theirs, 1), "vendor libpocl")
        self.assertEqual(self.judged(theirs, ours, 1), "crash")
        self.assertEqual(self.judged(theirs, ours, 9), "vendor libpocl")
        self.assertEqual(self.judged(ours, theirs, 1), "crash")


if __name__ == "__main__":
    unittest.main()
