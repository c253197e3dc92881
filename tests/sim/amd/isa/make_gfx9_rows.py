#!/usr/bin/env python3
"""Writes opcode_rows_gfx9.inc: the instructions of CDNA3 (gfx940 to gfx942), from what LLVM's disassembler knows.

usage: make_gfx9_rows.py LIBLLVM OPCODE_ROWS_INC OPCODE_ROWS_GFX10_INC > opcode_rows_gfx9.inc     LIBLLVM: libLLVM.so.19.1

Codes, names and what bits mean come from the disassembler for gfx942. Operands come from RDNA's row
of the same meaning (RDNA3's name for it is the row's last column), less what CDNA has not: literals
of long forms, DPP of long forms, registers by halves; masks of lanes are pairs of SGPRs. What RDNA
does not have is in NEW. The result is checked against LLVM by tests/unit/sim_amd
(Llvm.DecodesRandomWordsAlike).
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
context = create(b"amdgcn-amd-amdhsa", b"gfx942", b"", None, 0, None, None)
text = ctypes.create_string_buffer(512)
FILL = 0x12345678


def spelled(*words):
    """The instruction's text, or nothing where LLVM does not take it."""
    data = struct.pack("<%dI" % len(words), *words)
    good = step(context, data, len(data), 0, text, 512) and b"Warning" not in text.value and b"/*" not in text.value
    return re.sub(r"\s+", " ", text.value.decode()).strip() if good else ""


def name_of(*tries):
    """Name of the first words that are an instruction, and those words."""
    for words in tries:
        if found := spelled(*words): return re.sub(r"_(e32|e64|dpp|sdwa)$", "", found.split()[0]), words
    return None, None


def extensions(family, code):
    """DPP and SDWA of a short form, and what their modifiers are: as OpcodeRow::bits."""
    head = {"Vop1": 0x7e000000 | 8 << 17 | code << 9, "Vop2": code << 25 | 8 << 17 | 4 << 9,
            "Vopc": 0x7c000000 | code << 17 | 4 << 9}[family]
    dpp, sdwa = (head | 250, 0xff00e402), (head | 249, 0x00060002 | (0 if family == "Vopc" else 6 << 8) | (0 if family == "Vop1" else 6 << 24))
    # Of 64 bits only one control exists: row_newbcast.
    if "_dpp" not in spelled(*dpp, 0) and "_dpp" in spelled(head | 250, 0xff015002, 0): dpp = (head | 250, 0xff015002)
    has_dpp, has_sdwa = "_dpp" in spelled(*dpp, 0), "_sdwa" in spelled(*sdwa, 0)
    if not has_dpp and not has_sdwa: return ""
    marks = ""
    for i in range(4):
        if has_dpp: said = spelled(dpp[0], dpp[1] | 1 << (20 + i), 0)
        else: said = spelled(sdwa[0], sdwa[1] | 1 << (20 + i % 2 + i // 2 * 8), 0)
        marks += "x" if not said else "s" if re.search(r"-v|\|", said) else "."
    return ("d" if has_dpp else "-") + marks + ("w" if has_sdwa else "")


def modifiers(words):
    """What bits 8 ... 15 and 59 ... 63 of a long form are: as OpcodeRow::bits."""
    marks = ""
    has_sdst = re.search(r", (s\[10:11\]|vcc|s\[0:1\]),", spelled(words[0] & ~0xff00 | 10 << 8, *words[1:])) is not None
    for i in range(13):
        index, bit = (0, 8 + i) if i < 8 else (1, 27 + i - 8)
        if has_sdst and i < 7:
            marks += "S"
            continue
        on, off = list(words), list(words)
        on[index] |= 1 << bit
        off[index] &= ~(1 << bit)
        said, unsaid = spelled(*on), spelled(*off)
        marks += "x" if not said else "1" if not unsaid else "." if said == unsaid else "s"
    return marks


def probe():
    """(format, code, name, words) of everything there is."""
    vector = lambda a, b, c: a | b << 9 | c << 18
    for c in range(0x60): yield "Sop2", c, *name_of((0x80000000 | c << 23 | 8 << 16 | 0x404, FILL, 0))
    for c in range(0x1c): yield "Sopk", c, *name_of((0xb0000000 | c << 23 | 8 << 16 | 1, FILL, 0))
    for c in range(0x100): yield "Sop1", c, *name_of((0xbe800000 | 8 << 16 | c << 8 | 4, FILL, 0))
    for c in range(0x80): yield "Sopc", c, *name_of((0xbf000000 | c << 16 | 0x404, FILL, 0))
    for c in range(0x80): yield "Sopp", c, *name_of((0xbf800000 | c << 16 | 1, FILL, 0), (0xbf800000 | c << 16, FILL, 0))
    for c in range(0x100):
        head = 0xc0000000 | c << 18
        yield "Smem", c, *name_of((head | 1 << 17 | 8 << 6 | 2, 8, 0), (head | 1 << 17 | 8 << 6, 0, 0), (head, 0, 0))
    for c in range(0x100): yield "Vop1", c, *name_of((0x7e000000 | 8 << 17 | c << 9 | 258, FILL, 0), (0x7e000000 | c << 9, FILL, 0))
    for c in range(0x3e): yield "Vop2", c, *name_of((c << 25 | 8 << 17 | 4 << 9 | 258, FILL, 0))
    for c in range(0x100): yield "Vopc", c, *name_of((0x7c000000 | c << 17 | 4 << 9 | 258, FILL, 0))
    for c in range(0x380):
        tries = []
        for a, b, s in ((258, 260, 262), (258, 260, 10), (258, 260, 0), (258, 0, 0), (0, 0, 0), (258, 4, 6), (258, 4, 0)):
            for low in (8, 8 | 10 << 8, 0): tries.append((0xd0000000 | c << 16 | low, vector(a, b, s), FILL, 0))
        yield "Vop3", c, *name_of(*tries)
    for c in range(0x80):
        head = 0xd3800000 | c << 16 | 8
        found = name_of(*((head | 0x4000, vector(258, 260, s) | 3 << 27, FILL, 0) for s in (262, 0)), (head, 258, FILL, 0))
        is_matrix = found[0] is not None and re.match("v_s?mf|v_accvgpr", found[0])
        yield "Mai" if is_matrix else "Vop3P", c, *found
    for c in range(0x100):
        yield "Ds", c, *name_of(*((0xd8000000 | c << 17, w, FILL, 0) for w in (
            0x08060402, 0x08000402, 0x08000002, 0x08000000, 0x00060402, 0x00000402, 2, 0)))
    for segment, family in ((0, "Flat"), (1, "Scratch"), (2, "Global")):
        for c in range(0x80):
            head, off = 0xdc000000 | c << 18 | segment << 14, 0x7f0000 if segment == 2 else 0
            yield family, c, *name_of(*((head | sc0, w | off, FILL, 0) for sc0 in (0, 1 << 16) for w in (0x08000402, 0x08000002, 0x00000402, 2)))
    for c in range(0x80): yield "Buffer", c, *name_of((0xe0000000 | c << 18 | 0x1000, 0x80010802, FILL, 0), (0xe0000000 | c << 18, 0, FILL, 0))


# ---- what RDNA3 calls the same ----
EXACT = {"s_ff1_i32_b32": "s_ctz_i32_b32", "s_ff1_i32_b64": "s_ctz_i32_b64", "s_flbit_i32_b32": "s_clz_i32_u32",
         "s_flbit_i32_b64": "s_clz_i32_u64", "s_flbit_i32": "s_cls_i32", "s_flbit_i32_i64": "s_cls_i32_i64",
         "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32", "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
         "v_ffbh_u32": "v_clz_i32_u32", "v_ffbl_b32": "v_ctz_i32_b32", "v_ffbh_i32": "v_cls_i32",
         "v_dot2c_f32_f16": "v_dot2acc_f32_f16", "v_add_i32": "v_add_nc_i32", "v_sub_i32": "v_sub_nc_i32",
         "v_mad_legacy_u16": "v_mad_u16", "v_mad_legacy_i16": "v_mad_i16", "v_fma_legacy_f16": "v_fma_f16",
         "v_div_fixup_legacy_f16": "v_div_fixup_f16", "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32",
         "v_subbrev_co_u32": "v_subrev_co_ci_u32"}
PARTS = (("_tru_", "_t_"), ("andn1", "and_not0"), ("andn2", "and_not1"), ("orn1", "or_not0"), ("orn2", "or_not1"), ("_legacy_", "_dx9_zero_"),
         ("pkrtz", "pk_rtz"), ("pknorm", "pk_norm"))
WIDTHS = {"dword": "b32", "dwordx2": "b64", "dwordx3": "b96", "dwordx4": "b128", "dwordx8": "b256", "dwordx16": "b512"}
SMALL = {"load_ubyte": "load_u8", "load_sbyte": "load_i8", "load_ushort": "load_u16", "load_sshort": "load_i16",
         "store_byte": "store_b8", "store_short": "store_b16", "store_byte_d16_hi": "store_d16_hi_b8",
         "store_short_d16_hi": "store_d16_hi_b16", "load_ubyte_d16": "load_d16_u8", "load_ubyte_d16_hi": "load_d16_hi_u8",
         "load_sbyte_d16": "load_d16_i8", "load_sbyte_d16_hi": "load_d16_hi_i8", "load_short_d16": "load_d16_b16",
         "load_short_d16_hi": "load_d16_hi_b16"}
ATOMICS = {"swap": "swap_b", "cmpswap": "cmpswap_b", "add": "add_u", "sub": "sub_u", "smin": "min_i", "umin": "min_u",
           "smax": "max_i", "umax": "max_u", "and": "and_b", "or": "or_b", "xor": "xor_b", "inc": "inc_u", "dec": "dec_u"}


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
    m = re.fullmatch(r"v_(add|sub|subrev)_([ui](?:16|32))", name)
    if m: return f"v_{m[1]}_nc_{m[2]}"
    for old, new in PARTS: name = name.replace(old, new)
    return name


# New ones, and short forms of what RDNA has in the long form only: operands.
NEW = {("Vop1", "v_mov_b64"): "v2Q2", ("Vop1", "v_accvgpr_mov_b32"): "k1k1", ("Vop2", "v_fmac_f64"): "v2Q2v2",
       ("Vop3", "v_mov_b64"): "v2Q2", ("Vop3", "v_fmac_f64"): "v2Q2Q2", ("Vop3", "v_lshl_add_u64"): "v2Q2R1Q2",
       ("Vop3", "v_dot4c_i32_i8"): "v1R1R1", ("Vop3", "v_dot2c_f32_f16"): "v1R1R1",
       ("Vop3P", "v_pk_fma_f32"): "v2Q2Q2Q2", ("Vop3P", "v_pk_mul_f32"): "v2Q2Q2", ("Vop3P", "v_pk_add_f32"): "v2Q2Q2",
       ("Vop3P", "v_pk_mov_b32"): "v2Q2Q2", ("Sopp", "s_sendmsghalt"): None, ("Smem", "s_dcache_wb"): "", ("Smem", "s_dcache_inv_vol"): "",
       ("Smem", "s_dcache_wb_vol"): "", ("Ds", "ds_add_f64"): "--v1v2", ("Ds", "ds_add_rtn_f64"): "v2v1v2",
       ("Buffer", "buffer_wbl2"): "--", ("Buffer", "buffer_inv"): "--",
       ("Vop3", "v_subrev_u16"): "v1R1R1"}
for kind in ("u16", "i16", "b16"):
    for operation in ("add", "sub", "subrev", "mul_lo", "max", "min", "lshlrev", "lshrrev", "ashrrev"): NEW["Vop2", f"v_{operation}_{kind}"] = "v1Oivi"
for operation in ("add", "sub", "subrev"): NEW["Vop2", f"v_{operation}_co_u32"] = "v1O1v1"
for space in ("Flat", "Global"):
    prefix = space.lower() + "_atomic_"
    for operation in ("add_f64", "min_f64", "max_f64"): NEW[space, prefix + operation] = ("--v2v2", "r2")
    for operation in ("pk_add_f16", "pk_add_bf16"): NEW[space, prefix + operation] = ("--v2v1", "r1")
# Left out: what RDNA has with another meaning, and legacy forms that no compiler emits for CDNA3.
SKIPPED = re.compile("s_atc|_format|v_(exp|log)_legacy|v_mad_f16|v_mad_legacy_f16|v_mac_|v_mad[am]k_|v_s?mfmac_|ds_gws|_gs_reg|v_clrexcp|"
                     "lds_|v_cvt_pkaccum|v_screen|v_interp|v_cube|s_endpgm_|s_sendmsghalt|wbinvl1|fp8|bf8|xf32")
# Registers by halves came with RDNA3; long forms have neither literals nor DPP; masks are pairs.
WHOLE = {"T": "S", "V": "O", "X": "R", "l": "v"}
NO_DPP = {"S": "R", "O": "R", "Z": "W", "U": "W"}
LONG = {"S": "n", "O": "n", "R": "n", "Q": "o", "B": "m", "Y": "m", "b": "m", "d": "o", "g": "o", "F": "p"}
MATRIX = re.compile(r"v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_(\w+)")


def matrix_operands(name):
    """MFMA by its name: registers of D and C, A and B. 'k': VGPRs and AccVGPRs, 'j': also constants."""
    if name == "v_accvgpr_read_b32": return "k1k1"
    if name == "v_accvgpr_write_b32": return "k1j1"
    m = MATRIX.match(name)
    if not m: return None
    blocks = int(m[5] or 1)
    wide = 2 if m[1] == "f64" else 1
    results = int(m[2]) * int(m[3]) * blocks // 64 * wide
    bits = {"f64": 64, "f32": 32, "xf32": 32, "f16": 16, "bf16": 16, "i8": 8}.get(m[6], 8)
    inputs = max(int(m[2]) * int(m[4]) * blocks // 64 * bits // 32, 1)
    sign = {1: "1", 2: "2", 4: "4", 8: "8", 16: "g", 32: "w"}
    return f"k{sign[results]}k{sign[inputs]}k{sign[inputs]}j{sign[results]}"


def main():
    rows = {}
    pattern = re.compile(r'\{Format::k(\w+), \w+, \d+, "([^"]*)", "([^"]*)", "([^"]*)"(?:, "([^"]*)")?\}')
    for path in (sys.argv[3], sys.argv[2]):  # RDNA3's last: its operands count
        for line in open(path):
            m = pattern.match(line)
            if m: rows[m[1], m[5] or m[2]] = (m[3], m[4])
    skipped = []
    for family, code, name, words in probe():
        if name is None: continue
        same = meaning(name)
        if SKIPPED.search(name):
            skipped.append(name)
            continue
        if family == "Mai": row = (matrix_operands(name), "")
        elif (family, name) in NEW: row = NEW[family, name] if isinstance(NEW[family, name], tuple) else (NEW[family, name], "")
        else: row = rows.get((family, same)) or rows.get((family, name))
        # Integer compares that are always false or true, which RDNA3 lost.
        if row is None and re.match(r"v_cmpx?_(f|t)_[ui]16", name): row = rows.get((family, re.sub("_(f|t)_", "_lt_", name)))
        if row is None or row[0] is None:
            skipped.append(name)
            continue
        operands, bits = row
        classes, widths = [WHOLE.get(c, c) for c in operands[::2]], list(operands[1::2])
        if family in ("Vop1", "Vop2", "Vopc") and bits != "K": bits = extensions(family, code)
        if family in ("Vop3", "Vop3P"):
            bits = modifiers(words)
            if name.startswith("v_cmp"): classes[0], widths[0] = "s", "2"
            classes = classes[:1] + [LONG.get(c, c) for c in classes[1:]]
            if re.match("v_cndmask|v_addc|v_subb", name): classes[3], widths[3] = "p", "2"
        elif family != "Mai" and not bits.startswith("d"): classes = [NO_DPP.get(c, c) for c in classes]
        operands = "".join(a + b for a, b in zip(classes, widths))
        last = f', "{same}"' if same != name else ""
        print(f'{{Format::k{family}, {code:#05x}, 16, "{name}", "{operands}", "{bits}"{last}}},')
    sys.stderr.write("not modelled: " + " ".join(sorted(set(skipped))) + "\n")


main()
