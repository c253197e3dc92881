#!/usr/bin/env python3
"""Equal runs of lines in two folders of drivers/ or compiler/: what two rooms share belongs to one
that both stand on (drivers/hcq, drivers/transport, drivers/memory, compiler/lowering). Blank lines,
comments, includes and lines without a word do not count, nor do rows of data. Run from the root."""
import os
import re
import sys
from collections import defaultdict

ROOTS = ("drivers", "compiler")
LINES = 6
DATA = re.compile(r"^(\.\w+ = |\{|X\()|^[\w:]+\(.*\),$|^[^;]*,$")


def lines_of(text):
    """(number, text) of what counts."""
    for number, line in enumerate(text.splitlines(), 1):
        line = " ".join(re.sub(r"//.*", "", line).split())
        if re.search(r"\w", line) and not line.startswith("#"):
            yield number, line


def repeats(files):
    """`files`: text by path. One message a pair of places, the longest run of both."""
    places = defaultdict(list)
    kept = {path: list(lines_of(text)) for path, text in files.items()}
    for path, lines in kept.items():
        for at in range(len(lines) - LINES + 1):
            run = tuple(line for _, line in lines[at:at + LINES])
            if not all(DATA.match(line) for line in run):
                places[run].append((path, at))
    found = {}
    for run in places.values():
        run = sorted(run)
        for i, (path, at) in enumerate(run):
            for other, there in run[i + 1:]:
                if os.path.dirname(path) != os.path.dirname(other):
                    found.setdefault((path, other), (kept[path][at][0], kept[other][there][0]))
    return [f"{path}:{lines[0]} and {other}:{lines[1]}: {LINES} or more equal lines"
            for (path, other), lines in sorted(found.items())]


def main():
    files = {}
    for root in ROOTS:
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith((".cpp", ".h")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        files[path] = file.read()
    found = repeats(files)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
