#!/usr/bin/env python3
"""What the documents list is what there is: rooms, devices, schedules, folders, what was verified.

usage: rooms.py [ROOT]     prints what differs; exit 1 if anything does

- Every folder of drivers/, and every top-level folder of the product, is a row of the rooms table in
  docs/architecture.md, and every folder named there exists.
- The table "What works where" of README.md names every driver of drivers/builtin.cpp but those that
  are no hardware.
- The table of schedules in docs/compiling.md has the rows of compiler/schedules/strategies.cpp.
- A folder of more than 12 sources has a README.md, and what it names as `file.h` exists.
- Links of README.md, CONTRIBUTING.md and docs/ lead to files that exist, and to headings these have.
- Files and folders that the tables of docs/vocabulary.md name exist.
- The table "Who verified what" of docs/verification.md has a row for every driver with its interfaces, every
  row of drivers/*/chips.cpp, and every family of firmware in firmware/manifest.gen.inc.
"""
import glob
import os
import re
import sys

PRODUCT = ("runtime", "firmware", "compiler", "tensor", "models", "serve")
NO_HARDWARE = {"CPU", "NULL", "REF"}
SOURCES = (".cpp", ".h", ".c", ".py")
MOST_SOURCES = 12  # that a stranger reads through without a guide
NAMED_FILE = re.compile(r"`([\w./*-]+\.(?:h|cpp|c|cl|ll|ptx|py|sh|inc))`")


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


def check_readmes(root):
    found = []
    for folder, below, files in os.walk(root):
        here = os.path.relpath(folder, root)
        below[:] = sorted(d for d in below if not d.startswith((".", "__")) and (here != "." or not d.startswith("build")))
        sources = sum(name.endswith(SOURCES) for name in files)
        if "README.md" not in files:
            if sources > MOST_SOURCES:
                found.append(f"{here}: {sources} sources and no README.md that says which to read first")
            continue
        if here == ".":
            continue
        for name in NAMED_FILE.findall(read(folder, "README.md")):
            if not any(glob.glob(os.path.join(base, name)) for base in (folder, os.path.dirname(folder), root)):
                found.append(f"{here}/README.md: {name} does not exist")
    return found


def headings(text):
    """Anchors as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)}


def check_links(root):
    pages = [name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md") if os.path.exists(os.path.join(root, name))]
    pages += sorted(os.path.relpath(path, root) for path in glob.glob(os.path.join(root, "docs/**/*.md"), recursive=True))
    found, linked = [], {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", read(root, page), flags=re.S)
        for path, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", prose):
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if target != page:
                linked.add(target)
            if not os.path.exists(os.path.join(root, target)):
                found.append(f"{page}: {path} does not exist")
            elif anchor and target.endswith(".md") and anchor not in headings(read(root, target)):
                found.append(f"{page}: {target} has no heading #{anchor}")
    return found + [f"{page}: no page links to it" for page in pages if page not in linked]


def check_vocabulary(root):
    """Third cells name files and folders, from the root or as one knows them in the compiler."""
    known, found = [root, os.path.join(root, "compiler"), os.path.join(root, "compiler/schedules")], []
    text = read(root, "docs/vocabulary.md")
    for row in re.findall(r"^\| (.*) \|$", text, re.M):
        cells = row.split(" | ")
        for name in re.findall(r"`([\w./]+)`", cells[2]) if len(cells) == 3 else []:
            exists = any(os.path.exists(os.path.join(base, name)) for base in known)
            if not exists and not glob.glob(os.path.join(root, "compiler", "**", name), recursive=True):
                found.append(f"docs/vocabulary.md: {cells[0]}: {name} does not exist")
    return found if "| term |" in text else found + ["docs/vocabulary.md: no table of terms"]


def firmware_family(name):
    """amdgpu/gc_11_0_0_mec.bin: amdgpu/gc_11; nvidia/ad102/gsp/gsp-570.144.bin: nvidia/ad102."""
    amd = re.match(r"amdgpu/[a-z]+_\d+", name)
    return amd.group(0) if amd else "/".join(name.split("/")[:2])


def check_verification(root):
    table = section(read(root, "docs/verification.md"), "Who verified what")
    shown = set(re.findall(r"`([^`]+)`", " ".join(first_cells(table))))
    claims = []
    for driver, interfaces in re.findall(r'\{\.name = "(\w+)",\s*\.interfaces = (nullptr|"[^"]*")', read(root, "drivers/builtin.cpp")):
        names = interfaces.strip('"').split() if interfaces != "nullptr" else []
        claims += [(f"{name}+{driver}" if name else driver, "drivers/builtin.cpp") for name in names or [""]]
    for path in sorted(glob.glob(os.path.join(root, "drivers/*/chips.cpp"))):
        where = os.path.relpath(path, root)
        text = read(root, where)
        rows = re.findall(r'\{\.name = "([^"]+)"', text) + re.findall(r'\bchip\([^"\n]*"(\w+)"', text)
        claims += [(row, where) for row in rows]
    manifest = os.path.join(root, "firmware/manifest.gen.inc")
    if os.path.exists(manifest):
        names = re.findall(r'^\{"([^"]+)"', read(root, "firmware/manifest.gen.inc"), re.M)
        claims += [(family, "firmware/manifest.gen.inc") for family in sorted({firmware_family(n) for n in names})]
    known = {claim for claim, _ in claims}
    return ([f"docs/verification.md: Who verified what: no row for {claim} of {where}" for claim, where in claims if claim not in shown]
            + [f"docs/verification.md: Who verified what: {claim} is neither interface, chip nor firmware"
               for claim in sorted(shown - known)])


def check_tree(root):
    return (check_rooms(root) + check_devices(root) + check_schedules(root) + check_readmes(root)
            + check_links(root) + check_vocabulary(root) + check_verification(root))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = check_tree(root)
    for line in found:
        print(line)
    print(f"rooms: {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
