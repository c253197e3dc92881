// AMD cards behind a USB bridge, without a kernel driver: our own boot on the modelled card in the
// modelled enclosure, and a host whose memory the card does not reach.

#include <array>
#include <memory>

#include "drivers/hcq/shadow_device.h"
#include "tests/cts/amd_machines.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/usb_rig.h"

namespace bm::cts {
namespace {

constexpr std::array kMachines = {AmdMachine{"USB_gfx1100_PM4", "gfx1100", amd::PacketMode::kPm4},
                                  AmdMachine{"USB_gfx1101_PM4", "gfx1101", amd::PacketMode::kPm4},
                                  AmdMachine{"USB_gfx1102_AQL", "gfx1102", amd::PacketMode::kAql},
                                  AmdMachine{"USB_gfx1200_PM4", "gfx1200", amd::PacketMode::kPm4},
                                  AmdMachine{"USB_gfx1201_AQL", "gfx1201", amd::PacketMode::kAql}};

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
  return subjects_of<kMachines.size()>([]<size_t kIndex>() -> Subject {
    return {kMachines[kIndex].name, open<kIndex, 0>, amd_kernel, {}, {}, open<kIndex, 1>};
  });
}

}  // namespace bm::cts
