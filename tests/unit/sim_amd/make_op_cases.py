#!/usr/bin/env python3
"""Writes op_cases.inc: instructions with inputs and the results they must have.

usage: make_op_cases.py OPCODE_ROWS_INC OPCODE_ROWS_GFX10_INC OPCODE_ROWS_GFX9_INC > op_cases.inc     needs llvm-mc-19

Results come from the definitions below, written from the RDNA3 and RDNA4 ISA guides and computed
with exact fractions; they share nothing with tests/sim/amd/exec.
"""
import math
import random
import re
import struct
import subprocess
import sys
from fractions import Fraction

random.seed(20)
M32, M64 = 0xffffffff, 0xffffffffffffffff
CHIP = {1: "gfx1100", 2: "gfx1150", 4: "gfx1201", 8: "gfx1030", 16: "gfx942"}
ISA = {1: "Gfx11", 2: "Gfx115", 4: "Gfx12", 8: "Gfx10", 16: "Gfx9"}
INF, NAN = math.inf, math.nan


# ---- formats ----
def f32(bits): return struct.unpack("<f", struct.pack("<I", bits & M32))[0]
def f64(bits): return struct.unpack("<d", struct.pack("<Q", bits & M64))[0]
def f16(bits): return struct.unpack("<e", struct.pack("<H", bits & 0xffff))[0]
def bf16(bits): return f32((bits & 0xffff) << 16)
def i16(a): return (a & 0x7fff) - (a & 0x8000)
def i32(a): return (a & 0x7fffffff) - (a & 0x80000000)
def i64(a): return (a & (M64 >> 1)) - (a & (1 << 63))


def to_bits(value, p, emin, width):
    """Bits of an exact Fraction (or float) rounded once to a binary format, ties to even."""
    ebits = width - p
    if isinstance(value, float):
        if math.isnan(value): return "nan"
        if math.isinf(value): return (1 if value < 0 else 0) << (width - 1) | ((1 << ebits) - 1) << (p - 1)
        if value == 0: return (1 if math.copysign(1, value) < 0 else 0) << (width - 1)
        value = Fraction(value)
    sign, value = (1, -value) if value < 0 else (0, value)
    if value == 0: return 0
    e = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** e > value: e -= 1
    q = max(e, emin) - (p - 1)
    n = value / Fraction(2) ** q
    k = n.numerator // n.denominator
    rest = n - k
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and k & 1): k += 1
    if k >= 1 << p: k >>= 1; q += 1
    if k < 1 << (p - 1): bits = k
    else:
        exponent = q + (p - 1) - emin + 1
        if exponent >= (1 << ebits) - 1: bits = ((1 << ebits) - 1) << (p - 1)
        else: bits = exponent << (p - 1) | (k & ((1 << (p - 1)) - 1))
    return sign << (width - 1) | bits


def b32(v): return to_bits(v, 24, -126, 32)
def b64(v): return to_bits(v, 53, -1022, 64)
def b16(v): return to_bits(v, 11, -14, 16)
def bb16(v): return to_bits(v, 8, -126, 16)


READ = {"h2": lambda a: a & M32, "f32": f32, "f64": f64, "f16": f16, "bf16": bf16, "u32": lambda a: a & M32, "i32": i32,
        "u16": lambda a: a & 0xffff, "i16": i16, "u64": lambda a: a & M64, "i64": i64}
WRITE = {"f32": b32, "f64": b64, "f16": b16, "bf16": bb16, "u32": lambda v: int(v) & M32,
         "i32": lambda v: int(v) & M32, "u16": lambda v: int(v) & 0xffff,
         "i16": lambda v: int(v) & 0xffff, "u64": lambda v: int(v) & M64, "i64": lambda v: int(v) & M64}
SPECIAL = {"f32": [0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 1, 0x00400000, 0x3f800000],
           "f64": [0, 1 << 63, 0x7ff << 52, 0xfff << 52, 0x7ff8 << 48, 1, 0x3ff << 52],
           "f16": [0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 1, 0x3c00]}


def sample(kind, calm):
    if kind in SPECIAL and not calm and random.random() < 0.3: return random.choice(SPECIAL[kind])
    if kind == "f32": return b32(random.uniform(-9, 9) * 2.0 ** random.randint(-3, 3))
    if kind == "f64": return b64(random.uniform(-9, 9) * 2.0 ** random.randint(-9, 9))
    if kind == "f16": return b16(random.uniform(-9, 9)) | random.getrandbits(16) << 16
    if kind == "h2": return sum((b16(random.uniform(-9, 9)) & 0xffff) << s for s in (0, 16))
    if kind == "bf16": return bb16(random.uniform(-9, 9))
    if random.random() < 0.3: return random.choice([0, 1, 2, 31, 63, 0x7fffffff, 0x80000000, M32, 0x8000, 0x7fff])
    return random.getrandbits(64 if kind in ("u64", "i64") else 32)


# ---- float arithmetic on Python floats, exact before the one rounding ----
def special(*values): return any(math.isnan(v) or math.isinf(v) for v in values)


def add(a, b):
    if special(a, b): return NAN if math.isinf(a) and math.isinf(b) and a != b else a + b
    r = Fraction(a) + Fraction(b)
    return (a + b) if r == 0 else r


def mul(a, b):
    if special(a, b): return a * b if not (a == 0 or b == 0) else NAN
    r = Fraction(a) * Fraction(b)
    return a * b if r == 0 else r


def fma(a, b, c):
    if special(a, b):
        p = mul(a, b)
        return add(p, c) if special(p) else p
    if special(c): return c
    r = Fraction(a) * Fraction(b) + Fraction(c)
    if r == 0:
        zero = math.copysign(1, a) * math.copysign(1, b)
        product = math.copysign(0.0, zero) if Fraction(a) * Fraction(b) == 0 else 1.0
        return product + c if product == 0 and c == 0 else 0.0
    return r


def key(v): return (v, math.copysign(1, v))
def mn(a, b): return b if math.isnan(a) else a if math.isnan(b) else min(a, b, key=key)
def mx(a, b): return b if math.isnan(a) else a if math.isnan(b) else max(a, b, key=key)
def mnn(a, b): return NAN if math.isnan(a) or math.isnan(b) else mn(a, b)
def mxn(a, b): return NAN if math.isnan(a) or math.isnan(b) else mx(a, b)


def med(a, b, c):
    if any(map(math.isnan, (a, b, c))): return mn(mn(a, b), c)
    return sorted((a, b, c), key=key)[1]


def keep(f):
    def g(a):
        if special(a): return a
        r = float(f(a))
        return math.copysign(r, a) if r == 0 else r
    return g


def fract(p):
    def g(a):
        if special(a): return NAN
        r = Fraction(a) - math.floor(a)
        return min(r, 1 - Fraction(1, 2 ** p))
    return g


def rcp(a):
    if math.isnan(a): return a
    if math.isinf(a): return math.copysign(0.0, a)
    return math.copysign(INF, a) if a == 0 else Fraction(1) / Fraction(a)


def sqrt(a): return a if math.isnan(a) or a == 0 else NAN if a < 0 else math.sqrt(a)
def rsq(a): return NAN if math.isnan(a) or a < 0 else math.copysign(INF, a) if a == 0 else 0.0 if math.isinf(a) else 1 / math.sqrt(a)
def log(a): return NAN if math.isnan(a) or a < 0 else -INF if a == 0 else a if math.isinf(a) else math.log2(a)


def exp(a):
    if special(a): return 0.0 if a == -INF else a
    return Fraction(2.0 ** a) if a < 1000 else INF


def turn(f): return lambda a: NAN if special(a) else f(math.fmod(a, 1) * 2 * math.pi)
def mant(a): return a if special(a) else math.frexp(a)[0]
def expo(a): return 0 if special(a) else math.frexp(a)[1]


def ldexp(a, n):
    if special(a) or a == 0: return a
    return Fraction(a) * Fraction(2) ** max(min(n, 5000), -5000)


def sat(lo, hi): return lambda a: 0 if math.isnan(a) else max(lo, min(hi, int(a) if not math.isinf(a) else (hi if a > 0 else lo)))
def norm(scale, lo): return lambda a: 0 if math.isnan(a) else int(round_even(max(lo, min(1.0, a)) * scale))
def round_even(a): return Fraction(a).limit_denominator(1 << 60).__round__()
def clamp(lo, hi): return lambda a: max(lo, min(hi, a))
S16, U16, S32, U32 = (-0x8000, 0x7fff), (0, 0xffff), (-2**31, 2**31 - 1), (0, 2**32 - 1)


def rtz16(a):
    if math.isnan(a): return 0x7e00
    if math.isinf(a): return b16(a)
    for bits in (b16(a),):
        bits = min(bits & 0x7fff, 0x7bff) | (bits & 0x8000)
        while abs(f16(bits)) > abs(a): bits -= 1
        return bits


# ---- bits ----
def rev(a, n): return int(format(a, "0%db" % n)[::-1], 2)
def clz(n): return lambda a: -1 if a == 0 else n - a.bit_length()
def ctz(a): return -1 if a == 0 else (a & -a).bit_length() - 1
def pop(a): return bin(a).count("1")


def cls(n):
    def g(a):
        a = a if a >= 0 else ~a
        return -1 if a == 0 else n - a.bit_length()
    return g


def bfe(a, at, width, signed, n):
    width = min(width, n)
    if width == 0: return 0
    v = a >> at & ((1 << width) - 1)
    if signed and at + width >= n: return a >> at
    return v - (1 << width) if signed and v >> (width - 1) else v


def perm(a, b, s):
    d, both = 0, a << 32 | b
    for i in range(4):
        k = s >> 8 * i & 255
        d |= (both >> 8 * k & 255 if k < 8 else (255 if both >> (16 * (k - 8) + 15) & 1 else 0) if k < 12
              else 0 if k == 12 else 255) << 8 * i
    return d


def s24(a): return ((a & 0xffffff) ^ 0x800000) - 0x800000
def u24(a): return a & 0xffffff


def fp8(a):
    e, m = a >> 3 & 15, a & 7
    if a & 127 == 127: return NAN
    v = math.ldexp(8 + m, e - 10) if e else math.ldexp(m, -9)
    return -v if a & 128 else v


def bf8(a): return f16((a & 255) << 8)


V = {}  # name -> (argument kinds, result kind, function, ulps allowed, calm input)


def op(names, args, result, function, ulps=0, calm=False):
    for name in names.split(): V[name] = (args.split(), result, function, ulps, calm)


for t, fr in (("f32", 24), ("f16", 11), ("f64", 53)):
    two, three = f"{t} {t}", f"{t} {t} {t}"
    op(f"v_add_{t} s_add_{t}", two, t, add)
    op(f"v_sub_{t} s_sub_{t}", two, t, lambda a, b: add(a, -b))
    op(f"v_subrev_{t}", two, t, lambda a, b: add(b, -a))
    op(f"v_mul_{t} s_mul_{t}", two, t, mul)
    op(f"v_fma_{t} v_fmac_{t} s_fmac_{t} v_fmaak_{t} v_fmamk_{t} s_fmaak_{t} s_fmamk_{t}", three, t, fma)
    op(f"v_min_{t} v_min_num_{t} s_min_{t} s_min_num_{t}", two, t, mn)
    op(f"v_max_{t} v_max_num_{t} s_max_{t} s_max_num_{t}", two, t, mx)
    op(f"v_minimum_{t} s_minimum_{t}", two, t, mnn)
    op(f"v_maximum_{t} s_maximum_{t}", two, t, mxn)
    op(f"v_min3_{t} v_min3_num_{t}", three, t, lambda a, b, c: mn(mn(a, b), c))
    op(f"v_max3_{t} v_max3_num_{t}", three, t, lambda a, b, c: mx(mx(a, b), c))
    op(f"v_med3_{t} v_med3_num_{t}", three, t, med)
    op(f"v_maxmin_{t} v_maxmin_num_{t}", three, t, lambda a, b, c: mn(mx(a, b), c))
    op(f"v_minmax_{t} v_minmax_num_{t}", three, t, lambda a, b, c: mx(mn(a, b), c))
    op(f"v_minimum3_{t}", three, t, lambda a, b, c: mnn(mnn(a, b), c))
    op(f"v_maximum3_{t}", three, t, lambda a, b, c: mxn(mxn(a, b), c))
    op(f"v_maximumminimum_{t}", three, t, lambda a, b, c: mnn(mxn(a, b), c))
    op(f"v_minimummaximum_{t}", three, t, lambda a, b, c: mxn(mnn(a, b), c))
    op(f"v_fract_{t}", t, t, fract(fr))
    op(f"v_trunc_{t} s_trunc_{t}", t, t, keep(math.trunc))
    op(f"v_ceil_{t} s_ceil_{t}", t, t, keep(math.ceil))
    op(f"v_floor_{t} s_floor_{t}", t, t, keep(math.floor))
    op(f"v_rndne_{t} s_rndne_{t}", t, t, keep(round))
    op(f"v_rcp_{t} v_s_rcp_{t}", t, t, rcp)
    op(f"v_sqrt_{t} v_s_sqrt_{t}", t, t, sqrt)
    op(f"v_rsq_{t} v_s_rsq_{t}", t, t, rsq, 1)
    op(f"v_exp_{t} v_s_exp_{t}", t, t, exp, 1)
    op(f"v_log_{t} v_s_log_{t}", t, t, log, 1)
    op(f"v_sin_{t}", t, t, turn(math.sin), 2, True)
    op(f"v_cos_{t}", t, t, turn(math.cos), 2, True)
    op(f"v_frexp_mant_{t}", t, t, mant)
op("v_rcp_iflag_f32", "f32", "f32", rcp)
op("v_mul_dx9_zero_f32", "f32 f32", "f32", lambda a, b: 0.0 if a == 0 or b == 0 else mul(a, b))
op("v_fma_dx9_zero_f32 v_fmac_dx9_zero_f32", "f32 f32 f32", "f32",
   lambda a, b, c: add(0.0, c) if a == 0 or b == 0 else fma(a, b, c))
op("v_frexp_exp_i32_f32", "f32", "i32", expo)
op("v_frexp_exp_i32_f64", "f64", "i32", expo)
op("v_frexp_exp_i16_f16", "f16", "i16", expo)
op("v_ldexp_f32", "f32 i32", "f32", ldexp)
op("v_ldexp_f64", "f64 i32", "f64", ldexp)
op("v_ldexp_f16", "f16 i16", "f16", ldexp)
for t in ("f32", "f16", "f64"):  # quotient, denominator, numerator; ordinary values pass through
    op(f"v_div_fixup_{t}", f"{t} {t} {t}", t,
       lambda q, d, n: math.copysign(abs(q), math.copysign(1, d) * math.copysign(1, n)), 0, True)
    op(f"v_div_fmas_{t}", f"{t} {t} {t}", t, fma, 0, True)

op("v_mov_b32 s_mov_b32", "u32", "u32", lambda a: a)
op("v_mov_b64", "u64", "u64", lambda a: a)
op("s_mov_b64", "u64", "u64", lambda a: a)
op("v_not_b32 s_not_b32", "u32", "u32", lambda a: ~a)
op("s_not_b64", "u64", "u64", lambda a: ~a)
op("v_not_b16", "u16", "u16", lambda a: ~a)
op("v_bfrev_b32 s_brev_b32", "u32", "u32", lambda a: rev(a, 32))
op("s_brev_b64", "u64", "u64", lambda a: rev(a, 64))
op("v_clz_i32_u32 s_clz_i32_u32", "u32", "i32", clz(32))
op("s_clz_i32_u64", "u64", "i32", clz(64))
op("v_ctz_i32_b32 s_ctz_i32_b32", "u32", "i32", ctz)
op("s_ctz_i32_b64", "u64", "i32", ctz)
op("v_cls_i32 s_cls_i32", "i32", "i32", cls(32))
op("s_cls_i32_i64", "i64", "i32", cls(64))
op("v_sat_pk_u8_i16", "u32", "u16",
   lambda a: clamp(0, 255)(i16(a)) | clamp(0, 255)(i16(a >> 16)) << 8)
W16, W32 = (lambda v: v), (lambda v: v)
for t, n in (("u32", 32), ("i32", 32), ("u16", 16), ("i16", 16)):
    two, three = f"{t} {t}", f"{t} {t} {t}"
    op(f"v_add_nc_{t}", two, t, lambda a, b: a + b)
    op(f"v_sub_nc_{t}", two, t, lambda a, b: a - b)
    op(f"v_subrev_nc_{t}", two, t, lambda a, b: b - a)
    op(f"v_min_{t} s_min_{t}", two, t, min)
    op(f"v_max_{t} s_max_{t}", two, t, max)
    op(f"v_min3_{t}", three, t, min)
    op(f"v_max3_{t}", three, t, max)
    op(f"v_med3_{t}", three, t, lambda a, b, c: sorted((a, b, c))[1])
    op(f"v_maxmin_{t}", three, t, lambda a, b, c: min(max(a, b), c))
    op(f"v_minmax_{t}", three, t, lambda a, b, c: max(min(a, b), c))
    op(f"v_mad_{t}", three, t, lambda a, b, c: a * b + c)
op("v_mul_lo_u16", "u16 u16", "u16", lambda a, b: a * b)
op("v_mad_u32_u16", "u16 u16 u32", "u32", lambda a, b, c: a * b + c)
op("v_mad_i32_i16", "i16 i16 i32", "i32", lambda a, b, c: a * b + c)
op("v_mul_i32_i24", "u32 u32", "u32", lambda a, b: s24(a) * s24(b))
op("v_mul_hi_i32_i24", "u32 u32", "u32", lambda a, b: s24(a) * s24(b) >> 32)
op("v_mul_u32_u24", "u32 u32", "u32", lambda a, b: u24(a) * u24(b))
op("v_mul_hi_u32_u24", "u32 u32", "u32", lambda a, b: u24(a) * u24(b) >> 32)
op("v_mad_i32_i24", "u32 u32 u32", "u32", lambda a, b, c: s24(a) * s24(b) + c)
op("v_mad_u32_u24", "u32 u32 u32", "u32", lambda a, b, c: u24(a) * u24(b) + c)
op("v_mul_lo_u32 s_mul_i32", "u32 u32", "u32", lambda a, b: a * b)
op("v_mul_hi_u32 s_mul_hi_u32", "u32 u32", "u32", lambda a, b: a * b >> 32)
op("v_mul_hi_i32 s_mul_hi_i32", "i32 i32", "i32", lambda a, b: a * b >> 32)
op("v_mad_u64_u32 v_mad_co_u64_u32", "u32 u32 u64", "u64", lambda a, b, c: a * b + c)
op("v_mad_i64_i32 v_mad_co_i64_i32", "i32 i32 i64", "i64", lambda a, b, c: a * b + c)
for n, t in ((32, "u32"), (64, "u64"), (16, "u16")):
    u, s = f"b{n}", "i" + t[1:]
    m = n - 1
    op(f"v_lshlrev_b{n}", f"{'u16' if n == 16 else 'u32'} {t}", t, lambda a, b, m=m: b << (a & m))
    op(f"v_lshrrev_b{n}", f"{'u16' if n == 16 else 'u32'} {t}", t, lambda a, b, m=m: b >> (a & m))
    op(f"v_ashrrev_i{n}", f"{'u16' if n == 16 else 'u32'} {s}", s, lambda a, b, m=m: b >> (a & m))
    op(f"s_lshl_b{n}", f"{t} u32", t, lambda a, b, m=m: a << (b & m))
    op(f"s_lshr_b{n}", f"{t} u32", t, lambda a, b, m=m: a >> (b & m))
    op(f"s_ashr_i{n}", f"{s} u32", s, lambda a, b, m=m: a >> (b & m))
    op(f"v_and_b{n} s_and_b{n}", f"{t} {t}", t, lambda a, b: a & b)
    op(f"v_or_b{n} s_or_b{n}", f"{t} {t}", t, lambda a, b: a | b)
    op(f"v_xor_b{n} s_xor_b{n}", f"{t} {t}", t, lambda a, b: a ^ b)
    op(f"v_xnor_b{n} s_xnor_b{n}", f"{t} {t}", t, lambda a, b: ~(a ^ b))
    op(f"s_nand_b{n}", f"{t} {t}", t, lambda a, b: ~(a & b))
    op(f"s_nor_b{n}", f"{t} {t}", t, lambda a, b: ~(a | b))
    op(f"s_and_not1_b{n}", f"{t} {t}", t, lambda a, b: a & ~b)
    op(f"s_or_not1_b{n}", f"{t} {t}", t, lambda a, b: a | ~b)
    if n == 16: continue
    op(f"s_bfe_u{n}", f"u{n} u32", t, lambda a, b, n=n: bfe(a, b & (n - 1), b >> 16 & 127, False, n))
    op(f"s_bfe_i{n}", f"i{n} u32", t, lambda a, b, n=n: bfe(a, b & (n - 1), b >> 16 & 127, True, n))
    op(f"s_bfm_b{n}", "u32 u32", t, lambda a, b, n=n: ((1 << (a & (n - 1))) - 1) << (b & (n - 1)))
    op(f"s_bcnt0_i32_b{n}", t, "u32", lambda a, n=n: n - pop(a))
    op(f"s_bcnt1_i32_b{n}", t, "u32", pop)
    op(f"s_quadmask_b{n}", t, t, lambda a, n=n: sum(1 << i for i in range(n // 4) if a >> 4 * i & 15))
    op(f"s_wqm_b{n}", t, t, lambda a, n=n: sum(15 << 4 * i for i in range(n // 4) if a >> 4 * i & 15))
op("v_bfe_u32", "u32 u32 u32", "u32", lambda a, b, c: bfe(a, b & 31, c & 31, False, 32))
op("v_bfe_i32", "i32 u32 u32", "u32", lambda a, b, c: bfe(a, b & 31, c & 31, True, 32))
op("v_bfi_b32", "u32 u32 u32", "u32", lambda a, b, c: (a & b) | (~a & c))
op("v_bfm_b32", "u32 u32", "u32", lambda a, b: ((1 << (a & 31)) - 1) << (b & 31))
op("v_bcnt_u32_b32", "u32 u32", "u32", lambda a, b: pop(a) + b)
op("v_alignbit_b32", "u32 u32 u32", "u32", lambda a, b, c: (a << 32 | b) >> (c & 31))
op("v_alignbyte_b32", "u32 u32 u32", "u32", lambda a, b, c: (a << 32 | b) >> 8 * (c & 3))
op("v_xor3_b32", "u32 u32 u32", "u32", lambda a, b, c: a ^ b ^ c)
op("v_or3_b32", "u32 u32 u32", "u32", lambda a, b, c: a | b | c)
op("v_and_or_b32", "u32 u32 u32", "u32", lambda a, b, c: (a & b) | c)
op("v_xad_u32", "u32 u32 u32", "u32", lambda a, b, c: (a ^ b) + c)
op("v_lshl_add_u32", "u32 u32 u32", "u32", lambda a, b, c: (a << (b & 31)) + c)
op("v_lshl_add_u64", "u64 u32 u64", "u64", lambda a, b, c: (a << (b & 7)) + c)
op("v_add_lshl_u32", "u32 u32 u32", "u32", lambda a, b, c: (a + b & M32) << (c & 31))
op("v_lshl_or_b32", "u32 u32 u32", "u32", lambda a, b, c: (a << (b & 31) & M32) | c)
op("v_add3_u32", "u32 u32 u32", "u32", lambda a, b, c: a + b + c)
op("v_perm_b32", "u32 u32 u32", "u32", perm)
def bytes_of(a): return [a >> 8 * i & 255 for i in range(4)]
def sad(a, b, masked=False): return sum(abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b)) if y or not masked)
def quad(a, b, c, width, masked):
    return sum(((sad(a >> 8 * i & M32, b, masked) + (c >> width * i)) & ((1 << width) - 1)) << width * i for i in range(4))
op("v_sad_u8", "u32 u32 u32", "u32", lambda a, b, c: sad(a, b) + c)
op("v_sad_hi_u8", "u32 u32 u32", "u32", lambda a, b, c: (sad(a, b) << 16) + c)
op("v_sad_u16", "u32 u32 u32", "u32", lambda a, b, c: abs((a & 0xffff) - (b & 0xffff)) + abs((a >> 16) - (b >> 16)) + c)
op("v_sad_u32", "u32 u32 u32", "u32", lambda a, b, c: abs(a - b) + c)
op("v_msad_u8", "u32 u32 u32", "u32", lambda a, b, c: sad(a, b, True) + c)
op("v_qsad_pk_u16_u8", "u64 u32 u64", "u64", lambda a, b, c: quad(a, b, c, 16, False))
op("v_mqsad_pk_u16_u8", "u64 u32 u64", "u64", lambda a, b, c: quad(a, b, c, 16, True))
op("v_lerp_u8", "u32 u32 u32", "u32",
   lambda a, b, c: sum((x + y + (z & 1) >> 1) << 8 * i for i, (x, y, z) in enumerate(zip(bytes_of(a), bytes_of(b), bytes_of(c)))))
for n, t in ((32, "u32"), (64, "u64")):
    op(f"s_ff0_i32_b{n}", t, "u32", lambda a, n=n: ctz(~a & ((1 << n) - 1)))
op("v_trig_preop_f64", "f64 u32", "f64", lambda a, b: 0.0, 0, True)
del V["v_trig_preop_f64"]

op("v_cvt_i32_f64", "f64", "i32", sat(*S32))
op("v_cvt_u32_f64", "f64", "u32", sat(*U32))
op("v_cvt_i32_f32 s_cvt_i32_f32", "f32", "i32", sat(*S32))
op("v_cvt_u32_f32 s_cvt_u32_f32", "f32", "u32", sat(*U32))
op("v_cvt_i16_f16", "f16", "i16", sat(*S16))
op("v_cvt_u16_f16", "f16", "u16", sat(*U16))
op("v_cvt_nearest_i32_f32", "f32", "i32", lambda a: sat(*S32)(a if special(a) else math.floor(Fraction(a) + Fraction(1, 2))))
op("v_cvt_floor_i32_f32", "f32", "i32", lambda a: sat(*S32)(a if special(a) else math.floor(a)))
op("v_cvt_f64_i32", "i32", "f64", Fraction)
op("v_cvt_f64_u32", "u32", "f64", Fraction)
op("v_cvt_f32_i32 s_cvt_f32_i32", "i32", "f32", Fraction)
op("v_cvt_f32_u32 s_cvt_f32_u32", "u32", "f32", Fraction)
op("v_cvt_f16_i16", "i16", "f16", Fraction)
op("v_cvt_f16_u16", "u16", "f16", Fraction)
op("v_cvt_off_f32_i4", "u32", "f32", lambda a: Fraction(((a & 15) ^ 8) - 8, 16))
for i in range(4): op(f"v_cvt_f32_ubyte{i}", "u32", "f32", lambda a, i=i: Fraction(a >> 8 * i & 255))
op("v_cvt_f16_f32 s_cvt_f16_f32", "f32", "f16", lambda a: a)
op("v_cvt_f32_f16 s_cvt_f32_f16", "f16", "f32", lambda a: a)
op("s_cvt_hi_f32_f16", "u32", "f32", lambda a: f16(a >> 16))
op("v_cvt_f32_f64", "f64", "f32", lambda a: a)
op("v_cvt_f64_f32", "f32", "f64", lambda a: a)
op("v_cvt_i32_i16", "i16", "i32", lambda a: a)
op("v_cvt_u32_u16", "u16", "u32", lambda a: a)
op("v_cvt_norm_i16_f16", "f16", "i16", norm(32767, -1.0))
op("v_cvt_norm_u16_f16", "f16", "u16", norm(65535, 0.0))
op("v_cvt_pk_rtz_f16_f32 s_cvt_pk_rtz_f16_f32", "f32 f32", "u32", lambda a, b: rtz16(a) | rtz16(b) << 16, 0, True)
op("v_cvt_pk_u8_f32", "f32 u32 u32", "u32",
   lambda a, b, c: c & ~(255 << 8 * (b & 3)) | max(0, min(255, round(a))) << 8 * (b & 3), 0, True)
for t, lim, k in (("i16", S16, 32767), ("u16", U16, 65535)):
    lo = -1.0 if t == "i16" else 0.0
    def pair(f): return lambda a, b: (f(a) & 0xffff) | (f(b) & 0xffff) << 16
    op(f"v_cvt_pk_{t}_f32", "f32 f32", "u32", pair(sat(*lim)))
    op(f"v_cvt_pk_norm_{t}_f32", "f32 f32", "u32", pair(norm(k, lo)))
    op(f"v_cvt_pk_norm_{t}_f16", "f16 f16", "u32", pair(norm(k, lo)))
    wide = t[0] + "32"
    op(f"v_cvt_pk_{t}_{wide}", f"{wide} {wide}", "u32", pair(clamp(*lim)))
op("v_pack_b32_f16", "u16 u16", "u32", lambda a, b: a | b << 16)
op("v_cvt_f32_fp8", "u32", "f32", lambda a: fp8(a & 255))
op("v_cvt_f32_bf8", "u32", "f32", lambda a: bf8(a))
def two32(x, y): return ((b32(y) if b32(y) != "nan" else 0x7fc00000) << 32 | (b32(x) if b32(x) != "nan" else 0x7fc00000))
op("v_cvt_pk_f32_fp8", "u16", "u64", lambda a: two32(fp8(a & 0x77), fp8(a >> 8 & 0x77)))
op("v_cvt_pk_f32_bf8", "u16", "u64", lambda a: two32(bf8(a & 0x7b), bf8(a >> 8 & 0x7b)))
del V["v_cvt_pk_f32_fp8"], V["v_cvt_pk_f32_bf8"]


def near(decode, values, a):
    """The code whose value is nearest, even code on a tie, saturating."""
    best = min((abs(Fraction(decode(c)) - Fraction(abs(a))), c & 1, c) for c in values)
    return best[2] | (128 if math.copysign(1, a) < 0 else 0)


op("v_cvt_pk_fp8_f32", "f32 f32", "u16", lambda a, b: near(fp8, range(127), a) | near(fp8, range(127), b) << 8, 0, True)
op("v_cvt_pk_bf8_f32", "f32 f32", "u16", lambda a, b: near(bf8, range(124), a) | near(bf8, range(124), b) << 8, 0, True)


# ---- packed and dot ----
def halves(f, read, write):
    return lambda *x: sum((write(f(*(read(v >> s) for v in x))) & 0xffff) << s for s in (0, 16))


def pk16(name, f, n=2): op(name, " ".join(["h2"] * n), "u32", halves(f, lambda a: f16(a), lambda v: 0x7e00 if b16(v) == "nan" else b16(v)), 0, True)


pk16("v_pk_add_f16", add), pk16("v_pk_mul_f16", mul), pk16("v_pk_fma_f16 v_pk_fmac_f16", fma, 3)
pk16("v_pk_min_f16 v_pk_min_num_f16", mn), pk16("v_pk_max_f16 v_pk_max_num_f16", mx)
pk16("v_pk_minimum_f16", mnn), pk16("v_pk_maximum_f16", mxn)
for t in ("i16", "u16"):
    r = READ[t]
    for name, f in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("min", min), ("max", max)):
        op(f"v_pk_{name}_{t}", "u32 u32", "u32", halves(f, r, lambda v: v))
    op(f"v_pk_mad_{t}", "u32 u32 u32", "u32", halves(lambda a, b, c: a * b + c, r, lambda v: v))
op("v_pk_mul_lo_u16", "u32 u32", "u32", halves(lambda a, b: a * b, READ["u16"], lambda v: v))
op("v_pk_lshlrev_b16", "u32 u32", "u32", halves(lambda a, b: b << (a & 15), READ["u16"], lambda v: v))
op("v_pk_lshrrev_b16", "u32 u32", "u32", halves(lambda a, b: b >> (a & 15), READ["u16"], lambda v: v))
op("v_pk_ashrrev_i16", "u32 u32", "u32", halves(lambda a, b: b >> (a & 15), READ["i16"], lambda v: v))


def dot(read, n, width):
    return lambda a, b, c: sum(Fraction(read(a >> width * i)) * Fraction(read(b >> width * i)) for i in range(n)) + c


def elem(width, signed=False):
    def g(a):
        a &= (1 << width) - 1
        return a - (1 << width) if signed and a >> (width - 1) else a
    return g


op("v_dot4_u32_u8", "u32 u32 u32", "u32", dot(elem(8), 4, 8))
op("v_dot8_u32_u4", "u32 u32 u32", "u32", dot(elem(4), 8, 4))
op("v_dot4_i32_iu8", "u32 u32 i32", "u32", dot(elem(8, True), 4, 8))
op("v_dot4_i32_i8 v_dot4c_i32_i8", "u32 u32 i32", "u32", dot(elem(8, True), 4, 8))
op("v_dot8_i32_i4", "u32 u32 i32", "u32", dot(elem(4, True), 8, 4))
op("v_dot2_i32_i16", "u32 u32 i32", "u32", dot(elem(16, True), 2, 16))
op("v_dot2_u32_u16", "u32 u32 u32", "u32", dot(elem(16, False), 2, 16))
op("v_dot8_i32_iu4", "u32 u32 i32", "u32", dot(elem(4, True), 8, 4))
calm16 = lambda a: f16(a & 0xbbff)  # exponent below the top: finite and small
SAFE = 0x3bff3bff


def safe(f): return lambda a, b, c: f(a & SAFE, b & SAFE, c)


op("s_absdiff_i32", "i32 i32", "u32", lambda a, b: abs(i32((a - b) & M32)))
op("s_abs_i32", "i32", "u32", abs)
op("s_sext_i32_i8", "u32", "i32", lambda a: ((a & 255) ^ 128) - 128)
op("s_sext_i32_i16", "u32", "i32", i16)
op("s_bitreplicate_b64_b32", "u32", "u64", lambda a: sum((a >> i & 1) * 3 << 2 * i for i in range(32)))
for k in range(1, 5): op(f"s_lshl{k}_add_u32", "u32 u32", "u32", lambda a, b, k=k: (a << k) + b)
op("s_add_u32 s_add_co_u32 s_add_i32 s_add_co_i32", "u32 u32", "u32", lambda a, b: a + b)
op("s_sub_u32 s_sub_co_u32 s_sub_i32 s_sub_co_i32", "u32 u32", "u32", lambda a, b: a - b)
op("s_addc_u32 s_add_co_ci_u32", "u32 u32", "u32", lambda a, b: a + b + 1)  # SCC is 1 before
op("s_subb_u32 s_sub_co_ci_u32", "u32 u32", "u32", lambda a, b: a - b - 1)
op("s_cselect_b32", "u32 u32", "u32", lambda a, b: a)
op("s_cselect_b64", "u64 u64", "u64", lambda a, b: a)
op("s_cmov_b32", "u32", "u32", lambda a: a)
op("s_cmov_b64", "u64", "u64", lambda a: a)
op("s_pack_ll_b32_b16", "u32 u32", "u32", lambda a, b: (a & 0xffff) | b << 16)
op("s_pack_lh_b32_b16", "u32 u32", "u32", lambda a, b: (a & 0xffff) | (b & 0xffff0000))
op("s_pack_hh_b32_b16", "u32 u32", "u32", lambda a, b: a >> 16 | (b & 0xffff0000))
op("s_pack_hl_b32_b16", "u32 u32", "u32", lambda a, b: a >> 16 | b << 16)
op("s_add_nc_u64", "u64 u64", "u64", lambda a, b: a + b)
op("s_sub_nc_u64", "u64 u64", "u64", lambda a, b: a - b)
op("s_mul_u64", "u64 u64", "u64", lambda a, b: a * b)
OLD = {}  # the destination's old value is the last argument
for n, t in ((32, "u32"), (64, "u64")):
    OLD[f"s_bitset0_b{n}"] = ("u32", t, lambda a, d, n=n: d & ~(1 << (a & (n - 1))))
    OLD[f"s_bitset1_b{n}"] = ("u32", t, lambda a, d, n=n: d | 1 << (a & (n - 1)))
OLD["s_mulk_i32"] = ("", "i32", lambda d: d * -1234)
OLD["s_addk_i32"] = OLD["s_addk_co_i32"] = ("", "i32", lambda d: d - 1234)
OLD["s_movk_i32"] = OLD["s_cmovk_i32"] = ("", "i32", lambda d: -1234)

# SCC after scalar operations, of (result, a, b); others leave it as it was (1).
def nonzero(r, a, b): return r != 0
SCC = {}
for n in ("b32", "b64"):
    for o in "and or xor nand nor xnor and_not1 or_not1 not quadmask wqm lshl lshr".split(): SCC[f"s_{o}_{n}"] = nonzero
for name in ("s_ashr_i32 s_ashr_i64 s_bfe_u32 s_bfe_i32 s_bfe_u64 s_bfe_i64 s_absdiff_i32 s_abs_i32 s_bcnt0_i32_b32 "
             "s_bcnt0_i32_b64 s_bcnt1_i32_b32 s_bcnt1_i32_b64").split(): SCC[name] = nonzero
for name in ("s_add_u32", "s_add_co_u32"): SCC[name] = lambda r, a, b: a + b > M32
for name in ("s_addc_u32", "s_add_co_ci_u32"): SCC[name] = lambda r, a, b: a + b + 1 > M32
for name in ("s_sub_u32", "s_sub_co_u32"): SCC[name] = lambda r, a, b: a < b
for name in ("s_subb_u32", "s_sub_co_ci_u32"): SCC[name] = lambda r, a, b: a < b + 1
for name in ("s_add_i32", "s_add_co_i32"): SCC[name] = lambda r, a, b: not -2**31 <= i32(a) + i32(b) < 2**31
for name in ("s_sub_i32", "s_sub_co_i32"): SCC[name] = lambda r, a, b: not -2**31 <= i32(a) - i32(b) < 2**31
for name in ("s_addk_i32", "s_addk_co_i32"): SCC[name] = lambda r, a, b: not -2**31 <= i32(a) - 1234 < 2**31
for k in range(1, 5): SCC[f"s_lshl{k}_add_u32"] = lambda r, a, b, k=k: (a << k) + b > M32
SCC["s_min_i32"] = lambda r, a, b: i32(a) < i32(b)
SCC["s_max_i32"] = lambda r, a, b: i32(a) > i32(b)
SCC["s_min_u32"] = lambda r, a, b: a < b
SCC["s_max_u32"] = lambda r, a, b: a > b

FLAG = {"f": lambda a, b: False, "t": lambda a, b: True, "lt": lambda a, b: a < b, "eq": lambda a, b: a == b,
        "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "lg": lambda a, b: a < b or a > b,
        "ne": lambda a, b: a != b, "ge": lambda a, b: a >= b, "o": lambda a, b: a == a and b == b,
        "u": lambda a, b: a != a or b != b, "nge": lambda a, b: not a >= b, "nlg": lambda a, b: not (a < b or a > b),
        "ngt": lambda a, b: not a > b, "nle": lambda a, b: not a <= b, "neq": lambda a, b: not a == b,
        "nlt": lambda a, b: not a < b}


def class_of(v, bits, t):
    neg = math.copysign(1, v) < 0
    man, lo = {"f32": (23, 2.0**-126), "f64": (52, 2.0**-1022), "f16": (10, 2.0**-14)}[t]
    if math.isnan(v): return 1 if bits >> (man - 1) & 1 else 0
    if math.isinf(v): return 2 if neg else 9
    if v == 0: return 5 if neg else 6
    if abs(v) < lo: return 4 if neg else 7
    return 3 if neg else 8


# ---- emission ----
def reg(kind, base, width):
    n = {"1": 1, "h": 1, "i": 1, "2": 2, "3": 3, "4": 4}[width]
    return f"{kind}{base}" if n == 1 else f"{kind}[{base}:{base + n - 1}]"


ROW = re.compile(r'\{Format::k(\w+), (0x\w+), (\d+), "([^"]*)", "([^"]*)", "([^"]*)"(?:, "([^"]*)")?\}')
lines = []  # (chip bit, assembly, case dict)


def case(bits, text, **fields): lines.append((next(b for b in (1, 4, 2, 8, 16) if bits & b), text, fields))


def vector_case(fmt, bits, name, operands, mods):
    args, result, function, ulps, calm = V[name]
    literal = None
    count = 6
    tests = []
    for _ in range(count):
        x = [sample(k, calm) for k in args]
        while len(x) < 3: x.append(random.getrandbits(64))
        tests.append(x)
    dst = reg("v" if operands[0] in "vl" else "s", 8, operands[1])
    src = [f"v{2 + 2 * i}" if w in "1hi" else reg("v", 2 + 2 * i, w)
           for i, w in enumerate(operands[3::2]) if operands[2 + 2 * i] != "-"]
    if name.startswith("v_s_"): src = ["s2"]
    suffix = {"Vop1": "_e32", "Vop2": "_e32", "Vop3": "_e64", "Vop3P": ""}[fmt]
    fused = "fmac" in name or "dot4c" in name
    if "fmaak" in name or "fmamk" in name:
        at = 2 if "fmaak" in name else 1
        literal = 0x3e99999a if "f32" in name else 0x34cd
        for x in tests: x[2], x[1] = (literal, x[1]) if at == 2 else (x[1], literal)
        src.insert(at, hex(literal))
    if fmt == "Vop3" and mods.startswith("SSSS"): dst += ", s24"
    if fmt in ("Vop2",) and name in ("v_cndmask_b32",): src.append("vcc_lo")
    if "dot4c" in name: suffix = ""
    text = name + suffix + " " + ", ".join([dst] + src)
    if name in ("v_dot4_i32_iu8", "v_dot8_i32_iu4"): text += " neg_lo:[1,1,0]"
    out, masks = [], 0
    for lane, x in enumerate(tests):
        values = [READ[k](v) for k, v in zip(args, x)]
        r = function(*values)
        bits_out = WRITE[result](r)
        if "mad_u64" in name or "mad_co_u64" in name: masks |= (r >> 64 != 0) << lane
        if "mad_i64" in name or "mad_co_i64" in name: masks |= (not -2**63 <= r < 2**63) << lane
        out.append(bits_out)
    # As operands lie: fmac's third is the destination; literals are no registers.
    ins = []
    for x in tests:
        a, b, c, d = x[0], x[1], x[2], 0x1122334455667788
        if fused: d, c = c, 0
        if "fmaak" in name: c = 0
        if "fmamk" in name: b, c = x[2], 0
        ins.append((a, b, c, d))
    case(bits, text, kind="S" if name.startswith("v_s_") else "V", result=result, ulps=ulps, ins=ins, out=out, mask=masks,
         check_mask="mad_u64" in name or "mad_co_u64" in name or "mad_i64" in name or "mad_co_i64" in name, scc=1)


def scalar_case(fmt, bits, name, operands, mods):
    ulps = 0
    if name in OLD:
        args, result, function = OLD[name]
        args = args.split() + [result]
        calm = False
    else: args, result, function, ulps, calm = V[name]
    fused = "fmac" in name
    for _ in range(4):
        x = [sample(k, calm) for k in args]
        values = [READ[k](v) for k, v in zip(args, x)]
        out = WRITE[result](function(*values))
        regs = [reg("s", 8, operands[1])]
        for i in range(2):
            if len(operands) > 3 + 2 * i and operands[2 + 2 * i] != "-": regs.append(reg("s", 2 + 2 * i, operands[3 + 2 * i]))
        a, b, d = x[0], (x[1] if len(x) > 1 else 0), 0x1122334455667788
        if name in OLD: d, a = x[-1], (x[0] if len(x) > 1 else 0)
        if fused: d = x[2]
        if "fmaak" in name: x[2] = 0x3e99999a; regs.append("0x3e99999a")
        if "fmamk" in name: b = x[2]; x[1] = 0x3e99999a; regs.insert(2, "0x3e99999a")
        if "fmaak" in name or "fmamk" in name: out = WRITE[result](function(*[READ[k](v) for k, v in zip(args, x)]))
        if fmt == "Sopk": regs.append("0xfb2e")
        scc = 1
        if name in SCC:
            scc = int(SCC[name](out, *((x + [0])[:2] if len(x) < 2 else [v & M32 if "u32" in args or "i32" in args else v for v in x[:2]])))
        case(bits, name + " " + ", ".join(regs), kind="S", result=result, ulps=ulps, ins=[(a, b, 0, d)], out=[out], mask=0,
             check_mask=False, scc=scc)


def compare_case(fmt, bits, name, operands):
    scalar = name.startswith("s_")
    core = re.sub(r"^(s_cmpk?_|v_cmpx?_)", "", name)
    rel, t = core.rsplit("_", 1)
    for _ in range(3 if scalar else 1):
        tests = []
        for _ in range(6):
            a = sample(t, False)
            b = random.choice([a, sample(t, False), sample(t, False)])
            if rel == "class": b = random.getrandbits(10)
            if name.startswith("s_cmpk"): b = 0xfb2e if t == "u32" else -1234 & M32; a = random.choice([a, b])
            tests.append((a, b, 0, 0))
        mask = 0
        for lane, (a, b, _, _) in enumerate(tests):
            va = READ[t](a)
            hit = b >> class_of(va, a, t) & 1 if rel == "class" else FLAG[rel](va, READ[t](b))
            mask |= bool(hit) << lane
        if scalar:
            w = "2" if t in ("u64", "i64") else "1"
            text = f"{name} {reg('s', 2, w)}, " + ("0xfb2e" if name.startswith("s_cmpk") else reg("s", 4, w))
            case(bits, text, kind="S", result="u32", ulps=0, ins=[(tests[0][0], tests[0][1], 0, 5)], out=[5], mask=0, check_mask=False, scc=mask & 1)
            continue
        w = "2" if t in ("f64", "u64", "i64") else "1"
        regs = [reg("v", 2, w), "v4" if rel == "class" else reg("v", 4, w)]
        x = name.startswith("v_cmpx")
        if fmt == "Vop3": text = name + "_e64 " + ", ".join(([] if x else ["s24"]) + regs)
        else: text = name + "_e32 " + ", ".join(([] if x else ["vcc_lo"]) + regs)
        where = "E" if x else "M" if fmt == "Vop3" else "C"
        case(bits, text, kind=where, result="u32", ulps=0, ins=tests, out=[], mask=mask, check_mask=True, scc=1)


def main():
    seen = set()
    for line in [*open(sys.argv[1]), *open(sys.argv[2]), *open(sys.argv[3])]:
        if "Format::kMai" in line: continue
        fmt, code, chips, own, operands, mods, same = ROW.match(line.strip()).groups()
        name, bits = same or own, int(chips)
        before = len(lines)
        if fmt in ("Vop1", "Vop2", "Vop3", "Vop3P") and name in V: vector_case(fmt, bits, name, operands, mods)
        elif fmt in ("Sop1", "Sop2", "Sopk") and (name in V or name in OLD): scalar_case(fmt, bits, name, operands, mods)
        elif name.startswith(("v_cmp_", "v_cmpx_")) or (name.startswith("s_cmp")): compare_case(fmt, bits, name, operands)
        else: seen.add(name)
        for i in range(before, len(lines)):  # RDNA2's and CDNA3's name of what RDNA3 calls `name`
            text = lines[i][1].replace(name, own, 1)
            if bits == 16: text = re.sub(r"\bs24\b", "s[24:25]", text).replace("vcc_lo", "vcc")
            # CDNA's v_cmpx writes a mask besides EXEC.
            if bits == 16: text = re.sub(r"^(v_cmpx\S*) ", lambda m: m[0] + ("vcc, " if m[1].endswith("_e32") else "s[24:25], "), text)
            lines[i] = (lines[i][0], text, lines[i][2])
    for chip in CHIP:
        mine = [l for l in lines if l[0] == chip]
        if not mine: continue
        p = subprocess.run(["llvm-mc-19", "--triple=amdgcn-amd-amdhsa", "--mcpu=" + CHIP[chip], "--show-encoding"],
                           input="\n".join(l[1] for l in mine) + "\n", capture_output=True, text=True)
        if p.returncode: sys.stderr.write(p.stderr[:3000]); sys.exit(1)
        codes = re.findall(r"encoding: \[([^\]]*)\]", p.stdout)
        assert len(codes) == len(mine), (len(codes), len(mine))
        for (_, text, f), code in zip(mine, codes):
            raw = [int(x, 16) for x in code.split(",")]
            words = [sum(raw[i + k] << 8 * k for k in range(4)) for i in range(0, len(raw), 4)]
            out = ", ".join("kAnyNan" if v == "nan" else f"{v:#x}" for v in f["out"])
            ins = ", ".join("{" + ", ".join(f"{v:#x}" for v in x) + "}" for x in f["ins"])
            print(f'{{Isa::k{ISA[chip]}, "{text}", {{{", ".join(f"{w:#010x}" for w in words)}}}, '
                  f"'{f['kind']}', {f['ulps']}, '{f['result'][0]}', {f['result'].lstrip('bufi')}, {len(f['ins'])}, {{{ins}}}, {{{out}}}, {f['mask']:#x}, "
                  f'{"true" if f["check_mask"] else "false"}, {"true" if f["scc"] else "false"}}},')
    sys.stderr.write(" ".join(sorted(n for n in seen if not n.startswith(("ds_", "global_", "flat_", "scratch_", "buffer_")))) + "\n")


main()
