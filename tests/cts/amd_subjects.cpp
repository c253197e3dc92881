// AMD without a GPU: the driver over a simulated kernel driver whose GPUs execute the machine code
// that LLVM makes, for every generation and both kinds of packets (several chiplets: AQL alone).

#include <array>

#include "drivers/amd/kfd/gpu.h"
#include "tests/cts/amd_machines.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/engine/interpreter.h"

namespace bm::cts {
namespace {

constexpr std::array kMachines = {AmdMachine{"AMD_gfx1030_PM4", "gfx1030", amd::PacketMode::kPm4},
                                  AmdMachine{"AMD_gfx1030_AQL", "gfx1030", amd::PacketMode::kAql},
                                  AmdMachine{"AMD_gfx1100_PM4", "gfx1100", amd::PacketMode::kPm4},
                                  AmdMachine{"AMD_gfx1100_AQL", "gfx1100", amd::PacketMode::kAql},
                                  AmdMachine{"AMD_gfx1201_PM4", "gfx1201", amd::PacketMode::kPm4},
                                  AmdMachine{"AMD_gfx1201_AQL", "gfx1201", amd::PacketMode::kAql},
                                  AmdMachine{"AMD_gfx942_AQL", "gfx942", amd::PacketMode::kAql}};

/// A machine for the whole run, as the real one is: devices may come and go on it.
struct Running {
  std::unique_ptr<sim::amd::FakeKfd> system;
  /// The kernel driver takes one event page from a process and keeps it until the process ends.
  std::unique_ptr<amd::DriverInterface> first;
};
sim::amd::FakeKfd& machine(size_t index) {
  static std::array<Running, kMachines.size()> machines;
  Running& made = machines[index];
  if (!made.system) {
    const char* const chip = kMachines[index].chip;
    made.system = std::make_unique<sim::amd::FakeKfd>(
        sim::amd::Options{.chip = chip, .gpus = 2, .execute = sim::amd::interpreter(chip)});
    if (auto opened = amd::kfd::open_gpu(*made.system, {})) made.first = std::move(*opened);
  }
  return *made.system;
}

template <size_t kIndex, uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  auto kernel = BM_TRY(amd::kfd::open_gpu(machine(kIndex), {.index = kUnit}));
  return amd::make_device(std::move(kernel), {.packets = kMachines[kIndex].packets});
}

template <size_t kIndex>
Subject subject() {
  return {kMachines[kIndex].name, open<kIndex, 0>, amd_kernel, {}, {}, open<kIndex, 1>};
}

}  // namespace

std::vector<Subject> subjects() {
  return subjects_of<kMachines.size()>([]<size_t kIndex>() { return subject<kIndex>(); });
}

}  // namespace bm::cts
