// AMD cards behind a USB bridge, without a kernel driver: our own boot on the modelled card in the
// modelled enclosure, and a host whose memory the card does not reach.

#include <array>
#include <memory>

#include "drivers/amd/device.h"
#include "drivers/hcq/shadow_device.h"
#include "tests/cts/amd_kernels.h"
#include "tests/cts/cts.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/usb_rig.h"

namespace bm::cts {
namespace {

struct Machine {
  const char* name;
  const char* chip;
  amd::PacketMode packets;
};
constexpr std::array kMachines = {Machine{"USB_gfx1100_PM4", "gfx1100", amd::PacketMode::kPm4},
                                  Machine{"USB_gfx1201_AQL", "gfx1201", amd::PacketMode::kAql}};

/// Plugged in for the whole run: devices come and go.
test::UsbCardRig& card(size_t machine, size_t unit) {
  static std::array<std::unique_ptr<test::UsbCardRig>, 2 * kMachines.size()> cards;
  auto& made = cards[machine * 2 + unit];
  const char* const chip = kMachines[machine].chip;
  if (!made)
    made = std::make_unique<test::UsbCardRig>(
        sim::amd::ChipOptions{.chip = chip, .execute = sim::amd::interpreter(chip)});
  return *made;
}

template <size_t kIndex, size_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  auto gpu = BM_TRY(card(kIndex, kUnit).open());
  amd::am::HostPath& path = *gpu->host_path();
  auto device = BM_TRY(amd::make_device(std::move(gpu), {.packets = kMachines[kIndex].packets}));
  return hcq::make_shadowed(std::move(device), path);
}

}  // namespace

std::vector<Subject> subjects() {
  return {{kMachines[0].name, open<0, 0>, amd_kernel, {}, {}, open<0, 1>},
          {kMachines[1].name, open<1, 0>, amd_kernel, {}, {}, open<1, 1>}};
}

}  // namespace bm::cts
