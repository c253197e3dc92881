#!/usr/bin/env python3
"""Every header of every library compiled alone: what it uses it includes itself.

usage: tools/lint/headers.py BUILD_DIR [--whole] [--only REGEX] [--daily N]

The list and the flags are those of CMake's target all_verify_interface_header_sets of that build. By default the
precompiled standard headers of the build (cmake/pch.h) stand before each header, which halves the time and hides a
missing <vector>; --whole goes without. --daily N: an N-th of the headers, another one every day.
"""

import argparse
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
import time

PCH = "runtime/base/CMakeFiles/bm_pch.dir/cmake_pch.hxx"
ENTRY = re.compile(r"^(\S+verify_interface_header_sets\S*\.o): ", re.MULTILINE)


def compilers(build):
    """{header: compiler command without its outputs} of every header in a library's file set."""
    listing = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True)
    objects = sorted(set(ENTRY.findall(listing.stdout)))
    commands = subprocess.run(
        ["ninja", "-C", build, "-t", "commands", "-s", *objects], capture_output=True, text=True, check=True
    )
    found = {}
    for line in commands.stdout.splitlines():
        words = shlex.split(line)
        if "-c" not in words or "-o" not in words:
            continue
        source = words[words.index("-c") + 1]
        for option in ("-o", "-MF", "-MT", "-c"):
            if option in words:
                at = words.index(option)
                del words[at : at + 2]
        words = [word for word in words if word != "-MD"]
        start = next(i for i, word in enumerate(words) if os.path.basename(word) in ("c++", "g++") or "clang++" in word)
        found[source] = words[start:]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--whole", action="store_true", help="without the precompiled standard headers")
    parser.add_argument("--only", metavar="REGEX", default="", help="headers whose path matches")
    parser.add_argument("--daily", metavar="N", type=int, default=1, help="an N-th of the headers, another one every day")
    arguments = parser.parse_args()

    known = {source: command for source, command in compilers(arguments.build).items() if re.search(arguments.only, source)}
    if not known:
        print(f"{arguments.build}: no library lists such a header; is CMAKE_VERIFY_INTERFACE_HEADER_SETS off?")
        return 1
    today = int(time.time()) // 86400 % arguments.daily
    known = dict(item for n, item in enumerate(sorted(known.items())) if n % arguments.daily == today)
    before = [] if arguments.whole else ["-include", PCH]

    def check(item):
        source, command = item
        done = subprocess.run(
            [*command, "-fsyntax-only", *before, source], cwd=arguments.build, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for rc, text in pool.map(check, known.items()):
            if rc != 0:
                failures += 1
                print(text, end="")
    print(f"{len(known)} headers, {failures} do not compile alone")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
