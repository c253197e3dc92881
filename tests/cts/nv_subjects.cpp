// NVIDIA without a GPU: the driver over a simulated kernel driver whose GPUs execute PTX, for each
// generation and layout of the calls.

#include <array>

#include "drivers/nv/device.h"
#include "drivers/nv/rm_ioctl/rm.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/nv_kernels.h"
#include "tests/sim/nv/fake_system.h"

namespace bm::cts {
namespace {

struct Machine {
  const char* name;
  const char* chip;
  const char* release;
  const char* launch_form = "";
};
constexpr std::array kMachines = {Machine{"NV_AD102_550", "ad102", "550"},
                                  Machine{"NV_AD102_570", "ad102", "570"},
                                  Machine{"NV_GH100_580", "gh100", "580"},
                                  Machine{"NV_GH100_610", "gh100", "610"},
                                  Machine{"NV_GH100_580_QMD3", "gh100", "580", "3.0,3"},
                                  Machine{"NV_GB202_610", "gb202", "610"},
                                  Machine{"NV_TU102_535", "tu102", "535"},
                                  Machine{"NV_GA100_580", "ga100", "580"}};

// Each machine has a window of its own: all live until the program ends. ASan takes nearly all
// addresses that a push buffer may have: there is room for one machine, where the driver finds it.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHasRoom = false;
#elif defined(__has_feature)
constexpr bool kHasRoom = !__has_feature(address_sanitizer);
#else
constexpr bool kHasRoom = true;
#endif
constexpr uint64_t kFirstWindow = 0x4000000000, kWindowBytes = uint64_t{64} << 30;
constexpr uint64_t window(size_t index) {
  return kHasRoom ? kFirstWindow + index * kWindowBytes : 0;
}

/// A machine for the whole run, as the real one is: devices may come and go on it.
sim::nv::FakeNvSystem& machine(size_t index) {
  static std::array<std::unique_ptr<sim::nv::FakeNvSystem>, kMachines.size()> machines;
  auto& made = machines[index];
  if (!made)
    made = sim::nv::FakeNvSystem::create(
        {.chip = kMachines[index].chip, .release = kMachines[index].release, .gpus = 2});
  return *made;
}

template <size_t kIndex, uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  auto kernel = BM_TRY(nv::open_rm(machine(kIndex), {.index = kUnit, .window = window(kIndex)}));
  return nv::make_device(std::move(kernel), {.launch_form = kMachines[kIndex].launch_form});
}

template <size_t... kIndex>
std::vector<Subject> all(std::index_sequence<kIndex...>) {
  return {Subject{kMachines[kIndex].name,
                  open<kIndex, 0>,
                  ptx_kernel,
                  ptx_exemptions(),
                  {},
                  open<kIndex, 1>}...};
}

}  // namespace

std::vector<Subject> subjects() {
  static const ScopedSetting text("BM_NV_CODE", "ptx");
  constexpr size_t kUsed = kHasRoom ? kMachines.size() : 1;
  return all(std::make_index_sequence<kUsed>());
}

}  // namespace bm::cts
