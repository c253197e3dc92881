#!/usr/bin/env python3
"""`bellmetal serve` among clients of all kinds for a long time, and killed at random moments.

usage: serve_soak_test.py BELLMETAL soak SECONDS | kill TIMES

soak: connects, cancels, malformed bodies, slow readers and honest requests, whose answers are known; at the
end nothing is lost (places, pages, connections, threads, descriptors) and memory has not grown. A build with
sanitizers also ends with what they say. kill: SIGKILL between the start and the middle of answers; every
next start must get ready with the same kernel cache and give the same text. BM_SEED repeats a run.
"""
import http.client
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time

import serve_test
from limits import seconds

SEED = int(os.environ.get("BM_SEED", random.randrange(1 << 30)))
PROMPTS = serve_test.PROMPTS
CLIENTS = 12
MOST_GROWTH_MIB = 48
SANITIZER = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:")


def status_of(process, field):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise AssertionError(field)


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


class Soak:
    def __init__(self, server, expected):
        self.server, self.expected, self.counts, self.problems = server, expected, {}, []
        self.lock, self.end = threading.Lock(), 0.0

    def send(self, body, path="/v1/completions", buffer=None):
        s = socket.socket()
        s.settimeout(seconds(120))
        if buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                  .encode() + body)
        return s

    def honest(self, rng):
        prompt = rng.choice(PROMPTS)
        status, _, data = self.server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0})
        if status == 429:
            return
        assert status == 200, (status, data)
        assert json.loads(data)["choices"][0]["text"] == self.expected[prompt], data

    def bound(self, _rng):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        status, _, data = self.server.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 60,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
        if status == 200 and json.loads(data)["choices"][0]["finish_reason"] == "stop":
            assert json.loads(json.loads(data)["choices"][0]["message"]["content"])["a"] in (1, 2), data
        assert status in (200, 429), (status, data)

    def embedding(self, rng):
        status, _, data = self.server.ask("POST", "/v1/embeddings", {"input": ["a" * rng.randrange(1, 200)]})
        assert status in (200, 429), (status, data)

    def leaves(self, rng):
        body = {"prompt": "a" * rng.randrange(1, 300), "max_tokens": 200, "n": rng.randrange(1, 4), "stream": rng.random() < 0.7}
        s = self.send(json.dumps(body).encode())
        if rng.random() < 0.5:
            s.recv(rng.randrange(1, 2000))
        time.sleep(rng.random() * 0.1)
        s.close()

    def malformed(self, rng):
        body = json.dumps({"prompt": "a", "max_tokens": 3}).encode()
        kind = rng.randrange(4)
        if kind == 0:
            body = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
        elif kind == 1:
            body = body[:rng.randrange(len(body))]
        elif kind == 2:
            body = bytearray(body)
            body[rng.randrange(len(body))] = rng.randrange(256)
        else:
            body = b"[" * rng.randrange(1, 100000)
        with self.send(bytes(body), rng.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/embeddings"])) as s:
            assert s.recv(12).startswith(b"HTTP/1.1 "), body[:50]

    def half(self, rng):
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\nContent-Type: application/json\r\n\r\n{"[:rng.randrange(1, 90)])
            time.sleep(rng.random() * 0.2)

    def slow(self, rng):
        with self.send(json.dumps({"prompt": "a", "max_tokens": 100, "stream": True}).encode(), buffer=1024) as s:
            for _ in range(rng.randrange(1, 20)):
                if not s.recv(64):
                    break
                time.sleep(0.02)

    def looks(self, _rng):
        assert self.server.ask("GET", "/readyz")[0] == 200
        self.server.metrics()

    def client(self, number):
        rng = random.Random(SEED * 1000 + number)
        kinds = [self.honest] * 6 + [self.bound, self.embedding, self.leaves, self.leaves, self.malformed, self.half, self.slow, self.looks]
        while time.monotonic() < self.end and not self.problems:
            kind = rng.choice(kinds)
            try:
                kind(rng)
            except (OSError, http.client.HTTPException) as problem:
                if kind in (self.honest, self.bound, self.embedding, self.looks):
                    self.problems.append(f"{kind.__name__}: {problem!r}")
            except AssertionError as problem:
                self.problems.append(f"{kind.__name__}: {problem}")
            with self.lock:
                self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1

    def run(self, duration):
        self.end = time.monotonic() + duration
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not self.problems, self.problems

    def settle(self):
        """What is left when everybody has gone."""
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_pages_used"):
            serve_test.until(lambda name=name: self.server.metric("bellmetal:" + name) == 0, 60)
        serve_test.until(lambda: self.server.metric("bellmetal:http_connections") == 1, 60)
        return {"descriptors": descriptors(self.server.process), "threads": status_of(self.server.process, "Threads"),
                "rss_mib": status_of(self.server.process, "VmRSS") / 1024}


def soak(duration, template):
    server = serve_test.Server("--chat-template", template, "--sequences", "4", "--queue", "16", "--idle-seconds", "5",
                               "--draft-tokens", "2")
    expected = {p: server.complete(p)["choices"][0]["text"] for p in PROMPTS}
    s = Soak(server, expected)
    s.run(max(2, duration / 10))  # caches fill, programs are compiled
    before = s.settle()
    s.run(duration)
    # A connection that its client has left counts until the server has seen that: idle ones after --idle-seconds.
    end = time.monotonic() + seconds(15)
    while True:
        after = s.settle()
        if (after["descriptors"] <= before["descriptors"] and after["threads"] <= before["threads"]) or time.monotonic() > end:
            break
        time.sleep(0.5)
    print(s.counts, before, after)
    assert after["descriptors"] <= before["descriptors"] and after["threads"] <= before["threads"], (before, after)
    assert after["rss_mib"] - before["rss_mib"] < MOST_GROWTH_MIB, (before, after)
    assert server.stop() == 0
    assert not any(word in line for line in server.lines for word in SANITIZER), "".join(server.lines)[-4000:]


def kill(times):
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as cache:
        environment = {"BM_CACHE_DIR": cache}
        text = None
        for i in range(times):
            server = serve_test.Server(environment=environment, wait=None)
            if i % 10 == 0:  # the first, and now and then, to its end
                server.event("ready")
                got = server.complete(PROMPTS[0])["choices"][0]["text"]
                assert text in (None, got), (text, got)
                text = got
            busy = threading.Thread(target=lambda server=server: answer_or_not(server))
            busy.start()
            time.sleep(rng.random() * (1.5 if i % 2 else 0.3))
            server.process.kill()
            assert server.wait() == -9
            busy.join()
        server = serve_test.Server(environment=environment)
        assert server.complete(PROMPTS[0])["choices"][0]["text"] == text
        assert server.stop() == 0
    print(f"{times} kills, seed {SEED}")


def answer_or_not(server):
    try:
        server.ask("POST", "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 200})
    except (OSError, http.client.HTTPException):
        pass


def main():
    serve_test.BELLMETAL, mode, amount = sys.argv[1:4]
    print("seed", SEED, flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            template = os.path.join(folder, "template.jinja")
            with open(template, "w", encoding="utf-8") as file:
                file.write(serve_test.TEMPLATE)
            if mode == "soak":
                soak(float(amount), template)
            else:
                kill(int(amount))
    finally:
        for process in serve_test.RUNNING:
            if process.poll() is None:
                process.kill()


main()
