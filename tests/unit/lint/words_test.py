"""The lint of words must find what it is there for, and nothing else."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import words  # noqa: E402

GROUPS = "compiler/schedules/groups/lower.cpp"


def write(root, name, text):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def findings(name, line):
    with tempfile.TemporaryDirectory() as root:
        write(root, name, line)
        return words.check_words(root)


def write_searches(root, change):
    for files in words.SEARCHES.values():
        for name in files:
            write(root, name, change(" ".join(term for term, where in words.SEARCHES.items() if name in where)))


class Words(unittest.TestCase):
    def test_private_words_are_found_in_names_comments_and_texts(self):
        for line in ("uint32_t copies = 0;", "constexpr int kMostCopies = 2;", "row_copies_.clear();", "// Copies of a body",
                     "bool place_tile();", "Offsets places(e_);", "/// Row-major place of an element", "int64_t sums() const;",
                     "settle_sums(b, block);", "std::vector<ValueId> sums;", 'out += "{} sums\\n";', "// neighbours in memory",
                     "int trips = 0;", "// K is dealt to work-items"):
            self.assertEqual(len(findings(GROUPS, line)), 1, line)
        self.assertEqual(len(findings("tensor/fusion.cpp", "double copies = 1;")), 1)
        self.assertEqual(len(findings("compiler/lowering/lower_sums.cpp", "int x;")), 1, "names of files")

    def test_terms_and_plain_english_are_not(self):
        for line in ("// prefix sums and partial sums", "s_.row_sums[r] = read;", "bool reads_a_in_place = false;", "// in place of it",
                     "out.emplace_back(x);", "replace(n);", "PipeOp::kCommitCopies", "bool has_async_copies;",
                     "// asynchronous copies", "const LineCopy& copy", "// what would be stored in its place", "sum += one;"):
            self.assertEqual(findings(GROUPS, line), [], line)

    def test_other_rooms_have_their_own_words(self):
        self.assertEqual(findings("compiler/toolchain/nvrtc.cpp", "// places looked at"), [])
        self.assertEqual(findings("tensor/jit.h", "std::tuple<Args...> copies(args...);"), [])

    def test_a_search_must_hit_the_file_that_does_it(self):
        with tempfile.TemporaryDirectory() as root:
            write_searches(root, str)
            self.assertEqual(words.check_searches(root), [])
            write(root, "compiler/lowering/prefetch.cpp", "// what is asked for before")
            write(root, "compiler/lowering/epilogue.h", "// An epi-\n// logue")
            os.remove(os.path.join(root, "compiler/schedules/topk/plan.cpp"))
            self.assertEqual(len(words.check_searches(root)), 3)

    def test_terms_may_be_broken_into_lines(self):
        with tempfile.TemporaryDirectory() as root:
            write_searches(root, lambda text: "// " + text.replace(" ", "\n/// "))
            self.assertEqual(words.check_searches(root), [])


if __name__ == "__main__":
    unittest.main()
