#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random texts in which tokenizers differ, and small vocabularies made of such texts.

    random_texts.py COUNT [--seed 1]      texts, separated by NUL
"""

import argparse
import random
import sys

WORDS = ("the The THE hello HELLO lo ello world World don't I'll we'RE it's he'd 'tis camelCase snake_case x86_64 HTTPServer "
         "naïve café cafe\u0301 Straße ſtraſſe İstanbul привет Привет мир καλημέρα שלום مرحبا الْعَرَبِيَّة हिन्दी ภาษาไทย 中文 你好世界 日本語 カタカナ "
         "한국어 Việt e\u0301e\u0301 o\u0308 12 345 6789 1234567 3.14 1,000,000 ½ ² Ⅷ ٣٤٥ ४५ 0x1F $5 €20 £3 100% <b> </b> {} [] () -> => != == // /* */ "
         "#! ... … -- — ‘q’ “q” a.b foo@bar.com http://x.y/z?q=1&r=2 C++ :) 🙂 👨‍👩‍👧 🇩🇪 ♥️ ™ © \u200b \u200d \ufeff \u00ad \ue000 \U000e0041 \u0378 "
         "\x01 \x7f \x85 _ __ ^ ` ~ | \\ \\n a b c A B C é É ß ÿ ▁ ▁▁ Ġ Ċ <0x0A> ' '' \"").split(" ")
SPACES = [" "] * 8 + ["  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2009", "\u2028", "\v", "\f", ""]


def text(rng, most=14):
    out = []
    for _ in range(rng.randrange(1, most)):
        kind = rng.random()
        if kind < 0.75:
            out.append(rng.choice(WORDS))
        elif kind < 0.85:
            out.append("".join(rng.choice("abcdefghij ABC 0123456789 .,!?'-_\n") for _ in range(rng.randrange(1, 9))))
        elif kind < 0.97:
            out.append("".join(chr(rng.choice((rng.randrange(32, 0x250), rng.randrange(0x250, 0x3000), rng.randrange(0x3000, 0xd800),
                                                rng.randrange(0xe000, 0xfffe), rng.randrange(0x10000, 0x1fbff)))) for _ in range(rng.randrange(1, 4))))
        else:
            out.append(rng.choice(SPACES) * rng.randrange(1, 5))
        if rng.random() < 0.8:
            out.append(rng.choice(SPACES))
    return "".join(out) or "a"


def texts(count, seed):
    rng = random.Random(seed)
    return [text(rng) for _ in range(count)]


def train(words, count, seed):
    """The `count` most frequent pairs, one after the other: merges of words given as lists of symbols."""
    words = [list(w) for w in words]
    merges = []
    for _ in range(count):
        pairs = {}
        for w in words:
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        pairs = {p: n for p, n in pairs.items() if " " not in p[0][1:] + p[1] and n > 1}
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == best:
                    w[i:i + 2] = [w[i] + w[i + 1]]
                i += 1
    return merges


def main():
    ap = argparse.ArgumentParser(description="Random texts in which tokenizers differ.")
    ap.add_argument("count", type=int)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    sys.stdout.buffer.write("\0".join(texts(a.count, a.seed)).encode())


if __name__ == "__main__":
    main()
