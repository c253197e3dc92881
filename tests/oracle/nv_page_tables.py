#!/usr/bin/env python3
"""Walks an NVIDIA GPU's page tables on a dump of its video memory, with nothing of ours.

usage: nv_page_tables.py DUMP CLAIMS [--headers FOLDER]

DUMP: pages that somebody has written, one after another, each its address (8 bytes) and 4096 bytes. CLAIMS, text: a line
`root VERSION ADDRESS` (VERSION 2 or 3), lines `map VA BYTES video|system ADDRESS` of what a driver says it has mapped, a line
`bytes N` of all it has mapped, and `unmapped VA`. Every claim has to be what the tables say, and nothing else may be mapped.

The bits are those of NVIDIA's open-gpu-kernel-modules 570.144, src/common/inc/swref/published/pascal/gp100/dev_mmu.h (version 2) and
hopper/gh100/dev_mmu.h (version 3). --headers takes them out of those files, in a checkout's `published` folder, instead of from here.
Levels: nvidia-uvm/uvm_pascal_mmu.c (2, 9, 9, 8 bits from bit 47 on) and uvm_hopper_mmu.c (one bit at 56, then 9, 9, 9, 8).
"""
import re
import struct
import sys

# Names as in the headers; high and low bit.
BITS = {
    2: {"PTE_VALID": (0, 0), "PTE_APERTURE": (2, 1), "PTE_ADDRESS_SYS": (53, 8), "PTE_ADDRESS_VID": (32, 8), "PTE_KIND": (63, 56),
        "PDE_APERTURE": (2, 1), "PDE_ADDRESS_SYS": (53, 8), "PDE_ADDRESS_VID": (32, 8),
        "DUAL_PDE_APERTURE_BIG": (2, 1), "DUAL_PDE_ADDRESS_BIG_VID": (32, 4), "DUAL_PDE_ADDRESS_BIG_SYS": (53, 4),
        "DUAL_PDE_APERTURE_SMALL": (66, 65), "DUAL_PDE_ADDRESS_SMALL_VID": (96, 72), "DUAL_PDE_ADDRESS_SMALL_SYS": (117, 72)},
    3: {"PTE_APERTURE": (2, 1), "PTE_ADDRESS_SYS": (51, 12), "PTE_ADDRESS_VID": (39, 12), "PTE_KIND": (11, 8), "PTE_PCF": (7, 3),
        "PDE_IS_PTE": (0, 0), "PDE_APERTURE": (2, 1), "PDE_ADDRESS": (51, 12), "PDE_PCF": (5, 3),
        "DUAL_PDE_APERTURE_BIG": (2, 1), "DUAL_PDE_ADDRESS_BIG": (51, 8),
        "DUAL_PDE_APERTURE_SMALL": (66, 65), "DUAL_PDE_ADDRESS_SMALL": (115, 76)},
}
# Bits of an entry that no field of the headers covers (or that engines alone write): they stay 0.
UNUSED = {2: {"PDE": [(7, 4), (63, 54)], "PTE": [(4, 4), (55, 54)]}, 3: {"PDE": [(63, 52), (11, 6)], "PTE": [(60, 52)]}}
LEVELS = {2: [(47, 2), (38, 9), (29, 9), (21, 8)], 3: [(56, 1), (47, 9), (38, 9), (29, 9), (21, 8)]}
# Ordinary memory, read and written, atomics allowed, with the compression of access counters off (PTE_PCF_REGULAR_RW_ATOMIC_*_ACD).
ORDINARY_PCF = {0x10, 0x11}
VIDEO, PEER, COHERENT = 0, 1, 2


def from_headers(folder):
    files = {2: "pascal/gp100/dev_mmu.h", 3: "hopper/gh100/dev_mmu.h"}
    for version, fields in BITS.items():
        text = open(f"{folder}/{files[version]}", encoding="latin-1").read()
        for name in fields:
            found = re.search(rf"#define NV_MMU_VER{version}_{name}\s+([0-9()+-]+):([0-9()+-]+)", text)
            if found:
                fields[name] = tuple(sum_of(part) for part in found.groups())
            else:
                sys.exit(f"{files[version]} has no NV_MMU_VER{version}_{name}")


def sum_of(text):
    parts = re.findall(r"[+-]?\d+", text)
    return sum(int(part) for part in parts)


class Tables:
    def __init__(self, pages, version):
        self.pages, self.version, self.fields = pages, version, BITS[version]
        self.leaves = []  # (virtual address, bytes, aperture, address)

    def get(self, name, word):
        high, low = self.fields[name]
        return word >> low & (1 << (high - low + 1)) - 1

    def entry(self, address, size):
        page = self.pages.get(address & ~0xfff)
        if page is None:
            sys.exit(f"the table at {address:#x} lies in memory that nobody has written")
        at = address & 0xfff
        return int.from_bytes(page[at:at + size], "little")

    def check_unused(self, kind, word, where):
        for high, low in UNUSED[self.version][kind]:
            if word >> low & (1 << (high - low + 1)) - 1:
                sys.exit(f"{where}: {kind} {word:#x} has bits {high}:{low}")

    def is_leaf(self, word):
        return word & 1 == 1

    def leaf(self, word, va, size):
        where = f"at {va:#x}"
        self.check_unused("PTE", word, where)
        aperture = self.get("PTE_APERTURE", word)
        if aperture == PEER:
            sys.exit(f"{where}: another card's memory")
        # Fields count pages of 4 KiB (ADDRESS_SHIFT 12) from their lowest bit on.
        address = self.get("PTE_ADDRESS_VID" if aperture == VIDEO else "PTE_ADDRESS_SYS", word) << 12
        if address % size:
            sys.exit(f"{where}: a page of {size:#x} bytes at {address:#x}")
        if self.version == 3 and self.get("PTE_PCF", word) & ~6 not in ORDINARY_PCF:
            sys.exit(f"{where}: PCF {self.get('PTE_PCF', word):#x}")
        self.leaves.append((va, size, "video" if aperture == VIDEO else "system", address))

    def directory(self, prefix, word, where):
        """The table that (half of) a directory entry points to; None where it points to none."""
        aperture = self.get(prefix + "APERTURE" + self.half, word)
        if aperture == 0:
            return None
        if aperture != 1:
            sys.exit(f"{where}: a table in the host's memory is not in the dump")
        if self.version == 3:
            return self.get(prefix + "ADDRESS" + self.half, word) << (8 if self.half == "_BIG" else 12)
        return self.get(prefix + "ADDRESS" + self.half + "_VID", word) << (8 if self.half == "_BIG" else 12)

    half = ""

    def walk(self, table, level=0, base=0):
        shift, bits = LEVELS[self.version][level]
        is_dual = level == len(LEVELS[self.version]) - 1
        size = 16 if is_dual else 8
        for index in range(1 << bits):
            va = base | index << shift
            word = self.entry(table + index * size, size)
            where = f"level {level}, {va:#x}"
            if word == 0:
                continue
            if self.is_leaf(word):
                if shift > 29 or (shift == 29 and self.version == 2):
                    sys.exit(f"{where}: a page of {1 << shift:#x} bytes")
                self.leaf(word & (1 << 64) - 1, va, 1 << shift)
                if is_dual and word >> 64:
                    sys.exit(f"{where}: a page and a table at once")
            elif is_dual:
                for half, page_shift, width in (("_BIG", 16, 5), ("_SMALL", 12, 9)):
                    self.half = half
                    below = self.directory("DUAL_PDE_", word, where)
                    if below is not None:
                        self.last(below, va, page_shift, width)
            else:
                self.half = ""
                self.check_unused("PDE", word, where)
                below = self.directory("PDE_", word, where)
                if below is not None:
                    self.walk(below, level + 1, va)

    def last(self, table, base, shift, width):
        for index in range(1 << width):
            word = self.entry(table + index * 8, 8)
            if self.is_leaf(word):
                self.leaf(word, base | index << shift, 1 << shift)
            elif word:
                sys.exit(f"at {base | index << shift:#x}: {word:#x} is no page")


def main():
    arguments = sys.argv[1:]
    if "--headers" in arguments:
        at = arguments.index("--headers")
        from_headers(arguments[at + 1])
        del arguments[at:at + 2]
    data = open(arguments[0], "rb").read()
    pages = {}
    for at in range(0, len(data), 4104):
        pages[struct.unpack_from("<Q", data, at)[0]] = data[at + 8:at + 4104]
    tables, claims, total, unmapped = None, [], None, []
    for line in open(arguments[1], encoding="ascii"):
        words = line.split()
        if words[0] == "root":
            tables = Tables(pages, int(words[1]))
            tables.walk(int(words[2], 0))
        elif words[0] == "map":
            claims.append((int(words[1], 0), int(words[2], 0), words[3], int(words[4], 0)))
        elif words[0] == "bytes":
            total = int(words[1])
        elif words[0] == "unmapped":
            unmapped.append(int(words[1], 0))
    seen = {}  # by page of 4 KiB
    for va, size, aperture, address in tables.leaves:
        for offset in range(0, size, 4096):
            if va + offset in seen:
                sys.exit(f"{va + offset:#x} is mapped twice")
            seen[va + offset] = (aperture, address + offset)
    for va, size, aperture, address in claims:
        for offset in range(0, size, 4096):
            if seen.get(va + offset) != (aperture, address + offset):
                sys.exit(f"{va + offset:#x}: {seen.get(va + offset)} in the tables, said to be {aperture} {address + offset:#x}")
    for va in unmapped:
        if va & ~0xfff in seen:
            sys.exit(f"{va:#x} is said not to be mapped")
    if len(seen) * 4096 != total:
        sys.exit(f"{len(seen) * 4096} bytes are mapped, {total} are said to be")
    sizes = sorted({size for _, size, _, _ in tables.leaves})
    print(f"{len(tables.leaves)} pages of {', '.join(hex(size) for size in sizes)} bytes, {total} bytes, {len(claims)} claims")


main()
