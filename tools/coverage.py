#!/usr/bin/env python3
"""Coverage of the product by folder, from what `tools/dev coverage` left.

    coverage.py BUILD [--json]

BUILD has bin/, lib/ and profiles/ (*.profraw of clang's source-based coverage). Lines and branches are those of
llvm-cov; a branch is one outcome of a condition. The goals are those of docs/reliability.md (R4).
"""

import argparse
import collections
import glob
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ("compiler", "drivers", "firmware", "models", "runtime", "tensor", "tools")
# Parsers, allocators, page tables, encoders, cache and state machines: 95 % of lines, 90 % of branches.
CORE = ("compiler/cache", "drivers/amd/aql", "drivers/amd/pm4", "drivers/amd/sdma", "drivers/hcq", "drivers/memory",
        "drivers/nv/abi", "drivers/nv/methods", "drivers/transport", "firmware", "models/formats", "runtime")


def instrumented(build):
    """Files of the build that carry a coverage map."""
    found = []
    for path in sorted(glob.glob(build + "/bin/*") + glob.glob(build + "/lib/*.so")):
        sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True).stdout
        if "__llvm_covmap" in sections:
            found.append(path)
    return found


def folder_of(path):
    """The room or, in rooms of several libraries, the folder below it: "drivers/nv"."""
    parts = os.path.dirname(path).split("/")
    return "/".join(parts[:2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    raw = glob.glob(args.build + "/profiles/*.profraw")
    objects = instrumented(args.build)
    if not raw or not objects:
        sys.exit(f"{args.build}: no profiles or no instrumented programs; run tools/dev coverage")
    merged = args.build + "/coverage.profdata"
    subprocess.run(["llvm-profdata-19", "merge", "-sparse", "--failure-mode=all", "-o", merged, *raw], check=True)
    command = ["llvm-cov-19", "export", "-summary-only", "-instr-profile", merged, objects[0]]
    for path in objects[1:]:
        command += ["-object", path]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    count = collections.defaultdict(lambda: [0, 0, 0, 0])
    for file in json.loads(told)["data"][0]["files"]:
        path = file["filename"]
        if os.path.isabs(path):
            path = os.path.relpath(path, ROOT)
        # -ffile-prefix-map: headers are relative to the build folder, sources to what stands for it.
        path = os.path.normpath(path).removeprefix("../").removeprefix("build/")
        if path.split("/")[0] not in ROOMS:
            continue
        lines, branches = file["summary"]["lines"], file["summary"]["branches"]
        keys = [folder_of(path), "all"]
        if any(path.startswith(core + "/") for core in CORE):
            keys.append("core")
        for key in keys:
            for i, n in enumerate((lines["covered"], lines["count"], branches["covered"], branches["count"])):
                count[key][i] += n
    rows = {key: count[key] for key in sorted(k for k in count if k not in ("all", "core"))}
    rows["core"], rows["all"] = count["core"], count["all"]

    def share(part, whole):
        return 100 * part / whole if whole else 100.0

    if args.json:
        print(json.dumps({key: {"lines": n[1], "lines_covered": n[0], "branches": n[3], "branches_covered": n[2]}
                          for key, n in rows.items()}))
        return
    print(f"{'folder':24} {'lines':>7} {'covered':>8} {'branches':>9} {'covered':>8}")
    for key, (lc, l, bc, b) in rows.items():
        print(f"{key:24} {l:7} {share(lc, l):7.1f}% {b:9} {share(bc, b):7.1f}%")
    print("goals: core 95 % of lines and 90 % of branches, all 85 % of lines")


if __name__ == "__main__":
    main()
