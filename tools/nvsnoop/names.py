#!/usr/bin/env python3
"""Names of what nvsnoop records, as CSV on stdout: kind,number,name.

usage: names.py KERNEL_MODULES METHODS    KERNEL_MODULES: git directory of NVIDIA's
                                          open-gpu-kernel-modules; METHODS: CSV with the columns kind,
                                          class, method, offset, extracted from open-gpu-doc/classes
       names.py --descriptors FIELDS      fields of launch descriptors: version,field,lo,hi,stride.
                                          FIELDS: CSV with the columns class, qmd_version, field, hi, lo,
                                          index_stride_bits, of the same origin

kinds: escape, uvm, class, control; host, compute, copy (methods of the newest class that has them).
"""
import csv
import re
import subprocess
import sys

DEFINE = re.compile(r"^#define\s+(\w+)\s+\(?\s*(0x[0-9a-fA-F]+|\d+|0x[0-9a-fA-F]+U)U?L?L?\s*\)?", re.M)
OFFSET = re.compile(r"^#define\s+(NV_ESC_\w+)\s+\(NV_IOCTL_BASE\s*\+\s*(\d+)\)", re.M)
UVM = re.compile(r"^#define\s+(UVM_\w+)\s+UVM_IOCTL_BASE\((\d+)\)", re.M)
ARRAY = re.compile(r"\((0x[0-9a-fA-F]+)\s*\+\s*\(i\)\s*\*\s*(\d+)\)")
IOCTL_BASE = 200  # NV_IOCTL_BASE, nv-ioctl-numbers.h


def text_of(folder, pattern):
    git = ["git", f"--git-dir={folder}"]
    paths = subprocess.run(git + ["ls-tree", "-r", "--name-only", "HEAD"], check=True,
                           capture_output=True, text=True).stdout.split()
    for path in paths:
        if re.search(pattern, path):
            yield path, subprocess.run(git + ["show", f"HEAD:{path}"], check=True,
                                       capture_output=True, text=True, errors="replace").stdout


def descriptors(path):
    newest = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            version = re.fullmatch(r"QMDV0(\d)_0(\d)", row["qmd_version"])
            key = f"{version.group(1)}.{version.group(2)}"
            if key in ("2.3", "3.0", "4.0", "5.0"):
                newest.setdefault(key, {}).setdefault(row["class"], []).append(row)
    print("version,field,lo,hi,stride")
    for version, classes in sorted(newest.items()):
        for row in classes[max(classes)]:
            print(f"{version},{row['field']},{row['lo']},{row['hi']},{row['index_stride_bits']}")


def main():
    if sys.argv[1] == "--descriptors":
        descriptors(sys.argv[2])
        return
    modules, methods = sys.argv[1:3]
    rows = {}

    def add(kind, number, name):
        rows.setdefault((kind, number), name)

    for _, text in text_of(modules, r"nv-ioctl-numbers\.h$|nv_escape\.h$|nv-ioctl-numa\.h$"):
        for name, number in OFFSET.findall(text):
            add("escape", IOCTL_BASE + int(number), name)
        for name, number in DEFINE.findall(text):
            if name.startswith("NV_ESC_"):
                add("escape", int(number.rstrip("U"), 0), name)
    for _, text in text_of(modules, r"uvm_linux_ioctl\.h$|kernel-open/nvidia-uvm/uvm_ioctl\.h$"):
        for name, number in UVM.findall(text) + DEFINE.findall(text):
            if re.fullmatch(r"UVM_(?!IOCTL|MAX|TEST)\w+", name) and "FLAG" not in name:
                add("uvm", int(number.rstrip("U"), 0), name)
    for path, text in text_of(modules, r"sdk/nvidia/inc/class/cl[0-9a-f]+\.h$"):
        number = int(re.search(r"cl([0-9a-f]+)\.h$", path).group(1), 16)
        for name, value in DEFINE.findall(text):
            if int(value.rstrip("U"), 0) == number:
                add("class", number, name)
    for _, text in text_of(modules, r"sdk/nvidia/inc/ctrl/ctrl\w+(/\w+)?\.h$"):
        for name, value in DEFINE.findall(text):
            if "_CTRL_CMD_" in name and int(value.rstrip("U"), 0) > 0xff:
                add("control", int(value.rstrip("U"), 0), name)
    # Headers that define a name of another object with the same number.
    rows["class", 0x41] = "NV01_ROOT_CLIENT"
    rows["class", 0x3e] = "NV01_MEMORY_SYSTEM"
    with open(methods, newline="", encoding="utf-8") as file:
        arrays = []
        for row in csv.DictReader(file):
            array = ARRAY.fullmatch(row["offset"])
            if array:
                arrays.append((row["kind"], row["method"], int(array.group(1), 16), int(array.group(2))))
            elif row["offset"]:
                rows[row["kind"], int(row["offset"], 0)] = row["method"]
    for kind, method, first, step in arrays:
        # How many there are is not in the header: a launch descriptor has 96 words, the rest is small.
        for i in range(96 if "QMD" in method else 16):
            add(kind, first + i * step, re.sub(r"\(i\)$", "", method) + f"({i})")
    print("kind,number,name")
    for (kind, number), name in sorted(rows.items()):
        print(f"{kind},{number:#x},{name}")


if __name__ == "__main__":
    main()
