"""tools/hw-check where there is no GPU: it says so for every step, opens nothing and is not root."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, SIMULATOR = (sys.argv[1:3] + ["", ""])[:2]
del sys.argv[1:]


@unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has an NVIDIA device")
class WithoutAGpu(unittest.TestCase):
    def test_every_step_says_why_it_did_not_run(self):
        with tempfile.TemporaryDirectory() as out:
            got = subprocess.run(
                [ROOT / "tools/hw-check", "--no-build", "--build", BUILD, "--out", out],
                capture_output=True, text=True, timeout=seconds(120), check=False)
            self.assertEqual(got.returncode, 3, got.stdout + got.stderr)
            table = [line for line in got.stdout.splitlines() if line.startswith("| ")]
            for step in ("opens", "conformance", "selftest", "operations", "generate", "latency",
                         "bandwidth", "matmul", "kernels"):
                for device in ("NV", "CUDA"):
                    rows = [line for line in table if line.startswith(f"| {device} {step} |")]
                    self.assertEqual(len(rows), 1, got.stdout)
                    self.assertIn("| not run |", rows[0])
            self.assertIn("no /dev/nvidiactl", got.stdout)
            self.assertNotIn("uid: 0\n", (pathlib.Path(out) / "facts.txt").read_text())
            self.assertIn("no GPU seen", (pathlib.Path(out) / "hardware-log.md").read_text())

    def test_help_and_mistakes(self):
        run = lambda *args: subprocess.run([ROOT / "tools/hw-check", *args], capture_output=True,
                                           text=True, timeout=seconds(60), check=False)
        self.assertIn("--pack DIR", run("--help").stdout)
        self.assertEqual(run("--bogus").returncode, 2)
        self.assertNotEqual(run("--no-build", "--build", "/nowhere").returncode, 0)


@unittest.skipUnless(SIMULATOR, "needs sim-nv")
class OverTheSimulatedKernel(unittest.TestCase):
    def setUp(self):
        environment = {**os.environ, "BM_NV_CODE": "ptx"}
        probe = subprocess.run([SIMULATOR, f"{BUILD}/bin/bellmetal", "selftest", "--device", "NV"],
                               capture_output=True, text=True, timeout=seconds(120), check=False,
                               env=environment)
        if "CUDA toolkit" in probe.stdout + probe.stderr or "NVRTC" in probe.stdout:
            self.skipTest("needs libnvrtc")
        self.environment = environment

    def test_steps_run_and_are_measured(self):
        with tempfile.TemporaryDirectory() as out:
            got = subprocess.run(
                [SIMULATOR, ROOT / "tools/hw-check", "--no-build", "--build", BUILD, "--out", out,
                 "--devices", "NV", "--sizes", "1,32", "--time", "200", "--only",
                 "opens|selftest|conformance copy|latency|bandwidth|matmul"],
                capture_output=True, text=True, timeout=seconds(280), check=False, env=self.environment)
            self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
            for step in ("opens", "selftest", "latency", "bandwidth", "matmul"):
                self.assertRegex(got.stdout, rf"\| NV {step} \| pass \|", got.stdout)
            self.assertIn("empty kernel, submit to signal", got.stdout)
            self.assertIn("host to device, 1 MiB", got.stdout)
            self.assertNotIn("| FAIL |", got.stdout)


if __name__ == "__main__":
    unittest.main()
