// AMD without a GPU and without a kernel driver: our own boot on the modelled card, every
// generation, both kinds of packets.

#include <array>
#include <memory>

#include "tests/cts/amd_machines.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::cts {
namespace {

constexpr std::array kMachines = {AmdMachine{"AM_gfx1100_PM4", "gfx1100", amd::PacketMode::kPm4},
                                  AmdMachine{"AM_gfx1100_AQL", "gfx1100", amd::PacketMode::kAql},
                                  AmdMachine{"AM_gfx1101_PM4", "gfx1101", amd::PacketMode::kPm4},
                                  AmdMachine{"AM_gfx1102_PM4", "gfx1102", amd::PacketMode::kPm4},
                                  AmdMachine{"AM_gfx1200_PM4", "gfx1200", amd::PacketMode::kPm4},
                                  AmdMachine{"AM_gfx1201_PM4", "gfx1201", amd::PacketMode::kPm4},
                                  AmdMachine{"AM_gfx1201_AQL", "gfx1201", amd::PacketMode::kAql}};
constexpr size_t kCards = 2;

/// Cards for the whole run, as real ones are: devices may come and go on them.
test::CardRig& card(size_t machine, uint32_t unit) {
  static std::array<std::unique_ptr<test::CardRig>, kMachines.size() * kCards> cards;
  auto& made = cards[machine * kCards + unit];
  const char* const chip = kMachines[machine].chip;
  if (!made)
    made = std::make_unique<test::CardRig>(
        sim::amd::ChipOptions{.chip = chip, .execute = sim::amd::interpreter(chip)});
  return *made;
}

template <size_t kIndex, uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  std::unique_ptr<amd::DriverInterface> gpu = BM_TRY(card(kIndex, kUnit).open());
  return amd::make_device(std::move(gpu), {.packets = kMachines[kIndex].packets});
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
