#!/usr/bin/env python3
"""AMD registers this project uses, per IP version, from extracted facts.

  regdb.py                writes drivers/amd/regs/registers.gen.inc from registers.csv beside it
  regdb.py --check        exit 1 if what is there differs
  regdb.py --facts FILE   takes the used rows of an amd-registers.csv into registers.csv first

Which registers, fields and versions are used stands in used.txt. The facts' columns are
register,ip_block,ip_version,dword_offset,base_index,bitfields,canonical,group,source; their origin
are the *_offset.h and *_sh_mask.h headers of Linux, drivers/gpu/drm/amd/include/asic_reg.
"""
import argparse
import csv
import io
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(ROOT, "drivers", "amd", "regs", "registers.csv")
OUT = os.path.join(ROOT, "drivers", "amd", "regs", "registers.gen.inc")
COLUMNS = ["register", "ip_block", "ip_version", "dword_offset", "base_index", "bitfields", "source"]


def fail(message):
    sys.exit(f"regdb: {message}")


def used():
    """(registers in order, {register: fields}, [(block, version)]) of used.txt."""
    registers, fields, versions = [], {}, []
    with open(os.path.join(HERE, "used.txt"), encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "version":
                versions.append((words[1], words[2]))
            else:
                registers.append(words[0])
                fields[words[0]] = words[1:]
    return registers, fields, versions


def take_facts(path):
    registers, fields, versions = used()
    rows = []
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["register"] not in fields or (row["ip_block"], row["ip_version"]) not in versions:
                continue
            wanted = fields[row["register"]]
            kept = [field for field in row["bitfields"].split("|") if field.split(":")[0] in wanted]
            rows.append({column: row[column] for column in COLUMNS} | {"bitfields": "|".join(kept)})
    rows.sort(key=lambda row: (versions.index((row["ip_block"], row["ip_version"])),
                               registers.index(row["register"])))
    with open(TABLE, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def constant(words):
    return "k" + "".join(word.capitalize() for word in words.replace(".", "_").split("_"))


def generate():
    registers, fields, versions = used()
    with open(TABLE, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    out = io.StringIO()
    out.write("// Made by tools/regdb/regdb.py from drivers/amd/regs/registers.csv; change that.\n")
    out.write("\n// clang-format off\n")
    out.write("enum class Reg : uint8_t {\n")
    for name in registers:
        out.write(f"  {name},\n")
    out.write("};\n")
    for block, version in versions:
        mine = [row for row in rows if (row["ip_block"], row["ip_version"]) == (block, version)]
        if not mine:
            fail(f"no rows for {block} {version}")
        sources = sorted({row["source"] for row in mine})
        if len(sources) != 1:
            fail(f"{block} {version} comes from {sources}")
        name = constant(f"{block}_{version}")
        out.write(f"\n// {sources[0]}, {block}_{version.replace('.', '_')}_offset.h\n")
        out.write(f"inline constexpr RegisterAt {name}[] = {{\n")
        for row in mine:
            offset = int(row["dword_offset"], 16)
            out.write(f"  {{Reg::{row['register']}, {row['base_index']}, {offset:#06x}}},\n")
        out.write("};\n")
        places = [(row["register"], field.split(":")) for row in mine if row["bitfields"]
                  for field in row["bitfields"].split("|")]
        for register, (field, low, high) in places:
            field_name = constant(f"{block}_{version}") + constant(register)[1:] + constant(field)[1:]
            bits = int(high) - int(low) + 1
            out.write(f"inline constexpr RegisterField {field_name}{{{low}, {bits}}};\n")
    out.write("// clang-format on\n")
    return out.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--facts")
    arguments = parser.parse_args()
    if arguments.facts:
        take_facts(arguments.facts)
    text = generate()
    if not arguments.check:
        with open(OUT, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with open(OUT, encoding="utf-8") as file:
        if file.read() != text:
            fail(f"{os.path.relpath(OUT, ROOT)} is out of date: run tools/regdb/regdb.py")


if __name__ == "__main__":
    main()
