#!/usr/bin/env python3
"""Faults planted on simulated machines, as a user of the program meets them.

usage: device_loss_test.py BELLMETAL SIM_AMD SIM_NV [--all]

A device that faults, hangs or goes away while the unmodified program works must end `generate` and
`selftest` with exit code 5 and one line that names device, queue, work and the first cause, once
the limit (BM_WAIT_TIMEOUT_MS) is over at the latest; afterwards the program works. What goes wrong
before there is work has the exit code of its kind. Without --all a part of the table is run, another
one every hour; BM_LOSS_FIRST names the first row instead.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

PROGRAM, SIM_AMD, SIM_NV = sys.argv[1:4]
IS_ALL = "--all" in sys.argv
CANNOT_RUN_HERE = 77
LIMIT_MS = 300
# A bound that a machine busy with other tests keeps; the figures in docs/reliability.md are measured.
GENEROUS_MS = 20_000
MODEL = "models/bundled/licence.gguf"
SAMPLE = 5

UNAVAILABLE, FAILURE, DEVICE_FAILED = 3, 1, 5
MMU = "channel error 31 (MMU fault)"
SM = "channel error 13 (graphics engine exception)"
WAITED = f"no progress for {LIMIT_MS} ms"

# Fault, what the first line must say. `@` rows: hangs, which may take the limit.
AMD = [
    ("KernelReadsUnmapped", "memory fault at 0x7ead"),
    ("KernelWritesUnmapped", "memory fault at 0x7ead"),
    ("KernelAddsToUnmapped", "memory fault at 0x7ead"),
    ("KernelWritesPastTheEnd", "memory fault at 0x"),
    ("KernelReadsAnotherGpu", "memory fault at 0x7ead"),
    ("KernelJumpsAway", "memory fault at 0x7ead0000"),
    # Which exception it was stands in the kernel's own log, which a simulator of devices does not show.
    ("KernelIsMisaligned", "hang or exception"),
    ("KernelLeavesLds", "hang or exception"),
    ("KernelIsNonsense", "hang or exception"),
    ("KernelTraps", "the driver reset the whole GPU"),
    ("@NonsenseThatOnlyHalts", WAITED),
    ("TheSecondKernelFails,2", "memory fault at 0x7ead"),
    ("ALaterFaultChangesNothing", "memory fault at 0x7ead"),
    ("CopyFromUnmapped", "memory fault at 0x7ead"),
    ("CopyToUnmapped", "memory fault at 0x7ead"),
    ("CopyPastTheEnd", "memory fault at 0x"),
    ("@KernelSpins", WAITED),
    ("@EngineHangs", WAITED),
    ("@ComputeQueueStalls", WAITED),
    ("@CopyEngineStalls", WAITED),
    ("@HandedOverCopyStalls,2", WAITED),
    ("@SignalIsWithheld", WAITED),
    ("@WaitNeverComes", WAITED),
    ("@DoorbellReachesNobody", WAITED),
    ("@QueuesNeverStart", WAITED),
    ("GpuFallsOffTheBus", "reset the whole GPU"),
    ("GpuIsReset", "the driver reset the whole GPU"),
    ("GpuIsResetAndNothingIsTold", "reset the whole GPU"),
]
NV = [
    ("KernelReadsUnmapped", MMU),
    ("KernelWritesUnmapped", MMU),
    ("KernelAddsToUnmapped", MMU),
    ("KernelIsMisaligned", "misaligned address"),
    ("KernelTraps", SM),
    ("KernelIsNonsense", "illegal instruction"),
    ("KernelLeavesSharedMemory", "address out of range"),
    ("KernelWaitsAtABarrier", SM),
    ("TheSecondKernelFails,2", MMU),
    ("FaultWithoutDetails", MMU),
    ("ALaterFaultChangesNothing", MMU),
    ("CopyFromUnmapped", MMU),
    ("CopyToUnmapped", MMU),
    ("@KernelSpins", WAITED),
    ("@EngineHangs", WAITED),
    ("@EngineStalls", WAITED),
    ("@ReleaseIsWithheld,40", WAITED),
    ("@WaitNeverComes", WAITED),
    ("GpuFallsOffTheBus", "channel error 79 (GPU has fallen off the bus)"),
]
# Before there is work: fault, exit code, text.
AMD_OPENING = [
    ("NoDriver", UNAVAILABLE, "modprobe amdgpu"),
    ("NoRightToKfd", UNAVAILABLE, "usermod -aG render,video"),
    ("NoRightToTheRenderNode", UNAVAILABLE, "/dev/dri/renderD128"),
    ("ControlGroupForbidsIt", UNAVAILABLE, "control group"),
    ("OldKernel", UNAVAILABLE, "1.10"),
    ("KernelOfAnotherAge", UNAVAILABLE, "of major 1"),
    ("UnknownChip", UNAVAILABLE, "130001"),
    ("NoCardAtAll", UNAVAILABLE, ""),
    ("VmIsTaken", FAILURE, "ACQUIRE_VM"),
    ("QueueIsRefused", FAILURE, "CREATE_QUEUE"),
    ("EventsRunOut", FAILURE, "CREATE_EVENT"),
    ("MemoryIsRefused", FAILURE, "ALLOC_MEMORY_OF_GPU"),
    ("MappingIsRefused", DEVICE_FAILED, "MAP_MEMORY_TO_GPU"),
    ("VideoMemoryEnds", FAILURE, "video memory"),
    ("VideoMemoryIsFull", FAILURE, "video memory"),
]
NV_OPENING = [
    ("NoDriver", UNAVAILABLE, "/dev/nvidiactl"),
    ("NoRights", UNAVAILABLE, "/dev/nvidiactl"),
    ("OldDriver", UNAVAILABLE, "470.256.02"),
    ("GpuDoesNotStart", FAILURE, "could not start the GPU"),
    ("LostBeforeOpening", FAILURE, "could not start the GPU"),
    ("NodeOfTheCardIsMissing", UNAVAILABLE, "/dev/nvidia0"),
    ("DeviceInExclusiveMode", UNAVAILABLE, "exclusive compute mode"),
    ("SandboxRefusesTheCall", FAILURE, "sandbox"),
    ("ChannelClassIsRefused", UNAVAILABLE, "NV_ERR_INVALID_CLASS"),
    ("ComputeClassIsRefused", UNAVAILABLE, "NV_ERR_INSUFFICIENT_PERMISSIONS"),
    ("ChannelsRunOut", FAILURE, "NV_ERR_INSUFFICIENT_RESOURCES"),
    ("ScheduleIsRefused", UNAVAILABLE, "GPFIFO_SCHEDULE"),
    ("VideoMemoryEnds", FAILURE, r"MiB free of 16\.0 MiB|NV_ERR_NO_MEMORY"),
    ("TheThirdAllocationFails", FAILURE, "memory"),
]


class Vendor:
    def __init__(self, name, simulator, environment):
        self.name, self.simulator, self.environment = name, simulator, environment

    def run(self, command, options=(), limit_ms=LIMIT_MS):
        words = [self.simulator, *options, PROGRAM, *command]
        environment = {**os.environ, **self.environment, "BM_WAIT_TIMEOUT_MS": str(limit_ms), "BM_LOG": "amd=0,nv=0"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode == CANNOT_RUN_HERE:
            print(done.stderr)
            sys.exit(CANNOT_RUN_HERE)
        return done


AMD_PM4 = Vendor("AMD", SIM_AMD, {"DEV": "AMD", "BM_AMD_QUEUE": "pm4"})
AMD_AQL = Vendor("AMD", SIM_AMD, {"DEV": "AMD", "BM_AMD_QUEUE": "aql"})
NVIDIA = Vendor("NV", SIM_NV, {"DEV": "NV"})
GENERATE = ["generate", MODEL, "Permission is", "--max-tokens", "6", "--temperature", "0"]
SELFTEST = ["selftest"]
problems, figures = [], []


def own_lines(text):
    """What the program itself wrote on stderr, without the simulator's lines and the prompt."""
    text = "".join(line for line in text.splitlines(True) if not line.startswith("sim-"))
    return [line for line in re.sub(r"^Permission is", "", text).splitlines() if line]


def expect(is_right, what, done):
    if not is_right:
        problems.append(what)
        print(f"WRONG {what}\n  exit code {done.returncode}\n  stdout: {done.stdout[-600:]}\n  stderr: {done.stderr[-1500:]}")


def lose(vendor, kind, fault, says, command):
    is_hang = fault.startswith("@")
    fault = fault.removeprefix("@")
    what = f"{kind} {fault} in {command[0]}"
    done = vendor.run(command, ["--plant", fault])
    lines = own_lines(done.stderr)
    first = lines[0] if lines else ""
    expect(done.returncode == DEVICE_FAILED, f"{what}: exit code {done.returncode}", done)
    expect(first.startswith(f"bellmetal: {vendor.name}: device lost, "), f"{what}: first line", done)
    expect(says in first, f"{what}: does not say {says}", done)
    expect(re.search(r" queue at (kernel '|a copy of|graph_|a write)|no submission was in flight", first) is not None,
           f"{what}: names no queue and work", done)
    expect("last completed: " in first or "nothing completed before" in first, f"{what}: last completed work", done)
    expect(len(lines) == 1, f"{what}: {len(lines)} lines", done)
    if command is SELFTEST:
        expect(done.stdout.count("\nFAIL") + done.stdout.count("\nfail") == 1, f"{what}: one check fails", done)
    told = re.search(r"the program ended ([0-9.]+) ms later", done.stderr)
    took = float(told.group(1)) if told else None
    if took is not None:
        allowed = (LIMIT_MS if is_hang else 0) + GENEROUS_MS
        expect(took <= allowed, f"{what}: {took} ms", done)
        figures.append((what, is_hang, took))
    print(f"{what}: {'' if took is None else f'{took:.0f} ms, '}{first[:160]}")


def refuse(vendor, kind, fault, code, says, command):
    what = f"{kind} {fault} in {command[0]}"
    done = vendor.run(command, ["--plant", fault], limit_ms=20_000)
    first = (own_lines(done.stderr) or [""])[0]
    expect(done.returncode == code, f"{what}: exit code {done.returncode}, not {code}", done)
    expect(re.search(says, done.stdout + done.stderr) is not None, f"{what}: does not say {says}", done)
    print(f"{what}: exit code {done.returncode}, {first[:160]}")


def works(vendor, kind):
    done = vendor.run(GENERATE, limit_ms=60_000)
    expect(done.returncode == 0, f"{kind}: the next process does not work", done)


def tells_json(vendor, fault):
    done = vendor.run([*SELFTEST, "--json"], ["--plant", fault])
    told = json.loads(done.stdout)
    expect(done.returncode == DEVICE_FAILED and told["error"]["message"].startswith(f"{vendor.name}: device lost, "),
           f"{fault}: selftest --json", done)
    states = [check["status"] for check in told["checks"]]
    at = states.index("fail")
    expect(set(states[at + 1:]) <= {"not_run"} and told["not_run"] == len(states) - at - 1,
           f"{fault}: selftest --json: {states}", done)
    done = vendor.run([*GENERATE, "--json"], ["--plant", fault])
    expect(json.loads(done.stdout)["error"]["message"].startswith(f"{vendor.name}: device lost, "),
           f"{fault}: generate --json", done)


def others_go_on():
    done = AMD_PM4.run([*SELFTEST, "--device", "AMD", "--device", "CPU"], ["--plant", "EngineHangs"])
    expect(done.returncode == DEVICE_FAILED, "AMD and CPU: exit code", done)
    expect("12 passed, 0 failed" in done.stdout and "not run" in done.stdout, "AMD and CPU: CPU is still tested", done)


machines = [(AMD_PM4, "AMD PM4", AMD, AMD_OPENING), (AMD_AQL, "AMD AQL", AMD, []), (NVIDIA, "NVIDIA", NV, NV_OPENING)]
for vendor, kind, faults, opening in machines:
    works(vendor, kind)  # and the kernels are compiled
    vendor.run(SELFTEST, limit_ms=60_000)
rows = []
for vendor, kind, faults, opening in machines:
    for fault, says in faults:
        for command in (GENERATE, SELFTEST):
            rows.append((lose, vendor, kind, fault, says, command))
    for fault, code, says in opening:
        for command in (GENERATE, SELFTEST):
            rows.append((refuse, vendor, kind, fault, code, says, command))
if not IS_ALL:
    first = int(os.environ.get("BM_LOSS_FIRST", time.time() // 3600))
    step = max(len(rows) // SAMPLE, 1)
    rows = [rows[(first * 7 + i * step) % len(rows)] for i in range(SAMPLE)]
    print(f"rows {first * 7} and on")
for check, vendor, kind, *rest in rows:
    check(vendor, kind, *rest)
for vendor, kind, faults, opening in machines:
    works(vendor, kind)
tells_json(AMD_PM4, "EngineHangs")
tells_json(NVIDIA, "KernelReadsUnmapped")
others_go_on()
for name, chosen in (("faults", False), ("hangs", True)):
    times = sorted(took for _, is_hang, took in figures if is_hang == chosen)
    if times:
        print(f"{name}: {len(times)}, from planting to the end of the program: median {times[len(times) // 2]:.0f} ms, "
              f"most {times[-1]:.0f} ms (limit of a wait: {LIMIT_MS} ms)")
    slow = [(what, took) for what, is_hang, took in figures
            if is_hang == chosen and took > (LIMIT_MS if chosen else 0) + 100]
    print(f"{name}: {len(slow)} later than the limit and 100 ms", *(f"\n  {what}: {took:.0f} ms" for what, took in slow))
if problems:
    sys.exit("\n".join(problems))
