#!/usr/bin/env python3
"""tools/sbom tells what a build holds, and the same twice.

    sbom_test.py FILE...
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = str(Path(__file__).resolve().parents[2] / "tools/sbom")
FILES = []


def run(*args, env=None):
    return subprocess.run([TOOL, *args], capture_output=True, text=True, env={**os.environ, **(env or {})})


class Sbom(unittest.TestCase):
    def test_names_every_shared_library_and_each_file_by_its_hash(self):
        done = run(*FILES)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        ids = [p["SPDXID"] for p in got["packages"] + got["files"]] + [got["SPDXID"]]
        self.assertEqual(len(ids), len(set(ids)))
        for link in got["relationships"]:
            self.assertIn(link["spdxElementId"], ids)
            self.assertIn(link["relatedSpdxElement"], ids)
        for path in FILES:
            row = next(f for f in got["files"] if f["fileName"] == "./" + os.path.basename(path))
            hashes = {c["algorithm"]: c["checksumValue"] for c in row["checksums"]}
            self.assertEqual(hashes["SHA256"], hashlib.sha256(Path(path).read_bytes()).hexdigest())
        # What ldd calls a direct need has an owner; packages are those the system has.
        names = {p["name"]: p for p in got["packages"]}
        for path in FILES:
            for library in re.findall(r"\(NEEDED\).*\[lib(fmt|stdc\+\+|sqlite3|LLVM)", subprocess.run(["readelf", "-dW", path], capture_output=True, text=True).stdout):
                self.assertTrue(any(name.lower().startswith("lib" + library.lower()) for name in names), library)
        for name, p in names.items():
            if name != "bellmetal":
                want = subprocess.run(["dpkg-query", "-Wf", "${Version}", name], capture_output=True, text=True).stdout
                self.assertEqual(p["versionInfo"], want)
                if p["licenseDeclared"].startswith("LicenseRef-"):
                    self.assertIn(p["licenseDeclared"], {row["licenseId"] for row in got["hasExtractedLicensingInfos"]})
                self.assertNotEqual(p["licenseDeclared"], "NOASSERTION", f"{name}: look into /usr/share/doc/{name}/copyright")

    def test_same_files_give_the_same_bytes(self):
        env = {"SOURCE_DATE_EPOCH": "1700000000"}
        first = run(*FILES, env=env).stdout
        self.assertEqual(first, run(*reversed(FILES), env=env).stdout)
        self.assertIn('"2023-11-14T22:13:20Z"', first)
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, os.path.basename(FILES[0]))
            Path(other).write_bytes(Path(FILES[0]).read_bytes() + b"x")
            changed = json.loads(run(other, *FILES[1:], env=env).stdout)
            self.assertNotEqual(changed["documentNamespace"], json.loads(first)["documentNamespace"])

    def test_mistakes_are_one_line(self):
        for args, env, mention in ((("/nonexistent/file",), {}, "/nonexistent/file"), ((FILES[0],), {"SOURCE_DATE_EPOCH": "soon"}, '"soon"')):
            done = run(*args, env=env)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(mention, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1)


if __name__ == "__main__":
    FILES = sys.argv[1:]
    if not FILES:
        sys.exit(__doc__)
    unittest.main(argv=sys.argv[:1])
