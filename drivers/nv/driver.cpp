// What the table of drivers calls: the nvidia kernel driver of this machine, or a card of our own.

#include "drivers/hcq/device.h"
#include "drivers/hcq/shadow_device.h"
#include "drivers/nv/cards.h"
#include "drivers/nv/device.h"
#include "drivers/nv/gsp/card.h"
#include "drivers/nv/rm_gsp/booted_card.h"
#include "drivers/nv/rm_gsp/gpu.h"
#include "drivers/nv/rm_ioctl/rm.h"
#include "drivers/transport/pci_open.h"
#include "runtime/base/env.h"

namespace bm::nv {
namespace {

Status check_interface(std::string_view interface) {
  return hcq::check_interface("NV", interface, {"NVK", "PCI"});
}

Status check_arch(const DriverInterface& driver, std::string_view arch) {
  return hcq::check_arch(arch, fmt::format("sm_{}", driver.facts().sm_version));
}

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  BM_TRY(check_interface(interface));
  if (interface == "PCI") return static_cast<uint32_t>(BM_TRY(chosen_cards(kCardVendor)).size());
  return count_rm(real_system());
}

hal::OpenedDevice open_device(std::string_view interface, uint32_t index, std::string_view arch) {
  BM_TRY(check_interface(interface));
  if (interface == "PCI")
    return open_card_at(kCardVendor, index,
                        [arch](auto card) { return open_card(std::move(card), arch); });
  auto kernel = BM_TRY(open_rm(
      real_system(),
      {.index = index, .window = settings().nv_window, .version_override = settings().nv_version}));
  BM_TRY(check_arch(*kernel, arch));
  return make_device(std::move(kernel));
}

hal::OpenedDevice open_card(std::unique_ptr<PciFunction> function, std::string_view arch,
                            const firmware::Search& firmware) {
  auto card = BM_TRY(gsp::GspCard::open(std::move(function), {.firmware = firmware}));
  return open_booted(std::move(card), arch);
}

hal::OpenedDevice open_booted(std::unique_ptr<gsp::GspCard> card, std::string_view arch,
                              const DeviceOptions& options) {
  auto gpu = BM_TRY(gsp::GspGpu::open(gsp::make_running(std::move(card))));
  BM_TRY(check_arch(*gpu, arch));
  hcq::HostPath* const path = gpu->host_path();
  auto device = make_device(std::move(gpu), options);
  // Its own rings and their memory are the last of what a start makes.
  if (!device && !device.error().message.starts_with("stage P"))
    return tl::unexpected(gsp::at_stage(gsp::UpperStage::kObjects, std::move(device.error())));
  return !device || path == nullptr ? std::move(device)
                                    : hcq::make_shadowed(std::move(*device), *path);
}

}  // namespace bm::nv
