#!/usr/bin/env python3
"""Expected values of tensor operations from NumPy and PyTorch, for tests/unit/tensor/oracle_test.cpp.

usage: ops_reference.py > file

One line per case: "name dtype dims... : values" with dims separated by ',' and floats as repr of float64. Lines
"# numpy VERSION" and "# torch VERSION" (or "# torch missing") come first; cases of a missing library are left out.
Inputs are the same short formulas in both programs: element i of input k is ((i * 37 + k * 11) % 64 - 32) / 16.
"""
import math
import sys

import numpy as np

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None


def grid(shape, k=0):
    count = int(np.prod(shape, dtype=np.int64))
    i = np.arange(count, dtype=np.int64)
    return (((i * 37 + k * 11) % 64 - 32) / 16).astype(np.float32).reshape(shape)


def ints(shape, k=0):
    return (grid(shape, k) * 16).astype(np.int32)


def numpy_cases():
    x, y = grid((3, 7)), grid((3, 7), 1)
    i, j = ints((3, 7)), ints((3, 7), 1)
    with np.errstate(all="ignore"):
        yield "add", x + y
        yield "true_divide", i / np.where(j == 0, 1, j)
        yield "floor_divide", x // np.where(y == 0, 1, y)
        yield "mod", np.mod(x, np.where(y == 0, 1, y))
        yield "fmod", np.fmod(x, np.where(y == 0, 1, y))
        yield "int_floor_divide", i // np.where(j == 0, 1, j)
        yield "int_mod", np.mod(i, np.where(j == 0, 1, j))
        yield "round", np.round(x * 4)
        yield "power", np.power(np.abs(x) + np.float32(0.25), y)
        for name in ("exp", "expm1", "sin", "cos", "tanh", "arctan", "sinh", "cosh", "floor", "ceil", "trunc", "sign"):
            yield name, getattr(np, name)(x)
        for name in ("log", "log2", "log10", "log1p", "sqrt"):
            yield name, getattr(np, name)(np.abs(x) + np.float32(0.25))
        for name in ("arcsin", "arccos"):
            yield name, getattr(np, name)(x / np.float32(2.5))
    yield "sum", x.sum(axis=1)
    yield "prod", x.prod(axis=0)
    yield "mean", x.mean(axis=1, keepdims=True)
    yield "var", x.var(axis=1, ddof=1, dtype=np.float32)
    yield "argmax", x.argmax(axis=1)
    yield "argmin", x.argmin(axis=0)
    yield "cumsum", x.cumsum(axis=1)
    yield "cumprod", x.cumprod(axis=0)
    yield "sort", np.sort(x, axis=1, kind="stable")
    yield "argsort", np.argsort(x, axis=1, kind="stable")
    yield "matmul", grid((2, 3, 5)) @ grid((5, 4), 1)
    yield "einsum", np.einsum("abc,cd->bda", grid((2, 3, 5)), grid((5, 4), 1))
    yield "einsum_diagonal", np.einsum("iji->j", grid((3, 4, 3)))
    yield "slice_back", x[::-2, 5:0:-3]
    yield "roll", np.roll(x, 3, axis=1)
    yield "tril", np.tril(x, 1)
    yield "diagonal", np.diagonal(grid((2, 3, 4)), axis1=1, axis2=2)
    yield "repeat", np.repeat(x, 2, axis=1)
    yield "take", np.take(x, [[2, 0], [1, 1]], axis=0)


def torch_cases():
    def t(shape, k=0):
        return torch.from_numpy(grid(shape, k))
    x = t((2, 6, 5))
    yield "gelu_tanh", F.gelu(x, approximate="tanh")
    yield "gelu", F.gelu(x)
    for name in ("silu", "mish", "softplus", "elu", "hardswish", "hardsigmoid", "relu", "leaky_relu"):
        yield name, getattr(F, name)(x)
    yield "sigmoid", torch.sigmoid(x)
    yield "erf", torch.erf(x)
    yield "softmax", F.softmax(x, dim=1)
    yield "log_softmax", F.log_softmax(x, dim=-1)
    yield "logsumexp", torch.logsumexp(x, dim=(0, 2))
    yield "layer_norm", F.layer_norm(x, (6, 5))
    yield "group_norm", F.group_norm(x, 3)
    yield "conv1d", F.conv1d(x, t((4, 3, 3), 1), t((4,), 2), stride=2, padding=1, groups=2)
    yield "conv2d", F.conv2d(t((2, 4, 7, 6)), t((6, 2, 3, 2), 1), t((6,), 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
    yield "conv3d", F.conv3d(t((1, 2, 4, 3, 5)), t((3, 2, 2, 2, 2), 1))
    yield "conv_transpose2d", F.conv_transpose2d(t((1, 4, 3, 4)), t((4, 3, 3, 2), 1), t((6,), 2), stride=(2, 3), padding=(1, 0),
                                                 output_padding=(1, 2), dilation=(1, 2), groups=2)
    yield "max_pool2d", F.max_pool2d(t((2, 3, 8, 7)), (3, 2), (2, 2), (1, 0))
    yield "max_pool2d_dilated", F.max_pool2d(t((1, 2, 9, 9)), 3, 2, 1, dilation=2)
    yield "avg_pool2d", F.avg_pool2d(t((2, 3, 8, 7)), (3, 2), (2, 2), (1, 0))
    yield "avg_pool2d_valid", F.avg_pool2d(t((2, 3, 8, 7)), (3, 2), (2, 2), (1, 0), count_include_pad=False)
    index = torch.tensor([[2, 0, 1], [0, 0, 2]])
    base, source = t((3, 3)), t((2, 3), 1)
    yield "gather", base.gather(0, index)
    yield "scatter_add", base.scatter_add(0, index, source)
    yield "scatter_max", base.scatter_reduce(0, index, source, reduce="amax")
    values, places = torch.topk(x, 3, dim=1)
    yield "topk", values
    q, k, v = t((4, 3, 8)), t((4, 5, 8), 1), t((4, 5, 8), 2)
    scores = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), dim=-1)
    yield "attention", scores @ v
    yield "cummax", torch.cummax(x, dim=1).values


def emit(name, value):
    value = np.asarray(value)
    numbers = " ".join(repr(float(v)) for v in value.reshape(-1))
    print(f"{name} {value.dtype} {','.join(map(str, value.shape))} : {numbers}")


def main():
    print(f"# numpy {np.__version__}")
    print(f"# torch {torch.__version__}" if torch else "# torch missing")
    for name, value in numpy_cases():
        emit(name, value)
    if torch:
        torch.set_num_threads(1)
        for name, value in torch_cases():
            emit(name, value.numpy())


if __name__ == "__main__":
    sys.exit(main())
