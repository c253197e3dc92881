// A table of drivers in place of drivers/builtin.cpp: DEV=AMD is a modelled card in this process
// that no kernel driver has, in a slot (AMD:0 to AMD:4) or behind a USB bridge (AMD:5 to AMD:9);
// CPU is the real one. Linked into whole programs.

#include <array>
#include <memory>
#include <utility>

#include "drivers/amd/device.h"
#include "drivers/hcq/device.h"
#include "drivers/hcq/shadow_device.h"
#include "runtime/base/env.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/usb_rig.h"
#include "tests/unit/amd_tensor/driver_rows.h"

namespace bm::hal {
namespace {

constexpr std::array kChips = {"gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"};
constexpr uint32_t kCards = 2 * kChips.size();

template <class Rig>
Rig& card(uint32_t chip) {
  static std::array<std::unique_ptr<Rig>, kChips.size()> cards;
  auto& made = cards[chip];
  if (!made)
    made = std::make_unique<Rig>(sim::amd::ChipOptions{
        .chip = kChips[chip], .execute = sim::amd::interpreter(kChips[chip])});
  return *made;
}

Result<uint32_t> count(std::string_view) { return kCards; }

OpenedDevice open(std::string_view, uint32_t index, std::string_view arch) {
  if (index >= kCards) return fail(Code::kNotFound, "no card {}", index);
  const uint32_t chip = index % kChips.size();
  BM_TRY(hcq::check_arch(arch, kChips[chip]));
  const amd::DeviceOptions options{.packets = amd::PacketMode::kPm4,
                                   .cumode = settings().amd_cumode};
  if (index < kChips.size())
    return amd::make_device(BM_TRY(card<test::CardRig>(chip).open()), options);
  auto gpu = BM_TRY(card<test::UsbCardRig>(chip).open());
  amd::am::HostPath& path = *gpu->host_path();
  return hcq::make_shadowed(BM_TRY(amd::make_device(std::move(gpu), options)), path);
}

constexpr DriverInfo kDrivers[] = {
    kCpuRow,
    amd_row("PCI", count, open),
};

}  // namespace

std::span<const DriverInfo> builtin_drivers() { return kDrivers; }

}  // namespace bm::hal
