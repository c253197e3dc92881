// What the table of drivers calls: the amdgpu kernel driver of this machine, or a card of our own.

#include "drivers/amd/am/gpu.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/hcq/device.h"
#include "runtime/base/env.h"

namespace bm::amd {

Result<uint32_t> count_devices(std::string_view interface) {
  BM_TRY(hcq::check_interface("AMD", interface, "KFD"));
  return kfd::count_gpus(real_system());
}

namespace {

/// A device over whoever owns the GPU, as the settings want it.
Result<std::unique_ptr<hal::Device>> make_configured(std::unique_ptr<DriverInterface> driver,
                                                     std::string_view arch) {
  const Settings& now = settings();
  const std::string_view name = driver->facts().chip->name;
  if (!arch.empty() && arch != name)
    return fail(Code::kInvalidArgument, "{} was asked for, this GPU is {}", arch, name);
  DeviceOptions options{.cumode = now.amd_cumode, .priority = now.amd_priority};
  if (now.amd_queue == "pm4") options.packets = PacketMode::kPm4;
  if (now.amd_queue == "aql") options.packets = PacketMode::kAql;
  return make_device(std::move(driver), options);
}

}  // namespace

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch) {
  BM_TRY(hcq::check_interface("AMD", interface, "KFD"));
  auto kernel =
      BM_TRY(kfd::open_gpu(real_system(), {.index = index, .window = settings().amd_window}));
  return make_configured(std::move(kernel), arch);
}

Result<std::unique_ptr<hal::Device>> open_card(std::unique_ptr<PciFunction> function,
                                               std::string_view arch) {
  auto card = BM_TRY(am::open_am(std::move(function), {.firmware = firmware::default_search()}));
  return make_configured(std::move(card), arch);
}

}  // namespace bm::amd
