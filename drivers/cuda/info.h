#pragma once
// What the driver says about a GPU.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/cuda/api.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"

namespace bm::cuda {

struct DeviceInfo {
  CuDevice device = 0;
  uint32_t index = 0;
  hal::Arch arch;
  uint32_t capability = 0;  ///< 90: what the GPU is, whatever `arch` was asked for
  std::string description;  ///< name, PCI place, CUDA version
  uint64_t memory_bytes = 0;
  uint64_t host_bytes = 0;           ///< physical memory of the machine
  uint32_t launch_shared_bytes = 0;  ///< most of a block that asks for it at launch
  std::array<uint32_t, 3> max_block{}, max_grid{};
  bool has_mem_ops = false;  ///< streams wait for and write 64-bit words themselves
  bool has_read_only_register = false;
};

/// GPUs the driver shows to this process. Opens nothing.
Result<uint32_t> count_devices(const Api& api);

/// `arch`: "sm_80" for an older architecture whose code this GPU runs; empty: its own. Errors:
/// kNotFound (no such GPU), kInvalidArgument (architecture), kUnsupported (no unified addressing).
Result<DeviceInfo> read_info(const Api& api, uint32_t index, std::string_view arch);

}  // namespace bm::cuda
