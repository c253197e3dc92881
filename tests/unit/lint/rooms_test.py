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
    "README.md": "## What works where\n\n| device | state |\n| --- | --- |\n| a GPU | `DEV=NV`: works |\n"
                 "## Documents\n\n" + "".join(f"[a](docs/{page}.md) " for page in ("architecture", "compiling", "verification", "vocabulary")),
    "docs/compiling.md": "## Schedules\n\n| row | folder |\n| --- | --- |\n| `gemm.simt` | `gemm_gpu` | \n",
    "docs/vocabulary.md": "| term | meaning | where |\n| --- | --- | --- |\n| GEMM | C = A·B | `gemm_gpu/plan.cpp`, `gemm_gpu` |\n",
    "compiler/schedules/gemm_gpu/plan.cpp": "",
    "docs/verification.md": "## Who verified what\n\n| claim | by |\n| --- | --- |\n| `CPU` | |\n| `NVK+NV` | |\n"
                            "| `TU10x`, `gfx90` | |\n| `amdgpu/gc_11` | |\n",
    "drivers/builtin.cpp": '{.name = "CPU",\n .interfaces = nullptr,\n{.name = "NV",\n .interfaces = "NVK",\n',
    "drivers/nv/chips.cpp": '    {.name = "TU10x",\n    chip(kGfx9, "gfx90", 9, 1),\n',
    "firmware/manifest.gen.inc": '{"amdgpu/gc_11_0_0_imu.bin", 1,\n "abc",\n',
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
        self.assertEqual(len(differences({"drivers/builtin.cpp": '{.name = "CPU",\n .interfaces = nullptr,\n'})), 2)

    def test_schedules_both_ways(self):
        other = FILES["compiler/schedules/strategies.cpp"].replace("simt", "register")
        self.assertEqual(len(differences({"compiler/schedules/strategies.cpp": other})), 2)

    def test_terms_lead_to_files(self):
        text = FILES["docs/vocabulary.md"]
        self.assertEqual(differences({"docs/vocabulary.md": text + "| GEMV | M = 1 | `gemv.cpp` |\n"}),
                         ["docs/vocabulary.md: GEMV: gemv.cpp does not exist"])
        self.assertEqual(differences({"docs/vocabulary.md": text + "| GEMV | M = 1 | `plan.cpp` |\n"}), [])
        self.assertEqual(len(differences({"docs/vocabulary.md": "# Vocabulary\n"})), 1)

    def test_many_sources_need_a_guide_whose_files_exist(self):
        many = {f"runtime/s{i}.cpp": "" for i in range(13)}
        self.assertEqual(len(differences(many)), 1)
        self.assertEqual(differences({**many, "runtime/README.md": "Read `s1.cpp` and `s*.cpp` first."}), [])
        self.assertEqual(differences({**many, "runtime/README.md": "Read `gone.h` first."}),
                         ["runtime/README.md: gone.h does not exist"])

    def test_links_lead_somewhere(self):
        text = FILES["README.md"] + "[a](docs/compiling.md#schedules) [b](https://example.org/x) `[](const T& x)`\n"
        self.assertEqual(differences({"README.md": text}), [])
        self.assertEqual(differences({"README.md": text + "[c](gone.md) [d](docs/compiling.md#gone)\n"}),
                         ["README.md: gone.md does not exist", "README.md: docs/compiling.md has no heading #gone"])

    def test_page_that_nobody_links_to(self):
        self.assertEqual(differences({"docs/lost.md": "See [itself](#lost), [lost](lost.md).\n# Lost\n"}),
                         ["docs/lost.md: no page links to it"])

    def test_what_nobody_says_was_verified(self):
        for name, more in (("drivers/builtin.cpp", '{.name = "NV",\n .interfaces = "RMX"'),
                           ("drivers/nv/chips.cpp", 'chip(large(kGfx9), "gfx91", 9, 1),\n'),
                           ("firmware/manifest.gen.inc", '{"nvidia/ad102/gsp/gsp.bin", 1,\n')):
            self.assertEqual(len(differences({name: FILES[name] + more})), 1, name)
        text = FILES["docs/verification.md"] + "| `gfx99` | |\n"
        self.assertEqual(differences({"docs/verification.md": text}),
                         ["docs/verification.md: Who verified what: gfx99 is neither interface, chip nor firmware"])


if __name__ == "__main__":
    unittest.main()
