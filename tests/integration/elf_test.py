#!/usr/bin/env python3
"""How the files that users run are hardened, as binutils' readelf tells.

    elf_test.py [--fortified] FILE...
"""
import re
import subprocess
import sys
import unittest

FILES = []
IS_FORTIFIED = False


def readelf(path, *options):
    done = subprocess.run(["readelf", "--wide", *options, path], capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    return done.stdout


def of_each_file(check):
    def test(self):
        for path in FILES:
            with self.subTest(path):
                check(self, path)

    return test


class Hardening(unittest.TestCase):
    longMessage = False

    def has(self, text, pattern, what):
        self.assertTrue(re.search(pattern, text), what)

    @of_each_file
    def test_loads_anywhere(self, path):
        self.has(readelf(path, "--file-header"), r"Type:\s+DYN", "is at a fixed address")
        if ".so" not in path:
            self.has(readelf(path, "--dynamic"), r"FLAGS_1.*\bPIE\b", "is no position-independent executable")

    @of_each_file
    def test_tables_of_functions_are_read_only_before_main(self, path):
        self.has(readelf(path, "--segments"), "GNU_RELRO", "has no RELRO segment")
        self.has(readelf(path, "--dynamic"), r"FLAGS\).*BIND_NOW|FLAGS_1\).*\bNOW\b|\(BIND_NOW\)", "binds lazily")

    @of_each_file
    def test_no_segment_is_writable_and_executable(self, path):
        rows = re.findall(r"^\s+(\w+)\s+0x\w+ 0x\w+ 0x\w+ 0x\w+ 0x\w+ (...) ", readelf(path, "--segments"), re.M)
        kinds = [kind for kind, _ in rows]
        self.assertIn("GNU_STACK", kinds)
        self.assertGreaterEqual(kinds.count("LOAD"), 3)
        self.assertEqual([row for row in rows if "W" in row[1] and "E" in row[1]], [])
        self.assertEqual([row for row in rows if row[0] == "GNU_STACK" and "E" in row[1]], [])

    @of_each_file
    def test_stack_is_guarded(self, path):
        self.has(readelf(path, "--dyn-syms"), r"\b__stack_chk_fail\b", "was built without a stack protector")

    @of_each_file
    def test_copies_are_checked(self, path):
        if IS_FORTIFIED:
            self.has(readelf(path, "--dyn-syms"), r"\b__(?!stack_)\w+_chk\b", "was built without FORTIFY")

    @of_each_file
    def test_files_are_opened_by_the_name_that_tools_stand_in_for(self, path):
        self.assertNotIn("__open_2", readelf(path, "--dyn-syms"), "a call of open() with flags that vary lacks a mode")

    @of_each_file
    def test_carries_the_marks_of_control_flow_enforcement(self, path):
        if "X86-64" in readelf(path, "--file-header"):
            self.has(readelf(path, "--notes"), r"x86 feature: .*IBT.*SHSTK", "has no marks of IBT and SHSTK")

    @of_each_file
    def test_no_library_is_searched_where_others_may_write(self, path):
        for runpath in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", readelf(path, "--dynamic")):
            for folder in runpath.split(":"):
                self.has(folder, r"^(/|\$ORIGIN)", f"RUNPATH {runpath!r}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    IS_FORTIFIED = "--fortified" in arguments
    FILES = [a for a in arguments if not a.startswith("--")]
    if not FILES:
        sys.exit(__doc__)
    unittest.main(argv=sys.argv[:1])
