#!/usr/bin/env python3
"""Steps of random tensor programs judged by NumPy and PyTorch, for tests/unit/tensor/steps_oracle_test.cpp.

usage: random_steps.py FILE [--show N] [--rows]

FILE holds one JSON object a line: `text`, a row of tests/unit/tensor/program_ops.cpp (C++ over the public API), its
operands (`dtype`, `shape`, `bytes` in hexadecimal; floats as float64), its numbers, and `result`, what the reference
device gives in float64. The text is rewritten as Python and evaluated over NumPy arrays: integers by NumPy at their
own dtypes, floats by PyTorch in float64. What differs is printed, one line a step; the last line counts. Exit code: 0
nothing differs, 1 something does or more than 2 % could not be judged, 77 PyTorch is missing. `--rows` prints how often each row was judged.
"""
import collections
import json
import re
import sys

import numpy as np

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

torch.set_num_threads(1)
NUMPY = {"float16": np.float16, "float32": np.float32, "float64": np.float64, "int8": np.int8, "int16": np.int16, "int32": np.int32,
         "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "bool": np.bool_}
NAMES = {"kF16": "float16", "kBF16": "bfloat16", "kF32": "float32", "kF64": "float64", "kI8": "int8", "kI16": "int16", "kI32": "int32",
         "kI64": "int64", "kU8": "uint8", "kU16": "uint16", "kU32": "uint32", "kU64": "uint64", "kBool": "bool"}


def brain(v):
    """float64 rounded to bfloat16, to nearest, ties to even."""
    mantissa, exponent = np.frexp(np.asarray(v, np.float64))
    return np.ldexp(np.round(mantissa * 256), exponent - 8).astype(np.float32)


def is_float(a):
    return a.dtype.kind == "f"


def tt(a):
    """As a tensor of PyTorch: floats in float64, integers in int64 (of uint64 the same bits)."""
    a = np.array(a, order="C", copy=True)
    if is_float(a):
        return torch.from_numpy(a.astype(np.float64))
    return torch.from_numpy(a if a.dtype == np.bool_ else a.astype(np.int64))


class Size(int):
    def constant(self):
        return int(self)


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


class List(list):
    def back(self):
        return self[-1]


class Device:
    def name(self):
        return ""


class Slice:
    def __init__(self, begin=None, end=None, step=1):
        self.value = slice(begin, end, step)


class DType:
    pass


for _key, _name in NAMES.items():
    setattr(DType, _key, _name)


def many(v, n):
    v = [int(e) for e in v]
    return v * n if len(v) == 1 else v


def raw(v):
    return v.a if isinstance(v, T) else v


def common(a, b):
    """Operands of one dtype; numbers take the array's."""
    a, b = raw(a), raw(b)
    if isinstance(b, np.ndarray) and isinstance(a, np.ndarray) and a.dtype != b.dtype and not is_float(a) and not is_float(b):
        wide = np.promote_types(a.dtype, b.dtype)
        wide = np.int64 if wide.kind == "f" else wide
        return a.astype(wide), b.astype(wide)
    if not isinstance(b, np.ndarray) and not (is_float(a) or isinstance(b, float)):
        return a, np.array(b).astype(a.dtype)
    return a, b


class T:
    """An array with the methods of Bellmetal's Tensor."""

    def __init__(self, a):
        self.a = a.numpy() if isinstance(a, torch.Tensor) else np.asarray(a)

    def like(self, tensor):
        """A result of PyTorch at this dtype, if that is of integers."""
        out = tensor.numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
        return T(out if is_float(self.a) or out.dtype == np.bool_ else out.astype(self.a.dtype))

    # Properties.
    def dtype(self):
        return self.a.dtype.name

    def size(self, axis):
        return Size(self.a.shape[axis])

    def device(self):
        return Device()

    def to(self, _):
        return self

    def contiguous(self):
        return self

    def cast(self, t):
        a = self.a
        if t == "bfloat16":
            return T(brain(a))
        if is_float(a) and t[0] in "iu":
            return T(np.trunc(a).astype(np.int64 if t != "uint64" else np.uint64).astype(NUMPY[t]))
        return T(a != 0 if t == "bool" else a.astype(NUMPY[t]))

    def bitcast(self, t):
        if t == "bfloat16":
            return T((self.a.astype(np.uint32) << 16).view(np.float32))
        return T(np.array(self.a, order="C").view(NUMPY[t]))

    # Elementwise.
    def __neg__(self): return T(-self.a)
    def __invert__(self): return T(~self.a)
    def __add__(self, o): return T(np.add(*common(self, o)))
    def __sub__(self, o): return T(np.subtract(*common(self, o)))
    def __mul__(self, o): return T(np.multiply(*common(self, o)))
    def __rmul__(self, o): return self * o
    def __radd__(self, o): return self + o
    def __and__(self, o): return T(np.bitwise_and(*common(self, o)))
    def __or__(self, o): return T(np.bitwise_or(*common(self, o)))
    def __xor__(self, o): return T(np.bitwise_xor(*common(self, o)))
    def __rshift__(self, o): return T(np.right_shift(*common(self, o)))
    def __lshift__(self, o): return T(np.left_shift(*common(self, o)))
    def __truediv__(self, o): return T(np.true_divide(*common(self, o)))

    def compared(self, o, how):
        a, b = self.a, raw(o)
        if isinstance(b, np.ndarray) and a.dtype != b.dtype and not is_float(a) and not is_float(b):
            a, b = a.astype(object), b.astype(object)
        return T(how(a, b).astype(np.bool_))

    def __lt__(self, o): return self.compared(o, np.less)
    def __gt__(self, o): return self.compared(o, np.greater)
    def __le__(self, o): return self.compared(o, np.less_equal)
    def __ge__(self, o): return self.compared(o, np.greater_equal)
    def __eq__(self, o): return self.compared(o, np.equal)
    def __ne__(self, o): return self.compared(o, np.not_equal)

    def maximum(self, o): return T(np.maximum(*common(self, o)))
    def minimum(self, o): return T(np.minimum(*common(self, o)))
    def mod(self, o): return T(np.mod(*common(self, o)))
    def fmod(self, o): return T(np.fmod(*common(self, o)))
    def floor_div(self, o): return T(np.floor_divide(*common(self, o)))

    def trunc_div(self, o):
        a, b = common(self, o)
        return T((a - np.fmod(a, b)) // b)

    def pow(self, e): return T(np.power(*common(self, e)))
    def abs(self): return T(np.abs(self.a))
    def square(self): return T(self.a * self.a)
    def sign(self): return T(np.sign(self.a))
    def trunc(self): return T(np.trunc(self.a))
    def floor(self): return T(np.floor(self.a))
    def ceil(self): return T(np.ceil(self.a))
    def round(self): return T(np.round(self.a))
    def isfinite(self): return T(np.isfinite(self.a))
    def relu(self): return T(np.maximum(self.a, 0).astype(self.a.dtype))
    def clip(self, lo, hi): return T(np.clip(self.a, lo, hi))
    def lerp(self, end, weight): return T(torch.lerp(*torch.broadcast_tensors(tt(self.a), tt(end.a)), weight))

    def where(self, x, y):
        if isinstance(x, T) and isinstance(y, T):
            a, b = common(x, y)
        else:
            array = x.a if isinstance(x, T) else y.a
            a, b = (np.asarray(raw(v)).astype(array.dtype) if not isinstance(v, T) else v.a for v in (x, y))
        return T(np.where(self.a, a, b))

    # Reductions.
    def over(self, axes):
        return tuple(int(a) for a in axes) if axes else tuple(range(self.a.ndim))

    def reduced(self, how, axes, keep):
        axes = self.over(axes)
        return how(self.a, axes, bool(keep)) if axes or self.a.ndim else how(self.a.reshape(1), (0,), False)

    def sum(self, axes=(), keep=False, t=None):
        a = self.a if is_float(self.a) else self.a.astype(np.int64 if self.a.dtype != np.uint64 else np.uint64)
        return T(a.sum(axis=self.over(axes), keepdims=bool(keep)))

    def mean(self, axes=(), keep=False): return T(self.reduced(lambda a, x, k: tt(a).mean(x, k), axes, keep))
    def max(self, axes=(), keep=False): return self.like(self.reduced(lambda a, x, k: a.max(axis=x, keepdims=k), axes, keep))
    def min(self, axes=(), keep=False): return self.like(self.reduced(lambda a, x, k: a.min(axis=x, keepdims=k), axes, keep))
    def any(self, axes=(), keep=False): return T(np.any(self.a, axis=self.over(axes), keepdims=bool(keep)))
    def all(self, axes=(), keep=False): return T(np.all(self.a, axis=self.over(axes), keepdims=bool(keep)))

    def prod(self, axes=(), keep=False):
        return T(np.prod(self.a, axis=self.over(axes), keepdims=bool(keep), dtype=self.a.dtype if is_float(self.a) else np.int64))

    def var(self, axes=(), keep=False, correction=1):
        return T(self.reduced(lambda a, x, k: torch.var(tt(a), x, correction=correction, keepdim=k), axes, keep))

    def std(self, axes=(), keep=False, correction=1):
        return T(self.reduced(lambda a, x, k: torch.std(tt(a), x, correction=correction, keepdim=k), axes, keep))

    def logsumexp(self, axes=(), keep=False):
        return T(self.reduced(lambda a, x, k: torch.logsumexp(tt(a), x, k), axes, keep))

    def argmax(self, axis, keep=False): return T(np.argmax(self.a, axis=axis, keepdims=bool(keep)))
    def argmin(self, axis, keep=False): return T(np.argmin(self.a, axis=axis, keepdims=bool(keep)))
    def softmax(self, axis): return T(torch.softmax(tt(self.a), axis))
    def log_softmax(self, axis): return T(torch.log_softmax(tt(self.a), axis))
    def cumsum(self, axis): return self.like(np.cumsum(self.a, axis=axis, dtype=None if is_float(self.a) else np.int64)) if is_float(self.a) else T(np.cumsum(self.a, axis=axis, dtype=np.int64))
    def cumprod(self, axis): return T(np.cumprod(self.a, axis=axis, dtype=None if is_float(self.a) else np.int64))
    def cummax(self, axis): return T(np.maximum.accumulate(self.a, axis=axis))

    def sort(self, axis=-1, descending=False):
        a = self.a
        # Stable both ways: equal elements stay in order.
        order = torch.sort(tt(a), dim=axis, descending=bool(descending), stable=True)[1].numpy() if a.dtype != np.uint64 else \
            np.argsort(a if not descending else ~a, axis=axis, kind="stable")
        return Pair(T(np.take_along_axis(a, order, axis)), T(order))

    def topk(self, k, axis=-1, largest=True):
        both = self.sort(axis, largest)
        some = [slice(None)] * self.a.ndim
        some[axis] = slice(0, k)
        return Pair(T(both.first.a[tuple(some)]), T(both.second.a[tuple(some)]))

    # Linear algebra and networks.
    def matmul(self, b, t=None):
        if is_float(self.a):
            return T(torch.matmul(tt(self.a), tt(b.a)))
        a, b = common(self, b)
        return T(np.matmul(a.astype(np.int64), b.astype(np.int64)))

    def linear(self, w, b=None): return T(F.linear(tt(self.a), tt(w.a), None if b is None else tt(b.a)))

    def conv(self, w, b=None, stride=(1,), padding=(0,), dilation=(1,), groups=1):
        n = self.a.ndim - 2
        how = [None, F.conv1d, F.conv2d, F.conv3d][n]
        return T(how(tt(self.a), tt(w.a), None if b is None else tt(b.a), many(stride, n), many(padding, n), many(dilation, n), groups))

    def conv_transpose(self, w, b=None, stride=(1,), padding=(0,), output_padding=(0,), dilation=(1,), groups=1):
        n = self.a.ndim - 2
        how = [None, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][n]
        return T(how(tt(self.a), tt(w.a), None if b is None else tt(b.a), many(stride, n), many(padding, n), many(output_padding, n),
                     groups, many(dilation, n)))

    def pooled(self, how, n):
        """Pooling over the last n axes, whatever lies before them."""
        x = tt(self.a)
        out = how(x.reshape(1, -1, *x.shape[x.dim() - n:]))
        return T(out.reshape(*x.shape[:x.dim() - n], *out.shape[2:]))

    def max_pool(self, kernel, stride=(), padding=(0,), dilation=(1,)):
        n = len(kernel)
        how = [None, F.max_pool1d, F.max_pool2d, F.max_pool3d][n]
        return self.pooled(lambda x: how(x, many(kernel, n), many(stride, n) if stride else None, many(padding, n), many(dilation, n)), n)

    def avg_pool(self, kernel, stride=(), padding=(0,), count=True):
        n = len(kernel)
        how = [None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][n]
        return self.pooled(lambda x: how(x, many(kernel, n), many(stride, n) if stride else None, many(padding, n), False, bool(count)), n)

    def layer_norm(self, w=None, b=None, eps=1e-5, axes=1):
        shape = self.a.shape[self.a.ndim - axes:]
        out = F.layer_norm(tt(self.a), shape, None, None, eps)
        out = out if w is None else out * tt(w.a)
        return T(out if b is None else out + tt(b.a))

    def rms_norm(self, w=None, eps=1e-5):
        x = tt(self.a)
        out = x * torch.rsqrt(x.square().mean(-1, True) + eps)
        return T(out if w is None else out * tt(w.a))

    def group_norm(self, groups, w=None, b=None, eps=1e-5):
        # Below F.group_norm, which refuses groups of one value.
        return T(torch.group_norm(tt(self.a), groups, None if w is None else tt(w.a), None if b is None else tt(b.a), eps))

    def batch_norm(self, w, b, mean, var, eps=1e-5):
        return T(F.batch_norm(tt(self.a), tt(mean.a), tt(var.a), tt(w.a), tt(b.a), False, 0.0, eps))

    # Movement.
    def moved(self, f):
        return self.like(f(tt(self.a)))

    def reshape(self, shape): return T(self.a.reshape([int(n) for n in shape]))
    def flatten(self, first=0, last=-1): return self.moved(lambda x: torch.flatten(x, first, last))
    def unflatten(self, axis, sizes): return self.moved(lambda x: torch.nn.Unflatten(axis, [int(n) for n in sizes])(x) if axis >= 0 else x.reshape(*x.shape[:axis], *[int(n) for n in sizes], *(x.shape[axis + 1:] if axis != -1 else ())))
    def transpose(self, a=-2, b=-1): return self.moved(lambda x: torch.transpose(x, a, b))
    def permute(self, axes): return self.moved(lambda x: x.permute(*axes))
    def expand(self, shape): return self.moved(lambda x: x.expand(*shape).contiguous())
    def flip(self, axes): return self.moved(lambda x: torch.flip(x, axes))
    def roll(self, shift, axis): return self.moved(lambda x: torch.roll(x, shift, axis))
    def repeat(self, counts): return self.moved(lambda x: x.repeat(*counts))
    def repeat_interleave(self, n, axis): return self.moved(lambda x: torch.repeat_interleave(x, n, axis))
    def squeeze(self, axis=None): return self.moved(lambda x: torch.squeeze(x) if axis is None else torch.squeeze(x, axis))
    def unsqueeze(self, axis): return self.moved(lambda x: torch.unsqueeze(x, axis))
    def tril(self, k=0): return self.moved(lambda x: torch.tril(x, k))
    def triu(self, k=0): return self.moved(lambda x: torch.triu(x, k))
    def diagonal(self): return self.moved(lambda x: torch.diagonal(x, 0, -2, -1).contiguous())
    def chunk(self, n, axis=0): return List(self.like(c.contiguous()) for c in torch.chunk(tt(self.a), n, axis))
    def split(self, n, axis=0): return List(self.like(c.contiguous()) for c in torch.split(tt(self.a), n, axis))

    def pad(self, pads, value=0):
        flat = [int(n) for pair in reversed(pads) for n in pair]
        return self.moved(lambda x: F.pad(x, flat, "constant", value))

    def slice(self, axis, s):
        s = slice(*(None if v is None else int(v) for v in list(s) + [1] * (3 - len(s))))
        some = [slice(None)] * self.a.ndim
        some[axis] = s
        return T(self.a[tuple(some)])

    def index(self, at):
        return T(self.a[tuple(i.value if isinstance(i, Slice) else i for i in at)])

    def gather(self, axis, index):
        at = tt(index.a)
        return self.moved(lambda x: torch.gather(x, axis, torch.where(at < 0, at + x.shape[axis], at)))

    def take(self, index, axis=0):
        return T(np.take(self.a, index.a.astype(np.int64), axis=axis))

    def scatter(self, axis, index, src, reduce="set"):
        out = self.a.copy()
        at = list(np.indices(index.a.shape))
        at[axis] = index.a.astype(np.int64)
        values = src.a[tuple(slice(0, n) for n in index.a.shape)].astype(out.dtype)
        if reduce == "set":
            out[tuple(at)] = values
        else:
            {"add": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[reduce].at(out, tuple(at), values)
        return T(out)

    def assign(self, value):
        self.a[...] = value.a
        return self


def unary(name, how):
    setattr(T, name, lambda self, *args: T(how(tt(self.a), *args)))


for _name, _how in {"sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh, "exp": torch.exp, "exp2": torch.exp2,
                    "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "log10": torch.log10,
                    "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
                    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "sigmoid": torch.sigmoid, "silu": F.silu,
                    "softplus": F.softplus, "elu": F.elu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "mish": F.mish,
                    "erf": torch.erf, "leaky_relu": F.leaky_relu}.items():
    unary(_name, _how)
unary("gelu", lambda x, tanh=True: F.gelu(x, approximate="tanh" if tanh else "none"))


def attention(q, k, v, mask=None, causal=False, scale=None):
    q, k, v = tt(q.a), tt(k.a), tt(v.a)
    if q.dim() > 2 and k.shape[-3] != q.shape[-3]:
        k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -np.inf)
    if mask is not None:
        m = tt(mask.a)
        scores = scores.masked_fill(~m, -np.inf) if m.dtype == torch.bool else scores + m
    # A query that sees no key gets 0, as from scaled_dot_product_attention of PyTorch 2.5 and later.
    blind = torch.isneginf(scores).all(-1, True)
    return T(torch.softmax(scores.masked_fill(blind, 0), -1).masked_fill(blind, 0) @ v)


class Tensor:
    attention = staticmethod(attention)

    @staticmethod
    def arange(n, dtype="int64", device=""):
        return T(np.arange(int(n)).astype(NUMPY[dtype]))

    @staticmethod
    def cat(xs, axis=0):
        return T(np.concatenate(common(xs[0], xs[1]), axis))

    @staticmethod
    def stack(xs, axis=0):
        return T(np.stack(common(xs[0], xs[1]), axis))

    @staticmethod
    def einsum(formula, xs):
        return T(torch.einsum(formula, *[tt(x.a) for x in xs]))


# Helpers that rows call (program_helpers.h), written anew over PyTorch.
def seen(q, k, offset, window):
    key, query = np.arange(k.a.shape[-2]), np.arange(q.a.shape[-2])[:, None] + offset
    return T((key <= query) & (key > query - window))


def mixed(q, kv, offset, cap, t):
    q, k, v = tt(q.a), tt(kv.a[0]), tt(kv.a[1])  # [m, heads, d], [kv heads, n, d]
    group = q.shape[1] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = torch.tanh(torch.einsum("mhd,hnd->hmn", q, k) * 0.25 / cap) * cap
    hidden = torch.arange(k.shape[1])[None, :] > torch.arange(q.shape[0])[:, None] + offset
    out = torch.einsum("hmn,hnd->mhd", torch.softmax(scores.masked_fill(hidden, -np.inf), -1), v)
    return T(out.reshape(q.shape[0], kv.a.shape[1], group, q.shape[2]))


def rotated(x, angles):
    z = torch.complex(*torch.chunk(tt(x.a), 2, -1)) * torch.exp(1j * tt(angles.a))
    return T(torch.cat([z.real, z.imag], -1))


def rotated_pairs(x, angles):
    z = torch.view_as_complex(tt(x.a).unflatten(-1, (-1, 2)).contiguous()) * torch.exp(1j * tt(angles.a))
    return T(torch.view_as_real(z).flatten(-2))


def unpacked(codes, scales):
    both = np.concatenate([codes.a % 16, codes.a // 16], -1).astype(np.float64)
    return T(((both - 8) * scales.a).reshape(codes.a.shape[0], -1))


def unpacked_words(words, scales):
    codes = np.stack([(words.a.astype(np.int64) & 0xffffffff) // 16 ** k % 16 for k in range(8)], -1).reshape(*words.a.shape[:-1], -1)
    return T(((codes.astype(np.float64) - 8) * scales.a).reshape(words.a.shape[0], -1))


def block_product(x, codes, scales):
    n, blocks, w = codes.a.shape
    sums = np.einsum("mbw,nbw->mnb", x.a.reshape(-1, blocks, w).astype(np.int64), codes.a.astype(np.int64))
    return T((sums * scales.a[None]).sum(-1))


def braces(text):
    """Name{…} becomes a call, {} nothing, {…} a list."""
    out, ends = "", []
    at = 0
    while at < len(text):
        c = text[at]
        if text.startswith("{}", at):
            out += "None"
            at += 2
            continue
        if c == "{":
            is_call = re.search(r"\w$", out) is not None
            ends.append(")" if is_call else "]")
            out += "(" if is_call else "["
        elif c == "}":
            out += ends.pop()
        else:
            out += c
        at += 1
    return out


def python_of(text):
    text = text.replace("std::array{", "{").replace("::", ".").replace("true", "True").replace("false", "False")
    text = re.sub(r"0x1p(-?\d+)", lambda m: repr(2.0 ** int(m[1])), text)
    text = re.sub(r"!(?!=)", "~", text)
    return braces(text)


def array_of(v):
    t = NUMPY["float64" if v["dtype"] in ("float16", "bfloat16", "float32", "float64") else v["dtype"]]
    return np.frombuffer(bytes.fromhex(v["bytes"]), t).reshape(v["shape"]).copy()


FUNCTIONS = {k: v for k, v in globals().items() if k in ("seen", "mixed", "rotated", "rotated_pairs", "unpacked", "unpacked_words",
                                                         "block_product", "Tensor", "DType", "Slice")}
FUNCTIONS.update(room=lambda p: p, shape_of=lambda d: d, beside=lambda x: "")


BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
LEAST = {"float16": 2.0 ** -24, "bfloat16": 2.0 ** -133, "float32": 2.0 ** -149, "float64": 2.0 ** -1074}


# Made of several functions. Room for one rounding at 1: PyTorch loses what is left of 1 - 1 (the tanh form of GELU at -10,
# ELU of the smallest), and so do both with erf(-3) + 1; the zeros of cosines of 2^1023 are known to 2^-53.
COMPOSED = {"elu", "gelu", "silu", "sigmoid", "softplus", "mish", "hardswish", "hardsigmoid", "cos", "tan"}
# Of two zeros either is the larger (ReLU is max(x, 0)); a running sum may begin with +0; PyTorch's ELU of -0 is +0.
UNSIGNED_ZEROS = {"elu", "relu", "max", "min", "maximum", "minimum", "cummax", "cumsum", "topk", "sort"}


def special_difference(out, wanted, t, text, x):
    """Of results for zeros, infinities, NaN, the largest and the smallest: classes and signs must be equal, the rest near."""
    name = re.sub(r"^x\.|\(.*", "", text)
    if t not in BITS:
        apart = wanted != out.astype(wanted.dtype)
    else:
        out = out.astype(np.float64)
        with np.errstate(all="ignore"):
            rounded = brain(out) if t == "bfloat16" else out.astype(NUMPY[t])
        rounded = rounded.astype(np.float64)
        largest = {"float16": 65504.0, "bfloat16": 255 * 2.0 ** 120, "float32": float(np.finfo(np.float32).max), "float64": np.inf}[t]
        rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
        with np.errstate(invalid="ignore"):
            apart = np.abs(wanted - rounded)
        near = apart <= 8 * 2.0 ** -BITS[t] * np.abs(rounded) + 4 * LEAST[t]
        if name in COMPOSED:
            near |= apart <= 2.0 ** -BITS[t]
            near |= apart <= 1e-12 * np.abs(rounded)
            # x·6 is infinite before it is divided, in PyTorch's dtype too.
            near |= np.isinf(wanted) & (np.abs(x) > largest / 6) if name == "hardswish" else False
        # At the edge of the range one side may round to infinity.
        near |= np.isinf(wanted) & (np.abs(out) > largest * (1 - 8 * 2.0 ** -BITS[t])) & (np.sign(wanted) == np.sign(out))
        near |= (wanted == rounded) | (np.isnan(wanted) & np.isnan(rounded))
        # The sign of zero counts where the result is 0 on both sides.
        if name not in UNSIGNED_ZEROS:
            near &= ~((wanted == 0) & (rounded == 0) & (np.signbit(wanted) != np.signbit(rounded)) & (out == 0))
        apart = ~near
    if not apart.any():
        return ""
    at = [tuple(int(v[k]) for v in np.nonzero(apart)) for k in range(min(4, int(apart.sum())))]
    return f"{int(apart.sum())} differ: " + "; ".join(f"{list(p)} is {wanted[p]!r}, not {out[p]!r}" for p in at)


def difference(step, compiled):
    """"" or what differs."""
    xs = [T(array_of(v)) for v in step["args"]]
    n = step["numbers"]
    t = n["t"] if n["t"][0] in "iu" or n["t"] == "bool" else "float64"
    names = dict(zip("xyz", xs), i=n["i"], j=n["j"], k=n["k"], keep=n["keep"], t=t, axes=n["axes"], dims=n["dims"],
                 pads=n["pads"], **FUNCTIONS)
    with np.errstate(all="ignore"):
        out = eval(compiled, names)  # a row of our own table
    out = raw(out[-1] if isinstance(out, tuple) else out)
    wanted, t = array_of(step["result"]), step["result"]["dtype"]
    if step.get("special"):
        return special_difference(out, wanted, t, step["text"], xs[0].a)
    if list(out.shape) != list(wanted.shape):
        return f"has shape {list(wanted.shape)}, not {list(out.shape)}"
    if (t[0] in "bf" and t != "bool") != is_float(out) or (t == "bool") != (out.dtype == np.bool_):
        return f"is {t}, not {out.dtype}"
    if t[0] in "iu" or t == "bool":
        apart = wanted != out.astype(wanted.dtype)
    else:
        out = out.astype(np.float64)
        # Integers divided are float32 in the reference too.
        room = 1e-9 if all(is_float(x.a) for x in xs) else 2e-6
        # What is left of a difference is known to the rounding of what was subtracted.
        most = max(np.max(np.abs(a), initial=0) for a in [out] + [x.a for x in xs if is_float(x.a)])
        least = room * 1e-2 * most + 1e-100
        if "_norm" in step["text"]:
            # A mean is off by its rounding, and that is divided by no less than sqrt(1e-5).
            least += 1e-12 * np.prod([np.max(np.abs(x.a), initial=1) for x in xs])
        apart = ~((np.abs(wanted - out) <= room * np.abs(out) + least) | (np.isnan(wanted) & np.isnan(out)))
    if not apart.any():
        return ""
    at = tuple(int(v[-1]) for v in np.nonzero(apart)) if apart.ndim else ()
    return f"{int(apart.sum())} of {apart.size} differ: {list(at)} is {wanted[at]!r}, not {out[at]!r}"


def main():
    show = int(sys.argv[sys.argv.index("--show") + 1]) if "--show" in sys.argv else 20
    compiled, judged, failed, refused = {}, collections.Counter(), collections.Counter(), collections.Counter()
    for line in open(sys.argv[1]):
        step = json.loads(line)
        text = step["text"]
        try:
            if text not in compiled:
                compiled[text] = compile(python_of(text), text, "eval")
            what = difference(step, compiled[text])
        except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError, SyntaxError, AttributeError, KeyError, NameError) as e:
            refused[f"{text}: {type(e).__name__} {str(e).splitlines()[0][:100]}"] += 1
            continue
        judged[text] += 1
        if what:
            failed[text] += 1
            if sum(failed.values()) <= show:
                shapes = ", ".join(v["dtype"] + str(v["shape"]) for v in step["args"])
                print(f"{step.get('device', '')} seed {step['seed']} step {step['step']}: {text} of {shapes} {json.dumps(step['numbers'])}: {what}")
    for text, n in refused.most_common(show):
        print(f"not judged, {n} times: {text}")
    if "--rows" in sys.argv:
        for text, n in judged.most_common():
            print(f"{n:6d} {failed[text]:5d} {text}")
    print(f"{sum(judged.values())} steps of {len(judged)} rows judged by NumPy {np.__version__} and PyTorch {torch.__version__}: "
          f"{sum(failed.values())} differ, {sum(refused.values())} refused")
    # What PyTorch refuses: pooling of images smaller than the window, for example.
    return 1 if failed or sum(refused.values()) * 50 > sum(judged.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
