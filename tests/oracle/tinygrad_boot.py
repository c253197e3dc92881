#!/usr/bin/env python3
"""tinygrad's AMD driver as the judge of the modelled card: it boots on it and computes a + 1.

Needs a checkout of github.com/tinygrad/tinygrad (nothing of it is part of this repository), the
firmware files of Debian's firmware-amd-graphics (non-free-firmware; likewise), and libLLVM for its
compiler. Starts sim-amd-pci on a free port of this machine.

  tinygrad_boot.py SIM_AMD_PCI CHECKOUT FIRMWARE_FOLDER CHIP [options of sim-amd-pci]
  tinygrad_boot.py --test SIM_AMD_PCI SIM_AMD_FIRMWARE CHIP [options]   # checkout of BM_TINYGRAD_CHECKOUT, else skipped (77)

Without AMD's files those that sim-amd-firmware makes will do: FIRMWARE_FOLDER is their folder amdgpu.

Prints the driver's result and what the card has to say of the driver. Exits with 0 when the result
is right. JUDGE_MORE: a matrix product and a sum as well. JUDGE_OPS: tests of its operations, see
tinygrad_ops.py. JUDGE_RUNS: so many drivers one after another on the same card, which finds it as the one
before left it.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from tinygrad_ops import judge_operations


def test(simulator, maker, chip, *options):
    checkout = os.environ.get("BM_TINYGRAD_CHECKOUT")
    if not checkout:
        print("skipped: BM_TINYGRAD_CHECKOUT names no checkout of tinygrad")
        return 77
    with tempfile.TemporaryDirectory(prefix="tinygrad-boot-") as firmware:
        subprocess.run([maker, firmware, chip], check=True)
        return main(simulator, os.path.abspath(checkout), os.path.join(firmware, "amdgpu"), chip, *options)


def main(simulator, checkout, firmware, chip, *options):
    runs = int(os.environ.get("JUDGE_RUNS", "1"))
    server = subprocess.Popen([simulator, "--remote", "0", "--chip", chip, "--clients", str(runs),
                               *options],
                              stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        environment = dict(os.environ, DEV="PCI+AMD:LLVM", REMOTE=address,
                           PYTHONPATH=checkout, JUDGE_FIRMWARE=firmware, CACHELEVEL="0",
                           DEBUG=os.environ.get("DEBUG", "0"))
        for _ in range(runs):
            judged = subprocess.run([sys.executable, __file__, "--judge"], env=environment,
                                    timeout=float(os.environ.get("JUDGE_TIMEOUT", "300")))
            if judged.returncode != 0:
                break
        if judged.returncode != 0 and server.poll() is None:
            server.terminate()
        status = server.wait(timeout=30)
        print(f"{chip}: driver ended with {judged.returncode}, card with {status}")
        return judged.returncode or status
    finally:
        if server.poll() is None:
            server.kill()


def judge():
    import tinygrad.helpers
    import tinygrad.runtime.support.am.amdev as amdev

    # Its own table names other versions of the same files, which it would download.
    def from_folder(_folder, name, _sha256):
        return (pathlib.Path(os.environ["JUDGE_FIRMWARE"]) / name).read_bytes()

    tinygrad.helpers.fetch_fw = amdev.fetch_fw = from_folder
    from tinygrad import Tensor
    result = (Tensor([1.0, 2.0, 3.0, 4.0]) + 1).tolist()
    print("a + 1 =", result)
    if result != [2.0, 3.0, 4.0, 5.0] or judge_operations():
        return 1
    if not os.environ.get("JUDGE_MORE"):
        return 0
    # From lists: what tinygrad can make of constants alone it computes on the CPU.
    rows = [[float(i * 64 + j) for j in range(64)] for i in range(64)]
    product = (Tensor(rows) @ Tensor([[float(i == j) for j in range(64)] for i in range(64)])).tolist()
    is_right = product == rows
    total = Tensor([float(i) for i in range(1 << 16)]).sum().item()
    print("a @ 1 is right:", is_right, "sum:", total)
    return 0 if is_right and total == (1 << 15) * 65535.0 else 1


if sys.argv[1:] == ["--judge"]:
    sys.exit(judge())
sys.exit(test(*sys.argv[2:]) if sys.argv[1:2] == ["--test"] else main(*sys.argv[1:]))
