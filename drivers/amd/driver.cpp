// What the table of drivers calls: the amdgpu kernel driver of this machine.

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

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch) {
  BM_TRY(hcq::check_interface("AMD", interface, "KFD"));
  const Settings& now = settings();
  auto kernel = BM_TRY(kfd::open_gpu(real_system(), {.index = index, .window = now.amd_window}));
  const std::string_view name = kernel->facts().chip->name;
  if (!arch.empty() && arch != name)
    return fail(Code::kInvalidArgument, "{} was asked for, this GPU is {}", arch, name);
  DeviceOptions options{.cumode = now.amd_cumode, .priority = now.amd_priority};
  if (now.amd_queue == "pm4") options.packets = PacketMode::kPm4;
  if (now.amd_queue == "aql") options.packets = PacketMode::kAql;
  return make_device(std::move(kernel), options);
}

}  // namespace bm::amd
