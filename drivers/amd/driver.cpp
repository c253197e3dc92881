// What the table of drivers calls: the amdgpu kernel driver of this machine, or a card of our own.

#include "drivers/amd/am/gpu.h"
#include "drivers/amd/cards.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/amd/usb_cards.h"
#include "drivers/hcq/device.h"
#include "drivers/hcq/shadow_device.h"
#include "drivers/transport/pci_open.h"
#include "runtime/base/env.h"

namespace bm::amd {

namespace {

Status check_interface(std::string_view interface) {
  return hcq::check_interface("AMD", interface, {"KFD", "PCI", "USB"});
}

/// A device over whoever owns the GPU, as the settings want it.
hal::OpenedDevice make_configured(std::unique_ptr<DriverInterface> driver, std::string_view arch) {
  BM_TRY(hcq::check_arch(arch, driver->facts().chip->name));
  const Settings& now = settings();
  DeviceOptions options{.cumode = now.amd_cumode, .priority = now.amd_priority};
  if (now.amd_queue == "pm4") options.packets = PacketMode::kPm4;
  if (now.amd_queue == "aql") options.packets = PacketMode::kAql;
  return make_device(std::move(driver), options);
}

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  BM_TRY(check_interface(interface));
  if (interface == "USB") {
    const LibUsb* const calls = BM_TRY(load_libusb());
    return static_cast<uint32_t>(BM_TRY(find_usb_bridges(*calls)).size());
  }
  if (interface != "PCI") return kfd::count_gpus(real_system());
  return static_cast<uint32_t>(BM_TRY(chosen_cards(kCardVendor)).size());
}

hal::OpenedDevice open_device(std::string_view interface, uint32_t index, std::string_view arch) {
  BM_TRY(check_interface(interface));
  if (interface == "PCI")
    return open_card_at(kCardVendor, index,
                        [arch](auto card) { return open_card(std::move(card), arch); });
  if (interface == "USB") {
    const LibUsb* const calls = BM_TRY(load_libusb());
    auto function = BM_TRY(open_usb_card(*calls, index));
    return open_card(std::move(function), arch);
  }
  auto kernel =
      BM_TRY(kfd::open_gpu(real_system(), {.index = index, .window = settings().amd_window}));
  return make_configured(std::move(kernel), arch);
}

hal::OpenedDevice open_card(std::unique_ptr<PciFunction> function, std::string_view arch,
                            const firmware::Search& firmware) {
  auto card =
      BM_TRY(am::AmGpu::open(std::move(function), {.firmware = firmware,
                                                   .experimental = settings().amd_experimental,
                                                   .power_limit_w = settings().amd_power_limit}));
  am::HostPath* const path = card->host_path();
  auto device = BM_TRY(make_configured(std::move(card), arch));
  return path == nullptr ? std::move(device) : hcq::make_shadowed(std::move(device), *path);
}

}  // namespace bm::amd
