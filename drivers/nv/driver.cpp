// What the table of drivers calls: the nvidia kernel driver of this machine.

#include "drivers/hcq/device.h"
#include "drivers/nv/device.h"
#include "drivers/nv/rm_ioctl/rm.h"
#include "runtime/base/env.h"

namespace bm::nv {

Result<uint32_t> count_devices(std::string_view interface) {
  BM_TRY(hcq::check_interface("NV", interface, "NVK"));
  return count_rm(real_system());
}

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch) {
  BM_TRY(hcq::check_interface("NV", interface, "NVK"));
  auto kernel = BM_TRY(open_rm(
      real_system(),
      {.index = index, .window = settings().nv_window, .version_override = settings().nv_version}));
  const std::string name = fmt::format("sm_{}", kernel->facts().sm_version);
  if (!arch.empty() && arch != name)
    return fail(Code::kInvalidArgument, "{} was asked for, this GPU is {}", arch, name);
  return make_device(std::move(kernel));
}

}  // namespace bm::nv
