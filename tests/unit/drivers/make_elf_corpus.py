#!/usr/bin/env python3
"""Writes the ELF files of tests/fuzz/corpus/elf: one good object and one per way of being malformed.

Run from the repository root: python3 tests/unit/drivers/make_elf_corpus.py
elf_test.cpp says what each must be answered with.
"""
import pathlib
import struct

FOLDER = pathlib.Path("tests/fuzz/corpus/elf")
NULL, PROGBITS, SYMTAB, STRTAB, RELA = 0, 1, 2, 3, 4


def good(**change):
    """A relocatable object: .text with one relocation against an undefined symbol."""
    names = b"\0.text\0.rela.text\0.symtab\0.strtab\0.shstrtab\0"
    strings = change.get("strings", b"\0kernel\0sinf\0")
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 1, 0x12, 0, change.get("symbol_section", 1), change.get("symbol_value", 0), 8)
    symbols += struct.pack("<IBBHQQ", change.get("symbol_name", 8), 0x10, 0, 0, 0, 0)
    symbols = symbols[: len(symbols) - change.get("cut_symbols", 0)]
    relocation = struct.pack("<QQq", change.get("place", 1), change.get("symbol", 2) << 32 | 4, -4)
    contents = [b"", b"\xe8\0\0\0\0\xc3\x90\x90", relocation, symbols, strings, names]
    kinds = [NULL, PROGBITS, RELA, SYMTAB, STRTAB, STRTAB]
    labels = [0, 1, 7, 18, 26, 34]
    links = [0, 0, 3, change.get("symbol_strings", 4), 0, 0]
    infos = [0, 0, change.get("target", 1), 1, 0, 0]
    entries = [0, 0, change.get("rela_entry", 24), 24, 0, 0]
    body, offsets = b"", []
    for i, content in enumerate(contents):
        body += b"\0" * (-len(body) % 8)
        if i == change.get("shifted", -1):
            body += b"\0\0\0\0"
        offsets.append(64 + len(body))
        body += content
    body += b"\0" * (-len(body) % 8)
    table = b""
    for i, content in enumerate(contents):
        offset, size = offsets[i], len(content)
        if i == 1:
            offset, size = change.get("text_offset", offset), change.get("text_size", size)
        flags = 6 if i == 1 else 0
        table += struct.pack("<IIQQQQIIQQ", labels[i], kinds[i], flags, 0, offset if i else 0, size, links[i], infos[i],
                             change.get("alignment", 16) if i == 1 else 1, entries[i])
    section_table = change.get("section_table", 64 + len(body))
    header = b"\x7fELF" + bytes([change.get("class", 2), 1, 1, 0]) + b"\0" * 8
    header += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, section_table, 0, 64, 0, 0,
                          change.get("section_entry", 64), change.get("sections", len(contents)),
                          change.get("name_section", 5))
    data = header + body + table
    return data[: change.get("length", len(data))]


FILES = {
    "good": good(),
    "empty": b"",
    "header_truncated": good()[:63],
    "class_32": good(**{"class": 1}),
    "section_table_past_end": good(section_table=1 << 40),
    "section_table_unaligned": good(section_table=68),
    "section_table_over_header": good(section_table=0x20, sections=1),
    "section_table_truncated": good(length=len(good()) - 1),
    "section_entry_wrong": good(section_entry=40),
    "section_count_huge": good(sections=0xfeff),
    "section_size_overflow": good(text_size=(1 << 64) - 8),
    "section_past_end": good(text_offset=1 << 20),
    "section_overlap": good(text_size=24),
    "section_over_header": good(text_offset=0),
    "section_alignment_odd": good(alignment=24),
    "name_section_missing": good(name_section=77),
    "string_unterminated": good(strings=b"\0kernel\0sinf"),
    "string_past_end": good(symbol_name=500),
    "symbol_section_out_of_range": good(symbol_section=99),
    "symbol_value_out_of_range": good(symbol_value=1 << 63),
    "symbol_table_cut": good(cut_symbols=5),
    "symbol_table_unaligned": good(shifted=3),
    "symbol_strings_wrong": good(symbol_strings=1),
    "relocation_symbol_out_of_range": good(symbol=3),
    "relocation_outside_section": good(place=8),
    "relocation_target_out_of_range": good(target=99),
    "relocation_entry_wrong": good(rela_entry=16),
}

for name, data in FILES.items():
    (FOLDER / f"{name}.elf").write_bytes(data)
print(f"{len(FILES)} files in {FOLDER}")
