#!/usr/bin/env python3
"""Runs a program on the CL device of Oclgrind, a simulator of OpenCL devices that finds data races, accesses outside of
buffers and, with --uninitialized, values that nobody wrote. Fails if the program does or the simulator says anything.

usage: oclgrind_test.py [--uninitialized] program [argument ...]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


def main():
    options = ["--data-races"]
    command = sys.argv[1:]
    if command[0] == "--uninitialized":
        options.append(command.pop(0))
    tool = shutil.which("oclgrind")
    if tool is None:
        print("skipped: no oclgrind in PATH (package oclgrind)")
        return SKIPPED
    icd = pathlib.Path(tool).resolve().parent.parent / "lib" / "oclgrind" / "liboclgrind-rt-icd.so"
    if not icd.exists():
        print(f"skipped: no {icd}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        # Optimised code has instructions that Oclgrind 21.10 does not know: freeze, funnel shifts.
        options += ["--build-options", "-O0", "--log", str(log), "--num-threads", "1"]
        # An interpreter: what a device does in a millisecond takes it seconds.
        environment = dict(os.environ, OCL_ICD_VENDORS=str(icd), BM_WAIT_TIMEOUT_MS="600000")
        code = subprocess.run([tool, *options, *command], env=environment, check=False).returncode
        said = log.read_text(errors="replace").strip() if log.exists() else ""
    if said:
        print(f"Oclgrind:\n{said[:4000]}")
    return 1 if said else code


if __name__ == "__main__":
    sys.exit(main())
