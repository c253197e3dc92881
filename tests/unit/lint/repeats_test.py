"""The lint of repeats must see what two folders share, and nothing else."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import repeats  # noqa: E402

RUN = "\n".join(f"  step_{i}(value + {i});" for i in range(6))
ROWS = "\n".join(f"  {{.name = \"{i}\", .size = {i}}}," for i in range(9))


class Repeats(unittest.TestCase):
    def test_equal_runs_of_two_folders(self):
        found = repeats.repeats({"drivers/nv/a.cpp": f"int a;\n{RUN}\nint b;", "drivers/amd/b.cpp": RUN})
        self.assertEqual(found, ["drivers/amd/b.cpp:1 and drivers/nv/a.cpp:2: 6 or more equal lines"])

    def test_white_space_and_comments_do_not_hide_them(self):
        other = RUN.replace("\n", "  // why\n\n// a line of words\n    ")
        self.assertEqual(len(repeats.repeats({"drivers/nv/a.cpp": RUN, "drivers/amd/b.cpp": other})), 1)

    def test_one_folder_or_five_lines_are_none(self):
        self.assertEqual(repeats.repeats({"drivers/nv/a.cpp": RUN, "drivers/nv/b.cpp": RUN}), [])
        five = RUN.replace("step_0", "other")
        self.assertEqual(repeats.repeats({"drivers/nv/a.cpp": RUN, "drivers/amd/b.cpp": five}), [])

    def test_rows_of_data_and_includes_are_none(self):
        for text in (ROWS, '#include "a.h"\n' * 9, "}\n" * 9):
            self.assertEqual(repeats.repeats({"drivers/nv/a.cpp": text, "drivers/amd/b.cpp": text}), [])


if __name__ == "__main__":
    unittest.main()
