"""tools/hw-check where there is no GPU: it says so for every step, opens nothing and is not root."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None


@unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has an NVIDIA device")
class WithoutAGpu(unittest.TestCase):
    def test_every_step_says_why_it_did_not_run(self):
        with tempfile.TemporaryDirectory() as out:
            got = subprocess.run(
                [ROOT / "tools/hw-check", "--no-build", "--build", BUILD, "--out", out],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(got.returncode, 3, got.stdout + got.stderr)
            table = [line for line in got.stdout.splitlines() if line.startswith("| ")]
            for step in ("opens", "conformance", "selftest", "operations", "generate", "latency",
                         "bandwidth", "matmul"):
                for device in ("NV", "CUDA"):
                    rows = [line for line in table if line.startswith(f"| {device} {step} |")]
                    self.assertEqual(len(rows), 1, got.stdout)
                    self.assertIn("| not run |", rows[0])
            self.assertIn("no /dev/nvidiactl", got.stdout)
            self.assertNotIn("uid: 0\n", (pathlib.Path(out) / "facts.txt").read_text())
            self.assertIn("no GPU seen", (pathlib.Path(out) / "hardware-log.md").read_text())

    def test_help_and_mistakes(self):
        run = lambda *args: subprocess.run([ROOT / "tools/hw-check", *args], capture_output=True,
                                           text=True, timeout=60, check=False)
        self.assertIn("--pack DIR", run("--help").stdout)
        self.assertEqual(run("--bogus").returncode, 2)
        self.assertNotEqual(run("--no-build", "--build", "/nowhere").returncode, 0)


if __name__ == "__main__":
    unittest.main()
