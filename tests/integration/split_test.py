#!/usr/bin/env python3
"""Models divided by layers: over devices of one process, and over the processes of mpirun (Open MPI).

    split_test.py PATH_OF_BELLMETAL [Devices|Mpi]
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

PROGRAM = sys.argv.pop(1)
MODEL = "models/bundled/licence.gguf"
PROMPT = "Permission is hereby granted"
GENERATE = ("generate", MODEL, PROMPT * 6, "--max-tokens", "24", "--json")
TWO = ("--device", "CPU:1,CPU:2")


def run(*args, front=(), env=None, **more):
    return subprocess.run([*front, PROGRAM, *args], capture_output=True, timeout=seconds(120), env={**os.environ, **(env or {})}, **more)


def tokens(done):
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)["tokens"]


class Devices(unittest.TestCase):
    def test_two_devices_give_the_tokens_of_one(self):
        got = run(*GENERATE, *TWO)
        self.assertEqual(tokens(got), tokens(run(*GENERATE, "--device", "CPU")))
        self.assertEqual(json.loads(got.stdout)["device"], "CPU:1:LLVM,CPU:2:LLVM")

    def test_a_chat_on_two_devices(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for m in messages %}{{ m.content }}\n{% endfor %}")
            template.flush()
            args = ("chat", MODEL, "--temp", "0", "-n", "12", "--json", "--chat-template", template.name)
            texts = [[json.loads(line)["text"] for line in run(*args, "--device", d, input=b"Permission\nis hereby\n").stdout.splitlines()]
                     for d in ("CPU", "CPU:1,CPU:2")]
        self.assertEqual(len(texts[0]), 2)
        self.assertEqual(texts[0], texts[1])

    def test_a_server_on_two_devices(self):
        server = subprocess.Popen([PROGRAM, "serve", MODEL, "--listen", "127.0.0.1:0", *TWO], stderr=subprocess.PIPE, text=True)
        try:
            port = None
            for line in server.stderr:
                event = json.loads(line)
                if event["event"] == "listening":
                    port = int(event["url"].rsplit(":", 1)[1])
                if event["event"] == "ready":
                    break
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds(60))
            connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT * 6, "max_tokens": 24, "temperature": 0}),
                               {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            want = json.loads(run(*GENERATE, "--device", "CPU").stdout)["text"]
            self.assertEqual(answer["choices"][0]["text"], want)
        finally:
            server.terminate()
            self.assertEqual(server.wait(timeout=seconds(60)), 0)
            server.stderr.close()

    def test_what_cannot_be_divided_is_said(self):
        for device, words in (("CPU:1,CPU:1", "twice"), ("CPU:1,CPX:2", "CPU:1,CPX:2"), ("CPU:1;", "empty name")):
            got = run("generate", MODEL, PROMPT, "--device", device)
            self.assertNotEqual(got.returncode, 0)
            self.assertIn(words, got.stderr.decode())
        got = run("generate", MODEL, PROMPT, "--split", "layers")
        self.assertEqual(got.returncode, 2)
        self.assertIn("mpirun -n 2", got.stderr.decode())


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun: openmpi-bin is not installed")
class Mpi(unittest.TestCase):
    """Ranks on this machine; mpirun wants to be told that root and few processors are meant."""

    @staticmethod
    def front(ranks):
        return ("mpirun", "-n", str(ranks), "--oversubscribe", "--mca", "btl_base_warn_component_unused", "0")

    @staticmethod
    def environment(**more):
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}

    def mpirun(self, ranks, *args, **more):
        return run(*args, "--split", "layers", front=self.front(ranks), env=self.environment(**more))

    def test_ranks_give_the_tokens_of_one_process(self):
        want = tokens(run(*GENERATE, "--device", "CPU"))
        for ranks in (1, 2, 3):
            self.assertEqual(tokens(self.mpirun(ranks, *GENERATE, "--device", "CPU")), want, ranks)

    def ranks_on(self, first, second):
        """Two ranks, each on its own devices."""
        script = f'exec {PROGRAM} {" ".join(map(repr, GENERATE))} --split layers --device "$([ "$OMPI_COMM_WORLD_RANK" = 1 ] && echo {second} || echo {first})"'
        return subprocess.run([*self.front(2), "sh", "-c", script], capture_output=True, timeout=seconds(120),
                              env={**os.environ, **self.environment()})

    def test_ranks_of_several_devices(self):
        want = tokens(run(*GENERATE, "--device", "CPU"))
        # Three blocks: one rank has two of them, the other refuses a second device.
        done = [d for d in (self.ranks_on("CPU", "CPU:1,CPU:2"), self.ranks_on("CPU:1,CPU:2", "CPU")) if d.returncode == 0]
        self.assertEqual([tokens(d) for d in done], [want])

    def test_stdout_has_the_text_of_one(self):
        got = self.mpirun(2, *GENERATE[:-1], "--device", "CPU")
        self.assertEqual(got.stdout, run(*GENERATE[:-1], "--device", "CPU").stdout)

    def test_more_ranks_than_blocks_are_refused_by_all(self):
        got = self.mpirun(9, *GENERATE[:-1], "--device", "CPU")
        self.assertNotEqual(got.returncode, 0)
        self.assertRegex(got.stderr.decode(), r"9 stages; the model has \d+ blocks")

    def test_what_fails_on_another_rank_is_told_by_the_first(self):
        got = self.ranks_on("CPU", "AMD:77")
        self.assertNotEqual(got.returncode, 0)
        said, _ = json.JSONDecoder().raw_decode(got.stdout.decode())
        self.assertRegex(said["error"]["message"], r"rank 1 of 2: .*AMD")

    def start_long(self, **more):
        """A long text, and the process id of its second rank once there is some of it."""
        child = subprocess.Popen([*self.front(2), PROGRAM, "generate", MODEL, PROMPT, "-n", "400", "--temp", "1", "--device", "CPU",
                                  "--split", "layers"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **self.environment(**more)})
        child.stdout.read(1)
        mine = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True).stdout.split()
        for pid in mine:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if b"OMPI_COMM_WORLD_RANK=1\0" in f.read():
                    return child, int(pid)
        raise AssertionError(f"no second rank among {mine}")

    def test_a_rank_that_is_killed_ends_all(self):
        child, rank = self.start_long()
        os.kill(rank, signal.SIGKILL)
        _, said = child.communicate(timeout=seconds(60))
        self.assertNotEqual(child.returncode, 0)
        self.assertRegex(said.decode(), r"rank 1 .*exited on signal 9")

    def test_a_rank_that_hangs_is_named_and_all_end(self):
        child, rank = self.start_long(BM_WAIT_TIMEOUT_MS="500")
        os.kill(rank, signal.SIGSTOP)
        _, said = child.communicate(timeout=seconds(120))
        self.assertNotEqual(child.returncode, 0)
        self.assertRegex(said.decode(), r"rank 1 of 2 has not answered for 10 s")


if __name__ == "__main__":
    unittest.main(verbosity=2)
