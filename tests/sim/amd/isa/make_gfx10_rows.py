#!/usr/bin/env python3
"""Writes opcode_rows_gfx10.inc: the instructions of RDNA2, from what LLVM's disassembler knows.

usage: make_gfx10_rows.py LIBLLVM OPCODE_ROWS_INC > opcode_rows_gfx10.inc     LIBLLVM: libLLVM.so.19.1

Codes and names come from the disassembler for gfx1030. RDNA3 renamed much and changed little, so
operands come from RDNA3's row of the same meaning, which becomes the row's last column. The result
is checked against LLVM by tests/unit/sim_amd (Llvm.DecodesRandomWordsAlike).
"""
import ctypes
import re
import struct
import sys

# ---- LLVM's C interface ----
library = ctypes.CDLL(sys.argv[1])
for part in ("TargetInfo", "Target", "TargetMC", "Disassembler"): getattr(library, "LLVMInitializeAMDGPU" + part)()
create, step = library.LLVMCreateDisasmCPUFeatures, library.LLVMDisasmInstruction
create.restype, step.restype = ctypes.c_void_p, ctypes.c_size_t
create.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
step.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
context = create(b"amdgcn-amd-amdhsa", b"gfx1030", b"", None, 0, None, None)
text = ctypes.create_string_buffer(512)
FILL = 0x12345678


def spelled(*words):
    data = struct.pack("<%dI" % len(words), *words)
    good = step(context, data, len(data), 0, text, 512) and b"Warning" not in text.value
    return text.value.decode().strip() if good else ""


def name_of(*tries):
    for words in tries:
        if found := spelled(*words): return re.sub(r"_(e32|e64|dpp|sdwa)$", "", found.split()[0])
    return None


def extensions(family, code):
    """DPP and SDWA of a short form, and what their modifiers are: as OpcodeRow::bits."""
    head = {"Vop1": 0x7e000000 | 8 << 17 | code << 9, "Vop2": code << 25 | 8 << 17 | 4 << 9,
            "Vopc": 0x7c000000 | code << 17 | 4 << 9}[family]
    dpp, sdwa = (head | 250, 0xff00e402), (head | 249, 0x00060002 | (0 if family == "Vopc" else 6 << 8) | (0 if family == "Vop1" else 6 << 24))
    has_dpp, has_sdwa = "_dpp" in spelled(*dpp, 0), "_sdwa" in spelled(*sdwa, 0)
    if not has_dpp and not has_sdwa: return ""
    marks = ""
    for i in range(4):
        if has_dpp: said = spelled(dpp[0], dpp[1] | 1 << (20 + i), 0)
        else: said = spelled(sdwa[0], sdwa[1] | 1 << (20 + i % 2 + i // 2 * 8), 0)
        marks += "x" if not said else "s" if re.search(r"-v|\|", said) else "."
    return ("d" if has_dpp else "-") + marks + ("w" if has_sdwa else "")


def probe():
    """(format, code, name) of everything there is."""
    vector = lambda a, b, c: a | b << 9 | c << 18
    for c in range(0x60): yield "Sop2", c, name_of((0x80000000 | c << 23 | 8 << 16 | 0x404, FILL, 0))
    for c in range(0x1c): yield "Sopk", c, name_of((0xb0000000 | c << 23 | 8 << 16 | 1, FILL, 0))
    for c in range(0x100): yield "Sop1", c, name_of((0xbe800000 | 8 << 16 | c << 8 | 4, FILL, 0))
    for c in range(0x80): yield "Sopc", c, name_of((0xbf000000 | c << 16 | 0x404, FILL, 0))
    for c in range(0x80): yield "Sopp", c, name_of((0xbf800000 | c << 16 | 1, FILL, 0), (0xbf800000 | c << 16, FILL, 0))
    for c in range(0x100):
        head = 0xf4000000 | c << 18
        yield "Smem", c, name_of((head | 8 << 6 | 2, 0xfa000000, 0), (head, 0xfa000000, 0), (head, 0, 0))
    for c in range(0x100): yield "Vop1", c, name_of((0x7e000000 | 8 << 17 | c << 9 | 258, FILL, 0), (0x7e000000 | c << 9, FILL, 0))
    for c in range(1, 0x3e): yield "Vop2", c, name_of((c << 25 | 8 << 17 | 4 << 9 | 258, FILL, 0))
    for c in range(0x100): yield "Vopc", c, name_of((0x7c000000 | c << 17 | 4 << 9 | 258, FILL, 0))
    for c in range(0x400):
        tries = []
        for a, b, s in ((258, 260, 262), (258, 260, 10), (258, 260, 0), (258, 0, 0), (0, 0, 0), (258, 4, 6), (258, 4, 0)):
            for low in (8, 8 | 10 << 8, 0): tries.append((0xd4000000 | c << 16 | low, vector(a, b, s), FILL, 0))
        yield "Vop3", c, name_of(*tries)
    for c in range(0x80):
        head = 0xcc000000 | c << 16 | 8
        yield "Vop3P", c, name_of(*((head | 0x4000, vector(258, 260, s) | 3 << 27, FILL, 0) for s in (262, 0)))
    for c in range(0x100):
        yield "Ds", c, name_of(*((0xd8000000 | c << 18, w, FILL, 0) for w in (
            0x08060402, 0x08000402, 0x08000002, 0x08000000, 0x00060402, 0x00000402, 2, 0)))
    for segment, family in ((0, "Flat"), (1, "Scratch"), (2, "Global")):
        for c in range(0x80):
            yield family, c, name_of(*((0xdc000000 | c << 18 | segment << 14 | glc, w | 0x7d0000, FILL, 0)
                                       for glc in (0, 1 << 16) for w in (0x08000402, 0x08000002, 0x00000402, 2)))
    for c in range(0x100):
        head = 0xe0000000 | (c & 0x7f) << 18 | c >> 7 << 25
        yield "Buffer", c, name_of((head | 0x1000, 0x80010802, FILL, 0), (head, 0, FILL, 0))


# ---- what RDNA3 calls the same ----
EXACT = {"s_ff1_i32_b32": "s_ctz_i32_b32", "s_ff1_i32_b64": "s_ctz_i32_b64", "s_flbit_i32_b32": "s_clz_i32_u32",
         "s_flbit_i32_b64": "s_clz_i32_u64", "s_flbit_i32": "s_cls_i32", "s_flbit_i32_i64": "s_cls_i32_i64",
         "s_inst_prefetch": "s_set_inst_prefetch_distance", "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32",
         "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32", "v_ffbh_u32": "v_clz_i32_u32", "v_ffbl_b32": "v_ctz_i32_b32",
         "v_ffbh_i32": "v_cls_i32", "v_dot2c_f32_f16": "v_dot2acc_f32_f16"}
PARTS = (("andn1", "and_not0"), ("andn2", "and_not1"), ("orn1", "or_not0"), ("orn2", "or_not1"), ("_tru_", "_t_"),
         ("_legacy_", "_dx9_zero_"), ("pkrtz", "pk_rtz"), ("pknorm", "pk_norm"))
WIDTHS = {"dword": "b32", "dwordx2": "b64", "dwordx3": "b96", "dwordx4": "b128", "dwordx8": "b256", "dwordx16": "b512"}
SMALL = {"load_ubyte": "load_u8", "load_sbyte": "load_i8", "load_ushort": "load_u16", "load_sshort": "load_i16",
         "store_byte": "store_b8", "store_short": "store_b16", "store_byte_d16_hi": "store_d16_hi_b8",
         "store_short_d16_hi": "store_d16_hi_b16", "load_ubyte_d16": "load_d16_u8", "load_ubyte_d16_hi": "load_d16_hi_u8",
         "load_sbyte_d16": "load_d16_i8", "load_sbyte_d16_hi": "load_d16_hi_i8", "load_short_d16": "load_d16_b16",
         "load_short_d16_hi": "load_d16_hi_b16"}
ATOMICS = {"swap": "swap_b", "cmpswap": "cmpswap_b", "add": "add_u", "sub": "sub_u", "csub": "csub_u", "smin": "min_i", "umin": "min_u",
           "smax": "max_i", "umax": "max_u", "and": "and_b", "or": "or_b", "xor": "xor_b", "inc": "inc_u", "dec": "dec_u",
           "fcmpswap": "cmpswap_f", "fmin": "min_f", "fmax": "max_f"}


def meaning(name):
    if name in EXACT: return EXACT[name]
    space, _, rest = name.partition("_")
    if space in ("flat", "global", "scratch", "buffer"):
        if rest in SMALL: return f"{space}_{SMALL[rest]}"
        m = re.fullmatch(r"(load|store)_(dword\w*)", rest)
        if m and m[2] in WIDTHS: return f"{space}_{m[1]}_{WIDTHS[m[2]]}"
        m = re.fullmatch(r"atomic_([a-z]+)(_x2)?", rest)
        if m and m[1] in ATOMICS: return f"{space}_atomic_{ATOMICS[m[1]]}{'64' if m[2] else '32'}"
        return name
    if space == "ds":
        rest = re.sub(r"^write2st64", "store_2addr_stride64", rest)
        rest = re.sub(r"^read2st64", "load_2addr_stride64", rest)
        rest = re.sub(r"^wrxchg2st64_rtn", "storexchg_2addr_stride64_rtn", rest)
        rest = re.sub(r"^wrxchg2_rtn", "storexchg_2addr_rtn", rest)
        rest = re.sub(r"^wrxchg", "storexchg", rest)
        rest = re.sub(r"^write2", "store_2addr", rest)
        rest = re.sub(r"^read2", "load_2addr", rest)
        rest = re.sub(r"^cmpst", "cmpstore", rest)
        if rest in ("read_u16_d16", "read_u16_d16_hi"): rest = rest.replace("read_u16", "load_u16")
        return "ds_" + re.sub(r"^write", "store", re.sub(r"^read", "load", rest))
    if name.startswith("s_") and "load_dword" in name: return name[:name.index("dword")] + WIDTHS[name[name.index("dword"):]]
    for old, new in PARTS: name = name.replace(old, new)
    return name


# New ones: operands and bits of their own.
NEW = {("Sop1", "s_ff0_i32_b32"): ("A1B1", ""), ("Sop1", "s_ff0_i32_b64"): ("A1D2", ""),
       ("Smem", "s_memtime"): ("J2", ""), ("Smem", "s_memrealtime"): ("J2", ""),
       ("Vop2", "v_dot4c_i32_i8"): ("v1S1v1", "dxxxx"),
       ("Vop3P", "v_dot2_i32_i16"): ("v1R1R1R1", "sssssssssssss"), ("Vop3P", "v_dot2_u32_u16"): ("v1R1R1R1", "sssssssssssss"),
       ("Vop3P", "v_dot4_i32_i8"): ("v1R1R1R1", "sssssssssssss"), ("Vop3P", "v_dot8_i32_i4"): ("v1R1R1R1", "sssssssssssss")}
for space in ("Flat", "Global"):
    prefix, a = space.lower() + "_atomic_", "v2"
    NEW[space, prefix + "fcmpswap_x2"] = (f"--{a}v4", "r2")
    NEW[space, prefix + "fmin_x2"] = NEW[space, prefix + "fmax_x2"] = (f"--{a}v2", "r2")
NEW["Buffer", "buffer_atomic_fcmpswap_x2"] = ("v4", "r")
NEW["Buffer", "buffer_atomic_fmin_x2"] = NEW["Buffer", "buffer_atomic_fmax_x2"] = ("v2", "r")
# Registers by halves came with RDNA3: every register is at hand for 16 bits.
WHOLE = {"T": "S", "V": "O", "X": "R", "l": "v"}
NO_DPP = {"S": "R", "O": "R", "Z": "W", "U": "W"}


def main():
    rows = {}
    pattern = re.compile(r'\{Format::k(\w+), \w+, (\d+), "([^"]*)", "([^"]*)", "([^"]*)"\}')
    for line in open(sys.argv[2]):
        m = pattern.match(line)
        if m and int(m[2]) & 1: rows[m[1], m[3]] = (m[4], m[5])
    skipped = []
    for family, code, name in probe():
        if name is None: continue
        same = meaning(name)
        row = NEW.get((family, name)) or rows.get((family, same))
        if row is None:
            skipped.append(name)
            continue
        operands, bits = row
        classes = [WHOLE.get(c, c) for c in operands[::2]]
        if family in ("Vop1", "Vop2", "Vopc") and bits != "K": bits = extensions(family, code)
        if not bits.startswith("d"): classes = [NO_DPP.get(c, c) for c in classes]
        operands = "".join(a + b for a, b in zip(classes, operands[1::2]))
        last = f', "{same}"' if same != name else ""
        print(f'{{Format::k{family}, {code:#05x}, 8, "{name}", "{operands}", "{bits}"{last}}},')
    sys.stderr.write("not modelled: " + " ".join(sorted(set(skipped))) + "\n")


main()
