#!/usr/bin/env python3
"""What the documents list is what there is: rooms, devices, schedules.

usage: rooms.py [ROOT]     prints what differs; exit 1 if anything does

- Every folder of drivers/, and every top-level folder of the product, is a row of the rooms table in
  docs/architecture.md, and every folder named there exists.
- The table "What works where" of README.md names every driver of drivers/builtin.cpp but those that
  are no hardware.
- The table of schedules in docs/compiling.md has the rows of compiler/schedules/strategies.cpp.
"""
import os
import re
import sys

PRODUCT = ("runtime", "firmware", "compiler", "tensor", "models")
NO_HARDWARE = {"CPU", "NULL", "REF"}


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def section(text, title):
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return match.group(1) if match else ""


def first_cells(table):
    return [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ") and "---" not in row][1:]


def check_rooms(root):
    cells = first_cells(section(read(root, "docs/architecture.md"), "Rooms"))
    named = {path.rstrip("/") for cell in cells for path in re.findall(r"`([^`]+)`", cell)}
    found = [f"docs/architecture.md: {name} does not exist" for name in sorted(named)
             if "*" not in name and not os.path.exists(os.path.join(root, name))]
    drivers = [f"drivers/{d}" for d in sorted(os.listdir(os.path.join(root, "drivers")))
               if os.path.isdir(os.path.join(root, "drivers", d))]
    for room in [*drivers, *PRODUCT]:
        if room not in named and not any(n.startswith(room + "/") for n in named):
            found.append(f"docs/architecture.md: no row for {room}")
    return found


def check_devices(root):
    drivers = set(re.findall(r'\{\.name = "(\w+)"', read(root, "drivers/builtin.cpp"))) - NO_HARDWARE
    shown = set(re.findall(r"`DEV=(\w+)", section(read(root, "README.md"), "What works where")))
    return ([f"README.md: What works where: no row with DEV={d}" for d in sorted(drivers - shown)]
            + [f"README.md: DEV={d} is no driver of drivers/builtin.cpp" for d in sorted(shown - drivers)])


def check_schedules(root):
    rows = re.findall(r'Strategy\{\s*\.name = "([\w.]+)",\s*\.folder = "(\w+)"',
                      read(root, "compiler/schedules/strategies.cpp"))
    table = section(read(root, "docs/compiling.md"), "Schedules")
    shown = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \|", table, re.M)
    found = [f"docs/compiling.md: Schedules: no row {name} in {folder}" for name, folder in rows if (name, folder) not in shown]
    return found + [f"docs/compiling.md: Schedules: {name} in {folder} is no strategy" for name, folder in shown
                    if (name, folder) not in rows]


def check_tree(root):
    return check_rooms(root) + check_devices(root) + check_schedules(root)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = check_tree(root)
    for line in found:
        print(line)
    print(f"rooms: {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
