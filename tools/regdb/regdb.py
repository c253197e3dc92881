#!/usr/bin/env python3
"""AMD registers this project uses, per IP version, from extracted facts.

  regdb.py                writes drivers/amd/regs/{registers,boot_registers}.gen.inc from registers.csv
                          beside them
  regdb.py --check        exit 1 if what is there differs
  regdb.py --facts FILE   takes the used rows of an amd-registers.csv into registers.csv first

Which registers, fields and versions are used stands in used.txt: by packets (registers.gen.inc) and by
booting a card (boot_registers.gen.inc, with the names of fields, for messages). The facts' columns are
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
BOOT_OUT = os.path.join(ROOT, "drivers", "amd", "regs", "boot_registers.gen.inc")
COLUMNS = ["register", "ip_block", "ip_version", "dword_offset", "base_index", "bitfields", "source"]


def fail(message):
    sys.exit(f"regdb: {message}")


def used(boot=False):
    """(registers in order, {register: fields}, [(block, version)]) of used.txt."""
    registers, fields, versions = [], {}, []
    with open(os.path.join(HERE, "used.txt"), encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if not words or words[0].startswith("boot") != boot:
                continue
            if words[0] in ("version", "boot-version"):
                versions.append((words[1], words[2]))
                continue
            name, *wanted = words[1:] if boot else words
            registers.append(name)
            fields[name] = wanted
    return registers, fields, versions


def shared_name(register):
    """Without the prefix of hub, processor, bus block or copy engine."""
    for prefix in ("GCVM_", "MMVM_"):
        if register.startswith(prefix):
            return register[2:]
    for prefix in ("GCMC_", "MMMC_"):
        if register.startswith(prefix):
            return register[2:]
    for prefix in ("MPASP_SMN", "MP0_SMN", "MP1_SMN"):
        if register.startswith(prefix):
            return register[len(prefix) - 3:]
    # SDMA 4.4.2: an engine is an instance of its own, with one queue of the kernel driver's.
    for prefix, shared in (("SDMA_GFX_", "SDMA0_QUEUE0_"), ("SDMA_", "SDMA0_")):
        if register.startswith(prefix):
            return shared + register.removeprefix(prefix)
    return register.removeprefix("GDC_S2A0_")


def take_facts(path):
    packets, boot = used(), used(boot=True)
    rows = []
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["ip_block"], row["ip_version"])
            wanted = set()
            if row["register"] in packets[1] and key in packets[2]:
                wanted |= {""} | set(packets[1][row["register"]])
            if shared_name(row["register"]) in boot[1] and key in boot[2]:
                wanted |= {""} | set(boot[1][shared_name(row["register"])])
            if not wanted:
                continue
            kept = [field for field in row["bitfields"].split("|")
                    if field.split(":")[0] in wanted or "*" in wanted]
            rows.append({column: row[column] for column in COLUMNS} | {"bitfields": "|".join(kept)})
    # Versions that the facts lack stay as they are.
    taken = {(row["ip_block"], row["ip_version"], row["register"]) for row in rows}
    with open(TABLE, encoding="utf-8") as file:
        rows += [row for row in csv.DictReader(file)
                 if (row["ip_block"], row["ip_version"], row["register"]) not in taken]
    versions = packets[2] + [version for version in boot[2] if version not in packets[2]]
    order = packets[0] + boot[0]

    def place(row):
        name = row["register"] if row["register"] in packets[0] else shared_name(row["register"])
        return (versions.index((row["ip_block"], row["ip_version"])), order.index(name))

    rows.sort(key=place)
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
        mine = [row for row in rows if (row["ip_block"], row["ip_version"]) == (block, version)
                and row["register"] in fields]
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
                  for field in row["bitfields"].split("|")
                  if field.split(":")[0] in fields[row["register"]]]
        for register, (field, low, high) in places:
            field_name = constant(f"{block}_{version}") + constant(register)[1:] + constant(field)[1:]
            bits = int(high) - int(low) + 1
            out.write(f"inline constexpr RegisterField {field_name}{{{low}, {bits}}};\n")
    out.write("// clang-format on\n")
    return out.getvalue()


def generate_boot():
    registers, wanted, versions = used(boot=True)
    with open(TABLE, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if shared_name(row["register"]) in wanted]
    names = {name: [] for name in registers}
    for row in rows:
        for field in filter(None, row["bitfields"].split("|")):
            name = field.split(":")[0]
            known = names[shared_name(row["register"])]
            if name not in known:
                known.append(name)
    out = io.StringIO()
    out.write("// Made by tools/regdb/regdb.py from drivers/amd/regs/registers.csv; change that.\n")
    out.write("\n// clang-format off\n")
    out.write("enum class Reg : uint16_t {\n")
    for name in registers:
        out.write(f"  {name},\n")
    out.write("};\n\n// Register and field as the vendor's headers spell them.\nenum class Field : uint16_t {\n")
    for name in registers:
        for field in names[name]:
            out.write(f"  {name}_{field},\n")
    out.write("};\n\ninline constexpr FieldName kFieldNames[] = {\n")
    for name in registers:
        for field in names[name]:
            out.write(f"  {{Reg::{name}, \"{field}\"}},\n")
    out.write("};\n")
    for block, version in versions:
        mine = [row for row in rows if (row["ip_block"], row["ip_version"]) == (block, version)]
        if not mine:
            fail(f"no rows for {block} {version}")
        table = constant(f"{block}_{version}")
        places, lines = [], []
        for row in mine:
            name = shared_name(row["register"])
            first = len(places)
            for field in filter(None, row["bitfields"].split("|")):
                field_name, low, high = field.split(":")
                places.append(f"  {{Field::{name}_{field_name}, {{{low}, {int(high) - int(low) + 1}}}}},\n")
            lines.append(f"  {{Reg::{name}, {row['base_index']}, {int(row['dword_offset'], 16):#06x}, "
                         f"\"{row['register']}\", {first}, {len(places) - first}}},\n")
        source = ", ".join(sorted({row["source"] for row in mine}))
        out.write(f"\n// {source}, {block}_{version.replace('.', '_')}_offset.h and _sh_mask.h\n")
        out.write(f"inline constexpr FieldAt {table}Fields[] = {{\n{''.join(places) or '  {},' + chr(10)}}};\n")
        out.write(f"inline constexpr BootRegister {table}[] = {{\n{''.join(lines)}}};\n")
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
    for path, text in ((OUT, generate()), (BOOT_OUT, generate_boot())):
        if not arguments.check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                fail(f"{os.path.relpath(path, ROOT)} is out of date: run tools/regdb/regdb.py")


if __name__ == "__main__":
    main()
