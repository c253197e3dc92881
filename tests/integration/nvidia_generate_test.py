#!/usr/bin/env python3
"""The bundled model gives the same tokens on simulated NVIDIA machines as on the CPU.

usage: nvidia_generate_test.py BELLMETAL SIM_NV FAKE_LIBCUDA
"""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, SIMULATOR, LIBCUDA = sys.argv[1:4]
BUNDLED = "models/bundled/licence.gguf"
MACHINES = [("ad102", "550"), ("gh100", "570"), ("gh100", "580"), ("gb202", "610")]
CANNOT_RUN_HERE = 77  # what the simulator says where seccomp user notification is missing


# Of an int8 cache, of so many tokens that attention of a prompt is by matrix instructions.
PROMPT = "Permission is hereby granted, free of charge, to any person obtaining a copy"


def tokens(what, front, model, cache="f16", **environment):
    prompt = "Permission is" if cache == "f16" else PROMPT
    command = [*front, PROGRAM, "generate", model, prompt, "--max-tokens", "6", "--temperature", "0", "--json", "--cache-type", cache]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=False)
    if done.returncode == CANNOT_RUN_HERE:
        print(done.stderr.decode())
        sys.exit(CANNOT_RUN_HERE)
    if done.returncode != 0:
        sys.exit(f"{what}: exit code {done.returncode}: {done.stderr.decode()}")
    return json.loads(done.stdout)["tokens"]


def on_cuda(model):
    return tokens("CUDA", [], model, DEV="CUDA:PTX", BM_NV_CODE="ptx", BM_CUDA_LIBRARY=LIBCUDA)


def on_nv(chip, release, model, cache="f16"):
    front = [SIMULATOR, "--chip", chip, "--release", release, "--strict"]
    return tokens(f"NV, {chip}, driver {release}", front, model, cache, DEV="NV:PTX")


def compare(model, runs, cache="f16"):
    expected = tokens("CPU", [], model, cache, DEV="CPU")
    assert len(expected) == 6, expected
    for name, got in runs.items():
        print(name, got)
        if got != expected:
            sys.exit(f"{name}: {got}, on the CPU {expected}")


compare(BUNDLED, {"CUDA": on_cuda(BUNDLED)} | {f"NV, {c}, driver {r}": on_nv(c, r, BUNDLED) for c, r in MACHINES})
compare(BUNDLED, {"NV, gh100, int8 cache": on_nv("gh100", "580", BUNDLED, "int8")}, "int8")
# Matrices in blocks stay in blocks.
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "Q4_0.gguf")
    made = subprocess.run(["/usr/bin/python3", "tests/oracle/quantize_gguf.py", BUNDLED, path, "Q4_0"],
                          capture_output=True, text=True, check=False)
    if made.returncode == 0:
        compare(path, {"CUDA, Q4_0": on_cuda(path), "NV, gh100, Q4_0": on_nv("gh100", "580", path)})
    else:
        print(f"Q4_0 not tried: {made.stderr.strip().splitlines()[-1]}")
