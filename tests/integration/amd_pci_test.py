#!/usr/bin/env python3
"""AMD cards that no kernel driver has, each a model in a process of its own, through DEV=AMD:PCI.

usage: amd_pci_test.py FOLDER TRANSPORT CHIP PART...

FOLDER is the one of the programs: bellmetal,
amd_pci_open (opens a card and closes it), sim-amd-pci, sim-amd-firmware and cts_pci. TRANSPORT is remote or vfio-user. Parts:

states    boots of a card just switched on, left in order, left by a killed process, and left by the kernel's driver
generate  the bundled model's tokens, so many (generate:6), are those of the CPU, on a cold and on a warm card
selftest  of the program
cts       the conformance suite, between two cards where it wants two; cts:N is the N-th quarter of it, cts:0 the day's
refusals  nothing is taken that was not named; missing and damaged firmware
autopsy   verdicts of `gpu autopsy` over the socket: not booted, silent SMU, nothing wrong; `gpu top`, its sensors of an idle card
cost      boot and one kernel: at most 500 writes of page tables, and no read of one
faults    of the bus, of firmware, of engines and of submissions, under the unmodified program: exit code, first cause, in time; then
          the same card works. One of each kind; faults:1 is all
hot       generate --keep-weights: the second process finds the weights on the card; a killed process, a changed bit and `gpu forget`
foreign   servers that do what ours does not: they close, say nothing, answer in single bytes, lie, in the middle of a boot (foreign:5 of
          each); a boot ends with a line that says where, or works, and a server as it should be is used afterwards
signals   boots ended by SIGINT and SIGKILL at random moments, so many of each (signals:10); the next one works
"""
import atexit
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from limits import seconds

FOLDER, TRANSPORT, CHIP = sys.argv[1:4]
PARTS = sys.argv[4:]
PROGRAM = os.path.join(FOLDER, "bellmetal")
MODEL = "models/bundled/licence.gguf"
HELD = tempfile.TemporaryDirectory(prefix="amd-pci-")
FIRMWARE = os.path.join(HELD.name, "firmware")


# A boot loader that was left half way refuses to begin again, and the next boot resets the card.
NOT_STRICT = ["--tolerate", "PSP: boot loader command 0x80000"]


def check(is_right, what):
    if not is_right:
        sys.exit(f"{CHIP} over {TRANSPORT}: {what}")


class Card:
    """A modelled card that stays until the end, whoever comes and goes."""

    count = 0

    def __init__(self, *options, strict=True):
        Card.count += 1
        self.path = os.path.join(HELD.name, f"card{Card.count}")
        self.name = f"{TRANSPORT}:{self.path}"
        # A file: it has a line for every client, and a pipe that nobody reads is full after some hundred of them.
        self.said = tempfile.TemporaryFile("w+", dir=HELD.name)
        self.server = subprocess.Popen([os.path.join(FOLDER, "sim-amd-pci"), "--" + TRANSPORT, self.path, "--chip", CHIP,
                                        "--clients", "0", *(["--strict"] if strict else NOT_STRICT), *options], stderr=self.said, text=True)
        atexit.register(self.server.kill)
        limit = time.monotonic() + seconds(30)
        while not os.path.exists(self.path):
            check(self.server.poll() is None and time.monotonic() < limit, "the model does not start")
            time.sleep(0.01)

    def end(self):
        """What the card has to say of its drivers: nothing is expected."""
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(timeout=seconds(30))
        self.said.seek(0)
        text = self.said.read()
        check(self.server.returncode == 0, f"the model ended with {self.server.returncode}:\n{text}")
        return text


def environment(*cards):
    return {**os.environ, "DEV": "AMD:PCI", "BM_PCI": ",".join(card.name for card in cards), "BM_FIRMWARE_DIR": FIRMWARE,
            "BM_LOG": "amd=3"}


def run(command, *cards, device=None):
    given = environment(*cards)
    if device:
        given["DEV"] = device
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=seconds(300), check=False)
    check(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def stages(text):
    """Names of the stages of a boot, from the table in the log."""
    return re.findall(r"^([A-Za-z][A-Za-z ]*?) {2,}\d+ +\d+ +\d+ +\d+ +\d+ +\d+$", text, re.MULTILINE)


def open_card(card):
    """A process that opens the card, uses it and leaves it in order; its stages, and whether they were a warm boot."""
    text = run([os.path.join(FOLDER, "amd_pci_open")], card).stderr
    return stages(text), "(warm)" in text


def generate(device, count, *cards):
    command = [PROGRAM, "generate", MODEL, "Permission is", "--max-tokens", str(count), "--temperature", "0", "--json"]
    done = run(command, *cards, device=device)
    return json.loads(done.stdout)["tokens"], "(warm)" in done.stderr


def part_states():
    card = Card()
    cold, is_warm = open_card(card)
    check(not is_warm and "PSP ring" in cold and "reset" not in cold, f"cold boot: {cold}")
    warm, is_warm = open_card(card)
    check(is_warm and "PSP ring" not in warm, f"warm boot: {warm}")
    # Killed in the middle of its work, the card's engines running.
    child = subprocess.Popen([os.path.join(FOLDER, "amd_pci_open"), "--stay"], env=environment(card), stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
    check(child.stdout.readline() == "open\n", "the process to be killed does not open the card")
    child.kill()
    child.wait()
    crashed, is_warm = open_card(card)
    check(not is_warm and "reset" in crashed and "PSP ring" in crashed, f"boot after a killed process: {crashed}")
    # A child of fork() that frees and closes all it has inherited touches nothing.
    run([os.path.join(FOLDER, "amd_pci_open"), "--fork"], card)
    forked, is_warm = open_card(card)
    check(is_warm, f"boot after a process with a child: {forked}")
    print(card.end())
    card = Card("--warm")
    taken, is_warm = open_card(card)
    check(not is_warm and "reset" in taken and "PSP ring" in taken, f"boot after the kernel's driver: {taken}")
    print(card.end())


def part_generate(count=6):
    card = Card()
    expected, _ = generate("CPU", count, card)
    for state in ("cold", "warm"):
        start = time.monotonic()
        got, is_warm = generate("AMD:PCI", count, card)
        check(is_warm == (state == "warm"), f"the boot was {'warm' if is_warm else 'cold'}, not {state}: the program left it so")
        print(f"{state}: {got}, {time.monotonic() - start:.1f} s")
        check(got == expected and len(got) == count, f"{state}: {got}, on the CPU {expected}")
    print(card.end())


def keep_weights(card, *, model=MODEL, extra=()):
    """One `generate --keep-weights` of one token: what it printed, what it said, bytes written to the card, seconds."""
    command = [PROGRAM, "generate", model, "Permission is", "--max-tokens", "2", "--temperature", "0", "--keep-weights", "--json", *extra]
    start = time.monotonic()
    done = run(command, card)
    return json.loads(done.stdout), done.stderr, time.monotonic() - start


def kept(card):
    done = run([PROGRAM, "gpu", "boot", "--json", "--pci", card.name, "--firmware-dir", FIRMWARE], card)
    return json.loads(done.stdout).get("kept", [])


def part_hot():
    # The modelled card computes on the processor: a busy one is no hang.
    os.environ["BM_WAIT_TIMEOUT_MS"] = str(int(seconds(120) * 1000))
    # All of it shows in BAR 0, as over remote PCI: a small one is looked past through the registers that change a bit below.
    card = Card(*(["--bar0", "4096"] if TRANSPORT == "vfio-user" else []))
    expected, _ = generate("CPU", 2, card)
    size = os.path.getsize(MODEL)
    clients = []  # what each was there for

    def restarted(state, attaches):
        seen, said, took = keep_weights(card)
        clients.append(state)
        weights = seen["weights"]
        prompt_ms = 1000 * seen["prompt_tokens"] / seen["prefill_tokens_per_s"]
        first_ms = seen["time_to_first_token_ms"]
        print(f"{state}: attached {weights['attached_bytes']}, uploaded {weights['uploaded_bytes']} bytes; ready after "
              f"{first_ms - prompt_ms:.0f} ms, the first token {prompt_ms:.0f} ms later (computed by the model of the card), "
              f"process {took:.2f} s; load {os.getloadavg()[0]:.0f}", flush=True)
        check(seen["tokens"] == expected, f"{state}: {seen['tokens']}, on the CPU {expected}")
        check(("(warm)" in said) == (state not in ("cold", "after a killed process")), f"{state}: {said}")
        if attaches:
            check(weights["uploaded_bytes"] == 0 and weights["attached_bytes"] > size // 2, f"{state}: {weights}")
        else:
            check(weights["attached_bytes"] == 0 and weights["uploaded_bytes"] > size // 2, f"{state}: {weights}")
        return said

    restarted("cold", False)
    restarted("hot", True)
    # One bit in the middle of them.
    ranges = kept(card)
    clients.append("boot")
    check(len(ranges) > 0 and sum(r["bytes"] for r in ranges) > size // 2, f"kept: {ranges}")
    place = ranges[0]["offset"] + ranges[0]["bytes"] // 2 & ~3
    for register, value in (("0x6", place >> 31), ("0x0", place & 0x7fffffff | 0x80000000)):
        run([PROGRAM, "gpu", "regs", "write", register, hex(value), "--yes", "--pci", card.name], card)
    before = run([PROGRAM, "gpu", "regs", "read", "0x1", "--json", "--pci", card.name], card).stdout
    word = json.loads(before)["registers"][0]["value"]
    run([PROGRAM, "gpu", "regs", "write", "0x1", hex(word ^ 0x100), "--yes", "--pci", card.name], card)
    clients += ["register"] * 4
    said = restarted("after a changed bit", False)
    check(said.count("they are loaded again") == 1, f"one warning: {said}")
    restarted("hot after that", True)
    # A process that does not end in order: the card is reset, and nothing is believed.
    child = subprocess.Popen([os.path.join(FOLDER, "amd_pci_open"), "--stay"], env=environment(card), stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
    check(child.stdout.readline() == "open\n", "the process to be killed does not open the card")
    child.kill()
    child.wait()
    clients.append("killed")
    restarted("after a killed process", False)
    text = run([PROGRAM, "gpu", "forget", "--pci", card.name, "--firmware-dir", FIRMWARE], card).stdout
    clients.append("forget")
    check("free again" in text, f"forget: {text}")
    check(kept(card) == [], "something is still kept")
    clients.append("boot")
    restarted("after forget", False)
    # By what the card was told: no weights were copied there.
    text = card.end()
    copied = [int(n) for n in re.findall(r"client \d+: \d+ bytes written through BAR 0, (\d+) bytes copied", text)]
    check(len(copied) == len(clients), f"{len(clients)} clients: {text}")
    by_state = dict(zip(clients, copied))
    print(by_state)
    # Over remote PCI slabs of 32 MiB are cleared by copies of zeros, and so is what weights are loaded into.
    slab = 32 << 20
    check(by_state["hot"] % slab < 1 << 20, f"bytes copied: {by_state}")
    check(by_state["cold"] - by_state["hot"] > size * 3 // 4, f"bytes copied: {by_state}")
    # Where it cannot be done it is said, before anything is loaded.
    for device in ("CPU", "NULL"):
        done = subprocess.run([PROGRAM, "generate", MODEL, "x", "--keep-weights"], env={**os.environ, "DEV": device},
                              capture_output=True, text=True, timeout=seconds(60), check=False)
        check(done.returncode == 3 and "DEV=AMD:PCI" in done.stderr, f"{device}: {done.returncode}: {done.stderr}")


def part_selftest():
    card = Card()
    run([PROGRAM, "selftest"], card)
    print(card.end())


def part_cts(quarter=None):
    cards = Card(), Card()
    # An access is a message to another process here: what waits for one is given eight times as long.
    os.environ["BM_TEST_TIME_FACTOR"] = str(8 * int(os.environ.get("BM_TEST_TIME_FACTOR", "1")))
    if quarter == 0:
        quarter = int(time.time()) // 86400 % 4 + 1
    if quarter is not None:
        os.environ.update(GTEST_TOTAL_SHARDS="4", GTEST_SHARD_INDEX=str(quarter - 1))
    print(run([os.path.join(FOLDER, "cts_pci"), "--gtest_brief=1"], *cards).stdout)


def part_cost():
    """Boot and one kernel: what the card was written into its page tables, counted by the card."""
    cards = Card(), Card()
    run([os.path.join(FOLDER, "cts_pci"), "--case=dispatch.saxpy"], *cards)
    text = cards[0].end()
    writes, reads = map(int, re.search(r"page tables through BAR 0: (\d+) writes, (\d+) reads", text).groups())
    check(" 0 launches" not in text, f"no kernel: {text}")
    check(0 < writes <= 500, f"{writes} writes of page tables")
    check(reads == 0, f"{reads} reads of page tables")
    print(text)
    # The same, counted by the transport and printed by the program.
    card = Card()
    seen = json.loads(run([PROGRAM, "gpu", "boot", "--stats", "--json", "--pci", card.name, "--firmware-dir", FIRMWARE], card).stdout)
    check(seen["kernel"]["stored"] == 0xb0071e55, f"the kernel: {seen}")
    accesses = seen["accesses"]
    check(0 < accesses["page_table_writes"] <= 500 and accesses["page_table_reads"] == 0, f"page tables: {accesses}")
    check(accesses["bus_writes"] > accesses["page_table_writes"], f"all writes: {accesses}")
    text = card.end()
    writes, reads = map(int, re.search(r"page tables through BAR 0: (\d+) writes, (\d+) reads", text).groups())
    check(0 < writes <= 500 and reads == 0, f"page tables, by the card: {text}")


def autopsy(card):
    done = subprocess.run([PROGRAM, "gpu", "autopsy", "--pci", card.name, "--json"], capture_output=True, text=True,
                          timeout=seconds(60), check=False)
    check(done.returncode == 0, f"autopsy: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def part_autopsy():
    card = Card()
    check(autopsy(card)["cause"] == "not-booted", "a card that was just switched on")
    open_card(card)
    seen = autopsy(card)
    check(seen["cause"] == "none", f"a card left in order: {seen}")
    done = subprocess.run([PROGRAM, "gpu", "top", "--pci", card.name, "--json"], capture_output=True, text=True, timeout=seconds(60),
                          check=False)
    check(done.returncode == 0, f"top: exit code {done.returncode}: {done.stdout}{done.stderr}")
    row = json.loads(done.stdout)["cards"][0]
    check(row.get("power_limit_w") == 300 and row.get("temperature_c") == 41, f"sensors of a card that nobody runs: {row}")
    text = subprocess.run([PROGRAM, "gpu", "autopsy", "--pci", card.name, "--address", "0x200000000000"], capture_output=True,
                          text=True, timeout=seconds(60), check=False).stdout
    check(text.startswith("cause: ") and "0x200000000000: " in text, f"as text: {text}")
    # A card that another process has: it is said so, and its owner notices nothing.
    owner = subprocess.Popen([os.path.join(FOLDER, "amd_pci_open"), "--stay"], env=environment(card), stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
    check(owner.stdout.readline() == "open\n", "the card's owner does not open it")
    done = subprocess.run([PROGRAM, "gpu", "top", "--pci", card.name, "--json"], capture_output=True, text=True, timeout=seconds(60),
                          check=False)
    check(done.returncode == 5 and owner.poll() is None, f"top of an owned card: exit code {done.returncode}: {done.stdout}{done.stderr}")
    error = json.loads(done.stdout)["error"]
    check(error["code"] == "timeout" and "another process" in error["message"], f"top of an owned card: {error}")
    owner.kill()
    owner.wait()
    print(card.end())
    silent = Card("--fault", "smu,6,0")
    booted = subprocess.run([os.path.join(FOLDER, "amd_pci_open")], env=environment(silent), capture_output=True, text=True,
                            timeout=seconds(60), check=False)
    check(booted.returncode != 0, "the card boots without its SMU")
    seen = autopsy(silent)
    check(seen["cause"] == "smu-silent" and "0x6" in seen["text"] and seen["remedy"], f"a silent SMU: {seen}")
    for command in (["gpu", "top", "--once"], ["gpu", "top"]):
        done = subprocess.run([PROGRAM, *command], capture_output=True, text=True, timeout=seconds(60), check=False)
        check(done.returncode in (0, 3) and "\x1b" not in done.stdout, f"{command}: {done.returncode}: {done.stdout}{done.stderr}")


def part_refusals():
    card = Card()
    # An interface that boots a card is taken by name alone.
    for device in ("AMD", "KFD+AMD"):
        done = subprocess.run([PROGRAM, "selftest"], env={**environment(card), "DEV": device}, capture_output=True, text=True,
                              timeout=seconds(60), check=False)
        check(done.returncode == 3, f"DEV={device}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    done = subprocess.run([PROGRAM, "devices"], env=environment(card), capture_output=True, text=True, timeout=seconds(60), check=False)
    check(card.name in done.stdout and "DEV=AMD:PCI boots it" in done.stdout, f"devices: {done.stdout}{done.stderr}")
    # A file that was cut off says so before anything is written to the card.
    damaged = os.path.join(HELD.name, "damaged")
    shutil.copytree(FIRMWARE, damaged)
    victim = next(path for path in glob.glob(os.path.join(damaged, "amdgpu", "*")) if path.endswith("_mec.bin"))
    os.truncate(victim, os.path.getsize(victim) // 2)
    done = subprocess.run([PROGRAM, "selftest"], env={**environment(card), "BM_FIRMWARE_DIR": damaged}, capture_output=True, text=True,
                          timeout=seconds(60), check=False)
    said = done.stdout + done.stderr
    check(done.returncode != 0 and "boot stage 'firmware'" in said and os.path.basename(victim) in said, f"damaged: {said}")
    nowhere = os.path.join(HELD.name, "nowhere")
    done = subprocess.run([PROGRAM, "selftest", "--firmware-dir", nowhere], env=environment(card), capture_output=True, text=True,
                          timeout=seconds(60), check=False)
    said = done.stdout + done.stderr
    # Where the packages are installed their files lie in the folders that come next.
    check(FIRMWARE not in said and (nowhere in said and "firmware-amd-graphics" in said or done.returncode != 2), f"no firmware: {said}")
    done = subprocess.run([PROGRAM, "selftest", "--device", "USB+AMD"], env=environment(card), capture_output=True, text=True,
                          timeout=seconds(60), check=False)
    said = done.stdout + done.stderr
    check(done.returncode != 0 and ("bridge" in said or "libusb" in said), f"USB: {done.returncode}: {said}")
    text = card.end()
    print(text)
    check(" 0 written;" in text, "something was written to a card that was refused")


# Longer than it takes a busy machine to fill memory.
LIMIT_MS, SLACK_MS = 1000, 100
TRIES = 5
DEVICE_FAILED, UNAVAILABLE = 5, 3
WAITED = f"no progress for {LIMIT_MS} ms"
NOWHERE = "0x7ead00000000"
GENERATE = ["generate", MODEL, "Permission is", "--max-tokens", "2", "--temperature", "0"]
# What is planted (a submission, else a fault of the card); whether the limit of a wait may pass; what the first line says.
LOSES = [
    ("KernelReadsUnmapped", False, rf"memory fault at {NOWHERE} \(unmapped page"),
    ("CopyFromUnmapped", False, rf"copy queue.*memory fault at {NOWHERE} \(unmapped page"),
    ("EngineHangs", True, WAITED),
    ("KernelWritesUnmapped", False, f"memory fault at {NOWHERE} "),
    ("KernelJumpsAway", False, "memory fault at 0x7ead0000 "),
    ("KernelIsMisaligned", False, "a wave's "),
    ("KernelIsNonsense", False, "a wave's "),
    ("KernelTraps", False, "a wave's "),
    ("TheSecondKernelFails", False, f"memory fault at {NOWHERE} "),
    ("CopyToUnmapped", False, f"copy queue.*memory fault at {NOWHERE} "),
    ("CopyBeyondAllAddresses", False, "copy queue.*memory fault at "),
    ("sdma-hang,engine", True, WAITED),
    ("sdma-hang,card", True, WAITED),
    ("mec-hang,card", True, WAITED),
    ("KernelSpins", True, WAITED),
    ("ComputeQueueStalls", True, WAITED),
    ("CopyEngineStalls", True, WAITED),
    ("SignalIsWithheld", True, WAITED),
    ("OtherChipInside", False, "a wave's "),
    ("TooManyRegisters", False, "a wave's "),
    ("OtherEntry", False, f"memory fault at {NOWHERE} "),
]
# Where a boot stops.
REFUSED = [
    ("psp,6,0x1234", "boot stage 'protected memory'.*LOAD_IP_FW SMU.*0x1234"),
    ("smu,6,0xfc", "boot stage 'SMU'.*busy with something else"),
    ("smu,2,0", "boot stage 'SMU'.*no answer"),
]
# Nobody need be told of these; each boot resets the MEC's pipes.
BORNE = ["lost-interrupts", "mec-hang,engine"]


def plant(what, command, limit_ms=LIMIT_MS):
    """A card, and what the program did on it; the card is still there."""
    is_submission = what[0].isupper()
    card = Card("--plant" if is_submission else "--fault", what, strict=False)
    given = {**environment(card), "BM_WAIT_TIMEOUT_MS": str(limit_ms), "BM_LOG": "amd=0"}
    done = subprocess.run([PROGRAM, *command], env=given, capture_output=True, text=True, check=False, timeout=seconds(300))
    return card, done, done.stdout[-1500:] + done.stderr[-3000:]


def works_again(card, what):
    given = {**environment(card), "BM_LOG": "amd=0"}
    done = subprocess.run([PROGRAM, *GENERATE], env=given, capture_output=True, text=True, check=False, timeout=seconds(300))
    check(done.returncode == 0, f"after {what} the card does not work: {done.returncode}: {done.stderr[-3000:]}")


def loses(what, may_wait, says, command):
    bound = (LIMIT_MS if may_wait else 0) + SLACK_MS
    took, name = None, f"{what} in {command[0]}"
    for _ in range(TRIES):
        card, done, said = plant(what, command, LIMIT_MS if may_wait else 60_000)
        first = next((line for line in done.stderr.splitlines() if "bellmetal: " in line), "")
        check(done.returncode == DEVICE_FAILED, f"{name}: exit code {done.returncode}: {said}")
        check(re.search(rf"bellmetal: AMD\S*: device lost, .*{says}", first), f"{name}: does not say {says}: {said}")
        works_again(card, name)
        told = re.findall(r"planted, its driver was gone ([0-9.]+) ms later", card.end())
        took = min(float(told[0]), took or 1e9) if told else took
        if took is None or took <= bound:
            break
    late = "" if took is None else f", {took:.0f} ms" + (" (late)" if took > bound else "")
    print(f"{name}: {first[:150]}{late}")
    return took is not None and took > bound


def refused(what, says):
    card, done, said = plant(what, GENERATE)
    check(done.returncode != 0 and re.search(says, done.stderr), f"{what}: {done.returncode}: {said}")
    print(f"{what}: exit code {done.returncode}: {done.stderr.strip()[:200]}")
    card.end()


def borne(what):
    card, done, said = plant(what, GENERATE, limit_ms=20_000)
    check(done.returncode == 0, f"{what}: exit code {done.returncode}: {said}")
    print(f"{what}: exit code 0")
    card.end()


def bus(kind, access):
    """One access of the whole run: it works, or ends with a line that says why."""
    card, done, said = plant(f"{kind},{access}" + (",200" if kind == "stall" else ""), GENERATE, limit_ms=20_000)
    what = f"{kind} at {access}"
    works_again(card, what)
    told = re.findall(r"bus fault planted, its driver was gone ([0-9.]+) ms later", card.end())
    check(done.returncode in (0, 1, 2, UNAVAILABLE, DEVICE_FAILED), f"{what}: exit code {done.returncode}: {said}")
    check(done.returncode == 0 or "bellmetal: " in done.stderr, f"{what}: says nothing: {said}")
    # Runs differ in how often they poll: the last accesses of one are not made in another.
    check(kind != "stall" and told or done.returncode == 0, f"{what}: {said}")
    if kind == "unplug" and told:
        check(re.search("pulled out|is gone|all ones", done.stderr), f"{what}: {said}")
        check("boot stage" in done.stderr or done.returncode == DEVICE_FAILED, f"{what}: exit code {done.returncode}: {said}")
    print(f"{what}: exit code {done.returncode}, {told[0] + ' ms' if told else 'not reached'}: {done.stderr.strip()[:120]!r}")


def part_faults(everything=0):
    card = Card()
    run([PROGRAM, *GENERATE], card)  # and the kernels are compiled
    accesses = int(re.search(r"; (\d+) accesses;", card.end()).group(1))
    rows = [(loses, *row, command) for row in LOSES for command in (GENERATE, ["selftest"])]
    rows += [(refused, *row) for row in REFUSED]
    rows += [(borne, what) for what in BORNE]
    rows += [(bus, kind, accesses * tenth // 10) for kind in ("all-ones", "stall", "wrong-answer", "unplug") for tenth in (1, 4, 6, 8)]
    if not everything:
        # The same ones at every run: what is new is found by who looks for it, not by who builds on it.
        rows = [(loses, *LOSES[0], GENERATE), (loses, *LOSES[1], ["selftest"]), (refused, *REFUSED[1]), (bus, "unplug", accesses // 2)]
    wrong, late = [], 0
    for check_row, *rest in rows:
        try:
            late += bool(check_row(*rest))
        except SystemExit as problem:
            wrong.append(str(problem))
            print(f"WRONG {problem}")
    print(f"{len(rows)} faults, {late} later than the limit and {SLACK_MS} ms at best; load {os.getloadavg()[0]:.0f}")
    check(not wrong, "\n".join(wrong))


def part_signals(rounds=10):
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    # Memory goes with the process: a queue in the middle of clearing dies of it, and the next boot resets the card.
    card = Card(strict=False)
    opener = [os.path.join(FOLDER, "amd_pci_open")]

    def timed_open():
        start = time.monotonic()
        _, is_warm = open_card(card)
        return time.monotonic() - start, is_warm

    took, _ = timed_open()
    ended = {"before its end": 0, "after its end": 0}
    boots = {"warm": 0, "cold": 0}
    for number in [signal.SIGINT, signal.SIGKILL] * rounds:
        child = subprocess.Popen(opener, env=environment(card), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The last boot tells how long this one takes: the machine's load comes and goes.
        delay = chance.uniform(0, 1.2 * took)
        time.sleep(delay)
        child.send_signal(number)
        child.wait(timeout=seconds(60))
        ended["after its end" if child.returncode == 0 else "before its end"] += 1
        check(child.returncode in (0, -number), f"signal {number} after {delay:.3f} s, seed {seed}: exit code {child.returncode}")
        took, is_warm = timed_open()
        boots["warm" if is_warm else "cold"] += 1
    print(f"{rounds} SIGINT and {rounds} SIGKILL, the last within {1.2 * took:.2f} s: {ended}; every next open succeeded: {boots}; seed {seed}")
    check(ended["before its end"] > 0, "no signal came in time")
    print(card.end())


class Between:
    """Stands between a client and the modelled card's server and, after so many bytes of its answers, is another server."""

    def __init__(self, card, kind, after):
        Card.count += 1
        self.path = os.path.join(HELD.name, f"between{Card.count}")
        self.name = f"{TRANSPORT}:{self.path}"
        self.kind, self.left, self.card = kind, after, card
        self.open = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.card.path)
            self.open += [client, server]
            threading.Thread(target=self.pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, True), daemon=True).start()

    @staticmethod
    def take(source):
        """The next bytes and their descriptors; a whole message of vfio-user, since descriptors belong to the first byte of one."""
        if TRANSPORT != "vfio-user":
            return socket.recv_fds(source, 1 << 16, 16)[:2]
        data, fds, _, _ = socket.recv_fds(source, 16, 16)
        while data and len(data) < 16:
            data += source.recv(16 - len(data))
        size = int.from_bytes(data[4:8], "little")
        while data and len(data) < size:
            data += source.recv(size - len(data))
        return data, fds

    def pump(self, source, to, is_answer):
        try:
            while True:
                data, fds = self.take(source)
                if not data:
                    break
                if is_answer and (self.kind == "bytes" or len(data) > self.left):
                    data = self.another(data, to)
                self.left -= len(data) if is_answer else 0
                socket.send_fds(to, [data], fds) if fds else to.sendall(data)
                for fd in fds:
                    os.close(fd)
        except OSError:
            pass
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def another(self, data, to):
        if self.kind == "close":
            to.sendall(data[: max(self.left, 0)])
            raise OSError
        if self.kind == "silence":
            threading.Event().wait()
        if self.kind == "bytes":
            for i in range(len(data) - 1):
                to.sendall(data[i : i + 1])
            return data[-1:]
        if self.kind == "lie" and self.left >= 0:
            changed = bytearray(data)
            changed[self.left] ^= 0xff
            return bytes(changed)
        return data

    def end(self):
        self.listener.close()
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def part_foreign(rounds=2):
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    card = Card("--bar0", "4096", strict=False)
    opener = [os.path.join(FOLDER, "amd_pci_open")]
    whole = Between(card, "none", 1 << 62)
    open_card(whole)
    answered = (1 << 62) - whole.left
    whole.end()
    # What is silent for good costs the limit of an answer: ten seconds over vfio-user, two minutes over remote PCI.
    kinds = ["close"] * 5 + ["lie"] * 3 + ["bytes"] + (["silence"] if TRANSPORT == "vfio-user" else [])
    for kind in kinds * rounds:
        card.end()
        card = Card("--bar0", "4096", strict=False)
        after = 0 if kind == "bytes" else int(chance.choice([answered ** chance.random(), answered * chance.random()]))
        between = Between(card, kind, after)
        begun = time.monotonic()
        done = subprocess.run(opener, env={**environment(between), "BM_LOG": "amd=0"}, capture_output=True, text=True, check=False,
                              timeout=seconds(400))
        what = f"{kind} after {after} of {answered} bytes, seed {seed}"
        check(done.returncode == 0 or done.returncode > 0 and done.stderr.strip(), f"{what}: exit code {done.returncode}: {done.stderr}")
        check(kind != "bytes" or done.returncode == 0, f"{what}: {done.stderr}")
        between.end()
        print(f"{what}: exit code {done.returncode} after {time.monotonic() - begun:.1f} s: {done.stderr.strip()[:160]!r}", flush=True)
        open_card(card)
    # One that takes connections and never says anything has another client, as far as anybody can tell.
    path = os.path.join(HELD.name, "mute")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        given = {**os.environ, "DEV": "AMD:PCI", "BM_PCI": f"{TRANSPORT}:{path}", "BM_FIRMWARE_DIR": FIRMWARE}
        done = subprocess.run(opener, env=given, capture_output=True, text=True, check=False, timeout=seconds(60))
        check(done.returncode > 0 and "another process may have the card" in done.stderr, f"a mute server: {done.returncode}: {done.stderr}")
    print(card.end())


made = subprocess.run([os.path.join(FOLDER, "sim-amd-firmware"), FIRMWARE, CHIP], check=False)
check(made.returncode == 0, "no firmware was written")
for part in PARTS:
    start = time.monotonic()
    name, _, number = part.partition(":")
    globals()["part_" + name](*([int(number)] if number else []))
    print(f"{part}: {time.monotonic() - start:.1f} s")
