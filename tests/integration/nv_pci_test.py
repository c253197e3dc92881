#!/usr/bin/env python3
"""NVIDIA cards that no kernel driver has, each a model in a process of its own, through DEV=NV:PCI.

usage: nv_pci_test.py FOLDER TRANSPORT CHIP PART...

FOLDER is the one of the programs: bellmetal, nv_pci_open (opens a card and closes it), sim-nv-pci, sim-nv-firmware and cts_nv_pci.
TRANSPORT is remote, tcp (the same protocol, over which the card reaches no memory of ours),
vfio-user, or process: cards of bellmetal_nv in its own process, for the first part. Parts:

generate  the program's selftest, then the bundled model's tokens, those of the CPU; the card has nothing against any of it
states    boots of a card just switched on, left in order, left by a killed process, and after a child of fork()
cts       the conformance suite, between two cards where it wants two; cts:N is the N-th quarter of it, cts:0 the day's
kills     so many starts (kills:10) killed at requests spread over a whole start; the next one resets the card if it must, and works
ctrl-c    `gpu boot` ended by SIGINT at so many moments (ctrl-c:3), and `generate` by one: the right exit code, and the next start works
"""
import atexit
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from limits import seconds

FOLDER, TRANSPORT, CHIP = sys.argv[1:4]
PARTS = sys.argv[4:]
PROGRAM = os.path.join(FOLDER, "bellmetal_nv" if TRANSPORT == "process" else "bellmetal")
CHIPS = ["tu102", "ga100", "ga102", "ad102", "gh100", "gb100", "gb202"]
DEVICE = f"NV:{CHIPS.index(CHIP)}:LLVM" if TRANSPORT == "process" else "NV:PCI:LLVM"
OPENER = os.path.join(FOLDER, "nv_pci_open")
MODEL = "models/bundled/licence.gguf"
HELD = tempfile.TemporaryDirectory(prefix="nv-pci-")
FIRMWARE = os.path.join(HELD.name, "firmware")


def check(is_right, what):
    if not is_right:
        sys.exit(f"{CHIP} over {TRANSPORT}: {what}")


class OwnCard:
    """One of the program's own process, which it ends when the card refuses something."""

    name = ""

    def end(self):
        return ""


class Card:
    """A modelled card that stays until the end, whoever comes and goes."""

    count = 0

    def __init__(self, *options):
        Card.count += 1
        self.path = os.path.join(HELD.name, f"card{Card.count}")
        self.log = open(self.path + ".log", "w+")
        place = ["--remote", "0"] if TRANSPORT == "tcp" else ["--" + TRANSPORT, self.path]
        self.server = subprocess.Popen([os.path.join(FOLDER, "sim-nv-pci"), CHIP, *place, "--clients", "0",
                                        "--firmware", FIRMWARE, *options], stdout=self.log, stderr=self.log)
        atexit.register(self.server.kill)
        limit = time.monotonic() + seconds(30)
        while not self.find_name():
            check(self.server.poll() is None and time.monotonic() < limit, "the model does not start")
            time.sleep(0.01)

    def find_name(self):
        """What BM_PCI calls it; empty until it listens."""
        if TRANSPORT == "tcp":  # the server's first line
            with open(self.path + ".log", encoding="utf-8") as said:
                line = said.readline()
            self.name = "remote:" + line.strip() if line.endswith("\n") else ""
        else:
            self.name = f"{TRANSPORT}:{self.path}" if os.path.exists(self.path) else ""
        return self.name

    def end(self, may_refuse=False):
        """What the card has to say of its drivers: nothing is expected."""
        self.server.send_signal(signal.SIGTERM)
        code = self.server.wait(timeout=seconds(30))
        self.log.seek(0)
        text = self.log.read()
        check(may_refuse or (code == 0 and re.search(r"\b0 violations", text)), f"the card refused something ({code}):\n{text}")
        return text


def environment(*cards):
    return {**os.environ, "DEV": DEVICE, "BM_PCI": ",".join(card.name for card in cards), "BM_FIRMWARE_DIR": FIRMWARE,
            "BM_NV_CODE": "ptx"}


def run(command, *cards, device=None):
    given = environment(*cards)
    if device:
        given["DEV"] = device
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=seconds(300), check=False)
    check(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def generate(device, count, *cards):
    command = [PROGRAM, "generate", MODEL, "Permission is", "--max-tokens", str(count), "--temperature", "0", "--json"]
    return json.loads(run(command, *cards, device=device).stdout)["tokens"]


def boot(card):
    """`gpu boot`, and whether it reset the card."""
    return json.loads(run([PROGRAM, "gpu", "boot", "--json", "--pci", card.name], card).stdout)["was_reset"]


def part_generate(count=3):
    card = OwnCard() if TRANSPORT == "process" else Card()
    tested = run([PROGRAM, "selftest"], card).stdout
    check("0 failed" in tested, f"selftest: {tested}")
    wanted = generate("CPU:LLVM", count, card)
    got = generate(DEVICE, count, card)
    check(got == wanted and len(got) == count, f"tokens {got}, on the CPU {wanted}")
    print(card.end())


def part_states():
    card = Card()
    check(not boot(card), "a card just switched on was reset")
    run([OPENER], card)
    check(not boot(card), "a card left in order was reset")
    child = subprocess.Popen([OPENER, "--stay"], env=environment(card), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    check(child.stdout.readline() == "open\n", "the process to be killed does not open the card")
    child.kill()
    child.wait()
    check(boot(card), "a card left by a killed process was not reset")
    # A child of fork() that frees and closes all it has inherited touches nothing.
    run([OPENER, "--fork"], card)
    check(not boot(card), "after a process with a child the card was reset")
    print(card.end())


def part_cts(quarter=None):
    cards = Card(), Card()
    # An access is a message to another process here: what waits for one is given eight times as long.
    given = {**environment(*cards), "BM_TEST_TIME_FACTOR": str(8 * int(os.environ.get("BM_TEST_TIME_FACTOR", "1")))}
    if quarter == 0:
        quarter = int(time.time()) // 86400 % 4 + 1
    if quarter is not None:
        given.update(GTEST_TOTAL_SHARDS="4", GTEST_SHARD_INDEX=str(quarter - 1))
    done = subprocess.run([os.path.join(FOLDER, "cts_nv_pci"), "--gtest_brief=1"], env=given, capture_output=True, text=True,
                          timeout=seconds(280), check=False)
    check(done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-4000:]}{done.stderr[-2000:]}")
    print(done.stdout)
    for card in cards:
        print(card.end())


def part_kills(count=10):
    card = Card()
    run([OPENER], card)
    whole = int(re.search(r"(\d+) requests", card.end()).group(1))
    step = max(1, whole // count)
    card = Card("--signal", str(int(signal.SIGKILL)), "--step", str(step))
    killed = 0
    for turn in range(count):
        child = subprocess.run([OPENER], env=environment(card), capture_output=True, text=True, timeout=seconds(120), check=False)
        # Runs differ in how often they poll: the last requests of one are not made in another.
        check(child.returncode in (0, -signal.SIGKILL), f"kill {turn}: exit code {child.returncode}: {child.stderr[-2000:]}")
        killed += child.returncode != 0
        next_one = subprocess.run([OPENER], env=environment(card), capture_output=True, text=True, timeout=seconds(120), check=False)
        check(next_one.returncode == 0, f"after a kill at request {(turn + 1) * step} of {whole}: {next_one.stderr[-3000:]}")
    print(f"{killed} of {count} starts killed, one every {step} requests of {whole}; every next one worked")
    check(killed >= count * 3 // 4, f"only {killed} of {count} were killed")
    # What a card does while its host's memory goes away is nobody's order.
    print(card.end(may_refuse=True)[-300:])


def part_ctrl_c(count=3):
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    card = Card()
    begun = time.monotonic()
    boot(card)
    longest = 1.2 * (time.monotonic() - begun)
    codes = []
    for _ in range(count):
        delay = chance.uniform(0, longest)
        child = subprocess.Popen([PROGRAM, "gpu", "boot", "--pci", card.name], env=environment(card), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        said = "".join(child.communicate(timeout=seconds(60)))
        # Before main() has a handler the signal ends the process as it does any.
        check(child.returncode in (0, 130, -signal.SIGINT), f"SIGINT after {delay:.3f} s, seed {seed}: {child.returncode}: {said}")
        codes.append(child.returncode)
        boot(card)
    command = [PROGRAM, "generate", MODEL, "Permission is", "--max-tokens", "100000", "--temperature", "0"]
    child = subprocess.Popen(command, env=environment(card), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(child.stdout.read(1) != "", "no text")
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=seconds(60))[1]
    check(child.returncode == 130, f"SIGINT to generate: exit code {child.returncode}: {said}")
    print(f"gpu boot ended by SIGINT: exit codes {codes}, seed {seed}; after generate the card was reset: {boot(card)}")
    print(card.end(may_refuse=True)[-300:])


os.mkdir(FIRMWARE)
made = subprocess.run([os.path.join(FOLDER, "sim-nv-firmware"), FIRMWARE, CHIP], check=False)
check(made.returncode == 0, "no firmware was written")
for part in PARTS:
    start = time.monotonic()
    name, _, number = part.partition(":")
    globals()["part_" + name.replace("-", "_")](*([int(number)] if number else []))
    print(f"{part}: {time.monotonic() - start:.1f} s")
