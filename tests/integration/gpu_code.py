#!/usr/bin/env python3
"""The machine code of every workload for every GPU, judged without a card.

usage: gpu_code.py BELLMETAL [--only REGEX] [--cards sm_90,gfx1100] [--check | --record] [--json FILE]
       gpu_code.py BELLMETAL --model MODEL.gguf [--cards ...]

Compiles each workload by `bellmetal explain` and prints its share of the static roofline: of the operations or of the bytes
of the whole workload, by the sum of the times of its kernels. Spilled registers and what ptxas says of products that it
puts in a row (messages C75xx) are named behind it. `*` marks what is below its floor, and docs/hw/{nvidia,amd}/code.md says
why. The tables "Every workload" there are what was recorded. --check: exit code 1 if anything spills, is put in a row, or has
less of its roof than was recorded, or if nothing was. --record writes the tables. With a model: launches, share of
multiplications by matrix instructions and predicted time of a prompt and a token.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from limits import seconds

NVIDIA = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
AMD = ["gfx1100", "gfx1201", "gfx942"]

# What ends by arithmetic has 0.6 of it, attention 0.5, what ends by memory 0.8 of its bytes.
GEMM, ATTENTION, ROWS = 0.6, 0.5, 0.8
WORKLOADS = [
    ("GEMM f16 4096³, B row-major", "f16[4096,4096] @ f16[4096,4096]", GEMM),
    ("GEMM f16 4096³, B K-major", "linear(f16[4096,4096], f16[4096,4096])", GEMM),
    ("GEMM bf16 4096³ + bias, SiLU", "silu(linear(bf16[4096,4096], bf16[4096,4096]) + bf16[4096])", GEMM),
    ("GEMM f32 × f16 weights, 512 × 4096 × 4096", "linear(f32[512,4096], f16[4096,4096])", GEMM),
    ("gated FFN f16, 512 × 4096 × 14336", "silu(linear(f16[512,4096], f16[14336,4096])) * linear(f16[512,4096], f16[14336,4096])", GEMM),
    ("GEMM f16 512³", "f16[512,512] @ f16[512,512]", GEMM),
    ("GEMM f16 1000 × 1003 × 1001", "f16[1000,1001] @ f16[1001,1003]", GEMM),
    ("GEMM f16 batch 12 × 77 × 77 × 64", "f16[12,77,64] @ f16[12,64,77]", GEMM),
    ("GEMM f16 128 × 128 × 65536", "f16[128,65536] @ f16[65536,128]", GEMM),
    ("GEMM f32 128 × 128 × 65536", "f32[128,65536] @ f32[65536,128]", GEMM),
    ("GEMM f32 512³", "f32[512,512] @ f32[512,512]", GEMM),
    ("GEMM f32 1000³", "f32[1000,1000] @ f32[1000,1000]", GEMM),
    ("GEMM f32 2048³", "f32[2048,2048] @ f32[2048,2048]", GEMM),
    ("GEMM tf32 4096³, B row-major", "f32[4096,4096] @ f32[4096,4096]", GEMM),
    ("convolution f16 3 × 3, 64 channels, 56²", "conv(f16[8,64,56,56], f16[64,64,3,3], 1, 1, 1)", GEMM),
    ("attention f16 16 × 2048 × 64", "attention(f16[16,2048,64], f16[16,2048,64], f16[16,2048,64])", ATTENTION),
    ("attention f16 16 × 2048 × 128", "attention(f16[16,2048,128], f16[16,2048,128], f16[16,2048,128])", ATTENTION),
    ("relu f16 4096²", "relu(f16[4096,4096])", ROWS),
    ("sum of two f32 4096²", "f32[4096,4096] + f32[4096,4096]", ROWS),
    ("transpose f16 4096²", "transpose(f16[4096,4096]) * 2", ROWS),
    ("softmax f16 4096²", "softmax(f16[4096,4096])", ROWS),
    ("softmax f32 1 × 128256", "softmax(f32[1,128256])", ROWS),
    ("argmax f32 1 × 128256", "argmax(f32[1,128256], 1)", ROWS),
    ("top-k f32 1 × 128256, k = 40", "topk(f32[1,128256], 40)", ROWS),
    ("RMS norm f16 4096²", "rmsnorm(f16[4096,4096])", ROWS),
    ("layer norm f32 4096²", "layernorm(f32[4096,4096])", ROWS),
    ("cumulative sum f32 4096²", "cumsum(f32[4096,4096], 1)", ROWS),
    ("cumulative sum f32 1 × 2²⁰", "cumsum(f32[1,1048576], 1)", ROWS),
    ("matrix-vector f16 14336 × 4096", "linear(f16[1,4096], f16[14336,4096])", ROWS),
    ("prompt Q8_0, 512 × 4096 × 4096", "q8linear(f32[512,4096], 4096)", ATTENTION),
    ("prompt Q4_K, 512 × 4096 × 4096", "q4linear(f32[512,4096], 4096)", ATTENTION),
    ("prompt Q4_K, 512 × 6144 × 4096", "q4linear(f32[512,4096], 6144)", ATTENTION),
    ("prompt Q4_K, 512 × 14336 × 4096", "q4linear(f32[512,4096], 14336)", ATTENTION),
    ("prompt Q4_K, 500 × 14336 × 4096", "q4linear(f32[500,4096], 14336)", ATTENTION),
    ("token Q4_K, 4096 × 4096", "q4linear(f32[1,4096], 4096)", ROWS),
    ("token Q8_0, 4096 × 14336, residual", "f32[1,4096] + q8linear(f32[1,14336], 4096)", ROWS),
    ("decode attention f16, 32 heads over 8, 4096 keys", "decode(f32[32,128], f16[8,4096,128], f16[8,4096,128])", ROWS),
    ("decode attention f32, 32 heads over 8, 4096 keys", "decode(f32[32,128], f32[8,4096,128], f32[8,4096,128])", ROWS),
    ("decode attention int8, 32 heads over 8, 4096 keys",
     "decode8(f32[32,128], i8[8,4096,128], i8[8,4096,128], f16[8,4096,4], f16[8,4096,4])", ROWS),
    ("prompt attention f16, 2048 of 8192 tokens, 32 heads over 8",
     "prompt(f32[2048,32,128], f16[8,8192,128], f16[8,8192,128])", ATTENTION),
    ("prompt attention int8, 2048 of 8192 tokens, 32 heads over 8",
     "prompt8(f32[2048,32,128], i8[8,8192,128], i8[8,8192,128], f16[8,8192,4], f16[8,8192,4])", ATTENTION),
    ("prompt attention f16, heads of 256",
     "prompt(f32[2048,32,256], f16[8,8192,256], f16[8,8192,256])", ATTENTION),
    ("prompt attention int8, heads of 256",
     "prompt8(f32[2048,32,256], i8[8,8192,256], i8[8,8192,256], f16[8,8192,8], f16[8,8192,8])", ATTENTION),
]


PAGES = {page: os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/hw", page, "code.md") for page in ("nvidia", "amd")}
# Shares are recorded with two digits, and versions of a toolchain place a few instructions otherwise.
TOLERANCE = 0.03


def device(card):
    return ("NULL:PTX::" if card.startswith("sm_") else "NULL:LLVM::") + card


def explain(program, subject, card, environment, *more):
    done = subprocess.run([program, "explain", subject, "--device", device(card), "--json", *more], capture_output=True,
                          text=True, timeout=seconds(300), env={**os.environ, "BM_CACHE": "0", **environment}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{subject} for {card}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)["kernels"]


def put_in_a_row(kernel, card):
    """What ptxas says of products that wait for each other. Only wgmma is asynchronous."""
    text = kernel.get("source", "")
    if "wgmma" not in text or not shutil.which("ptxas"):
        return []
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        said = subprocess.run(["ptxas", "-v", f"-arch={card}a", "-o", "/dev/null", file.name], capture_output=True, text=True,
                              timeout=seconds(120), check=False)
    return sorted(set(re.findall(r"C75\d\d", said.stdout + said.stderr)))


def roof_of(kernels):
    """Of all kernels together; what lies between them is lost."""
    spent = sum(k["predicted_us"] * k["launches"] for k in kernels)
    return sum((k["of_roof"] or 0) * k["predicted_us"] * k["launches"] for k in kernels) / spent if spent else 0


def judge(program, row, card):
    name, subject, floor = row
    environment = {"ALLOW_TF32": "1"} if "tf32" in name else {}
    kernels = explain(program, subject, card, environment, "--stage", "source")
    out = {"workload": name, "card": card, "floor": floor, "kernels": len(kernels), "roof": round(roof_of(kernels), 2),
           "bound": "+".join(sorted({k["bound_by"] for k in kernels})),
           "has_code": all(k["registers"] is not None for k in kernels),
           "spills": sum(k["spill_bytes"] or 0 for k in kernels), "matrix": any(k["matrix_flops"] for k in kernels),
           "us": round(sum(k["predicted_us"] * k["launches"] for k in kernels), 1),
           "row": sorted({m for k in kernels for m in put_in_a_row(k, card)})}
    out["is_short"] = out["roof"] < floor - 0.005
    return out


def text_of(found):
    marks = ("" if found["matrix"] or found["floor"] == ROWS or "f32 " in found["workload"] else "°") + ("*" if found["is_short"] else "")
    more = "".join(f" {m}" for m in found["row"]) + (f" spills {found['spills']}" if found["spills"] else "")
    return f"{found['roof']:.2f}{marks}{more}"


def table_of(page):
    """Lines of the page before its table of workloads, the table's cells by line, and lines behind it."""
    with open(PAGES[page], encoding="utf-8") as file:
        lines = file.read().split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("| workload | floor |"))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return lines[:start], [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]], lines[end:]


def recorded():
    """Share of the roof by workload and card, as the pages have it."""
    out = {}
    for page in PAGES:
        head, _, *rows = table_of(page)[1]
        for row in rows:
            for card, cell in zip(head[2:], row[2:]):
                out[row[0], card] = float(re.match(r"[0-9.]+", cell)[0])
    return out


def record(found):
    for page in PAGES:
        before, (head, rule, *rows), after = table_of(page)
        for f in found:
            if f["card"] not in head:
                continue
            row = next((row for row in rows if row[0] == f["workload"]), None)
            if row is None:
                row = [f["workload"], str(f["floor"])] + ["?"] * (len(head) - 2)
                rows.append(row)
            row[head.index(f["card"])] = text_of(f)
        with open(PAGES[page], "w", encoding="utf-8") as file:
            file.write("\n".join([*before, *(f"| {' | '.join(row)} |" for row in (head, rule, *rows)), *after]))


def is_worse(found, known):
    """Whether less of the roof is reached than was recorded."""
    before = known.get((found["workload"], found["card"]))
    return before is None or found["roof"] < before - TOLERANCE


def workloads(args, cards):
    rows = [row for row in WORKLOADS if re.search(args.only, row[0])]
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("BM_GPU_CODE_JOBS", "2"))) as pool:
        found = list(pool.map(lambda pair: judge(args.program, *pair), [(row, card) for row in rows for card in cards]))
    print(f"| workload | floor | {' | '.join(cards)} |\n| --- |{' --- |' * (len(cards) + 1)}")
    for i, row in enumerate(rows):
        print(f"| {row[0]} | {row[2]} | {' | '.join(text_of(f) for f in found[i * len(cards):(i + 1) * len(cards)])} |")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    if args.record:
        record(found)
    known = recorded()
    wrong = [f for f in found if f["spills"] or f["row"] or is_worse(f, known)]
    for f in wrong:
        print(f"{f['workload']} for {f['card']}: {f['spills']} bytes spilled, {f['row']}, {f['roof']:.2f} of the roof, recorded "
              f"{known.get((f['workload'], f['card']), 'nothing')}", file=sys.stderr)
    return 1 if args.check and wrong else 0


def model(args, cards):
    print("| part | card | launches | by matrix instructions | predicted |\n| --- | --- | --- | --- | --- |")
    for card in cards:
        kernels = explain(args.program, args.model, card, {}, "--no-measure")
        for part in dict.fromkeys(k["part"] for k in kernels):
            own = [k for k in kernels if k["part"] == part]
            flops = sum(k["flops"] * k["launches"] for k in own)
            products = sum(min(k["matrix_flops"], k["flops"]) * k["launches"] for k in own)
            time = sum(k["predicted_us"] * k["launches"] for k in own)
            print(f"| {part} | {card} | {sum(k['launches'] for k in own)} | {products / flops:.3f} | {time:.1f} us |")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--only", default="")
    parser.add_argument("--cards", default=",".join(NVIDIA + AMD))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--model")
    args = parser.parse_args()
    cards = args.cards.split(",")
    return model(args, cards) if args.model else workloads(args, cards)


if __name__ == "__main__":
    sys.exit(main())
