#pragma once
// A modelled card in a modelled enclosure: behind the ports of a USB bridge, whose SRAM is all of
// the host that it reaches.

#include <memory>
#include <string>
#include <utility>

#include "drivers/transport/usb/asm24.h"
#include "drivers/transport/usb/usb_pci.h"
#include "tests/sim/usb/asm24_model.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::test {

/// The bridge stays plugged in when its driver goes.
class Cable final : public UsbDevice {
 public:
  explicit Cable(UsbDevice& device) : device_(device) {}
  const UsbIdentity& identity() const override { return device_.identity(); }
  Result<size_t> control_in(const UsbRequest& request, std::span<std::byte> to,
                            uint32_t timeout_ms) override {
    return device_.control_in(request, to, timeout_ms);
  }
  Status control_out(const UsbRequest& request, std::span<const std::byte> from,
                     uint32_t timeout_ms) override {
    return device_.control_out(request, from, timeout_ms);
  }
  Result<size_t> bulk_in(uint8_t endpoint, std::span<std::byte> to, uint32_t timeout_ms) override {
    return device_.bulk_in(endpoint, to, timeout_ms);
  }
  Status bulk_out(uint8_t endpoint, std::span<const std::byte> from, uint32_t timeout_ms) override {
    return device_.bulk_out(endpoint, from, timeout_ms);
  }
  Status clear_halt(uint8_t endpoint) override { return device_.clear_halt(endpoint); }

 private:
  UsbDevice& device_;
};

struct UsbCardRig : CardRig {
  static sim::amd::ChipOptions in_enclosure(sim::amd::ChipOptions wanted) {
    wanted.has_iommu = false;
    wanted.takes_half_doorbells = true;
    return wanted;
  }
  explicit UsbCardRig(const sim::amd::ChipOptions& wanted = {},
                      const sim::Asm24Options& bridge_options = {})
      : CardRig(in_enclosure(wanted)), slot(card), bridge(slot, bridge_options) {
    sim::BusMemory& bus = card->system_memory();
    bus.map(sim::Asm24Model::kSramAddress, {bridge.sram().data(), bridge.sram().size()});
    bus.map(sim::Asm24Model::kReleaseAddress,
            {bridge.release_page().data(), bridge.release_page().size()});
  }

  Result<std::unique_ptr<PciFunction>> function() {
    std::shared_ptr<UsbBridge> opened = BM_TRY(Asm24Bridge::open(std::make_unique<Cable>(bridge)));
    auto bus = BM_TRY(UsbBus::enumerate(std::move(opened)));
    return UsbBus::open(bus, bus->functions().at(0).identity.address);
  }
  Result<std::unique_ptr<amd::am::AmGpu>> open(bool always_reset = false) {
    return amd::am::AmGpu::open(
        BM_TRY(function()),
        {.firmware = folder.search(), .clock = &clock, .always_reset = always_reset});
  }
  std::string complaints() const {
    std::string text = violations();
    for (const std::string& line : bridge.violations()) text += line + "\n";
    return text;
  }

  sim::amd::ChipFunction slot;
  sim::Asm24Model bridge;
};

}  // namespace bm::test
