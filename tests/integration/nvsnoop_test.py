"""libnvsnoop.so and nvdecode over a client and a stand-in for the kernel driver."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

ROOT = pathlib.Path(__file__).resolve().parents[2]
SNOOP, MODEL, CLIENT, SIMULATOR, PROGRAM = (sys.argv[1:6] + [""] * 5)[:5]
del sys.argv[1:]


def record(folder, name="trace.jsonl", **settings):
    trace = pathlib.Path(folder) / name
    got = subprocess.run([CLIENT], capture_output=True, text=True, timeout=seconds(60), check=False,
                         env={**os.environ, "LD_PRELOAD": f"{SNOOP}:{MODEL}",
                              "NVSNOOP_OUT": str(trace), **settings})
    return got, trace


def decode(*arguments):
    return subprocess.run([sys.executable, ROOT / "tools/nvdecode", *map(str, arguments)],
                          capture_output=True, text=True, timeout=seconds(60), check=True).stdout


class Snoop(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_records_calls_and_decodes_their_names(self):
        got, trace = record(self.folder.name)
        self.assertEqual(got.returncode, 0, got.stderr)
        text = decode(trace)
        for part in ("open /dev/nvidiactl", "NV_ESC_RM_ALLOC NV01_ROOT_CLIENT",
                     "NV_ESC_RM_ALLOC NV01_DEVICE_0", "hClientShare=0xabcd",
                     "NV2080_CTRL_CMD_GPU_GET_GID_INFO of NV20_SUBDEVICE_0", "UVM_INITIALIZE",
                     "NV_ESC_RM_ALLOC HOPPER_CHANNEL_GPFIFO_A", "gpFifoEntries=0x80",
                     "NV_ESC_RM_MAP_MEMORY HOPPER_USERMODE_A"):
            self.assertIn(part, text)

    def test_doorbells_show_what_was_submitted_and_still_ring(self):
        got, trace = record(self.folder.name)
        self.assertEqual(got.stdout, "doorbell 0x1236\n", "the store itself must have happened")
        text = decode(trace)
        self.assertEqual(text.count("doorbell, offset 0x90"), 3)
        for part in ("8 words at", "SET_OBJECT (HOPPER_COMPUTE_A) = 0xcbc0", "SEM_ADDR_LO = 0x1000",
                     "SEM_EXECUTE = 0x1000001", "WAIT_FOR_IDLE = 0x1"):
            self.assertIn(part, text)
        self.assertLess(text.index("SEM_EXECUTE"), text.index("WAIT_FOR_IDLE"))
        for part in ("SEND_PCAS_A = ", "launch descriptor 3.0", "CTA_RASTER_WIDTH = 0x2a"):
            self.assertIn(part, text)

    def test_without_the_trap(self):
        got, trace = record(self.folder.name, NVSNOOP_DOORBELL="0")
        self.assertEqual(got.stdout, "doorbell 0x1236\n")
        self.assertNotIn("doorbell", trace.read_text())

    def test_every_line_is_json_and_numbered(self):
        _, trace = record(self.folder.name)
        numbers = sorted(json.loads(line)["n"] for line in trace.read_text().splitlines())
        self.assertEqual(numbers, list(range(len(numbers))))

    def test_two_runs_of_one_program_do_not_differ(self):
        traces = [record(self.folder.name, f"{i}.jsonl")[1] for i in range(2)]
        self.assertEqual([line for line in decode("--diff", *traces).splitlines()
                          if line[:1] in "+-" and line[:3] not in ("+++", "---")
                          and "process" not in line], [])
        other = pathlib.Path(self.folder.name) / "other.jsonl"
        other.write_text(traces[0].read_text().replace('"class":"0xc86f"', '"class":"0xc56f"'))
        self.assertIn("AMPERE_CHANNEL_GPFIFO_A", decode("--diff", traces[0], other))

    @unittest.skipUnless(SIMULATOR and PROGRAM, "needs sim-nv and bellmetal")
    def test_our_driver_over_the_simulated_kernel(self):
        trace = pathlib.Path(self.folder.name) / "ours.jsonl"
        got = subprocess.run(
            [SIMULATOR, "env", f"LD_PRELOAD={SNOOP}", PROGRAM, "bench", "bandwidth", "--mib", "1",
             "--device", "NV"], capture_output=True, text=True, timeout=seconds(120), check=False,
            env={**os.environ, "NVSNOOP_OUT": str(trace)})
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        text = decode(trace)
        for part in ("NV_ESC_CHECK_VERSION_STR", "NV_ESC_RM_ALLOC FERMI_VASPACE_A",
                     "UVM_MAP_EXTERNAL_ALLOCATION", "UVM_REGISTER_CHANNEL",
                     "GPFIFO_GET_WORK_SUBMIT_TOKEN of HOPPER_CHANNEL_GPFIFO_A",
                     "SET_OBJECT (HOPPER_COMPUTE_A)", "SET_OBJECT (HOPPER_DMA_COPY_A)",
                     "LINE_LENGTH_IN = 0x1000", "LAUNCH_DMA = "):
            self.assertIn(part, text)
        self.assertNotIn("opaque", trace.read_text())


if __name__ == "__main__":
    unittest.main()
