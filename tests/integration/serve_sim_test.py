#!/usr/bin/env python3
"""`bellmetal serve` on simulated GPUs, and what becomes of it when one faults.

usage: serve_sim_test.py BELLMETAL SIM_AMD SIM_NV

The same text as on the CPU. A kernel that is made to fault fails its request with the cause, /readyz says so;
on NVIDIA the server opens the device again and answers as before, on AMD's kernel driver only another process
can: the server ends with 5, for the service manager to start it again.
"""
import json
import os
import re
import sys

import serve_test
from limits import seconds
from serve_test import until

PROGRAM, SIM_AMD, SIM_NV = sys.argv[1:4]
CANNOT_RUN_HERE = 77
BODY = {"prompt": "Permission is", "max_tokens": 4, "temperature": 0}
PREPARED = 300  # kernels: more than a server runs by itself after its first answer
REQUESTS = 30
NOWHERE = "ead00000"  # where the planted kernel reads, a few pages on at most


def start(device, *front):
    # Interpreted kernels are slow, and not hung; what the program is asked for lies in the cache.
    return serve_test.Server("--sequences", "1", "--ctx", "64", "--no-prefix-cache", wait=None, front=front, device=device,
                             environment={"BM_WAIT_TIMEOUT_MS": "600000"})


def ask(server):
    status, _, data = server.ask("POST", "/v1/completions", BODY)
    data = json.loads(data)
    return status, data["choices"][0]["text"] if status == 200 else data["error"]["message"]


def end(server):
    os.kill(server.event("listening")["pid"], 15)
    return server.wait(120)


def kernels(server):
    """How many the simulator says it has run."""
    return max(int(n) for n in re.findall(r"(\d+) (?:launches|kernels)", "".join(server.lines)))


def check(device, expected, simulator, *options):
    """The server on a simulator, and again with a fault in the second request. The server after the fault."""
    server = start(device, simulator, "--stats", *options)
    server.event("ready", limit=300)
    got = ask(server)
    assert got == (200, expected), (device, got)
    code = end(server)
    assert code == 0, (device, code, server.lines)
    print(device, repr(got[1]), kernels(server), "kernels", flush=True)
    # Beyond what loading and preparing run, whose order differs from one start to the next: in a request.
    server = start(device, simulator, "--plant", f"KernelReadsUnmapped,{kernels(server) + PREPARED}", *options)
    server.event("ready", limit=300)
    for _ in range(REQUESTS):
        status, text = ask(server)
        if status != 200:
            break
        assert text == expected, text
    assert status == 500 and NOWHERE in text, (device, status, text)
    return server


def main():
    serve_test.BELLMETAL = PROGRAM
    try:
        server = serve_test.Server("--sequences", "1", "--ctx", "64")
        _, expected = ask(server)
        assert server.stop() == 0
        front = [SIM_NV, "--chip", "gh100", "--release", "580"]
        server = check("NV:PTX", expected, *front)
        until(lambda: server.ask("GET", "/readyz")[0] == 200, seconds(300))
        assert server.metric("bellmetal:device_faults_total") == 1
        assert ask(server) == (200, expected)
        end(server)
        server = check("AMD", expected, SIM_AMD)
        code = server.wait(120)
        assert code == 5, (code, server.lines)
        gone, = [json.loads(line) for line in server.lines if '"device_gone"' in line]
        assert NOWHERE in gone["reason"], gone
    except AssertionError:
        if any(process.poll() == CANNOT_RUN_HERE for process in serve_test.RUNNING):
            sys.exit(CANNOT_RUN_HERE)
        raise
    finally:
        for process in serve_test.RUNNING:
            if process.poll() is None:
                process.kill()
    print("passed")


main()
