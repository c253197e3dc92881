#!/usr/bin/env python3
"""tinygrad's model of a card as the judge of the driver: the program boots it and computes on it.

Needs a checkout of github.com/tinygrad/tinygrad (nothing of it is part of this repository, and
nothing of it is changed), clang for its model of the shader, which compiles every instruction that
it meets, and firmware files of gfx1200, which the model takes unread: those of Debian's
firmware-amd-graphics, or what `sim-amd-firmware FOLDER gfx1200` makes.

  upstream_model.py BELLMETAL CHECKOUT FIRMWARE_FOLDER [arguments of bellmetal]
  upstream_model.py --test BELLMETAL SIM_AMD_FIRMWARE   # with the checkout of BM_TINYGRAD_CHECKOUT, else skipped (77)

Starts extra/remote/serve.py with DEV=MOCKPCI+AMD on a free port of this machine (it listens on every
address: do this where nobody else reaches it) and runs the program there: by default `devices`,
`gpu discover`, `gpu boot`, then `selftest` twice, on the card as it is found and as it was left.
Exits with 0 when every command does. JUDGE_TIMEOUT: seconds for each command (600).

  upstream_model.py build/rel/bin/bellmetal CHECKOUT FIRMWARE generate models/bundled/licence.gguf "Permission is" --max-tokens 1

The model executes kernels in Python before it answers, so a token takes it longer than the 30 s that
BM_WAIT_TIMEOUT_MS has by default; here it is set to JUDGE_TIMEOUT.
"""
import os
import select
import socket
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(checkout, port, log):
    server = subprocess.Popen(
        [sys.executable, "-u", "extra/remote/serve.py", str(port)], cwd=checkout,
        env=dict(os.environ, DEV="MOCKPCI+AMD", PYTHONPATH=checkout, DEBUG="0"),
        stdout=subprocess.PIPE, stderr=log, text=True)
    limit = time.monotonic() + 120
    while time.monotonic() < limit and server.poll() is None:
        if select.select([server.stdout], [], [], 1)[0] and "listening" in server.stdout.readline():
            return server
    log.seek(0)
    server.kill()
    sys.exit(f"the server does not start: {log.read()}")


def test(program, maker):
    checkout = os.environ.get("BM_TINYGRAD_CHECKOUT")
    if not checkout:
        print("skipped: BM_TINYGRAD_CHECKOUT names no checkout of tinygrad")
        return 77
    with tempfile.TemporaryDirectory(prefix="upstream-model-") as firmware:
        subprocess.run([maker, firmware, "gfx1200"], check=True)
        return judge(program, checkout, firmware, [])


def judge(program, checkout, firmware, arguments):
    checkout = os.path.abspath(checkout)
    if not os.path.exists(os.path.join(checkout, "extra/remote/serve.py")):
        sys.exit(f"{checkout} is no checkout of tinygrad")
    seconds = float(os.environ.get("JUDGE_TIMEOUT", "600"))
    port = free_port()
    card = f"remote:localhost:{port}"
    environment = dict(os.environ, DEV="AMD:PCI", BM_PCI=card, BM_FIRMWARE_DIR=os.path.abspath(firmware),
                       BM_WAIT_TIMEOUT_MS=str(int(seconds * 1000)))
    commands = [arguments] if arguments else [
        ["devices"], ["gpu", "discover", "--pci", card], ["gpu", "boot", "--pci", card, "--stats"],
        ["selftest"], ["selftest"]]
    with tempfile.TemporaryFile("w+") as log:
        server = start(checkout, port, log)
        try:
            for command in commands:
                begun = time.monotonic()
                done = subprocess.run([program, *command], env=environment, timeout=seconds, check=False)
                print(f"{' '.join(command)}: exit code {done.returncode}, {time.monotonic() - begun:.1f} s",
                      flush=True)
                if done.returncode != 0:
                    return done.returncode
            return 0
        finally:
            server.kill()
            server.wait()


def main():
    if sys.argv[1:2] == ["--test"]:
        return test(*sys.argv[2:])
    program, checkout, firmware, *arguments = sys.argv[1:]
    return judge(program, checkout, firmware, arguments)


if __name__ == "__main__":
    sys.exit(main())
