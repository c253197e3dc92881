#!/usr/bin/env python3
"""No fact of a machine outside the targets' facts (compiler/targets, hal::Arch).

usage: machine_constants.py [ROOT]     prints file:line and what is wrong; exit 1 if there is any

Looks at the passes: the folders of the compiler named below, and tensor. Sizes of caches, widths of vectors,
names of instruction sets and counts of cores come from TargetInfo there.
"""
import os
import re
import sys

FOLDERS = ["compiler/analysis", "compiler/lowering", "compiler/program", "compiler/schedules",
           "compiler/tune", "tensor"]
FACTS = {"compiler/targets/target.cpp", "compiler/targets/target.h", "compiler/targets/target_amd.cpp"}

RULES = [
    (re.compile(r"avx\d*|\bsse\d\w*|\b[xyz]mm\d*\b|\bvnni\b|__builtin_(cpu|ia32)\w*", re.I),
     "name of an instruction set"),
    (re.compile(r"\b\d+\s*<<\s*(10|20|30)\b|\b\d+_[KMG]iB\b"), "size of a memory"),
    (re.compile(r"\b(32'?768|49'?152|65'?536|131'?072|262'?144|524'?288|1'?048'?576|2'?097'?152)\b"),
     "size of a memory"),
    (re.compile(r"\bvector_(bits|registers)\s*(==|>=|<=|<|>|!=)\s*\d"),
     "width or count of registers compared with a number"),
    (re.compile(r"\bl[123]_?(bytes|size|cache)\w*\s*=\s*\d", re.I), "size of a cache"),
    (re.compile(r"\bhardware_concurrency\b"), "count of cores"),
]
# File and rule that are right as they are, with the reason.
EXCEPTIONS = {
    ("tensor/programs.cpp", "count of cores"): "threads of the compiler, not of kernels",
    ("compiler/program/legalize.cpp", "size of a memory"): "exponents of floats",
    ("compiler/schedules/gemm_gpu/plan_register.cpp", "size of a memory"):
        "registers of a multiprocessor, equal on all of NVIDIA's",
}


def without_comment(line):
    return line.split("//", 1)[0]


def check_file(root, name):
    found = []
    with open(os.path.join(root, name), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = without_comment(line)
            for rule, what in RULES:
                match = rule.search(text)
                if match and (name, what) not in EXCEPTIONS:
                    found.append(f"{name}:{number}: {what}: {match.group(0)}")
    return found


def check_tree(root):
    found = []
    for folder in FOLDERS:
        for where, _, files in sorted(os.walk(os.path.join(root, folder))):
            for file in sorted(files):
                name = os.path.relpath(os.path.join(where, file), root)
                if file.endswith((".cpp", ".h")) and name not in FACTS:
                    found += check_file(root, name)
    return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = check_tree(root)
    for line in found:
        print(line)
    print(f"machine constants: {len(found)} outside the targets' facts")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
