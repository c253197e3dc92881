#!/usr/bin/env python3
"""The field's words: none that docs/vocabulary.md replaces comes back, and searches hit the file that does it.

usage: words.py [ROOT]     prints file:line and the word to use; exit 1 if there is any

Looks at identifiers, comments and texts of schedules, lowering and fusion. A plain English phrase that is no name
for anything, such as "in place", is right as it is.
"""
import os
import re
import sys

SCHEDULES = ["compiler/schedules", "compiler/lowering"]
COMPILER = ["compiler/analysis", "compiler/program", "compiler/targets", "compiler/tune", *SCHEDULES]
TENSOR = ["tensor/fusion", "tensor/ops_", "tensor/reduce_parts"]

# What is looked at, the word, what to say. Parts of CamelCase and snake_case names count as words.
RULES = [
    ([*SCHEDULES, *TENSOR], r"copies", "copies: stage, pack, unroll, instances or chunks, whichever it is"),
    ([*COMPILER, *TENSOR], r"places?|placed", "place: address, offset, index, position or memory domain, whichever it is"),
    ([*SCHEDULES, *TENSOR], r"sums", "sums: accumulators, partial sums, or a reduction, whichever it is"),
    (["compiler", "tensor"], r"neighbou?r(?:s|ing)?", "neighbour: adjacent, contiguous, or consecutive lanes"),
    (["compiler", "tensor"], r"trips", "trips: iterations, trip count"),
    (["compiler", "tensor"], r"dealt", "dealt: partitioned, distributed over"),
    (["compiler", "tensor"], r"dear", "dear: expensive"),
    (["compiler", "tensor"], r"fades?|fading", "fade: rescale"),
    (["compiler", "tensor"], r"brains", "brains: bfloat16"),
    (["compiler", "tensor"], r"extremes", "extremes: min, max"),
]
# Terms that hold such a word, and plain English.
RIGHT = re.compile(r"""(?:prefix|partial|running|row|block|both)[ _]sums|row_sums\w*|in[ _]place\w*|in[ ](?:its|the[ ]last)[ ]place
                       |async(?:hronous)?[ _]copies|(?:commit|wait|wait[ ]for)[ _]?copies""", re.I | re.X)

# What a colleague would search for, and where it must be found, case aside.
SEARCHES = {
    "gemm": ["compiler/schedules/gemm_cpu/lower.cpp", "compiler/schedules/gemm_gpu/lower_simt.cpp",
             "compiler/schedules/implicit_gemm/lower.cpp", "compiler/schedules/quantised_gemm/lower.cpp"],
    "gemv": ["compiler/schedules/gemm_cpu/lower_gemv.cpp"],
    "softmax": ["compiler/schedules/attention/find.cpp"],
    "online softmax": ["compiler/schedules/attention/lower_mma_softmax.cpp", "compiler/schedules/attention/lower_decode.cpp",
                       "compiler/schedules/attention/lower_cpu_tile.cpp"],
    "prefetch": ["compiler/lowering/prefetch.cpp"],
    "double buffer": ["compiler/schedules/gemm_gpu/plan_pipelined.cpp", "compiler/schedules/implicit_gemm/implicit_gemm.h"],
    "bank conflict": ["compiler/lowering/stage.h", "compiler/lowering/chunk_stage.h", "compiler/schedules/groups/transpose.cpp"],
    "split-k": ["compiler/schedules/split_k/plan.cpp", "compiler/schedules/split_k/lower.cpp"],
    "top-k": ["compiler/schedules/topk/plan.cpp", "compiler/schedules/topk/lower.cpp"],
    "epilogue": ["compiler/lowering/epilogue.h", "compiler/schedules/gemm_cpu/lower_epilogue.cpp"],
    "accumulator": ["compiler/lowering/contract.h"],
    "unroll": ["compiler/schedules/loops/unroll_and_jam.cpp", "compiler/schedules/groups/lower_unrolled.cpp"],
    "fusion": ["tensor/fusion.cpp"],
}


def words(line):
    """The line with names divided into words: kMostCopies, row_copies -> k Most Copies, row copies."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line).replace("_", " ")


def check_words(root):
    found = []
    for folder in sorted({f.split("/")[0] for folders, _, _ in RULES for f in folders}):
        for where, _, files in sorted(os.walk(os.path.join(root, folder))):
            for file in sorted(files):
                name = os.path.relpath(os.path.join(where, file), root)
                rules = [(re.compile(rf"\b(?:{word})\b", re.I), say) for folders, word, say in RULES
                         if any(name.startswith(f) for f in folders)]
                if not rules or not file.endswith((".cpp", ".h", ".md")):
                    continue
                with open(os.path.join(root, name), encoding="utf-8") as text:
                    for number, line in enumerate(text, 1):
                        plain = RIGHT.sub(" ", words(RIGHT.sub(" ", line)))
                        found += [f"{name}:{number}: {say}" for rule, say in rules if rule.search(plain)]
                found += [f"{name}: {say}" for rule, say in rules if rule.search(words(os.path.basename(name)))]
    return found


def check_searches(root):
    found = []
    for term, files in SEARCHES.items():
        for name in files:
            path = os.path.join(root, name)
            if not os.path.exists(path):
                found.append(f"{name} does not exist: a search for '{term}' should hit it")
                continue
            with open(path, encoding="utf-8") as text:
                # Comments are broken into lines anywhere.
                if term not in re.sub(r"\s*\n\s*(?://+ ?)?", " ", text.read()).lower():
                    found.append(f"{name}: a search for '{term}' does not hit it")
    return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = check_words(root) + check_searches(root)
    for line in found:
        print(line)
    print(f"words: {len(found)} to replace")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
