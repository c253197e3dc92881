"""The layer lint must find what it is there for."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/lint"))
import layers  # noqa: E402


class Allowed(unittest.TestCase):
    def check(self, path, header, kind='"'):
        self.assertIsNone(layers.problem_with(path, kind, header))

    def test_own_folder_and_below(self):
        self.check("runtime/stream.cpp", "runtime/stream.h")
        self.check("runtime/stream.cpp", "runtime/hal/queue.h")
        self.check("tensor/realize.cpp", "compiler/program/program.h")
        self.check("drivers/amd/device.cpp", "drivers/amd/pm4/packets.h")
        self.check("drivers/builtin.cpp", "drivers/cpu/device.h")

    def test_the_two_headers_compiler_shares_with_drivers(self):
        self.check("compiler/compile.cpp", "runtime/hal/arch.h")
        self.check("compiler/compile.cpp", "runtime/hal/program.h")

    def test_schedules_are_written_on_lowering(self):
        self.check("compiler/schedules/topk/lower.cpp", "compiler/lowering/emitter.h")
        self.check("compiler/schedules/topk/lower.cpp", "compiler/schedules/loops/lowering.h")
        self.check("compiler/lowering/lower.cpp", "compiler/schedules/strategy.h")
        self.check("compiler/render/ptx_text.cpp", "compiler/program/program.h")

    def test_tests_and_tools_see_everything(self):
        self.check("tests/unit/x/x_test.cpp", "drivers/nv/methods/qmd_v3.h")
        self.check("tests/unit/x/x_test.cpp", "tests/sim/gpu_model.h")
        self.check("tools/bellmetal/run_x.cpp", "tensor/tensor.h")

    def test_walled_headers_behind_their_wall(self):
        self.check("compiler/toolchain/llvm_c.cpp", "llvm-c/Core.h", "<")
        self.check("compiler/cache/sqlite.cpp", "sqlite3.h", "<")
        self.check("runtime/base/log.cpp", "vector", "<")


class Forbidden(unittest.TestCase):
    def check(self, path, header, words, kind='"'):
        problem = layers.problem_with(path, kind, header)
        self.assertIsNotNone(problem, f"{path} may include {header}")
        self.assertIn(words, problem)

    def test_upward_includes(self):
        self.check("runtime/base/log.cpp", "runtime/hal/arch.h", "runtime/base may not include")
        self.check("runtime/hal/hal.cpp", "runtime/device.h", "runtime/hal may not include")
        self.check("runtime/stream.cpp", "tensor/tensor.h", "runtime may not include")
        self.check("compiler/compile.cpp", "tensor/node.h", "compiler may not include")

    def test_rooms_of_the_compiler(self):
        self.check("compiler/lowering/emitter.h", "compiler/schedules/gemm_cpu/gemm_plan.h",
                   "compiler/lowering may not include")
        self.check("compiler/schedules/loops/plan.cpp", "compiler/render/render.h",
                   "compiler/schedules may not include")
        self.check("compiler/render/ptx_text.cpp", "compiler/lowering/emitter.h",
                   "compiler/render may not include")
        self.check("compiler/program/builder.h", "compiler/lowering/emitter.h",
                   "compiler/program may not include")

    def test_compiler_and_runtime_do_not_know_each_other(self):
        self.check("compiler/compile.cpp", "runtime/device.h", "compiler may not include")
        self.check("compiler/compile.cpp", "runtime/hal/device.h", "compiler may not include")
        self.check("runtime/stream.cpp", "compiler/ir/dtype.h", "runtime may not include")

    def test_drivers_see_the_contract_only(self):
        self.check("drivers/cpu/queue.cpp", "runtime/timeline.h", "drivers/cpu may not include")
        self.check("runtime/device_manager.cpp", "drivers/cpu/device.h", "runtime may not include")

    def test_vendors_do_not_know_each_other(self):
        self.check("drivers/amd/device.cpp", "drivers/nv/chips.h", "drivers/amd may not include")
        self.check("drivers/transport/mmio.cpp", "drivers/amd/chips.h", "drivers/transport may not")
        self.check("drivers/transport/mmio.cpp", "drivers/memory/va_space.h", "drivers/transport")

    def test_queues_of_all_vendors_know_no_vendor(self):
        for header in ("drivers/hcq/ring.h", "drivers/hcq/driver_interface.h"):
            self.assertIsNone(layers.problem_with("drivers/nv/device.cpp", '"', header))
            self.assertIsNone(layers.problem_with("drivers/amd/device.cpp", '"', header))
            self.check("drivers/cpu/device.cpp", header, "drivers/cpu may not include")
        for header in ("runtime/hal/device.h", "drivers/transport/system.h"):
            self.assertIsNone(layers.problem_with("drivers/hcq/ring.cpp", '"', header))
        self.check("drivers/hcq/ring.cpp", "drivers/nv/chips.h", "drivers/hcq may not include")
        self.check("drivers/hcq/ring.cpp", "drivers/amd/gpu.h", "drivers/hcq may not include")
        self.check("drivers/hcq/ring.cpp", "runtime/device.h", "drivers/hcq may not include")

    def test_what_owns_a_gpu_knows_the_waist_alone(self):
        self.assertIsNone(layers.problem_with("drivers/amd/kfd/gpu.h", '"',
                                              "drivers/hcq/driver_interface.h"))
        self.check("drivers/amd/kfd/gpu.cpp", "drivers/hcq/ring.h", "kfd may not")
        self.check("drivers/nv/methods/push.cpp", "drivers/hcq/ring.h", "methods may not")

    def test_devices_without_hardware_share_only_the_host_parts(self):
        self.assertIsNone(
            layers.problem_with("drivers/null/device.cpp", '"', "drivers/cpu/host_queue.h"))
        self.check("drivers/null/device.cpp", "drivers/cpu/pool.h", "drivers/null may not include")

    def test_inside_a_vendor_encoders_are_pure_and_io_knows_no_device(self):
        self.check("drivers/amd/pm4/encode.cpp", "drivers/amd/kfd/topology.h", "pm4 may not")
        self.check("drivers/amd/pm4/encode.cpp", "drivers/transport/mmio.h", "pm4 may not")
        self.check("drivers/amd/kfd/topology.cpp", "drivers/amd/device.h", "kfd may not")
        self.check("drivers/nv/rm_gsp/boot.cpp", "drivers/nv/compute_queue.h", "rm_gsp may not")

    def test_the_resource_manager_does_not_know_the_way_to_it(self):
        self.assertIsNone(
            layers.problem_with("drivers/nv/rm_ioctl/gpu.cpp", '"', "drivers/nv/rm/device.h"))
        self.check("drivers/nv/rm/client.cpp", "drivers/nv/rm_ioctl/ioctl_transport.h", "rm may not")
        self.check("drivers/nv/rm_gsp/boot.cpp", "drivers/nv/rm_ioctl/uvm.h", "rm_gsp may not")

    def test_models_see_one_header_of_the_compiler(self):
        self.assertIsNone(layers.problem_with("models/llama.cpp", '"', "compiler/ir/dtype.h"))
        self.check("models/llama.cpp", "compiler/ir/node.h", "models may not include")

    def test_simulators_own_their_constants(self):
        for header in ("drivers/amd/regs/gc_11.gen.inc", "drivers/amd/pm4/packets.h",
                       "drivers/nv/abi/r570/types.h", "drivers/nv/chips.h"):
            self.check("tests/sim/gpu_model.cpp", header, "product tables")

    def test_nothing_includes_tests_or_tools(self):
        self.check("tensor/tensor.cpp", "tests/sim/gpu_model.h", "only tests include tests")
        self.check("tools/bellmetal/main.cpp", "tests/sim/gpu_model.h", "only tests include tests")
        self.check("runtime/stream.cpp", "tools/bellmetal/output.h", "only tools and tests")

    def test_paths_must_start_at_the_root(self):
        self.check("runtime/stream.cpp", "stream.h", "repository root")
        self.check("runtime/stream.cpp", "../tensor/tensor.h", "repository root")

    def test_walled_headers(self):
        self.check("tensor/realize.cpp", "llvm-c/Core.h", "compiler/toolchain", "<")
        self.check("compiler/toolchain/llvm_c.cpp", "llvm/IR/Module.h", "nowhere", "<")
        self.check("tools/bellmetal/cmd_cache.cpp", "sqlite3.h", "compiler/cache", "<")
        self.check("firmware/store.cpp", "zstd.h", "firmware/decompress.cpp", "<")
        self.check("drivers/memory/iova.cpp", "lzma.h", "firmware/decompress.cpp", "<")

    def test_firmware_knows_no_driver(self):
        self.check("firmware/store.cpp", "drivers/transport/system.h", "firmware may not include")
        self.check("firmware/image.cpp", "runtime/hal/device.h", "firmware may not include")
        self.check("drivers/transport/pci.cpp", "firmware/store.h", "drivers/transport may not")


class Tree(unittest.TestCase):
    def test_reports_file_and_line(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "runtime/base"))
            with open(os.path.join(root, "runtime/base/bad.cpp"), "w", encoding="utf-8") as file:
                file.write('#include <vector>\n\n  #  include "tensor/tensor.h"  // why\n')
            problems = layers.check_tree(root)
        self.assertEqual(len(problems), 1)
        self.assertTrue(problems[0].startswith("runtime/base/bad.cpp:3: "), problems[0])

    def test_a_clean_tree_has_no_problems(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(layers.check_tree(root), [])


if __name__ == "__main__":
    unittest.main()
