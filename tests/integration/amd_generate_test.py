#!/usr/bin/env python3
"""The bundled model gives the same tokens on simulated AMD GPUs as on the CPU.

usage: amd_generate_test.py BELLMETAL_AMD
       amd_generate_test.py BELLMETAL_AM CARD…    AMD:0 to AMD:9; the selftest as well

BELLMETAL_AMD is the program with simulated GPUs in its own process, BELLMETAL_AM with modelled cards that no kernel driver has
(tests/unit/amd_tensor).
"""
import json
import os
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
BUNDLED = "models/bundled/licence.gguf"
MACHINES = {"AMD:0": "gfx1100, PM4", "AMD:1": "gfx1100, AQL", "AMD:2": "gfx1201, PM4", "AMD:3": "gfx1201, AQL",
            "AMD:6": "gfx942, AQL"}


PROMPT = "Permission is"
# Of more than sixteen tokens: quantised matrices become float16 on their way into matrix instructions.
LONG_PROMPT = PROMPT + " hereby granted, free of charge, to any person obtaining a copy of this software and"


def tokens(device, model, prompt, cache):
    command = [PROGRAM, "generate", model, prompt, "--max-tokens", "6", "--temperature", "0", "--json", "--cache-type", cache]
    done = subprocess.run(command, env={**os.environ, "DEV": device}, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{device}: exit code {done.returncode}: {done.stderr.decode()}")
    return json.loads(done.stdout)["tokens"]


def compare(device, model, what, prompt=PROMPT, cache="f16"):
    start = time.monotonic()
    expected, got = tokens("CPU", model, prompt, cache), tokens(device, model, prompt, cache)
    print(f"{what}: {got}, {time.monotonic() - start:.1f} s")
    if got != expected or len(got) != 6:
        sys.exit(f"{what}: {got}, on the CPU {expected}")


if sys.argv[2:]:
    for name in sys.argv[2:]:
        compare(name, BUNDLED, name)
        done = subprocess.run([PROGRAM, "selftest"], env={**os.environ, "DEV": name}, capture_output=True, text=True, check=False)
        print(f"{name}: {done.stdout.strip().splitlines()[-1] if done.stdout else ''}")
        if done.returncode != 0:
            sys.exit(f"{name}: selftest: exit code {done.returncode}: {done.stdout}{done.stderr}")
    sys.exit(0)
for name, machine in MACHINES.items():
    compare(name, BUNDLED, machine)
for name in ("AMD:0", "AMD:3", "AMD:6"):
    compare(name, BUNDLED, f"int8 cache, {MACHINES[name]}", LONG_PROMPT, "int8")
# Matrices in blocks stay in blocks.
with tempfile.TemporaryDirectory() as folder:
    for name, form in (("AMD:0", "Q8_0"), ("AMD:3", "Q4_K"), ("AMD:6", "Q4_K")):
        path = os.path.join(folder, form + ".gguf")
        made = subprocess.run(["/usr/bin/python3", "tests/oracle/quantize_gguf.py", BUNDLED, path, form],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            print(f"{form} not tried: {made.stderr.strip().splitlines()[-1]}")
            continue
        compare(name, path, f"{form}, {MACHINES[name]}", LONG_PROMPT)
