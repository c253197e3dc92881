#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Train the small language model that is bundled with the project.

The result is `models/bundled/licence.gguf`: a byte-level model of the llama
architecture (RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied
embeddings) that has learnt English licence text.  It exists so that the main
program can be tried, and the tests can run, without any download.

How to reproduce
----------------
On Debian 12 ("bookworm"):

    apt install python3-torch python3-numpy
    nice python3 tools/train_bundled_model.py

That makes 2200 steps with one thread, in about 18 minutes on a processor with
AVX-512 bfloat16 instructions.  On a processor without them use
`--precision float32` and install `libopenblas0` too, because the reference BLAS
that is installed by default is an order of magnitude slower.  With the same
`--steps`, `--seed`, packages and kind of processor the run is deterministic; a
different processor or a different set of installed texts gives a different,
equally usable model.  `--minutes` measures the speed of the first steps and then
fixes the number of steps, which it prints.

Training text
-------------
* every regular file in /usr/share/common-licenses (links are skipped);
* the licence paragraphs of the `copyright` files of the packages in
  BASE_PACKAGES below, which every Debian with Python has.  Lines that carry
  names of people (copyright lines, mail addresses) are left out.
Near-duplicates are dropped, punctuation is reduced to ASCII, and the lines of a
paragraph are joined.  `--dump-corpus FILE` writes the text out for inspection.

Vocabulary
----------
0 <unk>, 1 <s>, 2 </s>, 3..258 the byte tokens <0x00>..<0xFF>, 259 U+2581 (the
SentencePiece sign for a space), 260..287 unused padding.  A standard
SentencePiece-style tokenizer gives, for this vocabulary, token 259 for each
space and one byte token for each other byte; the training stream is exactly
that.  Documents are separated by </s><s>.
"""

import argparse
import json
import math
import os
import re
import struct
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

# --- vocabulary -------------------------------------------------------------

UNK, BOS, EOS, FIRST_BYTE, SPACE, VOCAB = 0, 1, 2, 3, 259, 288


def encode(text):
    """Token ids of `text`, without BOS or EOS."""
    return [SPACE if b == 0x20 else FIRST_BYTE + b for b in text.encode("utf-8")]


def decode(ids):
    out = bytearray()
    for i in ids:
        if i == SPACE:
            out.append(0x20)
        elif FIRST_BYTE <= i < SPACE:
            out.append(i - FIRST_BYTE)
        elif i == EOS:
            out += b"</s>"
        elif i == BOS:
            out += b"<s>"
    return out.decode("utf-8", "replace")


# --- text -------------------------------------------------------------------

COMMON_LICENSES = "/usr/share/common-licenses"
DOC = "/usr/share/doc"
BASE_PACKAGES = (
    "adduser apt bash coreutils dash debconf debianutils diffutils dpkg e2fsprogs "
    "findutils gpgv grep gzip init-system-helpers libc6 libcap2 libpam-runtime "
    "libpython3.11-minimal libsystemd0 login mawk ncurses-base perl-base procps "
    "python3-numpy sed sensible-utils sysvinit-utils tar util-linux zlib1g"
).split()

PUNCTUATION = {
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-",
    "\u2014": "--", "\u2026": "...", "\u00a0": " ", "\u00a9": "(c)", "\u2022": "*",
    "\u00ad": "", "\f": "\n", "\t": " ", "``": '"', "''": '"',
}
LICENCE_WORDS = re.compile(
    r"licen[cs]|permission|warrant|redistribut|liab|copyright holder", re.I)
PERSONAL = re.compile(
    r"@|https?://|ftp:|\(c\) *(19|20)\d\d|^copyright\b.*\d{4}|(19|20)\d\d(, | by )[A-Z]", re.I)


def tidy(paragraph):
    """One paragraph as one line of printable ASCII."""
    for a, b in PUNCTUATION.items():
        paragraph = paragraph.replace(a, b)
    lines = [re.sub(r"^(\s*(#|;;|//|\*|\.\\\")\s)+", "", l) for l in paragraph.split("\n")]
    text = re.sub(r"\s+", " ", " ".join(lines)).strip()
    return "".join(c for c in text if " " <= c <= "~")


def paragraphs(text):
    return [p for p in (tidy(p) for p in re.split(r"\n[ \t*#]*\n", text)) if p]


def copyright_documents(text):
    """The licence texts inside one Debian `copyright` file."""
    text = text.replace("\t", " ")
    machine = re.match(r"(#.*\n|\s*\n)*Format(-Specification)?:", text)
    if machine:
        for body in re.findall(r"^License:[^\n]*\n((?: [^\n]*\n)+)", text + "\n", re.M):
            body = re.sub(r"^ +\.[ ]*$", "", body, flags=re.M)
            yield [p for p in paragraphs(body) if not PERSONAL.search(p)]
    else:
        keep = []
        for p in paragraphs(text):
            if len(p) >= 160 and LICENCE_WORDS.search(p) and not PERSONAL.search(p):
                keep.append(p)
            elif keep:
                yield keep
                keep = []
        yield keep


def is_prose(p):
    letters = sum(c.isalpha() or c == " " for c in p)
    return letters >= 0.85 * len(p)


def load_documents():
    """List of documents, each a list of paragraphs; and the names of the sources."""
    documents, sources = [], []
    for name in sorted(os.listdir(COMMON_LICENSES)):
        path = os.path.join(COMMON_LICENSES, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            documents.append(paragraphs(f.read()))
        sources.append(name)
    for package in BASE_PACKAGES:
        path = os.path.join(DOC, package, "copyright")
        if not os.path.isfile(path):
            print(f"note: {path} is missing; skipped", file=sys.stderr)
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            for d in copyright_documents(f.read()):
                d = [p for p in d if is_prose(p)]
                if sum(map(len, d)) >= 200 and LICENCE_WORDS.search(" ".join(d)):
                    documents.append(d)
        sources.append(package)

    # Drop paragraphs most of whose five-word runs were seen in earlier documents.
    seen, result = set(), []
    for d in documents:
        kept, here = [], set()
        for p in d:
            words = re.findall(r"[a-z0-9]+", p.lower())
            runs = {tuple(words[i:i + 5]) for i in range(max(1, len(words) - 4))}
            if len(words) >= 12 and len(runs & seen) > 0.7 * len(runs):
                continue
            here |= runs
            kept.append(p)
        seen |= here
        if sum(map(len, kept)) >= 120:
            result.append(kept)
    return result, sources


# --- model ------------------------------------------------------------------

class Config:
    dim = 256
    layers = 4
    heads = 8
    kv_heads = 4
    ffn = 768
    context = 512
    theta = 10000.0
    eps = 1e-5
    head_dim = dim // heads


def init_weights(c, seed):
    """Weights under their GGUF names; matrices are [out, in]."""
    g = torch.Generator().manual_seed(seed)

    def matrix(out, inp, std):
        return torch.randn(out, inp, generator=g) * std

    w = {"token_embd.weight": matrix(VOCAB, c.dim, 0.04)}
    for n in range(c.layers):
        p, kv = f"blk.{n}.", c.kv_heads * c.head_dim
        std, out_std = c.dim ** -0.5, (c.dim * 2 * c.layers) ** -0.5
        w[p + "attn_norm.weight"] = torch.ones(c.dim)
        w[p + "attn_q.weight"] = matrix(c.dim, c.dim, std)
        w[p + "attn_k.weight"] = matrix(kv, c.dim, std)
        w[p + "attn_v.weight"] = matrix(kv, c.dim, std)
        w[p + "attn_output.weight"] = matrix(c.dim, c.dim, out_std)
        w[p + "ffn_norm.weight"] = torch.ones(c.dim)
        w[p + "ffn_gate.weight"] = matrix(c.ffn, c.dim, std)
        w[p + "ffn_up.weight"] = matrix(c.ffn, c.dim, std)
        w[p + "ffn_down.weight"] = matrix(c.dim, c.ffn, out_std)
    w["output_norm.weight"] = torch.ones(c.dim)
    return w


class Model:
    def __init__(self, c, weights, dtype):
        self.c, self.w, self.dtype = c, weights, dtype
        half = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
        angle = torch.outer(torch.arange(c.context, dtype=torch.float64), c.theta ** -half)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()
        self.block = 128
        self.mask = torch.full((self.block, self.block), -1e9).triu(1)

    def linear(self, x, name):
        return F.linear(x.to(self.dtype), self.w[name].to(self.dtype))

    def norm(self, x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c.eps) * self.w[name]

    def rope(self, x):
        # x: [batch, time, heads, head_dim]; the pairs are (2i, 2i + 1).
        t = x.shape[1]
        cos, sin = self.cos[:t, None, :], self.sin[:t, None, :]
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def attention(self, q, k, v):
        """q, k, v: [batch * heads, time, head_dim]; causal, in blocks of queries."""
        out, t = [], q.shape[1]
        for s in range(0, t, self.block):
            e = min(t, s + self.block)
            scores = torch.bmm(q[:, s:e], k[:, :e].transpose(1, 2))
            diagonal = scores[:, :, s:] + self.mask[:e - s, :e - s].to(scores.dtype)
            scores = torch.cat((scores[:, :, :s], diagonal), -1) if s else diagonal
            out.append(torch.bmm(torch.softmax(scores, -1), v[:, :e]))
        return torch.cat(out, 1)

    def __call__(self, ids):
        c, (b, t) = self.c, ids.shape
        x = F.embedding(ids, self.w["token_embd.weight"])
        for n in range(c.layers):
            p = f"blk.{n}."
            h = self.norm(x, p + "attn_norm.weight").to(self.dtype)
            q = self.linear(h, p + "attn_q.weight").view(b, t, c.heads, c.head_dim)
            k = self.linear(h, p + "attn_k.weight").view(b, t, c.kv_heads, c.head_dim)
            v = self.linear(h, p + "attn_v.weight").view(b, t, c.kv_heads, c.head_dim)
            q, k = self.rope(q) * c.head_dim ** -0.5, self.rope(k)
            group = c.heads // c.kv_heads  # query head h uses key/value head h // group

            def rows(y, repeat):
                y = y.to(self.dtype).transpose(1, 2)
                if repeat > 1:
                    y = y.unsqueeze(2).expand(b, c.kv_heads, repeat, t, c.head_dim)
                return y.reshape(b * c.heads, t, c.head_dim)

            o = self.attention(rows(q, 1), rows(k, group), rows(v, group))
            o = o.view(b, c.heads, t, c.head_dim).transpose(1, 2).reshape(b, t, c.dim)
            x = x + self.linear(o, p + "attn_output.weight").float()
            h = self.norm(x, p + "ffn_norm.weight").to(self.dtype)
            h = F.silu(self.linear(h, p + "ffn_gate.weight")) * self.linear(h, p + "ffn_up.weight")
            x = x + self.linear(h, p + "ffn_down.weight").float()
        x = self.norm(x, "output_norm.weight")
        return self.linear(x, "token_embd.weight").float()


def generate(model, ids, count, temperature=0.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    ids = list(ids)
    start = len(ids)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids[-model.c.context:]]))[0, -1]
            if temperature == 0:
                nxt = int(logits.argmax())
            else:
                nxt = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=g))
            ids.append(nxt)
            if nxt == EOS:
                break
    return ids[start:]


# --- GGUF v3 ----------------------------------------------------------------

ALIGNMENT = 32
U32, I32, F32, BOOL, STR, ARR = 4, 5, 6, 7, 8, 9
TENSOR_F32, TENSOR_F16 = 0, 1


def gguf_string(s):
    raw = s.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind, value):
    if kind == STR:
        return gguf_string(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def gguf_entry(key, kind, value):
    out = gguf_string(key)
    if isinstance(value, (list, tuple)):
        out += struct.pack("<IIQ", ARR, kind, len(value))
        return out + b"".join(gguf_value(kind, v) for v in value)
    return out + struct.pack("<I", kind) + gguf_value(kind, value)


def write_gguf(path, metadata, tensors):
    """metadata: (key, kind, value) triples; tensors: name -> float16/float32 array."""
    infos, blobs, offset = [], [], 0
    for name, a in tensors.items():
        kind = {np.dtype("float32"): TENSOR_F32, np.dtype("float16"): TENSOR_F16}[a.dtype]
        dims = a.shape[::-1]  # the first GGUF dimension is the fastest
        infos.append(gguf_string(name) + struct.pack("<I", len(dims))
                     + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset))
        raw = np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<")).tobytes()
        raw += b"\0" * (-len(raw) % ALIGNMENT)
        blobs.append(raw)
        offset += len(raw)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(gguf_entry(*m) for m in metadata) + b"".join(infos)
    head += b"\0" * (-len(head) % ALIGNMENT)
    temporary = path + ".part"
    with open(temporary, "wb") as f:
        f.write(head)
        for raw in blobs:
            f.write(raw)
    os.replace(temporary, path)


def export(path, c, weights, sources):
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581"]
    types = [2, 3, 3] + [6] * 256 + [1]
    while len(pieces) < VOCAB:
        pieces.append(f"<unused_{len(pieces)}>")
        types.append(5)
    metadata = [
        ("general.architecture", STR, "llama"),
        ("general.alignment", U32, ALIGNMENT),
        ("general.name", STR, "Bellmetal licence model"),
        ("general.author", STR, "The Bellmetal authors"),
        ("general.license", STR, "MIT"),
        ("general.description", STR,
         "Small byte-level language model of English licence text, made by "
         "tools/train_bundled_model.py. The model is under the MIT licence, like the project. "
         "Training text: Debian's common licence texts and licence paragraphs of the copyright "
         "files of Debian packages: " + ", ".join(sources) + "."),
        ("general.file_type", U32, 1),
        ("llama.context_length", U32, c.context),
        ("llama.embedding_length", U32, c.dim),
        ("llama.block_count", U32, c.layers),
        ("llama.feed_forward_length", U32, c.ffn),
        ("llama.attention.head_count", U32, c.heads),
        ("llama.attention.head_count_kv", U32, c.kv_heads),
        ("llama.attention.layer_norm_rms_epsilon", F32, c.eps),
        ("llama.rope.dimension_count", U32, c.head_dim),
        ("llama.rope.freq_base", F32, c.theta),
        ("llama.vocab_size", U32, VOCAB),
        ("tokenizer.ggml.model", STR, "llama"),
        ("tokenizer.ggml.pre", STR, "default"),
        ("tokenizer.ggml.tokens", STR, pieces),
        ("tokenizer.ggml.scores", F32, [0.0] * VOCAB),
        ("tokenizer.ggml.token_type", I32, types),
        ("tokenizer.ggml.bos_token_id", U32, BOS),
        ("tokenizer.ggml.eos_token_id", U32, EOS),
        ("tokenizer.ggml.unknown_token_id", U32, UNK),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.ggml.add_eos_token", BOOL, False),
        ("tokenizer.ggml.add_space_prefix", BOOL, False),
    ]
    tensors = {}
    for name, w in weights.items():
        a = w.detach().numpy()
        tensors[name] = a.astype(np.float16) if a.ndim == 2 else a.astype(np.float32)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    write_gguf(path, metadata, tensors)


# --- training ---------------------------------------------------------------

def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description="Train the bundled model and write it as GGUF.")
    ap.add_argument("--out", default=os.path.join(here, "..", "models", "bundled", "licence.gguf"))
    ap.add_argument("--minutes", type=float, help="choose the number of steps for this time")
    ap.add_argument("--steps", type=int, default=2200, help="number of steps (2200)")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--batch-tokens", type=int, default=4096, help="tokens per step")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16",
                    help="number format of the matrix products while training")
    ap.add_argument("--save-every", type=int, default=500, help="steps between exports")
    ap.add_argument("--dump-corpus", metavar="FILE", help="write the training text and stop")
    args = ap.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    c = Config()

    documents, sources = load_documents()
    texts = ["\n\n".join(d) for d in documents]
    if args.dump_corpus:
        with open(args.dump_corpus, "w", encoding="utf-8") as f:
            f.write("\n\n=====\n\n".join(texts) + "\n")
        return
    stream, starts = [], []  # starts: positions where a paragraph begins
    for d in documents:
        stream.append(BOS)
        for i, p in enumerate(d):
            starts.append(len(stream))
            stream += encode(p + ("\n\n" if i + 1 < len(d) else ""))
        stream.append(EOS)
    stream += stream[:c.context + 1]  # windows wrap around
    total = len(stream) - c.context - 1
    stream = torch.tensor(stream)
    print(f"text: {len(documents)} documents, {total} tokens", flush=True)

    weights = init_weights(c, args.seed)
    for w in weights.values():
        w.requires_grad_(True)
    count = sum(w.numel() for w in weights.values())
    print(f"model: {count} parameters", flush=True)
    matrices = [w for w in weights.values() if w.dim() == 2]
    norms = [w for w in weights.values() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.97), eps=1e-8)
    model = Model(c, weights, getattr(torch, args.precision))
    g = torch.Generator().manual_seed(args.seed)

    def batch():
        """Random windows; one in four starts at a paragraph, with BOS before it."""
        xs, length = [], c.context
        for _ in range(args.batch_tokens // length):
            if int(torch.randint(4, (1,), generator=g)) == 0:
                s = starts[int(torch.randint(len(starts), (1,), generator=g))]
                xs.append(torch.cat((torch.tensor([BOS]), stream[s:s + length])))
            else:
                s = int(torch.randint(total, (1,), generator=g))
                xs.append(stream[s:s + length + 1])
        x = torch.stack(xs)
        return x[:, :-1], x[:, 1:]

    steps = 0 if args.minutes else args.steps  # 0: not known yet
    started = timer = time.time()
    step, average, probe = 0, None, 30
    while True:
        # Until the speed is known the schedule is in its warm-up, which does not
        # depend on the number of steps.
        if not steps and step == probe:
            per_step = (time.time() - timer) / (probe - 5)
            steps = max(200, int((args.minutes * 60 - 10) / (per_step * 1.08)))
            print(f"planned: --steps {steps} ({per_step:.2f} s each)", flush=True)
        if steps and step >= steps:
            break
        if step == 5:
            timer = time.time()
        progress = step / steps if steps else 0.0
        if step < 60:
            lr = args.lr * (step + 1) / 60
        else:
            lr = args.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = lr
        x, y = batch()
        loss = F.cross_entropy(model(x).view(-1, VOCAB), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        step += 1
        value = loss.item()
        average = value if average is None else 0.95 * average + 0.05 * value
        if step % 50 == 0:
            print(f"step {step}/{steps or '?'}  loss {average:.4f} nats  "
                  f"lr {lr:.2e}  {(time.time() - started) / 60:.1f} min", flush=True)
        if args.save_every and step % args.save_every == 0:
            export(args.out, c, weights, sources)

    export(args.out, c, weights, sources)
    wall = time.time() - started

    # The final loss, over consecutive windows of the whole text.
    losses = []
    with torch.no_grad():
        for s in range(0, total, c.context):
            x = stream[s:s + c.context + 1]
            losses.append(float(F.cross_entropy(model(x[None, :-1])[0], x[1:])))
    prompts = ["Permission is hereby granted", "The licensee", "You may"]
    summary = {
        "parameters": count, "steps": step, "training_minutes": round(wall / 60, 2),
        "loss_nats": round(float(np.mean(losses)), 4), "bytes": os.path.getsize(args.out),
        "greedy_32": generate(Model(c, weights, torch.float32), [BOS] + encode(prompts[0]), 32),
    }
    for p in prompts:
        for t in (0.0, 0.8):
            print(f"--- temperature {t}\n{p}{decode(generate(model, [BOS] + encode(p), 300, t))}")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
