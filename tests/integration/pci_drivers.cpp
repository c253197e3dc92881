// A table of drivers in place of drivers/builtin.cpp: the real ones, but cards of DEV=AMD:PCI take
// firmware that nobody knows, since modelled cards have none of AMD's. Linked into whole programs.

#include "drivers/amd/device.h"
#include "drivers/cpu/device.h"
#include "firmware/store.h"
#include "runtime/hal/device.h"

namespace bm::hal {
namespace {

Result<std::unique_ptr<Device>> open_amd(std::string_view interface, uint32_t index,
                                         std::string_view arch) {
  if (interface != "PCI") return amd::open_device(interface, index, arch);
  firmware::Search search = firmware::default_search();
  search.allows_unknown = true;
  return amd::open_pci_device(index, arch, search);
}

constexpr DriverInfo kDrivers[] = {{.name = "CPU",
                                    .interfaces = nullptr,
                                    .renderers = "LLVM CLANG",
                                    .help = "",
                                    .count = cpu::count_devices,
                                    .open = cpu::open_device},
                                   {.name = "AMD",
                                    .interfaces = "KFD PCI USB",
                                    .renderers = "LLVM HIP",
                                    .help = "",
                                    .count = amd::count_devices,
                                    .open = open_amd}};

}  // namespace

std::span<const DriverInfo> builtin_drivers() { return kDrivers; }

}  // namespace bm::hal
