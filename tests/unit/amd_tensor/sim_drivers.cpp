// A table of drivers in place of drivers/builtin.cpp: DEV=AMD is simulated in this process, one
// machine a unit; CPU and REF are the real ones. Linked into whole programs.

#include <array>
#include <cstdlib>
#include <memory>

#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/hcq/device.h"
#include "drivers/ref/device.h"
#include "runtime/base/env.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_tensor/driver_rows.h"

namespace bm::hal {
namespace {

/// DEV=AMD:0 to AMD:6.
struct Machine {
  const char* chip;
  amd::PacketMode packets;
};
constexpr std::array kMachines = {
    Machine{"gfx1100", amd::PacketMode::kPm4}, Machine{"gfx1100", amd::PacketMode::kAql},
    Machine{"gfx1201", amd::PacketMode::kPm4}, Machine{"gfx1201", amd::PacketMode::kAql},
    Machine{"gfx1030", amd::PacketMode::kPm4}, Machine{"gfx1030", amd::PacketMode::kAql},
    Machine{"gfx942", amd::PacketMode::kAql}};

/// Lives as long as the program: devices opened by name are closed at its end.
sim::amd::FakeKfd& machine(uint32_t index) {
  static std::array<std::unique_ptr<sim::amd::FakeKfd>, kMachines.size()> machines;
  auto& made = machines[index];
  if (!made)
    made = std::make_unique<sim::amd::FakeKfd>(sim::amd::Options{
        .chip = kMachines[index].chip, .execute = sim::amd::interpreter(kMachines[index].chip)});
  return *made;
}

Result<uint32_t> count(std::string_view) { return static_cast<uint32_t>(kMachines.size()); }

OpenedDevice open(std::string_view, uint32_t index, std::string_view arch) {
  if (index >= kMachines.size()) return fail(Code::kNotFound, "no machine {}", index);
  const Machine& m = kMachines[index];
  ::setenv("SIM_MACHINE", "AMD", 1);  // as sim-amd tells those it starts
  BM_TRY(hcq::check_arch(arch, m.chip));
  auto kernel = BM_TRY(amd::kfd::open_gpu(machine(index), {}));
  return amd::make_device(std::move(kernel),
                          {.packets = m.packets, .cumode = settings().amd_cumode});
}

constexpr DriverInfo kDrivers[] = {
    kCpuRow,
    amd_row("KFD", count, open),
    {.name = "REF",
     .interfaces = "",
     .renderers = "",
     .help = "",
     .count = ref::count_devices,
     .open = ref::open_device},
};

}  // namespace

std::span<const DriverInfo> builtin_drivers() { return kDrivers; }

}  // namespace bm::hal
