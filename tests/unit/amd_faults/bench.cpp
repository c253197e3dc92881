#include "tests/unit/amd_faults/bench.h"

#include "drivers/amd/kfd/gpu.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_faults/kernels.h"

namespace bm::amd::faults {
namespace {

/// Allocations follow one another there, so that it is known what lies beside them. Below what the
/// system hands out; ThreadSanitizer allows nothing that low.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kWindow = 0x7e90'0000'0000;
#else
constexpr uint64_t kWindow = 0x6f00'0000'0000;
#endif

sim::amd::Options with_code(sim::amd::Options machine) {
  if (!machine.execute) machine.execute = sim::amd::interpreter(machine.chip);
  return machine;
}

}  // namespace

Bench::Bench(sim::amd::Options machine, PacketMode packets)
    : system_(std::make_unique<sim::amd::FakeKfd>(with_code(std::move(machine)))),
      packets_(packets) {}

Result<std::unique_ptr<runtime::Device>> Bench::open_unit(uint32_t index) {
  auto kernel = BM_TRY(kfd::open_gpu(*system_, {.index = index, .window = kWindow}));
  auto made = BM_TRY(make_device(std::move(kernel), {.packets = packets_}));
  return runtime::make_device(std::move(made), fmt::format("AMD:{}", index), "LLVM");
}

void Bench::start_again() {
  close();
  system_ = system_->next_process();
}

hal::CodeObject Bench::code(std::string_view name) const {
  return kernel(system_->machine().options.chip, name);
}

Status Bench::works() { return kernels_and_copies_work(*this); }

}  // namespace bm::amd::faults
