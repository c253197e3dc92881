#!/usr/bin/env python3
"""The formulas of models/sampler_chain.h and sampler_dry.h beside those of llama.cpp, by hand.

    llama_samplers.py [MODEL.gguf]      where libllama.so.0 is installed (0.7.0 of Debian sid); MODEL for DRY

What the unit tests write down (SamplerChain.*) is written down here once more, and compared with llama.cpp's samplers on
random logits.
"""

import ctypes
import math
import random
import sys

llama = ctypes.CDLL("libllama.so.0")


class Data(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(Data)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool)]


class Params(ctypes.Structure):
    """Of unknown size: large enough, passed and given back by value. vocab_only is a flag behind pointers."""
    _fields_ = [("bytes", ctypes.c_uint8 * 512)]


def sampler(name, *arguments):
    function = getattr(llama, "llama_sampler_init_" + name)
    function.restype = ctypes.c_void_p
    return ctypes.c_void_p(function(*arguments))


def apply(made, logits):
    """{id: logit} of what the sampler leaves."""
    data = (Data * len(logits))(*[Data(i, l, 0) for i, l in enumerate(logits)])
    array = Array(data, len(logits), -1, False)
    llama.llama_sampler_apply(made, ctypes.byref(array))
    return {array.data[i].id: array.data[i].logit for i in range(array.size)}


def softmax(logits):
    top = max(logits)
    weights = [math.exp(l - top) for l in logits]
    return [w / sum(weights) for w in weights]


def xtc(logits, threshold):
    p = softmax(logits)
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    tops = sum(q >= threshold for q in p)
    return set(order[max(tops - 1, 0):])


def top_n_sigma(logits, n):
    mean = sum(logits) / len(logits)
    sigma = math.sqrt(sum((l - mean) ** 2 for l in logits) / len(logits))
    return {i for i, l in enumerate(logits) if l >= max(logits) - n * sigma}


def dynamic_temperature(logits, temperature, spread, exponent):
    p = softmax(logits)
    evenness = -sum(q * math.log(q) for q in p if q > 0) / math.log(len(p))
    low, high = max(temperature - spread, 0), temperature + spread
    return low + (high - low) * evenness ** exponent


def dry(tokens, limit, multiplier, base, allowed):
    """{token: penalty}"""
    out = {}
    for end in range(len(tokens) - 1):
        n = 0
        while n < limit and n <= end and tokens[end - n] == tokens[-1 - n]:
            n += 1
        if n >= allowed:
            penalty = multiplier * base ** (n - allowed)
            out[tokens[end + 1]] = max(out.get(tokens[end + 1], 0), penalty)
    return out


def check_dry(path, rng):
    llama.llama_model_default_params.restype = Params
    llama.llama_model_load_from_file.restype = ctypes.c_void_p
    llama.llama_model_get_vocab.restype = ctypes.c_void_p
    llama.llama_backend_init()
    model = ctypes.c_void_p(llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params()))
    vocab = ctypes.c_void_p(llama.llama_model_get_vocab(model))
    size = llama.llama_vocab_n_tokens(vocab)
    checked = 0
    for _ in range(300):
        alphabet = rng.sample(range(size), 3)
        tokens = [rng.choice(alphabet) for _ in range(rng.randint(1, 60))]
        multiplier, base, allowed, last_n = rng.uniform(0.1, 2), rng.uniform(1, 3), rng.randint(0, 4), rng.choice([4096, 5, 20])
        made = sampler("dry", vocab, ctypes.c_float(multiplier), ctypes.c_float(base), allowed, last_n, None, ctypes.c_size_t(0))
        for token in tokens:
            llama.llama_sampler_accept(made, token)
        got = apply(made, [0.0] * size)
        seen = tokens[-last_n:]
        want = dry(seen, len(seen), multiplier, base, allowed)
        for token in alphabet:
            assert math.isclose(-got[token], want.get(token, 0), rel_tol=1e-4, abs_tol=1e-6), (tokens, token, got[token], want)
            checked += bool(want.get(token))
        llama.llama_sampler_free(made)
    print(checked, "penalties of DRY agree")


def main():
    rng = random.Random(3)
    f = ctypes.c_float
    for _ in range(500):
        logits = [f(rng.gauss(0, rng.choice([0.5, 2, 5]))).value for _ in range(rng.randint(2, 60))]
        threshold, n = rng.uniform(0.01, 0.5), rng.uniform(0.1, 3)
        assert set(apply(sampler("xtc", f(1), f(threshold), ctypes.c_size_t(0), 1), logits)) == xtc(logits, threshold)
        got = apply(sampler("top_n_sigma", f(n)), logits)
        # It may leave the others with a logit of -inf.
        assert {i for i, l in got.items() if l > -math.inf} == top_n_sigma(logits, n)
        temperature, spread, exponent = rng.uniform(0.1, 1.5), rng.uniform(0.05, 1.5), rng.choice([0.5, 1, 2])
        got = apply(sampler("temp_ext", f(temperature), f(spread), f(exponent)), logits)
        want = dynamic_temperature(logits, temperature, spread, exponent)
        for i, l in got.items():
            assert math.isclose(l, logits[i] / want, rel_tol=2e-3, abs_tol=1e-4), (l, logits[i] / want)
    print("500 draws of XTC, top-n-sigma and the dynamic temperature agree")
    if len(sys.argv) > 1:
        check_dry(sys.argv[1], rng)


main()
