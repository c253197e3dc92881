#!/usr/bin/env python3
"""Who may include whom: the layer table of docs/architecture.md, enforced.

usage: layers.py [ROOT]     prints file:line and the broken rule; exit 1 if there is any
"""
import os
import re
import sys

# Folder -> what its files may include, as folders or single headers (their own folder always).
# The longest matching folder decides. ANY: tests and tools see everything but each other's insides.
ANY = None
BASE = ["runtime/base"]
HAL = BASE + ["runtime/hal"]
DRIVER = HAL + ["firmware", "drivers/transport", "drivers/memory"]
# GPUs whose queues are rings in memory.
HCQ = DRIVER + ["drivers/hcq"]
# The devices without hardware run on the CPU device's memory and queue.
HOST = DRIVER + [f"drivers/cpu/host_{part}.h"
                 for part in ("addresses", "commands", "memory", "queue")]
# Rooms of the compiler, as the graph of its includes is meant to be. A schedule is written on lowering,
# which knows the table of strategies and none of their folders.
SCHEDULE = ["compiler/schedules/schedule.h"]
PROGRAM = BASE + ["compiler/ir", "compiler/program", "compiler/targets"]
ANALYSIS = PROGRAM + ["compiler/analysis"] + SCHEDULE
COMPILER = {
    "compiler/ir": BASE,
    "compiler/cache": BASE,
    "compiler/program": PROGRAM,
    "compiler/targets": PROGRAM + ["runtime/hal/arch.h"],
    "compiler/analysis": ANALYSIS,
    "compiler/lowering": ANALYSIS + ["compiler/schedules/strategy.h"],
    "compiler/schedules": ANALYSIS + ["compiler/lowering", "compiler/tune/knobs.h",
                                      "compiler/tune/candidates.h", "runtime/hal/program.h"],
    "compiler/render": PROGRAM,
    "compiler/toolchain": BASE + ["compiler/targets"],
    "compiler/tune": ANALYSIS + ["compiler/cache", "compiler/compile.h", "compiler/schedules",
                                 "runtime/hal/arch.h", "runtime/hal/program.h"],
}
VENDOR_IO_HEADERS = ["driver_interface.h", "chips.h", "kept_video_memory.h", "packet_listing.h"]
ALLOWED = {
    "runtime/base": [],
    "runtime/hal": BASE,
    "runtime": HAL,
    "firmware": BASE,
    "firmware/amd": BASE + ["firmware"],
    "firmware/nvidia": BASE + ["firmware"],
    "drivers/transport": BASE,
    "drivers/memory": HAL + ["drivers/transport"],
    "drivers/vendor": HAL,
    "drivers/hcq": HAL + ["drivers/transport", "drivers/memory"],
    "drivers/cpu": DRIVER,
    "drivers/null": HOST,
    "drivers/ref": HOST,
    "drivers/cl": HOST + ["drivers/vendor"],
    "drivers/amd": HCQ,
    "drivers/nv": HCQ,
    "drivers/cuda": DRIVER + ["drivers/vendor"],
    "drivers": DRIVER + ["drivers"],
    "compiler": BASE + ["runtime/hal/arch.h", "runtime/hal/program.h"],
    **COMPILER,
    "tensor": HAL + ["runtime", "compiler", *COMPILER],
    "models": HAL + ["runtime", "compiler/ir/dtype.h", "tensor"],
    "serve": BASE + ["runtime", "models", "models/chat", "models/grammar", "compiler/ir/dtype.h", "tensor"],
    # Text in, text out: of the models' files only what knows characters.
    "models/chat": BASE + ["models/unicode.h", "models/model_error.h"],
    "models/grammar": BASE + ["models/unicode.h", "models/tokenizer.h"],
    "cmake": [],
    "examples": ANY,
    "tools": ANY,
    "tests": ANY,
}

# Inside a vendor: pure encoders know no I/O, I/O knows no device.
PURE = ["pm4", "sdma", "aql", "methods", "regs", "abi"]
IO = ["kfd", "am", "rm", "rm_ioctl", "gsp", "rm_gsp"]
for vendor in ("drivers/amd", "drivers/nv"):
    pure = [f"{vendor}/{folder}" for folder in PURE]
    for folder in pure:
        ALLOWED[folder] = HAL + pure + [f"{vendor}/chips.h"]
    for folder in IO:
        ALLOWED[f"{vendor}/{folder}"] = (
            DRIVER + pure + ["drivers/hcq/driver_interface.h", "drivers/hcq/host_shadow.h"] +
            [f"{vendor}/{header}" for header in VENDOR_IO_HEADERS])

# A vendor's firmware formats are for the driver that boots its cards.
for folder in ("drivers/amd", "drivers/amd/am"):
    ALLOWED[folder] = ALLOWED[folder] + ["firmware/amd"]
for folder in ("drivers/nv", "drivers/nv/gsp", "drivers/nv/rm_gsp"):
    ALLOWED[folder] = ALLOWED[folder] + ["firmware/nvidia"]

# Both ways to NVIDIA's resource manager carry what lies over them; it knows neither.
for folder in ("drivers/nv/rm_ioctl", "drivers/nv/rm_gsp"):
    ALLOWED[folder] = ALLOWED[folder] + ["drivers/nv/rm"]
# One of them over calls to the GSP that this folder has booted.
ALLOWED["drivers/nv/rm_gsp"] = ALLOWED["drivers/nv/rm_gsp"] + ["drivers/nv/gsp"]

# A simulator that took its constants from the product would agree with the product's mistakes.
SIM_FORBIDDEN = re.compile(
    r"^drivers/.*(/(regs|pm4|sdma|aql|methods|abi)/|/chips\.h$)|\.gen\.(inc|h)$")

# System headers with a wall around them: pattern -> folders or files that may include them.
WALLS = [
    (re.compile(r"^llvm-c/"), ["compiler/toolchain"]),
    # The one hook that LLVM-C lacks: what happens when LLVM's own allocations fail.
    (re.compile(r"^llvm/Support/ErrorHandling\.h$"), ["compiler/toolchain/llvm_c.cpp"]),
    (re.compile(r"^(llvm(?!/Support/ErrorHandling\.h$)|clang|lld)/"), []),
    (re.compile(r"^nvrtc|^nvJitLink|^cuda"), ["compiler/toolchain"]),
    (re.compile(r"^CL/"), ["drivers/cl"]),
    (re.compile(r"^pci/"), ["drivers/transport/pci_enumerate.cpp"]),
    (re.compile(r"^libusb"), ["drivers/transport/usb"]),
    (re.compile(r"^linux/vfio\.h$"), ["drivers/transport"]),
    (re.compile(r"^(lzma|zstd)\.h$"), ["firmware/decompress.cpp"]),
    (re.compile(r"^microhttpd\.h$"), ["serve/microhttpd.h"]),
    (re.compile(r"^sqlite3\.h$"), ["compiler/cache/sqlite.cpp"]),
    (re.compile(r"^(histedit|editline/)"), ["tools/bellmetal/line_editor.cpp"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
SOURCES = (".h", ".cpp", ".inc", ".inl", ".c")
TOP_FOLDERS = ("runtime", "drivers", "firmware", "compiler", "tensor", "models", "serve", "tools", "tests",
               "examples", "cmake")


def is_under(path, place):
    return path == place or path.startswith(place + "/")


def area_of(path):
    """The longest folder of the table that holds `path`, or None."""
    inside = [folder for folder in ALLOWED if is_under(path, folder)]
    return max(inside, key=len) if inside else None


def problem_with(path, kind, header):
    """Why `path` may not include `header` (kind '"' or '<'), or None."""
    if kind == "<":
        for pattern, places in WALLS:
            if pattern.search(header) and not is_under(path, "tests"):
                if not any(is_under(path, place) for place in places):
                    where = " and ".join(places) if places else "nowhere"
                    return f"<{header}> may be included in {where} only"
        return None
    if area_of(header) is None:
        return f'"{header}" is not a path from the repository root'
    if is_under(path, "tests/sim") and SIM_FORBIDDEN.search(header):
        return f"tests/sim may not include product tables ({header})"
    if not is_under(path, "tests") and is_under(header, "tests"):
        return f"only tests include tests ({header})"
    if not is_under(path, "tests") and not is_under(path, "tools") and is_under(header, "tools"):
        return f"only tools and tests include tools ({header})"
    area = area_of(path)
    allowed = ALLOWED[area]
    if allowed is ANY:
        return None
    # The header's own folder decides, so that "runtime" does not open runtime's stricter insides.
    if is_under(header, area) or any(place in (header, area_of(header)) for place in allowed):
        return None
    return f"{area} may not include {header} (allowed: {', '.join([area] + allowed)})"


def check_file(root, path):
    problems = []
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            problem = problem_with(path, match.group(1), match.group(2))
            if problem:
                problems.append(f"{path}:{number}: {problem}")
    return problems


def sources(root):
    for top in TOP_FOLDERS:
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders.sort()
            for name in sorted(names):
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def check_tree(root):
    return [problem for path in sources(root) for problem in check_file(root, path)]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(here))
    problems = check_tree(root)
    for problem in problems:
        print(problem)
    print(f"layers: {len(list(sources(root)))} files, {len(problems)} broken rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
