#!/usr/bin/env python3
"""NVIDIA cards that no kernel driver has, each a model in a process of its own, through DEV=NV:PCI.

usage: nv_pci_test.py FOLDER TRANSPORT CHIP

FOLDER is the one of the programs: bellmetal, sim-nv-pci, sim-nv-firmware. TRANSPORT is vfio-user (or remote). On one card the program's
selftest and the bundled model's tokens, those of the CPU, with nothing that the model refuses; on another a process that is killed in
the middle, then the tokens again.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from limits import seconds

FOLDER, TRANSPORT, CHIP = sys.argv[1:4]
PROGRAM = os.path.join(FOLDER, "bellmetal")
MODEL = "models/bundled/licence.gguf"
TOKENS = 3


def fail(text):
    sys.exit(f"{CHIP} over {TRANSPORT}: {text}")


def generate(device, environment):
    done = subprocess.run([PROGRAM, "generate", MODEL, "-p", "Permission is", "-n", str(TOKENS), "--temp", "0", "--device", device],
                          env=environment, capture_output=True, text=True, timeout=seconds(120), check=False)
    if done.returncode != 0:
        fail(f"generate on {device}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


class Card:
    """A model at a socket, in order until it is stopped."""

    def __init__(self, folder, firmware, name):
        self.socket, self.log = os.path.join(folder, name), os.path.join(folder, name + ".log")
        option = "--vfio-user" if TRANSPORT == "vfio-user" else "--remote"
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([os.path.join(FOLDER, "sim-nv-pci"), CHIP, option, self.socket, "--clients", "0",
                                             "--firmware", firmware], stdout=out, stderr=out)
        end = time.monotonic() + seconds(10)
        while not os.path.exists(self.socket):
            if self.process.poll() is not None or time.monotonic() > end:
                fail("the card does not come up: " + open(self.log).read())
            time.sleep(0.01)
        self.environment = dict(os.environ, BM_PCI=f"{TRANSPORT}:{self.socket}", BM_FIRMWARE_DIR=firmware, BM_NV_CODE="ptx")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=seconds(20))


def main():
    with tempfile.TemporaryDirectory(prefix="nv-pci-") as folder:
        firmware = os.path.join(folder, "firmware")
        os.mkdir(firmware)
        subprocess.run([os.path.join(FOLDER, "sim-nv-firmware"), firmware, CHIP], check=True)
        with Card(folder, firmware, "card") as card:
            tested = subprocess.run([PROGRAM, "selftest", "--device", "NV:PCI:LLVM"], env=card.environment, capture_output=True, text=True,
                                    timeout=seconds(120), check=False)
            if tested.returncode != 0 or "0 failed" not in tested.stdout:
                fail(f"selftest: exit code {tested.returncode}: {tested.stdout}{tested.stderr}")
            wanted = generate("CPU:LLVM", card.environment)
            if generate("NV:PCI:LLVM", card.environment) != wanted:
                fail("other tokens than the CPU's")
        text = open(card.log).read()
        if not re.search(r"\b0 violations", text):
            fail("the card refused something: " + text)
        # What a card does after its process was killed is nobody's order.
        with Card(folder, firmware, "killed") as card:
            killed = subprocess.Popen([PROGRAM, "generate", MODEL, "-p", "x", "-n", "200", "--device", "NV:PCI:LLVM"],
                                      env=card.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            if generate("NV:PCI:LLVM", card.environment) != wanted:
                fail("other tokens after a process that was killed")


main()
