"""The check of commit messages must take good ones and name what is wrong with others."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
from commit_message import problems  # noqa: E402

BODY = "\n\nWhy, and how it was checked.\n"


class CommitMessage(unittest.TestCase):
    def test_good(self):
        for subject in ("compiler/cache: drop damaged rows", "docs, tests: lists that a check keeps true",
                        "drivers/nv: size rings by what is used"):
            self.assertEqual(problems(subject + BODY), [], subject)

    def test_comments_of_the_template_do_not_count(self):
        self.assertEqual(problems("ir: fold casts" + BODY + "# On branch main\n# ---- \n"), [])
        self.assertEqual(len(problems("ir: fold casts\n# a comment is no body\n")), 1)

    def test_one_thing_wrong(self):
        for text in ("Fold casts" + BODY, "ir: " + "x" * 70 + BODY, "ir: fold casts", "ir: fold casts." + BODY,
                     "ir: fold casts\nWhy.\n", "\n", "ir: fold casts\n\n" + "long words " * 10 + "\n"):
            self.assertEqual(len(problems(text)), 1, text)

    def test_what_git_writes(self):
        for text in ("Merge branch 'x'\n", 'Revert "ir: fold casts"\n', "fixup! ir: fold casts\n"):
            self.assertEqual(problems(text), [], text)

    def test_addresses_may_be_long(self):
        self.assertEqual(problems("ir: fold casts\n\nhttps://example.org/" + "x" * 100 + "\n"), [])


if __name__ == "__main__":
    unittest.main()
