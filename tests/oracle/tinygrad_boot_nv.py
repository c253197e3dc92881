#!/usr/bin/env python3
"""tinygrad's NVIDIA driver as the judge of the modelled card: it boots on it and computes a + 1.

Needs a checkout of github.com/tinygrad/tinygrad (nothing of it is part of this repository) and the
firmware files of Debian's firmware-nvidia-graphics (non-free-firmware; likewise). Starts sim-nv-pci
on a free port of this machine.

  tinygrad_boot_nv.py SIM_NV_PCI CHECKOUT FIRMWARE_FOLDER CHIP [options of sim-nv-pci]
  tinygrad_boot_nv.py --test SIM_NV_PCI SIM_NV_FIRMWARE CHIP [options]   # checkout of BM_TINYGRAD_CHECKOUT, else skipped (77)

Without NVIDIA's files those that sim-nv-firmware makes will do.

FIRMWARE_FOLDER has nvidia/CHIP/gsp/*-570.144.bin. The simulator executes PTX, so the driver is told
not to assemble: the text goes where machine code would, as for its own mock of the kernel driver.
Prints the driver's result and what the card has to say of the driver. Exits with 0 when the result
is right. JUDGE_OPS: tests of its operations, see tinygrad_ops.py. JUDGE_RUNS: so many drivers one after another on the same card. JUDGE_BOOT: no kernel,
the boot, two channels and a copy alone.
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
        subprocess.run([maker, firmware, *sorted({"ga102", chip})], check=True)  # it takes some of ga102 for others
        return main(simulator, os.path.abspath(checkout), os.path.join(firmware, ""), chip, *options)


def main(simulator, checkout, firmware, chip, *options):
    runs = int(os.environ.get("JUDGE_RUNS", "1"))
    server = subprocess.Popen([simulator, chip, "--remote", "0", "--firmware", firmware,
                               "--clients", str(runs), *options],
                              stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        environment = dict(os.environ, DEV=os.environ.get("JUDGE_DEV", "PCI+NV:PTX"), REMOTE=address,
                           PYTHONPATH=checkout, JUDGE_FIRMWARE=firmware, JUDGE_CHIP=chip, CACHELEVEL="0", PARALLEL="0",
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
    import tinygrad.runtime.support.nv.ip as ip

    # Its own table names the files' places on the network.
    def from_folder(folder, name, _sha256):
        # Debian's links from chip to chip are followed here, where they are not unpacked.
        root = pathlib.Path(os.environ["JUDGE_FIRMWARE"])
        for at in (root / folder / name, root / "nvidia/ga102/gsp" / name):
            if at.exists():
                return at.read_bytes()
        raise FileNotFoundError(f"{folder}/{name}")

    tinygrad.helpers.fetch_fw = ip.fetch_fw = from_folder
    import tinygrad.runtime.ops_nv as ops_nv
    import tinygrad.runtime.support.compiler_cuda as compilers
    ops_nv.MOCKIface = ops_nv.PCIIface
    compilers.NVPTXCompiler = compilers.PTXCompiler
    # Nobody has assembled the text, so nobody has counted registers.
    descriptor = ops_nv.QMD

    class WithRegisters(descriptor):
        def __init__(self, dev, *args, **fields):
            for name in ("register_count", "register_count_v"):
                if fields.get(name) == 0:
                    fields[name] = 32
            super().__init__(dev, *args, **fields)

    ops_nv.QMD = WithRegisters
    # Models that execute PTX look for arguments at 0x160 of bank 0, as before Blackwell.
    arguments = ops_nv.NVArgsState

    class AtTheOldPlace(arguments):
        def __init__(self, buf, prg, *rest, **named):
            del prg.cbuf_0[0x160 // 4:]
            super().__init__(buf, prg, *rest, **named)

    ops_nv.NVArgsState = AtTheOldPlace
    from tinygrad import Device, Tensor
    if os.environ.get("JUDGE_BOOT"):
        there = Tensor([1.0, 2.0, 3.0, 4.0]).to(Device.DEFAULT).realize()
        print("copied:", there.tolist())
        return 0 if there.tolist() == [1.0, 2.0, 3.0, 4.0] else 1
    result = (Tensor([1.0, 2.0, 3.0, 4.0]) + 1).tolist()
    print("a + 1 =", result)
    return 1 if result != [2.0, 3.0, 4.0, 5.0] else judge_operations()


if sys.argv[1:] == ["--judge"]:
    sys.exit(judge())
sys.exit(test(*sys.argv[2:]) if sys.argv[1:2] == ["--test"] else main(*sys.argv[1:]))
