#!/usr/bin/env python3
"""Writes snippets.inc: the words of every {Isa::…, "assembly"} and (Isa::…, "assembly") in *_test.cpp here.

usage: make_snippets.py > snippets.inc     needs llvm-mc-19
"""
import glob
import os
import re
import subprocess
import sys

CHIPS = {"kGfx9": "gfx942", "kGfx10": "gfx1030", "kGfx11": "gfx1100", "kGfx115": "gfx1150", "kGfx12": "gfx1201"}
wanted = {}
for path in sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "*_test.cpp"))):
    text = re.sub(r'"\s*\n\s*"', "", open(path).read())
    for isa, code in re.findall(r'[({]\s*Isa::(\w+),\s*"((?!gfx)[a-z][^"]*)"', text): wanted[isa, code] = None
for isa, chip in CHIPS.items():
    mine = [code for i, code in wanted if i == isa]
    if not mine: continue
    # Upper halves of registers are spelled where the feature is on; nothing else changes by it here.
    features = ["--mattr=+real-true16"] if any(".h" in code for code in mine) else []
    p = subprocess.run(["llvm-mc-19", "--triple=amdgcn-amd-amdhsa", "--mcpu=" + chip, "--show-encoding", *features],
                       input="\n".join(mine) + "\n", capture_output=True, text=True)
    if p.returncode: sys.exit(p.stderr)
    found = re.findall(r"encoding: \[([^\]]*)\]", p.stdout)
    assert len(found) == len(mine)
    for code, encoding in zip(mine, found):
        raw = [int(x, 16) for x in encoding.split(",")]
        wanted[isa, code] = [sum(raw[i + k] << 8 * k for k in range(4)) for i in range(0, len(raw), 4)]
for (isa, code), words in sorted(wanted.items()):
    print(f'{{Isa::{isa}, "{code}", {{{", ".join("0x%08x" % w for w in words)}}}}},')
