#!/usr/bin/env python3
"""The bundled model gives the same tokens on simulated NVIDIA machines as on the CPU.

usage: nvidia_generate_test.py BELLMETAL SIM_NV FAKE_LIBCUDA
"""
import json
import os
import subprocess
import sys

PROGRAM, SIMULATOR, LIBCUDA = sys.argv[1:4]
COMMAND = [PROGRAM, "generate", "models/bundled/licence.gguf", "Permission is", "--max-tokens", "6",
           "--temperature", "0", "--json"]
MACHINES = [("ad102", "550"), ("gh100", "570"), ("gh100", "580"), ("gb202", "610")]
CANNOT_RUN_HERE = 77  # what the simulator says where seccomp user notification is missing


def tokens(what, command, **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=False)
    if done.returncode == CANNOT_RUN_HERE:
        print(done.stderr.decode())
        sys.exit(CANNOT_RUN_HERE)
    if done.returncode != 0:
        sys.exit(f"{what}: exit code {done.returncode}: {done.stderr.decode()}")
    return json.loads(done.stdout)["tokens"]


expected = tokens("CPU", COMMAND, DEV="CPU")
assert len(expected) == 6, expected
runs = {"CUDA": tokens("CUDA", COMMAND, DEV="CUDA:PTX", BM_NV_CODE="ptx", BM_CUDA_LIBRARY=LIBCUDA)}
for chip, release in MACHINES:
    name = f"NV, {chip}, driver {release}"
    runs[name] = tokens(name, [SIMULATOR, "--chip", chip, "--release", release, "--strict", *COMMAND],
                        DEV="NV:PTX")
for name, got in runs.items():
    print(name, got)
    if got != expected:
        sys.exit(f"{name}: {got}, on the CPU {expected}")
