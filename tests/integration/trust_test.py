#!/usr/bin/env python3
"""What the program executes belongs to root or the user and nobody else can write it; what it writes is whole or not there.

    trust_test.py PATH_OF_BELLMETAL BUILD_FOLDER
"""

import os
import pty
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

from limits import seconds

PROGRAM, BUILD = (os.path.abspath(p) for p in sys.argv[1:3])
del sys.argv[1:3]
MODEL = os.path.abspath("models/bundled/licence.gguf")
COMPONENT = "libbellmetal_llvm.so"
COMPONENT_FILE = os.path.join(BUILD, "lib", COMPONENT)
GENERATE = ("generate", MODEL, "Permission", "--max-tokens", "3", "--device", "CPU")


def run(*args, program=PROGRAM, env=None, cwd=None, before=()):
    full = {k: v for k, v in os.environ.items() if k not in ("BM_PLUGIN_DIR", "BM_BUNDLE", "DEV")}
    full.update(env or {})
    return subprocess.run([*before, program, *args], capture_output=True, text=True, timeout=seconds(300), env=full, cwd=cwd)


class Folder(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()  # 0700
        self.addCleanup(held.cleanup)
        self.folder = held.name

    def path(self, *name):
        return os.path.join(self.folder, *name)

    def refused(self, done, *words):
        self.assertIn(done.returncode, (1, 2, 3, 4), (done.stdout, done.stderr))
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class Bundles(Folder):
    def bundle(self):
        path = self.path("model.bundle")
        old = os.umask(0o002)
        done = run("bake", MODEL, "-o", path, env={"BM_CACHE_DIR": self.path("cache")})
        os.umask(old)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def use(self, path, cwd=None, env=None):
        return run(*GENERATE, "--bundle", path, cwd=cwd, env={"BM_CACHE": "0", **(env or {})})

    def test_on_a_terminal_it_is_not_said_behind_the_prompt(self):
        path = self.bundle()
        os.chmod(path, 0o664)
        ours, its = pty.openpty()
        with subprocess.Popen([PROGRAM, *GENERATE, "--bundle", path], stdout=subprocess.DEVNULL, stderr=its,
                              env={**os.environ, "BM_CACHE": "0", "NO_COLOR": "1"}) as process:
            os.close(its)
            said = b""
            try:
                while part := os.read(ours, 4096):
                    said += part
            except OSError:  # EIO: nobody has the other end any more
                pass
            os.close(ours)
        self.assertNotEqual(process.returncode, 0)
        self.assertTrue(any(line.startswith(b"bellmetal: ") for line in said.splitlines()), said)

    def test_each_way_of_others_to_write_one_is_refused_with_one_line(self):
        path = self.bundle()
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o644, "whatever the umask")
        self.assertEqual(self.use(path).returncode, 0)
        os.chmod(path, 0o664)
        self.refused(self.use(path), path, "its group", "chmod g-w")
        os.chmod(path, 0o646)
        self.refused(self.use(path), path, "everyone", "chmod o-w")
        os.chmod(path, 0o644)
        link = self.path("link.bundle")
        os.symlink(path, link)
        self.refused(self.use(link), "symbolic link", path)
        os.chmod(self.folder, 0o1777)
        self.refused(self.use(path), self.folder, "a folder that only you can write")
        os.chmod(self.folder, 0o770)
        self.refused(self.use(path), self.folder, "chmod g-w")
        os.chmod(self.folder, 0o700)
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
            self.refused(self.use(path), "user 12345", "a copy of your own")

    def test_a_name_is_seen_from_here_and_a_setting_is_absolute(self):
        self.bundle()
        self.assertEqual(self.use("model.bundle", cwd=self.folder).returncode, 0)
        done = run(*GENERATE, cwd=self.folder, env={"BM_CACHE": "0", "BM_BUNDLE": "model.bundle"})
        self.refused(done, "relative", "absolute path")

    def test_baking_does_not_follow_planted_names(self):
        victim = self.path("victim")
        with open(victim, "w") as f:
            f.write("precious")
        for ending in (".tmp", ".draft", ".part"):
            os.symlink(victim, self.path("model.bundle" + ending))
        self.bundle()
        with open(victim) as f:
            self.assertEqual(f.read(), "precious")


class Cache(Folder):
    def generate(self, env):
        done = run(*GENERATE, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_another_users_way_to_the_rows_means_memory_and_one_line(self):
        cache = self.path("cache")
        old = os.umask(0)
        self.generate({"BM_CACHE_DIR": cache})
        os.umask(old)
        self.assertEqual(stat.S_IMODE(os.stat(cache).st_mode), 0o700)
        for name in os.listdir(cache):
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(cache, name)).st_mode) & 0o077, 0, name)
        self.assertNotIn("compile cache", self.generate({"BM_CACHE_DIR": cache}))
        os.chmod(cache, 0o770)
        self.assertRegex(self.generate({"BM_CACHE_DIR": cache}), "compile cache: .*its group.*chmod g-w .*in memory only")
        os.chmod(cache, 0o700)
        os.chmod(os.path.join(cache, "kernels.db"), 0o660)
        self.assertRegex(self.generate({"BM_CACHE_DIR": cache}), "compile cache: .*kernels.db is writable by its group.*in memory only")

    def test_a_relative_folder_is_refused(self):
        done = run(*GENERATE, env={"BM_CACHE_DIR": "cache"}, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "compile cache: .*relative.*in memory only")
        self.assertEqual(os.listdir(self.folder), [])

    def test_results_of_tuning_outlive_the_kernels(self):
        env = {"BM_CACHE_DIR": self.path("cache")}
        lines = "bellmetal tuned schedules 1\n" + "".join(f"{i:032x} kernel cpu 10 5 jam0=2\n" for i in range(20))
        with open(self.path("in.txt"), "w") as f:
            f.write(lines)
        self.assertEqual(run("cache", "import-tuned", self.path("in.txt"), env=env).returncode, 0)
        self.generate(env)

        def exported():
            done = run("cache", "export-tuned", self.path("out.txt"), env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(self.path("out.txt")) as f:
                return f.read()

        database = self.path("cache", "kernels.db")
        self.assertEqual(exported(), lines)
        with open(database, "r+b") as f:
            f.write(os.urandom(50_000))
        for suffix in ("-wal", "-shm"):
            if os.path.exists(database + suffix):
                os.remove(database + suffix)
        self.assertIn("damaged", self.generate(env))
        self.assertEqual(exported(), lines, "garbled")
        os.truncate(database, 1000)
        self.generate(env)
        self.assertEqual(exported(), lines, "truncated")
        self.assertEqual(run("cache", "clear", env=env).returncode, 0)
        self.assertEqual(exported(), lines, "emptied")
        self.assertEqual(run("cache", "clear", "--tuned", env=env).returncode, 0)
        self.assertEqual(exported(), lines.splitlines()[0] + "\n")


@unittest.skipUnless(os.path.exists(COMPONENT_FILE), "this build has no LLVM component")
class Component(Folder):
    def test_runpaths_name_absolute_folders_only(self):
        files = [os.path.join(BUILD, part, name) for part in ("bin", "lib") for name in sorted(os.listdir(os.path.join(BUILD, part)))]
        checked = 0
        for path in files:
            with open(path, "rb") as f:
                if f.read(4) != b"\x7fELF":
                    continue
            said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
            checked += 1
            for line in said.splitlines():
                if "RUNPATH" in line or "RPATH" in line:
                    for folder in line[line.index("[") + 1 : line.rindex("]")].split(":"):
                        self.assertTrue(folder.startswith(("/", "$ORIGIN")), (path, line))
        self.assertGreater(checked, 1)

    def test_a_named_component_that_others_can_write_is_refused(self):
        plugins = self.path("plugins")
        os.makedirs(plugins)
        shutil.copy(COMPONENT_FILE, plugins)
        planted = os.path.join(plugins, COMPONENT)
        env = {"BM_CACHE": "0", "BM_PLUGIN_DIR": plugins}
        self.assertEqual(run(*GENERATE, env=env).returncode, 0)
        os.chmod(planted, 0o775)
        self.refused(run(*GENERATE, env=env), "BM_PLUGIN_DIR", planted, "chmod g-w")
        os.chmod(planted, 0o755)
        os.chmod(plugins, 0o777)
        self.refused(run(*GENERATE, env=env), plugins, "chmod go-w")
        os.chmod(plugins, 0o755)
        os.rename(planted, planted + ".real")
        os.symlink(planted + ".real", planted)
        self.refused(run(*GENERATE, env=env), "symbolic link", planted + ".real")
        if os.geteuid() == 0:
            os.remove(planted)
            os.rename(planted + ".real", planted)
            os.chown(planted, 12345, 12345)
            self.refused(run(*GENERATE, env=env), "user 12345")

    def test_a_relative_folder_is_refused_where_kernels_are_cached_too(self):
        env = {"XDG_CACHE_HOME": self.path("cache"), "BM_PLUGIN_DIR": os.path.dirname(COMPONENT_FILE)}
        self.assertEqual(run(*GENERATE, env=env).returncode, 0)
        for args in (GENERATE, ("explain", "f32[8] + 1", "--device", "CPU")):
            done = run(*args, env={**env, "BM_PLUGIN_DIR": "lib/here"})
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.refused(done, 'BM_PLUGIN_DIR "lib/here" is relative', "absolute path")

    def hidden(self):
        """A program before others that runs them where /proc shows nothing."""
        before = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
        if subprocess.run([*before, "true"], capture_output=True).returncode != 0:
            self.skipTest("no user namespaces here")
        return before

    def test_without_proc_the_component_is_found_from_an_absolute_name_and_never_here(self):
        before = self.hidden()
        done = run(*GENERATE, before=before, cwd=self.folder, env={"BM_CACHE": "0"})
        self.assertEqual(done.returncode, 0, done.stderr)
        # Started by a relative name, there is no folder to look in; the current one is none.
        os.makedirs(self.path("bin"))
        shutil.copy(PROGRAM, self.path("bin", "bellmetal"))
        for place in ("", "bin", "lib"):
            os.makedirs(self.path(place), exist_ok=True)
            with open(self.path(place, COMPONENT), "w") as f:
                f.write("this would be loaded")
        for program in ("./bin/bellmetal", "bin/bellmetal"):
            done = run(*GENERATE, program=program, before=before, cwd=self.folder, env={"BM_CACHE": "0"})
            self.assertNotIn("invalid ELF", done.stderr)
            self.assertNotIn(self.folder, done.stderr)
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_driver_libraries_of_relative_or_open_folders_are_not_loaded(self):
        library = self.path("libfake.so")
        with open(library, "w") as f:
            f.write("this would be loaded")
        for device, variable in (("CUDA", "BM_CUDA_LIBRARY"), ("CL", "BM_CL_LIBRARY")):
            done = run("selftest", "--device", device, env={variable: "./libfake.so"}, cwd=self.folder)
            if "no driver" in done.stderr:
                continue  # not of this build
            self.refused(done, "relative", "absolute path")
            os.chmod(library, 0o666)
            self.refused(run("selftest", "--device", device, env={variable: library}), library, "chmod go-w")
            os.chmod(library, 0o644)

    def test_a_compiler_of_a_relative_or_open_folder_is_not_run(self):
        tools = self.path("tools")
        os.makedirs(tools)
        fake = os.path.join(tools, "clang-22")
        with open(fake, "w") as f:
            f.write(f"#!/bin/sh\ntouch {self.folder}/was_run\nexit 1\n")
        os.chmod(fake, 0o755)
        clang = ("generate", MODEL, "Permission", "--max-tokens", "1", "--device", "CPU:CLANG")
        for path in ("tools", ".", ":tools:"):
            run(*clang, cwd=self.folder if path != "." else tools, env={"BM_CACHE": "0", "PATH": path + ":/usr/bin:/bin"})
        done = run(*clang, cwd=self.folder, env={"BM_CACHE": "0", "BM_CLANG": "tools/clang-22"})
        self.refused(done, "relative")
        os.chmod(tools, 0o777)
        done = run(*clang, env={"BM_CACHE": "0", "PATH": tools + ":/usr/bin:/bin"})
        self.refused(done, tools, "chmod go-w")
        self.assertFalse(os.path.exists(self.path("was_run")))


if __name__ == "__main__":
    unittest.main()
