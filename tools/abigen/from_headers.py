#!/usr/bin/env python3
"""Sizes and offsets of the structures in structs.txt, told by a C compiler from NVIDIA's headers.

  from_headers.py REPOSITORY TAG… > tests/abi/layouts.csv

REPOSITORY is a clone of github.com/NVIDIA/open-gpu-kernel-modules with the tags. Rows: structure,
releases with this layout, size, then one "field:offset:bytes" per field; "field:-" where absent.
This is independent of abigen.py's facts: tests/abi compares the two. Structures of the GSP
(structs.txt from "Calls to the GSP" on) lie in headers that are not published for callers; their
rows were compiled from the structures taken out of those headers at tag 570.144, and are added.
"""
import os
import subprocess
import sys
import tempfile

import abigen

FOLDERS = ["src/common/sdk/nvidia/inc", "kernel-open/common/inc", "kernel-open/nvidia-uvm",
           "src/nvidia/arch/nvalloc/unix/include"]
HEADERS = ["nvtypes.h", "nvos.h", "nv-ioctl.h", "nv-unix-nvos-params-wrappers.h",
           "alloc/alloc_channel.h", "class/cl0005.h", "class/cl0080.h", "class/cl2080.h",
           "class/cl83de.h", "class/clb0b5sw.h", "ctrl/ctrl0000/ctrl0000gpu.h",
           "ctrl/ctrl0080/ctrl0080gpu.h", "ctrl/ctrl2080/ctrl2080gpu.h",
           "ctrl/ctrl2080/ctrl2080gr.h", "ctrl/ctrl2080/ctrl2080fb.h",
           "ctrl/ctrl2080/ctrl2080event.h", "ctrl/ctrl83de/ctrl83dedebug.h", "ctrl/ctrla06c.h",
           "ctrl/ctrlc36f.h", "uvm_ioctl.h", "uvm_linux_ioctl.h"]


def access(vendor, field):
    """C expression of a field; arrays on the way are entered at their first element."""
    return f"((({vendor}*)0)->{field})"


def probe(folder, include, lines):
    """Compiles and runs a program of `lines`; None when it does not compile."""
    source = os.path.join(folder, "probe.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write("#include <stddef.h>\n#include <stdio.h>\n#include <stdint.h>\n")
        for header in include:
            file.write(f'#include "{header}"\n')
        file.write("int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    flags = [f"-I{os.path.join(folder, part)}" for part in FOLDERS]
    made = subprocess.run(["cc", "-w", *flags, "-o", source[:-2], source], capture_output=True,
                          text=True, check=False)
    if made.returncode:
        return None, made.stderr
    return subprocess.run([source[:-2]], capture_output=True, text=True, check=True).stdout, ""


def spelled(vendor, field, arrays):
    """`field` with [0] after every component that is an array on the way to it."""
    parts = field.split(".")
    out = []
    for depth, part in enumerate(parts):
        path = ".".join(parts[:depth + 1])
        out.append(part + ("[0]" if (vendor, path) in arrays and depth < len(parts) - 1 else ""))
    return ".".join(out)


def line_for(vendor, field, arrays):
    place = access(vendor, spelled(vendor, field, arrays))
    return f'printf("{vendor} {field}:%zu:%zu\\n", (size_t)&{place}, sizeof({place}));'


def layouts_of(folder, headers, arrays):
    """(structure, size, field cells) of one release."""
    listed = abigen.listed("structs.txt")
    first_private = next(i for i, row in enumerate(listed) if row[0] == "RpcRmAlloc")
    wanted = [(vendor, fields.split()) for _, vendor, fields in listed[:first_private]]
    sizes = [f'printf("{vendor} %zu\\n", sizeof({vendor}));' for vendor, _ in wanted]
    text, why = probe(folder, headers, sizes)
    if text is None:
        sys.exit(why[:2000])
    size_of = dict(line.split() for line in text.splitlines())
    lines = {(v, f): line_for(v, f, arrays) for v, fields in wanted for f in fields}
    text, _ = probe(folder, headers, list(lines.values()))
    if text is None:  # some field is missing in this release: ask one by one
        text = "".join(probe(folder, headers, [line])[0] or "" for line in lines.values())
    cell_of = {}
    for line in text.splitlines():
        vendor, cell = line.split()
        cell_of[vendor, cell.split(":")[0]] = cell
    for vendor, fields in wanted:
        yield vendor, size_of[vendor], [cell_of.get((vendor, f), f"{f}:-") for f in fields]


def main():
    repository, tags = sys.argv[1], sys.argv[2:]
    rows = {}
    facts = abigen.read_data("fields.csv")
    arrays = set()
    for row in facts:
        parts = row["field"].split(".")
        for depth, part in enumerate(parts):
            if abigen.bound(part):
                arrays.add((row["struct"], ".".join(abigen.plain(p) for p in parts[:depth + 1])))
    for tag in tags:
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(["git", "-C", repository, "archive", tag, *FOLDERS],
                                    capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
            there = [h for h in HEADERS
                     if any(os.path.exists(os.path.join(folder, f, h)) for f in FOLDERS)]
            for vendor, size, cells in layouts_of(folder, there, arrays):
                rows.setdefault((vendor, size, " ".join(cells)), []).append(tag)
        print(tag, file=sys.stderr)
    print("struct,releases,size,fields")
    for (vendor, size, cells), found in rows.items():
        print(f"{vendor},{' '.join(found)},{size},{cells}")


if __name__ == "__main__":
    main()
