"""The lint of rooms must see what is missing on either side."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import rooms  # noqa: E402

ROOMS = "".join(f"| `{name}` | | |\n" for name in ("drivers/nv", *rooms.PRODUCT))
FILES = {
    "docs/architecture.md": "## Rooms\n\n| folder | library | what |\n| --- | --- | --- |\n" + ROOMS + "\n## Next\n",
    "README.md": "## What works where\n\n| device | state |\n| --- | --- |\n| a GPU | `DEV=NV`: works |\n",
    "docs/compiling.md": "## Schedules\n\n| row | folder |\n| --- | --- |\n| `gemm.simt` | `gemm_gpu` | \n",
    "drivers/builtin.cpp": '{.name = "CPU",\n{.name = "NV",\n',
    "drivers/nv/device.cpp": "",
    "compiler/schedules/strategies.cpp": 'Strategy{.name = "gemm.simt",\n  .folder = "gemm_gpu",\n',
}


def differences(changes):
    with tempfile.TemporaryDirectory() as root:
        for name in rooms.PRODUCT:
            os.makedirs(os.path.join(root, name))
        for name, text in {**FILES, **changes}.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return rooms.check_tree(root)


class Rooms(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(differences({}), [])

    def test_folder_without_a_row(self):
        self.assertEqual(differences({"drivers/amd/device.cpp": ""}), ["docs/architecture.md: no row for drivers/amd"])

    def test_row_without_a_folder(self):
        text = FILES["docs/architecture.md"].replace("| `runtime` |", "| `drivers/gone` | | |\n| `runtime` |")
        self.assertEqual(differences({"docs/architecture.md": text}), ["docs/architecture.md: drivers/gone does not exist"])

    def test_driver_that_nobody_hears_of(self):
        self.assertEqual(len(differences({"drivers/builtin.cpp": FILES["drivers/builtin.cpp"] + '{.name = "AMD",\n'})), 1)

    def test_device_that_is_promised(self):
        self.assertEqual(len(differences({"drivers/builtin.cpp": '{.name = "CPU",\n'})), 1)

    def test_schedules_both_ways(self):
        other = FILES["compiler/schedules/strategies.cpp"].replace("simt", "register")
        self.assertEqual(len(differences({"compiler/schedules/strategies.cpp": other})), 2)


if __name__ == "__main__":
    unittest.main()
