#!/usr/bin/env python3
"""Make every call fail once, and see how the program ends.

    sweep.py --build BUILD FAMILY… [--subject generate-cpu …] [--share 1/50] [--jobs 2] [--seed 1]

Families: calls (the n-th call of every function that touches the outside), malloc (random n), signals,
environment, limits. Subjects: a command on a device, see SUBJECTS; `--list` prints them.

How a run may end: `ok` (exit 0 and the right result), `clean` (exit 1 to 5 or 130 and a line that says why).
Everything else is a failure of the sweep: abort, crash, hang, silent (exit 0, wrong result), mute (exit code without
a line), leftover (files in TMPDIR, half-written results, processes). `vendor` is an abort or crash whose innermost
frame lies in somebody else's library (libpocl, its LLVM), after failures of which one was its own; it is counted apart.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import errno
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import small_model

CALLS = """malloc open fopen opendir read write pread pwrite lseek close mmap_memory mmap_file munmap mprotect madvise
ioctl poll fstat stat access rename unlink mkdir rmdir mkdtemp ftruncate fsync fcntl flock dup pipe socket readlink
realpath getcwd pthread_create fork posix_spawn waitpid dlopen sched_getaffinity memfd_create eventfd syscall""".split()
# What the function says when the system is short of something, and when something is wrong.
ERRNOS = collections.defaultdict(lambda: [errno.EIO, errno.ENOMEM], {
    "malloc": [errno.ENOMEM], "open": [errno.EMFILE, errno.EACCES], "fopen": [errno.EMFILE], "opendir": [errno.EMFILE],
    "read": [errno.EIO, errno.EINTR], "write": [errno.ENOSPC, errno.EINTR], "pread": [errno.EIO], "pwrite": [errno.ENOSPC],
    "lseek": [errno.EIO], "close": [errno.EIO], "mmap_memory": [errno.ENOMEM], "mmap_file": [errno.ENOMEM, errno.EACCES],
    "munmap": [errno.ENOMEM], "mprotect": [errno.ENOMEM, errno.EACCES], "madvise": [errno.EINVAL],
    "ioctl": [errno.EIO, errno.EINTR, errno.ENOMEM], "poll": [errno.EINTR, errno.ENOMEM], "fstat": [errno.EIO],
    "stat": [errno.EACCES], "access": [errno.EACCES], "rename": [errno.EIO, errno.ENOSPC], "unlink": [errno.EIO],
    "mkdir": [errno.ENOSPC], "rmdir": [errno.EIO], "mkdtemp": [errno.EACCES], "ftruncate": [errno.EIO],
    "fsync": [errno.EIO], "fcntl": [errno.ENOLCK, errno.EAGAIN], "flock": [errno.ENOLCK], "dup": [errno.EMFILE],
    "pipe": [errno.EMFILE], "socket": [errno.EMFILE], "pthread_create": [errno.EAGAIN], "fork": [errno.EAGAIN],
    "posix_spawn": [errno.EAGAIN, errno.ENOENT], "waitpid": [errno.ECHILD, errno.EINTR], "dlopen": [errno.ENOENT],
    "sched_getaffinity": [errno.EINVAL], "eventfd": [errno.EMFILE]})
MARK = "SWEEP_FOLDER"  # variable of every process of a run: the run's folder
REPORT_SIZE = 8 * (2 + 64) + 3 * 8192
# Libraries of others whose failures to survive a failed allocation are theirs: OpenCL loader, PoCL and its LLVM.
VENDORS = re.compile(r"libpocl|libOpenCL|libLLVM-15|libclang-cpp\.so\.15|libhwloc")
RUNTIMES = re.compile(r"libfailing|libc\.so|libm\.so|libstdc\+\+|libgcc_s|ld-linux|linux-vdso|\?")
MODEL = os.path.abspath("models/bundled/licence.gguf")
FULL = ["generate", MODEL, "Permission is", "--max-tokens", "3", "--temperature", "0"]
# A model of 40 KB does every step of a large one, and a simulator is through with it in a tenth of a second.
GENERATE = ["generate", "@ROOT@/small.gguf", "Th", "--max-tokens", "4", "--temperature", "0"]

LIMITED = "--limited"  # first argument of run_limited()


class Subject:
    """A command on a device. `warm`: kernels lie in the cache already."""

    def __init__(self, name, args, dev, front=(), warm=False, limit=180, bake=False, slow=False):
        self.name, self.args, self.dev, self.front = name, list(args), dev, list(front)
        self.warm, self.limit, self.bake, self.slow = warm, limit, bake, slow


def subjects():
    bake = ["bake", "@ROOT@/small.gguf", "-o", "@OUT@/kernels.bundle"]
    nv, amd = ["sim-nv", "--chip", "gh100", "--release", "580"], ["sim-amd"]
    rows = [
        Subject("generate-cpu", GENERATE, "CPU:LLVM", warm=True), Subject("generate-cpu-cold", GENERATE, "CPU:LLVM"),
        Subject("selftest-cpu", ["selftest"], "CPU:LLVM", warm=True), Subject("selftest-cpu-cold", ["selftest"], "CPU:LLVM"),
        Subject("bake-cpu", bake, "CPU:LLVM", bake=True),
        Subject("generate-clang", GENERATE, "CPU:CLANG", warm=True), Subject("selftest-clang", ["selftest"], "CPU:CLANG", warm=True), Subject("selftest-clang-cold", ["selftest"], "CPU:CLANG", slow=True),
        Subject("generate-cl", GENERATE, "CL", warm=True), Subject("selftest-cl", ["selftest"], "CL", warm=True),
        Subject("generate-nv", GENERATE, "NV:PTX", front=nv, warm=True), Subject("selftest-nv", ["selftest"], "NV:PTX", front=nv, warm=True, slow=True),
        Subject("generate-amd", GENERATE, "AMD", front=amd, warm=True), Subject("selftest-amd", ["selftest"], "AMD", front=amd, warm=True, slow=True),
        Subject("generate-cpu-full", FULL, "CPU:LLVM", warm=True), Subject("generate-cl-full", FULL, "CL", warm=True, slow=True),
        Subject("generate-nv-full", FULL, "NV:PTX", front=nv, warm=True, slow=True),
        Subject("generate-amd-full", FULL, "AMD", front=amd, warm=True, slow=True),
        Subject("devices", ["devices"], "CPU:LLVM"), Subject("bake-clang", bake, "CPU:CLANG", bake=True, warm=True),
        Subject("bake-nv", bake[:2] + ["--arch", "sm_90"] + bake[2:], "CPU:LLVM", bake=True, warm=True),
        Subject("bake-amd", bake[:2] + ["--arch", "gfx1100"] + bake[2:], "CPU:LLVM", bake=True, warm=True),
    ]
    return {s.name: s for s in rows}


class Sweep:
    def __init__(self, options):
        self.options = options
        self.bin = os.path.join(options.build, "bin")
        self.library = os.path.join(options.build, "lib", "libfailing_calls.so")
        self.root = tempfile.mkdtemp(prefix="bm-sweep-")
        self.caches, self.expected = {}, {}

    def environment(self, subject, folder):
        kept = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH", "LANG") if k in os.environ}
        return {**kept, "HOME": folder + "/home", "TMPDIR": folder + "/tmp", "BM_CACHE_DIR": folder + "/cache", "DEV": subject.dev,
                "BM_PLUGIN_DIR": os.path.join(self.options.build, "lib"), "BM_WAIT_TIMEOUT_MS": "30000",
                "POCL_CACHE_DIR": folder + "/pocl"}

    def folder(self, subject):
        folder = tempfile.mkdtemp(dir=self.root)
        for name in ("home", "tmp", "out"):
            os.mkdir(os.path.join(folder, name))
        if subject.warm and subject.name in self.caches:
            cached = self.caches[subject.name]
            shutil.copytree(cached + "/cache", folder + "/cache")
            # PoCL's files, hundreds of them, are written once each: links to their folders are enough.
            os.mkdir(folder + "/pocl")
            for entry in os.scandir(cached + "/pocl"):
                os.symlink(entry.path, folder + "/pocl/" + entry.name)
        os.makedirs(folder + "/cache", mode=0o700, exist_ok=True)
        os.makedirs(folder + "/pocl", exist_ok=True)
        return folder

    def run(self, subject, plant=None, env=None, limits=None, kill=None, keep=False):
        """One run. `plant`: (call, n, errno, on); `limits`: (name of the row, what sets it); `kill`: (seconds, signal)."""
        folder = self.folder(subject)
        report = os.path.join(folder, "report")
        with open(report, "wb") as f:
            f.truncate(REPORT_SIZE)
        environment = {**self.environment(subject, folder), MARK: folder}
        if plant is not None:
            call, at, number, on = plant
            environment |= {"LD_PRELOAD": self.library, "SWEEP_PROGRAM": "bellmetal", "SWEEP_REPORT": report}
            if call:
                environment |= {"SWEEP_CALL": call, "SWEEP_AT": str(at), "SWEEP_ERRNO": str(number), "SWEEP_ON": "1" if on else "0"}
        environment = {os.fsencode(k): os.fsencode(v) if isinstance(v, str) else v for k, v in (environment | (env or {})).items()}
        front = [os.path.join(self.bin, subject.front[0]), *subject.front[1:]] if subject.front else []
        # The machine around a simulated GPU is not what is too small.
        inner = [sys.executable, os.path.abspath(__file__), LIMITED, limits[0]] if limits and front else []
        args = [*front, *inner, os.path.join(self.bin, "bellmetal"),
                *(a.replace("@OUT@", folder + "/out").replace("@ROOT@", self.root) for a in subject.args)]

        def prepare():
            # A group, not a session: a session would get a share of the CPU of its own (autogroup), whatever this one's priority.
            os.setpgrp()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if limits and not front:
                limits[1]()

        with Pipe() as out, Pipe() as err:
            start = time.monotonic()
            child = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out.writer, stderr=err.writer, env=environment,
                                     preexec_fn=prepare, cwd=folder + "/out")
            out.close_writer()
            err.close_writer()
            hang = False
            if kill is not None:
                try:
                    child.wait(kill[0])
                except subprocess.TimeoutExpired:
                    while front and (pid := program_of(child.pid)) is None and child.poll() is None:
                        time.sleep(0.002)
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        if child.poll() is None:
                            os.kill(pid if front else child.pid, kill[1])
                start = time.monotonic()
            try:
                child.wait(self.options.limit or subject.limit)
            except subprocess.TimeoutExpired:
                hang = True
                if self.options.debug_hangs:
                    subprocess.run(["gdb", "-p", str(child.pid), "-batch", "-ex", "thread apply all bt 25"], check=False)
            left = processes_of(child.pid, folder)
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            child.wait()
            texts = out.text(), err.text()
        outcome = self.judge(subject, folder, texts, child.returncode, hang, [p for p in left if p != child.pid], kill, bool(env))
        outcome["seconds"] = time.monotonic() - start
        if keep:
            outcome["folder"] = folder
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def judge(self, subject, folder, texts, code, hang, processes, kill, is_damaged):
        out, err = texts
        report = read(folder + "/report")
        planted, died, exited = (report[8 * 66 + 8192 * i:8 * 66 + 8192 * (i + 1)].split(b"\0")[0].decode(errors="replace") for i in range(3))
        died = died or exited
        counts = dict(zip(CALLS, struct.unpack_from(f"<{len(CALLS)}Q", report, 16)))
        got = {"code": code, "stderr": err[-600:].decode(errors="replace"), "stdout": out[-300:].decode(errors="replace"), "died": died,
               "planted": planted, "counts": counts, "failed": struct.unpack_from("<Q", report, 8)[0]}
        if subject.bake:
            bundle = folder + "/out/kernels.bundle"
            result = open(bundle, "rb").read() if os.path.exists(bundle) else b""
        else:
            result = essence(subject, out)
        got["result"] = result
        if code is not None and code >= 128 and subject.front:
            code = 128 - code  # what the simulator says of a program killed by a signal
        leftovers = [os.path.join(d, f) for d, subs, files in os.walk(folder + "/tmp") for f in [*subs, *files]]
        # A relative BM_CACHE_DIR or BM_PROFILE of a damaged environment is written where it says.
        if not is_damaged:
            leftovers += [f for f in os.listdir(folder + "/out") if f != "kernels.bundle"]
        leftovers += [f for f in os.listdir(folder + "/cache") if not f.startswith(("kernels.db", "tuned.db")) and f not in ("lock", "tuned")]
        leftovers = [f for f in leftovers if "pocl" not in f and "POCL" not in f]
        want = self.expected.get(subject.name)
        if hang:
            got["kind"] = "hang"
        elif kill is not None and code == -kill[1]:
            got["kind"], got["left"] = "clean" if kill[1] == signal.SIGKILL or not leftovers else "leftover", leftovers
        elif code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE):
            # Their crash after one failed call of ours would be something that we passed on.
            is_ours = got["failed"] == 1 and not vendor_of(planted)
            vendor = None if is_ours else vendor_of(died)
            got["kind"] = f"vendor {vendor}" if vendor else "abort" if code == -signal.SIGABRT else "crash"
        elif processes or leftovers:
            got["kind"], got["left"] = "leftover", [*processes, *leftovers]
        elif code == 0:
            got["kind"] = "ok" if want is None or result == want else "silent"
            # Sizes of caches that nobody may read: a bundle for usual ones, if it says so and works.
            if got["kind"] == "silent" and subject.bake and b"kernels are made for usual caches" in err and self.works(subject, folder):
                got["kind"] = "clean"
        elif code == 127 and (b"error while loading shared libraries" in err or b"memory for thread-local data" in err):
            got["kind"] = "clean"  # the system's loader: before the program, or at a library's first use in a thread
        elif code in (1, 2, 3, 4, 5, 130):
            said = err.strip() or (b"fail" in out)
            bad = b"check failed" in err or b"terminate called" in err or b"PLEASE submit a bug" in err
            got["kind"] = "mute" if not said else "abort" if bad else "clean"
        else:
            got["kind"] = "crash" if code is not None and code < 0 else "mute"
        if subject.bake and code != 0 and result and result != want:
            got["kind"], got["left"] = "leftover", ["a bundle that is not whole"]
        return got

    def works(self, subject, folder):
        """Whether the model writes with kernels of this bundle alone what it writes without it."""
        texts = []
        for bundle in (None, folder + "/out/kernels.bundle"):
            more = {"BM_CACHE": "0", "BM_LOG": "0", **({"BM_BUNDLE": bundle} if bundle else {})}
            done = subprocess.run([os.path.join(self.bin, "bellmetal"), *(a.replace("@ROOT@", self.root) for a in GENERATE)],
                                  env=self.environment(subject, folder) | more, capture_output=True, timeout=subject.limit, check=False)
            texts.append((done.returncode, done.stdout))
        return texts[0] == texts[1] and texts[0][0] == 0

    def prepare(self, subject):
        """Good runs: what is right, how many calls there are; the first fills the cache of warm subjects."""
        small_model.cut(MODEL, self.root + "/small.gguf")
        plain = self.run(subject, keep=True)
        self.caches[subject.name] = plain["folder"]
        counted = self.run(subject, plant=("", 0, 0, False))
        if plain["kind"] != "ok" or plain["result"] != counted["result"]:
            raise SystemExit(f"{subject.name} does not work by itself as with the counting library: {plain}")
        if counted["kind"] != "ok":
            raise SystemExit(f"{subject.name} does not work without a failure: {counted}")
        self.expected[subject.name] = counted["result"]
        return counted


class Pipe:
    """What a program writes: not a file, which `ulimit -f` would bound; nobody reads until the end."""

    def __enter__(self):
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(self.reader, False)
        return self

    def close_writer(self):
        os.close(self.writer)

    def text(self):
        parts = []
        try:
            while part := os.read(self.reader, 1 << 20):
                parts.append(part)
        except BlockingIOError:
            pass
        return b"".join(parts)

    def __exit__(self, *_):
        os.close(self.reader)


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def processes_of(pid, folder):
    """Processes of the run that `pid` leads, itself included while it runs: its group and those marked with its
    folder, as compilers it starts have groups of their own. Not what took a session of its own to outlive it."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) != os.getsid(0) or read(f"/proc/{name}/stat").rsplit(b")", 1)[-1].split()[:1] == [b"Z"]:
                    continue
                marks = read(f"/proc/{name}/environ").split(b"\0")
                if os.getpgid(int(name)) == pid or os.fsencode(f"{MARK}={folder}") in marks:
                    found.append(int(name))
            except (ProcessLookupError, PermissionError):
                pass
    return found


def program_of(simulator):
    """The program that a simulator runs, or None: a signal before and after it would meet the simulated machine alone."""
    for pid in map(int, read(f"/proc/{simulator}/task/{simulator}/children").split()):
        if read(f"/proc/{pid}/comm") == b"bellmetal\n":
            return pid
    return None


def vendor_of(stack):
    """The library of others that the innermost frame beyond the C and C++ libraries lies in, or None."""
    for line in stack.splitlines():
        if not RUNTIMES.match(line):
            found = VENDORS.match(line)
            return found and found.group(0)
    return None


def essence(subject, out):
    """What does not change from run to run."""
    text = out.decode(errors="replace")
    if subject.args[0] == "selftest":
        return re.findall(r"\d+ passed, \d+ failed", text)
    if subject.args[0] == "devices":
        return len(text) > 0
    return text


def sample(random_, population, share):
    if share >= 1:
        return list(population)
    population = list(population)
    return random_.sample(population, min(len(population), max(1, int(len(population) * share + random_.random()))))


def garbage(random_, names):
    values = ["", "0", "-1", "1", "4096", "18446744073709551616", "99999999999999999999999", "1e308", "nan", "../../../..", "/dev/null",
              "/proc/self/mem", "\udc80\udcff\udcfe", "a" * 100_000, "%s%n%x", "0x7fffffff", "1:2:3:4", "CPU", "CPU:" * 2000, " ", "\n", "true", "NV", "AMD:99",
              "1T", "=", ",", ":", "/", "/proc/nonexistent/folder", "CL:9", "REF", "NULL::sm_90", "2.5", "0.0000001"]
    chosen = {}
    for name in random_.sample(names, random_.randint(1, 6)):
        value = random_.choice(values) if random_.random() < 0.8 else os.fsdecode(bytes(random_.randint(1, 255) for _ in range(random_.randint(1, 400))))
        chosen[name] = value
    return chosen


def limit_rows():
    """name, what it sets in the child."""
    mib = 1 << 20

    def of(kind, value):
        return lambda: resource.setrlimit(kind, (value, value))

    def few_processes(count):
        def apply():
            resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return apply

    rows = []
    for n in (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048):
        rows.append((f"as {n} MiB", of(resource.RLIMIT_AS, n * mib)))
    for n in (1, 4, 16, 32, 64, 128, 256):
        rows.append((f"data {n} MiB", of(resource.RLIMIT_DATA, n * mib)))
    for n in (64, 128, 256, 512, 1024):
        rows.append((f"stack {n} KiB", of(resource.RLIMIT_STACK, n << 10)))
    for n in (0, 1, 8, 64, 512, 4096):
        rows.append((f"fsize {n} KiB", of(resource.RLIMIT_FSIZE, n << 10)))
    for n in (3, 4, 5, 6, 8, 10, 12, 16, 24):
        rows.append((f"nofile {n}", of(resource.RLIMIT_NOFILE, n)))
    for n in (1, 2, 3):
        rows.append((f"nproc {n}, as an ordinary user", few_processes(n)))
    rows += [("cpu 1 s", of(resource.RLIMIT_CPU, 1)), ("memlock 0", of(resource.RLIMIT_MEMLOCK, 0)), ("core 0", of(resource.RLIMIT_CORE, 0)),
             ("nice", lambda: os.nice(19))]
    return rows


def memory_groups(root):
    """cgroup memory limits, or why there are none."""
    for base in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        name = "memory.limit_in_bytes" if base.endswith("memory") else "memory.max"
        group = os.path.join(base, "bm-sweep-" + str(os.getpid()))
        try:
            os.mkdir(group)
        except OSError as why:
            reason = why
            continue
        if not os.path.exists(os.path.join(group, name)):
            os.rmdir(group)
            reason = f"{base} has no {name}"
            continue

        def limited(n, group=group, name=name):
            def apply():
                with open(os.path.join(group, name), "w", encoding="ascii") as f:
                    f.write(str(n << 20))
                with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as f:
                    f.write(str(os.getpid()))
            return apply
        del root
        return [(f"cgroup memory {n} MiB", limited(n)) for n in (8, 16, 32, 64, 128, 256)], group
    return str(reason), None


def run_limited(row, command):
    """What sweep.py does as the parent of a program on a simulated GPU."""
    dict(limit_rows())[row]()
    os.execv(command[0], command)


def main():
    if sys.argv[1:2] == [LIMITED]:
        run_limited(sys.argv[2], sys.argv[3:])
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("families", nargs="*", choices=["calls", "malloc", "signals", "environment", "limits", []])
    ap.add_argument("--build", required=True)
    ap.add_argument("--subject", action="append")
    ap.add_argument("--share", type=lambda t: float(t.split("/")[0]) / float((t + "/1").split("/")[1]), default=1.0)
    ap.add_argument("--count", type=int, help="runs of malloc, signals and environment instead of 2000, 2000, 400")
    ap.add_argument("--jobs", type=int, default=2)
    ap.add_argument("--seed", default="1", help="of the random choices; today: the day's number")
    ap.add_argument("--every-subject", action="store_true", help="also those that take minutes")
    ap.add_argument("--call", action="append", help="only these functions")
    ap.add_argument("--at", type=int, help="only this n")
    ap.add_argument("--on", action="store_true", help="with --at: every later call fails too")
    ap.add_argument("--limit", type=float, help="seconds until a run hangs")
    ap.add_argument("--debug-hangs", action="store_true")
    ap.add_argument("--seconds", type=float, help="stop starting runs after this time")
    ap.add_argument("--show", type=int, default=40, help="failures to print")
    ap.add_argument("--show-ends", action="store_true", help="print clean ends that were not unwound to main: where")
    ap.add_argument("--json", help="figures and failures go there")
    ap.add_argument("--list", action="store_true")
    options = ap.parse_args()
    options.build = os.path.abspath(options.build)
    known = subjects()
    if options.list:
        print("\n".join(known))
        return 0
    sweep = Sweep(options)
    seed = int(time.time()) // 86400 if options.seed == "today" else int(options.seed)
    print(f"seed {seed}", flush=True)
    random_ = random.Random(seed)
    chosen = [known[name] for name in options.subject or [s for s in known if options.every_subject or not known[s].slow]]
    chosen = [s for s in chosen if is_possible(sweep, s)]
    started = time.monotonic()
    table, failures = {}, []
    try:
        for family in options.families:
            for subject in chosen:
                result = family_runs(sweep, family, subject, random_, options, started)
                table[f"{family} {subject.name}"] = dict(result)
                failures += result.failures
                print(f"{family:<12} {subject.name:<20} " + ", ".join(f"{n} {k}" for k, n in sorted(result.items())), flush=True)
    finally:
        shutil.rmtree(sweep.root, ignore_errors=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"table": table, "failures": failures}, f, indent=1, default=str)
    bad = [f for f in failures if not f["kind"].startswith("vendor")]
    print(f"{len(bad)} failures, {len(failures) - len(bad)} of vendors' libraries, {time.monotonic() - started:.0f} s")
    return 1 if bad else 0


def show(what):
    """One line: how it ended, where, and the innermost frames that are ours."""
    last = (what["stderr"].strip().splitlines() or [""])[-1]
    frames = [f for f in (what["died"] or what["planted"]).splitlines() if not f.startswith(("libfailing", "libc.so", "libstdc++"))]
    print(f"{what['kind']}: {what['what']}: code {what['code']}, {what.get('left', '')} {last[:200]} | {'; '.join(frames[:9])}", flush=True)


class Tally(collections.Counter):
    failures = ()


def is_possible(sweep, subject):
    """Says by name what is left out because the machine cannot run it."""
    reason = ""
    if subject.front:
        probe = subprocess.run([os.path.join(sweep.bin, subject.front[0]), "true"], capture_output=True, check=False)
        reason = f"{subject.front[0]}: {probe.stderr.decode().strip()[:200]}" if probe.returncode == 77 else ""
    elif subject.dev == "CL" and not os.path.isdir("/etc/OpenCL/vendors"):
        reason = "no OpenCL"
    elif subject.dev == "CPU:CLANG" and not any(shutil.which(n) for n in ("clang-22", "clang-19", "clang")):
        reason = "no clang"
    if reason:
        print(f"{subject.name} skipped: {reason}", flush=True)
    return not reason


def family_runs(sweep, family, subject, random_, options, started):
    good = sweep.prepare(subject)
    counts = good["counts"]
    jobs = []
    groups = None
    if family == "calls":
        for call in options.call or [c for c in CALLS if c != "malloc"]:
            for at in [options.at] if options.at else range(1, counts[call] + 1):
                for number in ERRNOS[call]:
                    jobs.append((f"{call} {at} {errno.errorcode[number]}", {"plant": (call, at, number, options.on)}))
        jobs = sample(random_, jobs, options.share)
    elif family == "malloc":
        total = counts["malloc"]
        wanted = options.count or int(2000 * options.share)
        chosen = [options.at] if options.at else range(1, total + 1) if total <= wanted else sorted(random_.sample(range(1, total + 1), wanted))
        for i, at in enumerate(chosen):
            on = options.on or (not options.at and i % 4 == 3)
            jobs.append((f"malloc {at}{' on' if on else ''} of {total}", {"plant": ("malloc", at, errno.ENOMEM, on)}))
    elif family == "signals":
        length = good["seconds"]
        for i in range(options.count or int(2000 * options.share)):
            number = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[i % 3]
            jobs.append((number.name, {"kill": (random_.uniform(0, length), number)}))
    elif family == "environment":
        text = subprocess.run([os.path.join(sweep.bin, "bellmetal"), "env", "--json"], capture_output=True, check=True).stdout
        names = sorted(set(re.findall(r'"name": "([A-Z_0-9]+)"', text.decode()))) + ["PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "LANG", "TERM"]
        for i in range(options.count or int(400 * options.share)):
            env = garbage(random_, names)
            jobs.append((f"environment {i} " + ", ".join(f"{k}={v[:30]!r}" for k, v in env.items()), {"env": env}))
    elif family == "limits":
        rows = limit_rows()
        more, groups = memory_groups(sweep.root)
        if groups is None:
            print(f"cgroup memory skipped: {more}")
        elif not subject.front:  # a group would hold the simulator, too
            rows += more
        jobs = [(row[0], {"limits": row, "plant": (None, 0, 0, False)}) for row in rows]  # says where a death lies
        jobs = sample(random_, jobs, options.share)
    tally, failures, ends = Tally(), [], collections.defaultdict(list)

    def one(job):
        if options.seconds and time.monotonic() - started > options.seconds:
            return None
        return sweep.run(subject, **job[1])

    workers = 1 if groups else options.jobs
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for job, got in zip(jobs, pool.map(one, jobs)):
            if got is None:
                tally["not run"] += 1
                continue
            kind = got["kind"]
            # A damaged environment may change what is asked for: another result is right then.
            if kind == "silent" and family == "environment":
                kind = "ok"
            if family == "limits" and kind == "crash" and got["code"] in (-signal.SIGKILL, -signal.SIGXCPU):
                kind = "clean"  # the limit itself kills
            tally[kind] += 1
            if family == "signals" and kind == "clean":
                ends[job[0]].append(got["seconds"])
            if kind == "clean" and options.show_ends and got["died"]:
                show({**got, "kind": "end without unwinding", "what": f"{subject.name}: {job[0]}"})
            if kind not in ("ok", "clean"):
                failures.append({"what": f"{subject.name}: {job[0]}", **got, "kind": kind})
                if len(failures) <= options.show:
                    show(failures[-1])
    if groups:
        os.rmdir(groups)
    for name, times in ends.items():
        times.sort()
        print(f"{name}: {len(times)} ended it, after {times[len(times) // 2] * 1000:.0f} ms (median), {times[-1] * 1000:.0f} ms at most")
    tally.failures = failures
    return tally


if __name__ == "__main__":
    sys.exit(main())
