#!/usr/bin/env python3
"""Faults planted on simulated machines, as a user of the program meets them.

usage: device_loss_test.py BELLMETAL SIM_AMD SIM_NV [--all]

A device that faults, hangs or goes away while the unmodified program works must end `generate` and
`selftest` with exit code 5 and one line that names device, queue, work and the first cause, once
the limit (BM_WAIT_TIMEOUT_MS) is over at the latest; afterwards the program works. What goes wrong
before there is work has the exit code of its kind. Without --all a part of the table is run, another
one every hour; BM_LOSS_FIRST names the first row instead. BM_LOSS_ONLY runs the rows whose name it is
part of.

The names are those of tests/unit/amd_faults and tests/unit/nv_faults; every one of them stands in a
table here, also those that no command can meet, with the reason. A simulator damages the N-th
submission on its way in (tests/sim/amd/engine/damage.cpp, tests/sim/nv/damage.cpp); what its engines
then found is read back from its last lines, so that a planted fault cannot pass for another one.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from limits import seconds

PROGRAM, SIM_AMD, SIM_NV = sys.argv[1:4]
IS_ALL = "--all" in sys.argv
CANNOT_RUN_HERE = 77
LIMIT_MS = 300
SLACK_MS = 100
# A bound that a machine busy with other tests keeps; --all asks for the limit and SLACK_MS.
GENEROUS_MS = 20_000
# A busy machine may keep a thread waiting: the best of so many tries counts.
TRIES = 5
MODEL = "models/bundled/licence.gguf"
SAMPLE = 5

UNAVAILABLE, FAILURE, DEVICE_FAILED = 3, 1, 5
MMU = r"channel error 31 \(MMU fault\)"
SM = r"channel error 13 \(graphics engine exception\)"
WAITED = f"no progress for {LIMIT_MS} ms"
WHOLE = "hang or exception; the driver reset the whole GPU"
ENGINE = "hang or exception; the driver reset an engine"
READ = r"\(unmapped page\)"
WRITE = r"\(write to a read-only page, unmapped\)"
NOWHERE_AMD, NOWHERE_NV = "0x7ead00000000", "0xdead00000000"

# Fault; what the first line must say; what the engine found. `@` rows: hangs, which may take the limit.
AMD = [
    ("KernelReadsUnmapped", f"memory fault at {NOWHERE_AMD} {READ}", f"unmapped address: read of {NOWHERE_AMD}"),
    ("KernelWritesUnmapped", f"memory fault at {NOWHERE_AMD} {WRITE}", f"unmapped address: write of {NOWHERE_AMD}"),
    ("KernelAddsToUnmapped", f"memory fault at {NOWHERE_AMD} {WRITE}", f"unmapped address: atomic of {NOWHERE_AMD}"),
    # The first unmapped address after a buffer: told from the allocation that is nearest, which may be the next one.
    ("KernelWritesPastTheEnd", rf"memory fault at 0x\w+ {WRITE}: \d+ bytes (?:past the end of|before) ", "unmapped address: write of"),
    ("KernelJumpsAway", f"memory fault at 0x7ead0000 {READ}", "unmapped address: execute of 0x7ead0000"),
    # Which exception it was stands in the kernel's own log, which a simulator of devices does not show.
    ("KernelIsMisaligned", WHOLE, "misaligned address: atomic of 0x7ead00000002"),
    ("KernelLeavesLds", WHOLE, "LDS out of range: write of 0x7ead0000"),
    ("KernelIsNonsense", WHOLE, "illegal opcode: .*word ffffffff"),
    ("KernelTraps", WHOLE, "trap: .*s_trap 2"),
    ("@NonsenseThatOnlyHalts", WAITED, "illegal opcode: .*word ffffffff"),
    ("TheSecondKernelFails", f"memory fault at {NOWHERE_AMD} {READ}", f"unmapped address: read of {NOWHERE_AMD}"),
    ("ALaterFaultChangesNothing", f"memory fault at {NOWHERE_AMD} {WRITE}", "(?s)write of 0x7ead00000000.*trap: .*s_trap 2"),
    ("CopyFromUnmapped", f"copy queue.*memory fault at {NOWHERE_AMD} {READ}", f"no mapping at {NOWHERE_AMD}"),
    ("CopyToUnmapped", f"copy queue.*memory fault at {NOWHERE_AMD} {WRITE}", f"no mapping at {NOWHERE_AMD}"),
    ("CopyPastTheEnd", rf"copy queue.*memory fault at 0x\w+000 {READ}: \d+ bytes (past|before)", r"no mapping at 0x\w+000\n"),
    ("CopyBeyondAllAddresses", r"copy queue.*memory fault at 0x1000\w{12} ", r"no mapping at 0x1000\w{12}\n"),
    ("@KernelSpins", WAITED, None),
    ("@EngineHangs", WAITED, None),
    ("@ComputeQueueStalls", WAITED, None),
    ("@CopyEngineStalls", WAITED, None),
    ("@HandedOverCopyStalls", WAITED, None),
    ("@SignalIsWithheld", WAITED, None),
    ("@WaitNeverComes", WAITED, None),
    ("@DoorbellReachesNobody", WAITED, None),
    ("@QueuesNeverStart", WAITED, None),
    ("GpuFallsOffTheBus", "reset the whole GPU", None),
    ("GpuIsReset", f"{WHOLE}, its video memory is lost", "the driver resets the GPU"),
    ("GpuIsResetAndNothingIsTold", f"{WHOLE}; start", "the driver resets the GPU"),
    # The driver refuses these of a wrong program; here a GPU meets them.
    ("OtherChipInside", WHOLE, "illegal opcode: .*word bfc70000"),
    ("CutObject", rf"memory fault at 0x\w+000 {READ}: inside a live allocation.*code of kernel",
     r"execute of 0x\w+000 .*instruction fetch"),
    ("NoObject", WHOLE, "(illegal opcode|register out of range): "),
    ("OtherEntry", f"memory fault at {NOWHERE_AMD} {READ}", f"no mapping at {NOWHERE_AMD}"),
    ("TooMuchLds", WHOLE, "invalid dispatch: .*261632 bytes of LDS"),
    ("TooMuchScratch", ENGINE, "a kernel needs more scratch than the queue has"),
    ("TooManyThreads", ENGINE, "a work-group of a size there is not"),
    ("TooManyRegisters", WHOLE, "register out of range: "),
    # Eight bytes of arguments: the address of what a kernel loads first.
    ("ShortArguments", rf"memory fault at 0x\w+ {READ}: \d+ bytes past the end of", r"read of 0x\w+(ff8|00\w) .*s_load"),
    ("ArgumentsOutOfSight", f"memory fault at {NOWHERE_AMD} {READ}", "unmapped address: read of 0x7ead000000.. .*s_load"),
    # Runs on until it leaves memory or the limit is over.
    ("@TooLargeAGrid", f"{WAITED}|memory fault at 0x\\w+ {WRITE}", None),
]
NV = [
    ("KernelReadsUnmapped", f"{MMU}.*read of unmapped address {NOWHERE_NV}", rf"not mapped at {NOWHERE_NV} \(read\)"),
    ("KernelWritesUnmapped", f"{MMU}.*write of unmapped address {NOWHERE_NV}", rf"not mapped at {NOWHERE_NV} \(write\)"),
    ("KernelAddsToUnmapped", f"{MMU}.*atomic of unmapped address {NOWHERE_NV}", rf"not mapped at {NOWHERE_NV} \(atomic\)"),
    ("KernelWritesPastTheEnd", rf"{MMU}.*write of unmapped address 0x\w+ \(\d+ bytes past the end of", r"not mapped at 0x\w+ \(write\)"),
    ("KernelReadsBeforeTheBegin", rf"{MMU}.*read of unmapped address 0x\w+ \(8 bytes before a live", r"not mapped at 0x\w+ff8 \(read\)"),
    ("KernelIsMisaligned", f"{SM}.*misaligned address at .* in kernel '", r"misaligned address at 0x\w+ \(write\)"),
    ("KernelTraps", f"{SM}.*illegal instruction encoding at .* in kernel '", "trap; trap"),
    ("KernelIsNonsense", f"{SM}.*illegal instruction encoding at .* in kernel '", "instruction not known here in 'frobnicate"),
    ("KernelLeavesSharedMemory", f"{SM}.*address out of range at .* in kernel '", "shared memory out of range at 0x100000"),
    ("KernelWaitsAtABarrier", f"{SM}.*illegal instruction encoding at .* in kernel '", "barrier deadlock"),
    ("TheSecondKernelFails", f"{MMU}.*read of unmapped address {NOWHERE_NV}", rf"not mapped at {NOWHERE_NV} \(read\)"),
    ("FaultWithoutDetails", MMU, rf"not mapped at {NOWHERE_NV} \(read\)"),
    ("ALaterFaultChangesNothing", f"{MMU}.*write of unmapped address {NOWHERE_NV}", r"(?s)\(write\).*copy: read of 0xdead00010000"),
    ("CopyFromUnmapped", f"copy queue.*{MMU}", f"copy: read of {NOWHERE_NV}"),
    ("CopyToUnmapped", f"copy queue.*{MMU}", f"copy: write of {NOWHERE_NV}"),
    ("CopyPastTheEnd", f"copy queue.*{MMU}", r"copy: read of 0x\w+000,"),
    ("CopyBeyondAllAddresses", r"copy queue.*channel error \d+ \(copy engine \d exception\)", "address beyond the engine's"),
    ("@KernelSpins", WAITED, None),
    ("@EngineHangs", WAITED, None),
    ("@EngineStalls", WAITED, None),
    ("@ReleaseIsWithheld,40", WAITED, None),
    ("@WaitNeverComes", WAITED, None),
    # Told by a channel, or by the call of the kernel driver that comes first.
    ("GpuFallsOffTheBus", r"channel error 79 \(GPU has fallen off the bus\)|NV_ERR_GPU_IS_LOST", None),
    # The driver refuses these of a wrong program; here a GPU meets them.
    ("TooManyThreads", SM, "launch descriptor: block of 1025x"),
    ("TooDeepABlock", SM, r"launch descriptor: block of \d+x\d+x65"),
    ("TooMuchSharedMemory", SM, "launch descriptor: 262016 bytes of shared memory"),
    ("TooWideAGrid", SM, r"launch descriptor: grid of \d+x0x"),
    ("OtherArchitecture", SM, "takes no descriptor of version 7"),
    ("OtherEntry", f"{MMU}.*read of unmapped address 0xde", "program: read of 0xde"),
    ("CutText", f"{SM}.*illegal instruction encoding", "program is not PTX that can be run"),
    ("DamagedCubin", f"{SM}.*illegal instruction encoding", "character 0x7f has no place in PTX"),
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
    ("NoSuchCard", UNAVAILABLE, "AMD:2 does not exist: there are 2"),
    ("NoCardAtAll", UNAVAILABLE, ""),
    ("VmIsTaken", FAILURE, "ACQUIRE_VM"),
    ("QueueIsRefused", FAILURE, "CREATE_QUEUE"),
    ("EventsRunOut", FAILURE, "CREATE_EVENT"),
    ("MemoryIsRefused", FAILURE, "ALLOC_MEMORY_OF_GPU"),
    ("MappingIsRefused", DEVICE_FAILED, "MAP_MEMORY_TO_GPU"),
    ("VideoMemoryEnds", FAILURE, "video memory"),
    ("VideoMemoryIsFull", FAILURE, r"bytes wanted, \d+ bytes of video memory are free"),
]
NV_OPENING = [
    ("NoDriver", UNAVAILABLE, "/dev/nvidiactl"),
    ("NoRights", UNAVAILABLE, "/dev/nvidiactl"),
    ("OldDriver", UNAVAILABLE, "470.256.02"),
    ("GpuDoesNotStart", FAILURE, "could not start the GPU"),
    ("LostBeforeOpening", FAILURE, "could not start the GPU"),
    ("NoSuchCard", UNAVAILABLE, "NV:2 does not exist: there are 2"),
    ("NodeOfTheCardIsMissing", UNAVAILABLE, "/dev/nvidia0"),
    ("DeviceInExclusiveMode", UNAVAILABLE, "exclusive compute mode"),
    ("SandboxRefusesTheCall", FAILURE, "sandbox"),
    ("ChannelClassIsRefused", UNAVAILABLE, "NV_ERR_INVALID_CLASS"),
    ("ComputeClassIsRefused", UNAVAILABLE, "NV_ERR_INSUFFICIENT_PERMISSIONS"),
    ("ChannelsRunOut", FAILURE, "NV_ERR_INSUFFICIENT_RESOURCES"),
    ("ScheduleIsRefused", UNAVAILABLE, "GPFIFO_SCHEDULE"),
    ("MappingFails", FAILURE, r"stage 32 \(map\)"),
    ("VideoMemoryEnds", FAILURE, r"MiB free of 16\.0 MiB|NV_ERR_NO_MEMORY"),
    ("TheThirdAllocationFails", FAILURE, "memory"),
    ("PinningFails", FAILURE, "could not pin"),
    # selftest goes on with the checks that need no kernel.
    ("TextWhereCubinsAreRun", {"generate": UNAVAILABLE, "selftest": FAILURE}, "PTX text, not a cubin: nvJitLink or ptxas makes one"),
]
# Faults of those tables that the two commands cannot meet.
KEEPS_MEMORY = "memory goes back to the kernel driver only when the program ends or runs out of it, so a stale address is mapped"
ONE_GPU = "no command maps one GPU's memory on another"
AMD_NOT_MET = {
    "KernelReadsFreedMemory": KEEPS_MEMORY,
    "PeersAreRefused": ONE_GPU,
    "RegisteringWhatIsNoMemory": "neither command registers memory of its own with an AMD GPU",
    "OtherArchitecture": "the driver compares a label that no GPU is ever told",
    "TooMuchLdsInside": "a GPU is told one size of LDS: TooMuchLds",
}
NV_NOT_MET = {
    "KernelReadsFreedMemory": KEEPS_MEMORY,
    "PeersAreRefused": ONE_GPU,
}
# On what it cannot be met, of what else can.
NOT_MET_ON = {
    ("AMD PM4", "TooMuchScratch", "generate"): "PM4 packets do not say what scratch a kernel needs",
    ("AMD PM4", "TooMuchScratch", "selftest"): "PM4 packets do not say what scratch a kernel needs",
}
# Machines on which everything works, and a fault only for who asks more of them than the program does.
AMD_WORKS = ["LargerThanTheBar"]
# Of two GPUs, one after the other: only the second one's kernels can find what the first alone has mapped.
ANOTHER_GPU = ("KernelReadsAnotherGpu", rf"memory fault at 0x\w+ {READ}", "unmapped address: read of")


class Vendor:
    def __init__(self, name, simulator, environment):
        self.name, self.simulator, self.environment = name, simulator, environment

    def run(self, command, options=(), limit_ms=LIMIT_MS, also=None):
        words = [self.simulator, *options, PROGRAM, *command]
        environment = {**os.environ, **self.environment, "BM_WAIT_TIMEOUT_MS": str(limit_ms), "BM_LOG": "amd=0,nv=0"}
        environment.update(also or {})
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=seconds(600))
        if done.returncode == CANNOT_RUN_HERE:
            print(done.stderr)
            sys.exit(CANNOT_RUN_HERE)
        return done


AMD_PM4 = Vendor("AMD", SIM_AMD, {"DEV": "AMD", "BM_AMD_QUEUE": "pm4"})
AMD_AQL = Vendor("AMD", SIM_AMD, {"DEV": "AMD", "BM_AMD_QUEUE": "aql"})
NVIDIA = Vendor("NV", SIM_NV, {"DEV": "NV"})
GENERATE = ["generate", MODEL, "Permission is", "--max-tokens", "6", "--temperature", "0"]
SELFTEST = ["selftest"]
SELFTEST_OF_TWO = ["selftest", "--device", "AMD:0", "--device", "AMD:1"]
problems, figures, counts = [], [], {}


def own_lines(text):
    """What the program itself wrote on stderr, without the simulator's lines and the prompt."""
    text = "".join(line for line in text.splitlines(True) if not line.startswith("sim-"))
    return [line for line in re.sub(r"^Permission is", "", text).splitlines() if line]


def engine_lines(text):
    return "".join(line for line in text.splitlines(True) if re.match("sim-amd: queue died: |sim-nv: gpu ", line))


def expect(is_right, what, done):
    if not is_right:
        problems.append(what)
        print(f"WRONG {what}\n  exit code {done.returncode}\n  stdout: {done.stdout[-600:]}\n  stderr: {done.stderr[-1500:]}")
    return is_right


def count(kind, command, is_right):
    right, all_of_them = counts.get((kind, command), (0, 0))
    counts[kind, command] = (right + is_right, all_of_them + 1)


def lose(vendor, kind, fault, says, found, command):
    is_hang = fault.startswith("@")
    fault = fault.removeprefix("@")
    what = f"{kind} {fault} in {command[0]}"
    bound = (LIMIT_MS if is_hang else 0) + (SLACK_MS if IS_ALL else GENEROUS_MS)
    took = None
    for _ in range(TRIES):
        done = vendor.run(command, ["--plant", fault])
        told = re.search(r"the program ended ([0-9.]+) ms later", done.stderr)
        took = min(float(told.group(1)), took or 1e9) if told else took
        if took is None or took <= bound:
            break
    lines = own_lines(done.stderr)
    first = lines[0] if lines else ""
    before = len(problems)
    name = vendor.name if command is not SELFTEST_OF_TWO else "AMD:1"
    expect(done.returncode == DEVICE_FAILED, f"{what}: exit code {done.returncode}", done)
    expect(first.startswith(f"bellmetal: {name}: device lost, "), f"{what}: first line", done)
    expect(re.search(says, first) is not None, f"{what}: does not say {says}", done)
    expect(re.search(r" queue at (kernel '|a copy of|graph_|a write)|no submission was in flight", first) is not None,
           f"{what}: names no queue and work", done)
    expect("last completed: " in first or "nothing completed before" in first, f"{what}: last completed work", done)
    expect(len(lines) == 1, f"{what}: {len(lines)} lines", done)
    if command is SELFTEST:
        expect(done.stdout.count("\nFAIL") + done.stdout.count("\nfail") == 1, f"{what}: one check fails", done)
    if found is not None:
        expect(re.search(found, engine_lines(done.stderr)) is not None, f"{what}: the engine did not find {found}", done)
    if fault not in ("DoorbellReachesNobody", "QueuesNeverStart"):  # so from the beginning
        expect(took is not None, f"{what}: nothing was planted", done)
    if took is not None:
        expect(took <= bound, f"{what}: {took} ms at best", done)
        figures.append((what, is_hang, took))
    count(f"{kind} lost", command[0], len(problems) == before)
    print(f"{what}: {'' if took is None else f'{took:.0f} ms, '}{first[:160]}")


def refuse(vendor, kind, fault, code, says, command):
    what = f"{kind} {fault} in {command[0]}"
    with tempfile.TemporaryDirectory() as folder:
        # Cubins that are cached need no compiler.
        also = {"NoSuchCard": {"DEV": f"{vendor.name}:2"},
                "TextWhereCubinsAreRun": {"DEV": "NV:PTX", "BM_NV_CODE": "", "BM_CACHE_DIR": folder}}
        done = vendor.run(command, ["--plant", fault], limit_ms=20_000, also=also.get(fault))
    first = (own_lines(done.stderr) or [""])[0]
    code = code[command[0]] if isinstance(code, dict) else code
    is_right = expect(done.returncode == code, f"{what}: exit code {done.returncode}, not {code}", done)
    is_right &= expect(re.search(says, done.stdout + done.stderr) is not None, f"{what}: does not say {says}", done)
    count(f"{kind} refused", command[0], is_right)
    print(f"{what}: exit code {done.returncode}, {first[:160]}")


def bear(vendor, kind, fault, command):
    done = vendor.run(command, ["--plant", fault], limit_ms=60_000)
    count(f"{kind} works", command[0], expect(done.returncode == 0, f"{kind} {fault} in {command[0]}: does not work", done))
    print(f"{kind} {fault} in {command[0]}: exit code {done.returncode}")


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


def is_complete(folder, met, not_met):
    """Every fault that the unit tests know stands in a table of this file, and nothing else does."""
    known = set()
    for name in ("device_faults.cpp", "machine_faults.cpp"):
        with open(f"tests/unit/{folder}/{name}", encoding="utf-8") as source:
            for either, other in re.findall(r'(?:fault|hang|refused|opening)\(\s*"(\w+)"|name = "(\w+)"', source.read()):
                known.add(either or other)
    here = {name.removeprefix("@").split(",")[0] for name in met} | set(not_met)
    if known != here or set(met) & set(not_met):
        problems.append(f"{folder}: tables differ: {sorted(known ^ here)}")
    return len(known)


num_amd = is_complete("amd_faults", [row[0] for row in [*AMD, *AMD_OPENING, ANOTHER_GPU]] + AMD_WORKS, AMD_NOT_MET)
num_nv = is_complete("nv_faults", [row[0] for row in [*NV, *NV_OPENING]], NV_NOT_MET)
machines = [(AMD_PM4, "AMD PM4", AMD, AMD_OPENING, AMD_WORKS), (AMD_AQL, "AMD AQL", AMD, [], []),
            (NVIDIA, "NVIDIA", NV, NV_OPENING, [])]
for vendor, kind, *_ in machines:
    works(vendor, kind)  # and the kernels are compiled
    vendor.run(SELFTEST, limit_ms=60_000)
rows = []
for vendor, kind, faults, opening, bearable in machines:
    for fault, says, found in faults:
        for command in (GENERATE, SELFTEST):
            if (kind, fault, command[0]) not in NOT_MET_ON:
                rows.append((lose, vendor, kind, fault, says, found, command))
    for fault, code, says in opening:
        for command in (GENERATE, SELFTEST):
            rows.append((refuse, vendor, kind, fault, code, says, command))
    for fault in bearable:
        for command in (GENERATE, SELFTEST):
            rows.append((bear, vendor, kind, fault, command))
    if vendor.name == "AMD":
        rows.append((lose, vendor, kind, *ANOTHER_GPU, SELFTEST_OF_TWO))
if only := os.environ.get("BM_LOSS_ONLY"):
    rows = [row for row in rows if only in row[3]]
elif not IS_ALL:
    first = int(os.environ.get("BM_LOSS_FIRST", time.time() // 3600))
    step = max(len(rows) // SAMPLE, 1)
    rows = [rows[(first * 7 + i * step) % len(rows)] for i in range(SAMPLE)]
    print(f"rows {first * 7} and on")
for check, vendor, kind, *rest in rows:
    check(vendor, kind, *rest)
for vendor, kind, *_ in machines:
    works(vendor, kind)
tells_json(AMD_PM4, "EngineHangs")
tells_json(NVIDIA, "KernelReadsUnmapped")
others_go_on()
for name, chosen in (("faults", False), ("hangs", True)):
    times = sorted(took for _, is_hang, took in figures if is_hang == chosen)
    if times:
        late = sum(took > (LIMIT_MS if chosen else 0) + SLACK_MS for took in times)
        print(f"{name}: {len(times)}, from planting to the end of the program: median {times[len(times) // 2]:.0f} ms, "
              f"most {times[-1]:.0f} ms (limit of a wait: {LIMIT_MS} ms), {late} later than the limit and {SLACK_MS} ms")
print(f"of {num_amd} faults of AMD and {num_nv} of NVIDIA:")
for vendor, rows_of, opening, bearable, not_met in (("AMD", [*AMD, ANOTHER_GPU], AMD_OPENING, AMD_WORKS, AMD_NOT_MET),
                                                    ("NVIDIA", NV, NV_OPENING, [], NV_NOT_MET)):
    print(f"  {vendor}: {len(rows_of)} lose the device, {len(opening)} are refused before there is work, {len(bearable)} works, "
          f"{len(not_met)} cannot be met:")
    for fault, reason in not_met.items():
        print(f"    {fault}: {reason}")
for (kind, command), (right, run) in sorted(counts.items()):
    print(f"  {kind}, {command}: {right} of {run} right")
if problems:
    sys.exit("\n".join(problems))
