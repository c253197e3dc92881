#!/usr/bin/env python3
"""An installed prefix, used from outside: by a CMake project, by pkg-config, and after it was moved.

    install_test.py BUILD_FOLDER CMAKE CXX_COMPILER
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

CXX = sys.argv.pop()
CMAKE = sys.argv.pop()
BUILD = sys.argv.pop()
PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "install")
COMPONENT = "libbellmetal_llvm.so"
# What tools need; programs under test run with nothing at all.
TOOLS = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "CCACHE_DISABLE": "1"}


def tool(*args, env=None):
    done = subprocess.run(args, capture_output=True, text=True, timeout=seconds(300), env={**TOOLS, **(env or {})})
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


def run(*args, env=None, cwd="/"):
    return subprocess.run(args, capture_output=True, text=True, timeout=seconds(300), env=env or {}, cwd=cwd)


def find(folder, name):
    return [os.path.join(at, name) for at, _, files in os.walk(folder) if name in files]


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.first = os.path.join(cls.folder.name, "first")
        tool(CMAKE, "--install", BUILD, "--prefix", cls.first)
        cls.by_cmake = cls.build_by_cmake(cls.first, "by_cmake")
        # Before the prefix moves: a program finds the component where it was built.
        cls.before = run(cls.by_cmake)
        cls.prefix = os.path.join(cls.folder.name, "moved")
        os.rename(cls.first, cls.prefix)
        cls.moved_by_cmake = cls.build_by_cmake(cls.prefix, "moved_by_cmake")
        cls.moved_by_pkg_config = cls.build_by_pkg_config(cls.prefix)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.folder.name, *names)

    @classmethod
    def build_by_cmake(cls, prefix, name):
        build = cls.path(name)
        tool(CMAKE, "-S", PROJECT, "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_CXX_COMPILER=" + CXX)
        tool(CMAKE, "--build", build)
        return os.path.join(build, "user")

    @classmethod
    def build_by_pkg_config(cls, prefix):
        cls.flags = tool("pkg-config", "--cflags", "--libs", "bellmetal",
                         env={"PKG_CONFIG_PATH": os.path.dirname(find(prefix, "bellmetal.pc")[0])}).split()
        tool(CXX, "-std=c++20", "-c", os.path.join(PROJECT, "main.cpp"), "-o", cls.path("main.o"), *cls.compile_flags())
        return cls.link("by_pkg_config", cls.flags)

    @classmethod
    def compile_flags(cls):
        return [f for f in cls.flags if not f.startswith(("-l", "-L", "-Wl"))]

    @classmethod
    def link(cls, program, flags):
        os.makedirs(os.path.dirname(cls.path(program)), exist_ok=True)
        tool(CXX, cls.path("main.o"), "-o", cls.path(program), *flags)
        return cls.path(program)

    def check(self, done):
        self.assertEqual((done.returncode, done.stdout), (0, "4 0 10 0\n"), done.stderr)

    def test_a_cmake_project_computes_without_any_environment_variable(self):
        self.check(self.before)

    def test_a_cmake_project_of_a_moved_prefix_does_too(self):
        self.check(run(self.moved_by_cmake))

    def test_a_pkg_config_program_of_a_moved_prefix_does_too(self):
        self.check(run(self.moved_by_pkg_config))

    def test_a_program_inside_the_prefix_finds_what_it_was_moved_with(self):
        inside = os.path.join(self.prefix, "bin", "user")
        shutil.copy(self.by_cmake, inside)  # names the prefix that is gone
        self.check(run(inside))

    def test_the_installed_program_runs_the_installed_model(self):
        model = os.path.join(self.prefix, "share", "bellmetal", "licence.gguf")
        done = run(os.path.join(self.prefix, "bin", "bellmetal"), "generate", model, "Permission is hereby granted",
                   "--max-tokens", "8", "--device", "CPU")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(", free", done.stdout)

    def test_licence_and_documents_are_there(self):
        documents = os.path.join(self.prefix, "share", "doc", "bellmetal")
        for name in ("LICENSE", "README.md", "CHANGELOG.md", "docs/cli.md"):
            self.assertTrue(os.path.isfile(os.path.join(documents, name)), name)

    def test_the_component_is_never_taken_from_a_relative_place(self):
        alone = self.path("alone")
        planted = self.path("planted")
        os.makedirs(planted)
        program = self.link("alone/user", [f for f in self.flags if not f.startswith("-Wl,-rpath")])
        shutil.copy(find(self.prefix, COMPONENT)[0], planted)
        for env in ({"LD_LIBRARY_PATH": "."}, {"LD_LIBRARY_PATH": ":"}, {"BM_PLUGIN_DIR": "."}, {"BM_PLUGIN_DIR": "./"}):
            done = run(program, env=env, cwd=planted)
            self.assertEqual(done.returncode, 3, (env, done.stdout))
        self.assertIn("absolute", done.stderr)
        self.check(run(program, env={"BM_PLUGIN_DIR": planted}))
        # Nor from a file that anybody could have written.
        beside = os.path.join(alone, COMPONENT)
        shutil.copy(find(self.prefix, COMPONENT)[0], beside)
        os.chmod(beside, 0o666)
        done = run(program)
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("writable by everyone", done.stderr)
        os.chmod(beside, 0o644)
        self.check(run(program))
        # Without it, the compiler that is there is named, and works.
        os.remove(beside)
        clang = next((c for c in ("clang-22", "clang-19", "clang") if shutil.which(c)), None)
        done = run(program, env={"PATH": TOOLS["PATH"]})
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("libllvm19", done.stderr)
        if clang:
            self.assertIn(clang, done.stderr)
            self.assertIn("DEV=CPU:CLANG", done.stderr)
            self.check(run(program, "CPU:CLANG", env={"PATH": TOOLS["PATH"]}))


if __name__ == "__main__":
    unittest.main()
