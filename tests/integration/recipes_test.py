#!/usr/bin/env python3
"""The recipes of packaging/ (image, Kubernetes, units) against the program and the tree that they speak of.

    recipes_test.py PATH_OF_BELLMETAL
"""

import json
import os
import re
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def without_comments(text):
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


IMAGE, CLUSTER = read("packaging/Containerfile"), read("packaging/kubernetes.yaml")
UNIT, SETTINGS = read("packaging/bellmetal.service"), read("packaging/serve.env")


class Recipes(unittest.TestCase):
    def test_variables_are_ones_that_the_program_reads(self):
        help_text = subprocess.run([PROGRAM, "serve", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
        documented = read("docs/environment.md")
        for name, text in [("Containerfile", IMAGE), ("kubernetes.yaml", CLUSTER), ("bellmetal.service", UNIT), ("serve.env", SETTINGS)]:
            for variable in set(re.findall(r"\bBM_[A-Z_]+", text)):
                if variable == "BM_SERVE_MODEL":
                    continue
                if variable.startswith("BM_SERVE_"):
                    option = "--" + variable[len("BM_SERVE_"):].lower().replace("_", "-")
                    self.assertRegex(help_text, re.escape(option) + r"\b", f"{name}: {variable}")
                elif variable != "BM_TESTS":
                    self.assertIn("`" + variable + "`", documented, name)

    def test_the_image_is_built_of_what_the_tree_has(self):
        text = without_comments(IMAGE)
        self.assertIn("rel", [p["name"] for p in json.loads(read("CMakePresets.json"))["configurePresets"]])
        self.assertIn("--preset rel", text)
        command = re.search(r"\$\((awk .*?)\)", text).group(1)
        names = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        self.assertGreater(len(names), 10)
        self.assertRegex(read("CMakeLists.txt") + "".join(read(os.path.join("cmake", f)) for f in os.listdir("cmake")), r"BM_TESTS")
        for stage in re.findall(r"--from=(\w+)", text):
            self.assertRegex(text, rf"FROM \S+ AS {stage}\b")

    def test_the_image_has_the_libraries_that_the_program_needs(self):
        wanted = set(re.findall(r"lib[\w.+-]+", re.search(r"FROM debian:12-slim\n(.*?)&&\s*rm", without_comments(IMAGE), re.S).group(1)))
        loaded = subprocess.run(["ldd", PROGRAM], stdout=subprocess.PIPE, text=True, check=True).stdout
        needed = re.findall(r"NEEDED.*\[(.*?)\]", subprocess.run(["readelf", "-d", PROGRAM], stdout=subprocess.PIPE, text=True, check=True).stdout)
        self.assertTrue(needed)
        paths = {n: os.path.basename(os.path.realpath(m.group(1))) for n in needed
                 if (m := re.search(rf"{re.escape(n)} => (\S+)", loaded))}
        # Files of packages are registered below /usr or without it.
        found = subprocess.run(["dpkg-query", "-S", *("*/" + p for p in paths.values())], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, check=False).stdout.splitlines()
        # Loaded when it is needed, without being linked.
        wanted_later = re.findall(r"install (lib\w+)", read("serve/microhttpd.cpp"))
        self.assertTrue(wanted_later and set(wanted_later) <= wanted, wanted_later)
        base = {"libc6", "libgcc-s1", "libstdc++6"}  # of debian:12-slim, or of what is installed above
        for library, path in paths.items():
            packages = {line.split(":")[0] for line in found if line.endswith("/" + path)}
            self.assertTrue(not packages or packages & (wanted | base), f"{library}: {packages} is not in the image")

    def test_the_cluster_asks_what_the_server_answers(self):
        text, server = without_comments(CLUSTER), read("serve/server.cpp") + read("serve/completion.cpp")
        paths = set(re.findall(r"httpGet: \{path: (\S+?),", text))
        self.assertEqual(paths, {"/livez", "/readyz"})
        for path in paths:
            self.assertTrue(f'"{path}"' in server, path)
        header = re.search(r"httpHeaderName: (\S+?)\}", text).group(1)
        self.assertTrue(header in server.lower(), f"no answer has the header {header}")
        uid = re.search(r"useradd --uid (\d+)", IMAGE).group(1)
        self.assertIn(f"runAsUser: {uid}", text)
        drain = re.search(r"--drain-seconds\D*?(\d+)", subprocess.run([PROGRAM, "serve", "--help"], stdout=subprocess.PIPE, text=True,
                                                                         check=True).stdout.replace("\n", " "))
        self.assertGreater(int(re.search(r"terminationGracePeriodSeconds: (\d+)", text).group(1)), int(drain.group(1)))
        port = re.search(r"EXPOSE (\d+)", IMAGE).group(1)
        self.assertIn(f"containerPort: {port}", text)
        self.assertIn(f":{port}", re.search(r"BM_SERVE_LISTEN, value: \"(.*?)\"", text).group(1))


if __name__ == "__main__":
    unittest.main()
