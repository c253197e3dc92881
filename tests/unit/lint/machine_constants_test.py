"""The lint of machine constants must find what it is there for, and nothing else."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import machine_constants  # noqa: E402


def findings(name, line):
    with tempfile.TemporaryDirectory() as root:
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(line + "\n")
        return machine_constants.check_tree(root)


class Constants(unittest.TestCase):
    def test_facts_of_machines_are_found(self):
        for line in ("constexpr int kL1 = 32 << 10;", "if (has_avx512f) {", "uint64_t l2_bytes = 1;",
                     "constexpr uint64_t kCache = 2_MiB;", "if (t.vector_bits >= 512) {",
                     "const int64_t size = 49'152;", "std::thread::hardware_concurrency()",
                     "use(zmm0);", "__builtin_ia32_pause();"):
            self.assertEqual(len(findings("compiler/schedules/loops/pass.cpp", line)), 1, line)

    def test_facts_of_targets_and_other_numbers_are_not(self):
        for line in ("if (t.vector_bits >= lanes * 8) {", "constexpr int kTile = 14;",
                     "// avx512 would do it", "const auto mask = uint64_t{1} << 20;"):
            self.assertEqual(findings("compiler/schedules/loops/pass.cpp", line), [], line)
        self.assertEqual(findings("compiler/targets/target.cpp", "const char* f = \"avx2\";"), [])


if __name__ == "__main__":
    unittest.main()
