#!/usr/bin/env python3
"""A bundle baked for a card has every kernel that the card asks for: with the compiler switched off a simulated one writes the text.

usage: bake_gpu_test.py BELLMETAL BELLMETAL_AMD

BELLMETAL_AMD is the program with simulated GPUs in its own process (tests/unit/amd_tensor); AMD:0 is a gfx1100 of as many
compute units as NULL::gfx1100 has.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from limits import seconds

PROGRAM, PROGRAM_AMD = sys.argv[1:3]
BUNDLED = "models/bundled/licence.gguf"
PROMPT = "Permission is hereby granted"


def run(program, *args, **environment):
    return subprocess.run([program, *args], capture_output=True, timeout=seconds(300), env={**os.environ, **environment}, check=False)


def tokens(done, what):
    if done.returncode != 0:
        sys.exit(f"{what}: exit code {done.returncode}: {done.stdout.decode()}{done.stderr.decode()}")
    return json.loads(done.stdout)["tokens"]


def generate(program, model, device, *more, **environment):
    return run(program, "generate", model, PROMPT, "--max-tokens", "6", "--temperature", "0", "--json", *more, DEV=device, **environment)


with tempfile.TemporaryDirectory() as folder:
    # A program with no LLVM component beside it.
    alone = os.path.join(folder, "alone", "bin", "bellmetal_amd")
    os.makedirs(os.path.dirname(alone))
    shutil.copy(PROGRAM_AMD, alone)
    nothing = {"BM_CACHE": "0", "BM_PLUGIN_DIR": "", "BM_CLANG": "/nowhere"}
    model = os.path.join(folder, "q8.gguf")
    made = subprocess.run(["/usr/bin/python3", "tests/oracle/quantize_gguf.py", BUNDLED, model, "Q8_0"],
                          capture_output=True, text=True, check=False)
    if made.returncode != 0:
        print(f"Q8_0 not tried, F16 instead: {made.stderr.strip().splitlines()[-1]}")
        model = BUNDLED
    bundle = os.path.join(folder, "gfx1100.bundle")
    done = run(PROGRAM, "bake", model, "--arch", "gfx1100", "-o", bundle, "--json", DEV="CPU")
    if done.returncode != 0:
        sys.exit(f"bake: {done.stdout.decode()}{done.stderr.decode()}")
    print(done.stdout.decode().strip())
    refused = generate(alone, model, "AMD:0", **nothing)
    if refused.returncode == 0 or b"LLVM component" not in refused.stdout + refused.stderr:
        sys.exit(f"the compiler is not off: {refused.stdout.decode()}{refused.stderr.decode()}")
    got = tokens(generate(alone, model, "AMD:0", "--bundle", bundle, **nothing), "AMD:0 from the bundle")
    expected = tokens(generate(PROGRAM, model, "CPU"), "CPU")
    print(got)
    if got != expected or len(got) != 6:
        sys.exit(f"from the bundle {got}, on the CPU {expected}")
