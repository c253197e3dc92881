"""The lint of declarations must find what it is there for."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import declared  # noqa: E402

HEADER = """
#pragma once
namespace bm {
int defined(int a);
int forgotten(int a);
inline int in_header() { return 1; }
template <class T> T made_where_used(T t);
struct Base { virtual ~Base(); virtual int pure() = 0; int member() const; static int of_class(); };
struct Taken { Taken(); Taken(const Taken&) = delete; Taken& operator=(const Taken&) = default; };
namespace inner { bool operator==(const Base& a, const Base& b); }
int later();
inline int later() { return 2; }
}
"""
SYMBOLS = {"_ZN2bm7definedEi", "_ZN2bm4BaseD2Ev", "_ZN2bm5TakenC2Ev"}


@unittest.skipUnless(declared.find_clang(), "needs clang 16 or later")
class Declared(unittest.TestCase):
    def missing(self, symbols):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "a.h"), "w") as f:
                f.write(HEADER)
            return declared.missing_definitions(declared.find_clang(), root, ["a.h"], symbols)[1]

    def test_names_what_no_library_defines(self):
        self.assertEqual(self.missing(SYMBOLS),
                         ["Base::member", "Base::of_class", "forgotten", "operator=="])

    def test_is_content_when_all_is_there(self):
        self.assertEqual(self.missing(SYMBOLS | {
            "_ZNK2bm4Base6memberEv", "_ZN2bm4Base8of_classEv", "_ZN2bm9forgottenEi",
            "_ZN2bm5innereqERKNS_4BaseES3_"}), [])


if __name__ == "__main__":
    unittest.main()
