#!/usr/bin/env python3
"""The Debian package: built, unpacked into a folder of its own, and used from there.

    package_test.py BUILD_FOLDER CPACK
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

CPACK = sys.argv.pop()
BUILD = sys.argv.pop()
# Nobody answers for a package of the tests; a program is no library.
SUPPRESSED = "bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact,initial-upload-closes-no-bugs"


def tool(*args):
    done = subprocess.run(args, capture_output=True, text=True, timeout=seconds(300))
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        work, cls.root = os.path.join(cls.folder.name, "work"), os.path.join(cls.folder.name, "root")
        tool(CPACK, "-G", "DEB", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", work)
        (cls.package,) = glob.glob(os.path.join(work, "*.deb"))
        tool("dpkg-deb", "-x", cls.package, cls.root)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_program(self, *args):
        # No setting of the tests' own, and a cache that nobody has filled.
        return tool("env", "-i", "BM_CACHE_DIR=" + os.path.join(self.folder.name, "cache"), os.path.join(self.root, "usr/bin/bellmetal"), *args)

    def test_the_program_runs_from_where_it_was_unpacked(self):
        self.assertIn("bellmetal", self.run_program("version"))
        text = self.run_program("generate", os.path.join(self.root, "usr/share/bellmetal/licence.gguf"), "Permission is hereby granted",
                                "--max-tokens", "24", "--device", "CPU:LLVM")
        self.assertTrue(text.startswith(", free of charge"), text)

    def test_it_depends_on_the_packages_of_its_libraries(self):
        depends = tool("dpkg-deb", "-f", self.package, "Depends")
        for name in ("libc6", "libfmt9", "libsqlite3-0", "libmicrohttpd12", "libllvm"):
            self.assertIn(name, depends)

    def test_units_and_configuration_lie_where_debian_has_them(self):
        with open(os.path.join(self.root, "usr/lib/systemd/system/bellmetal.service")) as f:
            unit = f.read()
        self.assertIn("ExecStart=/usr/bin/bellmetal serve", unit)
        for path in ("usr/lib/systemd/system/bellmetal.socket", "etc/bellmetal/serve.env", "usr/share/doc/bellmetal/copyright",
                     "usr/share/doc/bellmetal/docs/serving.md", "usr/share/man/man1/bellmetal.1.gz"):
            self.assertTrue(os.path.isfile(os.path.join(self.root, path)), path)
        listed = tool("dpkg-deb", "-c", self.package).splitlines()
        self.assertEqual([line for line in listed if "root/root" not in line or line[5] == "w" or line[8] == "w"], [])

    @unittest.skipUnless(shutil.which("lintian"), "no lintian")
    def test_lintian_finds_no_error(self):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", "--suppress-tags", SUPPRESSED, self.package],
                              capture_output=True, text=True, timeout=seconds(300))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
