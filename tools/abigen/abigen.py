#!/usr/bin/env python3
"""Tables of the nvidia kernel interface, per driver release, from extracted facts.

  abigen.py                 writes drivers/nv/abi/*.gen.inc from tools/abigen/data
  abigen.py --check         exit 1 if what is there differs
  abigen.py --facts FOLDER  takes the used part of nv-struct-layouts.csv, nv-struct-variants.csv and
                            nv-constants.csv into tools/abigen/data first

The structures that the resource manager on the card's GSP takes are of one pinned release
(GSP_RELEASE, gsp_structs.txt): they change with every firmware.

Adding a release: extract its facts (from_headers.py beside this file), put its rows into data, run
this. Which structures, fields and values are used stands in structs.txt and constants.txt.
"""
import argparse
import csv
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DATA = os.path.join(HERE, "data")
OUT = os.path.join(ROOT, "drivers", "nv", "abi")
GSP_RELEASE = "570.144"
HEADER = "// Made by tools/abigen/abigen.py from tools/abigen/data; change those, not this.\n"


def fail(message):
    sys.exit(f"abigen: {message}")


def listed(name):
    """Rows of structs.txt or constants.txt."""
    rows = []
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                rows.append([part.strip() for part in line.split("|")])
    return rows


def plain(field):
    """A field's name without array bounds."""
    return re.sub(r"\[\d+\]", "", field)


def bound(component):
    match = re.search(r"\[(\d+)\]", component)
    return int(match.group(1)) if match else 0


def release(tag):
    return tuple(int(part) for part in tag.rstrip("*").split("."))


def take_facts(folder):
    os.makedirs(DATA, exist_ok=True)
    wanted = {vendor: set(fields.split()) for _, vendor, fields in listed("structs.txt")}
    with open(os.path.join(folder, "nv-struct-layouts.csv"), encoding="utf-8") as file:
        layouts = [row for row in csv.DictReader(file) if row["struct"] in wanted]
    with open(os.path.join(folder, "nv-struct-variants.csv"), encoding="utf-8") as file:
        variants = [row for row in csv.DictReader(file) if row["struct"] in wanted]
    # What the extraction lacks was put into data by hand, from the headers: it stays.
    known = {row["struct"] for row in variants}
    kept = [row for row in read_data("structs.csv") if row["struct"] not in known]
    kept_fields = [row for row in read_data("fields.csv") if row["struct"] not in known]
    with open(os.path.join(DATA, "structs.csv"), "w", encoding="utf-8", newline="\n") as out:
        out.write("struct,variant,sizeof,releases\n")
        for row in variants:
            out.write(f"{row['struct']},{row['variant']},{row['sizeof']},{row['tags']}\n")
        out.writelines(",".join(row.values()) + "\n" for row in kept)
    with open(os.path.join(DATA, "fields.csv"), "w", encoding="utf-8", newline="\n") as out:
        out.write("struct,variant,field,offset,size\n")
        for row in layouts:
            name = plain(row["field"])
            fields = wanted[row["struct"]]
            is_parent = any(field.startswith(name + ".") for field in fields)
            if name in fields or (is_parent and bound(row["field"].rsplit(".", 1)[-1])):
                out.write(f"{row['struct']},{row['variant']},{row['field']},{row['offset']},"
                          f"{row['size']}\n")
        out.writelines(",".join(row.values()) + "\n" for row in kept_fields)
    take_gsp_facts(folder)
    values = {vendor for _, vendor in listed("constants.txt")}
    with open(os.path.join(folder, "nv-constants.csv"), encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] in values]
    names = {row["name"] for row in rows}
    kept = [row for row in read_data("constants.csv") if row["name"] not in names]
    with open(os.path.join(DATA, "constants.csv"), "w", encoding="utf-8", newline="\n") as out:
        out.write("name,value\n")
        for row in rows:
            if sum(1 for other in rows if other["name"] == row["name"]) > 1:
                fail(f"{row['name']} is not the same in all releases")
            out.write(f"{row['name']},{int(row['value']):#x}\n")
        out.writelines(f"{row['name']},{row['value']}\n" for row in kept)


def take_gsp_facts(folder):
    wanted = {vendor: set(fields.split()) for _, vendor, fields in listed("gsp_structs.txt")}
    variants = {}
    with open(os.path.join(folder, "nv-struct-variants.csv"), encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["struct"] in wanted and GSP_RELEASE in row["tags"].split():
                variants[row["struct"]] = row
    with open(os.path.join(folder, "nv-struct-layouts.csv"), encoding="utf-8") as file:
        layouts = [row for row in csv.DictReader(file)
                   if row["struct"] in variants
                   and row["variant"] == variants[row["struct"]]["variant"]]
    with open(os.path.join(DATA, "gsp_structs.csv"), "w", encoding="utf-8", newline="\n") as out:
        out.write("struct,sizeof\n")
        out.writelines(f"{name},{row['sizeof']}\n" for name, row in variants.items())
    with open(os.path.join(DATA, "gsp_fields.csv"), "w", encoding="utf-8", newline="\n") as out:
        out.write("struct,field,offset,size\n")
        for row in layouts:
            row["field"] = row["field"].replace("<anon>.", "")
            name = plain(row["field"])
            fields = wanted[row["struct"]]
            is_parent = any(field.startswith(name + ".") for field in fields)
            if name in fields or (is_parent and bound(row["field"].rsplit(".", 1)[-1])):
                out.write(f"{row['struct']},{row['field']},{row['offset']},{row['size']}\n")


def read_data(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Struct:
    """One structure: its variants in order of releases, each with the places of the used fields."""

    def __init__(self, name, vendor, fields):
        self.name, self.vendor, self.fields = name, vendor, fields.split()
        self.variants = []  # (first release, size, places)

    def add(self, releases, size, rows):
        places = [self.place(field, rows) for field in self.fields]
        self.variants.append((releases, size, places))

    @staticmethod
    def place(wanted, rows):
        """(offset, bytes of one element, elements, stride); zeros where the variant lacks it."""
        for row in rows:
            if plain(row["field"]) != wanted:
                continue
            offset, size = int(row["offset"]), int(row["size"])
            parts = row["field"].split(".")
            for depth in range(1, len(parts)):
                outer = ".".join(parts[:depth])
                count = bound(parts[depth - 1])
                if count:
                    whole = next(int(r["size"]) for r in rows if r["field"] == outer)
                    return (offset, size, count, whole // count)
            count = bound(parts[-1])
            if count and size > count:
                return (offset, size // count, count, size // count)
            return (offset, size, 1, size)  # scalars, and texts and identifiers as one piece
        return (0, 0, 0, 0)


def load_structs():
    sizes, fields = read_data("structs.csv"), read_data("fields.csv")
    structs = []
    for name, vendor, used in listed("structs.txt"):
        struct = Struct(name, vendor, used)
        for row in sizes:
            if row["struct"] == vendor:
                mine = [f for f in fields
                        if f["struct"] == vendor and f["variant"] == row["variant"]]
                tags = [release(tag) for tag in row["releases"].split()]
                struct.add(min(tags), int(row["sizeof"]), mine)
        if not struct.variants:
            fail(f"no facts about {vendor}")
        struct.variants.sort(key=lambda variant: variant[0])
        for index, field in enumerate(struct.fields):
            if all(variant[2][index][1] == 0 for variant in struct.variants):
                fail(f"{vendor} never has {field}")
        structs.append(struct)
    return structs


def since(struct, index):
    """First release of a variant: its whole branch, unless the branch also has the one before."""
    first = struct.variants[index][0]
    if index and struct.variants[index - 1][0][0] == first[0]:
        return first + (0,) * (3 - len(first))
    return (first[0], 0, 0)


def structs_inc(structs):
    out = [HEADER]
    out.append("enum class StructId : uint8_t {")
    out += [f"  k{struct.name}," for struct in structs]
    out.append("};")
    out.append(f"inline constexpr size_t kStructCount = {len(structs)};")
    for struct in structs:
        out.append(f"\n/// {struct.vendor}")
        out.append(f"struct {struct.name} {{")
        out.append(f"  static constexpr StructId kId = StructId::k{struct.name};")
        out.append("  enum Field : uint8_t {")
        out += [f"    {field.replace('.', '_')}," for field in struct.fields]
        out.append("  };")
        out.append("};")
    return "\n".join(out) + "\n"


def layouts_inc(structs):
    out = [HEADER]
    rows = []
    for struct in structs:
        for index, (_, size, places) in enumerate(struct.variants):
            table = f"k{struct.name}{index}"
            first = since(struct, index)
            cells = ", ".join("{%d, %d, %d, %d}" % place for place in places)
            out.append(f"constexpr FieldPlace {table}[] = {{{cells}}};")
            rows.append(f"    {{StructId::k{struct.name}, {{{first[0]}, {first[1]}, {first[2]}}}, "
                        f"{size}, {table}}},")
    out.append("\nconstexpr Layout kLayouts[] = {")
    out += rows
    out.append("};")
    newest = max(release(tag) for row in read_data("structs.csv") for tag in row["releases"].split())
    out.append("\nconstexpr Version kNewestKnown = {%d, %d, %d};" % newest)
    return "\n".join(out) + "\n"


def gsp_inc():
    sizes = {row["struct"]: int(row["sizeof"]) for row in read_data("gsp_structs.csv")}
    fields = read_data("gsp_fields.csv")
    out = [HEADER]
    for name, vendor, used in listed("gsp_structs.txt"):
        if vendor not in sizes:
            fail(f"no facts about {vendor}")
        rows = [row for row in fields if row["struct"] == vendor]
        out.append(f"\n/// {vendor}")
        out.append(f"struct {name} {{")
        out.append(f"  static constexpr uint32_t kBytes = {sizes[vendor]};")
        for field in used.split():
            place = Struct.place(field, rows)
            if place[1] == 0:
                fail(f"{vendor} has no {field}")
            out.append("  static constexpr FieldPlace %s = {%d, %d, %d, %d};"
                       % ((field.replace(".", "_"),) + place))
        out.append("};")
    return "\n".join(out) + "\n"


def constants_inc():
    values = {row["name"]: row["value"] for row in read_data("constants.csv")}
    out = [HEADER]
    for name, vendor in listed("constants.txt"):
        if vendor not in values:
            fail(f"no facts about {vendor}")
        out.append(f"inline constexpr uint32_t {name} = {values[vendor]};  // {vendor}")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description="tables of the nvidia kernel interface")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--facts", metavar="FOLDER", help="take facts from extracted CSVs")
    arguments = parser.parse_args()
    if arguments.facts:
        take_facts(arguments.facts)
    structs = load_structs()
    made = {"structs.gen.inc": structs_inc(structs), "layouts.gen.inc": layouts_inc(structs),
            "constants.gen.inc": constants_inc(), "gsp_570_144.gen.inc": gsp_inc()}
    stale = []
    for name, text in made.items():
        path = os.path.join(OUT, name)
        if arguments.check:
            there = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
            if there != text:
                stale.append(name)
        else:
            with open(path, "w", encoding="utf-8", newline="\n") as out:
                out.write(text)
    if stale:
        fail(f"out of date: {', '.join(stale)}; run tools/abigen/abigen.py")


if __name__ == "__main__":
    main()
