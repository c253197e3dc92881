#!/usr/bin/env python3
"""Drivers of GPUs with rings touch device memory through the views of drivers/transport only.

usage: device_access.py [ROOT]     prints file:line and what is wrong; exit 1 if there is anything

What a transport gives may lie in no address space of this process, so above the rooms that talk to
a kernel driver nothing may be dereferenced, and nothing there calls the system itself.
"""
import os
import re
import sys

ROOMS = ("drivers/hcq", "drivers/nv", "drivers/amd")
# They own the mappings: what they hand up are views. A shadow is memory of this process alone.
EXEMPT = ("drivers/nv/rm_ioctl", "drivers/amd/kfd", "drivers/hcq/host_shadow.cpp")

VIEWS = "use HostView, Mmio or Doorbell (drivers/transport/mmio.h)"
RULES = [
    (re.compile(r"^\s*#\s*include\s*<(sys|linux|asm)/"),
     "calls of the system belong below the waist, in " + " and ".join(EXEMPT)),
    (re.compile(r"^\s*#\s*include\s*<(immintrin|emmintrin|x86intrin)\.h>"), "fences are the views': " + VIEWS),
    (re.compile(r"\bvolatile\b"), "volatile: " + VIEWS),
    (re.compile(r"\batomic_ref\b"), "atomic_ref: " + VIEWS),
    (re.compile(r"\b(mem(cpy|set|move)|copy_n|fill_n)\s*\([^;]*\bhost\(\)"), "copies to or from host(): " + VIEWS),
    (re.compile(r"\bhost\(\)\s*(\[|\+)|(?<![\w)\]] )(?<![\w)\]])\*\s*[\w.()>-]*\bhost\(\)|"
                r"reinterpret_cast<[^;]*\*\s*>\s*\([^;]*\bhost\(\)"), "host() is dereferenced: " + VIEWS),
]
SOURCES = (".h", ".cpp", ".inc")
STRING = re.compile(r'"(\\.|[^"\\])*"')
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)


def is_under(path, place):
    return path == place or path.startswith(place + "/")


def is_watched(path):
    return (path.endswith(SOURCES) and any(is_under(path, room) for room in ROOMS) and
            not any(is_under(path, room) for room in EXEMPT))


def code_lines(text):
    """The lines without comments and without what stands in quotes."""
    text = BLOCK_COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    return [STRING.sub('""', line).split("//")[0] for line in text.split("\n")]


def problems_in(path, text):
    if not is_watched(path):
        return []
    return [f"{path}:{number}: {why}" for number, line in enumerate(code_lines(text), 1)
            for pattern, why in RULES if pattern.search(line)]


def check_tree(root):
    problems, count = [], 0
    for room in ROOMS:
        for folder, subfolders, names in os.walk(os.path.join(root, room)):
            subfolders.sort()
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), root)
                if is_watched(path):
                    count += 1
                    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
                        problems += problems_in(path, file.read())
    return problems, count


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(here))
    problems, count = check_tree(root)
    for problem in problems:
        print(problem)
    print(f"device_access: {count} files, {len(problems)} accesses past the views")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
