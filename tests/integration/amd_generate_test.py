#!/usr/bin/env python3
"""The bundled model gives the same tokens on simulated AMD GPUs as on the CPU.

usage: amd_generate_test.py BELLMETAL_AMD

BELLMETAL_AMD is the program with simulated GPUs in its own process (tests/unit/amd_tensor).
"""
import json
import os
import subprocess
import sys
import time

PROGRAM = sys.argv[1]
COMMAND = [PROGRAM, "generate", "models/bundled/licence.gguf", "Permission is", "--max-tokens", "6",
           "--temperature", "0", "--json"]
MACHINES = {"AMD:0": "gfx1100, PM4", "AMD:1": "gfx1100, AQL", "AMD:2": "gfx1201, PM4", "AMD:3": "gfx1201, AQL"}


def tokens(device):
    done = subprocess.run(COMMAND, env={**os.environ, "DEV": device}, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{device}: exit code {done.returncode}: {done.stderr.decode()}")
    return json.loads(done.stdout)["tokens"]


expected = tokens("CPU")
assert len(expected) == 6, expected
for device, machine in MACHINES.items():
    start = time.monotonic()
    got = tokens(device)
    print(f"{machine}: {got}, {time.monotonic() - start:.1f} s")
    if got != expected:
        sys.exit(f"{machine}: {got}, on the CPU {expected}")
