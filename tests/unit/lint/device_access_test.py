"""The lint of device accesses must find what it is there for."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import device_access  # noqa: E402

ACCESSES = [
    "#include <sys/mman.h>",
    "#  include <linux/kfd_ioctl.h>",
    "#include <immintrin.h>",
    "volatile uint32_t* doorbell = nullptr;",
    "*static_cast<uint32_t volatile*>(bell) = 1;",
    "std::atomic_ref<uint64_t>(*word).store(1);",
    "std::memcpy(memory.view().host(), from, bytes);",
    "std::memset(page->host() + 8, 0, bytes);",
    "auto* words = reinterpret_cast<uint32_t*>(ring_->view.host());",
    "const std::byte first = *ring_->host();",
    "if (memory.host()[4] == std::byte{1}) return;",
]
FINE = [
    "#include <unistd.h>",
    "#include <system_error>",
    "// a volatile uint32_t* would do, memcpy(host()) too",
    "/* volatile */ int x = 0;",
    "fail(\"a volatile word of host()\");",
    "view.store<uint64_t>(offset, value);",
    "std::byte* host = allocation.view().host();",
    "if (allocation.view().host() == nullptr) return;",
    "std::memcpy(to, words.data(), bytes);",
    "std::byte* host() const { return view.host(); }",
]


class DeviceAccess(unittest.TestCase):
    def test_each_access_is_found_with_file_and_line(self):
        for line in ACCESSES:
            for path in ("drivers/hcq/ring.h", "drivers/nv/rm/channel.cpp", "drivers/amd/lane.cpp"):
                found = device_access.problems_in(path, "int a;\n" + line + "\n")
                self.assertTrue(found and all(f.startswith(f"{path}:2: ") for f in found), line)

    def test_what_is_no_access_is_left_alone(self):
        for line in FINE:
            self.assertEqual(device_access.problems_in("drivers/hcq/ring.h", line), [], line)

    def test_lines_behind_a_block_comment_keep_their_number(self):
        found = device_access.problems_in("drivers/nv/a.cpp", "/* one\n two */\nvolatile int* a;\n")
        self.assertEqual([f.split(": ")[0] for f in found], ["drivers/nv/a.cpp:3"])

    def test_the_rooms_below_the_waist_and_other_drivers_may(self):
        for path in ("drivers/nv/rm_ioctl/gpu.cpp", "drivers/amd/kfd/session.cpp",
                     "drivers/transport/mmio.h", "drivers/cuda/queue.cpp", "drivers/nv/README.md",
                     "tests/unit/amd/engine_test.cpp"):
            for line in ACCESSES:
                self.assertEqual(device_access.problems_in(path, line), [], path)

    def test_a_name_that_only_begins_like_an_exempt_room_is_watched(self):
        self.assertTrue(device_access.problems_in("drivers/amd/kfd_like.cpp", "volatile int* a;"))

    def test_a_tree(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(device_access.check_tree(root), ([], 0))
            for path, text in (("drivers/nv/lane.cpp", "int a;\n"), ("drivers/amd/kfd/x.cpp", ACCESSES[0])):
                os.makedirs(os.path.join(root, os.path.dirname(path)))
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            self.assertEqual(device_access.check_tree(root), ([], 1))
            with open(os.path.join(root, "drivers/nv/lane.cpp"), "a") as file:
                file.write("volatile int* b;\n")
            problems, count = device_access.check_tree(root)
            self.assertEqual((len(problems), count), (1, 1))
            self.assertIn("drivers/nv/lane.cpp:2", problems[0])


if __name__ == "__main__":
    unittest.main()
